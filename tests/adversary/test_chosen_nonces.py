"""Tier 2 does not rest on the server's list of nonces: it may tell each silo another one."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from secagg import server, vectors
from secagg.evidence import EvidenceKind
from secagg.messages import Disclosure, Message
from secagg.parameters import VectorSpec, bulk
from secagg.policy import SiloPolicy
from secagg.prg import CHUNK_WORDS
from secagg.recompute import assigned_chunks
from secagg.testing import RoundHarness, make_federation, make_parameters
from secagg.vectors import OpenedSum
from tests.adversary.stage import random_inputs

pytestmark = pytest.mark.adversary

SEATS = (1, 2, 3, 4, 5)
FEDERATION = make_federation(5)
SPEC = VectorSpec(segments=(bulk("update", 8 * CHUNK_WORDS, value_bits=8, n_max=5),))
INPUTS = random_inputs(SEATS, SPEC, 4)
CHUNKS = 9  # with that of the tags
WRONG = 0


def _without_the_wrong_one(seat: int, message: Message) -> Message:
    """Leave out others' nonces until the wrong chunk is not this silo's to recompute."""
    if not isinstance(message, Disclosure):
        return message
    nonces = {item.seat: item for item in message.nonces}
    for others in (one for size in (4, 3, 2) for one in combinations(set(SEATS) - {seat}, size)):
        shown = {other: nonces[other] for other in sorted({seat, *others})}
        assigned = assigned_chunks(
            root=nonces[seat].root,
            nonces={other: item.nonce for other, item in shown.items()},
            seat=seat,
            redundancy=2,
            chunks=CHUNKS,
        )
        if WRONG not in assigned:
            return replace(message, nonces=tuple(shown.values()))
    raise AssertionError("no choice of nonces hides the chunk")


@pytest.mark.parametrize(("own_chunks", "is_found"), [(0, False), (None, True)])
def test_a_silo_looks_where_the_server_does_not_choose(
    monkeypatch: pytest.MonkeyPatch, own_chunks: int | None, is_found: bool
) -> None:
    """By default it recomputes as many chunks of its own choice as it would be assigned."""
    honest = vectors.sum_and_unmask

    def sum_and_unmask(**arguments: Any) -> OpenedSum:
        opened = honest(**arguments)
        store, name = arguments["store"], arguments["name"]
        data = bytearray(store.read(name, WRONG))
        data[0] ^= 1
        store.write(name, WRONG, bytes(data))
        return replace(opened, root=vectors.root_of(store, name, arguments["spec"]))

    monkeypatch.setattr(server, "sum_and_unmask", sum_and_unmask)
    harness = RoundHarness(
        federation=FEDERATION,
        parameters=make_parameters(FEDERATION.roster, SPEC, redundancy=2),
        state=b"state",
        train=lambda seat, _parameters, _state: INPUTS[seat],
        policies=dict.fromkeys(SEATS, SiloPolicy(max_redundancy=2, own_chunks=own_chunks)),
        to_silo=_without_the_wrong_one,
    )
    harness.run()
    cases = [case for silo in harness.silos.values() for case in silo.evidence]
    assert {case.kind for case in cases} == ({EvidenceKind.WRONG_SUM} if is_found else set())
    for silo in harness.silos.values():
        assert silo.auditor is not None
        assert silo.auditor.is_done
        assert len(silo.auditor._own) == (4 if own_chunks is None else 0)  # of 2 * 9 / 5
