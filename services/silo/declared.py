"""How large a silo says that its data set is at most: the only size that a plan is held against.

A plan names the most units that one silo brings. Were that number compared with the table, each run
would answer whether the table is larger, and a dozen runs with huge noise, which cost next to
nothing, would bisect its row count. So the plan is compared with `most_units`, which the silo
declares in public, before any row is read; the table is compared with `most_units` only, which no
coordinator chooses.
"""

from dp.errors import PlanError
from dp.plan import PrivacyPlan, Unit
from fl.errors import DataError
from services.config import DataSetBudget


def declared_records(settings: DataSetBudget | None) -> int | None:
    """The most rows that this silo says it has; None where it declares nothing."""
    if settings is None or settings.most_units is None:
        return None
    rows = settings.records_per_unit if Unit(settings.unit) is Unit.PATIENT else 1
    return settings.most_units * rows


def declared_units(privacy: PrivacyPlan | None, settings: DataSetBudget | None) -> int | None:
    """The most of a plan's units that this silo says it has; None where no plan counts them."""
    if privacy is None or settings is None or privacy.unit is Unit.SILO:
        return None
    return declared_records(settings) if privacy.unit is Unit.RECORD else settings.most_units


def require_declared(privacy: PrivacyPlan, settings: DataSetBudget) -> None:
    """Refuse a plan for smaller silos than this one declares to be; the data are not asked.

    Raises:
        PlanError: names the declared figure, which is public.
    """
    most, asked = declared_units(privacy, settings), privacy.max_units_per_silo
    if most is not None and asked < most:
        raise PlanError(
            f"this silo declares up to {most} units of the kind {privacy.unit} ([privacy] "
            f"most_units), the plan counts with {asked} at a silo; expected {most} or more"
        )


def require_rows(rows: int, settings: DataSetBudget | None) -> None:
    """Stop where a table has outgrown its own declaration, whatever a coordinator asked.

    Raises:
        DataError: for this silo's own log; the coordinator is told what it is told of any data
            that do not fit.
    """
    most = declared_records(settings)
    if most is not None and rows > most:
        raise DataError(
            f"this silo has more rows than the {most} that its [privacy] declares (most_units): "
            "raise it, and tell whoever plans runs, whose plans have to count with it"
        )
