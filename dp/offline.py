"""An own reader of ledgers for the offline verifier: it shares no code with what wrote them.

Canonical JSON, the chain of hashes, signatures, rotated keys and the heads of peers, written a
second time from the format's description (privacy.md 7.1), so that one mistake is not made twice.
Every finding is collected with its place; nothing here stops at the first.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_ENTRY: Final = frozenset(
    {"seq", "prev_hash", "kind", "run_id", "time_utc", "body", "entry_hash", "sigs"}
)
_KINDS: Final = frozenset(
    {
        *("GENESIS", "BUDGET_SET", "PLAN_COMMIT", "ROUND_INTENT", "ROUND_RELEASE", "ROUND_ABORT"),
        *("AUDIT_RESULT", "METRIC_RELEASE", "KEY_ROTATE", "CORRECTION", "CLOSE"),
    }
)
_ZERO: Final = "0" * 64
_ENTRY_PREFIX: Final = b"SA1/ledger-entry\0"

# An entry is a JSON object; what it must hold is checked where it is read.
Object = dict[str, Any]
# Raw public keys by name: one, or all that signed rosters have listed; in a list the oldest first.
Keys = Mapping[str, bytes | Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, and at which entry."""

    seq: int
    text: str


@dataclass(slots=True)
class Findings:
    """All of them, in the order they were found."""

    items: list[Finding] = field(default_factory=list)

    def add(self, seq: int, text: str) -> None:
        """Note one."""
        self.items.append(Finding(seq, text))

    def need(self, seq: int, condition: bool, text: str) -> bool:  # reads as an assertion
        """Note it unless the condition holds."""
        if not condition:
            self.add(seq, text)
        return condition


def read_entries(lines: Iterable[bytes], found: Findings) -> list[Object]:
    """Parse lines and check spelling, hashes, order and the chain."""
    entries: list[Object] = []
    before = _ZERO
    for place, line in enumerate(lines):
        entry = _parse(line, place, found)
        if entry is None:
            break  # what follows a broken line follows from nothing
        content = {key: entry[key] for key in _ENTRY - {"entry_hash", "sigs"}}
        digest = hashlib.sha256(_canonical(content)).hexdigest()
        found.need(place, digest == entry["entry_hash"], "the hash is not that of the content")
        found.need(place, entry["seq"] == place, f"seq is {entry['seq']}, expected {place}")
        found.need(place, entry["prev_hash"] == before, "it does not follow from the one before")
        before = entry["entry_hash"]
        entries.append(entry)
    return entries


def check_signatures(
    entries: Sequence[Object], keys: Keys, found: Findings
) -> dict[str, set[bytes]]:
    """Check every signature and who must have signed; returns all keys each party has had.

    Where several keys of a party are known, one of them must have signed; a ledger's writer has one
    until its KEY_ROTATE.
    """
    ring = {name: {key} if isinstance(key, bytes) else set(key) for name, key in keys.items()}
    if not entries or entries[0]["kind"] != "GENESIS":
        found.add(0, "the first entry is not GENESIS")
        return ring
    kind, writer = entries[0]["body"].get("ledger"), entries[0]["body"].get("writer")
    found.need(0, kind in ("run", "data_set"), "GENESIS names no known kind of ledger")
    valid = {name: set(known) for name, known in ring.items()}
    order = {name: [key] if isinstance(key, bytes) else list(key) for name, key in keys.items()}
    rotated = _follow_rotations(entries, ring, valid, order, found)
    if isinstance(writer, str) and writer in valid and writer not in rotated:
        first = signing_keys(entries[0], ring).get(writer)
        valid[writer] = first or valid[writer]
    for entry in entries:
        seq, body, name = entry["seq"], entry["body"], entry["body"].get("name")
        change = rotated.get(name, {}).get(seq) if isinstance(name, str) else None
        if change is not None and body.get("lost") is True:
            valid[name] = {change}
        message = _ENTRY_PREFIX + bytes.fromhex(entry["entry_hash"])
        signers = {
            one["signer"]
            for one in entry["sigs"]
            if found.need(
                seq,
                any(_fits(key, message, one["sig"]) for key in valid.get(one["signer"], ())),
                f"bad or unknown signature of {one['signer']!r}",
            )
        }
        needed, number = _required(entry, kind, writer)
        found.need(
            seq, len(signers & needed) >= number, f"{entry['kind']} lacks signatures it needs"
        )
        if change is not None:
            found.need(seq, name in signers, f"KEY_ROTATE lacks the signature of {name!r}")
            valid[name] = {change}
    return ring


def _follow_rotations(
    entries: Sequence[Object],
    ring: dict[str, set[bytes]],
    valid: dict[str, set[bytes]],
    order: Mapping[str, list[bytes]],
    found: Findings,
) -> dict[str, dict[int, bytes]]:
    """Read who replaced which key by which, and where; fills the ring and the keys of the start.

    Keys that accept one another vouch for one another: of each such group one must be known from
    elsewhere, so that a lost key's successor needs both to be, the successor after the lost one.
    No key comes back.
    """
    places: dict[str, dict[int, bytes]] = {}
    groups: dict[str, list[set[bytes]]] = {}
    last: dict[str, bytes] = {}
    for entry in entries:
        if entry["kind"] != "KEY_ROTATE":
            continue
        seq, body = entry["seq"], entry["body"]
        name, lost, accepted = body.get("name"), body.get("lost"), body.get("accepted")
        old, key = _unhex(body.get("old"), 32), _unhex(body.get("key"), 32)
        if not isinstance(name, str) or old is None or key is None or old == key:
            found.add(seq, "KEY_ROTATE names no party, or not an old key and a new one")
            continue
        first = name not in last
        found.need(seq, first or last[name] == old, f"KEY_ROTATE: {name!r} has another key there")
        mine = groups.setdefault(name, [{old}])
        found.need(
            seq, not any(key in one for one in mine), f"KEY_ROTATE goes back to a key of {name!r}"
        )
        if first:
            valid[name] = {old}
        last[name] = key
        places.setdefault(name, {})[seq] = key
        if lost is True and accepted is None:
            mine.append({key})
            continue
        mine[-1].add(key)
        told = {
            "prev_hash": entry["prev_hash"],
            "name": name,
            "old": body["old"],
            "key": body["key"],
        }
        message = b"SA1/ledger-rotation\0" + _canonical(told)
        fits = lost is None and isinstance(accepted, str) and _fits(key, message, accepted)
        found.need(seq, fits, f"KEY_ROTATE: the new key of {name!r} has not accepted")
    for name, mine in groups.items():
        known = ring.get(name, set())
        vouched = all(group & known for group in mine)
        found.need(
            min(places[name]), vouched, f"no known key of {name!r} vouches for another one there"
        )
        listed = order.get(name, [])
        newest = [max((listed.index(key) for key in one & {*listed}), default=-1) for one in mine]
        in_order = newest == sorted(set(newest))
        found.need(
            min(places[name]), in_order, f"a lost key of {name!r} has the older key as successor"
        )
        ring[name] = known.union(*mine)
    return places


def signed_commitment(body: Object) -> Object | None:
    """The run's PLAN_COMMIT that a data set's ledger carries; None if it carries none that fits.

    Its signatures are for the caller to check: they are what makes its silos, t and n_c facts.
    """
    line = body.get("signed")
    found = Findings()
    entry = _parse(line.encode(), 0, found) if isinstance(line, str) else None
    if entry is None or entry["kind"] != "PLAN_COMMIT":
        return None
    content = {key: entry[key] for key in _ENTRY - {"entry_hash", "sigs"}}
    fits = hashlib.sha256(_canonical(content)).hexdigest() == entry["entry_hash"]
    told = {name: value for name, value in body.items() if name not in {"signed", "refers"}}
    return entry if fits and told == entry["body"] else None


def signing_keys(entry: Object, ring: Mapping[str, Iterable[bytes]]) -> dict[str, set[bytes]]:
    """With which of its keys each party has signed an entry."""
    message = _ENTRY_PREFIX + bytes.fromhex(entry["entry_hash"])
    return {
        one["signer"]: {
            key for key in ring.get(one["signer"], ()) if _fits(key, message, one["sig"])
        }
        for one in entry["sigs"]
    }


def check_heads(
    entries: Sequence[Object],
    heads: Iterable[bytes],
    ring: Mapping[str, Iterable[bytes]],
    found: Findings,
) -> int:
    """Compare with what peers have signed; returns how many heads were of this ledger."""
    compared = 0
    for line in heads:
        head = _parse_head(line)
        if head is None:
            found.add(len(entries), "a peer's head cannot be read")
            continue
        content = {key: head[key] for key in ("ledger", "seq", "entry_hash")}
        message = b"SA1/ledger-head\0" + _canonical(content)
        keys = ring.get(head["signer"], ())
        genuine = any(_fits(key, message, head["sig"]) for key in keys)
        if not found.need(head["seq"], genuine, f"a head of {head['signer']!r} is not genuine"):
            continue
        if not entries or head["ledger"] != entries[0]["entry_hash"] or head["seq"] < 0:
            continue
        compared += 1
        if head["seq"] >= len(entries):
            found.add(len(entries), f"cut: {head['signer']!r} has signed entry {head['seq']}")
        elif entries[head["seq"]]["entry_hash"] != head["entry_hash"]:
            found.add(head["seq"], f"forked: {head['signer']!r} has seen another entry here")
    return compared


def signature_fits(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether an Ed25519 signature is genuine."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def canonical_digest(value: object) -> str:
    """SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(_canonical(value)).hexdigest()


def protocol_fields(message: bytes) -> list[bytes]:
    """The fields of a statement of the protocol: a count, then each after its length.

    Returns nothing for bytes that are no such list.
    """
    fields: list[bytes] = []
    if len(message) < 4:
        return []
    count, at = int.from_bytes(message[:4]), 4
    while at < len(message):
        size = int.from_bytes(message[at : at + 4])
        fields.append(message[at + 4 : at + 4 + size])
        at += 4 + size
    return fields if at == len(message) and len(fields) == count else []


def _required(entry: Object, kind: object, writer: object) -> tuple[set[object], int]:
    """Who may count as a required signer, and how many of them must have signed."""
    body = entry["body"]
    if kind == "run" and entry["kind"] == "ROUND_RELEASE":
        survivors, threshold = body.get("survivors"), body.get("threshold")
        if not isinstance(survivors, list) or type(threshold) is not int or threshold < 1:
            return set(), 1
        return {name for name in survivors if isinstance(name, str)}, threshold
    if not isinstance(writer, str):
        return set(), 1
    needed: set[object] = {writer}
    if kind == "run" and entry["kind"] == "PLAN_COMMIT":
        silos = body.get("silos")
        if not isinstance(silos, list) or not silos:
            return set(), 1
        needed |= {name for name in silos if isinstance(name, str)}
    return needed, len(needed)


def is_entry(line: bytes) -> bool:
    """Tell whether a line has an entry's form, whatever stands in it."""
    return _parse(line, 0, Findings()) is not None


def _parse(line: bytes, place: int, found: Findings) -> Object | None:
    try:
        entry = json.loads(line)
        spelled = _canonical(entry)
    except (ValueError, RecursionError):
        found.add(place, "the line is no JSON")
        return None
    if spelled != line:
        found.add(place, "the line is not in canonical form")
        return None
    texts = ("prev_hash", "kind", "run_id", "time_utc", "entry_hash")
    well_formed = (
        isinstance(entry, dict)
        and set(entry) == _ENTRY
        and all(isinstance(entry[name], str) for name in texts)
        and type(entry["seq"]) is int
        and isinstance(entry["body"], dict)
        and isinstance(entry["sigs"], list)
        and all(_is_signature(one) for one in entry["sigs"])
        and _unhex(entry["entry_hash"], 32) is not None
        and entry["kind"] in _KINDS
    )
    if not well_formed:
        found.add(place, "the line is no entry of a ledger")
        return None
    return entry  # type: ignore[no-any-return] # a dict, checked just above


def _parse_head(line: bytes) -> Object | None:
    try:
        head = json.loads(line)
        _canonical(head)
    except (ValueError, RecursionError):
        return None
    texts = ("ledger", "entry_hash", "signer", "sig")
    if (
        isinstance(head, dict)
        and set(head) == {"seq", *texts}
        and type(head["seq"]) is int
        and all(isinstance(head[name], str) for name in texts)
    ):
        return head
    return None


def _is_signature(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"signer", "sig"}
        and isinstance(value["signer"], str)
        and _unhex(value["sig"], 64) is not None
    )


def _fits(key: bytes | None, message: bytes, signature: str) -> bool:
    raw = _unhex(signature, 64)
    return key is not None and raw is not None and signature_fits(key, message, raw)


def _unhex(value: object, length: int) -> bytes | None:
    if not isinstance(value, str) or not re.fullmatch(rf"[0-9a-f]{{{2 * length}}}", value):
        return None
    return bytes.fromhex(value)


def _canonical(value: object) -> bytes:
    """Sorted keys, no blanks, UTF-8, no floats."""
    if _has_float(value):
        raise ValueError("a float has no canonical form")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _has_float(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_float(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_float(item) for item in value)
    return isinstance(value, float)
