"""Private local work on a torch module: what tasks share to protect records or patients.

The steps themselves are dp.local_sgd's, with Opacus' per-sample gradients.
"""

import numpy as np
from torch import nn

from dp.errors import PrivacyError
from dp.local_sgd import fedsgd_sum, isrl_metrics, patient_sum, train_isrl
from dp.modules import Examples, LossFunction, check_module
from dp.plan import Mode, PrivacyPlan, Unit
from dp.unit_data import CorrectFunction, Meter, UnitData
from fl.errors import DataError
from fl.ports import FloatVector
from fl.privacy import IntVector, PrivateStep
from fl.training import bridge


def check(
    module: nn.Module,
    loss: LossFunction,
    examples: Examples,
    plan: PrivacyPlan,
    unit_of: IntVector | None,
) -> None:
    """Refuse a model or data that clipping each unit does not protect, before any round.

    Raises:
        DataError: says what does not fit; never how many units there are.
    """
    try:
        check_module(module, loss, examples)
        units = _units(examples, plan, unit_of)
        most = plan.max_units_per_silo
        if units.count > most:
            raise DataError(f"this silo has more units than {most}, the most that are declared")
    except PrivacyError as error:
        raise DataError(f"privacy plan: {error}") from error


def step(
    module: nn.Module,
    loss: LossFunction,
    examples: Examples,
    wanted: PrivateStep,
    *,
    unit_of: IntVector | None = None,
    correct: CorrectFunction | None = None,
) -> FloatVector | IntVector:
    """Take one round's steps from the parameters that the module holds.

    Args:
        module: checked; changed in isrl.
        loss: the mean over a batch, 0-d.
        examples: the silo's records.
        wanted: what the round asks.
        unit_of: each record's unit, None where every record is one.
        correct: counts right outputs, for a plan that releases metrics.

    Returns:
        in isrl the model after K noised steps, shape (d,), float64; else the clipped sum's
        integers before the share, int64.

    Raises:
        DataError: the plan and the data do not fit.
    """
    plan, source = wanted.plan, wanted.source
    try:
        data = _units(examples, plan, unit_of)
        if plan.mode is Mode.ISRL:
            train_isrl(
                module,
                loss,
                data,
                plan,
                denominator=wanted.denominator,
                learning_rate=wanted.learning_rate,
                source=source,
                correction=wanted.correction,
            )
            return bridge.layout(module).flatten(bridge.export_model(module))
        summed = fedsgd_sum if plan.mode is Mode.FEDSGD else patient_sum
        found = summed(
            module,
            loss,
            data,
            plan,
            learning_rate=wanted.learning_rate,
            source=source,
            coins=source,
            clip_norm=wanted.clip_norm,
            meter=Meter(module=module, loss=loss, correct=correct),
        )
    except PrivacyError as error:
        raise DataError(f"privacy plan: {error}") from error
    return found.integers.astype(np.int64, copy=False)


def measure(
    module: nn.Module,
    loss: LossFunction,
    examples: Examples,
    wanted: PrivateStep,
    *,
    unit_of: IntVector | None = None,
    correct: CorrectFunction | None = None,
) -> IntVector:
    """Return isrl's noised metrics at the model that the module holds; arguments as for `step`.

    Raises:
        DataError: the plan and the data do not fit.
    """
    meter = Meter(module=module, loss=loss, correct=correct)
    try:
        data = _units(examples, wanted.plan, unit_of)
        return isrl_metrics(module, data, wanted.plan, meter=meter, source=wanted.source)
    except PrivacyError as error:
        raise DataError(f"privacy plan: {error}") from error


def _units(examples: Examples, plan: PrivacyPlan, unit_of: IntVector | None) -> UnitData:
    """Under the unit patient records are grouped, where the task knows their patients."""
    return UnitData(examples=examples, unit_of=unit_of if plan.unit is Unit.PATIENT else None)
