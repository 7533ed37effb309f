"""`secagg silo leave`: what the process that is started next finds in the silo's storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dp.plan import Adjacency, Mode, PrivacyPlan, Unit
from fl.memory import RunMemory
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.privacy import as_settings
from fl.queries import CategoricalColumn, StatisticsQuery
from fl.query_plan import QueryKind, QueryPlan
from secagg.ids import RunId
from services.errors import NotFoundError, NotNowError
from services.silo import learner
from services.silo.memory import StoredMemory
from services.storage.silo import SiloStore

RUN = RunId(bytes(range(16)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SiloStore]:
    """A silo's storage that holds a run of SCAFFOLD."""
    opened = SiloStore(tmp_path)
    opened.remember(RUN, {"plan": plan().document()})
    yield opened
    opened.close()


def plan(**changes: object) -> TrainingPlan:
    """Two rounds of the toy."""
    values: dict[str, object] = {
        "task": TaskPlan(name="fl.testing:toy_task"),
        "local": LocalPlan(local_steps=1, learning_rate=0.1),
        "rounds": 2,
        "max_silos": 5,
        "algorithm": "scaffold",
        **changes,
    }
    return TrainingPlan(**values)  # type: ignore[arg-type] # checked at run time


def test_the_next_contribution_is_the_last(store: SiloStore) -> None:
    """The mark is the one that a participant looks for."""
    memory = RunMemory(StoredMemory(store), RUN)
    assert not memory.is_leaving
    learner.leave(store, RUN)
    assert memory.is_leaving


def test_only_a_run_that_goes_on_can_be_left(store: SiloStore) -> None:
    """Neither one that this silo never met nor one that has ended."""
    with pytest.raises(NotFoundError, match="in no run"):
        learner.leave(store, RunId(bytes(16)))
    store.remember(RUN, {"ended": b"\x01"})
    with pytest.raises(NotFoundError, match="in no run"):
        learner.leave(store, RUN)


def test_a_statistics_run_has_no_last_contribution(store: SiloStore) -> None:
    """It keeps nothing at silos; who takes part no more has left."""
    query = StatisticsQuery(categorical=(CategoricalColumn(name="sex", categories=("f",)),))
    asked = QueryPlan(kind=QueryKind.DESCRIBE, query=query, max_silos=3)
    store.remember(RUN, {"plan": asked.document()})
    with pytest.raises(NotNowError, match="statistics run"):
        learner.leave(store, RUN)


def test_a_privacy_plan_has_no_last_contribution(store: SiloStore) -> None:
    """Its sums are noised: whoever stays away has left."""
    privacy = PrivacyPlan(
        unit=Unit.SILO,
        adjacency=Adjacency.ZERO_OUT,
        mode=Mode.SILO,
        clip=1.0,
        z=0.5,
        rounds=2,
        delta=1e-5,
        dimension=1,
        cohort_size=5,
        denominator=5.0,
        n_c=1,
        h_dp=2,
    )
    private = plan(algorithm="fedavg", metrics=False, max_refreshes=0, privacy=as_settings(privacy))
    store.remember(RUN, {"plan": private.document()})
    with pytest.raises(NotNowError, match="taking part no more"):
        learner.leave(store, RUN)
