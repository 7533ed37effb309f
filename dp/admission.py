"""Which algorithm may run under which privacy plan, as one table with reasons.

Source: the table of algorithms.md and the state rule of privacy.md 5.3. Under record and patient
units a silo may use, beside the current record, only constants of the plan and values that are
already noised: whatever else a record touches steers the terms of others.
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
    """What else a training does that privacy depends on."""

    OWN_STEPS = "own_steps"  # a silo's own K, batch or denominator
    DERIVED_VARIATE = "derived_variate"  # SCAFFOLD's plain option II, c from the sum of deltas
    GRADIENT_VARIATE = "gradient_variate"  # SCAFFOLD's option I and refresh
    PERSONAL_LAYERS = "personal_layers"  # FedBN and layers that stay, trained without DP-SGD
    PRIVATE_PERSONAL_LAYERS = "private_personal_layers"  # trained by the same DP-SGD
    BATCH_NORM = "batch_norm"
    COUPLED_LOSS = "coupled_loss"  # Cox, rank, contrastive: no sum over records
    OWN_SCALING = "own_scaling"  # mean and sd, imputation, vocabulary, class weights of the silo
    STRATIFIED_SPLIT = "stratified_split"  # a split that depends on the data
    ERROR_FEEDBACK = "error_feedback"  # memory of what a compression left out
    NOISED_ERROR_FEEDBACK = "noised_error_feedback"  # memory of the noised delta
    OWN_LOSS_STOPPING = "own_loss_stopping"  # early stopping or schedules on a silo's own loss
    KEPT_MOMENTUM = "kept_momentum"  # local optimizer state that lives on between rounds
    EXACT_METRICS = "exact_metrics"  # counts, losses or n_k as exact segments
    FEW_BITS = "few_bits"  # a coarser grid than the noise needs


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
_LOSS_WEIGHTS: Final = (
    "its weights follow a silo's own losses, so one record would steer the terms of others"
)

# What is refused, and why; whatever is not listed is allowed.
_ALGORITHMS: Final[Mapping[tuple[Algorithm, Mode], str]] = {
    **{
        (algorithm, Mode.FEDSGD): "fedsgd sums one gradient a record; local steps need patient, "
        "isrl, silo or central"
        for algorithm in _SERVER_STEPS
    },
    (Algorithm.FEDSGD, Mode.PATIENT): "one local step per patient is mode fedsgd; use that",
    (Algorithm.SCAFFOLD, Mode.FEDSGD): "with one local step there is no drift to correct",
    (Algorithm.SCAFFOLD, Mode.PATIENT): "its c_i is un-noised state of a silo, through which one "
    "patient would steer the updates of the others",
    **{
        (algorithm, mode): _LOSS_WEIGHTS
        for algorithm in (Algorithm.QFEDAVG, Algorithm.AFL)
        for mode in (Mode.FEDSGD, Mode.PATIENT, Mode.ISRL)
    },
}

_JOINT: Final = (Mode.FEDSGD, Mode.PATIENT)
_RECORD_MODES: Final = (*_JOINT, Mode.ISRL)
_SILO_MODES: Final = (Mode.CENTRAL, Mode.SILO)
_FEATURES: Final[Mapping[tuple[Feature, Mode], str]] = {
    **{
        (Feature.OWN_STEPS, mode): "K, batch and denominator are constants of the plan: a silo's "
        "own would tell how much data it has"
        for mode in Mode
    },
    **{
        (Feature.DERIVED_VARIATE, mode): "deriving c from the noised deltas adds up the noise; "
        "upload clip(delta + K·eta·(c − c_i)) instead (privacy.md 4.4)"
        for mode in _SILO_MODES
    },
    (Feature.GRADIENT_VARIATE, Mode.ISRL): "option I is a further event with q = 1; use option II",
    **{
        (Feature.PERSONAL_LAYERS, mode): "layers trained without noise are un-noised state that "
        "steers what is uploaded"
        for mode in _RECORD_MODES
    },
    **{
        (Feature.PRIVATE_PERSONAL_LAYERS, mode): "personal layers need isrl, where the same "
        "DP-SGD trains them"
        for mode in _JOINT
    },
    **{
        (Feature.BATCH_NORM, mode): "BatchNorm mixes the records of a batch"
        for mode in _RECORD_MODES
    },
    **{
        (Feature.COUPLED_LOSS, mode): "the loss is no sum over records, so clipping one record's "
        "gradient does not bound what it does to others"
        for mode in _RECORD_MODES
    },
    **{
        (Feature.OWN_SCALING, mode): "scaling by the silo's own statistics lets one record move "
        "all others; take constants from the schema or from a charged stats release"
        for mode in _RECORD_MODES
    },
    **{
        (Feature.STRATIFIED_SPLIT, mode): "a split that depends on the data moves other records; "
        "split by a keyed hash of the unit's id"
        for mode in _RECORD_MODES
    },
    **{
        (Feature.ERROR_FEEDBACK, mode): "the memory is un-noised state of the silo"
        for mode in _RECORD_MODES
    },
    **{
        (Feature.NOISED_ERROR_FEEDBACK, mode): "a noise share is used once: a memory of noised "
        "integers would carry it into a later contribution"
        for mode in (Mode.SILO, *_JOINT)
    },
    **{
        (Feature.OWN_LOSS_STOPPING, mode): "a silo's own loss is un-noised; let released values "
        "decide"
        for mode in Mode
    },
    (Feature.KEPT_MOMENTUM, Mode.PATIENT): "a patient's optimizer starts fresh: its state would "
    "carry one patient into the next",
    **{
        (Feature.EXACT_METRICS, mode): "an exact sum has infinite epsilon; noise and charge it, "
        "or leave it out"
        for mode in Mode
    },
    **{(Feature.FEW_BITS, mode): "the noise sets the grid" for mode in (*_SILO_MODES, *_JOINT)},
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
    reason = _ALGORITHMS.get((algorithm, plan.mode))
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
        reason = _FEATURES.get((feature, plan.mode))
        if reason is not None:
            raise PlanError(f"{feature} is refused in mode {plan.mode}: {reason}")


def refusal(algorithm: Algorithm, mode: Mode) -> str | None:
    """Why the algorithm never runs in this mode, or None: for tables and help texts."""
    return _ALGORITHMS.get((algorithm, mode))
