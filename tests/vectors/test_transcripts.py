"""Frozen rounds of each cipher suite: what we say has not changed, what we said still holds."""

import json
from typing import Any

import numpy as np
import pytest

from secagg import messages
from secagg.effects import Finished, ReleaseWanted
from secagg.intake import masked_name
from secagg.parameters import RoundParameters
from secagg.phases import Phase
from secagg.roster import Roster
from secagg.server import PhaseDeadlines, ServerRound
from secagg.testing import PLAN, MemoryStore
from tests.vectors.transcripts import FEDERATION, FOLDER, LOST, STATE, play


def frozen(suite: int) -> dict[str, Any]:
    """The file of a suite."""
    content: dict[str, Any] = json.loads((FOLDER / f"suite_{suite}.json").read_text("utf-8"))
    return content


@pytest.mark.parametrize("suite", [1, 2, 3])
def test_the_same_randomness_says_the_same_bytes(suite: int) -> None:
    """Messages, seeds, masked vectors and the sum are those of the frozen round."""
    expected, found = frozen(suite), play(suite)
    assert found.keys() == expected.keys()
    for part, content in expected.items():
        assert found[part] == content, part


def test_suite_4_says_the_same_up_to_the_encapsulation() -> None:
    """The library draws ML-KEM's coins; what comes before them is frozen as well."""
    expected, found = frozen(4), play(4)
    for part in ("suite", "roster", "random", "inputs", "state", "ctx", "setup"):
        assert found[part] == expected[part], part
    assert [item.keys() for item in found["messages"]] == [
        item.keys() for item in expected["messages"]
    ]


@pytest.mark.parametrize("suite", LOST)
def test_a_server_that_hears_the_frozen_words_says_the_frozen_answers(suite: int) -> None:
    """Replay: every silo's words pass all checks, and the sum is theirs, byte for byte."""
    case = frozen(suite)
    roster = Roster.decode(bytes.fromhex(case["roster"]))
    assert roster == FEDERATION.roster
    words = [(item, bytes.fromhex(item["message"])) for item in case["messages"]]
    opening = messages.decode_message(words[0][1])
    assert isinstance(opening, messages.RoundOpen)
    parameters: RoundParameters = opening.parameters
    assert (parameters.suite, parameters.ctx().hex()) == (suite, case["ctx"])
    store = MemoryStore()
    store.put_state(STATE)
    for seat, chunks in case["uploads"].items():
        for number, data in enumerate(chunks):
            store.write(masked_name(int(seat)), number, bytes.fromhex(data))
    server = ServerRound(
        parameters=parameters,
        plan=PLAN,
        roster=roster,
        signing_key=FEDERATION.coordinator,
        store=store,
        cohort=roster.indices,
        deadlines=PhaseDeadlines(),
    )
    answers = {data for item, data in words if "to" in item}
    spoken = set()
    effects = server.start(0.0) + server.set_state(0.0)
    values: dict[str, list[int]] = {}
    heard = [(item["from"], data) for item, data in words if "from" in item]
    while True:
        for effect in effects:
            spoken |= {effect.message.encode()} if hasattr(effect, "message") else set()
            if isinstance(effect, Finished):
                values = {k: v.tolist() for k, v in effect.aggregate.values.items()}
        if any(isinstance(effect, ReleaseWanted) for effect in effects):
            effects = server.open()
        elif heard:
            seat, data = heard.pop(0)
            message = messages.decode_message(data)
            assert isinstance(message, messages.SiloMessage)
            # Silence ends a phase where the lost silo was awaited.
            is_late = isinstance(message, messages.Survivors) and server.phase is Phase.MASK
            effects = server.expire(server.deadline or 0.0) if is_late else []
            effects += server.receive(seat, message, 0.0)
        else:
            break
    assert spoken == answers
    survivors = [int(seat) for seat in case["uploads"]]
    assert survivors == [seat for seat in (1, 2, 3, 4) if seat != LOST[suite]]
    for name, column in values.items():
        total = np.sum([case["inputs"][str(seat)][name] for seat in survivors], axis=0)
        assert column == total.tolist()
    assert [store.read("sum", n).hex() for n in range(3)] == case["sum"]
