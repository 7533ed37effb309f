"""Fewer bits for the same sum: rotation, random blocks and short integers, all of them linear.

Whatever is done to a silo's vector before it is quantized must be the same linear map at every
silo, or the sum means nothing. Two such maps are offered, both drawn from the round's public coins
(a digest of the binding, so that nobody chose them alone; used for accuracy only):

- A randomized Hadamard rotation: signs at random, then the orthonormal transform of the vector
  padded to a power of two. Coordinates come out alike in size, so a clip range fits all of them
  and 8 to 10 value bits suffice.
- Random blocks: the same share of the coordinate blocks at every silo. What a silo could not send
  stays in its error memory and is added to its next update (Stich et al. 2018), so nothing is
  lost, only late.

Top-k is not offered: silos' largest coordinates differ, so either the union is dense, or the
chosen places are revealed. A clip factor of a silo's own does not commute with the sum either.

Source: Suresh et al. 2017 (rotation); Konečný et al. 2016 (blocks); protocol.md 4.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl import fields
from fl.errors import RunStateError
from fl.ports import FloatVector
from fl.seeding import generator
from secagg.quantizer import required_ring_bits

_MIN_BITS: Final = 4
_MAX_BITS: Final = 24
_FLOAT32_BITS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionPlan:
    """What is done to the update before it is quantized.

    Attributes:
        rotate: whether it is rotated.
        block: coordinates of a block; 0 sends all.
        kept: in (0, 1], the share of blocks that a round sends.
        feedback: whether a silo keeps what it did not send and adds it to its next update.
    """

    rotate: bool = False
    block: int = 0
    kept: float = 1.0
    feedback: bool = True

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        fields.flag("compression.rotate", self.rotate)
        fields.flag("compression.feedback", self.feedback)
        fields.whole("compression.block", self.block, 0, 2**24)
        object.__setattr__(self, "kept", fields.share("compression.kept", self.kept))
        if (self.kept < 1) != bool(self.block):
            fields.refuse("compression.kept", "below 1 if and only if block is set", self.kept)

    @property
    def needs_coins(self) -> bool:
        """Whether the round's public coins are needed."""
        return self.rotate or self.block > 0

    @property
    def keeps_errors(self) -> bool:
        """Whether a silo has an error memory."""
        return self.block > 0 and self.feedback

    def size(self, length: int) -> int:
        """Return how many coordinates stand for a vector of `length`."""
        if self.block:
            length = min(self.blocks_kept(length) * self.block, length)
        return 1 << (length - 1).bit_length() if self.rotate and length else length

    def blocks_kept(self, length: int) -> int:
        """Return how many blocks a round sends, at least one."""
        return max(round(self.kept * math.ceil(length / self.block)), 1)


class Compressor:
    """One round's linear map of vectors of one length, and its transpose.

    Args:
        plan: which maps.
        length: d.
        coins: the round's public coins, 32 bytes; unused where the plan needs none.
        label: of the segment, so that two segments do not share their blocks' fate.

    Raises:
        RunStateError: the coins are missing.
    """

    def __init__(self, plan: CompressionPlan, length: int, coins: bytes, label: str) -> None:
        if plan.needs_coins and len(coins) != 32:
            raise RunStateError(
                "this plan's compression needs the round's public coins, 32 bytes; the driver "
                "takes them from the attempt"
            )
        self._length = length
        self._places: NDArray[np.int64] | None = None
        self._signs: FloatVector | None = None
        seed = int.from_bytes(coins[:8], "big")
        if plan.block:
            self._places = _places(plan, length, seed, label)
            length = len(self._places)
        if plan.rotate and length:
            draws = generator(seed, "signs", label).integers(0, 2, length)
            self._signs = 1.0 - 2.0 * draws.astype(np.float64)

    def forward(self, values: FloatVector) -> FloatVector:
        """Return the coordinates that are sent for a vector of length d."""
        sent = values if self._places is None else values[self._places]
        if self._signs is None:
            return sent
        padded = np.zeros(1 << (len(sent) - 1).bit_length())
        padded[: len(sent)] = sent * self._signs
        return hadamard(padded)

    def backward(self, sent: FloatVector) -> FloatVector:
        """Return a vector of length d: what was sent, and zero where nothing was."""
        values = sent
        if self._signs is not None:
            values = hadamard(sent)[: len(self._signs)] * self._signs
        if self._places is None:
            return values
        full = np.zeros(self._length)
        full[self._places] = values
        return full


def hadamard(values: FloatVector) -> FloatVector:
    """Return the orthonormal Walsh-Hadamard transform; it is its own inverse.

    Args:
        values: shape (2^m,), float64; unchanged.
    """
    result = values.copy()
    size = len(result)
    width = 1
    while width < size:
        pairs = result.reshape(-1, 2, width)
        left, right = pairs[:, 0].copy(), pairs[:, 1].copy()
        pairs[:, 0] = left + right
        pairs[:, 1] = left - right
        width *= 2
    return result / math.sqrt(size)


def _places(plan: CompressionPlan, length: int, seed: int, label: str) -> NDArray[np.int64]:
    """Return the coordinates of the round's blocks, always as many as `plan.size` says.

    Blocks are laid around a ring from a random start, so that a short last block is no special
    case and every coordinate has the same chance.
    """
    kept = min(plan.blocks_kept(length) * plan.block, length)
    draws = generator(seed, "blocks", label)
    start = int(draws.integers(length))
    count = math.ceil(length / plan.block)
    order = draws.permutation(count)
    ring = (order[:, None] * plan.block + np.arange(plan.block)).reshape(-1)
    inside = ring[ring < length][:kept]
    return np.sort((inside + start) % length)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedError:
    """What compression costs and saves, known before a run.

    Attributes:
        value_bits: v.
        ring_bits: of a summed coordinate on the wire.
        worst: the largest error of a mean's coordinate, as a share of the clip range.
        typical: its standard deviation at most, likewise.
        sent: coordinates sent of d, padding included, as a share.
        ratio: bytes of a float32 vector over bytes of the packed one.
    """

    value_bits: int
    ring_bits: int
    worst: float
    typical: float
    sent: float
    ratio: float


def stated_error(
    plan: CompressionPlan, *, length: int, silos: int, n_max: int, value_bits: int
) -> StatedError:
    """Return the quantizer's error of an equally weighted mean and the uplink's size.

    Each silo's rounding errs by less than a step, with variance at most a quarter step squared,
    and independently of the others' (protocol.md 4). Rotation changes neither: it is orthonormal,
    but its clip range is that of the rotated coordinates. Blocks left out are no error of the sum;
    they are late.

    Args:
        plan: what is done to the vector.
        length: d.
        silos: survivors.
        n_max: silos that the ring is sized for.
        value_bits: v.
    """
    step = 1 / (2 ** (value_bits - 1) - 1)
    ring_bits = required_ring_bits(value_bits, n_max)
    size = plan.size(length)
    return StatedError(
        value_bits=value_bits,
        ring_bits=ring_bits,
        worst=step,
        typical=step / (2 * math.sqrt(silos)),
        sent=size / length,
        ratio=_FLOAT32_BITS * length / (ring_bits * size),
    )


def value_bits_for(error: float, silos: int) -> int:
    """Return the fewest value bits whose typical error of a mean is at most `error`.

    Args:
        error: standard deviation of a coordinate, as a share of the clip range.
        silos: survivors.

    Raises:
        PlanError: no precision of 4 to 24 bits reaches it.
    """
    fields.positive("error", error)
    bits = _MIN_BITS
    while 1 / ((2 ** (bits - 1) - 1) * 2 * math.sqrt(silos)) > error:
        bits += 1
        if bits > _MAX_BITS:
            fields.refuse("error", f"an error that {_MAX_BITS} value bits reach", error)
    return bits
