"""What the federation's models are compared with, and by which figures.

Pooled training is what the hospitals cannot do, local-only training what they can do alone. All
models are scored on the demo's test part and by their loss on all training rows together, where
algorithms differ long after the AUC has saturated.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fl.baselines import train_alone
from fl.modelfile import ModelFile, save_model
from fl.plan import TrainingPlan
from fl.training import configure_threads
from fl.training.tabular import TabularTask
from services.demo.data import DemoData
from services.scoring import evaluate_file

POOLED: Final = "pooled training"
LOCAL: Final = "local-only, mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One line of the final table."""

    name: str
    rounds: int
    auc: float
    accuracy: float
    training_loss: float


def score(name: str, model: Path, data: DemoData, *, rounds: int) -> Score:
    """Score a model file."""
    test, training = evaluate_file(model, data.test), evaluate_file(model, data.pooled)
    return Score(
        name=name,
        rounds=rounds,
        auc=test["auc"],
        accuracy=test["accuracy"],
        training_loss=training["loss"],
    )


def baselines(plan: TrainingPlan, data: DemoData, folder: Path) -> tuple[Score, Score]:
    """Pooled training, and the mean over the hospitals that train alone; the same plan for all."""
    configure_threads(1)
    pooled = _alone(plan, data.pooled, folder / "pooled.safetensors")
    alone = [
        score(name, _alone(plan, path, folder / f"{name}.safetensors"), data, rounds=0)
        for name, path in data.hospitals.items()
    ]
    mean = Score(
        name=LOCAL,
        rounds=plan.rounds,
        auc=sum(one.auc for one in alone) / len(alone),
        accuracy=sum(one.accuracy for one in alone) / len(alone),
        training_loss=sum(one.training_loss for one in alone) / len(alone),
    )
    return score(POOLED, pooled, data, rounds=plan.rounds), mean


def _alone(plan: TrainingPlan, table: Path, path: Path) -> Path:
    trained = train_alone(TabularTask.from_csv(plan.task.settings, table), plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(
        path,
        ModelFile(
            tensors=trained.model,
            task=plan.task.name,
            settings=plan.task.settings,
            preprocess=trained.preprocess,
            plan_digest=plan.digest(),
        ),
    )
    return path
