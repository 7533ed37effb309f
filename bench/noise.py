"""How fast exact integer noise is drawn, beside the AES that feeds it on the same machine.

One thread. Per sigma: samples a second of the discrete Gaussian, and what its tables cost once.
"""

import time
from functools import partial
from typing import Final

from bench.primitives import WORD_BYTES, aes_limit_ns, best_s
from dp.rng import NoiseStream
from dp.sampling import discrete_gaussian, skellam

# One small table, one of the middle, and two parts (privacy.md 6.2).
SIGMAS: Final = (64, 1024, 20724)


def measure(*, dim: int) -> dict[str, object]:
    """Measure draws of `dim` samples each; 8 bytes of AES go into a sample, 16 into two parts."""
    with NoiseStream() as source:
        draws: dict[str, float] = {}
        builds: dict[str, float] = {}
        for sigma in SIGMAS:
            discrete_gaussian.cache_clear()
            start = time.perf_counter()
            sampler = discrete_gaussian(float(sigma))
            builds[str(sigma)] = time.perf_counter() - start
            draws[str(sigma)] = dim / best_s(partial(sampler.draw, dim, source))
        difference = skellam(float(SIGMAS[0]))
        skellam_s = best_s(partial(difference.draw, dim, source))
    return {
        "dim": dim,
        "threads": 1,
        "samples_per_second": draws,
        "table_build_s": builds,
        "skellam_samples_per_second": {str(SIGMAS[0]): dim / skellam_s},
        "aes_bytes_per_second": WORD_BYTES / aes_limit_ns() * 1e9,
    }
