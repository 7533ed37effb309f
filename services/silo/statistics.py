"""Which statistics this silo gives, asked by a query or summed for a training run's own use.

A query is answered from the table that this silo trains on, and only as its settings allow:
`noised`, the default, answers none without noise; `exact` both kinds, exact ones about the columns
only that `statistics_columns` names, and none of a data set with a budget, which would cost
infinitely much (privacy.md 4.5); `refuse` answers none at all. The moments that a training run
without a privacy plan standardizes with are exact sums like any other, and fall under the same
rule.
"""

from fl.errors import QueryRefusedError
from fl.models import TabularModel
from fl.plan import TABULAR, TrainingPlan
from fl.queries import Columns, StatisticsQuery, read_table
from fl.query_plan import QueryKind, QueryPlan
from services.config import SiloConfig


def check_query(plan: QueryPlan, config: SiloConfig) -> None:
    """Refuse a query that this silo's settings do not allow, before any row is read.

    Raises:
        QueryRefusedError: names the rule, and what can be asked instead.
    """
    rule = config.policy.statistics
    if rule == "refuse":
        raise QueryRefusedError(
            "policy rule statistics = refuse: this silo answers no statistics queries"
        )
    allowed = config.policy.statistics_columns
    if allowed is not None and (others := sorted(set(plan.query.names) - set(allowed))):
        raise QueryRefusedError(
            f"policy rule statistics_columns: expected only {', '.join(allowed) or 'none'}, the "
            f"query names {', '.join(others)}"
        )
    if plan.privacy:
        return  # whether there is a budget, and whether it allows this, its ledger says
    if rule == "noised":
        why = "policy rule statistics = noised (this is the default)"
    elif config.privacy is not None:
        why = "this silo's data set has a privacy budget"
    elif allowed is None:
        raise QueryRefusedError(
            "policy rule statistics_columns: exact sums only of columns that this silo names, and "
            "it names none"
        )
    else:
        return
    instead = "--z, --delta, --adjacency and --most-rows"
    if plan.kind is QueryKind.ADVISE:
        raise QueryRefusedError(
            f"{why}, and advise asks exact sums; describe with noise instead: {instead}"
        )
    raise QueryRefusedError(f"{why}; ask with noise: {instead}")


def check_moments(plan: TrainingPlan, config: SiloConfig) -> None:
    """Refuse a plan that standardizes with exact sums that this silo does not give.

    Raises:
        QueryRefusedError: names the rule, and what both sides can do.
    """
    if not plan.standardize:
        return
    if plan.task.name != TABULAR:
        raise QueryRefusedError("the plan standardizes, and this silo's own task has no table")
    policy, schema = config.policy, TabularModel.parse(plan.task.settings).schema
    names = [one.name for one in schema.numeric]
    if policy.statistics != "exact":
        why = f"policy rule statistics = {policy.statistics}"
    elif others := sorted(set(names) - set(policy.statistics_columns or ())):
        why = f"policy rule statistics_columns: it does not name {', '.join(others)}"
    else:
        return
    raise QueryRefusedError(
        f"{why}, and the plan standardizes (task.standardize) by exact counts, means and variances "
        "of its numeric features: this silo may allow them (statistics = exact, with these "
        "features among statistics_columns), or the run sets standardize = false and scales by "
        "public numbers"
    )


def query_table(query: StatisticsQuery, config: SiloConfig) -> Columns:
    """Return this silo's columns of a query.

    Raises:
        QueryRefusedError: it serves an own task, which has no table.
        SchemaError, DataError: the table does not fit; lists what does not.
    """
    if config.data is None:
        raise QueryRefusedError(
            f"this silo serves task {config.task!r}, whose data are not a table of [data]"
        )
    return read_table(query, config.data.file)
