"""A silo's records by the unit they belong to: who is sampled, and how a model does on each.

Neither the number of units nor a sample of them leaves the silo.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import nn

from dp.errors import InfeasibleError
from dp.mechanisms import UnitMetrics
from dp.modules import Examples, IntVector, LossFunction, unwrapped
from dp.plan import PrivacyPlan
from dp.rng import NoiseSource
from dp.sampling import poisson_mask

# Below it, a step's noise drowns the data or the data shine through a small change (OPA-08).
MIN_UNITS: Final = 30

# The number of right outputs of a batch.
CorrectFunction = Callable[[torch.Tensor, torch.Tensor], int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitData:
    """Records and the unit each belongs to.

    Attributes:
        examples: the records.
        unit_of: shape (n,), int64; each record's unit, from 0 without gaps. None: every record is
            a unit.
        min_units: the silo's own limit; with fewer units it does not take part.

    Raises:
        InfeasibleError: too few units. The message does not say how many there are.
    """

    examples: Examples
    unit_of: IntVector | None = None
    min_units: int = MIN_UNITS

    def __post_init__(self) -> None:
        if self.count < max(self.min_units, 1):
            raise InfeasibleError(
                f"this silo has fewer than its limit of {self.min_units} units: so few cannot be "
                "hidden well; leave it out or lower the silo's limit knowingly"
            )

    @property
    def count(self) -> int:
        """Return the number of units; it stays in the silo."""
        if self.unit_of is None:
            return len(self.examples)
        return int(np.max(self.unit_of, initial=-1)) + 1

    def rows(self, units: IntVector) -> tuple[IntVector, IntVector]:
        """Return the rows of these units, and for each row its unit's place among them."""
        if self.unit_of is None:
            return units, np.arange(len(units))
        place = np.full(self.count, -1)
        place[units] = np.arange(len(units))
        rows = np.flatnonzero(place[self.unit_of] >= 0)
        return rows, place[self.unit_of[rows]]


def sampled(data: UnitData, plan: PrivacyPlan, source: NoiseSource) -> IntVector:
    """Return the units of one release, each chosen in secret by itself."""
    return np.flatnonzero(poisson_mask(data.count, plan.q, source))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Meter:
    """How a model does on single units, for a plan that releases metrics.

    Attributes:
        module: in evaluation mode while it is measured; not changed.
        loss: the mean over a batch.
        correct: counts right outputs; None where that means nothing, all then count as wrong.
    """

    module: nn.Module
    loss: LossFunction
    correct: CorrectFunction | None

    def of(self, data: UnitData, units: IntVector) -> Iterator[UnitMetrics | None]:
        """Yield each unit's metrics; None where something failed, which must not show (4.1)."""
        module = unwrapped(self.module)
        was_training = module.training
        module.eval()
        try:
            for unit in units:
                yield self._one(data, unit)
        finally:
            module.train(was_training)

    def _one(self, data: UnitData, unit: np.int64) -> UnitMetrics | None:
        rows, _ = data.rows(np.array([unit]))
        try:
            inputs, targets = data.examples.take(rows)
            with torch.no_grad():
                outputs = self.module(inputs)
                loss = float(self.loss(outputs, targets))
                right = 0 if self.correct is None else int(self.correct(outputs, targets))
        except Exception:  # noqa: BLE001  # a failure that depends on data must not show (4.1)
            return None
        return UnitMetrics(loss=loss, correct=right / len(rows))
