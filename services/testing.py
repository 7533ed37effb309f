"""A small federation on this machine for tests and the demo: real keys, certificates, roster.

Nothing here is a shortcut: it calls what `secagg authority` and `secagg silo enroll` call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from secagg.rng import SystemRng
from secagg.roster import Roster
from services.enrollment import authority
from services.enrollment.request import enroll
from services.security.credentials import Credentials, load_credentials
from services.security.identity import Role

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
COORDINATOR: Final = "coordinator"
OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFederation:
    """Folders of a federation: `root`/authority, and one folder for each holder by its name.

    Attributes:
        now: the time at which certificates are made and checked.
        hosts: the coordinator's names.
    """

    root: Path
    now: datetime
    hosts: tuple[str, ...] = LOOPBACK

    @property
    def authority(self) -> Path:
        """The authority's folder."""
        return self.root / "authority"

    def folder(self, name: str) -> Path:
        """A holder's folder with keys, certificate, roster and trust file."""
        return self.root / name

    def credentials(self, name: str, role: Role) -> Credentials:
        """A holder's TLS files."""
        return load_credentials(self.folder(name), role=role, now=self.now)

    def roster(self) -> Roster:
        """The newest roster; the authority has issued the coordinator's certificate before."""
        roster = authority.newest_roster(self.authority)
        assert roster is not None  # make_federation issues the coordinator's certificate
        return roster

    def issue(
        self, name: str, role: Role, *, organization: str = "", now: datetime | None = None
    ) -> None:
        """Enroll a holder, or renew its certificate as of `now`."""
        hosts = self.hosts if role is Role.COORDINATOR else ()
        request = enroll(self.folder(name), name=name, role=role, rng=SystemRng(), hosts=hosts)
        issued = authority.issue(
            self.authority, request, role=role, now=now or self.now, organization=organization
        )
        authority.install(issued.bundle, self.folder(name))


def make_federation(
    root: Path,
    *,
    silos: Sequence[str],
    now: datetime,
    hosts: tuple[str, ...] = LOOPBACK,
    name: str = "local",
) -> LocalFederation:
    """Make an authority, a coordinator, an operator, and silos each of an organization of its own.

    Args:
        root: a folder for everything; made if it is not there.
        silos: their names; seats are numbered in this order, from 1.
        now: from when certificates are valid.
        hosts: names and addresses by which the coordinator will be dialed.
        name: the federation's.
    """
    federation = LocalFederation(root=root, now=now, hosts=hosts)
    authority.init(federation.authority, federation=name, rng=SystemRng(), now=now)
    federation.issue(COORDINATOR, Role.COORDINATOR)
    federation.issue(OPERATOR, Role.OPERATOR)
    for silo in silos:
        federation.issue(silo, Role.SILO, organization=f"Organization {silo}")
    # Each holder begins with the roster that lists all of them.
    for holder in (COORDINATOR, OPERATOR, *silos):
        authority.install(federation.authority / "issued" / holder, federation.folder(holder))
    return federation
