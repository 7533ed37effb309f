"""The coordinator's side of a run's ledger: who signs, who did not, what the padding says."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from dp.entries import Kind
from dp.errors import BudgetExceededError
from dp.mechanisms import draw_share
from dp.plan import share_noise_std
from dp.rng import NoiseStream
from dp.verify import verify_ledger
from secagg.effects import Aggregate
from services.coordinator.ledger import (
    BudgetSpentError,
    LedgerUnsignedError,
    RunLedger,
    heads_path,
)
from services.coordinator.mailbox import Mailbox
from services.errors import InvalidRequestError
from services.ledger.messages import LedgerAnswer, LedgerNotice
from services.ledger.parties import COORDINATOR, Party, public_keys
from services.ledger.run_book import ledger_path
from services.observe.logs import get_logger
from services.wire.calls import ProtocolEnvelope
from tests.services.private_run import PrivateRun, budget, now

SILOS = 4
SHARED = PrivateRun(silos=SILOS, seed=11, rounds=2)
FEDERATION, ROSTER, PLAN, TRAINING = SHARED.federation, SHARED.roster, SHARED.plan, SHARED.training
parameters = SHARED.parameters


class World:
    """A coordinator's ledger and four silos behind their mailboxes."""

    def __init__(self, folder: Path, *, silent: tuple[int, ...] = ()) -> None:
        self.mailboxes = {seat: Mailbox() for seat in ROSTER.indices}
        self.silent = silent
        self.folder = folder
        self.moved = asyncio.Event()
        self.ledger = self.opened()
        self.silos = {
            seat: SHARED.silo(
                folder / str(seat), seat, budget(data_set=f"d{seat}", epsilon=5.0, persons=10)
            )
            for seat in ROSTER.indices
        }

    def opened(self) -> RunLedger:
        """The ledger, as a coordinator that starts has it."""
        return RunLedger(
            run=parameters().run,
            name="a run",
            plan=PLAN,
            folder=self.folder / "hub",
            writer=Party(COORDINATOR, FEDERATION.coordinator),
            roster=ROSTER,
            mailbox=self.mailboxes.__getitem__,
            now=now,
            log=get_logger("test"),
        )

    async def answer(self) -> None:
        """Let the silos answer notices until cancelled."""
        seen = dict.fromkeys(ROSTER.indices, 0)
        while True:
            for seat, box in self.mailboxes.items():
                found = await box.wait_after(seen[seat], 0.01)
                if found is None or seat in self.silent:
                    continue
                seen[seat], envelope = found
                assert isinstance(envelope, ProtocolEnvelope)
                answer = self.silos[seat].receive(LedgerNotice.decode(envelope.message))
                self.ledger.receive(seat, answer)
                self.moved.set()

    async def play(self, before_release: Callable[[], None] = lambda: None) -> None:
        """The first round, up to its release."""
        await self.ledger.commit(ROSTER.indices, parameters(), wait_s=20.0)
        await self.ledger.charge(parameters(), ROSTER.indices)
        for silo in self.silos.values():
            while not any(
                entry.kind is Kind.ROUND_INTENT for entry in silo._copy(parameters().run).entries
            ):
                self.moved.clear()
                await self.moved.wait()
            silo.check_round(parameters(), TRAINING)
            silo.charge(parameters(), TRAINING)
        before_release()
        await self.ledger.release(parameters(), (1, 2, 3), wait_s=20.0)

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run a piece of work beside the answering silos."""

        async def both() -> None:
            answering = asyncio.create_task(self.answer())
            try:
                await work
            finally:
                answering.cancel()

        asyncio.run(both())


def test_a_round_is_signed_and_settled_before_its_sum(tmp_path: Path) -> None:
    """Plan by all, release by the survivors; the file verifies with the silos' heads."""
    world = World(tmp_path)
    world.run(world.play())
    path = ledger_path(tmp_path / "hub", parameters().run)
    lines = path.read_bytes().splitlines()
    heads = heads_path(tmp_path / "hub", parameters().run).read_bytes().splitlines()
    assert len(heads) == SILOS
    assert verify_ledger(lines, public_keys(ROSTER), heads).ok
    assert not verify_ledger(lines[:-2], public_keys(ROSTER), heads).ok  # cut


def test_a_release_is_settled_once_also_after_a_restart(tmp_path: Path) -> None:
    """Another process of the coordinator: nothing is charged or signed again."""
    world = World(tmp_path)
    assert world.opened().committed_n_c() == 0
    world.run(world.play())
    path = ledger_path(tmp_path / "hub", parameters().run)
    before = path.read_bytes()
    world.ledger = world.opened()
    assert world.ledger.committed_n_c() == parameters().n_c == 1

    async def again() -> None:
        await world.ledger.commit(ROSTER.indices, parameters(), wait_s=1.0)
        await world.ledger.release(parameters(), (1, 2, 3), wait_s=1.0)

    world.run(again())
    assert path.read_bytes() == before


def test_a_plan_that_a_silo_does_not_sign_begins_no_run(tmp_path: Path) -> None:
    """Named, within the wait."""
    world = World(tmp_path, silent=(2,))
    with pytest.raises(LedgerUnsignedError, match=f"{ROSTER.seat(2).silo.name}: no answer"):
        world.run(world.ledger.commit(ROSTER.indices, parameters(), wait_s=0.5))


def test_a_coordinator_that_dies_before_all_have_signed_asks_for_the_same(tmp_path: Path) -> None:
    """A silo signs one PLAN_COMMIT of a run; a clock that went on makes no other one."""
    world = World(tmp_path, silent=(2,))
    with pytest.raises(LedgerUnsignedError):
        world.run(world.ledger.commit(ROSTER.indices, parameters(), wait_s=0.5))
    world.silent = ()
    world.mailboxes = {seat: Mailbox() for seat in ROSTER.indices}
    world.ledger = world.opened()
    world.ledger.now = lambda: now() + timedelta(minutes=5)
    world.run(world.ledger.commit(ROSTER.indices, parameters(), wait_s=20.0))
    assert world.ledger.committed_n_c() == 1


def test_a_silo_whose_budget_is_spent_ends_the_run_as_exhausted(tmp_path: Path) -> None:
    """Before the first round, by name."""
    world = World(tmp_path)
    world.silos[3].budget_settings = budget(data_set="d3", epsilon=1.0)
    with pytest.raises(BudgetSpentError, match=ROSTER.seat(3).silo.name):
        world.run(world.ledger.commit(ROSTER.indices, parameters(), wait_s=20.0))


def test_the_run_s_own_budget_ends_it(tmp_path: Path) -> None:
    """Two rounds are promised; a third is not charged."""
    world = World(tmp_path)

    async def spend() -> None:
        await world.ledger.commit(ROSTER.indices, parameters(), wait_s=20.0)
        for attempt in range(3):
            await world.ledger.charge(parameters(1, attempt), ())

    with pytest.raises(BudgetSpentError) as caught:
        world.run(spend())
    assert isinstance(caught.value.__cause__, BudgetExceededError)


def test_a_silo_that_lost_its_copy_gets_the_ledger_from_its_start(tmp_path: Path) -> None:
    """It answers with fewer lines than it had; the draft comes again with all of them."""
    world = World(tmp_path)

    def lose() -> None:
        ledger_path(tmp_path / "2", parameters().run).unlink()
        world.silos[2]._copies.clear()

    world.run(world.play(lose))  # needs all three signatures
    copy = ledger_path(tmp_path / "2", parameters().run).read_bytes()
    assert len(copy.splitlines()) == 4


def test_heads_of_others_or_of_another_history_are_refused(tmp_path: Path) -> None:
    """A silo speaks for itself, and of this ledger."""
    world = World(tmp_path)
    world.run(world.play())
    good = world.ledger._heads[1].to_bytes()
    answer = LedgerAnswer(run=parameters().run, lines=1, head=good)
    with pytest.raises(InvalidRequestError):
        world.ledger.receive(2, answer)
    world.ledger.receive(1, answer)


def test_signatures_of_what_was_not_asked_are_not_kept(tmp_path: Path) -> None:
    """Else a silo could fill the coordinator's memory."""
    world = World(tmp_path)
    world.run(world.play())
    for number in range(3):
        made_up = LedgerAnswer(
            run=parameters().run, lines=1, entry_hash=f"{number:064}", signature=bytes(64)
        )
        world.ledger.receive(1, made_up)
    assert not world.ledger._signatures


def test_padding_shows_a_missing_share(tmp_path: Path) -> None:
    """Three shares: in order; two where three should be: an alarm's p-value."""
    world = World(tmp_path)

    def opened(shares: int) -> Aggregate:
        total = sum(draw_share(PLAN, NoiseStream()).values for _ in range(shares))
        assert isinstance(total, np.ndarray)
        return Aggregate(
            values={"update": total},
            survivors=(1, 2, 3),
            cohort=(1, 2, 3, 4),
            parameters=parameters(),
            state_hash=bytes(32),
            public_coins=bytes(32),
        )

    fine = world.ledger.padding(opened(3))
    assert fine["noise_p"] > 1e-6
    assert fine["noise_ratio"] == pytest.approx(1.0, abs=0.12)
    missing = world.ledger.padding(opened(2))
    assert missing["noise_p"] < 1e-6
    assert share_noise_std(PLAN) > 4
