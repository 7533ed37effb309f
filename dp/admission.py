"""Which algorithm may run under which privacy plan, as one table with reasons.

Source: the table of algorithms.md and the state rule of privacy.md 5.3; where this table is
stricter, docs/adr/0018 says why. Under record and patient units a silo may use, beside the current
record, only constants of the plan and values that are already noised: whatever else a record
touches steers the terms of others.

What no plan names is refused where it shows: BatchNorm and losses that are no sum over records by
`dp.modules`, which looks at the model itself.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from dp.errors import PlanError
from dp.plan import Mode, PrivacyPlan, Weights


class Algorithm(StrEnum):
    """Federated algorithms, by their configured names."""

    FEDSGD = "fedsgd"
    FEDAVG = "fedavg"
    FEDPROX = "fedprox"
    FEDAVGM = "fedavgm"
    FEDADAGRAD = "fedadagrad"
    FEDADAM = "fedadam"
    FEDYOGI = "fedyogi"
    SCAFFOLD = "scaffold"
    FEDNOVA = "fednova"
    QFEDAVG = "qfedavg"
    AFL = "afl"


class Feature(StrEnum):
    """What else a training plan may ask for that privacy depends on, by its field there."""

    OWN_STEPS = "work.kind"  # other than fixed: a silo's own K
    LOCAL_OPTIMIZER = "local.optimizer"  # other than plain steps
    PROXIMAL = "local.proximal"
    GRADIENT_VARIATE = "algorithm_settings.option"  # SCAFFOLD's option I
    REFRESH = "max_refreshes"
    PERSONAL_LAYERS = "personal"
    ROTATION = "compression.rotate"
    BLOCKS = "compression.block"
    ERROR_FEEDBACK = "compression.feedback"
    STANDARDIZE = "standardize"  # feature moments as an exact sum
    EXACT_METRICS = "metrics"  # losses and right predictions as exact segments
    LOSS_STOPPING = "early_stop.patience"  # without metrics that the plan releases


_SERVER_STEPS: Final = frozenset(
    {
        Algorithm.FEDAVG,
        Algorithm.FEDPROX,
        Algorithm.FEDAVGM,
        Algorithm.FEDADAGRAD,
        Algorithm.FEDADAM,
        Algorithm.FEDYOGI,
        Algorithm.FEDNOVA,
    }
)
_JOINT: Final = (Mode.FEDSGD, Mode.PATIENT)
_RECORD_MODES: Final = (*_JOINT, Mode.ISRL)
_SILO_MODES: Final = (Mode.CENTRAL, Mode.SILO)
_PLAIN_UNITS: Final = "the steps of single units are plain gradient steps"

# What is refused, and why; whatever is not listed is allowed.
_ALGORITHMS: Final[Mapping[tuple[Algorithm, Mode], str]] = {
    **{
        (algorithm, Mode.FEDSGD): "fedsgd sums one gradient a record; local steps need patient, "
        "isrl, silo or central"
        for algorithm in _SERVER_STEPS
    },
    (Algorithm.FEDSGD, Mode.PATIENT): "one local step per patient is mode fedsgd; use that",
    **{
        (Algorithm.FEDPROX, mode): f"{_PLAIN_UNITS}, without a proximal term; use fedavg"
        for mode in (Mode.PATIENT, Mode.ISRL)
    },
    (Algorithm.SCAFFOLD, Mode.FEDSGD): "with one local step there is no drift to correct",
    (Algorithm.SCAFFOLD, Mode.PATIENT): "its c_i is un-noised state of a silo, through which one "
    "patient would steer the updates of the others",
    **{
        (algorithm, mode): "its weights follow a silo's own losses, so one record would steer the "
        "terms of others"
        for algorithm in (Algorithm.QFEDAVG, Algorithm.AFL)
        for mode in _RECORD_MODES
    },
    **{
        (algorithm, mode): "a number that depends on the silo's loss goes exactly beside its "
        "vector; use fedavg"
        for algorithm in (Algorithm.QFEDAVG, Algorithm.AFL)
        for mode in _SILO_MODES
    },
}
_FEATURES: Final[Mapping[tuple[Feature, Mode], str]] = {
    **{
        (feature, mode): reason
        for mode in Mode
        for feature, reason in (
            (
                Feature.OWN_STEPS,
                "K is a constant of the plan, the same for all: a silo's own would tell how much "
                "data it has; use fixed",
            ),
            (Feature.REFRESH, "a refresh is a further release that no plan charges; use 0"),
            (Feature.ROTATION, "the noise sets the grid, on which a rotation gains nothing"),
            (
                Feature.BLOCKS,
                "sensitivity, range and padding are those of a vector of all coordinates",
            ),
            (
                Feature.ERROR_FEEDBACK,
                "the memory of what was not sent is un-noised state of the silo",
            ),
            (
                Feature.STANDARDIZE,
                "exact sums of the features have infinite epsilon; scale by public constants "
                "of the schema",
            ),
            (
                Feature.EXACT_METRICS,
                "an exact sum has infinite epsilon; noise and charge it, or leave it out",
            ),
            (
                Feature.LOSS_STOPPING,
                "losses that no plan releases are un-noised; release them by its metrics",
            ),
        )
    },
    **{
        (Feature.GRADIENT_VARIATE, mode): "option I is a further release beside the update; use "
        "option II"
        for mode in Mode
    },
    **{
        (Feature.PERSONAL_LAYERS, mode): "layers trained without noise are un-noised state that "
        "steers what is uploaded"
        for mode in _RECORD_MODES
    },
    **{
        (feature, mode): _PLAIN_UNITS
        for feature in (Feature.LOCAL_OPTIMIZER, Feature.PROXIMAL)
        for mode in _RECORD_MODES
    },
}


def check_algorithm(
    plan: PrivacyPlan, algorithm: Algorithm, settings: Iterable[Feature] = ()
) -> None:
    """Refuse an algorithm, or something it is set to do, that the plan's guarantee excludes.

    Args:
        plan: the privacy plan.
        algorithm: which algorithm.
        settings: what else the training does.

    Raises:
        PlanError: refused; the message says why and what to do.
    """
    reason = refusal(algorithm, plan.mode)
    if reason is not None:
        raise PlanError(f"{algorithm} is refused in mode {plan.mode}: {reason}")
    if algorithm is Algorithm.FEDSGD and plan.local_steps != 1:
        raise PlanError(f"fedsgd takes one step, the plan has local_steps = {plan.local_steps}")
    if algorithm is Algorithm.SCAFFOLD and plan.weights is not Weights.UNIFORM:
        raise PlanError("scaffold under a privacy plan has weights of 1; use weights uniform")
    if algorithm is Algorithm.FEDNOVA and plan.weights is Weights.HIDDEN:
        raise PlanError(
            "fednova under a privacy plan needs the sum of n_k as a constant; use "
            "weights uniform or declared"
        )
    for feature in sorted(set(settings)):
        reason = refusal(feature, plan.mode)
        if reason is not None:
            raise PlanError(f"{feature} is refused in mode {plan.mode}: {reason}")


def refusal(what: Algorithm | Feature, mode: Mode) -> str | None:
    """Why this never runs in this mode, or None: for tables and help texts."""
    if isinstance(what, Algorithm):
        return _ALGORITHMS.get((what, mode))
    return _FEATURES.get((what, mode))
