"""A silo's part in a private statistics query: its table, and its data set charged beforehand.

Each silo's budget is looked at before any is charged; a query that one of them refuses costs nobody
anything. A release outside rounds is charged and settled at once, as METRIC_RELEASE.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dp.account import Intent, intent_for
from dp.budget import Deny
from dp.commitments import plan_commit_body
from dp.errors import BudgetExceededError, PrivacyError
from dp.plan import PrivacyPlan
from fl.errors import BudgetExhaustedError, LedgerRefusedError
from fl.queries import Columns, StatisticsQuery
from fl.survey import read_table
from secagg.ids import RunId
from services.clock import utc_now
from services.config import SiloConfig
from services.errors import ConfigError
from services.ledger.parties import load_party, stamp
from services.security.credentials import load_credentials
from services.security.identity import Role
from services.silo.data_set import DataSet
from services.silo.ledger import LEDGERS

PURPOSE: Final = "statistics"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSilo:
    """One silo that a query asks.

    Attributes:
        name: in the federation.
        table: its columns.
        data_set: what is charged; None for a data set without a budget.
    """

    name: str
    table: Columns
    data_set: DataSet | None


def asked_silo(config: SiloConfig, query: StatisticsQuery) -> AskedSilo:
    """Read a silo's table and open its budget.

    Raises:
        ConfigError: the silo trains an own task, which has no table.
        LedgerRefusedError: the budget's settings contradict its ledger.
    """
    if config.data is None:
        raise ConfigError("a statistics query needs a silo with [data], a table")
    identity = load_credentials(config.directory, role=Role.SILO, now=utc_now()).identity
    data_set = None
    if config.privacy is not None:
        try:
            data_set = DataSet(
                settings=config.privacy,
                copies=config.storage / LEDGERS,
                party=load_party(config.directory, identity.name),
                stamp=lambda: stamp(utc_now()),
            )
        except PrivacyError as error:
            raise LedgerRefusedError(f"{identity.name}: {error}") from error
    table = read_table(query, config.data.file)
    return AskedSilo(name=identity.name, table=table, data_set=data_set)


def require_no_budget(silos: Sequence[AskedSilo]) -> None:
    """Refuse exact sums of a data set that has a budget: they would cost infinitely much.

    Raises:
        LedgerRefusedError: names the silo.
    """
    for one in silos:
        if one.data_set is not None:
            raise LedgerRefusedError(
                f"{one.name}: its data set has a privacy budget; ask with noise: --z, --delta, "
                "--adjacency and --most-rows"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuery:
    """A query for the ledgers.

    Attributes:
        query_id: its own, as a run has one.
        digest: SHA-256 of its document, in hex.
    """

    query_id: RunId
    digest: str


def charge_query(silos: Sequence[AskedSilo], plan: PrivacyPlan, query: AskedQuery) -> None:
    """Charge every silo that has a budget, or none.

    Args:
        silos: whom the query asks; each has a budget.
        plan: of the query.
        query: which one.

    Raises:
        BudgetExhaustedError: it would pass a limit; nothing was charged.
        LedgerRefusedError: a silo has no budget to charge, or none that knows such a release.
    """
    charges: list[tuple[DataSet, Intent]] = []
    for one in silos:
        if one.data_set is None:
            raise LedgerRefusedError(f"{one.name}: expected a data set to charge, [privacy]")
        budget, now = one.data_set.budget, one.data_set.stamp()
        try:
            intent = intent_for(
                plan,
                run_id=query.query_id.hex,
                round_number=0,
                purpose=PURPOSE,
                epsilon=budget.account.epsilon,
            )
            decision = budget.check(intent, time_utc=now)
        except PrivacyError as error:
            raise LedgerRefusedError(f"{one.name}: {error}") from error
        if isinstance(decision, Deny):
            raise BudgetExhaustedError(f"{one.name}: {decision.reason}")
        charges.append((one.data_set, intent))
    names, floor = sorted(one.name for one in silos), plan.n_c + plan.h_dp
    body = plan_commit_body(plan, silos=names, threshold=floor, floor=floor, manifest=query.digest)
    for data_set, intent in charges:
        data_set.commit(body, query.query_id.hex)
        try:
            data_set.budget.charge(intent, time_utc=data_set.stamp(), metric=True)
        except BudgetExceededError as error:  # another process was faster
            raise BudgetExhaustedError(str(error)) from error
