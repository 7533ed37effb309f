"""Least squares on ten silos with slopes of their own: FedAvg keeps its bias, SCAFFOLD loses it."""

from functools import partial
from typing import Final

import numpy as np

from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.reproduce.report import Claim, Curve, Line, Plot, Report, Spread, Table
from fl.reproduce.runs import Mode, followed
from fl.reproduce.session import Figures, Session, series
from fl.testing import least_squares_toy, pooled_solution

SECONDS: Final = {False: 160.0, True: 25.0}

_ROUNDS: Final = 200
_EARLY: Final = 60
_QUICK_SECURE: Final = 10
_ALGORITHMS: Final = ("fedavg", "scaffold")


def reproduce(session: Session) -> Report:
    """Run both algorithms over seeds, plain and secure, and on alike silos."""
    secure_rounds = _QUICK_SECURE if session.is_quick else _ROUNDS
    plain, secure, alike = {}, {}, {}
    for name in _ALGORITHMS:
        plain[name] = [_errors(session, name, seed, Mode.PLAIN) for seed in session.seeds(5, 5)]
        secure[name] = [
            _errors(session, name, seed, Mode.SECURE, rounds=secure_rounds)
            for seed in session.seeds(5, 1)[:2]
        ]
        alike[name] = _errors(session, name, 0, Mode.PLAIN, slopes=False)
    tables = [
        Table(
            title=f"Distance from the pooled solution after {rounds} rounds",
            lines=tuple(_line(name, rounds, plain[name], secure[name]) for name in _ALGORITHMS),
            digits=9,
        )
        for rounds in (_EARLY, _ROUNDS)
    ]
    steps = range(1, _ROUNDS + 1)
    curves = [
        Curve(label=name, x=steps, y=np.median(runs, axis=0).tolist())
        for name, runs in plain.items()
    ]
    return Report(
        name="toy",
        setting="10 silos, 30 points each, y = w_k x + noise, lr 0.01, 5 local steps; "
        "published: the range expected of five seeds",
        tables=tuple(tables),
        claims=_claims(plain, alike, secure, secure_rounds),
        plot=Plot(
            title="Ten least-squares silos (median of 5 seeds)",
            x_label="round",
            y_label="distance from the pooled solution",
            curves=tuple(curves),
            log_y=True,
        ),
    )


def _line(name: str, rounds: int, plain: list[list[float]], secure: list[list[float]]) -> Line:
    has_secure = len(secure[0]) >= rounds
    expected = {
        _EARLY: "expected below 0.03",
        _ROUNDS: "expected 0.0003 to 0.006" if name == "fedavg" else "expected below 1e-6",
    }
    return Line(
        label=name,
        plain=Spread.of(one[rounds - 1] for one in plain),
        secure=Spread.of(one[rounds - 1] for one in secure) if has_secure else None,
        note=expected[rounds],
    )


def _claims(
    plain: dict[str, list[list[float]]],
    alike: dict[str, list[float]],
    secure: dict[str, list[list[float]]],
    secure_rounds: int,
) -> tuple[Claim, ...]:
    early = max(one[_EARLY - 1] for runs in plain.values() for one in runs)
    fedavg = [one[-1] for one in plain["fedavg"]]
    scaffold = max(one[-1] for one in plain["scaffold"])
    gap = max(abs(a - b) for a, b in zip(alike["fedavg"], alike["scaffold"], strict=True))
    apart = max(
        abs(run[place] - plain[name][seed][place])
        for name, runs in secure.items()
        for seed, run in enumerate(runs)
        for place in range(secure_rounds)
    )
    return (
        Claim(text=f"both within 0.03 after 60 rounds: {early:.4f} at most", holds=early < 0.03),
        Claim(
            text=f"FedAvg off by 0.0003 to 0.006 after 200: {min(fedavg):.1e} to {max(fedavg):.1e}",
            holds=min(fedavg) >= 0.0003 and max(fedavg) <= 0.006,
        ),
        Claim(text=f"SCAFFOLD below 1e-6 after 200: {scaffold:.1e}", holds=scaffold < 1e-6),
        Claim(text=f"alike silos give equal curves: {gap:.1e} apart", holds=gap < 0.02),
        Claim(
            text=f"secure = plain to the quantizer over {secure_rounds} rounds: {apart:.1e} apart",
            holds=apart < 1e-4,
        ),
    )


def _errors(
    session: Session,
    name: str,
    seed: int,
    mode: Mode,
    *,
    rounds: int = _ROUNDS,
    slopes: bool = True,
) -> list[float]:
    plan = TrainingPlan(
        task=TaskPlan(name="toy"),
        local=LocalPlan(local_steps=5, learning_rate=0.01),
        rounds=rounds,
        max_silos=10,
        algorithm=name,
        metrics=False,
        seed=seed,
    )
    kind = "" if slopes else "-alike"
    key = f"{name}-{mode}{kind}-{rounds}-seed{seed}"
    work = partial(_run, plan, seed, mode, slopes=slopes)
    return series(session.figures(key, plan.digest(), work), "error")


def _run(plan: TrainingPlan, seed: int, mode: Mode, *, slopes: bool) -> Figures:
    tasks = least_squares_toy(seed, slopes=slopes)
    optimum = pooled_solution(tasks)
    errors = followed(
        plan,
        tasks,
        mode,
        lambda model: float(np.abs(model["weights"].astype(np.float64) - optimum).max()),
    )
    return {"error": errors.values}
