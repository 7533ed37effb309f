"""From a run's settings to its plan: the document that every silo checks and pins."""

import tomllib
from pathlib import Path

from dp.plan import Adjacency
from fl.algorithms import algorithm_of
from fl.compression import CompressionPlan
from fl.errors import LearningError
from fl.models import TabularModel
from fl.participation import ParticipationPlan
from fl.plan import TABULAR, LocalPlan, TaskPlan, TrainingPlan, Weighting
from fl.privacy import as_settings
from fl.queries import CategoricalColumn, NumericColumn, StatisticsQuery
from fl.query_plan import QueryKind, QueryPlan
from fl.schedules import Curve, EarlyStop, Schedule
from fl.work import Work, WorkPlan
from services.errors import ConfigError
from services.privacy import privacy_plan
from services.query_config import Columns, QueryConfig
from services.run_config import Algorithm, RunConfig, Task
from services.run_config import Schedule as ScheduleTable
from services.settings import parse_config


def read_run(document: bytes, *, source: str) -> RunConfig | QueryConfig:
    """Read a run's settings of either kind: what names columns is a statistics run.

    Raises:
        ConfigError: as `parse_config`.
    """
    try:
        keys = tomllib.loads(document.decode()).keys()
    except ValueError:
        keys = {}.keys()  # `parse_config` says what is wrong
    if keys & Columns.model_fields.keys():
        return parse_config(document, QueryConfig, source=source, base=Path())
    return parse_config(document, RunConfig, source=source, base=Path())


def plan_of(config: RunConfig | QueryConfig, *, max_silos: int) -> TrainingPlan | QueryPlan:
    """Return the plan of a run's settings of either kind.

    Args:
        config: as the operator wrote it.
        max_silos: the most silos that can take part: the roster's.

    Raises:
        ConfigError: the settings break a rule that the plan knows.
    """
    if isinstance(config, RunConfig):
        return build_plan(config, max_silos=max_silos)
    return _query_plan(config, max_silos)


def build_plan(config: RunConfig, *, max_silos: int) -> TrainingPlan:
    """Return the training plan of a run's settings; equal settings give equal bytes.

    Args:
        config: as the operator wrote it.
        max_silos: the most silos that can take part, which sizes the ring.

    Raises:
        ConfigError: the schema or the plan knows a rule that the settings break.
    """
    algorithm = config.algorithm
    # Metrics and statistics are exact sums: under a privacy plan they are off unless asked for,
    # and then refused by name.
    asked = config.run.model_fields_set
    try:
        settings = _task_settings(config.task)
        privacy = privacy_plan(config, settings)
        is_plain = privacy is None
        standardizes = _standardizes(config.task, default=is_plain)
        _require_means(config.task, standardizes=standardizes)
        plan = TrainingPlan(
            task=TaskPlan(name=config.task.name, settings=settings),
            local=LocalPlan(
                local_steps=config.local.steps,
                batch_size=config.local.batch_size,
                learning_rate=config.local.learning_rate,
                optimizer=config.local.optimizer,
                optimizer_settings=config.local.optimizer_settings,
                proximal=config.local.proximal,
            ),
            rounds=config.run.rounds,
            max_silos=max_silos,
            algorithm=algorithm.name,
            algorithm_settings=_algorithm_settings(algorithm),
            server_learning_rate=algorithm.server_learning_rate,
            personal=algorithm.personal,
            weighting=Weighting(config.weights.kind),
            n_cap=config.weights.n_cap or 0,
            declared=config.weights.declared,
            value_bits=config.encoding.value_bits,
            first_value_bits=config.encoding.first_value_bits,
            metrics=config.run.metrics and (is_plain or "metrics" in asked),
            auc_bins=config.run.auc_bins,
            concordance=config.run.concordance,
            standardize=standardizes,
            seed=config.run.seed,
            work=WorkPlan(
                kind=Work(config.local.work),
                least=config.local.least_steps,
                steps=config.local.silo_steps,
            ),
            participation=ParticipationPlan(**dict(config.participation)),
            local_schedule=_schedule(config.local.schedule),
            server_schedule=_schedule(algorithm.schedule),
            early_stop=EarlyStop(patience=config.run.patience, least_gain=config.run.least_gain),
            compression=CompressionPlan(
                rotate=config.encoding.rotate,
                block=config.encoding.block,
                kept=config.encoding.kept,
                feedback=config.encoding.feedback,
            ),
            max_refreshes=config.run.max_refreshes if is_plain or "max_refreshes" in asked else 0,
            privacy=as_settings(privacy) if privacy else {},
        )
        algorithm_of(plan)  # refuses what does not go together, before any silo is asked
    except LearningError as error:
        raise ConfigError(f"run {config.run.name}: {error}") from error
    return plan


def build_query(columns: Columns) -> StatisticsQuery:
    """Return the query of columns.toml.

    Raises:
        ConfigError: a column is not one.
    """
    try:
        return StatisticsQuery(
            numeric=tuple(NumericColumn(**one) for one in columns.numeric),  # type: ignore[arg-type] # checked in __post_init__
            categorical=tuple(CategoricalColumn(**one) for one in columns.categorical),  # type: ignore[arg-type] # checked in __post_init__
        )
    except (LearningError, TypeError) as error:
        raise ConfigError(f"expected [[numeric]] and [[categorical]] tables: {error}") from error


def _query_plan(config: QueryConfig, max_silos: int) -> QueryPlan:
    query, noise = build_query(config), config.noise
    try:
        if noise is not None:
            return QueryPlan.private(
                query,
                max_silos=max_silos,
                silos=config.run.min_silos or max_silos,
                z=noise.z,
                delta=noise.delta,
                most_rows=noise.most_rows,
                adjacency=Adjacency(noise.adjacency),
            )
        return QueryPlan(
            kind=QueryKind.ADVISE if config.advise else QueryKind.DESCRIBE,
            query=query,
            max_silos=max_silos,
            target=config.advise.target if config.advise else "",
        )
    except LearningError as error:
        raise ConfigError(f"run {config.run.name}: {error}") from error


def warnings(config: RunConfig) -> list[str]:
    """What whoever starts a run should know of its settings (docs/adr/0010)."""
    counts = [
        ('weights.kind = "hidden"', config.weights.kind == "hidden"),
        ("run.auc_bins", config.run.auc_bins > 0),
        ("run.concordance", config.run.concordance),
    ]
    unscaled = [
        str(one.get("name"))
        for one in config.task.features
        if one.get("kind", "numeric") == "numeric" and "scale" not in one
    ]
    return [
        f"{key}: counts rows; when one silo drops out or comes back, the sums of two rounds give "
        "its own count away (SECURITY.md)"
        for key, is_asked in counts
        if is_asked
    ] + [
        f"task.features {', '.join(unscaled)}: no scale, and under a privacy plan nothing is "
        "standardized: the model sees raw numbers; name a public constant to divide them by"
    ] * (config.privacy is not None and bool(unscaled))


def _algorithm_settings(algorithm: Algorithm) -> dict[str, object]:
    option = {"option": algorithm.option} if algorithm.option else {}
    return {**algorithm.settings, **option}


def _schedule(schedule: ScheduleTable) -> Schedule:
    return Schedule(curve=Curve(schedule.curve), factor=schedule.factor, at=schedule.at)


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


def _require_means(task: Task, *, standardizes: bool) -> None:
    """Refuse blank cells that shall become a mean which no round sums."""
    names = [str(one.get("name")) for one in task.features if one.get("missing") == "mean"]
    if names and not standardizes:
        raise ConfigError(
            f'task.features {", ".join(names)}: missing = "mean" needs the means that '
            "task.standardize sums, and this run sums none (a privacy plan allows none); expected "
            'missing = "zero" or "refuse"',
            keys=("task.features",),
        )


def _standardizes(task: Task, *, default: bool) -> bool:
    return task.name == TABULAR and default if task.standardize is None else task.standardize
