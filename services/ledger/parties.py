"""Who writes and signs ledgers, under which names and keys, and when."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from secagg.keys import IdentityKey
from secagg.roster import Roster
from services.enrollment.roster_file import HISTORY, ROSTER, TRUST, load_roster, load_trust
from services.errors import CredentialError
from services.files import write_atomic
from services.security.credentials import load_identity

# The coordinator's name in ledgers; silos have their own.
COORDINATOR: Final = "coordinator"
# Beside the keys: public ones that this party had before (`secagg ledger rotate`).
_FORMER: Final = "former-keys.json"


@dataclass(frozen=True, slots=True)
class Party:
    """A `dp.entries.Signer` with a party's identity key.

    Attributes:
        former: public keys that it had before, oldest first; what they signed was its own. The
            present one may be among them, in its place.
    """

    name: str
    key: IdentityKey
    former: tuple[bytes, ...] = ()

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        """The present public key and those that this party had before, oldest first."""
        is_listed = self.key.public in self.former
        return self.former if is_listed else (*self.former, self.key.public)

    def __repr__(self) -> str:
        """Never show a key."""
        return f"Party({self.name!r})"

    def sign(self, message: bytes) -> bytes:
        """64 bytes; ledgers sign under labels of their own."""
        return self.key.sign(message)


def public_keys(roster: Roster) -> dict[str, bytes]:
    """Raw Ed25519 keys by name: what a ledger is verified with."""
    keys = {seat.silo.name: seat.identity_key for seat in roster.seats}
    return {**keys, COORDINATOR: roster.coordinator_key}


def listed_keys(directory: Path, former: Sequence[Path] = ()) -> dict[str, list[bytes]]:
    """All keys by name that signed rosters list or have listed, oldest first, for any ledger.

    Raises:
        CredentialError: as `listed_rosters`.
    """
    return keys_in(listed_rosters(directory, former))


def listed_rosters(directory: Path, former: Sequence[Path] = ()) -> list[Roster]:
    """All signed rosters of a folder, oldest first.

    Args:
        directory: with the trust file and the newest roster; older versions lie in a folder beside.
        former: older signed rosters.

    Raises:
        CredentialError: one is missing, or the federation's roots did not sign it.
    """
    trust = load_trust(directory / TRUST)
    older = [*sorted((directory / HISTORY).glob("roster-*.json")), *former]
    rosters = [load_roster(path, trust) for path in (directory / ROSTER, *older)]
    return sorted(rosters, key=lambda one: one.version)


def keys_in(rosters: Sequence[Roster]) -> dict[str, list[bytes]]:
    """All keys by name that rosters list, oldest first, of rosters that are, too."""
    found: dict[str, list[bytes]] = {}
    for roster in rosters:
        for name, key in public_keys(roster).items():
            keys = found.setdefault(name, [])
            if key in keys:
                keys.remove(key)  # its place is that of the last roster that lists it
            keys.append(key)
    return found


def load_party(directory: Path, name: str) -> Party:
    """A party with the keys of its folder, and those that signed rosters there have listed for it.

    Raises:
        CredentialError: the key cannot be read, or a roster there is not signed by the roots.
    """
    former = _former(directory)
    if (directory / HISTORY).is_dir():
        # In the authority's order; a key that no roster here lists is older than the lists.
        listed = listed_keys(directory).get(name, ())
        former = (*(key for key in former if key not in listed), *listed)
    return Party(name, load_identity(directory), former)


def note_former(directory: Path, key: bytes) -> None:
    """Note a former public key beside the present keys, as the newest of them."""
    keys = [one.hex() for one in (*(one for one in _former(directory) if one != key), key)]
    write_atomic(directory / _FORMER, json.dumps(keys, indent=2).encode() + b"\n")


def _former(directory: Path) -> tuple[bytes, ...]:
    path = directory / _FORMER
    try:
        keys = json.loads(path.read_bytes())
        return tuple(bytes.fromhex(one) for one in keys)
    except FileNotFoundError:
        return ()
    except (TypeError, ValueError) as error:
        raise CredentialError(f"{path}: expected a list of public keys in hex") from error


def stamp(now: datetime) -> str:
    """A time as entries have it, to the second."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
