"""One simulated round of a hundred silos that train McMahan's 2NN, plain and secure.

The rows are noise: only the time counts. Training and evaluation are the same in both, so the
ratio is what the protocol adds when one process plays all its parties.
"""

from time import perf_counter
from typing import Final

import numpy as np

from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.reproduce.arraytask import ArrayTask
from fl.reproduce.images import TWO_LAYERS
from fl.rounds import RoundFailure, RoundReport
from fl.run import TrainingRun
from fl.seeding import generator
from fl.simulation import simulate

_ROWS: Final = 600
_ROUNDS: Final = 2  # the first one's figures hold what is done once


def measure(*, silos: int = 100) -> dict[str, object]:
    """Measure the second of two rounds, one pass in batches of 10."""
    plain, secure = _round_s(silos, secure=False), _round_s(silos, secure=True)
    return {
        "silos": silos,
        "parameters": 199_210,
        "plain_s": plain,
        "secure_s": secure,
        "secure_over_plain": secure / plain,
    }


def _round_s(silos: int, *, secure: bool) -> float:
    plan = TrainingPlan(
        task=TaskPlan(name="bench"),
        local=LocalPlan(local_steps=_ROWS // 10, batch_size=10, learning_rate=0.1),
        rounds=_ROUNDS,
        max_silos=silos,
        metrics=False,
    )
    draws = generator(0, "bench")
    inputs = draws.random((_ROWS, 784), dtype=np.float32)
    targets = draws.integers(10, size=_ROWS).astype(np.float32)
    tasks = {f"silo-{place:03}": ArrayTask(TWO_LAYERS, inputs, targets) for place in range(silos)}
    ends: list[float] = []

    def note(_outcome: RoundReport | RoundFailure, _run: TrainingRun) -> None:
        ends.append(perf_counter())

    result = simulate(plan, tasks, secure=secure, on_round=note)
    if result.reason:
        raise RuntimeError(f"the simulated run failed: {result.reason}")
    return ends[-1] - ends[-2]
