"""Silos that vanish at random in every round bias nothing.

Own figures. In each round of a secure run a third of the silos vanish, each in a phase drawn for
it, and are back in the next. The final metric with and without is to differ by at most twice the
larger of the two standard deviations over seeds. Two data sets: FLamby's survival data, six regions
that nobody made up, two of them missing, FedAdagrad; and Fashion-MNIST, multinomial logistic
regression, FedAvg, ten silos of which three are missing.

Half of the latter's rows are sorted by label, so each round's mean leans toward the labels of
whoever is there. That is noise in proportion to the step: with a step that falls to zero (half a
cosine) it averages out, with a constant one it stays, and costs some tenths of a point, which is
more than two deviations since all seeds end alike to a tenth. Both are shown.
"""

from dataclasses import dataclass
from typing import Final

from fl.partition import by_similarity
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.reproduce.datasets import Split, images, tcga
from fl.reproduce.flamby import TCGA_METRIC, TCGA_ROUNDS, tcga_score
from fl.reproduce.images import SOFTMAX, accuracy_on, silos_of
from fl.reproduce.report import Claim, Line, Plot, Report, Spread, Table, agrees
from fl.reproduce.report import Curve as PlottedCurve
from fl.reproduce.runs import Mode, followed
from fl.reproduce.session import Session, number, series
from fl.schedules import Curve, Schedule
from fl.seeding import generator
from fl.simulation import Dropouts
from secagg.canonical import digest, text
from secagg.phases import Phase

SECONDS: Final = {False: 700.0, True: 40.0}

_SILOS: Final = 10
_GONE: Final = 3
_REGIONS_GONE: Final = 2
_ALIKE: Final = 0.5
# Whoever vanishes in one of these is not in the sum.
_PHASES: Final = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """How the step size goes on Fashion-MNIST.

    Attributes:
        label: in the report.
        key: in the files' names.
        schedule: of the local step.
        rounds, quick_rounds: of the two forms.
    """

    label: str
    key: str
    schedule: Schedule
    rounds: int
    quick_rounds: int


_FALLING: Final = _Course(
    label="step falls to zero",
    key="cosine",
    schedule=Schedule(curve=Curve.COSINE),
    rounds=100,
    quick_rounds=20,
)
_CONSTANT: Final = _Course(
    label="constant step", key="drop", schedule=Schedule(), rounds=40, quick_rounds=10
)


def reproduce(session: Session) -> Report:
    """Run with and without dropouts over seeds."""
    split = images(session.data, "fashion_mnist")
    lines, claims = [], []
    curves: list[PlottedCurve] = []
    for course in (_FALLING, _CONSTANT):
        rounds = course.quick_rounds if session.is_quick else course.rounds
        ends = {}
        for gone in (0, _GONE):
            runs = [
                _accuracy(session, split, course, rounds=rounds, gone=gone, seed=seed)
                for seed in session.seeds(5, 2)
            ]
            ends[gone] = Spread.of(one[-1] for one in runs)
            label = f"{gone / _SILOS:.0%} drop in each round"
            lines.append(Line(label=f"{course.label}, {rounds} rounds: {label}", secure=ends[gone]))
            if course is _FALLING:
                x = range(1, rounds + 1)
                curves.append(PlottedCurve.over_seeds(label, x, runs))
        claims.append(_claim(course, ends[0], ends[_GONE], is_quick=session.is_quick))
    regions = tcga(session.data)
    scores = [
        Spread.of(_score(session, regions, gone, seed) for seed in session.seeds(20, 5))
        for gone in (0, _REGIONS_GONE)
    ]
    return Report(
        name="dropouts",
        setting="Fed-TCGA-BRCA, FedAdagrad, 6 silos, as in flamby-tcga; FedAvg, Fashion-MNIST, "
        f"{_SILOS} silos {_ALIKE:.0%} alike; all through the secure sum",
        tables=(
            Table(
                title="Fed-TCGA-BRCA, C-index",
                lines=tuple(
                    Line(label=f"{gone} of 6 drop in each round", secure=score)
                    for gone, score in zip((0, _REGIONS_GONE), scores, strict=True)
                ),
            ),
            Table(title="Fashion-MNIST, test accuracy after the last round", lines=tuple(lines)),
        ),
        claims=(
            Claim(
                text="two of six dropping leave the C-index within 2 sd: "
                + _apart(scores[0], scores[1]),
                holds=agrees(scores[0], scores[1]),
            ),
            *claims,
        ),
        plot=Plot(
            title="Fashion-MNIST, ten silos: three of them missing in every round",
            x_label="round",
            y_label="test accuracy",
            curves=tuple(curves),
        ),
    )


def _claim(course: _Course, none: Spread, some: Spread, *, is_quick: bool) -> Claim:
    """Two deviations with a falling step and enough seeds; a point of accuracy otherwise."""
    found = f"{course.label}: {_apart(none, some)}"
    if course is _FALLING and not is_quick:
        return Claim(
            text=f"three of ten dropping leave the accuracy within 2 sd; {found}",
            holds=agrees(none, some),
        )
    return Claim(
        text=f"three of ten dropping cost a point of accuracy at most; {found}",
        holds=none.mean - some.mean <= 0.01,
    )


def _apart(none: Spread, some: Spread) -> str:
    widest = max(none.sd or 0.0, some.sd or 0.0)
    return f"{abs(none.mean - some.mean):.4f} apart, sd {widest:.4f}"


def _accuracy(
    session: Session, split: Split, course: _Course, *, rounds: int, gone: int, seed: int
) -> list[float]:
    plan = TrainingPlan(
        task=TaskPlan(name="dropouts"),
        local=LocalPlan(local_steps=10, batch_size=100, learning_rate=0.1),
        rounds=rounds,
        max_silos=_SILOS,
        metrics=False,
        seed=seed,
        local_schedule=course.schedule,
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

    key = f"{course.key}{gone}-rounds{rounds}-seed{seed}"
    return series(session.figures(key, plan.digest(), work), "accuracy")


def _score(session: Session, regions: list[Split], gone: int, seed: int) -> float:
    drawn = _drawn(TCGA_ROUNDS, len(regions), gone, seed)

    def work() -> dict[str, float]:
        return {"score": tcga_score(regions, seed, drawn)}

    of = digest("dropouts", text(TCGA_METRIC), text(repr(drawn)))
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
