"""The demo's split: nothing lost, unequal and skewed as the rule says, the same every time."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl.errors import DataError
from fl.skew import SkewRule, skewed

DRAWS = np.random.default_rng(3)
LABELS = (DRAWS.random(569) < 0.37).astype(np.int64)
FEATURE = DRAWS.normal(size=569) + LABELS


@given(
    seed=st.integers(0, 2**32),
    fractions=st.lists(st.floats(0.05, 1), min_size=1, max_size=12),
    tilt=st.floats(-10, 10),
    noise=st.floats(0, 3),
    classes=st.integers(2, 4),
)
def test_every_row_is_in_one_silo_and_every_silo_has_every_class(
    seed: int, fractions: list[float], tilt: float, noise: float, classes: int
) -> None:
    """Whatever the skew, nothing is lost or doubled and the minimum holds."""
    rule = SkewRule(
        fractions=tuple(fraction / sum(fractions) for fraction in fractions),
        label_tilt=tilt,
        feature_noise=noise,
        minimum_per_class=4,
    )
    labels = np.arange(300) % classes
    silos = skewed(labels, FEATURE[:300], rule=rule, seed=seed)
    assert np.sort(np.concatenate(silos)).tolist() == list(range(300))
    for silo in silos:
        assert np.bincount(labels[silo], minlength=classes).min() >= 4


def test_the_demo_has_five_clearly_unequal_hospitals() -> None:
    """Sizes follow the fractions, label shares spread, the feature rises from silo to silo."""
    silos = skewed(LABELS, FEATURE, rule=SkewRule(), seed=1)
    sizes = [len(silo) for silo in silos]
    assert np.allclose(sizes, np.array(SkewRule().fractions) * 569, atol=5)  # the minimum fills up
    shares = sorted(LABELS[silo].mean() for silo in silos)
    assert shares[-1] - shares[0] > 0.3
    within = [[FEATURE[silo][LABELS[silo] == label].mean() for silo in silos] for label in (0, 1)]
    assert all(means[-1] - means[0] > 0.5 for means in within)


def test_without_skew_silos_are_alike() -> None:
    """No tilt gives the table's shares; much noise hides the feature's order."""
    rule = SkewRule(fractions=(0.5, 0.5), label_tilt=0.0, feature_noise=1e6)
    one, other = skewed(LABELS, FEATURE, rule=rule, seed=1)
    assert LABELS[one].mean() == pytest.approx(LABELS[other].mean(), abs=0.01)
    assert FEATURE[one].mean() == pytest.approx(FEATURE[other].mean(), abs=0.3)


def test_clean_bands_without_noise() -> None:
    """Within a class, no row of a later silo lies below one of an earlier silo."""
    silos = skewed(LABELS, FEATURE, rule=SkewRule(feature_noise=0.0), seed=1)
    for label in (0, 1):
        bands = [FEATURE[silo][LABELS[silo] == label] for silo in silos]
        for low, high in pairwise(bands):
            assert low.max() <= high.min()


def test_the_seed_fixes_the_split() -> None:
    """The same seed gives the same rows, another seed others."""
    first, again, other = (
        [silo.tolist() for silo in skewed(LABELS, FEATURE, rule=SkewRule(), seed=seed)]
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fractions": ()}, "above 0"),
        ({"fractions": (1.5, -0.5)}, "above 0"),
        ({"fractions": (0.5, 0.4)}, "sum to 1"),
        ({"label_tilt": np.inf}, "label_tilt"),
        ({"feature_noise": -1.0}, "feature_noise"),
        ({"minimum_per_class": -1}, "minimum_per_class"),
    ],
)
def test_a_wrong_rule_is_refused(settings: dict[str, object], said: str) -> None:
    """Each field names itself."""
    with pytest.raises(DataError, match=said):
        SkewRule(**settings)  # type: ignore[arg-type] # wrong values are the point


def test_a_table_that_is_too_small_is_refused() -> None:
    """Five silos with five rows of each class need 25 of each."""
    with pytest.raises(DataError, match="needs 25 rows"):
        skewed(np.arange(40) % 2, np.arange(40.0), rule=SkewRule(), seed=1)
    with pytest.raises(DataError, match="two or more classes"):
        skewed(np.zeros(40, dtype=np.int64), np.arange(40.0), rule=SkewRule(), seed=1)
    with pytest.raises(DataError, match="of one length"):
        skewed(LABELS, FEATURE[:-1], rule=SkewRule(), seed=1)
