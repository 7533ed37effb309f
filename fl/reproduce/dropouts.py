"""Silos that vanish at random in every round cost little accuracy and bias nothing.

Own figures. Setting: Fashion-MNIST, multinomial logistic regression, ten silos, half of whose rows
are sorted by label, FedAvg through the secure sum; in each round three of them vanish, each in a
phase drawn for it, and are back in the next.
"""

from typing import Final

import numpy as np

from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.reproduce.datasets import Split, images
from fl.reproduce.images import SOFTMAX, accuracy_on, silos_of
from fl.reproduce.report import Claim, Curve, Line, Plot, Report, Spread, Table
from fl.reproduce.runs import Mode, followed
from fl.reproduce.session import Session, series
from fl.reproduce.splits import by_similarity
from fl.seeding import generator
from fl.simulation import Dropouts
from secagg.phases import Phase

SECONDS: Final = {False: 120.0, True: 15.0}

_SILOS: Final = 10
_ROUNDS: Final = 40
_QUICK_ROUNDS: Final = 10
_GONE: Final = 3
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
    difference = abs(ends[0].mean - ends[_GONE].mean)
    widest = max(one.sd or 0.0 for one in ends.values())
    return Report(
        name="dropouts",
        setting=f"FedAvg, Fashion-MNIST, {_SILOS} silos {_ALIKE:.0%} alike, "
        f"{rounds} rounds through the secure sum",
        tables=(
            Table(
                title=f"Test accuracy, mean of the last {_LAST} rounds",
                lines=tuple(
                    Line(label=curve.label, secure=end)
                    for curve, end in zip(curves, ends.values(), strict=True)
                ),
            ),
        ),
        claims=(
            Claim(
                text=f"30 % dropping leaves the accuracy within 2 sd: {difference:.4f} apart, "
                f"sd {widest:.4f}",
                holds=difference <= 2 * widest,
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
            dropouts=_drawn(rounds, gone, seed),
        )
        return {"accuracy": trace.values}

    key = f"drop{gone}-rounds{rounds}-seed{seed}"
    return series(session.figures(key, plan.digest(), work), "accuracy")


def _drawn(rounds: int, gone: int, seed: int) -> Dropouts:
    """Return who vanishes in each round, and when."""
    found: dict[int, dict[int, Phase]] = {}
    for number in range(1, rounds + 1):
        draws = generator(seed, "dropouts", number)
        seats = draws.permutation(_SILOS)[:gone]
        phases = draws.integers(len(_PHASES), size=gone)
        found[number] = {
            int(seat) + 1: _PHASES[int(phase)] for seat, phase in zip(seats, phases, strict=True)
        }
    return found
