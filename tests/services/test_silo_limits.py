"""What a coordinator can make a silo keep, and what it can slip in beside a message."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fl.errors import SpecMismatchError
from fl.pipeline import vector_spec
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.state import encode_state
from fl.step import initial_state
from fl.testing import toy_task
from secagg.ids import AttemptId, RunId
from secagg.journal import SiloHistory
from secagg.messages import STATE, SUM, RoundOpen, StateNotice, model_hash
from secagg.policy import SiloPolicy
from secagg.silo import SiloRound
from secagg.testing import SeededRng, make_federation, make_parameters
from services.config import Policy, SiloConfig
from services.errors import InvalidRequestError
from services.observe.logs import get_logger
from services.silo.learner import Learner
from services.silo.ledger import SiloLedgers
from services.silo.node import SiloNode
from services.storage.silo import SiloStore
from services.wire.calls import ProtocolEnvelope, VectorId, VectorReference

ATTEMPT = AttemptId(run=RunId(bytes(range(16))), round=3, attempt=0)
FEDERATION = make_federation(5)
PLAN = TrainingPlan(
    task=TaskPlan(name="fl.testing:toy_task"),
    local=LocalPlan(local_steps=1, learning_rate=0.1),
    rounds=2,
    max_silos=5,
)


def _nothing(*_: object) -> None:
    """No data set has a budget here."""


def _learner(
    store: SiloStore, folder: Path, *, first_states: tuple[str, ...] | None = None
) -> Learner:
    settings = SiloConfig(
        coordinator="127.0.0.1:8443",
        directory=folder,
        storage=folder,
        task="fl.testing:toy_task",
        policy=Policy(first_states=first_states),
    )
    return Learner(
        config=settings,
        seat=1,
        roster=FEDERATION.roster,
        store=store,
        ledgers=cast("SiloLedgers", SimpleNamespace(check_round=_nothing, charge=_nothing)),
        rng=SeededRng(1),
        log=get_logger("silo"),
    )


def _opening(plan: TrainingPlan, run: RunId, number: int = 1) -> RoundOpen:
    size = sum(value.size for value in toy_task({}).initial_model(0).values())
    parameters = make_parameters(
        FEDERATION.roster,
        vector_spec(plan, number, size),
        run=run,
        round=number,
        training_plan=plan.digest(),
        n_max=5,
    )
    return RoundOpen(parameters=parameters, plan=plan.document())


def test_a_policy_s_pin_lets_a_run_begin_with_another_model(tmp_path: Path) -> None:
    """Without it the refusal names what to pin."""
    run, first = RunId(bytes(16)), toy_task({}).initial_model(0)
    other = {name: part + 1 for name, part in first.items()}
    state, parameters = (
        encode_state(initial_state(PLAN, other, (1,))),
        _opening(PLAN, run).parameters,
    )
    pin = model_hash("training", state).hex()
    for pins, folder in ((None, "plain"), ((pin,), "pinned")):
        store = SiloStore(tmp_path / folder)
        learner = _learner(store, tmp_path, first_states=pins)
        learner.admit(_opening(PLAN, run))
        if pins:
            assert learner.train(parameters, state, bytes(32))
        else:
            with pytest.raises(SpecMismatchError, match=f"first_states: {pin}"):
                learner.train(parameters, state, bytes(32))
        store.close()


def test_the_tables_of_two_runs_are_kept_however_many_are_opened(tmp_path: Path) -> None:
    """Whether a run is over is the coordinator's word alone."""
    store = SiloStore(tmp_path / "store")
    learner = _learner(store, tmp_path)
    for number in range(5):
        learner.admit(_opening(PLAN, RunId(number.to_bytes(16, "big"))))
    assert [run.hex[-1] for run in learner._participants] == ["3", "4"]
    store.close()


@pytest.mark.parametrize("since", ["nothing", "a restart", "two runs", "the end"])
def test_a_run_keeps_the_plan_that_it_began_with(tmp_path: Path, since: str) -> None:
    """What an operator has looked at is what is trained, whatever was forgotten meanwhile."""
    store = SiloStore(tmp_path / "store")
    learner = _learner(store, tmp_path)
    learner.admit(_opening(PLAN, ATTEMPT.run))
    match since:
        case "a restart":
            learner = _learner(store, tmp_path)
        case "two runs":
            for number in (1, 2):
                learner.admit(_opening(PLAN, RunId(bytes([number]) * 16)))
        case "the end":
            learner.end(ATTEMPT.run)
        case _:
            assert since == "nothing"
    with pytest.raises(SpecMismatchError, match="another plan than the run began with"):
        learner.admit(_opening(replace(PLAN, metrics=not PLAN.metrics), ATTEMPT.run, 2))
    learner.admit(_opening(PLAN, ATTEMPT.run, 2))
    store.close()


def _state(name: str, attempt: AttemptId = ATTEMPT) -> ProtocolEnvelope:
    message = StateNotice(setup=bytes(32), model_hash=bytes(32), nbytes=5, signature=bytes(64))
    vector = VectorId(run=attempt.run, round=attempt.round, attempt=attempt.attempt, name=name)
    return ProtocolEnvelope(
        run=ATTEMPT.run,
        round=ATTEMPT.round,
        attempt=ATTEMPT.attempt,
        message=message.encode(),
        vectors=(VectorReference(vector=vector, chunks=1, nbytes=5),),
    )


def test_a_message_comes_with_its_own_vectors_only() -> None:
    """Nothing is appended to a state that was checked before."""
    node = cast("SiloNode", SimpleNamespace(policy=SiloPolicy()))
    SiloNode._opened(node, _state(STATE), ATTEMPT)
    other = AttemptId(run=ATTEMPT.run, round=2, attempt=0)
    for envelope in (_state(SUM), _state("masked"), _state(STATE, other)):
        with pytest.raises(InvalidRequestError, match="does not come with"):
            SiloNode._opened(node, envelope, ATTEMPT)


def test_few_promises_are_made_about_runs_that_never_reached_this_silo() -> None:
    """Each would stay in its journal for good; a run that it knows may count on it."""
    node = SimpleNamespace(runs={ATTEMPT.run}, _strange_promises=0)
    strange = AttemptId(run=RunId(bytes(16)), round=1, attempt=0)
    promise = partial(SiloNode._may_promise, cast("SiloNode", node))
    promised = [promise(strange) for _ in range(50)]
    assert promised[0]
    assert not promised[-1]
    assert promise(ATTEMPT)


def test_an_attempt_s_silo_knows_whom_its_cohort_may_hold(tmp_path: Path) -> None:
    """What the ledger allows reaches the protocol, which refuses any other U1."""
    federation = make_federation(3)
    node = SimpleNamespace(
        seat=1,
        identity=federation.identities[1],
        greeting=SimpleNamespace(roster=federation.roster),
        policy=SiloPolicy(),
        history=SiloHistory(),
        rng=SeededRng(0),
        _folder=lambda _: tmp_path,
        _make_driver=lambda _, protocol, store: (store.close(), protocol)[1],
    )
    made = SiloNode._begin(cast("SiloNode", node), ATTEMPT, frozenset({1, 2}))
    assert cast("SiloRound", made)._members == frozenset({1, 2})
