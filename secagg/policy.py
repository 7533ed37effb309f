"""The silo's own limits: what it refuses, whatever a coordinator asks (check A1).

A policy can only tighten. It is the silo that decides how many seats may collude, how many
honest inputs a sum must hold and which training it takes part in; the coordinator proposes.
Every refusal names the rule, which is the name of the attribute. Some rules are asked later than
at A1: `check_cohort` when U1 is known, `check_state` with the state, `check_ledger` at A6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from secagg import canonical
from secagg.coefficients import least_touched, shown
from secagg.errors import ParameterError, PolicyRefusedError, SurvivorsMismatchError
from secagg.parameters import (
    COMMON_COEFFICIENTS,
    MAX_BULK_RING_BITS,
    MODE_MALICIOUS,
    SUITE_DEFAULT,
    RoundParameters,
)
from secagg.roster import Roster

# Exact elimination over so many different sums of 200 silos takes several seconds, and a signature
# makes up to four of them. Sums over the same silos count once.
MAX_LEDGER_WINDOW = 64


def privacy_plan_hash(plan: bytes) -> bytes:
    """Digest of a privacy plan's document, by which a policy pins it."""
    return canonical.digest("privacy-plan", plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloPolicy:
    """Limits of one silo.

    Attributes:
        n_c: colluding seats to be safe against; None means ⌊(N−1)/3⌋ of the roster's N seats.
            It never depends on who takes part: the coordinator chooses that (SA1 spec 2.2, 4).
        h_min: honest inputs in every sum.
        h_dp: honest noise shares that a privacy plan may count on at least.
        n_min: survivors in every sum.
        n_orgs: distinct organizations among them.
        suites: allowed cipher suites. modes: allowed protocol modes.
        min_value_bits, max_value_bits: allowed precision of bulk segments.
        max_ring_bits: widest ring of a bulk segment.
        training_plans: digests of the plans this silo takes part in; None means any.
        privacy_plans: digests of the privacy plans, whose budget this silo has agreed to, that a
            round must name; None means any or none.
        first_states: digests of the states that this silo starts from: those that do not follow
            from a round that it has settled itself; None means any.
        max_state_bytes: largest model that is accepted.
        public_coefficients: whether sums with public coefficients are allowed, if no combination
            of them shows too few silos (SA1 spec 2.3).
        ledger_window: in how many different sums back no combination may come to show any one
            silo's input alone; 0 asks nothing (SA1 spec 2.4).
        ledger_min_change: least number of silos by which the survivors of two sums in a row
            differ, if they differ; 0 asks nothing.
        max_redundancy: silos that may recompute a chunk of the sum (SA1 spec 5.2). Each of them
            sees what the coordinator sees, so it counts toward n_c.
        min_redundancy: silos that must recompute a chunk; for silos that take no sum unseen.
        own_chunks: chunks of its own choice that this silo recomputes beyond those it is assigned;
            None means as many as its share of the assignment. Only these are out of the server's
            hands (`secagg.recompute`).
    """

    n_c: int | None = None
    h_min: int = 2
    h_dp: int = 0
    n_min: int = 3
    n_orgs: int = 3
    suites: frozenset[int] = frozenset({SUITE_DEFAULT})
    modes: frozenset[str] = frozenset({MODE_MALICIOUS})
    min_value_bits: int = 4
    max_value_bits: int = 32
    max_ring_bits: int = MAX_BULK_RING_BITS
    training_plans: frozenset[bytes] | None = None
    privacy_plans: frozenset[bytes] | None = None
    first_states: frozenset[bytes] | None = None
    max_state_bytes: int = 2**32 - 1024
    public_coefficients: bool = False
    ledger_window: int = 0
    ledger_min_change: int = 0
    max_redundancy: int = 0
    min_redundancy: int = 0
    own_chunks: int | None = None

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
        if not 0 <= self.ledger_window <= MAX_LEDGER_WINDOW:
            raise ParameterError(
                f"policy: ledger_window must be in [0, {MAX_LEDGER_WINDOW}], "
                f"got {self.ledger_window}"
            )

        own_chunks = self.own_chunks or 0
        if not 0 <= self.min_redundancy <= self.max_redundancy or own_chunks < 0:
            raise ParameterError(
                f"policy: expected 0 <= min_redundancy <= max_redundancy and own_chunks >= 0, got "
                f"{self.min_redundancy}, {self.max_redundancy} and {self.own_chunks}"
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
            ("h_dp", self.h_dp),
            ("n_min", self.n_min),
            ("n_orgs", self.n_orgs),
        ):
            if getattr(parameters, name) < least:
                _refuse(name, f"at least {least}", getattr(parameters, name))
        self.check_redundancy(parameters.redundancy)
        self._check_rings(parameters)
        _check_pinned("training_plans", self.training_plans, parameters.training_plan)
        self.check_privacy_plan(parameters.dp)

    def check_redundancy(self, redundancy: int) -> None:
        """Raise PolicyRefusedError unless so many silos may recompute a chunk."""
        if redundancy < self.min_redundancy:
            _refuse("min_redundancy", f"at least {self.min_redundancy}", redundancy)
        if redundancy > self.max_redundancy:
            _refuse("max_redundancy", f"at most {self.max_redundancy}", redundancy)

    def check_privacy_plan(self, plan: bytes) -> None:
        """Raise PolicyRefusedError unless this privacy plan's document may be named."""
        _check_pinned("privacy_plans", self.privacy_plans, privacy_plan_hash(plan))

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
        allowed = self.public_coefficients and parameters.public_coefficients
        if parameters.coefficients != COMMON_COEFFICIENTS and not allowed:
            # Two different coefficient vectors can isolate one silo (SA1 spec 2.3).
            _refuse("coefficients", "one common vector", ", ".join(parameters.coefficients))
        if parameters.public_coefficients and not self.public_coefficients:
            _refuse("public_coefficients", "none", ", ".join(parameters.coefficients))

    def _check_rings(self, parameters: RoundParameters) -> None:
        for segment in parameters.spec.segments:
            if not segment.holds_reals:
                continue
            if not self.min_value_bits <= segment.value_bits <= self.max_value_bits:
                allowed = f"{self.min_value_bits} to {self.max_value_bits}"
                _refuse(f"value_bits of segment {segment.name}", allowed, segment.value_bits)
            if segment.ring_bits > self.max_ring_bits:
                most = f"at most {self.max_ring_bits}"
                _refuse(f"max_ring_bits of segment {segment.name}", most, segment.ring_bits)

    def check_cohort(self, parameters: RoundParameters, u1: tuple[int, ...]) -> None:
        """The coefficient rule for this U1 and every set of dropouts that the floor allows.

        Raises:
            PolicyRefusedError: a combination of the released sums may touch fewer silos than
                n_c + h_min, or it cannot be decided.
        """
        vectors = parameters.public_coefficients
        if not vectors:
            return
        for vector in vectors:
            if not set(u1) <= set(vector.seats):
                _refuse("public_coefficients", "a weight for every silo of U1", vector.name)
        weights = [dict(zip(item.seats, item.weights, strict=True)) for item in vectors]
        try:
            touched = least_touched([[row[seat] for seat in u1] for row in weights])
        except ParameterError as error:
            _refuse("public_coefficients", "few enough to decide", str(error))
        # The coordinator may lose silos down to the floor, just those that a combination touches.
        dropouts = len(u1) - parameters.floor(len(u1))
        least = parameters.n_c + parameters.h_min + dropouts
        if touched is not None and touched < least:
            _refuse(
                "public_coefficients",
                f"every combination over {least} silos, of which {dropouts} may drop out",
                f"one over {touched}",
            )

    def check_state(self, model: bytes, *, is_successor: bool) -> None:
        """Raise PolicyRefusedError unless this state follows from an own round, or is pinned."""
        if not is_successor:
            _check_pinned("first_states", self.first_states, model)

    def check_ledger(self, earlier: Sequence[frozenset[int]], survivors: frozenset[int]) -> None:
        """The participation ledger: may this silo sign these survivors after those sums?

        Args:
            earlier: certified survivors of all sums so far, in order.
            survivors: U3.

        Raises:
            SurvivorsMismatchError: a rule says no.
        """
        changed = len(survivors ^ earlier[-1]) if earlier else 0
        if 0 < changed < self.ledger_min_change:
            raise SurvivorsMismatchError(
                f"policy rule ledger_min_change: expected the survivors of the last sum, or "
                f"{self.ledger_min_change} silos to differ, got {changed}"
            )
        # The same silos again tell nothing new, and must push nothing out.
        window = frozenset(tuple(dict.fromkeys(reversed(earlier)))[: self.ledger_window])
        sums = {*window, survivors}
        # Whoever is shown need not be in this sum, and then it is not asked: the others refuse.
        # What the window shows already is not this sum's doing: a silo would refuse for good.
        if window and shown(sums) - shown(window):
            raise SurvivorsMismatchError(
                f"policy rule ledger_window: with the last {self.ledger_window} different sums "
                f"this one would show what one silo alone contributed, if it contributed the same "
                f"to all"
            )


def _check_pinned(rule: str, pinned: frozenset[bytes] | None, found: bytes) -> None:
    if pinned is not None and found not in pinned:
        _refuse(rule, "a pinned one", found.hex()[:16])


def _refuse(rule: str, expected: object, got: object) -> NoReturn:
    raise PolicyRefusedError(f"policy rule {rule}: expected {expected}, the coordinator asks {got}")
