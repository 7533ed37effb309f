"""Records in memory and a small model, for tests of local training."""

from typing import Any

import torch
from torch import nn


class Rows:
    """Records in two tensors; `broken` rows raise when they are read."""

    def __init__(self, inputs: Any, targets: Any, broken: int = -1) -> None:
        self.inputs = inputs
        self.targets = targets
        self.broken = broken

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Any) -> Any:
        """Return these rows."""
        if self.broken in rows:
            raise OSError("a bad row")
        chosen = torch.from_numpy(rows)
        return self.inputs[chosen], self.targets[chosen]


def records(count: int = 40, seed: int = 0, broken: int = -1) -> Rows:
    """Return records of three features and two classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 3, generator=generator)
    return Rows(inputs, (inputs[:, 0] > 0).long(), broken)


def small_model(seed: int = 1) -> nn.Module:
    """Return two layers of 3·4 + 4 + 4·2 + 2 = 26 parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
