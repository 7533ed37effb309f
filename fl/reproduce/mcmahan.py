"""FedAvg against FedSGD on MNIST: how many rounds the 2NN needs to 97 %.

Source: McMahan et al. 2017, tables 1 and 4. Setting: 100 silos of 600 rows, 10 in a round; FedAvg
with batches of 10 and one pass; curves made monotone, crossings interpolated; the step size tuned
for each cell on a seed of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from fl.participation import ParticipationPlan
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.reproduce.datasets import Split, images
from fl.reproduce.images import TWO_LAYERS, accuracy_on, silos_of
from fl.reproduce.report import Claim, Curve, Line, Plot, Report, Spread, Table
from fl.reproduce.runs import Mode, followed, rounds_to
from fl.reproduce.session import Figures, Session, series
from fl.reproduce.splits import Rows, by_shards, by_similarity

SECONDS: Final = {False: 5400.0, True: 150.0}

_TARGET: Final = 0.97
_RATIO: Final = 10
_SILOS: Final = 100
_TUNING_SEED: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One entry of the tables.

    Attributes:
        label: in the report.
        key: in the files' names.
        published: rounds.
        is_alike: whether rows are dealt at random.
        passes: whether a silo trains a pass, or gives one gradient.
        rates: to be tried.
        cap: most rounds.
        quick_cap: in the short form, 0 for leaving it out.
        every: rounds between measurements.
        seeds: at most.
    """

    label: str
    key: str
    published: float
    is_alike: bool
    passes: bool
    rates: tuple[float, ...]
    cap: int
    quick_cap: int
    every: int
    seeds: int

    def plan(self, rate: float, cap: int, seed: int) -> TrainingPlan:
        """Return the cell's plan."""
        local = LocalPlan(local_steps=60, batch_size=10, learning_rate=rate)
        if not self.passes:
            local = LocalPlan(local_steps=1, learning_rate=1.0)
        return TrainingPlan(
            task=TaskPlan(name="mcmahan-mnist"),
            local=local,
            rounds=cap,
            max_silos=_SILOS,
            algorithm="fedavg" if self.passes else "fedsgd",
            server_learning_rate=1.0 if self.passes else rate,
            metrics=False,
            seed=seed,
            participation=ParticipationPlan(sampler="uniform", fraction=0.1),
        )


_FEDAVG: Final = _Cell(
    label="FedAvg, E = 1, B = 10, IID",
    key="fedavg-iid",
    published=87,
    is_alike=True,
    passes=True,
    rates=(0.1, 0.2, 0.3),
    cap=150,
    quick_cap=60,
    every=1,
    seeds=3,
)
_FEDSGD: Final = _Cell(
    label="FedSGD, IID",
    key="fedsgd-iid",
    published=1474,
    is_alike=True,
    passes=False,
    rates=(0.3, 0.6, 1.0),
    cap=1500,
    quick_cap=60,
    every=10,
    seeds=1,
)
_SKEWED: Final = _Cell(
    label="FedAvg, E = 1, B = 10, two digits a silo",
    key="fedavg-shards",
    published=664,
    is_alike=False,
    passes=True,
    rates=(0.05, 0.1),
    cap=1000,
    quick_cap=0,
    every=2,
    seeds=1,
)


def reproduce(session: Session) -> Report:
    """Run the three cells."""
    split = images(session.data, "mnist")
    lines: list[Line] = []
    curves: dict[str, tuple[list[list[float]], int]] = {}
    for cell in (_FEDAVG, _FEDSGD, _SKEWED):
        if session.is_quick and not cell.quick_cap:
            continue
        cap = cell.quick_cap if session.is_quick else cell.cap
        rate = _tuned(session, split, cell, cap)
        seeds = session.seeds(cell.seeds, 1)[: cell.seeds]
        runs = [_curve(session, split, cell, rate=rate, cap=cap, seed=seed) for seed in seeds]
        curves[cell.key] = (runs, cap)
        lines.append(_line(cell, rate, runs, cap))
    return Report(
        name="mcmahan-mnist",
        setting="2NN on MNIST, 100 silos × 600 rows, 10 in a round, plain sums",
        tables=(Table(title="Rounds to 97 % test accuracy", lines=tuple(lines), digits=0),),
        claims=(_claim(curves),),
        plot=Plot(
            title="MNIST, 2NN: one pass of batches of 10 against one gradient a round",
            x_label="round",
            y_label="test accuracy",
            curves=tuple(
                Curve(
                    label=cell.label,
                    x=[float(cell.every * (place + 1)) for place in range(len(runs[0]))],
                    y=runs[0],
                )
                for cell in (_FEDAVG, _FEDSGD, _SKEWED)
                if cell.key in curves
                for runs in [curves[cell.key][0]]
            ),
            level=_TARGET,
        ),
    )


def _claim(curves: dict[str, tuple[list[list[float]], int]]) -> Claim:
    (ours, _), (theirs, longest) = curves[_FEDAVG.key], curves[_FEDSGD.key]
    reached = [rounds_to(one, _TARGET) for one in ours]
    done = [one for one in reached if one is not None]
    if len(done) < len(reached):
        return Claim(text="FedAvg reaches 97 %: not in every run", holds=False)
    mean = Spread.of(done).mean
    slow = rounds_to(theirs[0], _TARGET, every=_FEDSGD.every)
    if slow is None and longest < _RATIO * mean:  # the short form
        return Claim(
            text=f"FedAvg reaches 97 % after {mean:.0f} rounds, FedSGD {max(theirs[0]):.1%} "
            f"after {longest}",
            holds=longest > mean,
        )
    more = "" if slow else "more than "
    ratio = (slow or longest) / mean
    return Claim(
        text=f"FedSGD needs at least {_RATIO} times FedAvg's rounds: {more}{ratio:.1f} times "
        f"(published {_FEDSGD.published / _FEDAVG.published:.1f})",
        holds=ratio >= _RATIO,
    )


def _tuned(session: Session, split: Split, cell: _Cell, cap: int) -> float:
    """Return the rate with the fewest rounds to the target, else with the best accuracy."""
    if session.is_quick:
        return cell.rates[1]

    def order(rate: float) -> tuple[float, float]:
        values = _curve(session, split, cell, rate=rate, cap=cap, seed=_TUNING_SEED)
        return (rounds_to(values, _TARGET) or float("inf"), -max(values))

    return min(cell.rates, key=order)


def _curve(
    session: Session, split: Split, cell: _Cell, *, rate: float, cap: int, seed: int
) -> list[float]:
    plan = cell.plan(rate, cap, seed)
    key = f"{cell.key}-lr{rate}-cap{cap}-seed{seed}"
    deal: Callable[[], list[Rows]] = (
        partial(by_similarity, split.targets, _SILOS, 1.0, seed)
        if cell.is_alike
        else partial(by_shards, split.targets, _SILOS, 2, seed)
    )
    work = partial(_run, plan, split, deal, cell.every)
    return series(session.figures(key, plan.digest(), work), "accuracy")


def _run(plan: TrainingPlan, split: Split, deal: Callable[[], list[Rows]], every: int) -> Figures:
    trace = followed(
        plan,
        silos_of(split, TWO_LAYERS, deal()),
        Mode.PLAIN,
        accuracy_on(split, TWO_LAYERS),
        every=every,
        until=lambda value: value >= _TARGET,
    )
    return {"accuracy": trace.values}


def _line(cell: _Cell, rate: float, runs: list[list[float]], cap: int) -> Line:
    reached = [rounds_to(one, _TARGET, every=cell.every) for one in runs]
    done = [one for one in reached if one is not None]
    note = f"step {rate}"
    if len(done) < len(reached):
        note += f"; not in {cap} rounds, best {max(max(one) for one in runs):.4f}"
    return Line(
        label=cell.label,
        published=Spread(mean=cell.published),
        plain=Spread.of(done) if len(done) == len(reached) else None,
        note=note,
    )
