"""The silo's own limits: what it refuses, whatever a coordinator asks (check A1).

A policy can only tighten. It is the silo that decides how many seats may collude, how many
honest inputs a sum must hold and which training it takes part in; the coordinator proposes.
"""

from dataclasses import dataclass

from secagg.errors import ParameterError, PolicyRefusedError
from secagg.parameters import (
    COMMON_COEFFICIENTS,
    MODE_MALICIOUS,
    SUITE_DEFAULT,
    RoundParameters,
    SegmentKind,
)
from secagg.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloPolicy:
    """Limits of one silo.

    Attributes:
        n_c: colluding seats to be safe against; None means ⌊(N−1)/3⌋ of the roster's N seats.
            It never depends on who takes part: the coordinator chooses that (SA1 spec 2.2, 4).
        h_min: honest inputs in every sum.
        n_min: survivors in every sum.
        n_orgs: distinct organizations among them.
        suites: allowed cipher suites. modes: allowed protocol modes.
        min_value_bits, max_value_bits: allowed precision of bulk segments.
        training_plans: digests of the plans this silo takes part in; None means any.
        max_state_bytes: largest model that is accepted.
    """

    n_c: int | None = None
    h_min: int = 2
    n_min: int = 3
    n_orgs: int = 3
    suites: frozenset[int] = frozenset({SUITE_DEFAULT})
    modes: frozenset[str] = frozenset({MODE_MALICIOUS})
    min_value_bits: int = 4
    max_value_bits: int = 32
    training_plans: frozenset[bytes] | None = None
    max_state_bytes: int = 2**32 - 1024

    def __post_init__(self) -> None:
        if self.n_c is not None and self.n_c < 0:
            raise ParameterError(f"policy: n_c must be at least 0, got {self.n_c}")
        if self.h_min < 2:
            raise ParameterError(
                f"policy: h_min must be at least 2, got {self.h_min}: with one honest input a sum "
                f"is that input"
            )
        if self.n_min < 2 or self.n_orgs < 1:
            raise ParameterError(
                f"policy: n_min must be at least 2 and n_orgs at least 1, "
                f"got {self.n_min} and {self.n_orgs}"
            )

    def colluding(self, roster: Roster) -> int:
        """n_c for this roster."""
        return (len(roster.seats) - 1) // 3 if self.n_c is None else self.n_c

    def check(self, parameters: RoundParameters, roster: Roster) -> None:
        """Raise PolicyRefusedError, naming the rule, unless these parameters are acceptable."""
        self._check_fixed(parameters, roster)
        for name, least in (
            ("n_c", self.colluding(roster)),
            ("h_min", self.h_min),
            ("n_min", self.n_min),
            ("n_orgs", self.n_orgs),
        ):
            if getattr(parameters, name) < least:
                _refuse(name, f"at least {least}", getattr(parameters, name))
        for segment in parameters.spec.segments:
            if segment.kind is SegmentKind.BULK and not (
                self.min_value_bits <= segment.value_bits <= self.max_value_bits
            ):
                allowed = f"{self.min_value_bits} to {self.max_value_bits}"
                _refuse(f"value_bits of segment {segment.name}", allowed, segment.value_bits)
        pinned = self.training_plans
        if pinned is not None and parameters.training_plan not in pinned:
            _refuse("training_plans", "a pinned plan", parameters.training_plan.hex()[:16])

    def _check_fixed(self, parameters: RoundParameters, roster: Roster) -> None:
        """What is one value, or one of a few."""
        if parameters.federation != roster.federation:
            _refuse("federation", roster.federation.name, parameters.federation.name)
        if parameters.roster_digest != roster.digest():
            _refuse("roster", f"version {roster.version} as this silo knows it", "another digest")
        if parameters.suite not in self.suites:
            _refuse("suites", sorted(self.suites), parameters.suite)
        if parameters.mode not in self.modes:
            _refuse("modes", sorted(self.modes), parameters.mode)
        if parameters.coefficients != COMMON_COEFFICIENTS:
            # Two different coefficient vectors can isolate one silo (SA1 spec 2.3).
            _refuse("coefficients", "one common vector", ", ".join(parameters.coefficients))


def _refuse(rule: str, expected: object, got: object) -> None:
    raise PolicyRefusedError(f"policy rule {rule}: expected {expected}, the coordinator asks {got}")
