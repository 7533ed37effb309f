"""FLamby's two tabular benchmarks: every method of its tables, plain and secure, over seeds.

Source: Ogier du Terrail et al. 2022 (FLamby), results of its repository at commit edacf54d.
Setting: one initial model a seed, all silos in every round, 100 mini-batch steps each, batches
going on from round to round, changes weighted by training rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from fl.metrics import concordance_index, concordance_pairs
from fl.plan import LocalPlan, TaskPlan, TrainingPlan, Weighting
from fl.ports import NamedTensors
from fl.reproduce.arraytask import ArrayTask
from fl.reproduce.datasets import Split, heart, joined, standardized, tcga
from fl.reproduce.objectives import Cox, Logistic
from fl.reproduce.report import Claim, Line, Plot, Report, Spread, Table, agrees
from fl.reproduce.runs import Mode, followed
from fl.reproduce.session import Figures, Session, series
from fl.seeding import generator
from fl.simulation import Dropouts
from fl.update import TensorLayout
from secagg.canonical import digest, text

SECONDS_HEART: Final = {False: 110.0, True: 15.0}
SECONDS_TCGA: Final = {False: 110.0, True: 15.0}

TCGA_ROUNDS: Final = 5
TCGA_METRIC: Final = "Harrell's C-index"

_STEPS: Final = 100
_FLAMBY_SEEDS: Final = 5
_LOCAL: Final = "Local "  # and the number of the silo that trains for itself

Measure = Callable[[NamedTensors, Split], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Method:
    """One row of the table.

    Attributes:
        published: its mean and deviation.
        algorithm: in a plan, "" for what is no federated algorithm.
        rate: local learning rate.
        server_rate: η_g.
        proximal: μ.
        settings: of the algorithm.
    """

    published: tuple[float, float]
    algorithm: str = ""
    rate: float = 0.0
    server_rate: float = 1.0
    proximal: float = 0.0
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Benchmark:
    """One of the two data sets.

    Attributes:
        name: of the reproduction.
        load: reads the silos' raw rows.
        scales: whether features are standardized at each silo.
        objective: the model; Cox for survival.
        batch, rounds, passes: batch size, federated rounds, passes of pooled training.
        adam_rate: of pooled training.
        measure: a model's score on a test set.
        metric: what that is.
        methods: the table.
        most_apart: how far secure and plain may be apart in one seed, in test rows; None where
            that is printed only.
    """

    name: str
    load: Callable[[Path], list[Split]]
    scales: bool
    objective: Logistic | Cox
    batch: int
    rounds: int
    passes: int
    adam_rate: float
    measure: Measure
    metric: str
    methods: Mapping[str, _Method]
    most_apart: int | None


_MOMENTS: Final = {"beta1": 0.9, "tau": 1e-8, "initial_v": 0.0}
_DECAYING: Final = {**_MOMENTS, "beta2": 0.999}


def _right(objective: Logistic) -> Measure:
    def measure(model: NamedTensors, split: Split) -> float:
        task = ArrayTask(objective, split.test_inputs, split.test_targets)
        return task.accuracy_of(model)

    return measure


def _concordance(objective: Cox) -> Measure:
    def measure(model: NamedTensors, split: Split) -> float:
        flat = TensorLayout.of(model).flatten(model)
        events, times = split.test_targets[:, 0], split.test_targets[:, 1]
        pairs = concordance_pairs(
            times.astype(np.float64),
            events.astype(np.int64),
            objective.scores(flat, split.test_inputs).astype(np.float64),
        )
        return concordance_index(*pairs) or 0.0

    return measure


_HEART: Final = _Benchmark(
    name="flamby-heart",
    load=heart,
    scales=True,
    objective=Logistic(inputs=13),
    batch=4,
    rounds=15,
    passes=50,
    adam_rate=0.001,
    measure=_right(Logistic(inputs=13)),
    metric="accuracy",
    methods={
        "Pooled": _Method(published=(0.7353, 0.0027)),
        "FedAdagrad": _Method(
            published=(0.7314, 0.0125),
            algorithm="fedadagrad",
            rate=0.003162,
            server_rate=0.316228,
            settings=_MOMENTS,
        ),
        "FedYogi": _Method(
            published=(0.7314, 0.0125),
            algorithm="fedyogi",
            rate=0.003162,
            server_rate=0.01,
            settings=_DECAYING,
        ),
        "FedAdam": _Method(
            published=(0.7255, 0.0138),
            algorithm="fedadam",
            rate=0.01,
            server_rate=0.01,
            settings=_DECAYING,
        ),
        "Cyclic": _Method(published=(0.7180, 0.0287), rate=0.01),
        "FedAvg": _Method(published=(0.6850, 0.0283), algorithm="fedavg", rate=0.001),
        "FedProx": _Method(
            published=(0.6850, 0.0283), algorithm="fedprox", rate=0.001, proximal=0.01
        ),
        "SCAFFOLD": _Method(published=(0.6840, 0.0280), algorithm="scaffold", rate=0.001),
        "Local 0": _Method(published=(0.7221, 0.0211)),
        "Local 1": _Method(published=(0.6287, 0.0169)),
        "Local 2": _Method(published=(0.5670, 0.0579)),
        "Local 3": _Method(published=(0.6366, 0.0386)),
    },
    most_apart=1,
)

_TCGA: Final = _Benchmark(
    name="flamby-tcga",
    load=tcga,
    scales=False,
    objective=Cox(inputs=39),
    batch=8,
    rounds=TCGA_ROUNDS,
    passes=30,
    adam_rate=0.1,
    measure=_concordance(Cox(inputs=39)),
    metric=TCGA_METRIC,
    methods={
        "FedAdam": _Method(
            published=(0.8152, 0.0256),
            algorithm="fedadam",
            rate=0.01,
            server_rate=0.1,
            settings=_DECAYING,
        ),
        "FedYogi": _Method(
            published=(0.8152, 0.0256),
            algorithm="fedyogi",
            rate=0.01,
            server_rate=0.1,
            settings=_DECAYING,
        ),
        "FedAdagrad": _Method(
            published=(0.8129, 0.0048),
            algorithm="fedadagrad",
            rate=0.01,
            server_rate=1.0,
            settings=_MOMENTS,
        ),
        "FedAvg": _Method(published=(0.7319, 0.1811), algorithm="fedavg", rate=0.1),
        "FedProx": _Method(published=(0.7290, 0.1683), algorithm="fedprox", rate=0.1, proximal=0.1),
        "SCAFFOLD": _Method(published=(0.6869, 0.0360), algorithm="scaffold", rate=0.01),
        "Pooled": _Method(published=(0.6759, 0.0949)),
        "Cyclic": _Method(published=(0.6582, 0.0429), rate=0.01),
        "Local 0": _Method(published=(0.7282, 0.0378)),
        "Local 1": _Method(published=(0.7496, 0.0369)),
        "Local 2": _Method(published=(0.4977, 0.0260)),
        "Local 3": _Method(published=(0.6562, 0.0654)),
        "Local 4": _Method(published=(0.7121, 0.0320)),
        "Local 5": _Method(published=(0.6913, 0.0081)),
    },
    most_apart=None,
)


def reproduce_heart(session: Session) -> Report:
    """Reproduce the table of Fed-Heart-Disease."""
    return _reproduce(_HEART, session)


def reproduce_tcga(session: Session) -> Report:
    """Reproduce the table of Fed-TCGA-BRCA."""
    return _reproduce(_TCGA, session)


def tcga_score(silos: list[Split], seed: int, dropouts: Dropouts, mode: Mode) -> float:
    """Return FedAdagrad's C-index on Fed-TCGA-BRCA with silos that vanish."""
    method = _TCGA.methods["FedAdagrad"]
    model = _federated(_TCGA, method, silos, mode=mode, seed=seed, dropouts=dropouts)
    return float(np.mean([_TCGA.measure(model, one) for one in silos]))


def _reproduce(bench: _Benchmark, session: Session) -> Report:
    raw = bench.load(session.data)
    silos = [standardized(one) for one in raw] if bench.scales else raw
    rows = np.array([len(one.test_inputs) for one in silos])
    seeds = session.seeds(20, 3)
    lines: list[Line] = []
    claims: list[Claim] = []
    apart: list[float] = []
    for name, method in bench.methods.items():
        scores = {
            mode: [
                _accuracy_of(session, bench, name, (silos, raw), mode=mode, seed=seed)
                for seed in seeds
            ]
            for mode in (Mode if method.algorithm else (Mode.PLAIN,))
        }
        found = {
            mode: Spread.of(float(np.mean(one)) for one in runs) for mode, runs in scores.items()
        }
        published = Spread(mean=method.published[0], sd=method.published[1], count=_FLAMBY_SEEDS)
        secure, note = found.get(Mode.SECURE), ""
        if secure is not None:
            difference = np.array(scores[Mode.SECURE]) - np.array(scores[Mode.PLAIN])
            apart.append(float(np.abs(difference * rows).sum(axis=1).max()))
            note = f"secure − plain at most {np.abs(difference.mean(axis=1)).max():.4f}"
        lines.append(
            Line(label=name, published=published, plain=found[Mode.PLAIN], secure=secure, note=note)
        )
        shown = ", ".join(f"{ours.mean:.4f} {mode}" for mode, ours in found.items())
        claims.append(
            Claim(
                text=f"{name}: {shown}, within 2 sd of {published.mean:.4f}",
                holds=all(agrees(published, ours) for ours in found.values()),
            )
        )
    if bench.most_apart is not None:
        claims.append(
            Claim(
                text="secure and plain of one seed differ by at most one test patient: "
                f"{max(apart):.0f}",
                holds=max(apart) <= bench.most_apart,
            )
        )
    return Report(
        name=bench.name,
        setting=f"linear model, {len(silos)} silos, {bench.rounds} rounds of {_STEPS} steps, "
        f"batch {bench.batch}; mean over the silos' test sets",
        tables=(Table(title=f"{bench.metric} (mean ± sd, seeds)", lines=tuple(lines)),),
        claims=tuple(claims),
        plot=Plot(
            title=f"{bench.name}: FLamby's {bench.metric} and ours",
            x_label="",
            y_label=bench.metric,
        ),
    )


def _accuracy_of(
    session: Session,
    bench: _Benchmark,
    name: str,
    data: tuple[list[Split], list[Split]],
    *,
    mode: Mode,
    seed: int,
) -> list[float]:
    method = bench.methods[name]
    sizes = (bench.metric, bench.batch, bench.rounds, bench.passes, bench.adam_rate)
    of = digest("flamby", text(repr(method)), text(repr(sizes)))

    def work() -> Figures:
        return {"score": _scores(bench, name, data, mode=mode, seed=seed)}

    return series(session.figures(f"{name}-{mode}-seed{seed}".lower(), of, work), "score")


def _scores(
    bench: _Benchmark,
    name: str,
    data: tuple[list[Split], list[Split]],
    *,
    mode: Mode,
    seed: int,
) -> list[float]:
    """Return the score on each silo's test set; `data` is scaled at each silo, and raw."""
    silos, raw = data
    method = bench.methods[name]
    if name.startswith(_LOCAL):
        model = _adam(bench, silos[int(name.removeprefix(_LOCAL))], seed)
        return [bench.measure(model, one) for one in silos]
    if method.algorithm:
        model = _federated(bench, method, silos, mode=mode, seed=seed)
        return [bench.measure(model, one) for one in silos]
    if method.rate:
        model = _cyclic(bench, method, silos, seed)
        return [bench.measure(model, one) for one in silos]
    # Trained on rows scaled together, tested on each silo's rows as that silo scales them.
    pooled = standardized(joined(raw)) if bench.scales else joined(raw)
    model = _adam(bench, pooled, seed)
    return [bench.measure(model, one) for one in silos]


def _federated(
    bench: _Benchmark,
    method: _Method,
    silos: list[Split],
    *,
    mode: Mode,
    seed: int,
    dropouts: Dropouts = MappingProxyType({}),
) -> NamedTensors:
    plan = TrainingPlan(
        task=TaskPlan(name=bench.name),
        local=LocalPlan(
            local_steps=_STEPS,
            batch_size=bench.batch,
            learning_rate=method.rate,
            proximal=method.proximal,
        ),
        rounds=bench.rounds,
        max_silos=len(silos),
        algorithm=method.algorithm,
        algorithm_settings=method.settings,
        server_learning_rate=method.server_rate,
        weighting=Weighting.HIDDEN,
        n_cap=max(len(one.inputs) for one in silos),
        metrics=False,
        seed=seed,
    )
    tasks = {f"silo-{place}": one for place, one in enumerate(_tasks(bench, silos))}
    return followed(
        plan, tasks, mode, lambda _model: 0.0, every=bench.rounds, dropouts=dropouts
    ).model


def _cyclic(bench: _Benchmark, method: _Method, silos: list[Split], seed: int) -> NamedTensors:
    """Return the model that visited one silo after another, their order drawn anew each time."""
    local = LocalPlan(local_steps=_STEPS, batch_size=bench.batch, learning_rate=method.rate)
    tasks = list(_tasks(bench, silos))
    model = tasks[0].initial_model(seed)
    layout, visits = TensorLayout.of(model), [0] * len(tasks)
    order: list[int] = []
    for visit in range(bench.rounds):
        if not order:
            order = [int(one) for one in generator(seed, "order", visit).permutation(len(tasks))]
        place = order.pop()
        visits[place] += 1
        silo_seed = int(generator(seed, "silo", place).integers(2**62))
        result = tasks[place].train(model, None, local, silo_seed, visits[place])
        model = layout.unflatten(result.model_after)
    return model


def _tasks(bench: _Benchmark, silos: list[Split]) -> Iterator[ArrayTask]:
    for one in silos:
        yield ArrayTask(bench.objective, one.inputs, one.targets)


def _adam(bench: _Benchmark, table: Split, seed: int) -> NamedTensors:
    """Return the model of Adam (Kingma and Ba 2015, its defaults) on one table."""
    objective = bench.objective
    model = objective.initial(seed)
    layout = TensorLayout.of(model)
    flat = layout.flatten(model)
    first, second, step = np.zeros_like(flat), np.zeros_like(flat), 0
    rows = len(table.inputs)
    for epoch in range(bench.passes):
        order = generator(seed, "pooled", epoch).permutation(rows)
        for start in range(0, rows, bench.batch):
            chosen = order[start : start + bench.batch]
            slope = objective.gradient(flat, table.inputs[chosen], table.targets[chosen]).astype(
                np.float64, copy=False
            )
            step += 1
            first = 0.9 * first + 0.1 * slope
            second = 0.999 * second + 0.001 * slope * slope
            scale = np.sqrt(second / (1 - 0.999**step)) + 1e-8
            flat = flat - bench.adam_rate * first / (1 - 0.9**step) / scale
    return layout.unflatten(flat)
