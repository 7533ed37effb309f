"""Which modules and losses are fit for per-sample clipping, and that no record decides it."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from dp.errors import UnsafeModuleError
from dp.modules import check_module
from tests.dp.rows import Rows, records, small_model


def test_opa_01_batch_norm_is_refused_for_all() -> None:
    """OPA-01: refused when the training plan is set up, with trainable weights and without."""
    torch.manual_seed(0)
    hiding = [
        nn.BatchNorm1d(4),
        nn.BatchNorm1d(4, affine=False),
        nn.BatchNorm1d(4, affine=False, track_running_stats=False),
        nn.BatchNorm1d(4).requires_grad_(requires_grad=False),
    ]
    for norm in hiding:
        model = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2))
        for p in model[2].parameters():
            nn.init.zeros_(p)  # a last layer of zeros must not hide the coupling
        with pytest.raises(UnsafeModuleError):
            check_module(model, functional.cross_entropy, records())


def test_opa_01_a_norm_that_erases_its_input_is_pointed_out() -> None:
    """OPA-01: one channel per group on one-dimensional features is allowed, with advice."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(4, 4), nn.Linear(4, 2))
    (advice,) = check_module(model, functional.cross_entropy, records())
    assert "'1'" in advice
    assert "fewer groups" in advice
    fine = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    assert check_module(fine, functional.cross_entropy, records()) == ()
    pixels = Rows(records().inputs.repeat(1, 2), records().targets)
    images = nn.Sequential(
        nn.Unflatten(1, (3, 2)), nn.GroupNorm(3, 3), nn.Flatten(), nn.Linear(6, 2)
    )
    assert check_module(images, functional.cross_entropy, pixels) == ()


def test_a_safe_module_passes_and_stays_as_it_was() -> None:
    """Dropout is no coupling; the check works on a copy."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
    before = [p.detach().clone() for p in model.parameters()]
    assert check_module(model, functional.cross_entropy, records()) == ()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert not model.training


class Tied(nn.Module):
    """Two names for one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        """Apply both."""
        return self.b(self.a(x))


def test_tied_complex_and_batch_coupled_parts_are_listed() -> None:
    """Each fault is named."""
    with pytest.raises(UnsafeModuleError, match=r"'a.weight' and 'b.weight' are tied"):
        check_module(Tied(), functional.cross_entropy, records())
    odd = small_model()
    odd.register_parameter("phase", nn.Parameter(torch.zeros(1, dtype=torch.complex64)))
    with pytest.raises(UnsafeModuleError, match=r"'phase' is torch.complex64"):
        check_module(odd, functional.cross_entropy, records())

    def contrastive(outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs - outputs.mean(dim=0), targets)

    def summed(outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs, targets, reduction="sum")

    def class_weighted(outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 3.0]))

    def of_eight(outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs.reshape(8, 2), targets)

    for loss in (contrastive, summed, class_weighted, of_eight):
        with pytest.raises(UnsafeModuleError, match="mean of its records"):
            check_module(small_model(), loss, records())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_no_record_makes_a_module_unfit(bad: float) -> None:
    """A refusal for a record's sake would tell that it is there (privacy.md 4.1)."""
    data = records()
    data.inputs[0, 0] = bad
    assert check_module(small_model(), functional.cross_entropy, data) == ()
