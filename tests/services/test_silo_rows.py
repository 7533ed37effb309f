"""What a coordinator learns of a silo's table by rounds that were never charged: nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from dp.plan import Adjacency
from fl.errors import (
    DataError,
    LearningError,
    LedgerRefusedError,
    NonFiniteUpdateError,
    SchemaError,
    WeightError,
)
from fl.plan import RoundKind
from fl.privacy import document_of, privacy_of
from fl.queries import CategoricalColumn, NumericColumn, StatisticsQuery
from fl.query_plan import QueryPlan
from secagg.ids import RunId
from secagg.messages import RoundOpen
from secagg.testing import SeededRng, make_federation, make_parameters
from services.config import SiloConfig
from services.ledger.parties import Party
from services.observe.logs import get_logger
from services.settings import parse_config
from services.silo.learner import Learner
from services.silo.ledger import SiloLedgers
from services.silo.node import _code, _told
from services.storage.silo import SiloStore
from tests.services.private_run import now

FEDERATION = make_federation(4)
SETTINGS = """
coordinator = "127.0.0.1:1"
directory = "keys"
storage = "storage"
[data]
file = "rows.csv"
[privacy]
data_set = "cohort"
unit = "record"
adjacency = "zero_out"
epsilon = 2.0
delta = 1e-6
persons = 60
"""
QUERY = StatisticsQuery(
    numeric=(NumericColumn(name="age", low=0, high=100, bins=4),),
    categorical=(CategoricalColumn(name="sick", categories=("0", "1")),),
)


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    """Of a silo with 123 rows and a budget."""
    rows = "".join(f"{number % 90},{number % 2}\n" for number in range(123))
    (tmp_path / "rows.csv").write_text("age,sick\n" + rows)
    config = parse_config(SETTINGS.encode(), SiloConfig, source="silo.toml", base=tmp_path)
    roster = FEDERATION.roster
    return Learner(
        config=config,
        seat=1,
        roster=roster,
        store=SiloStore(tmp_path / "storage"),
        ledgers=SiloLedgers(
            budget_settings=config.privacy,
            folder=tmp_path / "ledgers",
            party=Party(roster.seat(1).silo.name, FEDERATION.identities[1]),
            roster=lambda: roster,
            now=now,
            log=get_logger("silo"),
        ),
        rng=SeededRng(0),
        log=get_logger("silo"),
    )


def _opening(most_rows: int, query: StatisticsQuery = QUERY) -> RoundOpen:
    plan = QueryPlan.private(
        query,
        max_silos=4,
        silos=4,
        z=50.0,
        delta=1e-7,
        most_rows=most_rows,
        adjacency=Adjacency.ZERO_OUT,
    )
    privacy = privacy_of(plan)
    assert privacy is not None
    parameters = make_parameters(
        FEDERATION.roster,
        plan.spec(1),
        run=RunId(most_rows.to_bytes(16)),
        kind=RoundKind.STATISTICS.value,
        round=1,
        n_c=privacy.n_c,
        h_dp=privacy.h_dp,
        dp=document_of(plan),
        n_max=4,
        training_plan=plan.digest(),
    )
    return RoundOpen(parameters=parameters, plan=plan.document())


def test_no_answer_depends_on_the_table_before_the_ledger_allows_it(learner: Learner) -> None:
    """Bisecting the most rows, or asking for a column that is not there, gives one answer."""
    strange = replace(QUERY, numeric=(NumericColumn(name="weight", low=0, high=100, bins=4),))
    openings = [_opening(122), _opening(123), _opening(124), _opening(1000, strange)]
    answers = set()
    for message in openings:
        with pytest.raises(LearningError) as caught:
            learner.admit(message)
        answers.add((_code(caught.value), _told(caught.value)))
    assert {code for code, _ in answers} == {LedgerRefusedError.__name__}
    assert len(answers) == 1
    learner.store.close()


def test_one_code_and_one_text_for_whatever_does_not_fit() -> None:
    """Which of them it is stays in the silo's own log."""
    kinds = (DataError, NonFiniteUpdateError, SchemaError, WeightError)
    told = {(_code(kind("41 rows")), _told(kind("41 rows"))) for kind in kinds}
    assert len(told) == 1
    assert _code(LedgerRefusedError("x")) == "LedgerRefusedError"
