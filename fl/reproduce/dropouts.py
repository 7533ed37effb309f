"""Silos that vanish at random in every round bias nothing.

Own figures. In each round of a run a third of the silos vanish, each in a phase drawn for
it, and are back in the next. The final metric with and without is to differ by at most twice the
larger of the two standard deviations over seeds. Two data sets: FLamby's survival data, six regions
that nobody made up, two of them missing, FedAdagrad; and Fashion-MNIST, multinomial logistic
regression, FedAvg, ten silos of which three are missing.

Half of the latter's rows are sorted by label, so each round's mean leans toward the labels of
whoever is there. That is noise in proportion to the step: with a step that falls to zero (half a
cosine) it averages out, with a constant one it stays, and costs some tenths of a point, which is
more than two deviations since all seeds end alike to a tenth. Both are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
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

SECONDS: Final = {False: 300.0, True: 40.0}

_SILOS: Final = 10
_GONE: Final = 3
_REGIONS_GONE: Final = 2
_ALIKE: Final = 0.5
# Whoever vanishes in one of these is not in the sum.
_SUFFIX: Final = {Mode.PLAIN: "-plain", Mode.SECURE: ""}
_PHASES: Final = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """How the step size goes on Fashion-MNIST.

    Attributes:
        label: in the report.
        key: in the files' names.
        schedule: of the local step.
        rounds, quick_rounds: of the two forms.
        secure: seeds that run through the secure sum, too.
    """

    label: str
    key: str
    schedule: Schedule
    rounds: int
    quick_rounds: int
    secure: int


_FALLING: Final = _Course(
    label="step falls to zero",
    key="cosine",
    schedule=Schedule(curve=Curve.COSINE),
    rounds=100,
    quick_rounds=20,
    secure=2,
)
_CONSTANT: Final = _Course(
    label="constant step", key="drop", schedule=Schedule(), rounds=40, quick_rounds=10, secure=5
)


def reproduce(session: Session) -> Report:
    """Run with and without dropouts over seeds."""
    split = images(session.data, "fashion_mnist")
    lines, claims = [], []
    curves: list[PlottedCurve] = []
    for course in (_FALLING, _CONSTANT):
        rounds = course.quick_rounds if session.is_quick else course.rounds
        ends = []
        for gone in (0, _GONE):
            curve = partial(_accuracy, session, split, course, rounds=rounds, gone=gone)
            runs = [curve(seed=seed) for seed in session.seeds(5, 2)]
            secure = [
                curve(seed=seed, mode=Mode.SECURE) for seed in session.seeds(course.secure, 1)
            ]
            label = f"{gone / _SILOS:.0%} drop in each round"
            last = [one[-1] for one in runs]
            ends.append(Spread.of(last))
            title = f"{course.label}, {rounds} rounds: {label}"
            lines.append(_line(title, last, [one[-1] for one in secure]))
            if course is _FALLING:
                x = range(1, rounds + 1)
                curves.append(PlottedCurve.over_seeds(label, x, runs))
        claims.append(_claim(course, ends[0], ends[1], is_quick=session.is_quick))
    regions = tcga(session.data)
    score = partial(_score, session, regions)
    natural, scores = [], []
    for gone in (0, _REGIONS_GONE):
        plain = [score(gone, seed) for seed in session.seeds(20, 5)]
        secured = [score(gone, seed, mode=Mode.SECURE) for seed in session.seeds(5, 1)]
        natural.append(_line(f"{gone} of 6 drop in each round", plain, secured))
        scores.append(Spread.of(plain))
    return Report(
        name="dropouts",
        setting="Fed-TCGA-BRCA, FedAdagrad, 6 silos, as in flamby-tcga; FedAvg, Fashion-MNIST, "
        f"{_SILOS} silos {_ALIKE:.0%} alike",
        tables=(
            Table(title=f"Fed-TCGA-BRCA, {TCGA_METRIC}", lines=tuple(natural)),
            Table(title="Fashion-MNIST, test accuracy after the last round", lines=tuple(lines)),
        ),
        claims=(
            Claim(
                text=f"two of six dropping leave the C-index as it is: {_apart(*scores)}",
                holds=agrees(*scores),
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


def _line(label: str, plain: Sequence[float], secure: Sequence[float]) -> Line:
    apart = max(abs(a - b) for a, b in zip(plain, secure, strict=False))
    return Line(
        label=label,
        plain=Spread.of(plain),
        secure=Spread.of(secure),
        note=f"secure − plain of a seed at most {apart:.4f}",
    )


def _claim(course: _Course, none: Spread, some: Spread, *, is_quick: bool) -> Claim:
    """Two deviations with a falling step and enough seeds; a point of accuracy otherwise.

    A constant step is known not to stay within two deviations; whether it does is printed.
    """
    found = f"{course.label}: {_apart(none, some)}"
    if course is _FALLING and not is_quick:
        return Claim(
            text=f"three of ten dropping leave the accuracy as it is; {found}",
            holds=agrees(none, some),
        )
    return Claim(
        text=f"three of ten dropping cost a point of accuracy at most; {found}",
        holds=none.mean - some.mean <= 0.01,
    )


def _apart(none: Spread, some: Spread) -> str:
    widest = max(none.sd or 0.0, some.sd or 0.0)
    verdict = "within" if agrees(none, some) else "NOT within"
    return f"{abs(none.mean - some.mean):.4f} apart, sd {widest:.4f}, {verdict} 2 sd"


def _accuracy(
    session: Session,
    split: Split,
    course: _Course,
    *,
    rounds: int,
    gone: int,
    seed: int,
    mode: Mode = Mode.PLAIN,
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
            mode,
            accuracy_on(split, SOFTMAX),
            dropouts=_drawn(rounds, _SILOS, gone, seed),
        )
        return {"accuracy": trace.values}

    key = f"{course.key}{gone}-rounds{rounds}-seed{seed}{_SUFFIX[mode]}"
    return series(session.figures(key, plan.digest(), work), "accuracy")


def _score(
    session: Session, regions: list[Split], gone: int, seed: int, *, mode: Mode = Mode.PLAIN
) -> float:
    drawn = _drawn(TCGA_ROUNDS, len(regions), gone, seed)

    def work() -> dict[str, float]:
        return {"score": tcga_score(regions, seed, drawn, mode)}

    of = digest("dropouts", text(TCGA_METRIC), text(repr(drawn)))
    return number(session.figures(f"tcga-drop{gone}-seed{seed}{_SUFFIX[mode]}", of, work), "score")


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
