"""Seeds and labels name generators."""

from fl.seeding import derive_seed, generator


def test_same_labels_same_numbers() -> None:
    """A generator is a function of its arguments."""
    assert generator(7, "batches", 3).integers(2**60) == generator(7, "batches", 3).integers(2**60)


def test_labels_are_told_apart() -> None:
    """Text and number, one label and two, other seeds: all give other streams."""
    seeds = {
        derive_seed(7, "a", 1),
        derive_seed(7, "a", "1"),
        derive_seed(7, "a1"),
        derive_seed(8, "a", 1),
        derive_seed(7, 1, "a"),
    }
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
