"""What the coordinator keeps of silos' words on where a run stands, and what it makes of them."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from secagg.chain import Standpoint
from secagg.errors import BadSignatureError, ReplayError
from secagg.ids import RunId
from secagg.messages import Settled, Succession
from secagg.testing import make_federation
from services.coordinator.hub import Hub
from services.coordinator.settlements import Settlements
from services.errors import NotAllowedError
from services.observe.logs import get_logger
from services.storage.coordinator import CoordinatorStore

RUN = RunId(b"sixteen bytes ..")
FEDERATION = make_federation(5)
STATE = b"s" * 32
AFTER = 3
ALL = (1, 2, 3, 4, 5)


def word(seat: int, *, after: int = AFTER, state: bytes = STATE) -> Settled:
    """A silo's."""
    return Standpoint(round=after, model_hash=state).settled(
        federation=FEDERATION.roster.federation,
        run=RUN,
        seat=seat,
        identity=FEDERATION.identities[seat],
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CoordinatorStore]:
    """A coordinator's."""
    with closing(CoordinatorStore(tmp_path)) as opened:
        yield opened


def settlements(store: CoordinatorStore, patience_s: float = 0.0) -> Settlements:
    """What a process of the coordinator knows at its start."""
    made = Settlements(
        run=RUN,
        hub=Hub(roster=FEDERATION.roster),
        store=store,
        log=get_logger("test"),
        patience_s=patience_s,
    )
    made.restore()
    return made


async def asked(
    told: Settlements, after: int = AFTER, cohort: tuple[int, ...] = ALL
) -> Succession | None:
    """What goes with the state of the next round; two words are needed."""
    return await told.succession(after, STATE, needed=2, cohort=cohort)


def test_as_many_words_as_are_needed_go_with_a_state(store: CoordinatorStore) -> None:
    """Of the round in question, about this very state, sorted; with one too few there are none."""

    async def play() -> None:
        told = settlements(store)
        told.take(5, word(5))
        told.take(1, word(1, after=AFTER - 1))
        told.take(2, word(2, state=b"x" * 32))
        assert await asked(told) is None
        told.take(4, word(4))
        told.take(3, word(3))
        assert await asked(told) == Succession.of(word(3), word(4))
        assert await asked(told, after=0) is None, "nobody vouches for a first state"

    asyncio.run(play())


def test_the_words_beside_the_newest_state_outlive_the_process(store: CoordinatorStore) -> None:
    """An older one that comes late changes nothing; what went with older states is forgotten."""

    async def play() -> None:
        told = settlements(store)
        for seat in (1, 2, 3):
            told.take(seat, word(seat, after=AFTER - 1))
        assert await asked(told, after=AFTER - 1) == Succession.of(
            word(1, after=AFTER - 1), word(2, after=AFTER - 1)
        )
        for seat in (2, 3):
            told.take(seat, word(seat))
            told.take(seat, word(seat, after=AFTER - 1))
        assert await asked(told) == Succession.of(word(2), word(3))
        assert set(store.settled(RUN)) == {word(2).encode(), word(3).encode()}
        assert await asked(settlements(store)) == Succession.of(word(2), word(3))

    asyncio.run(play())


def test_a_round_waits_for_words_and_no_longer(store: CoordinatorStore) -> None:
    """The second one arrives while the state is held back."""

    async def play() -> None:
        told = settlements(store, patience_s=30.0)
        told.take(1, word(1))
        waiting = asyncio.create_task(asked(told))
        await asyncio.sleep(0)
        assert not waiting.done()
        told.take(2, word(2))
        assert await waiting == Succession.of(word(1), word(2))

    asyncio.run(play())


def test_a_cohort_that_has_spoken_waits_for_nobody(store: CoordinatorStore) -> None:
    """Whoever has said so itself takes the state without others' word."""

    async def play() -> None:
        told = settlements(store, patience_s=3600.0)
        told.take(1, word(1))
        assert await asked(told, cohort=(1,)) is None

    asyncio.run(play())


def test_words_that_are_not_the_silo_s_or_not_of_this_run(store: CoordinatorStore) -> None:
    """Refused, and not kept."""

    async def play() -> None:
        told = settlements(store)
        with pytest.raises(NotAllowedError, match="in the name of seat 2"):
            told.take(1, word(2))
        with pytest.raises(ReplayError):
            told.take(1, replace(word(1), run=RunId(b"another run 1234")))
        with pytest.raises(BadSignatureError):
            told.take(1, replace(word(1), round=AFTER + 1))

    asyncio.run(play())
    assert store.settled(RUN) == ()


def test_another_state_after_the_same_round_is_reported_once(
    store: CoordinatorStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is evidence that somebody computes otherwise; the word itself is of no use."""

    async def play() -> None:
        told = settlements(store)
        told.take(2, word(2, state=b"x" * 32))
        for _ in range(2):
            assert await asked(told) is None

    asyncio.run(play())
    assert capsys.readouterr().out.count("another state follows round 3") == 1
