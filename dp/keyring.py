"""With which keys a ledger's signatures are checked, while its parties' keys are replaced.

KEY_ROTATE names the old key and the new one. The old key signs the entry and the new one accepts
it, so that whoever knows one of the two knows both; after it only the new key counts, and for good:
a key that was replaced comes back by no later entry. Where the old key is lost, the new one signs
alone, and a reader must know both by itself: from rosters that the federation's authority has
signed, never from the ledger, and the new one from a newer roster.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dp.canonical import Json, canonical_json
from dp.entries import Entry, Kind, Signature, check_signatures
from dp.errors import LedgerIntegrityError, PlanError

_ACCEPTS: Final = b"SA1/ledger-rotation\0"


def accepted_message(prev_hash: str, name: str, old: bytes, key: bytes) -> bytes:
    """What a new key signs to accept its place in a ledger."""
    body: dict[str, Json] = {
        "prev_hash": prev_hash,
        "name": name,
        "old": old.hex(),
        "key": key.hex(),
    }
    return _ACCEPTS + canonical_json(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A KEY_ROTATE entry.

    Attributes:
        seq: its place.
        name: whose key.
        old: raw public key until here.
        key: raw public key from here on.
        accepted: the new key's signature in hex; None where the old key is lost.
    """

    seq: int
    name: str
    old: bytes
    key: bytes
    accepted: str | None

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Read an entry.

        Raises:
            LedgerIntegrityError: it names no keys, or both too much and too little.
        """
        body = entry.body
        name, accepted, is_lost = body.get("name"), body.get("accepted"), body.get("lost") is True
        try:
            old, key = (bytes.fromhex(str(body.get(which))) for which in ("old", "key"))
            signature = None if accepted is None else Signature(signer="new", sig=str(accepted)).sig
        except (ValueError, PlanError) as error:
            raise LedgerIntegrityError(entry.seq, "KEY_ROTATE names no key") from error
        if not isinstance(name, str) or not len(old) == len(key) == 32 or old == key:
            raise LedgerIntegrityError(entry.seq, "KEY_ROTATE names no key")
        if is_lost is (signature is not None):
            raise LedgerIntegrityError(
                entry.seq, "KEY_ROTATE: expected the new key's acceptance, or that the old is lost"
            )
        return cls(seq=entry.seq, name=name, old=old, key=key, accepted=signature)


Keys = Mapping[str, bytes | Sequence[bytes]]


class Keyring:
    """The keys of a ledger's parties, from its first entry on."""

    def __init__(self, entries: Sequence[Entry], known: Keys) -> None:
        """Find who has had which keys.

        Args:
            entries: the ledger, GENESIS first.
            known: by name, the raw public keys that signed rosters list or have listed, oldest
                first: a lost key has a later one as its successor.

        Raises:
            LedgerIntegrityError: a key takes another's place for which nobody who is known speaks.
        """
        self._valid = {name: keys_of(keys) for name, keys in known.items()}
        self.ring = {name: set(keys) for name, keys in self._valid.items()}
        self._order = {
            name: (keys,) if isinstance(keys, bytes) else tuple(keys)
            for name, keys in known.items()
        }
        chains: dict[str, list[Rotation]] = {}
        for entry in entries:
            if entry.kind is Kind.KEY_ROTATE:
                rotation = Rotation.of(entry)
                chains.setdefault(rotation.name, []).append(rotation)
        for name, chain in chains.items():
            self._follow(name, chain)
        writer = entries[0].body.get("writer")
        if isinstance(writer, str) and writer in self._valid and writer not in chains:
            # Without a rotation one key writes all of it, whichever others there were.
            self._valid[writer] = self._one_key(entries[0], writer)

    def check(self, entry: Entry) -> frozenset[str]:
        """Check the signatures of the next entry; returns who signed.

        Raises:
            LedgerIntegrityError: one does not fit.
        """
        rotation = Rotation.of(entry) if entry.kind is Kind.KEY_ROTATE else None
        if rotation is not None and rotation.accepted is None:
            self._valid[rotation.name] = {rotation.key}
        signers = check_signatures(entry, self._valid)
        if rotation is None:
            return signers
        if rotation.name not in signers:
            raise LedgerIntegrityError(
                entry.seq, f"KEY_ROTATE lacks the signature of {rotation.name!r}"
            )
        if rotation.accepted is not None:
            message = accepted_message(entry.prev_hash, rotation.name, rotation.old, rotation.key)
            _require_accepted(rotation, message)
            self._valid[rotation.name] = {rotation.key}
        return signers

    def _follow(self, name: str, chain: Sequence[Rotation]) -> None:
        """Take over the keys of one party; those that vouch for one another need one known."""
        known = set(self.ring.get(name, ()))
        groups, last, had = [{chain[0].old}], chain[0].old, {chain[0].old}
        for one in chain:
            if one.key in had:
                raise LedgerIntegrityError(
                    one.seq, f"KEY_ROTATE goes back to a key that {name!r} has had before"
                )
            had.add(one.key)
            if one.old != last:
                raise LedgerIntegrityError(
                    one.seq, f"KEY_ROTATE replaces another key of {name!r} than it has"
                )
            last = one.key
            if one.accepted is None:
                groups.append({one.key})
            else:
                groups[-1].add(one.key)
        if not all(group & known for group in groups):
            raise LedgerIntegrityError(
                chain[0].seq, f"KEY_ROTATE of {name!r}: no known key vouches for another one there"
            )
        if not follow_in_order(groups, self._order.get(name, ())):
            raise LedgerIntegrityError(
                chain[0].seq,
                f"KEY_ROTATE of {name!r}: a lost key's successor is the older key, as far as is "
                "known here; all signed rosters, in the folder `rosters`, tell the keys' order",
            )
        self._valid[name] = {chain[0].old}
        self.ring[name] = known.union(*groups)

    def _one_key(self, first: Entry, writer: str) -> set[bytes]:
        mine = tuple(one for one in first.sigs if one.signer == writer)
        for key in self._valid[writer]:
            with suppress(LedgerIntegrityError):
                check_signatures(replace(first, sigs=mine), {writer: key})
                return {key}
        return self._valid[writer]


def current_key(entries: Sequence[Entry], name: str) -> bytes | None:
    """The key that a ledger itself says a party has now, unverified; None if it says none."""
    found: bytes | None = None
    for entry in entries:
        if entry.kind is Kind.GENESIS:
            keys = entry.body.get("keys")
            text = keys.get(name) if isinstance(keys, Mapping) else None
            with suppress(ValueError):
                found = bytes.fromhex(str(text))
        elif entry.kind is Kind.KEY_ROTATE and entry.body.get("name") == name:
            found = Rotation.of(entry).key
    return found


def follow_in_order(groups: Sequence[Collection[bytes]], order: Sequence[bytes]) -> bool:
    """Whether of each group of keys the newest was listed later than all of the groups before.

    Args:
        groups: keys that accepted one another, one group after each lost key.
        order: the keys of signed rosters, oldest first.
    """
    places = {key: place for place, key in enumerate(order)}
    newest = [max((places.get(key, -1) for key in group), default=-1) for group in groups]
    return all(one < two for one, two in pairwise(newest))


def keys_of(keys: bytes | Collection[bytes]) -> set[bytes]:
    """One key or several, as a set."""
    return {keys} if isinstance(keys, bytes) else set(keys)


def _require_accepted(rotation: Rotation, message: bytes) -> None:
    assert rotation.accepted is not None, "the caller has looked"
    try:
        public = Ed25519PublicKey.from_public_bytes(rotation.key)
        public.verify(bytes.fromhex(rotation.accepted), message)
    except InvalidSignature as error:
        raise LedgerIntegrityError(
            rotation.seq, f"KEY_ROTATE: the new key of {rotation.name!r} has not accepted"
        ) from error
