"""One silo's side of one run: what it answers to a round, and what it keeps between rounds.

A round at a silo: `check` the parameters before any data is touched, `contribute` to the received
state, `settle` when the verified sum is there. What it contributes is fl.contribution's, what it
keeps meanwhile fl.memory's; how the silos' record and N change when it joins, leaves or has lost
its variate, fl.step's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, cast

import numpy as np

from dp.plan import PrivacyPlan
from dp.rng import NoiseSource, NoiseStream
from fl.algorithms import VARIATE_DELTA, LocalWork, algorithm_of
from fl.contribution import Contribution, Contributor
from fl.errors import PlanError, RunStateError, SpecMismatchError, VariateLostError
from fl.memory import ERROR, KEPT, RunMemory
from fl.personal import Division, split_personal
from fl.pipeline import (
    VARIATE,
    Decoded,
    IntVector,
    compressed,
    compressors,
    decode_aggregate,
    encode_contribution,
    expanded,
    refresh_spec,
    vector_spec,
)
from fl.plan import RoundKind, TrainingPlan
from fl.ports import FloatVector, LocalTask, SiloMemory, Tensor
from fl.privacy import (
    GRID_MODES,
    UNIT_MODES,
    PrivateTask,
    check_size,
    clipped_integers,
    decoded_sum,
    noise_share,
    privacy_of,
    unit_metrics,
)
from fl.rounds import require_round
from fl.state import (
    LAST_ROUND,
    PREPROCESS,
    SEATS,
    State,
    decode_state,
    encode_state,
    model_of,
    personal_of,
    ranges_of,
    seats_of,
)
from fl.statistics import EXACT_SUMS
from fl.step import initial_state, next_state
from fl.update import TensorLayout, check_signature, signature, summed
from secagg.chain import Standpoint
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.messages import MAX_STATE_BYTES, model_hash
from secagg.parameters import RoundParameters, VectorSpec
from secagg.rng import Rng

# What does not depend on the silo's data may show; whatever else fails under a privacy plan ends as
# the zero vector plus noise, because staying away would tell (privacy.md 4.1).
_PUBLIC_FAILURES: Final = (PlanError, RunStateError, SpecMismatchError, VariateLostError)

# By how many units in the last place of a tensor's largest value a first model may differ from the
# silo's own initial one: torch draws normal values with another CPU's logarithm.
_LAST_PLACES: Final = 8


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
        least_change: the silo's rule of that name; 0 asks nothing, nor does any under a privacy
            plan, where staying away would tell what the noise hides.
        most_units: the most units that the silo declares in public: whether it has more may show,
            as no plan chooses it. None: the plan's.
        first_states: digests of states whose model the silo takes as it is, in round 1.

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
        least_change: float = 0.0,
        most_units: int | None = None,
        first_states: frozenset[bytes] = frozenset(),
    ) -> None:
        self._plan = plan
        self._algorithm = algorithm_of(plan)
        self._run = run
        self._seat = seat
        self._names = dict(names)
        self._task = task
        self._memory = RunMemory(memory, run)
        self._rng = rng
        model = task.initial_model(plan.seed)
        division = Division(*split_personal(model, plan.personal))
        self._layout = division.shared
        self._first_states = first_states
        first = initial_state(plan, model, ())
        self._expected = signature(first)
        self._first = first if plan.standardize else None
        self._features = len(task.statistics().names) if plan.standardize else 0
        self._repeat: tuple[int, bytes, bytes, dict[str, IntVector]] | None = None
        self._latest: tuple[bytes, State] | None = None  # settled after it was trained on
        self.saturated = 0
        self.failures = 0
        self._privacy = privacy_of(plan)
        self._least_change = least_change if self._privacy is None else 0.0
        self._contributor = Contributor(
            plan,
            silo=self._names[seat],
            seat=seat,
            task=task,
            memory=self._memory,
            division=division,
            own_steps=own_steps,
            noise=noise,
            least_change=self._least_change,
        )
        if self._privacy is not None:
            self._check_private(self._privacy, most_units)

    def know(self, names: Mapping[int, str]) -> None:
        """Learn the names of silos that came to the roster since; they may join the run."""
        self._names |= names

    def check(self, parameters: RoundParameters, plan_document: bytes) -> None:
        """Refuse a round that is not one of this run as the plan has it.

        Raises:
            SpecMismatchError: says which field differs.
        """
        number = parameters.round
        if not 1 <= number <= self._plan.highest_round:
            raise SpecMismatchError(
                f"round {number}: the plan has rounds 1 to {self._plan.highest_round}"
            )
        spec = self._spec(number)
        if number > self._plan.first_training_round and self._algorithm.traits(number).has_variate:
            renewed = refresh_spec(self._plan, self._layout.size)
            spec = renewed if parameters.spec == renewed else spec
        require_round(
            parameters,
            plan_document,
            plan=self._plan,
            run=self._run,
            kind=self._plan.kind_of(number),
            spec=spec,
        )

    def standpoint(self) -> Standpoint | None:
        """Return where this silo left the run, None if it has settled no round (2.5 v)."""
        return self._memory.standpoint()

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
        made = self._contributor.made(number, state, is_refresh=VARIATE in spec.names)
        maps = compressors(self._plan, spec, self._layout.size, coins)
        owed = self._contributor.owed(made, maps, state)
        sent = compressed(owed, maps)
        ranges = ranges_of(state)
        encoded = encode_contribution(
            Decoded(bulk=sent, meta=made.values(sent, ranges)),
            spec=spec,
            ranges=ranges,
            secret=self._memory.secret(self._rng),
            run=self._run,
            number=number,
            coins=coins,
        )
        self._keep_pending(number, made, owed, expanded(encoded.decoded, maps))
        self.saturated = encoded.saturated
        self._repeat = (number, state_hash, coins, encoded.segments)
        return encoded.segments

    def contribute_exact(
        self, number: int, state_bytes: bytes, coins: bytes, *, is_refresh: bool = False
    ) -> Decoded:
        """Return what `contribute` does, without quantizer: the reference.

        Compression's maps are applied and undone on floats, so that what it leaves out stays out.
        """
        state = self._read(number, state_bytes)
        made = self._contributor.made(number, state, is_refresh=is_refresh)
        size = self._layout.size
        spec = refresh_spec(self._plan, size) if is_refresh else self._spec(number)
        maps = compressors(self._plan, spec, size, coins)
        owed = self._contributor.owed(made, maps, state)
        sent = compressed(owed, maps)
        meta = made.values(sent, ranges_of(state))
        arrived = expanded(sent, maps)
        self._keep_pending(number, made, owed, arrived)
        return Decoded(bulk=arrived, meta=meta)

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
        return self._contributor.full_model(state, self._memory.settled())

    def _check_private(self, privacy: PrivacyPlan, most_units: int | None) -> None:
        """Refuse at the start what would show in a round: a model or data that do not fit."""
        check_size(privacy, self._layout.size)
        if privacy.mode not in UNIT_MODES:
            return
        if not hasattr(self._task, "train_private"):
            raise PlanError(
                f"privacy plan: mode {privacy.mode} needs a task with train_private; "
                f"{type(self._task).__name__} has none"
            )
        declared = most_units or privacy.max_units_per_silo
        counted = replace(privacy, max_units_per_silo=declared)
        cast("PrivateTask", self._task).check_private(counted)

    def _contribute_noised(
        self, number: int, state: State, spec: VectorSpec, privacy: PrivacyPlan
    ) -> dict[str, IntVector]:
        """Return this attempt's integers on the privacy plan's grid, its share of noise added."""
        name = spec.names[0]
        clip_norm = ranges_of(state)[name]
        with self._contributor.fresh_noise() as source:
            share = noise_share(privacy, source)  # before the update is known (privacy.md 6.4)
            integers = self._clipped(number, state, name, clip_norm, source)
        if share is not None:
            integers = integers + share
        return {name: integers}

    def _clipped(
        self, number: int, state: State, name: str, clip_norm: float, source: NoiseSource
    ) -> IntVector:
        """Return the integers before the share; they stay here, and what is kept follows them."""
        privacy = self._privacy
        assert privacy is not None  # the caller has looked
        if privacy.mode in UNIT_MODES:
            return self._contributor.task_step(number, state, None, source).astype(
                np.int64, copy=False
            )
        try:
            made = self._contributor.made(number, state, is_refresh=False)
            update = made.parts[name] / made.weight
        except _PUBLIC_FAILURES:
            raise
        except Exception:  # noqa: BLE001 (a failure that depends on data must not show)
            self.failures += 1
            start = self._layout.flatten(summed(model_of(state)))
            work = LocalWork(state=state, start=start, after=start, steps=0)
            made = Contribution(
                parts={name: start},
                meta={},
                scalars={},
                weight=privacy.max_weight,  # of zeros; a larger one would be refused, and show
                work=work,
                keeps={},
            )
            update = np.full(len(start), np.nan)
        integers = clipped_integers(
            update,
            privacy,
            clip_norm=clip_norm,
            weight=made.weight,
            coins=source,
            metrics=unit_metrics(made.metrics),
        )
        sent = decoded_sum(integers, privacy, name=name, clip_norm=clip_norm)
        self._keep_pending(number, made, {}, {name: sent[name]})
        return integers

    def _read(self, number: int, state_bytes: bytes) -> State:
        """Return a received state whose every tensor is one that the plan calls for (AGG-10).

        The moments of round 1 are bound to what all exact statistics are bound to; the model that
        follows them is this silo's own initial one.
        """
        if self._first is not None and self._plan.kind_of(number) is RoundKind.STATISTICS:
            if state_bytes != EXACT_SUMS:
                raise SpecMismatchError(
                    f"round {number}: expected the state that all exact statistics have; both "
                    "sides need the same version"
                )
            return self._first
        if number > 1 and self._latest is not None and self._latest[0] == state_bytes:
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
        if number == 1:
            self._require_first(state, model_hash(self._plan.kind_of(number), state_bytes))
        self._latest = (state_bytes, state)
        return state

    def _require_first(self, state: State, state_hash: bytes) -> None:
        """Refuse a first state that is not what plan and task begin with, or a model not pinned.

        Security: whoever may choose what the server's step divides by, or a clip range, makes a
        plan's step as small as it likes: F(S, z) is S again under another hash, which no rule
        about equal states sees, and two sums over it differ by one silo (docs/protocol.md 8). So
        does a model of the server's choice, at which every step is alike (a last layer of -64).

        Raises:
            SpecMismatchError: names the tensors.
        """
        model = {**model_of(state), **personal_of(state)}
        seats = tuple(set(seats_of(state)))
        due = initial_state(self._plan, model, seats)
        odd = [name for name in sorted(due) if state[name].tobytes() != due[name].tobytes()]
        if len(seats) > self._plan.max_silos:
            odd.append(SEATS)
        if odd:
            raise SpecMismatchError(
                f"the first state: {', '.join(odd)}: not what a run of this plan begins with; both "
                "sides need the same version, and a run that goes on keeps its id"
            )
        if state_hash in self._first_states:
            return
        own = self._task.initial_model(self._plan.seed)
        odd = [name for name in sorted(own) if not _alike(model[name], own[name])]
        if odd:
            raise SpecMismatchError(
                f"the first state: {', '.join(odd)}: not the initial model that this silo's own "
                "task makes of the plan's seed; both sides need the same version of the task. To "
                "begin with another model, pin the state in [policy] first_states: "
                f"{state_hash.hex()}"
            )

    def _spec(self, number: int) -> VectorSpec:
        """Return the vector's spec as this silo computes it, for any round but a refresh."""
        training = self._plan.kind_of(number) is RoundKind.TRAINING
        return vector_spec(self._plan, number, self._layout.size if training else self._features)

    def _keep_pending(
        self,
        number: int,
        made: Contribution,
        owed: Mapping[str, FloatVector],
        arrived: Mapping[str, FloatVector],
    ) -> None:
        """Remember what this contribution implies, by what its integers say."""
        keeps = dict(made.keeps)
        if self._plan.compression.keeps_errors and made.work is not None:
            keeps.update(
                (ERROR + name, owed[name] - arrived[name]) for name in owed if name != VARIATE_DELTA
            )
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
            plan.personal
            or plan.compression.keeps_errors
            or self._algorithm.traits(number).keeps
            or self._least_change
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


def _alike(one: Tensor, own: Tensor) -> bool:
    """Whether two tensors of one signature are equal, floating ones but for their last places."""
    if own.dtype.kind != "f" or not own.size:
        return bool(np.array_equal(one, own))
    exact = own.astype(np.float64)
    most = _LAST_PLACES * float(np.spacing(np.abs(own).max()))
    return bool((np.abs(one.astype(np.float64) - exact) <= most).all())
