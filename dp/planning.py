"""What a privacy plan will cost, before anything runs: noise by target, and which mode fits.

Nobody should start a run that trains on noise. The signal a round can show is bounded by the clip
norm; the noise is known beforehand; their ratio tells useless plans from useful ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from dp.calibration import calibrate_z, plan_z
from dp.errors import PrivacyError
from dp.plan import Adjacency, Mode, Participation, PrivacyPlan, Unit, noise_on_mean

# Below a tenth no number of rounds that the same budget pays for makes up for it (decision 1).
_USELESS: Final = 0.1
_FAIR: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """The noise multiplier that a target needs."""

    epsilon: float
    rounds: int
    z: float


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


def noise_table(
    epsilons: Iterable[float], rounds: Iterable[int], *, delta: float, q: float = 1.0
) -> tuple[NoiseRow, ...]:
    """Z for every pair of a target and a number of rounds.

    Raises:
        PlanError: a value is out of range.
        CalibrationError: no z reaches one of the targets.
    """
    steps = tuple(rounds)
    return tuple(
        NoiseRow(epsilon=eps, rounds=count, z=calibrate_z(eps, delta, steps=count, q=q))
        for eps in epsilons
        for count in steps
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
