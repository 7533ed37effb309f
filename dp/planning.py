"""What a privacy plan will cost, before anything runs: noise by target, and which mode fits.

Nobody should start a run that trains on noise. The signal a round can show is bounded by the clip
norm; the noise is known beforehand; their ratio tells useless plans from useful ones.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never

from dp.accountant import PRV_TIMEOUT_S, EpsResult, epsilon
from dp.calibration import plan_z
from dp.errors import PlanError, PrivacyError
from dp.events import Event
from dp.plan import RESERVE, Adjacency, Mode, Participation, PrivacyPlan, Unit, noise_on_mean
from dp.sensitivity import event_of

# Below a tenth no number of rounds that the same budget pays for makes up for it (decision 1).
_USELESS: Final = 0.1
_FAIR: Final = 1.0


class Verdict(StrEnum):
    """What to expect."""

    FITS = "fits"
    WEAK = "weak"
    USELESS = "useless"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known before a plan is made.

    Attributes:
        silos: n, in a round.
        dimension: d, trained coordinates.
        units: N, declared records or patients in all silos together, a public constant.
        epsilon: the target over all rounds.
        delta: at which it is read.
        rounds: T.
        q: sampling rate of records or patients.
        local_steps: K, where the mode has local steps.
        n_c: silos that may collude with the coordinator.
        h_dp: honest shares that ring noise is divided by.

    Raises:
        PlanError: epsilon, delta or q is out of range, whatever the mode.
    """

    silos: int
    dimension: int
    units: int
    epsilon: float
    delta: float
    rounds: int
    q: float = 1.0
    local_steps: int = 1
    n_c: int = 1
    h_dp: int = 1

    def __post_init__(self) -> None:
        """Refuse what no mode could have."""
        if not 0.0 < self.epsilon < math.inf:
            raise PlanError(f"epsilon: expected a finite number above 0, got {self.epsilon!r}")
        if not 0.0 < self.delta < 1.0:
            raise PlanError(f"delta: expected 0 < delta < 1, got {self.delta!r}")
        if not 0.0 < self.q <= 1.0:
            raise PlanError(f"q: expected 0 < q <= 1, got {self.q!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeAdvice:
    """How one mode would do.

    Attributes:
        mode: which.
        unit: whose participation it would hide.
        verdict: what to expect.
        z: noise multiplier, 0 if refused.
        signal_to_noise: at most; 0 if refused.
        reason: in words.
    """

    mode: Mode
    unit: Unit
    verdict: Verdict
    z: float
    signal_to_noise: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """What every mode needs and can show for one target over one number of rounds.

    Attributes:
        epsilon: the target.
        rounds: T.
        modes: in the order of `Mode`, whatever their prospects.
    """

    epsilon: float
    rounds: int
    modes: tuple[ModeAdvice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TighterFigure:
    """PRV's epsilon of a whole plan beside the one that is enforced.

    Attributes:
        modes: whose plans release the same.
        enforced: by RDP, as budgets are charged.
        shown: by PRV; RDP's with a note that says why where PRV has none.
    """

    modes: tuple[Mode, ...]
    enforced: float
    shown: EpsResult


def noise_table(
    setting: Setting, epsilons: Iterable[float], rounds: Iterable[int]
) -> tuple[NoiseRow, ...]:
    """The setting with every pair of a target and a number of rounds in place of its own."""
    counts = tuple(rounds)
    return tuple(
        NoiseRow(
            epsilon=eps,
            rounds=count,
            modes=tuple(
                _advise(replace(setting, epsilon=eps, rounds=count), mode) for mode in Mode
            ),
        )
        for eps in epsilons
        for count in counts
    )


def tighter_figures(
    setting: Setting, *, prv_timeout_s: float = PRV_TIMEOUT_S
) -> tuple[TighterFigure, ...]:
    """PRV's figure for the plans that sample: shown, never enforced.

    A filter of adaptive choices has no PRV (decision 9); a plan whose noise and rounds are frozen
    has. Each figure takes a child process, which imports torch and has a time-out of its own.
    """
    sampled: dict[Event, list[Mode]] = {}
    for mode in Mode:
        try:
            plan = _plan(setting, mode, _unit(mode))
        except PrivacyError:
            continue  # `advise` says why
        if plan.participation is Participation.POISSON:
            event = event_of(plan, z=plan.z)
            whole = replace(event, count=event.count * plan.rounds)
            sampled.setdefault(whole, []).append(mode)
    delta = setting.delta * (1.0 - RESERVE)
    return tuple(
        TighterFigure(
            modes=tuple(modes),
            enforced=epsilon([event], delta, method="rdp").eps,
            shown=epsilon([event], delta, method="prv", prv_timeout_s=prv_timeout_s),
        )
        for event, modes in sampled.items()
    )


def signal_to_noise(plan: PrivacyPlan) -> float:
    """The most that a round's mean can be, in norm, over the noise in it.

    Every contribution has norm C at most; a real gradient's mean is far below, so this is a bound
    and a plan below 1 needs many rounds to show anything.
    """
    steps = plan.local_steps if plan.mode is Mode.ISRL else 1
    return steps * plan.clip / noise_on_mean(plan)


def advise(setting: Setting) -> tuple[ModeAdvice, ...]:
    """Every mode's prospects for a setting, the best first."""
    advice = [_advise(setting, mode) for mode in Mode]
    return tuple(sorted(advice, key=lambda one: -one.signal_to_noise))


def _advise(setting: Setting, mode: Mode) -> ModeAdvice:
    unit = _unit(mode)
    try:
        plan = _plan(setting, mode, unit)
    except PrivacyError as error:
        return ModeAdvice(
            mode=mode,
            unit=unit,
            verdict=Verdict.REFUSED,
            z=0.0,
            signal_to_noise=0.0,
            reason=str(error),
        )
    ratio = signal_to_noise(plan)
    if ratio >= _FAIR:
        verdict, text = Verdict.FITS, "a round's mean can stand out of its noise"
    elif ratio >= _USELESS:
        verdict, text = Verdict.WEAK, "only the average of many rounds can show anything"
    else:
        verdict, text = Verdict.USELESS, "it would train on noise"
    return ModeAdvice(
        mode=mode,
        unit=unit,
        verdict=verdict,
        z=plan.z,
        signal_to_noise=ratio,
        reason=f"{text}: signal at most {ratio:.2g} times the noise",
    )


def _unit(mode: Mode) -> Unit:
    match mode:
        case Mode.CENTRAL | Mode.SILO:
            return Unit.SILO
        case Mode.PATIENT:
            return Unit.PATIENT
        case Mode.FEDSGD | Mode.ISRL:
            return Unit.RECORD
        case _:
            assert_never(mode)


def _plan(setting: Setting, mode: Mode, unit: Unit) -> PrivacyPlan:
    q = 1.0 if unit is Unit.SILO else setting.q
    steps = 1 if mode is Mode.FEDSGD else setting.local_steps
    ring = mode not in {Mode.CENTRAL, Mode.ISRL}
    z = plan_z(
        setting.epsilon, setting.delta, mode=mode, rounds=setting.rounds, local_steps=steps, q=q
    )
    return PrivacyPlan(
        unit=unit,
        adjacency=Adjacency.ZERO_OUT,
        mode=mode,
        clip=1.0,
        z=z,
        rounds=setting.rounds,
        delta=setting.delta,
        dimension=setting.dimension,
        cohort_size=setting.silos,
        denominator=float(setting.silos) if unit is Unit.SILO else q * setting.units,
        q=q,
        participation=Participation.ALL if q == 1.0 else Participation.POISSON,
        local_steps=steps,
        n_c=setting.n_c if ring else 0,
        h_dp=setting.h_dp if ring else 0,
        max_units_per_silo=1 if unit is Unit.SILO else -(-setting.units // setting.silos),
        allow_low_utility=True,
    )
