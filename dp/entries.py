"""One entry of a ledger: a canonical JSON line that names its predecessor and carries signatures.

The hash covers everything but the signatures, so that several parties can sign one draft, one after
the other. Bodies hold constants, hashes, names and epsilons: never data, norms, losses or numbers
of patients (privacy.md 7.1).
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dp.canonical import Json, canonical_json, parse_canonical
from dp.errors import LedgerIntegrityError, PlanError

GENESIS_HASH: Final = "0" * 64
# What is signed starts with its own label: the same key signs protocol messages under theirs.
SIGNED_PREFIX: Final = b"SA1/ledger-entry\0"
MAX_LINE_BYTES: Final = 1024 * 1024

_HASH = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_RUN = re.compile(r"([0-9a-f]{2}){0,64}")
_FIELDS: Final = frozenset(
    {"seq", "prev_hash", "kind", "run_id", "time_utc", "body", "entry_hash", "sigs"}
)


class Kind(StrEnum):
    """What an entry records."""

    GENESIS = "GENESIS"
    BUDGET_SET = "BUDGET_SET"
    PLAN_COMMIT = "PLAN_COMMIT"
    ROUND_INTENT = "ROUND_INTENT"
    ROUND_RELEASE = "ROUND_RELEASE"
    ROUND_ABORT = "ROUND_ABORT"
    AUDIT_RESULT = "AUDIT_RESULT"
    METRIC_RELEASE = "METRIC_RELEASE"
    KEY_ROTATE = "KEY_ROTATE"
    CORRECTION = "CORRECTION"
    CLOSE = "CLOSE"


class Signer(Protocol):
    """A party's Ed25519 key, wherever it is kept."""

    @property
    def name(self) -> str:
        """As in the ledger's keys."""
        ...

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Who signed, and the signature in hex."""

    signer: str
    sig: str

    def __post_init__(self) -> None:
        """Refuse what is no signature by its form."""
        _require_text("signer", self.signer)
        if not _matches(_SIGNATURE, self.sig):
            raise PlanError("sig: expected 64 bytes in lower-case hex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A ledger's line.

    Attributes:
        seq: its place, from 0.
        prev_hash: the hash of the entry before it, in hex; zeros for the first.
        kind: what it records.
        run_id: of which run, in hex; empty for what belongs to none.
        time_utc: when, as the writer's clock had it, to the second.
        body: what it says, as canonical JSON values.
        sigs: signatures over the hash.
    """

    seq: int
    prev_hash: str
    kind: Kind
    run_id: str
    time_utc: str
    body: Mapping[str, Json]
    sigs: tuple[Signature, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no ledger can hold."""
        if type(self.seq) is not int or self.seq < 0:
            raise PlanError(f"seq: expected a whole number from 0, got {self.seq!r}")
        if not _matches(_HASH, self.prev_hash):
            raise PlanError("prev_hash: expected 32 bytes in lower-case hex")
        if not _matches(_RUN, self.run_id):
            raise PlanError("run_id: expected lower-case hex, or nothing")
        if not _matches(_TIME, self.time_utc):
            raise PlanError("time_utc: expected a time such as 2026-11-30T12:00:00Z")
        _require_body(self.body)
        signers = [signature.signer for signature in self.sigs]
        if signers != sorted(set(signers)):
            raise PlanError("sigs: expected distinct signers in sorted order")

    @property
    def entry_hash(self) -> str:
        """SHA-256 of the entry without its signatures, in hex."""
        return hashlib.sha256(canonical_json(self._content())).hexdigest()

    def to_line(self) -> bytes:
        """The whole entry as one line, without the line feed."""
        sigs: list[Json] = [{"signer": one.signer, "sig": one.sig} for one in self.sigs]
        return canonical_json({**self._content(), "entry_hash": self.entry_hash, "sigs": sigs})

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read a line.

        Raises:
            PlanError: not canonical, an unknown or missing field, a value out of range, or a hash
                that is not the entry's.
        """
        if len(line) > MAX_LINE_BYTES:
            raise PlanError(f"expected a line of at most {MAX_LINE_BYTES} bytes")
        data = parse_canonical(line)
        if not isinstance(data, dict) or set(data) != _FIELDS:
            raise PlanError("expected exactly the fields of a ledger entry")
        if data["kind"] not in list(Kind):
            raise PlanError("kind: expected a kind of ledger entry")
        claimed = data.pop("entry_hash")
        sigs = _read_signatures(data.pop("sigs"))
        entry = cls(**{**data, "kind": Kind(data["kind"]), "sigs": sigs})
        if entry.entry_hash != claimed:
            raise PlanError("the entry's hash is not that of its content")
        return entry

    def signed_by(self, *signers: Signer) -> Self:
        """The same entry with these parties' signatures beside those it has."""
        message = signed_message(self.entry_hash)
        new = {one.name: Signature(signer=one.name, sig=one.sign(message).hex()) for one in signers}
        return self.with_signatures(*new.values())

    def with_signatures(self, *signatures: Signature) -> Self:
        """The same entry with signatures that others made."""
        merged = {one.signer: one for one in (*self.sigs, *signatures)}
        return replace(self, sigs=tuple(merged[name] for name in sorted(merged)))

    def _content(self) -> dict[str, Json]:
        return {
            "seq": self.seq,
            "prev_hash": self.prev_hash,
            "kind": self.kind.value,
            "run_id": self.run_id,
            "time_utc": self.time_utc,
            "body": self.body,
        }


def signed_message(entry_hash: str) -> bytes:
    """The bytes a party signs for an entry, or for a head that it has seen."""
    return SIGNED_PREFIX + bytes.fromhex(entry_hash)


def check_signatures(entry: Entry, keys: Mapping[str, bytes | Collection[bytes]]) -> frozenset[str]:
    """Check every signature of an entry.

    Args:
        entry: the entry.
        keys: raw Ed25519 public keys, 32 bytes, by name: one, or several of which one must fit.

    Returns:
        who signed.

    Raises:
        LedgerIntegrityError: an unknown signer or a signature that does not fit.
    """
    message = signed_message(entry.entry_hash)
    for one in entry.sigs:
        known = keys.get(one.signer)
        if known is None:
            raise LedgerIntegrityError(entry.seq, f"signed by {one.signer!r}, whose key is unknown")
        candidates = (known,) if isinstance(known, bytes) else known
        if not any(_fits(key, one.sig, message) for key in candidates):
            raise LedgerIntegrityError(entry.seq, f"bad signature of {one.signer!r}")
    return frozenset(one.signer for one in entry.sigs)


def _fits(key: bytes, signature: str, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(signature), message)
    except InvalidSignature:
        return False
    return True


def _read_signatures(data: object) -> tuple[Signature, ...]:
    if not isinstance(data, list):
        raise PlanError("sigs: expected a list")
    for item in data:
        if not isinstance(item, dict) or set(item) != {"signer", "sig"}:
            raise PlanError("sigs: expected objects with signer and sig")
    return tuple(Signature(**item) for item in data)


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _require_body(value: object) -> None:
    if not isinstance(value, Mapping):
        raise PlanError("body: expected an object")
    canonical_json(value)


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise PlanError(f"{name}: expected a name")
