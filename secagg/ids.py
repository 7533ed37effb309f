"""Names that cannot be confused: a federation, a silo, a run and a round each have a type."""

import re
from dataclasses import dataclass
from typing import Final, Self

from secagg.errors import ParameterError

RUN_ID_BYTES: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class FederationId:
    """The name of the enrolled silos under one enrollment authority."""

    name: str

    def __post_init__(self) -> None:
        _check_name("federation", self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, order=True)
class SiloId:
    """The name of a silo, as its certificate states it."""

    name: str

    def __post_init__(self) -> None:
        _check_name("silo", self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """A run's 16 random bytes, called session_id in SA1 spec 3.2."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != RUN_ID_BYTES:
            raise ParameterError(
                f"expected a run id of {RUN_ID_BYTES} bytes, got {len(self.value)}; "
                "draw one at random for each run"
            )

    @classmethod
    def parse(cls, hexadecimal: str) -> Self:
        """Read the 32 hexadecimal digits that `str` writes."""
        if re.fullmatch(r"[0-9a-f]{32}", hexadecimal) is None:
            raise ParameterError(
                f"expected a run id of 32 lowercase hexadecimal digits, got {hexadecimal!r}"
            )
        return cls(bytes.fromhex(hexadecimal))

    @property
    def hex(self) -> str:
        """The id as 32 lowercase hexadecimal digits."""
        return self.value.hex()

    def __str__(self) -> str:
        return self.hex


@dataclass(frozen=True, slots=True, order=True)
class RoundId:
    """A round of a run; its number is signed and only grows."""

    run: RunId
    number: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < 2**64:
            raise ParameterError(f"expected a round number of 0..2**64-1, got {self.number}")

    def __str__(self) -> str:
        return f"{self.run}/{self.number}"


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class AttemptId:
    """One try of one round; it has keys, shares and masks of its own."""

    run: RunId
    round: int
    attempt: int

    def __str__(self) -> str:
        return f"round {self.round}, attempt {self.attempt}"


def _check_name(kind: str, name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ParameterError(
            f"expected a {kind} name of 1 to 63 letters, digits, dots, underscores or hyphens "
            f"that starts with a letter or digit, got {name!r}"
        )
