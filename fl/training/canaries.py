"""Silos whose units are canaries: rehearsals in the modes that clip records or patients.

A linear model without bias whose loss is minus its mean output: each record's gradient is minus
the record itself, whatever the model is. So a record that is a canary goes through per-sample
gradients, clip and sum as any other.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl.training.custom import OwnModel, OwnTask
from fl.training.loop import TensorExamples


def canary_task(vectors: NDArray[np.float64]) -> OwnTask:
    """Return a silo each of whose units moves the model by one of these vectors.

    Args:
        vectors: shape (units, d), float64; zero for a unit that changes nothing.
    """
    units, dimension = vectors.shape

    def build() -> nn.Module:
        module = nn.Linear(dimension, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(module.weight)
        return module

    return OwnTask(
        OwnModel(
            build=build,
            examples=TensorExamples(
                inputs=torch.from_numpy(vectors), targets=torch.zeros(units, dtype=torch.float64)
            ),
            loss=lambda outputs, _targets: -outputs.mean(),
            unit_of=np.arange(units),
        )
    )
