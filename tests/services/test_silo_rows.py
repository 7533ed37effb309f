"""What a coordinator learns of how many rows a silo has, charged or not: nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dp.charges import ChargeState
from dp.entries import Signature
from dp.plan import Adjacency
from dp.verify import verify_ledger
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
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.messages import RoundOpen
from secagg.testing import SeededRng, make_federation, make_parameters
from services.config import SiloConfig
from services.ledger.messages import LedgerAnswer, LedgerNotice
from services.ledger.parties import COORDINATOR, Party, public_keys
from services.ledger.proofs import smallest_cohort
from services.ledger.run_book import RunBook, run_account
from services.observe.logs import get_logger
from services.settings import parse_config
from services.silo.data_set import data_set_path
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
persons = 150
most_units = {most}
"""
ROWS, DECLARED = 123, 200
# Around the row count, and around what is declared.
PROBES = (122, 123, 124, 199, 200, 201)
TIME = "2026-11-30T12:00:00Z"
QUERY = StatisticsQuery(
    numeric=(NumericColumn(name="age", low=0, high=100, bins=4),),
    categorical=(CategoricalColumn(name="sick", categories=("0", "1")),),
)


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Learner]:
    """Of a silo with fewer rows than it declares, and a budget."""
    made = make_learner(tmp_path, DECLARED)
    yield made
    made.store.close()


def make_learner(folder: Path, declared: int, *, settings: str = SETTINGS) -> Learner:
    """Of a silo with ROWS rows and a budget."""
    rows = "".join(f"{number % 90},{number % 2}\n" for number in range(ROWS))
    (folder / "rows.csv").write_text("age,sick\n" + rows)
    text = settings.format(most=declared).encode()
    config = parse_config(text, SiloConfig, source="silo.toml", base=folder)
    roster = FEDERATION.roster
    return Learner(
        config=config,
        seat=1,
        roster=roster,
        store=SiloStore(folder / "storage"),
        ledgers=SiloLedgers(
            budget_settings=config.privacy,
            folder=folder / "ledgers",
            party=Party(roster.seat(1).silo.name, FEDERATION.identities[1]),
            roster=lambda: roster,
            now=now,
            log=get_logger("silo"),
            agreed=lambda _: None,
        ),
        rng=SeededRng(0),
        log=get_logger("silo"),
    )


def _opening(most_rows: int, query: StatisticsQuery = QUERY) -> RoundOpen:
    plan = QueryPlan.private(
        query,
        max_silos=4,
        silos=4,
        z=1000.0,
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
    openings = [_opening(DECLARED + most) for most in (0, 1)] + [_opening(1000, strange)]
    answers = set()
    for message in openings:
        with pytest.raises(LearningError) as caught:
            learner.admit(message)
        answers.add((_code(caught.value), _told(caught.value)))
    assert {code for code, _ in answers} == {LedgerRefusedError.__name__}
    assert len(answers) == 1


def committed(learner: Learner, message: RoundOpen, folder: Path) -> LedgerAnswer:
    """Have the four silos sign the plan and charge its round, as a coordinator does."""
    plan = QueryPlan.parse(message.plan)
    privacy, parameters = privacy_of(plan), message.parameters
    assert privacy is not None
    roster, least = FEDERATION.roster, smallest_cohort(parameters)
    names = [one.silo.name for one in roster.seats]
    book = RunBook(folder, parameters.run, Party(COORDINATOR, FEDERATION.coordinator), privacy)
    book.begin(
        keys=public_keys(roster),
        account=run_account(privacy, "a run"),
        software={},
        policy="",
        time_utc=TIME,
    )
    draft = book.draft_plan(
        silos=names,
        n_c=parameters.n_c,
        threshold=parameters.threshold(least),
        floor=parameters.floor(least),
        manifest=b"m",
        time_utc=TIME,
    )

    def notice(line: bytes = b"") -> LedgerNotice:
        lines = tuple(book.lines(0))
        return LedgerNotice(run=parameters.run, first=0, lines=lines, heads=(), draft=line)

    answer = learner.ledgers.receive(notice(draft.to_line()))
    if answer.code:
        return answer
    signed = [Signature(signer=names[0], sig=answer.signature.hex())]
    for name, seat in zip(names[1:], (2, 3, 4), strict=True):
        signed += draft.signed_by(Party(name, FEDERATION.identities[seat])).sigs[-1:]
    book.append(draft, signed, public_keys(roster))
    book.charge(1, 0, time_utc=TIME)
    return learner.ledgers.receive(notice())


def _probe(learner: Learner, message: RoundOpen, folder: Path) -> tuple[str, str]:
    """What a coordinator is told that follows every rule, signs and charges."""
    answer = committed(learner, message, folder / message.parameters.run.hex)
    if answer.code:
        return answer.code, answer.reason
    try:
        learner.admit(message)
    except LearningError as error:
        return _code(error), _told(error)
    learner.ledgers.charge(message.parameters, QueryPlan.parse(message.plan))
    return "accepted", ""


def test_a_plan_is_held_against_what_is_declared_and_never_against_the_table(
    learner: Learner, tmp_path: Path
) -> None:
    """No answer changes at the row count, however many runs with huge noise ask for it."""
    found = {most: _probe(learner, _opening(most), tmp_path) for most in PROBES}
    assert {most for most, (code, _) in found.items() if code == "accepted"} == {200, 201}
    refused = {reason.replace(str(most), "N") for most, (_, reason) in found.items() if most < 200}
    assert len(refused) == 1
    assert "declares up to 200" in refused.pop()


def test_a_silo_that_outgrew_what_it_declares_gives_one_answer_to_all(tmp_path: Path) -> None:
    """It stops itself; what it says does not depend on what a plan counts with."""
    learner = make_learner(tmp_path, ROWS - 1)
    found = [_probe(learner, _opening(most), tmp_path) for most in (122, 123, 124, 500)]
    assert len(set(found)) == 1
    assert found[0][0] == DataError.__name__
    assert not learner.ledgers.budget.charges  # type: ignore[union-attr] # its settings have one
    learner.store.close()


def test_one_code_and_one_text_for_whatever_does_not_fit() -> None:
    """Which of them it is stays in the silo's own log."""
    kinds = (DataError, NonFiniteUpdateError, SchemaError, WeightError)
    told = {(_code(kind("41 rows")), _told(kind("41 rows"))) for kind in kinds}
    assert len(told) == 1
    assert _code(LedgerRefusedError("x")) == "LedgerRefusedError"


def test_a_converted_charge_is_settled_as_it_was_planned(tmp_path: Path) -> None:
    """Records booked on patients at twice their cost: the auditor finds an honest ledger right."""
    pytest.importorskip("dp_accounting")
    settings = SETTINGS.replace('"record"', '"patient"') + "records_per_unit = 2\n"
    learner = make_learner(tmp_path, DECLARED, settings=settings)
    message = _opening(2 * DECLARED)
    assert _probe(learner, message, tmp_path) == ("accepted", "")
    parameters, plan = message.parameters, QueryPlan.parse(message.plan)
    everybody = tuple(seat.index for seat in FEDERATION.roster.seats)
    aggregate = Aggregate(
        values={}, survivors=everybody, cohort=everybody, parameters=parameters, state_hash=b""
    )
    learner.ledgers.settle(aggregate, plan)
    assert learner.ledgers.budget is not None
    (charge,) = learner.ledgers.budget.charges
    assert charge.state is ChargeState.SETTLED
    lines = data_set_path(tmp_path / "ledgers", "cohort").read_bytes().splitlines()
    assert verify_ledger(lines, public_keys(FEDERATION.roster)).findings.items == []
    learner.store.close()
