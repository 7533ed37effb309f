"""From a training plan and this silo's settings to the task that owns the data.

The silo decides which task it serves: a plan that wants another one is refused, and code is never
taken from the coordinator.
"""

from dp.plan import Unit
from fl.errors import PlanError
from fl.plan import TABULAR, TrainingPlan
from fl.ports import LocalTask
from fl.privacy import privacy_of
from services.config import SiloConfig


def build_task(plan: TrainingPlan, config: SiloConfig) -> LocalTask:
    """Load the data and check them against the plan. Imports torch only when a task trains.

    Raises:
        PlanError: the plan wants another task than this silo serves.
        SchemaError, DataError: the data do not fit; lists what does not.
    """
    if plan.task.name != config.task:
        raise PlanError(f"this silo serves task {config.task!r}, the plan asks {plan.task.name!r}")
    if config.task == TABULAR:
        from fl.training.tabular import TabularTask

        _check_unit(plan, config)
        assert config.data is not None  # SiloConfig demands it with this task
        return TabularTask.from_csv(plan.task.settings, config.data.file)
    from fl.training.custom import load_task

    both = sorted(plan.task.settings.keys() & config.settings.keys())
    if both:
        raise PlanError(
            f"settings {', '.join(both)} stand in the plan and in this silo's [settings]; "
            "what the plan fixes is not the silo's to change"
        )
    task = load_task(config.task, {**plan.task.settings, **config.settings})
    if not getattr(task, "knows_patients", False):
        _check_unit(plan, config)
    return task


def _check_unit(plan: TrainingPlan, config: SiloConfig) -> None:
    """A table's row stands for a patient only where no patient has more than one.

    Raises:
        PlanError: the silo's settings say that patients have several rows.
    """
    privacy, budget = privacy_of(plan), config.privacy
    is_of_patients = privacy is not None and privacy.unit is Unit.PATIENT
    if is_of_patients and budget is not None and budget.records_per_unit > 1:
        raise PlanError(
            f"a patient has up to {budget.records_per_unit} rows here, and this plan takes each "
            "row for a patient: it would promise too much. Plan for the unit record, which is "
            "converted, or serve an own task with unit_of"
        )
