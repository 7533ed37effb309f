"""Rehearsals in which canaries measure how much noise there really is (privacy.md 8).

Virtual units whose whole change is a canary, a secret vector of norm C, take part in a simulated
run beside units that change nothing: silos where the unit is the silo, else records or patients of
three silos. They go through the very code of a run: clip, grid, share, masks, sum, decode. How well
the released sums still point at the canaries bounds epsilon from below. A rehearsal costs no
budget, because no patient is in it.

Where a plan samples its units (q < 1), the one-run audit samples them, too, by the plan's own code,
and holds its bound against what the accountant claims for sampled releases; the same sums tell how
often a canary took part. The cosine audit takes every unit in every round: it measures noise alone,
since no bound from cosines is known for sampled ones.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dp.accountant import epsilon
from dp.audit import (
    AuditFigure,
    canaries,
    commitment,
    cosine_bound,
    cosines,
    each_of,
    inclusion,
    mean_bound,
    one_run_bound,
    one_run_guesses,
)
from dp.closed_form import gaussian_epsilon
from dp.events import PoissonGaussianEvent
from dp.plan import Mode, Participation, PrivacyPlan, Unit, Weights
from dp.rng import NoiseSource
from fl.errors import PlanError, RunStateError
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.ports import (
    FeatureMoments,
    FloatVector,
    LocalResult,
    LocalTask,
    Metrics,
    NamedTensors,
    Tensor,
)
from fl.privacy import UNIT_MODES, as_settings
from fl.rounds import RunStatus
from fl.simulation import simulate

# A task of the unit modes: a silo whose units move the model by these vectors, shape (units, d).
UnitTask = Callable[[NDArray[np.float64]], LocalTask]

_MODEL: Final = "model"
# dp.unit_data refuses fewer units in a silo.
_LEAST_UNITS: Final = 30
_LEAST_SILOS: Final = 3
_MOST_SILOS: Final = 200
# Cosine and one-run; where units are sampled, their rate is a third.
_METHODS: Final = 2
# Part of the canaries that a one-run audit guesses about, fixed before looking.
_GUESSED: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What to rehearse.

    Attributes:
        privacy: the plan whose noise is measured.
        dimension: d of the rehearsal's model; far more than canaries.
        count: k canaries.
        rounds: releases that are summed; at most the plan's.
        seed: 32 secret bytes; commit to them before the rehearsal, open them after it.
        unit_task: makes a silo of canary units, in the modes fedsgd, patient and isrl
            (`fl.training.canaries`).
    """

    privacy: PrivacyPlan
    dimension: int
    count: int
    rounds: int
    seed: bytes
    unit_task: UnitTask | None = None

    def __post_init__(self) -> None:
        """Refuse what would measure nothing."""
        if self.privacy.adaptive:
            raise PlanError("a rehearsal measures plans with a fixed clip norm")
        if self.is_of_units and self.unit_task is None:
            raise PlanError(f"mode {self.privacy.mode}: expected a task of canary units")
        if not 1 <= self.count <= _MOST_SILOS - _LEAST_SILOS or self.dimension < 10 * self.count:
            raise PlanError(
                f"canaries: expected 1 to {_MOST_SILOS - _LEAST_SILOS}, and a dimension of ten "
                "times as many at least"
            )
        if not 1 <= self.rounds <= self.privacy.rounds:
            raise PlanError(f"rounds: expected 1 to the plan's {self.privacy.rounds}")

    @property
    def commitment(self) -> bytes:
        """What is written down before the rehearsal."""
        return commitment(self.seed)

    @property
    def is_of_units(self) -> bool:
        """Whether canaries are units within silos."""
        return self.privacy.mode in UNIT_MODES

    @property
    def silos(self) -> int:
        """Where the unit is the silo: canaries, and silos that change nothing."""
        return _LEAST_SILOS if self.is_of_units else self.count + _LEAST_SILOS

    @property
    def units_per_silo(self) -> int:
        """Canaries of one silo, filled up with units that change nothing."""
        return max(-(-self.count // _LEAST_SILOS), _LEAST_UNITS) if self.is_of_units else 1

    @property
    def releases(self) -> int:
        """How often a canary is released: in isrl in every local step."""
        steps = self.privacy.local_steps if self.privacy.mode is Mode.ISRL else 1
        return self.rounds * steps

    @property
    def shares(self) -> tuple[int, int]:
        """n_c and h_dp: a third of the others may collude, as the silos' default policy has it."""
        if not self.privacy.is_ring:
            return 0, 0
        colluding = max((self.silos - 1) // 3, 1)
        return colluding, self.silos - colluding

    @property
    def is_sampled(self) -> bool:
        """Whether the plan takes only some of its units into a release."""
        return self.is_of_units and self.privacy.q < 1.0

    @property
    def confidence(self) -> float:
        """Of each method's bound, so that all of them together hold with 95 %."""
        return each_of(_METHODS + self.is_sampled)

    @property
    def z(self) -> float:
        """Of one release of the rehearsal, with every share honest."""
        _, honest = self.shares
        excess = self.silos / honest if honest else 1.0
        if self.privacy.mode is Mode.ISRL:
            excess = float(self.silos)  # every silo adds all of the noise
        return self.privacy.z * math.sqrt(excess)

    @property
    def claimed(self) -> float:
        """Epsilon of so many releases in which every unit takes part, at the plan's delta."""
        return gaussian_epsilon(math.sqrt(self.releases) / self.z, self.privacy.delta)

    @property
    def claimed_sampled(self) -> float:
        """Epsilon of so many releases as the plan samples them, by the enforced accountant."""
        if not self.is_sampled:
            return self.claimed
        release = PoissonGaussianEvent(q=self.privacy.q, z=self.z, count=self.releases)
        return epsilon([release], self.privacy.delta, method="rdp").eps


def canary_audit(
    rehearsal: Rehearsal, *, noise: Callable[[str], NoiseSource] | None = None
) -> AuditFigure:
    """Let all canaries take part, and read epsilon off their cosines (privacy.md 8.1).

    Args:
        rehearsal: what to rehearse.
        noise: another source of noise, to see that the audit finds it out.
    """
    vectors = _vectors(rehearsal)
    released = _released(rehearsal, vectors, noise, is_sampled=False)
    scores = cosines(vectors, released)
    delta, confidence = rehearsal.privacy.delta, rehearsal.confidence
    estimate, lower = cosine_bound(scores, rehearsal.dimension, delta, confidence=confidence)
    return AuditFigure(estimate=estimate, lower=lower, claimed=rehearsal.claimed)


def one_run_audit(
    rehearsal: Rehearsal, *, noise: Callable[[str], NoiseSource] | None = None
) -> Mapping[str, AuditFigure]:
    """Let each canary take part by a coin, and guess which did: a bound with proof (8.2).

    Under a plan that samples, canaries are sampled as its units are; then a second figure says how
    often those that take part were in a release.

    Returns:
        "one-run", an epsilon; "sampling", a rate, if the plan samples.
    """
    vectors = _vectors(rehearsal)
    included = inclusion(rehearsal.seed, rehearsal.count)
    released = _released(rehearsal, vectors * included[:, None], noise, is_sampled=True)
    guesses = max(2, 2 * round(_GUESSED * rehearsal.count / 2))
    right = one_run_guesses(cosines(vectors, released), included, guesses)
    delta, confidence = rehearsal.privacy.delta, rehearsal.confidence
    lower = one_run_bound(rehearsal.count, guesses, right, delta, confidence=confidence)
    found = {"one-run": AuditFigure(estimate=lower, lower=lower, claimed=rehearsal.claimed_sampled)}
    if rehearsal.is_sampled and np.count_nonzero(included) > 1:
        # Its part of the sum is C a release; what else is in it has mean 0 along a canary.
        taken = vectors[included] @ released / (rehearsal.privacy.clip**2 * rehearsal.releases)
        estimate, least = mean_bound(taken, confidence=confidence)
        found["sampling"] = AuditFigure(
            estimate=max(estimate, 0.0), lower=max(least, 0.0), claimed=rehearsal.privacy.q
        )
    return found


def _vectors(rehearsal: Rehearsal) -> NDArray[np.float64]:
    return canaries(rehearsal.seed, rehearsal.count, rehearsal.dimension, rehearsal.privacy.clip)


def _released(
    rehearsal: Rehearsal,
    vectors: NDArray[np.float64],
    noise: Callable[[str], NoiseSource] | None,
    *,
    is_sampled: bool,
) -> FloatVector:
    """Return the sum of all released sums, noise included."""
    q = rehearsal.privacy.q if is_sampled and rehearsal.is_sampled else 1.0
    result = simulate(_plan(rehearsal, q), _tasks(rehearsal, vectors), noise=noise)
    if result.status is not RunStatus.COMPLETED:
        raise RunStateError(f"the rehearsal failed: {result.reason}")
    (model,) = result.model().values()  # every task's model starts at zero
    return model.astype(np.float64).ravel()


def _tasks(rehearsal: Rehearsal, vectors: NDArray[np.float64]) -> Mapping[str, LocalTask]:
    """Silos that hold the canaries."""
    if rehearsal.unit_task is not None and rehearsal.is_of_units:
        held = np.zeros((_LEAST_SILOS * rehearsal.units_per_silo, rehearsal.dimension))
        held[: len(vectors)] = vectors
        groups = np.split(held, _LEAST_SILOS)
        make = rehearsal.unit_task
        return {f"silo-{place}": make(group) for place, group in enumerate(groups)}
    still = [np.zeros(rehearsal.dimension)] * _LEAST_SILOS
    return {f"silo-{place:03}": _Fixed(one) for place, one in enumerate((*vectors, *still))}


def _plan(rehearsal: Rehearsal, q: float) -> TrainingPlan:
    """The run's plan with the rehearsal's sizes, its units sampled at this rate."""
    silos, mode = rehearsal.silos, rehearsal.privacy.mode
    privacy = replace(
        rehearsal.privacy,
        unit=rehearsal.privacy.unit if rehearsal.is_of_units else Unit.SILO,
        q=q,
        participation=Participation.ALL if q == 1.0 else Participation.POISSON,
        metrics=None,
        max_units_per_silo=rehearsal.units_per_silo,
        max_silos_per_unit=1,
        weights=Weights.UNIFORM,
        max_weight=1.0,
        rounds=rehearsal.rounds,
        dimension=rehearsal.dimension,
        segments=(),
        cohort_size=silos,
        denominator=1.0,
        n_c=rehearsal.shares[0],
        h_dp=rehearsal.shares[1],
        grid_bound=None,
        padding=None,
        allow_low_utility=True,
    )
    # A unit's gradient is its canary, a patient's K-th part of it; isrl divides by its units.
    rate = {
        Mode.PATIENT: 1.0 / privacy.local_steps,
        Mode.ISRL: q * rehearsal.units_per_silo,
    }.get(mode, 1.0)
    steps = privacy.local_steps if rehearsal.is_of_units else 1
    return TrainingPlan(
        task=TaskPlan(name="fl.rehearsal:canaries"),
        algorithm="fedsgd" if mode is Mode.FEDSGD else "fedavg",
        local=LocalPlan(local_steps=steps, learning_rate=rate),
        rounds=rehearsal.rounds,
        max_silos=silos,
        metrics=False,
        max_refreshes=0,
        privacy=as_settings(privacy),
    )


class _Fixed:
    """A task that changes the model by the same vector in every round."""

    n_examples: Final = 1

    def __init__(self, vector: FloatVector) -> None:
        self._vector = vector

    def initial_model(self, _seed: int, /) -> dict[str, Tensor]:
        return {_MODEL: np.zeros(len(self._vector))}

    def statistics(self) -> FeatureMoments:
        none = np.zeros(0)
        return FeatureMoments(names=(), counts=none.astype(np.int64), sums=none, squares=none)

    def prepare(self, _preprocess: Mapping[str, FloatVector], /) -> None:
        pass

    def train(
        self,
        model: NamedTensors,
        _correction: FloatVector | None,
        _local: LocalPlan,
        _seed: int,
        _round_number: int,
        /,
    ) -> LocalResult:
        return LocalResult(model_after=model[_MODEL].astype(np.float64) + self._vector, steps=1)

    def gradient(self, _model: NamedTensors, /) -> FloatVector:
        return -self._vector

    def evaluate(self, _model: NamedTensors, /) -> Metrics:
        return Metrics(loss_sum=0.0, correct=0, examples=1)
