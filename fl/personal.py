"""Which parameters are shared and which stay at the silo, by patterns on their names."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from fl.errors import PlanError
from fl.ports import FloatVector, NamedTensors, Tensor
from fl.update import TensorLayout, summed


def split_personal(
    model: NamedTensors, patterns: tuple[str, ...]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the shared and the personal tensors of a model.

    Args:
        model: all of a silo's parameters.
        patterns: shell-style, such as "*bn*" or "head.*"; case matters.

    Raises:
        PlanError: a pattern matches nothing, or nothing is left to share.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in model):
            raise PlanError(
                f"training plan: personal: {pattern!r} matches no parameter; the model has "
                f"{', '.join(sorted(model))}"
            )
    mine = {n: t for n, t in model.items() if any(fnmatchcase(n, p) for p in patterns)}
    shared = {name: tensor for name, tensor in model.items() if name not in mine}
    if patterns and not summed(shared):
        raise PlanError("training plan: personal: the patterns leave no parameter to share")
    return shared, mine


class Division:
    """A silo's flat vectors over all parameters, and their shared and personal coordinates.

    Args:
        shared: of the model.
        personal: likewise; often none.
    """

    def __init__(self, shared: NamedTensors, personal: NamedTensors) -> None:
        both: Mapping[str, Tensor] = summed({**shared, **personal})
        self.all = TensorLayout.of(both)
        self.shared = TensorLayout.of(summed(shared))
        self.personal = TensorLayout.of(summed(personal))
        own = {name for name, _, _ in self.personal.tensors}
        self._is_personal: NDArray[np.bool_] = np.concatenate(
            [np.full(both[name].size, name in own) for name, _, _ in self.all.tensors]
        )

    def shared_of(self, flat: FloatVector) -> FloatVector:
        """Return the shared coordinates."""
        return flat[~self._is_personal]

    def personal_of(self, flat: FloatVector) -> FloatVector:
        """Return the personal coordinates."""
        return flat[self._is_personal]

    def widened(self, shared: FloatVector | None) -> FloatVector | None:
        """Return a vector over all parameters, zero at the personal ones; None stays None."""
        if shared is None:
            return None
        flat = np.zeros(len(self._is_personal))
        flat[~self._is_personal] = shared
        return flat
