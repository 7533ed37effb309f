"""Silos that vanish at random in every round cost little accuracy and bias nothing.

Own figures. In each round of a secure run a third of the silos vanish, each in a phase drawn for
it, and are back in the next. Two settings: FLamby's survival data, six regions that nobody made up,
two of them missing, FedAdagrad; and Fashion-MNIST, multinomial logistic regression, FedAvg, ten
silos of which three are missing. Half of the latter's rows are sorted by label, and all seeds end
alike to a tenth of a point, so that there the cost of averaging over fewer silos can be seen.
"""

from typing import Final

import numpy as np

from fl.partition import by_similarity
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.reproduce.datasets import Split, images, tcga
from fl.reproduce.flamby import TCGA_ROUNDS, tcga_score
from fl.reproduce.images import SOFTMAX, accuracy_on, silos_of
from fl.reproduce.report import Claim, Curve, Line, Plot, Report, Spread, Table
from fl.reproduce.runs import Mode, followed
from fl.reproduce.session import Session, number, series
from fl.seeding import generator
from fl.simulation import Dropouts
from secagg.canonical import digest, text
from secagg.phases import Phase

SECONDS: Final = {False: 180.0, True: 30.0}

_SILOS: Final = 10
_ROUNDS: Final = 40
_QUICK_ROUNDS: Final = 10
_GONE: Final = 3
_REGIONS_GONE: Final = 2
_ALIKE: Final = 0.5
# Whoever vanishes in one of these is not in the sum.
_PHASES: Final = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK)
_LAST: Final = 5  # a curve's end is its mean over so many rounds


def reproduce(session: Session) -> Report:
    """Run with and without dropouts over seeds."""
    split = images(session.data, "fashion_mnist")
    rounds = _QUICK_ROUNDS if session.is_quick else _ROUNDS
    ends: dict[int, Spread] = {}
    curves = []
    for gone in (0, _GONE):
        runs = [_accuracy(session, split, rounds, gone, seed) for seed in session.seeds(5, 2)]
        ends[gone] = Spread.of(float(np.mean(one[-_LAST:])) for one in runs)
        label = f"{gone / _SILOS:.0%} drop in each round"
        curves.append(Curve.over_seeds(label, range(1, rounds + 1), runs))
    regions = tcga(session.data)
    scores = {
        gone: Spread.of(_score(session, regions, gone, seed) for seed in session.seeds(20, 5))
        for gone in (0, _REGIONS_GONE)
    }
    difference = abs(scores[0].mean - scores[_REGIONS_GONE].mean)
    widest = max(one.sd or 0.0 for one in scores.values())
    cost = ends[0].mean - ends[_GONE].mean
    return Report(
        name="dropouts",
        setting="Fed-TCGA-BRCA, FedAdagrad, 6 silos, as in flamby-tcga; FedAvg, Fashion-MNIST, "
        f"{_SILOS} silos {_ALIKE:.0%} alike, {rounds} rounds; all through the secure sum",
        tables=(
            Table(
                title="Fed-TCGA-BRCA, C-index",
                lines=tuple(
                    Line(label=f"{gone} of 6 drop in each round", secure=score)
                    for gone, score in scores.items()
                ),
            ),
            Table(
                title=f"Fashion-MNIST, test accuracy, mean of the last {_LAST} rounds",
                lines=tuple(
                    Line(label=curve.label, secure=end)
                    for curve, end in zip(curves, ends.values(), strict=True)
                ),
            ),
        ),
        claims=(
            Claim(
                text="two of six dropping leave the C-index within 2 sd: "
                f"{difference:.4f} apart, sd {widest:.4f}",
                holds=difference <= 2 * widest,
            ),
            Claim(
                text=f"three of ten dropping cost a point of accuracy at most: {cost:.4f}",
                holds=cost <= 0.01,
            ),
        ),
        plot=Plot(
            title="Fashion-MNIST, ten silos: three of them missing in every round",
            x_label="round",
            y_label="test accuracy",
            curves=tuple(curves),
        ),
    )


def _accuracy(session: Session, split: Split, rounds: int, gone: int, seed: int) -> list[float]:
    plan = TrainingPlan(
        task=TaskPlan(name="dropouts"),
        local=LocalPlan(local_steps=10, batch_size=100, learning_rate=0.1),
        rounds=rounds,
        max_silos=_SILOS,
        metrics=False,
        seed=seed,
    )

    def work() -> dict[str, list[float]]:
        rows = by_similarity(split.targets, _SILOS, _ALIKE, seed)
        trace = followed(
            plan,
            silos_of(split, SOFTMAX, rows),
            Mode.SECURE,
            accuracy_on(split, SOFTMAX),
            dropouts=_drawn(rounds, _SILOS, gone, seed),
        )
        return {"accuracy": trace.values}

    key = f"drop{gone}-rounds{rounds}-seed{seed}"
    return series(session.figures(key, plan.digest(), work), "accuracy")


def _score(session: Session, regions: list[Split], gone: int, seed: int) -> float:
    drawn = _drawn(TCGA_ROUNDS, len(regions), gone, seed)

    def work() -> dict[str, float]:
        return {"score": tcga_score(regions, seed, drawn)}

    of = digest("dropouts", text(repr(drawn)))
    return number(session.figures(f"tcga-drop{gone}-seed{seed}", of, work), "score")


def _drawn(rounds: int, silos: int, gone: int, seed: int) -> Dropouts:
    """Return who vanishes in each round, and when."""
    found: dict[int, dict[int, Phase]] = {}
    for place in range(1, rounds + 1):
        draws = generator(seed, "dropouts", place)
        seats = draws.permutation(silos)[:gone]
        phases = draws.integers(len(_PHASES), size=gone)
        found[place] = {
            int(seat) + 1: _PHASES[int(phase)] for seat, phase in zip(seats, phases, strict=True)
        }
    return found
