"""Which statistics queries this silo answers, and from which table.

A query is answered from the table that this silo trains on, and only as its settings allow:
`noised`, the default, answers none without noise; `exact` both kinds, exact ones about the columns
only that `statistics_columns` names, and none of a data set with a budget, which would cost
infinitely much (privacy.md 4.5); `refuse` answers none at all.
"""

from fl.errors import QueryRefusedError
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
