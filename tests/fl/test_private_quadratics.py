"""SCAFFOLD in one noised vector (privacy.md 4.4) against FedAvg, on quadratics, under noise.

Ten silos, ten parameters, K = 5, z = 1, 50 rounds: the setting of privacy.md 10. Everything is the
service's own but the masks, which cancel.
"""

import numpy as np

from dp.plan import Adjacency, Mode, PrivacyPlan, Unit
from dp.rng import ReplayStream
from fl.algorithms import LocalWork, algorithm_of
from fl.pipeline import Decoded
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import FloatVector
from fl.privacy import as_settings, clipped_integers, decoded_sum, noise_share
from fl.run import TrainingRun
from fl.seeding import generator
from fl.state import decode_state, model_of
from fl.testing import LeastSquaresTask, pooled_solution

D, SILOS, K, ROUNDS, RATE = 10, 10, 5, 50, 0.1
NAMES = {seat: f"silo-{seat:02}" for seat in range(1, SILOS + 1)}


def quadratics() -> dict[str, LeastSquaresTask]:
    """Curvatures of 0.5 to 2, optima 0.3 apart: contributions fit C = 1, so that noise decides."""
    tasks = {}
    for seat, name in NAMES.items():
        draws = generator(3, "quadratic", seat)
        root = np.diag(np.sqrt(D * draws.uniform(0.5, 2.0, size=D) / 2))
        tasks[name] = LeastSquaresTask(root, root @ (0.3 * draws.normal(size=D)))
    return tasks


PRIVACY = PrivacyPlan(
    unit=Unit.SILO, adjacency=Adjacency.ZERO_OUT, mode=Mode.SILO, clip=1.0, z=1.0, rounds=ROUNDS,
    delta=1e-5, dimension=D, cohort_size=SILOS, denominator=float(SILOS), n_c=1, h_dp=9,
)  # fmt: skip


def distance(algorithm_name: str, seed: int) -> float:
    """Mean distance of the last ten models to the optimum."""
    plan = TrainingPlan(
        task=TaskPlan(name="fl.testing:toy_task"),
        local=LocalPlan(local_steps=K, learning_rate=RATE),
        rounds=ROUNDS,
        max_silos=SILOS,
        algorithm=algorithm_name,
        metrics=False,
        max_refreshes=0,
        privacy=as_settings(PRIVACY),
    )
    algorithm, tasks = algorithm_of(plan), quadratics()
    run = TrainingRun(plan, model={"weights": np.zeros(D)}, names=NAMES)
    kept: dict[str, FloatVector | None] = dict.fromkeys(tasks)
    optimum, distances = pooled_solution(tasks), []
    for number in range(1, ROUNDS + 1):
        run.next()
        state = decode_state(run.state, 10**6)
        model = model_of(state)
        total = np.zeros(PRIVACY.dimension + (PRIVACY.padding or 0), np.int64)
        for name, task in tasks.items():
            source = ReplayStream(f"{seed}/{number}/{name}".encode())
            share = noise_share(PRIVACY, source)
            assert share is not None
            correction = algorithm.correction(state, kept[name])
            after = task.train(model, correction, plan.local, 0, number).model_after
            start = model["weights"].astype(np.float64)
            work = LocalWork(state=state, start=start, after=after, steps=K, kept=kept[name])
            part = algorithm.parts(work)["update"]
            integers = clipped_integers(part, PRIVACY, clip_norm=1.0, weight=1.0, coins=source)
            sent = decoded_sum(integers, PRIVACY, name="update", clip_norm=1.0)
            kept[name] = algorithm.next_kept(sent, work)
            total += integers + share
        released = decoded_sum(total, PRIVACY, name="update", clip_norm=1.0)
        run.receive_decoded(Decoded(bulk=released, meta={}), tuple(NAMES))
        weights = model_of(decode_state(run.state, 10**6))["weights"]
        distances.append(float(np.linalg.norm(np.subtract(weights, optimum, dtype=np.float64))))
    return float(np.mean(distances[-10:]))


def test_scaffold_under_noise_is_no_worse_than_fedavg() -> None:
    """Under the same noise, and both far from where they would be if noise added up (5.3)."""
    for seed in (0, 1):
        fedavg, scaffold = distance("fedavg", seed), distance("scaffold", seed)
        assert scaffold <= fedavg < 0.7, (scaffold, fedavg)
