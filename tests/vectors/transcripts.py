"""Write v1/suite_<n>.json: a whole round in each cipher suite, every byte that is sent.

Four silos, two segments of eight and two coordinates, the lowest or the highest of them lost after
sharing keys. A second implementation that is given the random bytes of each silo (in the order in
which it draws them) must say the same, byte for byte; in suite 4 ML-KEM's own coins are not ours to
give, so there it must accept what was said and come to the same sum. Run it from the repository's
root as `python -m tests.vectors.transcripts`; a difference means that the wire has changed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from secagg import messages
from secagg.parameters import VectorSpec, bulk, meta
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.ring import IntVector
from secagg.testing import (
    RoundHarness,
    SeededRng,
    make_federation,
    make_parameters,
)

FOLDER = Path(__file__).parent / "v1"
SILOS = (1, 2, 3, 4)
SPEC = VectorSpec(
    segments=(bulk("update", 8, value_bits=16, n_max=4), meta("count", 2, bound=2**40))
)
STATE = b"the state of the round"
FEDERATION = make_federation(4, seed="transcripts")
LOST = {1: 4, 2: 1, 3: 4, 4: 1}


class RecordingRng:
    """A source that remembers what it gave."""

    def __init__(self, source: SeededRng) -> None:
        """Pass on what `source` gives."""
        self.given = b""
        self._source = source

    def bytes(self, count: int) -> bytes:
        """The next bytes of the source."""
        data = self._source.bytes(count)
        self.given += data
        return data


def inputs(seat: int) -> dict[str, IntVector]:
    """Integers with both signs that anybody can compute: small powers of the seat."""
    return {
        "update": np.array([(-seat) ** power % 32749 - 9000 for power in range(8)], np.int64),
        "count": np.array([seat, 10**12 + seat], np.int64),
    }


def play(suite: int) -> dict[str, Any]:
    """One round and all that a second implementation wants to compare."""
    parameters = make_parameters(FEDERATION.roster, SPEC, suite=suite)
    seeds: dict[str, list[dict[str, Any]]] = {}
    said: list[dict[str, str | int]] = []

    def train(seat: int, *_rest: object) -> dict[str, IntVector]:
        made = harness.silos[seat]._mask_seeds(parameters.wire_spec.names)
        for segment, pairs in made.items():
            seeds.setdefault(str(seat), []).extend(
                {"segment": segment, "sign": sign, "seed": seed.hex()} for sign, seed in pairs
            )
        return inputs(seat)

    def listen(seat: int, message: messages.Message) -> messages.Message:
        said.append({"to": seat, "message": message.encode().hex()})
        return message

    def hear(seat: int, message: messages.Message) -> messages.Message:
        said.append({"from": seat, "message": message.encode().hex()})
        return message

    harness = RoundHarness(
        federation=FEDERATION,
        parameters=parameters,
        state=STATE,
        train=train,
        policies=dict.fromkeys(SILOS, SiloPolicy(suites=frozenset({suite}))),
        drop={LOST[suite]: Phase.MASK},
        to_silo=listen,
        to_server=hear,
    )
    sources = {}
    for seat, silo in harness.silos.items():
        assert isinstance(silo._rng, SeededRng)
        sources[seat] = RecordingRng(silo._rng)
        silo._rng = sources[seat]
    outcome = harness.run()
    assert outcome.aggregate is not None
    kept = harness.server._intake
    store = outcome.server_store
    uploads = {
        str(seat): [store.read(f"masked.{seat}", n).hex() for n in range(3)]
        for seat in outcome.aggregate.survivors
    }
    return {
        "suite": suite,
        "roster": FEDERATION.roster.encode().hex(),
        "random": {str(seat): source.given.hex() for seat, source in sources.items()},
        "inputs": {
            str(seat): {name: column.tolist() for name, column in inputs(seat).items()}
            for seat in SILOS
        },
        "state": STATE.hex(),
        "ctx": parameters.ctx().hex(),
        "setup": kept.setup.hex(),
        "binding": kept.binding.hex(),
        "mask_seeds": seeds,
        "uploads": uploads,
        "sum": [store.read("sum", n).hex() for n in range(3)],
        "messages": said,
    }


def main() -> None:
    """Write all four files; suite 4's is different each time."""
    for suite in LOST:
        text = json.dumps(play(suite), indent=1) + "\n"
        (FOLDER / f"suite_{suite}.json").write_text(text, encoding="utf-8")
        sys.stdout.write(f"suite {suite}: {len(text)} characters\n")


if __name__ == "__main__":
    main()
