"""What masking costs a silo, beside the speed at which the same library only encrypts.

One thread. The masks' part expands one self mask and one pairwise mask for each other silo and
adds them up; the whole path is what a silo does with its update in the product, chunk by chunk:
quantize, tags, masks, packing, and the hashes that bind the chunks.
"""

from typing import Final

import numpy as np

from bench.primitives import aes_limit_ns, best_s
from secagg.ids import RunId
from secagg.masking import MaskBundle
from secagg.parameters import TAG_SEGMENT, VectorSpec, bulk
from secagg.prg import AES_256_CTR, CHUNK_WORDS, SEED_BYTES, rounding_coins
from secagg.quantizer import Quantizer
from secagg.ring import U32
from secagg.secretbytes import Secret
from secagg.testing import MemoryStore, SeededRng
from secagg.vectors import TagContext, mask_vector

VALUE_BITS: Final = 16
_SEGMENT: Final = "update"


def measure(*, silos: int, dim: int) -> dict[str, float]:
    """Measure with masks for `silos` silos on a vector of `dim` coordinates."""
    rng = SeededRng("masking")
    seeds = [(-1 if number % 2 else 1, rng.bytes(SEED_BYTES)) for number in range(silos)]
    limit = aes_limit_ns()
    masks = _masks_s(seeds, dim) / (dim * silos) * 1e9
    path = _path_s(seeds, dim, rng) / dim * 1e9
    return {
        "silos": silos,
        "dim": dim,
        "threads": 1,
        "ns_per_coordinate_seed": masks,
        "aes_limit_ns": limit,
        "fraction_of_limit": limit / masks,
        "silo_ns_per_coordinate": path,
        "silo_over_masks": path / (masks * silos),
    }


def _masks_s(seeds: list[tuple[int, bytes]], dim: int) -> float:
    """Expand all masks and add them to a vector of 32-bit words."""
    total = np.zeros(dim, U32)

    def work() -> None:
        bundle = MaskBundle(seeds, U32)
        for chunk, start in enumerate(range(0, dim, CHUNK_WORDS)):
            bundle.apply(total[start : start + CHUNK_WORDS], chunk)

    return best_s(work)


def _path_s(seeds: list[tuple[int, bytes]], dim: int, rng: SeededRng) -> float:
    """Turn an update into the packed masked vector."""
    update = np.random.default_rng(1).normal(scale=0.1, size=dim)
    quantizer = Quantizer(value_bits=VALUE_BITS, clip_range=1.0)
    spec = VectorSpec(segments=(bulk(_SEGMENT, dim, value_bits=VALUE_BITS, n_max=len(seeds)),))
    tags = TagContext(key=Secret(rng.bytes(32)), binding=rng.bytes(32), generator=AES_256_CTR)
    secret, run, store = rng.bytes(32), RunId(rng.bytes(16)), MemoryStore()

    def work() -> None:
        coins = rounding_coins(secret, run, 1, _SEGMENT)
        encoded = quantizer.encode(update, rand=coins)
        mask_vector(
            {_SEGMENT: encoded.values},
            spec=spec,
            tags=tags,
            generator=AES_256_CTR,
            seat=1,
            seeds={_SEGMENT: seeds, TAG_SEGMENT: seeds},
            store=store,
            name="masked",
        )

    return best_s(work)
