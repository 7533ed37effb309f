"""A new identity key goes on in the ledgers that an old one wrote; what was spent stays spent.

With the old key at hand both sign the entry. Where it is lost, two rosters that the federation's
roots have signed say that the old key and the new one are of the same party. The old public key is
noted beside the new keys, so that a release that it once signed for is found again, too.
"""

from dataclasses import dataclass
from pathlib import Path

from dp.canonical import Json
from dp.entries import Kind
from dp.keyring import Rotation, accepted_message, current_key
from dp.ledger import Ledger, LedgerKind
from secagg.keys import IdentityKey
from secagg.roster import Roster
from services.enrollment.roster_file import ROSTER, TRUST, Trust, load_roster, load_trust
from services.errors import ConfigError, CredentialError, NotFoundError
from services.ledger.parties import Party, note_former, public_keys
from services.security.credentials import load_identity
from services.storage.ledger import FileLedgerStore


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeys:
    """The folder with the new identity key, and what the roster beside it says.

    Attributes:
        directory: of keys, roster and trust file.
        key: the new one.
        roster: which lists it.
        trust: who signs rosters.
    """

    directory: Path
    key: IdentityKey
    roster: Roster
    trust: Trust


def new_keys(directory: Path) -> NewKeys:
    """Read the folder with the new keys.

    Raises:
        CredentialError: a file is missing or not signed by the federation's roots.
    """
    trust = load_trust(directory / TRUST)
    return NewKeys(
        directory=directory,
        key=load_identity(directory),
        roster=load_roster(directory / ROSTER, trust),
        trust=trust,
    )


def old_key(
    fresh: NewKeys, *, folder: Path | None, roster_file: Path | None
) -> IdentityKey | Roster:
    """Read the key that wrote the ledgers until now, or the signed roster that lists it.

    Raises:
        ConfigError: neither is named, or both.
        CredentialError: it cannot be read, or the roots did not sign it.
    """
    if folder is not None and roster_file is None:
        return load_identity(folder)
    if folder is None and roster_file is not None:
        return load_roster(roster_file, fresh.trust)
    raise ConfigError("expected --old or --old-roster, one of them")


def rotate_ledger(path: Path, fresh: NewKeys, old: IdentityKey | Roster, *, time_utc: str) -> bool:
    """Append KEY_ROTATE; False if the ledger has the new key already.

    Raises:
        NotFoundError: there is no ledger.
        CredentialError: a roster or the ledger names other keys.
        LedgerIntegrityError: the ledger was changed.
        LedgerConflictError: its process still writes; nothing was written.
    """
    ledger = Ledger(FileLedgerStore(path))
    if not ledger.entries:
        raise NotFoundError(f"{path}: expected a ledger")
    name = str(ledger.entries[0].body.get("writer"))
    if public_keys(fresh.roster).get(name) != fresh.key.public:
        raise CredentialError(
            f"{fresh.directory}: its roster lists another identity key for {name!r}",
            hint="install the bundle that was issued for the new keys",
        )
    found = current_key(ledger.entries, name)
    if found == fresh.key.public:
        return False
    before = old.public if isinstance(old, IdentityKey) else public_keys(old).get(name)
    if before is None or before != found:
        raise CredentialError(
            f"{path}: its last key of {name!r} is not the old one that was named",
            hint="rotate from the key that it was written with, one step after the other",
        )
    changes = [Rotation.of(one) for one in ledger.entries if one.kind is Kind.KEY_ROTATE]
    if fresh.key.public in {one.old for one in changes if one.name == name}:
        raise CredentialError(
            f"{path}: {name!r} has had this key before; a replaced key does not come back",
            hint="make new keys, have the authority list them, and rotate to those",
        )
    if isinstance(old, Roster) and old.version >= fresh.roster.version:
        raise CredentialError(
            f"{fresh.directory}: expected a newer roster than the one that lists the lost key",
            hint="install the newest bundle beside the new keys",
        )
    if ledger.entries[0].body.get("ledger") == LedgerKind.DATA_SET:
        ledger.verify({name: (before, fresh.key.public)})  # a run's has others' keys, too
    body: dict[str, Json] = {"name": name, "old": before.hex(), "key": fresh.key.public.hex()}
    message = accepted_message(ledger.head().entry_hash, name, before, fresh.key.public)
    if isinstance(old, IdentityKey):
        body["accepted"] = fresh.key.sign(message).hex()
    else:
        body["lost"] = True
    writer = old if isinstance(old, IdentityKey) else fresh.key
    note_former(fresh.directory, before)
    draft = ledger.draft(Kind.KEY_ROTATE, body, time_utc=time_utc)
    ledger.append(draft.signed_by(Party(name, writer)))
    return True
