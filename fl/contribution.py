"""What one silo adds to a round's sum of reals: its task's work on the received state.

Nothing here is quantized, compressed or sent yet; fl.participant does that, and checks the round.

A refresh leaves the model, so the next round would sum over the same one. The silos of the refresh
have c_k = their gradient there, and Δc_k = 0 or nearly so: a silo that joins with c_k = 0, or
leaves with −c_k, would be the sum; a second refresh with other silos would differ from the first
by one silo's gradient. So at that model nobody joins, leaves or is renewed again.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from dp.plan import Mode
from dp.rng import NoiseSource, NoiseStream
from fl.algorithms import VARIATE_DELTA, LocalWork, algorithm_of
from fl.errors import RenewedError, SpecMismatchError
from fl.memory import ERROR, KEPT, LEFT, MOVED, PERSONAL, SEEN, Kept, RunMemory
from fl.personal import Division
from fl.pipeline import (
    MEMBERS,
    VARIATE,
    WEIGHT,
    Compressors,
    IntVector,
    metric_values,
    usage_name,
    with_usage,
)
from fl.plan import RoundKind, TrainingPlan, Weighting
from fl.ports import FloatVector, LocalTask, Metrics, NamedTensors, Tensor
from fl.privacy import (
    METRIC_SUMS,
    UNIT_MODES,
    PrivateStep,
    PrivateTask,
    local_denominator,
    privacy_of,
)
from fl.reals import real_values
from fl.seeding import derive_seed
from fl.state import (
    State,
    is_renewed,
    last_round_of,
    model_of,
    personal_of,
    preprocess_of,
    ranges_of,
    trained_of,
)
from fl.statistics import moment_values
from fl.update import summed
from fl.weights import capped_examples, check_examples, silo_weight
from fl.work import public_steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contribution:
    """What a silo adds to a sum of reals, and what it keeps if it is counted in.

    Attributes:
        parts: bulk segments, weighted, in the model's coordinates.
        meta: the exact integers.
        scalars: the algorithm's real numbers, weighted.
        weight: w_k.
        metrics: at the received model, where the plan asks for them.
        work: what the algorithm had in hand; None in a round that trains nothing.
        keeps: by name, as in fl.memory.
    """

    parts: Mapping[str, FloatVector]
    meta: Mapping[str, IntVector]
    scalars: Mapping[str, FloatVector]
    weight: float = 1.0
    metrics: Metrics | None = None
    work: LocalWork | None = None
    keeps: State

    def values(
        self, sent: Mapping[str, FloatVector], ranges: Mapping[str, float]
    ) -> dict[str, IntVector]:
        """Return the meta values, with how what is sent fills its ranges.

        A silo that leaves has left only if all of −c_k fits. Otherwise it sends what does, stays
        for another round, and its saturation widens the range.
        """
        values = with_usage(sent, self.meta, ranges)
        if LEFT in self.keeps and any(values[usage_name(name)][0] for name in sent):
            del self.keeps[LEFT]
            values[MEMBERS] = values[MEMBERS] + 1
        return values


class Contributor:
    """A silo's task, data and memory, asked for the contribution to a round.

    Args:
        plan: the run's.
        silo: the silo's name.
        seat: its seat.
        task: its model and data.
        memory: what it keeps of the run.
        division: of the task's model into what is shared and what stays.
        own_steps: round number to K_k, where the plan leaves that to the silo.
        noise: gives a fresh source of noise for each attempt.
        least_change: share of the own last counted update by which a model must have moved since.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        *,
        silo: str,
        seat: int,
        task: LocalTask,
        memory: RunMemory,
        division: Division,
        own_steps: Callable[[int], int] | None,
        noise: Callable[[], NoiseSource],
        least_change: float,
    ) -> None:
        self._plan = plan
        self._algorithm = algorithm_of(plan)
        self._privacy = privacy_of(plan)
        self._silo = silo
        self._seat = seat
        self._task = task
        self._memory = memory
        self._division = division
        self._layout = division.shared
        self._own_steps = own_steps
        self._noise = noise
        self._least_change = least_change

    def made(self, number: int, state: State, *, is_refresh: bool) -> Contribution:
        """Return the contribution to any round.

        Raises:
            RenewedError: variates were renewed at this model, and this input would stand out.
        """
        if self._plan.kind_of(number) is RoundKind.STATISTICS:
            check_examples(self._task.n_examples)
            moments = moment_values(self._task.statistics(), self._plan.max_silos)
            return Contribution(parts={}, meta=moments, scalars={}, keeps={})
        weight = silo_weight(self._plan, self._silo, self._task.n_examples)
        if is_refresh:
            return self._renewed(state, weight)
        if trained_of(state) >= self._plan.rounds:
            raise SpecMismatchError(f"the plan's {self._plan.rounds} training rounds are done")
        counted = last_round_of(state, self._seat)
        traits = self._algorithm.traits(number)
        kept = self._memory.reconciled(counted, strict=traits.has_variate)
        self._memory.require_member()
        meta: dict[str, IntVector] = self._weight_value()
        keeps: State = {}
        if traits.has_variate:
            joins = counted is None or LEFT in kept.tensors
            renewed = is_renewed(state)
            if joins and renewed:
                raise RenewedError(
                    "control variates were renewed at this very model without this silo, whose "
                    "gradient would stand alone in the sum; it takes part after the next sum"
                )
            leaves = self._memory.is_leaving and not renewed
            meta[MEMBERS] = np.array([joins - leaves], dtype=np.int64)
            if leaves:
                keeps[LEFT] = np.array(1, dtype=np.uint8)
        self._require_change(state, kept)
        full = self.full_model(state, kept)
        self._task.prepare(preprocess_of(state))
        metrics = self._task.evaluate(full) if self._needs_metrics or traits.loss else None
        meta.update(self._noised_metrics(number, state))
        if metrics is not None and self._plan.metrics:
            meta.update(metric_values(self._plan, metrics))
        work = self._worked(number, state, full=full, kept=kept, metrics=metrics, keeps=keeps)
        keeps |= self._seen(work)
        parts = {name: weight * part for name, part in self._algorithm.parts(work).items()}
        scalars = {name: parts.pop(name) for name in traits.scalars}
        for name, number_k in scalars.items():
            meta.update(real_values(name, number_k, self._plan.max_silos))
        for part in parts.values():
            self._layout.check_finite(part)
        return Contribution(
            parts=parts,
            meta=meta,
            scalars=scalars,
            weight=weight,
            metrics=metrics,
            work=work,
            keeps=keeps,
        )

    def _seen(self, work: LocalWork) -> State:
        """Return what `_require_change` compares with, if this update is counted."""
        if not self._least_change:
            return {}
        return {SEEN: work.start, MOVED: np.array(np.linalg.norm(work.change))}

    def _require_change(self, state: State, kept: Kept) -> None:
        """Refuse a model that has hardly moved since this silo's last counted update.

        Security: its inputs to both rounds would be alike, and two sums over other survivors differ
        by it (docs/protocol.md 12). Whether it refuses tells how large its own update was, roughly.

        Raises:
            SpecMismatchError: names the rule.
        """
        seen = kept.vector(SEEN)
        if not self._least_change or seen is None:
            return
        moved = np.linalg.norm(self._layout.flatten(summed(model_of(state))) - seen)
        if moved < self._least_change * float(kept.tensors[MOVED][()]):
            raise SpecMismatchError(
                f"policy rule least_change: expected a model that has moved by at least "
                f"{self._least_change:g} of this silo's own last counted update since then, and it "
                "has moved by less; the run may have learned all it can, or stop it"
            )

    def _worked(
        self,
        number: int,
        state: State,
        *,
        full: NamedTensors,
        kept: Kept,
        metrics: Metrics | None,
        keeps: State,
    ) -> LocalWork:
        """Return what the silo has in hand after this round's local work.

        A silo that leaves does not train: a mean gradient of zero, which its steps would have had
        with y = x − Kη (c − c_k), makes Δc_k = −c_k under both options.
        """
        traits, variate = self._algorithm.traits(number), kept.vector(KEPT)
        start = self._layout.flatten(summed(model_of(state)))
        correction = self._algorithm.correction(state, variate)
        work = LocalWork(
            state=state,
            start=start,
            after=start,
            steps=0,
            loss=metrics.loss_sum / metrics.examples if metrics else None,
            kept=variate,
        )
        if LEFT in keeps:
            assert correction is not None  # an algorithm with variates corrects
            path = self._plan.local.local_steps * self._plan.local_rate(trained_of(state))
            nothing = np.zeros(len(start)) if traits.gradient else None
            return replace(work, after=start - path * correction, gradient=nothing)
        if traits.gradient:
            gradient = self._division.shared_of(self._task.gradient(full))
            work = replace(work, gradient=gradient)
        if not traits.trains:
            return work
        after, steps = self._local_training(number, state, full, correction)
        if self._plan.personal:
            keeps[PERSONAL] = self._division.personal_of(after)
        return replace(work, after=self._division.shared_of(after), steps=steps)

    def _local_training(
        self, number: int, state: State, full: NamedTensors, correction: FloatVector | None
    ) -> tuple[FloatVector, int]:
        """Return y over all parameters, and K_k."""
        plan, silo = self._plan, self._silo
        if self._privacy is not None and self._privacy.mode is Mode.ISRL:
            with self.fresh_noise() as source:
                after = self.task_step(number, state, correction, source)
            return after.astype(np.float64, copy=False), plan.local.local_steps
        public = public_steps(plan, silo, number)
        most = plan.local.local_steps if public is None else public
        if public is None and self._own_steps is not None:
            most = min(max(self._own_steps(number), 1), most)
        rate = plan.local_rate(trained_of(state))
        result = self._task.train(
            full,
            self._division.widened(correction),
            replace(plan.local, local_steps=most, learning_rate=rate),
            derive_seed(plan.seed, "local", silo),
            number,
        )
        if result.steps != public and not (public is None and 1 <= result.steps <= most):
            raise SpecMismatchError(
                f"local training took {result.steps} steps; the plan "
                + (f"allows 1 to {most}" if public is None else f"fixes {public} for this silo")
            )
        self._division.all.check_finite(result.model_after)
        return result.model_after, result.steps

    def _renewed(self, state: State, weight: float) -> Contribution:
        """Return c_k by option I at the current x, for a refresh round."""
        self._memory.require_member()
        if is_renewed(state):
            raise RenewedError(
                "control variates were renewed at this very model: a second refresh with other "
                "silos would tell one silo's gradient; a training round has to come first"
            )
        full = self.full_model(state, self._memory.settled())
        self._task.prepare(preprocess_of(state))
        gradient = self._division.shared_of(self._task.gradient(full))
        self._layout.check_finite(gradient)
        return Contribution(
            parts={VARIATE: weight * gradient},
            meta=self._weight_value(),
            scalars={},
            weight=weight,
            keeps={
                name: tensor
                for name, tensor in self._memory.settled().tensors.items()
                if name not in (KEPT, LEFT)
            },
        )

    @property
    def _needs_metrics(self) -> bool:
        """Whether the silo's own sums go into the release, exact or as one unit's."""
        privacy = self._privacy
        if privacy is None:
            return self._plan.metrics
        return privacy.metrics is not None and privacy.mode not in UNIT_MODES

    def _noised_metrics(self, number: int, state: State) -> dict[str, IntVector]:
        """Return isrl's two integers, noised in this silo; nothing where the plan has none."""
        privacy = self._privacy
        if privacy is None or privacy.metrics is None or privacy.mode is not Mode.ISRL:
            return {}
        with self.fresh_noise() as source:
            step = self._private_step(number, state, None, source)
            found = cast("PrivateTask", self._task).measure_private(model_of(state), step)
        return {METRIC_SUMS: found}

    def _weight_value(self) -> dict[str, IntVector]:
        if self._plan.weighting is not Weighting.HIDDEN:
            return {}
        return {WEIGHT: np.array([capped_examples(self._plan, self._task.n_examples)])}

    def full_model(self, state: State, kept: Kept) -> dict[str, Tensor]:
        """Return the received model with this silo's personal layers."""
        personal = personal_of(state)
        own = kept.vector(PERSONAL)
        if own is not None:
            personal.update(self._division.personal.unflatten(own))
        return {**model_of(state), **personal}

    def task_step(
        self, number: int, state: State, correction: FloatVector | None, source: NoiseSource
    ) -> "FloatVector | IntVector":
        """Let the task take the units' own steps, by the privacy plan."""
        step = self._private_step(number, state, correction, source)
        return cast("PrivateTask", self._task).train_private(model_of(state), step)

    def _private_step(
        self, number: int, state: State, correction: FloatVector | None, source: NoiseSource
    ) -> PrivateStep:
        privacy = self._privacy
        assert privacy is not None  # the caller has looked
        self._task.prepare(preprocess_of(state))
        weight = silo_weight(self._plan, self._silo, self._task.n_examples)
        name = self._algorithm.traits(number).segments[0]
        return PrivateStep(
            plan=privacy,
            learning_rate=self._plan.local_rate(trained_of(state)),
            denominator=local_denominator(privacy, weight),
            correction=correction,
            source=source,
            clip_norm=ranges_of(state)[name],
        )

    def owed(self, made: Contribution, maps: Compressors, state: State) -> dict[str, FloatVector]:
        """Return the parts, with what earlier rounds did not send of segments that remember it.

        Not of variates: Δc_k = g − c_k holds again what was not sent, since c_k has not moved.
        """
        owed = dict(made.parts)
        if not self._plan.compression.keeps_errors or made.work is None:
            return owed
        kept = self._memory.reconciled(last_round_of(state, self._seat), strict=False)
        for name in maps:
            late = kept.vector(ERROR + name)
            if name != VARIATE_DELTA and late is not None:
                owed[name] = owed[name] + late
        return owed

    @contextmanager
    def fresh_noise(self) -> Iterator[NoiseSource]:
        """A source for one attempt, forgotten after it."""
        source = self._noise()
        try:
            yield source
        finally:
            if isinstance(source, NoiseStream):
                source.close()
