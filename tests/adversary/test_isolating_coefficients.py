"""Two sums with other coefficients whose difference is one silo's input (SA1 spec 2.3)."""

from typing import Any

import pytest

from secagg import messages
from secagg.errors import PolicyRefusedError
from secagg.parameters import CoefficientVector
from secagg.policy import SiloPolicy
from tests.adversary.stage import Stage

pytestmark = pytest.mark.adversary

OPEN_MINDED = dict.fromkeys(range(1, 6), SiloPolicy(public_coefficients=True))


def _vectors(*weights: tuple[int, ...]) -> dict[str, Any]:
    names = tuple(f"sum{n}" for n in range(len(weights)))
    return {
        "coefficients": names,
        "public_coefficients": tuple(
            CoefficientVector(name=name, seats=tuple(range(1, len(row) + 1)), weights=row)
            for name, row in zip(names, weights, strict=True)
        ),
    }


def test_one_silo_with_another_number_of_steps() -> None:
    """K = 5 at four silos and 4 at the victim: 5·Σ Δy/K − Σ Δy is a quarter of its update."""
    odd = _vectors((20,) * 5, (4, 4, 5, 4, 4))
    stage = Stage(5, policies=OPEN_MINDED, **odd)
    stage.advertise()
    for seat in stage.cohort:
        stage.refuses(seat, stage.keys(), PolicyRefusedError, "public_coefficients")
        farewell = stage.silos[seat].farewell
        assert isinstance(farewell, messages.Refusal)
        assert "policy rule public_coefficients" in farewell.reason
    assert stage.all_of(messages.Share) == {}
    stage.assert_hidden()


def test_a_group_that_dropouts_can_make_small() -> None:
    """Three of seven differ: enough if all stay, too few once two of them are lost."""
    weights = _vectors((1,) * 7, (1, 1, 1, 1, 2, 2, 2))
    policies = dict.fromkeys(range(1, 8), SiloPolicy(public_coefficients=True, n_c=1))
    stage = Stage(7, policies=policies, n_c=1, **weights)
    stage.advertise()
    stage.refuses(1, stage.keys(), PolicyRefusedError, "2 may drop out, .* one over 3")


def test_vectors_that_show_no_small_group() -> None:
    """The control: two sums that are multiples of one another, and a whole round with them."""
    stage = Stage(5, policies=OPEN_MINDED, **_vectors((1,) * 5, (5,) * 5))
    stage.finish()
    assert sorted(stage.finished) == [1, 2, 3, 4, 5]
    stage.assert_hidden()


def test_a_second_vector_that_no_silo_sees() -> None:
    """Hidden coefficients cannot be checked, so there may be one vector of them."""
    stage = Stage(5, policies=OPEN_MINDED, coefficients=("common", "hidden"))
    stage.refuses(1, stage.opening(), PolicyRefusedError, "coefficients")
