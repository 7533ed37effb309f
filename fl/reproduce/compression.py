"""How far an uplink shrinks: few bits, rotation and random blocks, measured through the ring.

Own figures; the papers that the compression follows have other settings. Setting: Fashion-MNIST,
the 2NN, ten silos of equal size dealt at random, FedAvg. The compressed run is secure and its bytes
are all that silos send, every round and message: packed vectors with their carry bits, keys,
shares, signatures. Beside it what one float32 for each parameter would take, vectors alone.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from fl.compression import CompressionPlan
from fl.partition import by_similarity
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.reproduce.datasets import Split, images
from fl.reproduce.images import TWO_LAYERS, accuracy_on, silos_of
from fl.reproduce.report import Claim, Curve, Line, Plot, Report, Spread, Table
from fl.reproduce.runs import Mode, followed
from fl.reproduce.session import Figures, Session, number, series

SECONDS: Final = {False: 800.0, True: 50.0}

_SILOS: Final = 10
_FULL: Final = (40, 120)  # rounds, local steps
_QUICK: Final = (20, 40)
_PARAMETERS: Final = 199_210
_FLOAT32_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """What is done to the update.

    Attributes:
        label: in the report.
        key: in the files' names.
        value_bits: of a silo's values, in the first round, too.
        compression: rotation and blocks.
    """

    label: str
    key: str
    value_bits: int
    compression: CompressionPlan


# 256 and 128 of the 779 blocks of 256 are 2¹⁶ and 2¹⁵ coordinates: rotation pads nothing.
_VARIANTS: Final = (
    _Variant(
        label="5 bits, rotated, a third of the blocks",
        key="rotated5-blocks",
        value_bits=5,
        compression=CompressionPlan(rotate=True, block=256, kept=256 / 779),
    ),
    _Variant(
        label="8 bits, rotated, a sixth of the blocks",
        key="rotated8-blocks",
        value_bits=8,
        compression=CompressionPlan(rotate=True, block=256, kept=128 / 779),
    ),
    _Variant(
        label="8 bits, rotated",
        key="rotated8",
        value_bits=8,
        compression=CompressionPlan(rotate=True),
    ),
)
_HEADLINE: Final = _VARIANTS[0]


def reproduce(session: Session) -> Report:
    """Run uncompressed sums of floats and the compressed secure runs."""
    split = images(session.data, "fashion_mnist")
    rounds, steps = _QUICK if session.is_quick else _FULL
    seeds = session.seeds(3, 1)
    plan = TrainingPlan(
        task=TaskPlan(name="compression"),
        local=LocalPlan(local_steps=steps, batch_size=50, learning_rate=0.1),
        rounds=rounds,
        max_silos=_SILOS,
        metrics=False,
    )
    figures = partial(_figures, session, split, plan)
    floats = [figures(seed, None) for seed in seeds]
    size = float(_FLOAT32_BYTES * _PARAMETERS * _SILOS * rounds)
    lines = [
        Line(
            label="float32, sums of floats",
            plain=Spread.of(series(one, "accuracy")[-1] for one in floats),
            note=f"{size / rounds / _SILOS / 1e3:.0f} kB a silo and round",
        )
    ]
    ratios: dict[str, float] = {}
    ends: dict[str, Spread] = {}
    curves = [_curve("float32", floats)]
    for variant in _VARIANTS:
        chosen = seeds if variant is _HEADLINE else seeds[:1]
        if session.is_quick and variant is not _HEADLINE:
            continue
        runs = [figures(seed, variant) for seed in chosen]
        sent = Spread.of(number(one, "bytes") for one in runs).mean
        ratios[variant.key] = size / sent
        ends[variant.key] = Spread.of(series(one, "accuracy")[-1] for one in runs)
        curves.append(_curve(variant.label, runs))
        lines.append(
            Line(
                label=variant.label,
                secure=ends[variant.key],
                note=f"{sent / rounds / _SILOS / 1e3:.1f} kB a silo and round, "
                f"{size / sent:.1f} times fewer",
            )
        )
    lost = Spread.of(series(one, "accuracy")[-1] for one in floats).mean - ends[_HEADLINE.key].mean
    return Report(
        name="compression",
        setting=f"FedAvg, 2NN ({_PARAMETERS} parameters), Fashion-MNIST, {_SILOS} silos, "
        f"{rounds} rounds of {steps} steps; control traffic counted",
        tables=(Table(title=f"Test accuracy after {rounds} rounds", lines=tuple(lines)),),
        claims=(
            Claim(
                text="uplink at least 10 times smaller than float32: "
                f"{ratios[_HEADLINE.key]:.1f} times",
                holds=ratios[_HEADLINE.key] >= 10,
            ),
            Claim(
                text=f"at most one point of accuracy lost: {100 * lost:.2f} points",
                holds=lost <= 0.01,
            ),
        ),
        plot=Plot(
            title="Fashion-MNIST, 2NN, ten silos",
            x_label="round",
            y_label="test accuracy",
            curves=tuple(curves),
        ),
    )


def _curve(label: str, runs: list[Figures]) -> Curve:
    values = [series(one, "accuracy") for one in runs]
    return Curve.over_seeds(label, range(1, len(values[0]) + 1), values)


def _figures(
    session: Session, split: Split, plan: TrainingPlan, seed: int, variant: _Variant | None
) -> Figures:
    plan = replace(plan, seed=seed)
    mode, key = Mode.PLAIN, "floats"
    if variant is not None:
        mode, key = Mode.SECURE, variant.key
        plan = replace(
            plan,
            value_bits=variant.value_bits,
            first_value_bits=variant.value_bits,
            compression=variant.compression,
        )
    work = partial(_run, plan, split, mode)
    return session.figures(f"{key}-rounds{plan.rounds}-seed{seed}", plan.digest(), work)


def _run(plan: TrainingPlan, split: Split, mode: Mode) -> Figures:
    rows = by_similarity(split.targets, _SILOS, 1.0, plan.seed)
    trace = followed(plan, silos_of(split, TWO_LAYERS, rows), mode, accuracy_on(split, TWO_LAYERS))
    return {"accuracy": trace.values, "bytes": float(trace.uplink_bytes)}
