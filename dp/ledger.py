"""A ledger is a chain of signed entries that only grows; who edits, cuts or forks it is found.

An edit breaks the chain of hashes, a forged line its signatures, a cut the heads that peers keep,
and two histories of one writer are two signed heads at one place. Where the lines are kept is
behind a port whose one hard promise is compare-and-append: of two processes that saw the same head,
one wins and the other reads again.

There are two kinds. A federation's *run ledger* is the coordinator's, copied by silos. A silo's
*data-set ledger* decides over one data set's budget, across all runs and purposes, and never leaves
the silo.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dp.canonical import Json, canonical_json, parse_canonical
from dp.entries import GENESIS_HASH, Entry, Kind, Signature, Signer, check_signatures
from dp.errors import EquivocationError, LedgerConflictError, LedgerIntegrityError, PlanError
from dp.keyring import Keyring, Keys

HEAD_PREFIX: Final = b"SA1/ledger-head\0"


class LedgerKind(StrEnum):
    """Whose ledger it is."""

    RUN = "run"
    DATA_SET = "data_set"


class LedgerStore(Protocol):
    """Where one ledger's lines are kept, in order; `dp.ledger_testing` has the contract."""

    def read(self, start: int) -> Sequence[bytes]:
        """All lines from place `start` on, without line feeds."""
        ...

    def append(self, line: bytes, *, expected_lines: int) -> None:
        """Add a line if there are exactly `expected_lines`, atomically across processes.

        When it returns, the line survives a crash.

        Raises:
            LedgerConflictError: there are more, or fewer; nothing was added.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ed25519Signer:
    """A signer whose key is in this process."""

    name: str
    key: Ed25519PrivateKey

    def __repr__(self) -> str:
        """Never show a key."""
        return f"Ed25519Signer(name={self.name!r})"

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return self.key.sign(message)

    @property
    def public_key(self) -> bytes:
        """Raw, 32 bytes."""
        return self.key.public_key().public_bytes_raw()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a ledger's last entry was when somebody looked.

    Attributes:
        ledger: hash of the ledger's first entry, in hex: which ledger.
        seq: place of the last entry; -1 for an empty ledger.
        entry_hash: its hash, in hex.
    """

    ledger: str
    seq: int
    entry_hash: str

    def message(self) -> bytes:
        """What is signed to vouch for it."""
        body: dict[str, Json] = {
            "ledger": self.ledger,
            "seq": self.seq,
            "entry_hash": self.entry_hash,
        }
        return HEAD_PREFIX + canonical_json(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead:
    """A head that a party has seen and vouches for; exchanged inside each round's messages."""

    head: Head
    signature: Signature

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        head = self.head
        return canonical_json(
            {
                "ledger": head.ledger,
                "seq": head.seq,
                "entry_hash": head.entry_hash,
                "signer": self.signature.signer,
                "sig": self.signature.sig,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a peer's head.

        Raises:
            PlanError: not a signed head.
        """
        value = parse_canonical(data)
        names = {"ledger", "seq", "entry_hash", "signer", "sig"}
        if not isinstance(value, dict) or set(value) != names:
            raise PlanError("expected exactly the fields of a signed head")
        ledger, seq, entry_hash = value["ledger"], value["seq"], value["entry_hash"]
        if not isinstance(ledger, str) or not isinstance(entry_hash, str) or type(seq) is not int:
            raise PlanError("expected a ledger, a place and a hash")
        signature = Signature(signer=str(value["signer"]), sig=str(value["sig"]))
        head = Head(ledger=ledger, seq=seq, entry_hash=entry_hash)
        return cls(head=head, signature=signature)


def sign_head(head: Head, signer: Signer) -> SignedHead:
    """Vouch for a head."""
    sig = signer.sign(head.message()).hex()
    return SignedHead(head=head, signature=Signature(signer=signer.name, sig=sig))


class Ledger:
    """Reads a store, checks the chain as it grows, and appends.

    Signatures are checked by `verify`, which knows the keys; the chain is checked always.
    """

    def __init__(self, store: LedgerStore) -> None:
        """Read what is there.

        Raises:
            LedgerIntegrityError: a line does not follow from the one before.
        """
        self._store = store
        self._entries: list[Entry] = []
        self.refresh()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What has been read so far."""
        return tuple(self._entries)

    def refresh(self) -> Sequence[Entry]:
        """Read what others have appended; returns the new entries.

        Raises:
            LedgerIntegrityError: a line does not follow from the one before.
        """
        known = len(self._entries)
        for line in self._store.read(known):
            self._entries.append(_read_next(line, self._entries[-1] if self._entries else None))
        return self._entries[known:]

    def head(self) -> Head:
        """The last entry that has been read."""
        if not self._entries:
            return Head(ledger=GENESIS_HASH, seq=-1, entry_hash=GENESIS_HASH)
        last = self._entries[-1]
        return Head(ledger=self._entries[0].entry_hash, seq=last.seq, entry_hash=last.entry_hash)

    def draft(
        self, kind: Kind, body: Mapping[str, Json], *, time_utc: str, run_id: str = ""
    ) -> Entry:
        """An unsigned entry for the place after the head, for all who must sign it.

        Its time is never before the last entry's: a clock that was set back opens no old year.
        """
        head = self.head()
        return Entry(
            seq=head.seq + 1,
            prev_hash=head.entry_hash,
            kind=kind,
            run_id=run_id,
            time_utc=self.not_before(time_utc),
            body=body,
        )

    def not_before(self, time_utc: str) -> str:
        """A time, or the last entry's if that is later."""
        return max(time_utc, self._entries[-1].time_utc) if self._entries else time_utc

    def append(self, entry: Entry) -> Entry:
        """Add a signed entry at the place it was drafted for.

        Raises:
            LedgerConflictError: somebody else was first; refresh, decide again, draft again.
            LedgerIntegrityError: nobody signed it, or the ledger is closed.
        """
        head = self.head()
        if (entry.seq, entry.prev_hash) != (head.seq + 1, head.entry_hash):
            raise LedgerConflictError(f"the entry was drafted for {entry.seq}, not after the head")
        if self._entries and self._entries[-1].kind is Kind.CLOSE:
            raise LedgerIntegrityError(entry.seq, "the ledger is closed")
        if not entry.sigs:
            raise LedgerIntegrityError(entry.seq, "expected a signature, got none")
        self._store.append(entry.to_line(), expected_lines=entry.seq)
        self._entries.append(entry)
        return entry

    def verify(self, keys: Keys, heads: Iterable[SignedHead] = ()) -> "IntegrityReport":
        """Check signatures, who must sign what, and the heads of peers.

        Args:
            keys: raw Ed25519 public keys by name, one or several, from signed rosters and not
                from the ledger.
            heads: what peers have seen and signed.

        Raises:
            LedgerIntegrityError: at the first entry that is not as it should be.
            EquivocationError: a peer holds another entry, signed by the same writer.
        """
        self.refresh()
        return verify_entries(self._entries, keys, heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityReport:
    """A ledger that is whole.

    Attributes:
        entries: how many.
        head: the last one.
        kind: whose ledger it is.
        writer: who signs what nobody else must.
    """

    entries: int
    head: Head
    kind: LedgerKind
    writer: str


def verify_entries(
    entries: Sequence[Entry], keys: Keys, heads: Iterable[SignedHead] = ()
) -> IntegrityReport:
    """As `Ledger.verify`, on entries that are already chained."""
    if not entries or entries[0].kind is not Kind.GENESIS:
        raise LedgerIntegrityError(0, "expected GENESIS as the first entry")
    kind, writer = _genesis(entries[0])
    keyring = Keyring(entries, keys)
    for entry in entries:
        if entry.kind is Kind.GENESIS and entry.seq:
            raise LedgerIntegrityError(entry.seq, "a ledger begins only once")
        if entry.kind is Kind.CLOSE and entry.seq != entries[-1].seq:
            raise LedgerIntegrityError(entry.seq, "a closed ledger goes on")
        signers = keyring.check(entry)
        missing = _missing_signers(entry, kind, writer, signers)
        if missing:
            raise LedgerIntegrityError(entry.seq, f"{entry.kind} lacks the signature of {missing}")
    last = entries[-1]
    head = Head(ledger=entries[0].entry_hash, seq=last.seq, entry_hash=last.entry_hash)
    check_heads(entries, keyring.ring, heads)
    return IntegrityReport(entries=len(entries), head=head, kind=kind, writer=writer)


def check_heads(
    entries: Sequence[Entry],
    ring: Mapping[str, Collection[bytes]],
    heads: Iterable[SignedHead],
) -> None:
    """Compare a ledger with the heads that peers have signed.

    Args:
        entries: the ledger.
        ring: all public keys a party has had, by name.
        heads: what peers have seen.

    Raises:
        LedgerIntegrityError: a head lies beyond the end, so the ledger was cut; or a head's
            signature does not fit.
        EquivocationError: another entry was seen at a place: two histories were shown.
    """
    for signed in heads:
        head = signed.head
        _check_head_signature(signed, ring.get(signed.signature.signer, ()))
        if head.seq < 0 or head.ledger != entries[0].entry_hash:
            continue  # of an empty ledger, or of another one
        if head.seq >= len(entries):
            raise LedgerIntegrityError(
                len(entries),
                f"the ledger ends here, but {signed.signature.signer!r} has signed entry "
                f"{head.seq}: it was cut",
            )
        if entries[head.seq].entry_hash != head.entry_hash:
            raise EquivocationError(head.seq, (entries[head.seq].entry_hash, head.entry_hash))


def find_equivocation(heads: Iterable[SignedHead]) -> None:
    """Compare the heads of peers with one another.

    Raises:
        EquivocationError: two entries at one place of one ledger.
    """
    seen: dict[tuple[str, int], str] = {}
    for signed in heads:
        place = (signed.head.ledger, signed.head.seq)
        known = seen.setdefault(place, signed.head.entry_hash)
        if known != signed.head.entry_hash:
            raise EquivocationError(signed.head.seq, (known, signed.head.entry_hash))


def prove_equivocation(first: Entry, second: Entry, *, writer: str, key: bytes) -> None:
    """Show that a writer signed two entries at one place: nobody else could have.

    Raises:
        EquivocationError: it did; the two entries are the proof.
        LedgerIntegrityError: they prove nothing: another place, one entry, or a bad signature.
    """
    same_place = (first.seq, first.prev_hash) == (second.seq, second.prev_hash)
    if not same_place or first.entry_hash == second.entry_hash:
        raise LedgerIntegrityError(first.seq, "expected two entries after the same entry")
    for entry in (first, second):
        own = [one for one in entry.sigs if one.signer == writer]
        if not own:
            raise LedgerIntegrityError(entry.seq, f"{writer!r} has not signed it")
        check_signatures(replace(entry, sigs=tuple(own)), {writer: key})
    raise EquivocationError(first.seq, (first.entry_hash, second.entry_hash))


def _check_head_signature(signed: SignedHead, keys: Collection[bytes]) -> None:
    for key in keys:
        try:
            public = Ed25519PublicKey.from_public_bytes(key)
            public.verify(bytes.fromhex(signed.signature.sig), signed.head.message())
        except InvalidSignature:
            continue
        return
    signer = signed.signature.signer
    raise LedgerIntegrityError(
        signed.head.seq, f"a head signed as {signer!r} fits no key of that name"
    )


def _read_next(line: bytes, before: Entry | None) -> Entry:
    """Read a line and check that it follows."""
    place = 0 if before is None else before.seq + 1
    try:
        entry = Entry.from_line(line)
    except PlanError as error:
        raise LedgerIntegrityError(place, str(error)) from error
    if entry.seq != place:
        raise LedgerIntegrityError(place, f"expected this place, got {entry.seq}")
    if entry.prev_hash != (GENESIS_HASH if before is None else before.entry_hash):
        raise LedgerIntegrityError(place, "it does not follow from the entry before")
    return entry


def _genesis(entry: Entry) -> tuple[LedgerKind, str]:
    kind, writer = entry.body.get("ledger"), entry.body.get("writer")
    if kind not in list(LedgerKind) or not isinstance(writer, str):
        raise LedgerIntegrityError(0, "GENESIS names no kind of ledger or no writer")
    return LedgerKind(kind), writer


def _missing_signers(entry: Entry, kind: LedgerKind, writer: str, signers: frozenset[str]) -> str:
    """Who should have signed and has not, in words; empty if nobody."""
    if kind is LedgerKind.RUN and entry.kind is Kind.ROUND_RELEASE:
        # A dropped silo cannot sign, so a threshold of the survivors does.
        survivors, threshold = entry.body.get("survivors"), entry.body.get("threshold")
        if not isinstance(survivors, list | tuple) or type(threshold) is not int or threshold < 1:
            return "survivors, whom the body does not name"
        have = len(signers & {name for name in survivors if isinstance(name, str)})
        return "" if have >= threshold else f"{threshold - have} more survivors"
    needed = {writer}
    if kind is LedgerKind.RUN and entry.kind is Kind.PLAN_COMMIT:
        silos = entry.body.get("silos")
        if not isinstance(silos, list | tuple) or not silos:
            return "silos, whom the body does not name"
        needed |= {str(name) for name in silos}
    return ", ".join(sorted(needed - signers))
