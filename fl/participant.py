"""One silo's side of one run: what it answers to a round, and what it keeps between rounds.

A round at a silo: `check` the parameters before any data is touched, `contribute` to the received
state, `settle` when the verified sum is there. The control variate that a contribution implies is
provisional until the silo is known to be a survivor: by `settle`, or, where the silo was gone when
the result came, by the state's record of each seat's last round. If that record and the silo's
memory tell different stories the variate is lost, and the silo says so instead of starting at
zero (SCA-10); no refresh round exists yet, so such a silo stays out of the sums.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from fl.algorithms import algorithm_of
from fl.errors import RunStateError, SpecMismatchError, VariateLostError
from fl.pipeline import (
    WEIGHT,
    Decoded,
    IntVector,
    decode_aggregate,
    encode_contribution,
    metric_values,
    vector_spec,
    with_usage,
)
from fl.plan import RoundKind, TrainingPlan, Weighting
from fl.ports import FloatVector, LocalTask, NamedTensors, SiloMemory
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
    preprocess_of,
    ranges_of,
)
from fl.statistics import moment_values
from fl.step import initial_state, next_state
from fl.update import TensorLayout, check_signature, signature, summed
from fl.weights import capped_examples, check_examples, silo_weight
from secagg.canonical import decode, encode, read_u64, u64
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.messages import MAX_STATE_BYTES, model_hash
from secagg.parameters import COMMON_COEFFICIENTS, RoundParameters, VectorSpec
from secagg.rng import Rng

_SECRET_BYTES: Final = 32
_ROUND: Final = "round"
_VARIATE: Final = "variate"


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
    ) -> None:
        self._plan = plan
        self._digest = plan.digest()
        self._algorithm = algorithm_of(plan)
        self._run = run
        self._seat = seat
        self._names = dict(names)
        self._task = task
        self._memory = memory
        self._rng = rng
        model = task.initial_model(plan.seed)
        self._layout = TensorLayout.of(summed(model))
        self._expected = signature(initial_state(plan, model, ()))
        self._features = len(task.statistics().names) if plan.standardize else 0
        self._repeat: tuple[int, bytes, dict[str, IntVector]] | None = None
        self.saturated = 0

    def check(self, parameters: RoundParameters, plan_document: bytes) -> None:
        """Refuse a round that is not one of this run as the plan has it.

        Raises:
            SpecMismatchError: says which field differs.
        """
        if plan_document != self._plan.document() or parameters.training_plan != self._digest:
            raise SpecMismatchError("the round names another training plan than the run began with")
        number = parameters.round
        if not 1 <= number <= self._plan.last_round:
            raise SpecMismatchError(
                f"round {number}: the plan has rounds 1 to {self._plan.last_round}"
            )
        expected = (
            ("run", self._run, parameters.run),
            ("kind", self._plan.kind_of(number), parameters.kind),
            ("n_max", self._plan.max_silos, parameters.n_max),
            ("vector", _shown(self._spec(number)), _shown(parameters.spec)),
            ("coefficients", COMMON_COEFFICIENTS, parameters.coefficients),
        )
        for field, mine, theirs in expected:
            if mine != theirs:
                raise SpecMismatchError(
                    f"round {number}: {field}: the plan and this silo's task give {mine}, "
                    f"the coordinator asks {theirs}"
                )

    def required_state(self, number: int) -> bytes | None:
        """Return the model hash that round `number` must have, None if this silo cannot know.

        It knows after it settled round `number` − 1 (protocol.md 2.5 v).
        """
        stored = self._memory.read(self._name("next"))
        if stored is None:
            return None
        known, state_hash = decode(stored, "next-state", max_bytes=1024, fields=2)
        return state_hash if read_u64(known) == number else None

    def contribute(self, parameters: RoundParameters, state_bytes: bytes) -> dict[str, IntVector]:
        """Train on the received state and return the integers of every data segment.

        A second call for the same round and state, as in a new attempt, returns the same integers.

        Raises:
            SpecMismatchError: the state is not what plan and task call for; names the tensors.
            NonFiniteUpdateError: training diverged; names the tensors (ENC-08).
            WeightError: the silo's example count is unusable.
            VariateLostError: the silo's control variate is not the one the run counts on.
            DataError: the silo's data cannot be summed.
        """
        number = parameters.round
        state_hash = model_hash(parameters.kind, state_bytes)
        if self._repeat is not None and self._repeat[:2] == (number, state_hash):
            return self._repeat[2]
        state = self._read(number, state_bytes)
        contribution, weight, variate = self._work(number, state)
        encoded = encode_contribution(
            contribution,
            spec=parameters.spec,
            ranges=ranges_of(state),
            secret=self._secret(),
            run=self._run,
            number=number,
        )
        self._keep_provisional(number, encoded.decoded, weight, state, variate)
        self.saturated = encoded.saturated
        self._repeat = (number, state_hash, encoded.segments)
        return encoded.segments

    def contribute_exact(self, number: int, state_bytes: bytes) -> Decoded:
        """Return what `contribute` does, without the quantizer: the simulation's reference."""
        state = self._read(number, state_bytes)
        contribution, weight, variate = self._work(number, state)
        self._keep_provisional(number, contribution.bulk, weight, state, variate)
        return contribution

    def settle(self, aggregate: Aggregate, state_bytes: bytes) -> bytes:
        """Take the server's step on the verified sum and return the next state's bytes.

        Commits the provisional variate if and only if this silo is a survivor.

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
        released = decode_aggregate(aggregate.values, spec=parameters.spec, ranges=ranges_of(state))
        return self._settle(parameters.round, state, released, aggregate.survivors)

    def settle_exact(
        self, number: int, state_bytes: bytes, released: Decoded, survivors: tuple[int, ...]
    ) -> bytes:
        """Return what `settle` does, for a sum of reals: the simulation's reference."""
        state = self._read(number, state_bytes)
        return self._settle(number, state, released, survivors)

    def variate(self) -> FloatVector | None:
        """Return the committed control variate c_k, None for zero. It never leaves the silo."""
        return self._remembered("settled")[1]

    def _read(self, number: int, state_bytes: bytes) -> State:
        """Return a received state whose every tensor is one that the plan calls for (AGG-10)."""
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
        return state

    def _spec(self, number: int) -> VectorSpec:
        """Return the vector's spec as this silo computes it."""
        training = self._plan.kind_of(number) is RoundKind.TRAINING
        return vector_spec(self._plan, number, self._layout.size if training else self._features)

    def _work(self, number: int, state: State) -> tuple[Decoded, float, FloatVector | None]:
        """Return the weighted contribution, the weight and the variate it was made with."""
        if self._plan.kind_of(number) is RoundKind.STATISTICS:
            check_examples(self._task.n_examples)
            moments = moment_values(self._task.statistics(), self._plan.max_silos)
            return Decoded(bulk={}, meta=moments), 1.0, None
        variate = self._reconciled_variate(state)
        weight = silo_weight(self._plan, self._names[self._seat], self._task.n_examples)
        parts, meta = self._trained(number, state, variate)
        weighted = {name: weight * part for name, part in parts.items()}
        for part in weighted.values():
            self._layout.check_finite(part)
        contribution = Decoded(bulk=weighted, meta=with_usage(weighted, meta, ranges_of(state)))
        return contribution, weight, variate

    def _trained(
        self, number: int, state: State, variate: FloatVector | None
    ) -> tuple[dict[str, FloatVector], dict[str, IntVector]]:
        """Return the algorithm's parts and the meta values of local training at `state`."""
        plan, model = self._plan, model_of(state)
        start = self._layout.flatten(summed(model))
        self._task.prepare(preprocess_of(state))
        meta: dict[str, IntVector] = {}
        if plan.metrics:
            meta.update(metric_values(plan, self._task.evaluate(model)))
        if plan.weighting is Weighting.HIDDEN:
            meta[WEIGHT] = np.array([capped_examples(plan, self._task.n_examples)])
        result = self._task.train(
            model,
            self._algorithm.correction(state, variate),
            plan.local,
            derive_seed(plan.seed, "local", self._names[self._seat]),
            number,
        )
        if result.steps != plan.local.local_steps:
            raise SpecMismatchError(
                f"local training took {result.steps} steps; the plan fixes "
                f"{plan.local.local_steps} for every silo"
            )
        self._layout.check_finite(result.model_after)
        gradient = self._task.gradient(model) if self._algorithm.needs_gradient else None
        return self._algorithm.parts(start, result, gradient, variate), meta

    def _settle(
        self, number: int, state: State, released: Decoded, survivors: tuple[int, ...]
    ) -> bytes:
        named = {seat: self._names[seat] for seat in survivors}
        following = encode_state(next_state(self._plan, state, number, released, named))
        writes: dict[str, bytes | None] = {}
        if number < self._plan.last_round:
            kind = self._plan.kind_of(number + 1)
            state_hash = model_hash(kind, following)
            writes["next"] = encode("next-state", u64(number + 1), state_hash)
        if self._seat in survivors and self._algorithm.has_variate:
            writes.update(self._promotion(number))
        self._write(writes)
        return following

    def _promotion(self, number: int) -> dict[str, bytes | None]:
        """Return the writes that make the provisional variate of round `number` the settled one."""
        if self._plan.kind_of(number) is RoundKind.STATISTICS:
            return {}
        if self._remembered("settled")[0] == number:
            return {}  # the result came again, as after a crash just behind the first time
        pending = self._memory.read(self._name("pending"))
        if pending is None or self._remembered("pending")[0] != number:
            raise RunStateError(
                f"this silo is a survivor of round {number} but remembers no contribution to it"
            )
        return {"settled": pending, "pending": None}

    def _reconciled_variate(self, state: NamedTensors) -> FloatVector | None:
        """Return c_k after comparing the memory with the state's record of this seat."""
        if not self._algorithm.has_variate:
            return None
        counted = last_round_of(state, self._seat)
        settled, variate = self._remembered("settled")
        if settled == counted:
            return variate
        if self._remembered("pending")[0] == counted:
            # The result of that round never reached this silo, but the run counted it in.
            self._write(self._promotion(counted))
            return self.variate()
        raise VariateLostError(
            f"the run counts on this silo's control variate of round {counted}, its memory holds "
            f"that of round {settled}; restore the silo's state directory of that time, or start "
            "a new run"
        )

    def _keep_provisional(
        self,
        number: int,
        sent: Mapping[str, FloatVector],
        weight: float,
        state: NamedTensors,
        variate: FloatVector | None,
    ) -> None:
        """Remember the variate that this contribution implies, until its fate is known."""
        if not sent or not self._algorithm.has_variate:
            return
        unweighted = {name: part / weight for name, part in sent.items()}
        following = self._algorithm.next_variate(unweighted, state, variate)
        tensors: State = {_ROUND: np.array(number, dtype=np.int64)}
        if following is not None:
            tensors[_VARIATE] = following
        self._write({"pending": encode_state(tensors)})

    def _remembered(self, name: str) -> tuple[int, FloatVector | None]:
        """Return round and variate of a memory entry; round 0 and None where there is none."""
        stored = self._memory.read(self._name(name))
        if stored is None:
            return 0, None
        tensors = decode_state(stored, MAX_STATE_BYTES)
        return int(tensors[_ROUND][()]), tensors[_VARIATE].astype(np.float64, copy=False)

    def _secret(self) -> bytes:
        """Return the run's rounding secret, drawn at the first use."""
        stored = self._memory.read(self._name("secret"))
        if stored is None:
            stored = self._rng.bytes(_SECRET_BYTES)
            self._write({"secret": stored})
        return stored

    def _write(self, values: Mapping[str, bytes | None]) -> None:
        self._memory.write({self._name(name): value for name, value in values.items()})

    def _name(self, name: str) -> str:
        return f"{self._run}/{name}"


def _shown(spec: VectorSpec) -> str:
    """Return all that tells two specs apart, for people: name, length, bits, bound."""
    return ", ".join(
        f"{s.name}[{s.length}] {s.kind} {s.value_bits}/{s.ring_bits} bits, at most {s.bound}"
        for s in spec.segments
    )
