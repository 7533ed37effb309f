"""From a run's [privacy] settings to its privacy plan; what is left open follows from the rest."""

import math

from dp.calibration import plan_z, search_z
from dp.errors import PrivacyError
from dp.plan import (
    AdaptiveClip,
    Adjacency,
    MetricRelease,
    Mode,
    Noise,
    Participation,
    PrivacyPlan,
    Unit,
    Weights,
)
from dp.terms import METRICS
from fl.models import initial_parameters
from fl.personal import split_personal
from fl.plan import TABULAR
from fl.ports import NamedTensors
from secagg.parameters import threshold
from services.errors import ConfigError
from services.run_config import Privacy, RunConfig

_UNITS = {Mode.CENTRAL: Unit.SILO, Mode.SILO: Unit.SILO, Mode.PATIENT: Unit.PATIENT}
_RING = frozenset({Mode.SILO, Mode.FEDSGD, Mode.PATIENT})


def privacy_plan(config: RunConfig, task_settings: dict[str, object]) -> PrivacyPlan | None:
    """Return the privacy plan of a run's settings, None without [privacy].

    Args:
        config: as the operator wrote it.
        task_settings: of the training plan.

    Raises:
        ConfigError: something is missing, or privacy.md refuses it; says why.
    """
    settings = config.privacy
    if settings is None:
        return None
    try:
        return _plan(config, settings, _dimension(config, settings, task_settings))
    except PrivacyError as error:
        raise ConfigError(f"[privacy]: {error}", keys=("privacy",)) from error


def _plan(config: RunConfig, settings: Privacy, size: int) -> PrivacyPlan:
    mode = Mode(settings.mode)
    unit = Unit(settings.unit) if settings.unit else _UNITS.get(mode, Unit.RECORD)
    cohort = settings.cohort or config.run.min_silos
    steps = 1 if unit is Unit.SILO else config.local.steps
    n_c, h_dp = _shares(settings, mode, cohort)
    adaptive = AdaptiveClip(**dict(settings.adaptive)) if settings.adaptive else None
    metrics = MetricRelease(**dict(settings.metrics)) if settings.metrics else None
    rides_along = METRICS if metrics is not None and mode is not Mode.ISRL else 0
    weights = Weights(config.weights.kind)

    def of(z: float, *, tried: bool = False) -> PrivacyPlan:
        return PrivacyPlan(
            unit=unit,
            adjacency=Adjacency(settings.adjacency),
            mode=mode,
            clip=settings.clip,
            z=z,
            rounds=config.run.rounds,
            delta=settings.delta,
            dimension=size + (adaptive is not None) + rides_along,
            cohort_size=cohort,
            denominator=_denominator(config, settings, mode, cohort),
            q=settings.q,
            participation=Participation.ALL if settings.q == 1.0 else Participation.POISSON,
            local_steps=steps,
            n_c=n_c,
            h_dp=h_dp,
            weights=weights,
            max_weight=max(config.weights.declared.values(), default=1.0),
            max_units_per_silo=settings.max_units_per_silo,
            max_silos_per_unit=settings.max_silos_per_unit,
            adaptive=adaptive,
            metrics=metrics,
            grid_bound=settings.grid_bound,
            noise=Noise(settings.noise),
            strict=settings.strict,
            allow_low_utility=settings.allow_low_utility or tried,
        )

    if settings.z is not None:
        return of(settings.z)
    assert settings.epsilon is not None  # the settings have z or epsilon
    if Noise(settings.noise) is Noise.SKELLAM:
        return of(search_z(lambda z: of(z, tried=True), settings.epsilon))
    return of(
        plan_z(
            settings.epsilon,
            settings.delta,
            mode=mode,
            rounds=config.run.rounds,
            local_steps=steps,
            q=settings.q,
            metrics=settings.metrics is not None,
        )
    )


def _shares(settings: Privacy, mode: Mode, cohort: int) -> tuple[int, int]:
    """n_c and h_dp: by default a third of the others, and what the threshold leaves (6.3)."""
    if mode not in _RING:
        return settings.n_c or 0, settings.h_dp or 0  # refused by the plan unless 0
    n_c = max((cohort - 1) // 3, 1) if settings.n_c is None else settings.n_c
    h_dp = max(threshold(cohort, n_c) - n_c, 1) if settings.h_dp is None else settings.h_dp
    return n_c, h_dp


def _denominator(config: RunConfig, settings: Privacy, mode: Mode, cohort: int) -> float:
    """W: the planned sum of weights, or q times the declared units of all silos."""
    if settings.denominator is not None:
        return settings.denominator
    if mode in {Mode.FEDSGD, Mode.PATIENT}:
        units = settings.units or cohort * settings.max_units_per_silo
        return settings.q * units
    return math.fsum(config.weights.declared.values()) or float(cohort)


def _dimension(config: RunConfig, settings: Privacy, task_settings: dict[str, object]) -> int:
    if settings.dimension is not None:
        return settings.dimension
    if config.task.name != TABULAR:
        raise ConfigError(
            "privacy.dimension: expected the number of trained parameters with an own task, got "
            "none; the noise is planned before any model is loaded",
            keys=("privacy.dimension",),
        )
    model: NamedTensors = dict(initial_parameters(task_settings, config.run.seed))
    shared, _ = split_personal(model, config.algorithm.personal)
    return sum(int(tensor.size) for tensor in shared.values())
