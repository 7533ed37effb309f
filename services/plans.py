"""From a run's settings to its training plan: the document that every silo checks and pins."""

from fl.errors import LearningError
from fl.models import TabularModel
from fl.plan import TABULAR, LocalPlan, TaskPlan, TrainingPlan, Weighting
from services.config import RunConfig, Task
from services.errors import ConfigError


def build_plan(config: RunConfig, *, max_silos: int) -> TrainingPlan:
    """Return the training plan of a run's settings; equal settings give equal bytes.

    Args:
        config: as the operator wrote it.
        max_silos: the most silos that can take part, which sizes the ring.

    Raises:
        ConfigError: the schema or the plan knows a rule that the settings break.
    """
    algorithm = config.algorithm
    try:
        return TrainingPlan(
            task=TaskPlan(name=config.task.name, settings=_task_settings(config.task)),
            local=LocalPlan(
                local_steps=config.local.steps,
                batch_size=config.local.batch_size,
                learning_rate=config.local.learning_rate,
            ),
            rounds=config.run.rounds,
            max_silos=max_silos,
            algorithm=algorithm.name,
            algorithm_settings={"option": algorithm.option} if algorithm.option else {},
            server_learning_rate=algorithm.server_learning_rate,
            weighting=Weighting(config.weights.kind),
            n_cap=config.weights.n_cap or 0,
            declared=config.weights.declared,
            value_bits=config.encoding.value_bits,
            first_value_bits=config.encoding.first_value_bits,
            metrics=config.run.metrics,
            standardize=_standardizes(config.task),
            seed=config.run.seed,
        )
    except LearningError as error:
        raise ConfigError(f"run {config.run.name}: {error}") from error


def _task_settings(task: Task) -> dict[str, object]:
    if task.name != TABULAR:
        return dict(task.settings)
    # Parsed and written out again, so that what a silo is asked to agree to leaves no default open.
    return TabularModel.parse(
        {
            "schema": {"features": list(task.features), "target": task.target},
            "model": task.model,
            "hidden": list(task.hidden),
        }
    ).to_settings()


def _standardizes(task: Task) -> bool:
    return task.name == TABULAR if task.standardize is None else task.standardize
