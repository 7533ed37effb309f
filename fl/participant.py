"""One silo's side of one run: what it answers to a round, and what it keeps between rounds.

A round at a silo: `check` the parameters before any data is touched, `contribute` to the received
state, `settle` when the verified sum is there. What it keeps meanwhile is fl.memory's; how the
silos' record and N change when it joins, leaves or has lost its variate, fl.step's.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np

from dp.plan import Mode, PrivacyPlan
from dp.rng import NoiseSource, NoiseStream
from fl.algorithms import VARIATE_DELTA, LocalWork, Traits, algorithm_of
from fl.errors import PlanError, RunStateError, SpecMismatchError, VariateLostError
from fl.memory import ERROR, KEPT, LEFT, PERSONAL, Kept, RunMemory
from fl.personal import Division, split_personal
from fl.pipeline import (
    MEMBERS,
    VARIATE,
    WEIGHT,
    Compressors,
    Decoded,
    IntVector,
    compressors,
    decode_aggregate,
    encode_contribution,
    expanded,
    metric_values,
    refresh_spec,
    usage_name,
    vector_spec,
    with_usage,
)
from fl.plan import RoundKind, TrainingPlan, Weighting
from fl.ports import FloatVector, LocalTask, Metrics, NamedTensors, SiloMemory, Tensor
from fl.privacy import (
    GRID_MODES,
    UNIT_MODES,
    PrivateStep,
    PrivateTask,
    check_size,
    clipped_integers,
    decoded_sum,
    document_of,
    local_denominator,
    noise_share,
    privacy_of,
)
from fl.reals import real_values
from fl.seeding import derive_seed
from fl.state import (
    LAST_ROUND,
    PREPROCESS,
    SEATS,
    State,
    decode_state,
    encode_state,
    last_round_of,
    model_of,
    personal_of,
    preprocess_of,
    ranges_of,
    trained_of,
)
from fl.statistics import moment_values
from fl.step import initial_state, next_state
from fl.update import TensorLayout, check_signature, signature, summed
from fl.weights import capped_examples, check_examples, silo_weight
from fl.work import public_steps
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.messages import MAX_STATE_BYTES, model_hash
from secagg.parameters import COMMON_COEFFICIENTS, RoundParameters, VectorSpec
from secagg.rng import Rng

# What does not depend on the silo's data may show; whatever else fails under a privacy plan ends as
# the zero vector plus noise, because staying away would tell (privacy.md 4.1).
_PUBLIC_FAILURES: Final = (PlanError, RunStateError, SpecMismatchError, VariateLostError)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Contribution:
    """What a silo adds to a sum of reals, and what it keeps if it is counted in (by name)."""

    parts: Mapping[str, FloatVector]  # bulk segments, weighted, in the model's coordinates
    meta: Mapping[str, IntVector]
    scalars: Mapping[str, FloatVector]
    weight: float = 1.0
    work: LocalWork | None = None
    keeps: State


class RunParticipant:
    """A silo in a run. Not for two rounds at once.

    Args:
        plan: the run's, as the silo accepted it.
        run: the run's id.
        seat: the silo's seat.
        names: seat to silo name of the roster.
        task: the silo's model and data.
        memory: the silo's disk. Names start with the run's id.
        rng: draws the run's rounding secret once.
        own_steps: round number to K_k, where the plan leaves that to the silo; by default as many
            as the plan allows.
        noise: gives a fresh source of noise for each attempt. Only dp.rng.NoiseStream is private;
            a simulation that must repeat may take another.

    Attributes:
        saturated: coordinates of the last contribution beyond their range; for the silo's own log.
        failures: contributions that became zero because training failed, likewise.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        *,
        run: RunId,
        seat: int,
        names: Mapping[int, str],
        task: LocalTask,
        memory: SiloMemory,
        rng: Rng,
        own_steps: Callable[[int], int] | None = None,
        noise: Callable[[], NoiseSource] = NoiseStream,
    ) -> None:
        self._plan = plan
        self._digest = plan.digest()
        self._algorithm = algorithm_of(plan)
        self._run = run
        self._seat = seat
        self._names = dict(names)
        self._task = task
        self._memory = RunMemory(memory, run)
        self._rng = rng
        self._own_steps = own_steps
        model = task.initial_model(plan.seed)
        self._division = Division(*split_personal(model, plan.personal))
        self._layout = self._division.shared
        self._expected = signature(initial_state(plan, model, ()))
        self._features = len(task.statistics().names) if plan.standardize else 0
        self._repeat: tuple[int, bytes, bytes, dict[str, IntVector]] | None = None
        self._latest: tuple[bytes, State] | None = None  # settled after it was trained on
        self.saturated = 0
        self.failures = 0
        self._noise = noise
        self._privacy = privacy_of(plan)
        if self._privacy is not None:
            self._check_private(self._privacy)

    def check(self, parameters: RoundParameters, plan_document: bytes) -> None:
        """Refuse a round that is not one of this run as the plan has it.

        Raises:
            SpecMismatchError: says which field differs.
        """
        if plan_document != self._plan.document() or parameters.training_plan != self._digest:
            raise SpecMismatchError("the round names another training plan than the run began with")
        number = parameters.round
        if not 1 <= number <= self._plan.highest_round:
            raise SpecMismatchError(
                f"round {number}: the plan has rounds 1 to {self._plan.highest_round}"
            )
        spec = self._spec(number)
        if number > self._plan.first_training_round and self._traits(number).has_variate:
            renewed = refresh_spec(self._plan, self._layout.size)
            spec = renewed if parameters.spec == renewed else spec
        expected = (
            ("run", self._run, parameters.run),
            ("kind", self._plan.kind_of(number), parameters.kind),
            ("n_max", self._plan.max_silos, parameters.n_max),
            ("vector", _shown(spec), _shown(parameters.spec)),
            ("coefficients", COMMON_COEFFICIENTS, parameters.coefficients),
            (
                "privacy plan",
                document_of(self._plan).decode(),
                parameters.dp.decode(errors="replace"),
            ),
            ("h_dp", self._privacy.h_dp if self._privacy else 0, parameters.h_dp),
        )
        for field, mine, theirs in expected:
            if mine != theirs:
                raise SpecMismatchError(
                    f"round {number}: {field}: the plan and this silo's task give {mine}, "
                    f"the coordinator asks {theirs}"
                )
        if self._privacy is not None and parameters.n_c < self._privacy.n_c:
            raise SpecMismatchError(
                f"round {number}: the privacy plan counts on n_c of at least {self._privacy.n_c}, "
                f"the coordinator asks {parameters.n_c}"
            )

    def required_state(self, number: int) -> bytes | None:
        """Return the model hash that round `number` must have, None if this silo cannot know.

        It knows after it settled round `number` − 1 (protocol.md 2.5 v).
        """
        return self._memory.required_state(number)

    def leave(self) -> None:
        """Make the next contribution the last: the run's c and N are then as if it had not been.

        It is enough to stop taking part where silos have no control variates.
        """
        if self._privacy is not None:
            raise RunStateError("under a privacy plan a silo leaves by taking part no more")
        self._memory.leave()
        self._repeat = None

    def contribute(
        self, parameters: RoundParameters, state_bytes: bytes, coins: bytes = b""
    ) -> dict[str, IntVector]:
        """Train on the received state and return the integers of every data segment.

        A second call for the same round and state, as in a new attempt, returns the same integers
        (with compression: for the same coins), except where a share of noise is in them: a retry
        draws it anew.

        Args:
            parameters: of the attempt, checked.
            state_bytes: as received.
            coins: the attempt's public coins, for a plan that compresses.

        Raises:
            SpecMismatchError: the state is not what plan and task call for; names the tensors.
            NonFiniteUpdateError: training diverged; names the tensors (ENC-08).
            WeightError: the silo's example count is unusable.
            VariateLostError: the silo's control variate is not the one the run counts on.
            DataError: the silo's data cannot be summed.
        """
        number, spec = parameters.round, parameters.spec
        coins = coins if self._plan.compression.needs_coins else b""
        state_hash = model_hash(parameters.kind, state_bytes)
        if self._repeat is not None and self._repeat[:3] == (number, state_hash, coins):
            return self._repeat[3]
        state = self._read(number, state_bytes)
        if self._privacy is not None and self._privacy.mode in GRID_MODES:
            return self._contribute_noised(number, state, spec, self._privacy)
        made = self._made(number, state, is_refresh=VARIATE in spec.names)
        maps = compressors(self._plan, spec, self._layout.size, coins)
        errors = self._errors(made, maps, state)
        owed = {name: part + errors.get(name, 0.0) for name, part in made.parts.items()}
        sent = {name: maps[name].forward(p) if name in maps else p for name, p in owed.items()}
        ranges = ranges_of(state)
        encoded = encode_contribution(
            Decoded(bulk=sent, meta=_values(made, sent, ranges)),
            spec=spec,
            ranges=ranges,
            secret=self._memory.secret(self._rng),
            run=self._run,
            number=number,
            coins=coins,
        )
        arrived = expanded(encoded.decoded, maps)
        rest: State = {ERROR + name: owed[name] - arrived[name] for name in errors}
        self._keep_pending(number, made, arrived, rest)
        self.saturated = encoded.saturated
        self._repeat = (number, state_hash, coins, encoded.segments)
        return encoded.segments

    def contribute_exact(
        self, number: int, state_bytes: bytes, *, is_refresh: bool = False
    ) -> Decoded:
        """Return what `contribute` does, without quantizer and compression: the reference."""
        state = self._read(number, state_bytes)
        made = self._made(number, state, is_refresh=is_refresh)
        meta = _values(made, made.parts, ranges_of(state))
        self._keep_pending(number, made, made.parts, {})
        return Decoded(bulk=dict(made.parts), meta=meta)

    def settle(self, aggregate: Aggregate, state_bytes: bytes) -> bytes:
        """Take the server's step on the verified sum and return the next state's bytes.

        Commits what is pending if and only if this silo is a survivor.

        Args:
            aggregate: as `secagg.silo` gives it after its checks.
            state_bytes: the state of that round.

        Raises:
            WeightError: as `fl.step.next_state`; the model stays as it is, at everybody.
            NonFiniteUpdateError: likewise.
        """
        parameters = aggregate.parameters
        if model_hash(parameters.kind, state_bytes) != aggregate.state_hash:
            raise SpecMismatchError("the sum was computed on another state than the one given")
        state = self._read(parameters.round, state_bytes)
        released = decode_aggregate(
            aggregate.values,
            spec=parameters.spec,
            ranges=ranges_of(state),
            privacy=self._privacy,
        )
        maps = compressors(self._plan, parameters.spec, self._layout.size, aggregate.public_coins)
        released = replace(released, bulk=expanded(released.bulk, maps))
        return self._settle(parameters.round, state, released, aggregate.survivors)

    def settle_exact(self, number: int, released: Decoded, survivors: tuple[int, ...]) -> None:
        """Commit what is pending after a sum of reals: the simulation's reference.

        The server's step is not taken again: nobody else's is to be checked.
        """
        self._memory.settle(number, None, keeps=self._is_kept(number, released, survivors))

    def variate(self) -> FloatVector | None:
        """Return what the algorithm keeps, such as c_k; None for zero. It never leaves the silo."""
        return self._memory.settled().vector(KEPT)

    def own_model(self, state_bytes: bytes) -> dict[str, Tensor]:
        """Return the shared model of a state with this silo's own personal layers in it."""
        state = decode_state(state_bytes, MAX_STATE_BYTES)
        return self._full_model(state, self._memory.settled())

    def _check_private(self, privacy: PrivacyPlan) -> None:
        """Refuse at the start what would show in a round: a model or data that do not fit."""
        check_size(privacy, self._layout.size)
        if privacy.mode not in UNIT_MODES:
            return
        if not hasattr(self._task, "train_private"):
            raise PlanError(
                f"privacy plan: mode {privacy.mode} needs a task with train_private; "
                f"{type(self._task).__name__} has none"
            )
        cast("PrivateTask", self._task).check_private(privacy)

    def _contribute_noised(
        self, number: int, state: State, spec: VectorSpec, privacy: PrivacyPlan
    ) -> dict[str, IntVector]:
        """Return this attempt's integers on the privacy plan's grid, its share of noise added."""
        name = spec.names[0]
        clip_norm = ranges_of(state)[name]
        with self._fresh_noise() as source:
            share = noise_share(privacy, source)  # before the update is known (privacy.md 6.4)
            integers = self._clipped(number, state, name, clip_norm, source)
        if share is not None:
            integers = integers + share
        return {name: integers}

    @contextmanager
    def _fresh_noise(self) -> Iterator[NoiseSource]:
        """A source for one attempt, forgotten after it."""
        source = self._noise()
        try:
            yield source
        finally:
            if isinstance(source, NoiseStream):
                source.close()

    def _clipped(
        self, number: int, state: State, name: str, clip_norm: float, source: NoiseSource
    ) -> IntVector:
        """Return the integers before the share; they stay here, and what is kept follows them."""
        privacy = self._privacy
        assert privacy is not None  # the caller has looked
        if privacy.mode in UNIT_MODES:
            return self._task_step(number, state, None, source).astype(np.int64, copy=False)
        try:
            made = self._made(number, state, is_refresh=False)
            update = made.parts[name] / made.weight
        except _PUBLIC_FAILURES:
            raise
        except Exception:  # noqa: BLE001 (a failure that depends on data must not show)
            self.failures += 1
            start = self._layout.flatten(summed(model_of(state)))
            work = LocalWork(state=state, start=start, after=start, steps=0)
            made = _Contribution(parts={name: start}, meta={}, scalars={}, work=work, keeps={})
            update = np.full(len(start), np.nan)
        integers = clipped_integers(
            update, privacy, clip_norm=clip_norm, weight=made.weight, coins=source
        )
        sent = decoded_sum(integers, privacy, name=name, clip_norm=clip_norm)
        self._keep_pending(number, made, {name: sent[name]}, {})
        return integers

    def _task_step(
        self, number: int, state: State, correction: FloatVector | None, source: NoiseSource
    ) -> "FloatVector | IntVector":
        """Let the task take the units' own steps, by the privacy plan."""
        privacy = self._privacy
        assert privacy is not None  # the caller has looked
        self._task.prepare(preprocess_of(state))
        weight = silo_weight(self._plan, self._names[self._seat], self._task.n_examples)
        name = self._traits(number).segments[0]
        step = PrivateStep(
            plan=privacy,
            learning_rate=self._plan.local_rate(trained_of(state)),
            denominator=local_denominator(privacy, weight),
            correction=correction,
            source=source,
            clip_norm=ranges_of(state)[name],
        )
        return cast("PrivateTask", self._task).train_private(model_of(state), step)

    def _traits(self, number: int) -> Traits:
        return self._algorithm.traits(number)

    def _read(self, number: int, state_bytes: bytes) -> State:
        """Return a received state whose every tensor is one that the plan calls for (AGG-10)."""
        if self._latest is not None and self._latest[0] == state_bytes:
            return self._latest[1]
        state = decode_state(state_bytes, MAX_STATE_BYTES)
        expected = dict(self._expected)
        seats = state[SEATS].shape if SEATS in state else (0,)
        expected[SEATS] = expected[LAST_ROUND] = (seats, "int64")
        if number > 1 and self._plan.standardize:
            statistics = ((self._features,), "float64")
            expected[PREPROCESS + "mean"] = expected[PREPROCESS + "scale"] = statistics
        check_signature(expected, signature(state))
        floating = summed(state)
        TensorLayout.of(floating).flatten(floating)
        self._latest = (state_bytes, state)
        return state

    def _spec(self, number: int) -> VectorSpec:
        """Return the vector's spec as this silo computes it, for any round but a refresh."""
        training = self._plan.kind_of(number) is RoundKind.TRAINING
        return vector_spec(self._plan, number, self._layout.size if training else self._features)

    def _made(self, number: int, state: State, *, is_refresh: bool) -> _Contribution:
        """Return the contribution to any round."""
        if self._plan.kind_of(number) is RoundKind.STATISTICS:
            check_examples(self._task.n_examples)
            moments = moment_values(self._task.statistics(), self._plan.max_silos)
            return _Contribution(parts={}, meta=moments, scalars={}, keeps={})
        weight = silo_weight(self._plan, self._names[self._seat], self._task.n_examples)
        if is_refresh:
            return self._renewed(state, weight)
        if trained_of(state) >= self._plan.rounds:
            raise SpecMismatchError(f"the plan's {self._plan.rounds} training rounds are done")
        counted = last_round_of(state, self._seat)
        traits = self._traits(number)
        kept = self._memory.reconciled(counted, strict=traits.has_variate)
        meta: dict[str, IntVector] = self._weight_value()
        keeps: State = {}
        if traits.has_variate:
            joins = counted is None or LEFT in kept.tensors
            meta[MEMBERS] = np.array([joins - self._memory.is_leaving], dtype=np.int64)
            if self._memory.is_leaving:
                keeps[LEFT] = np.array(1, dtype=np.uint8)
        full = self._full_model(state, kept)
        self._task.prepare(preprocess_of(state))
        metrics = self._task.evaluate(full) if self._plan.metrics or traits.loss else None
        if metrics is not None and self._plan.metrics:
            meta.update(metric_values(self._plan, metrics))
        work = self._worked(number, state, full=full, kept=kept, metrics=metrics, keeps=keeps)
        parts = {name: weight * part for name, part in self._algorithm.parts(work).items()}
        scalars = {name: parts.pop(name) for name in traits.scalars}
        for name, number_k in scalars.items():
            meta.update(real_values(name, number_k, self._plan.max_silos))
        for part in parts.values():
            self._layout.check_finite(part)
        return _Contribution(
            parts=parts, meta=meta, scalars=scalars, weight=weight, work=work, keeps=keeps
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
        traits, variate = self._traits(number), kept.vector(KEPT)
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
        plan, silo = self._plan, self._names[self._seat]
        if self._privacy is not None and self._privacy.mode is Mode.ISRL:
            with self._fresh_noise() as source:
                after = self._task_step(number, state, correction, source)
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

    def _renewed(self, state: State, weight: float) -> _Contribution:
        """Return c_k by option I at the current x, for a refresh round."""
        full = self._full_model(state, self._memory.settled())
        self._task.prepare(preprocess_of(state))
        gradient = self._division.shared_of(self._task.gradient(full))
        self._layout.check_finite(gradient)
        return _Contribution(
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

    def _weight_value(self) -> dict[str, IntVector]:
        if self._plan.weighting is not Weighting.HIDDEN:
            return {}
        return {WEIGHT: np.array([capped_examples(self._plan, self._task.n_examples)])}

    def _full_model(self, state: State, kept: Kept) -> dict[str, Tensor]:
        """Return the received model with this silo's personal layers."""
        personal = personal_of(state)
        own = kept.vector(PERSONAL)
        if own is not None:
            personal.update(self._division.personal.unflatten(own))
        return {**model_of(state), **personal}

    def _errors(
        self, made: _Contribution, maps: Compressors, state: State
    ) -> dict[str, FloatVector]:
        """Return what earlier rounds did not send, for segments that remember it.

        Not for variates: Δc_k = g − c_k holds again what was not sent, since c_k has not moved.
        """
        if not self._plan.compression.keeps_errors or made.work is None:
            return {}
        counted = last_round_of(state, self._seat)
        kept = self._memory.reconciled(counted, strict=False)
        found = {name: kept.vector(ERROR + name) for name in maps if name != VARIATE_DELTA}
        zero = np.zeros(self._layout.size)
        return {name: zero if one is None else one for name, one in found.items()}

    def _keep_pending(
        self, number: int, made: _Contribution, arrived: Mapping[str, FloatVector], rest: State
    ) -> None:
        """Remember what this contribution implies, by what its integers say."""
        keeps: State = {**made.keeps, **rest}
        unweighted = {name: part / made.weight for name, part in arrived.items()}
        if made.work is not None:
            scalars = {name: one / made.weight for name, one in made.scalars.items()}
            following = self._algorithm.next_kept({**unweighted, **scalars}, made.work)
        else:
            following = unweighted.get(VARIATE)
        if following is not None:
            keeps[KEPT] = following
        if self._keeps(number, made.parts):
            self._memory.keep_pending(number, keeps)

    def _keeps(self, number: int, segments: Mapping[str, FloatVector]) -> bool:
        """Whether anything is kept of a round with these bulk segments."""
        plan = self._plan
        return bool(segments) and bool(
            plan.personal or plan.compression.keeps_errors or self._traits(number).keeps
        )

    def _settle(
        self, number: int, state: State, released: Decoded, survivors: tuple[int, ...]
    ) -> bytes:
        named = {seat: self._names[seat] for seat in survivors}
        following = encode_state(next_state(self._plan, state, number, released, named))
        required = None
        if number < self._plan.highest_round:
            required = model_hash(self._plan.kind_of(number + 1), following)
        keeps = self._is_kept(number, released, survivors)
        self._memory.settle(number, required, keeps=keeps)
        self._latest = None
        return following

    def _is_kept(self, number: int, released: Decoded, survivors: tuple[int, ...]) -> bool:
        return self._seat in survivors and self._keeps(number, released.bulk)


def _values(
    made: _Contribution, sent: Mapping[str, FloatVector], ranges: Mapping[str, float]
) -> dict[str, IntVector]:
    """Return the meta values, with how the parts fill their ranges.

    A silo that leaves has left only if all of −c_k fits. Otherwise it sends what does, stays for
    another round, and its saturation widens the range.
    """
    values = with_usage(sent, made.meta, ranges)
    if LEFT in made.keeps and any(values[usage_name(name)][0] for name in sent):
        del made.keeps[LEFT]
        values[MEMBERS] = values[MEMBERS] + 1
    return values


def _shown(spec: VectorSpec) -> str:
    """Return all that tells two specs apart, for people: name, length, bits, bound."""
    return ", ".join(
        f"{s.name}[{s.length}] {s.kind} {s.value_bits}/{s.ring_bits} bits, at most {s.bound}"
        for s in spec.segments
    )
