"""Frozen records whose canonical bytes follow from their field list.

A record names for each field how it is written and read, as the second part of an `Annotated`
type; `encode` and `decode` follow. So that no field can be left out of the bytes by mistake, and
a test can enumerate all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, get_type_hints

from secagg import canonical
from secagg.errors import MalformedMessageError, OversizeError
from secagg.ids import AttemptId, FederationId, RunId, SiloId
from secagg.secretbytes import Secret

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
R = TypeVar("R", bound="Record")

# The largest message is Boxes, about 700 bytes a silo: sixteen MiB leave room for ten thousand
# silos and for a training plan of one MiB. A peer's bytes are measured before they are parsed.
MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
MAX_ITEMS: Final = 10_000
MAX_TEXT_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How one field becomes bytes and comes back."""

    write: Callable[[T], bytes]
    read: Callable[[bytes], T]


def fixed(length: int, what: str) -> Codec[bytes]:
    """Exactly `length` bytes."""

    def read(data: bytes) -> bytes:
        if len(data) != length:
            raise MalformedMessageError(f"expected {length} bytes for {what}, got {len(data)}")
        return data

    return Codec(bytes, read)


def blob(limit: int, what: str) -> Codec[bytes]:
    """At most `limit` bytes."""

    def read(data: bytes) -> bytes:
        if len(data) > limit:
            raise OversizeError(f"{what} has at most {limit} bytes, got {len(data)}")
        return data

    return Codec(bytes, read)


def listed(inner: Codec[T], max_items: int = MAX_ITEMS) -> Codec[tuple[T, ...]]:
    """A list of like things."""
    return Codec(
        lambda items: canonical.encode_list([inner.write(item) for item in items]),
        lambda data: tuple(
            inner.read(item) for item in canonical.decode_list(data, max_items=max_items)
        ),
    )


def choice(kind: type[E]) -> Codec[E]:
    """A member of an enumeration, by its value."""
    by_value = {member.value: member for member in kind}

    def read(data: bytes) -> E:
        word = _read_text(data)
        if word not in by_value:
            raise MalformedMessageError(f"expected one of {', '.join(by_value)}, got {word!r}")
        return by_value[word]

    return Codec(lambda member: canonical.text(member.value), read)


def nested(kind: type[R]) -> Codec[R]:
    """Another record."""
    return Codec(lambda record: record.encode(), kind.decode)


def optional(kind: type[R]) -> Codec[R | None]:
    """Another record or nothing; no record has empty bytes."""
    return Codec(
        lambda record: b"" if record is None else record.encode(),
        lambda data: kind.decode(data) if data else None,
    )


def _read_text(data: bytes) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise OversizeError(f"expected at most {MAX_TEXT_BYTES} bytes of text, got {len(data)}")
    return canonical.read_text(data)


def _read_seats(data: bytes) -> tuple[int, ...]:
    seats = listed(U32).read(data)
    if list(seats) != sorted(set(seats)):
        raise MalformedMessageError("expected sorted, distinct seats")
    return seats


U16: Final = Codec(canonical.u16, canonical.read_u16)
U32: Final = Codec(canonical.u32, canonical.read_u32)
U64: Final = Codec(canonical.u64, canonical.read_u64)
I64: Final = Codec(canonical.i64, canonical.read_i64)
TEXT: Final = Codec(canonical.text, _read_text)
DIGEST: Final = fixed(32, "a digest")
KEY: Final = fixed(32, "a public key")
SIGNATURE: Final = fixed(64, "a signature")
SEATS: Final[Codec[tuple[int, ...]]] = Codec(lambda seats: listed(U32).write(seats), _read_seats)
FEDERATION: Final[Codec[FederationId]] = Codec(
    lambda value: canonical.text(value.name), lambda data: FederationId(_read_text(data))
)
SILO: Final[Codec[SiloId]] = Codec(
    lambda value: canonical.text(value.name), lambda data: SiloId(_read_text(data))
)
RUN: Final[Codec[RunId]] = Codec(lambda value: value.value, RunId)


def _read_attempt(data: bytes) -> AttemptId:
    run, round_number, attempt = canonical.decode(
        data, "attempt", max_bytes=MAX_TEXT_BYTES, fields=3
    )
    return AttemptId(
        run=RunId(run),
        round=canonical.read_u64(round_number),
        attempt=canonical.read_u32(attempt),
    )


ATTEMPT: Final[Codec[AttemptId]] = Codec(
    lambda value: canonical.encode(
        "attempt", value.run.value, canonical.u64(value.round), canonical.u32(value.attempt)
    ),
    _read_attempt,
)
SECRET: Final[Codec[Secret]] = Codec(lambda secret: secret.reveal(), Secret)


class Record:
    """A frozen dataclass with one canonical encoding under its LABEL."""

    __slots__ = ()
    LABEL: ClassVar[str]
    MAX_BYTES: ClassVar[int] = MAX_RECORD_BYTES

    def encode(self) -> bytes:
        """Canonical bytes: every field in the order of its declaration."""
        return canonical.encode(self.LABEL, *self.field_bytes())

    def field_bytes(self, *, without: tuple[str, ...] = ()) -> tuple[bytes, ...]:
        """Each field's bytes, in order; `without` leaves some out (a signature, say)."""
        return tuple(
            [
                codec.write(getattr(self, name))
                for name, codec in _codecs(type(self)).items()
                if name not in without
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of `encode`.

        Raises:
            MalformedMessageError, OversizeError, ParameterError: not the canonical bytes of a
                valid record.
        """
        codecs = _codecs(cls)
        values = canonical.decode(data, cls.LABEL, max_bytes=cls.MAX_BYTES, fields=len(codecs))
        pairs = zip(codecs.items(), values, strict=True)
        return cls(**{name: codec.read(value) for (name, codec), value in pairs})


class KeptRecord(Record):
    """A record that remembers the bytes it was read from, where many are passed on unchanged.

    They are what `encode` would make anew: no other bytes are decoded.
    """

    __slots__ = ("_received",)
    _received: bytes

    def encode(self) -> bytes:
        """As every record's."""
        try:
            return self._received
        except AttributeError:  # it was made here, or is a changed copy
            return super().encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """As every record's."""
        record = super().decode(data)
        object.__setattr__(record, "_received", data)  # a frozen record's only change
        return record


_CODECS: Final[dict[type[Record], dict[str, Codec[Any]]]] = {}


def _codecs(kind: type[Record]) -> dict[str, Codec[Any]]:
    """The codecs of a record's fields, by name, in order; read off the type hints once."""
    if kind not in _CODECS:
        _CODECS[kind] = _read_codecs(kind)
    return _CODECS[kind]


def _read_codecs(kind: type[Record]) -> dict[str, Codec[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    names = [item.name for item in fields(kind)]  # type: ignore[arg-type]  # records are dataclasses
    return {name: hints[name].__metadata__[0] for name in names}
