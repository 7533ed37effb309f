"""Per-round evaluation from the secure sum: loss, accuracy, AUC, C-index, and the steps' norms."""

from typing import Any

import numpy as np
import pytest

from fl.errors import PlanError
from fl.metrics import auc, concordance_index, concordance_pairs
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import Metrics, NamedTensors
from fl.simulation import simulate
from fl.testing import LeastSquaresTask

DRAWS = np.random.default_rng(9)


class Scored(LeastSquaresTask):
    """Least squares that also scores its rows as class and as risk."""

    def evaluate(self, model: NamedTensors, /) -> Metrics:
        plain = super().evaluate(model)
        found = self.inputs @ model["weights"].astype(np.float64)
        labels = (self.targets > 0).astype(np.int64)
        scores = 1 / (1 + np.exp(-found))
        return Metrics(
            loss_sum=plain.loss_sum,
            correct=int(((scores > 0.5) == labels).sum()),
            examples=plain.examples,
            labels=labels,
            scores=scores,
            pairs=concordance_pairs(-self.targets, labels, found),
        )


def tasks() -> dict[str, Scored]:
    """Four silos."""
    truth = np.array([1.0, -0.5])
    made = {}
    for place in range(4):
        inputs = DRAWS.normal(size=(20 + 10 * place, 2))
        made[f"silo-{place}"] = Scored(
            inputs, inputs @ truth + 0.5 * DRAWS.normal(size=len(inputs))
        )
    return made


def plan(**changes: Any) -> TrainingPlan:
    """Four rounds with everything measured."""
    values: dict[str, Any] = {
        "task": TaskPlan(name="fl.testing:toy_task"),
        "local": LocalPlan(local_steps=2, learning_rate=0.05),
        "rounds": 4,
        "max_silos": 4,
        "weighting": "hidden",
        "n_cap": 100,
        "auc_bins": 100,
        "concordance": True,
        **changes,
    }
    return TrainingPlan(**values)


def test_all_figures_are_those_of_the_pooled_rows() -> None:
    """AUC within the bins' error, the C-index over pairs within the silos exactly."""
    made = tasks()
    models: list[Any] = [next(iter(made.values())).initial_model(0)]
    result = simulate(plan(), made, on_round=lambda _outcome, run: models.append(run.model()))
    for report, model in zip(result.reports, models, strict=False):
        measured = [task.evaluate(model) for task in made.values()]
        labels = np.concatenate([m.labels for m in measured if m.labels is not None])
        scores = np.concatenate([m.scores for m in measured if m.scores is not None])
        assert report.auc == pytest.approx(auc(labels, scores), abs=0.02)
        pairs = np.sum([m.pairs for m in measured], axis=0)
        assert report.concordance == concordance_index(*map(int, pairs))
        assert report.accuracy == sum(m.correct for m in measured) / len(labels)
        assert report.loss == pytest.approx(sum(m.loss_sum for m in measured) / len(labels))
    assert result.reports[-1].auc is not None
    assert result.reports[-1].auc > 0.8


def test_a_task_without_scores_has_none() -> None:
    """No AUC is made up."""
    made = {name: LeastSquaresTask(t.inputs, t.targets) for name, t in tasks().items()}
    (first, *_) = simulate(plan(), made).reports
    assert (first.auc, first.concordance) == (None, None)
    assert first.loss is not None


def test_norms_say_what_the_server_made_of_the_aggregate() -> None:
    """With η_g = ½ and FedAvg the effective step is ½ in every round."""
    result = simulate(plan(server_learning_rate=0.5), tasks())
    for report in result.reports:
        assert report.effective_step == pytest.approx(0.5, rel=1e-9)
        assert report.model_norm > 0
        assert report.steps["update"] > 0
    assert result.reports[0].cosine is None
    assert result.reports[1].cosine is not None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"metrics": False}, "auc_bins"),
        ({"metrics": False, "auc_bins": 0}, "metrics"),
        ({"auc_bins": 10**6}, "auc_bins"),
    ],
)
def test_they_need_metrics(changes: dict[str, Any], word: str) -> None:
    """What is not summed is not shown."""
    with pytest.raises(PlanError, match=word):
        plan(**changes)
