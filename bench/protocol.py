"""What the protocol costs beside the masks: key sharing, unmasking, and the 2017 paper's setting.

Everything is the real silo's or the real server's own work in a whole round amid a crowd
(bench.crowd), one thread, from bytes to bytes; only the figures of the thread pool are the wall's.
"""

import os
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from time import perf_counter
from typing import Final

from bench import traffic
from bench.crowd import Crowd
from bench.primitives import aes_limit_ns, best_s, encrypt, primitive_times
from bench.rehearsal import Rehearsal, Stage, fresh_silo
from secagg import messages
from secagg.effects import Send
from secagg.keys import verify
from secagg.testing import MemoryStore
from secagg.transcript import setup_digest

DROP_SHARES: Final = (0.0, 0.1, 0.3)
_REPEATS: Final = 4

# Bonawitz et al. 2017, section 8: one thread of a Xeon E5-1650 v3, semi-honest protocol in Java,
# 500 silos, 100,000 values of 24 bits, dropouts after the shares. Seconds.
_PAPER: Final[Mapping[str, float]] = {
    "silo_s": 0.849,
    "server_drops_0_s": 2.0,
    "server_drops_10_s": 62.2,
    "server_drops_30_s": 143.4,
}
_CAVEAT: Final = (
    "other processor (2014), language and protocol: the paper's figures are of the semi-honest "
    "variant, ours hold signatures, commitments to every share, Merkle trees and a checked sum"
)


def measure(*, scale: float = 1.0) -> dict[str, object]:
    """Measure everything; `scale` below 1 shrinks numbers of silos and lengths, for a try."""

    def silos(full: int) -> int:
        return max(round(full * scale), 4)

    def dim(full: int) -> int:
        return max(round(full * scale), 100)

    return {
        "aes_limit_ns": aes_limit_ns(),
        "primitives": primitive_times(),
        "key_sharing": key_sharing(silos=silos(100)),
        "unmasking": unmasking(silos=silos(50), dim=dim(1_000_000)),
        "thread_pool": thread_pool(silos=silos(50), dim=dim(1_000_000)),
        "bonawitz_2017": bonawitz(silos=silos(500), dim=dim(100_000)),
        "expansion": traffic.figures(),
    }


def key_sharing(*, silos: int) -> dict[str, float]:
    """One silo's Advertise and Share: keys, shares, seals, the boxes of all others opened.

    The checks of two signatures a silo are measured apart and taken off.
    """
    crowd = Crowd(silos=silos, dim=1, value_bits=16)
    opening, keys, boxes = Stage(crowd, drop_share=0).play().inbox[:3]

    def share() -> None:
        silo = fresh_silo(crowd, MemoryStore())
        for data in (opening, keys, boxes):
            message = messages.decode_message(data)
            assert isinstance(message, messages.ServerMessage)  # the server sent it
            for effect in silo.receive(message):
                if isinstance(effect, Send):
                    effect.message.encode()

    signatures = _signatures(crowd, keys, boxes)

    def check() -> None:
        for public, signature, data in signatures:
            verify(public, signature, data)

    total_s, checks_s = best_s(share, repeats=7), best_s(check, repeats=7)
    return {
        "silos": silos,
        "ms": (total_s - checks_s) * 1e3,
        "signature_checks": len(signatures),
        "signature_checks_ms": checks_s * 1e3,
    }


def _signatures(crowd: Crowd, keys: bytes, boxes: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Every signature that a silo checks while keys are shared: public key, signature, data."""
    advertised, delivered = messages.decode_message(keys), messages.decode_message(boxes)
    assert isinstance(advertised, messages.Keys)  # as the silo heard them
    assert isinstance(delivered, messages.Boxes)  # likewise
    setup = setup_digest(
        crowd.parameters.ctx(), {item.seat: item for item in advertised.advertises}
    )
    identity = {seat.index: seat.identity_key for seat in crowd.federation.roster.seats}
    found = [
        (identity[item.seat], item.signature, item.signed_bytes()) for item in advertised.advertises
    ]
    found += [
        (
            identity[item.dealer],
            item.signature,
            messages.share_signed_bytes(setup, item.dealer, item.root),
        )
        for item in delivered.deliveries
    ]
    return found


def unmasking(*, silos: int, dim: int) -> dict[str, object]:
    """The server's unmasking a coordinate and seed: secrets, seeds, the uploads' sum, masks."""
    crowd = Crowd(silos=silos, dim=dim, value_bits=16)
    figures: dict[str, object] = {"silos": silos, "dim": dim}
    for share in DROP_SHARES:
        best = _best(crowd, share)
        figures[_name(share)] = {
            "seeds": best.seeds,
            "s": best.server_s["open"],
            "ns_per_coordinate_seed": best.server_s["open"] / (best.seeds * dim) * 1e9,
        }
    return figures


def thread_pool(*, silos: int, dim: int) -> dict[str, float]:
    """How much faster the server's unmasking is on a pool, with a tenth of the silos dropped.

    Beside it the factor of AES alone on the same pool: what the machine's cores can give.
    """
    crowd, workers = Crowd(silos=silos, dim=dim, value_bits=16), os.cpu_count() or 1
    aes, unmasking_s = dict[int, list[float]](), dict[int, list[float]]()
    for _ in range(_REPEATS):
        for threads in (1, workers):
            with ThreadPoolExecutor(threads) as pool:
                aes.setdefault(threads, []).append(_wall_s(pool, 4 * workers))
                played = Stage(crowd, drop_share=0.1, executor=pool).play()
                unmasking_s.setdefault(threads, []).append(played.server_s["open"])
    return {
        "workers": workers,
        "one_s": min(unmasking_s[1]),
        "pool_s": min(unmasking_s[workers]),
        "factor": min(unmasking_s[1]) / min(unmasking_s[workers]),
        "aes_factor": min(aes[1]) / min(aes[workers]),
    }


def _wall_s(pool: Executor, pieces: int) -> float:
    """Encrypt some pieces of 16 MiB on the pool; the wall's seconds."""
    start = perf_counter()
    list(pool.map(encrypt, [2**24] * pieces))
    return perf_counter() - start


def bonawitz(*, silos: int, dim: int) -> dict[str, object]:
    """One silo and the server in the setting of the 2017 paper, beside the paper's figures."""
    value_bits = 24 - (silos - 1).bit_length()
    crowd = Crowd(silos=silos, dim=dim, value_bits=value_bits)
    rounds = {share: Stage(crowd, drop_share=share).play() for share in DROP_SHARES}
    return {
        "silos": silos,
        "dim": dim,
        "ring_bits": crowd.parameters.spec.segments[0].ring_bits,
        "silo_s": _with_total(rounds[0.0].silo_s),
        **{f"server_{_name(share)}_s": _with_total(one.server_s) for share, one in rounds.items()},
        "paper": dict(_PAPER),
        "caveat": _CAVEAT,
    }


def _best(crowd: Crowd, share: float) -> Rehearsal:
    rounds = [Stage(crowd, drop_share=share).play() for _ in range(_REPEATS)]
    return min(rounds, key=lambda one: one.server_s["open"])


def _with_total(times: Mapping[str, float]) -> dict[str, float]:
    return {**times, "total": sum(times.values())}


def _name(share: float) -> str:
    return f"drops_{round(share * 100)}"
