"""All reproducible randomness: one seed and labels name one generator.

Nothing secret comes from here. Masks, keys and rounding coins use `secagg.rng`.
"""

from numpy.random import PCG64, Generator

from secagg.canonical import digest, text, u64


def derive_seed(seed: int, *labels: str | int) -> int:
    """Return a 63-bit seed of its own for `labels`, so that no two uses share a stream.

    Args:
        seed: the plan's seed, 0 .. 2**64-1.
        labels: what the randomness is for; the text "1" and the number 1 differ.
    """
    fields = [text(f"s:{label}" if isinstance(label, str) else f"i:{label}") for label in labels]
    return int.from_bytes(digest("seed", u64(seed), *fields)[:8], "big") >> 1


def generator(seed: int, *labels: str | int) -> Generator:
    """Return numpy's generator for `seed` and `labels`; same arguments, same numbers."""
    return Generator(PCG64(derive_seed(seed, *labels)))
