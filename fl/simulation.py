"""A whole run in one process, through the very objects that the services use.

`secure=True` takes every round through `secagg`'s state machines, masks and all. `secure=False` is
the reference: the same training, the same linear maps of a plan that compresses and the same server
step on sums of plain floats, without quantizer or masks, and for any number of silos.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import numpy as np

from dp.rng import NoiseSource, NoiseStream
from fl.errors import LearningError, PlanError, VariateLostError
from fl.participant import RunParticipant
from fl.pipeline import Decoded, IntVector
from fl.plan import TrainingPlan
from fl.ports import FloatVector, LocalTask, SiloMemory, Tensor
from fl.privacy import central_noise, document_of, privacy_of
from fl.rounds import RoundFailure, RoundReport, RoundRequest, RunStatus
from fl.run import TrainingRun
from fl.seeding import derive_seed
from fl.state import decode_state, model_of
from fl.testing import DictMemory
from secagg.canonical import digest, u64
from secagg.effects import Aggregate, Finished, Send
from secagg.ids import RunId
from secagg.journal import SiloHistory
from secagg.messages import (
    MAX_STATE_BYTES,
    Abandon,
    AbandonRequest,
    Message,
    Result,
    Settled,
    Succession,
    attachments,
)
from secagg.parameters import RoundParameters, threshold
from secagg.phases import Phase
from secagg.policy import SiloPolicy
from secagg.recall import RecalledRound
from secagg.testing import RoundHarness, SeededRng, make_federation, make_parameters

Dropouts: TypeAlias = Mapping[int, Mapping[int, Phase]]

# Who noises sums in the privacy mode `central`.
COORDINATOR: Final = "coordinator"
# Who vanishes in one of these phases is not in the sum.
_BEFORE_UPLOAD: Final = frozenset({Phase.ADVERTISE, Phase.SHARE, Phase.MASK})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What a simulated run gave.

    Attributes:
        status: COMPLETED or FAILED.
        reason: why it failed; empty otherwise.
        history: a report for each round, a failure for each failed attempt, in order.
        state: canonical bytes of the last state.
        variates: silo name to its committed control variate, None for zero. Only a simulation
            can show them.
        uplink_bytes: what all silos sent, messages and vectors, in all attempts; 0 without the
            secure sum.
        coins: round number to the public coins of the sum that was taken.
    """

    status: RunStatus
    reason: str
    history: tuple[RoundReport | RoundFailure, ...]
    state: bytes
    variates: Mapping[str, FloatVector | None]
    uplink_bytes: int
    coins: Mapping[int, bytes]

    def model(self) -> dict[str, Tensor]:
        """Return the last model's tensors."""
        return model_of(decode_state(self.state, MAX_STATE_BYTES))

    @property
    def reports(self) -> tuple[RoundReport, ...]:
        """The successful rounds."""
        return tuple(entry for entry in self.history if isinstance(entry, RoundReport))


def simulate(
    plan: TrainingPlan,
    tasks: Mapping[str, LocalTask],
    *,
    secure: bool = True,
    dropouts: Dropouts = MappingProxyType({}),
    seed: int = 0,
    memories: Mapping[str, SiloMemory] = MappingProxyType({}),
    own_steps: Callable[[str, int], int] | None = None,
    on_round: Callable[[RoundReport | RoundFailure, TrainingRun], None] | None = None,
    noise: Callable[[str], NoiseSource] | None = None,
    colluding: int | None = None,
    coins: Mapping[int, bytes] = MappingProxyType({}),
) -> SimulationResult:
    """Run a training plan over silos in this process.

    Args:
        plan: what is trained and how.
        tasks: silo name to its task. Seats 1, 2, … go to the sorted names.
        secure: through the secure sum, or the reference of plain floats.
        dropouts: round number to seats that vanish in it, and the phase in which they do; they
            are back in the next round.
        seed: of keys, masks and rounding coins, which a simulation wants reproducible.
        memories: silo name to its memory, for silos that shall start with one or lose it.
        own_steps: (silo, round) to K_k, for a plan that leaves it to the silos.
        on_round: called after each attempt with its outcome and the run.
        noise: silo name (or COORDINATOR) to a source of noise for one attempt. By default it
            is real noise, which no seed repeats; a source that repeats protects nobody.
        colluding: n_c of the silos' policies; None for theirs by default, a third of all silos. No
            sample is smaller than the floor that goes with it, in plain runs neither.
        coins: round number to the public coins that a plain run compresses with, for one that shall
            send the same blocks as a secure run; by default they follow from the seed.

    Raises:
        LearningError: a silo refuses the run, as for a task that does not fit the plan.
    """
    if plan.privacy and not secure:
        raise PlanError("a privacy plan needs the secure sum; there is no plain reference")
    names = dict(enumerate(sorted(tasks), start=1))
    run_id = RunId(digest("simulated-run", u64(seed))[:16])
    participants = {
        seat: RunParticipant(
            plan,
            run=run_id,
            seat=seat,
            names=names,
            task=tasks[name],
            memory=memories.get(name) or DictMemory(),
            rng=SeededRng(derive_seed(seed, "silo", seat)),
            own_steps=partial(own_steps, name) if own_steps else None,
            noise=partial(noise, name) if noise else NoiseStream,
        )
        for seat, name in names.items()
    }
    n_c = (len(names) - 1) // 3 if colluding is None else colluding
    policy = SiloPolicy(n_c=n_c)
    first = tasks[names[1]]
    run = TrainingRun(
        plan,
        model=first.initial_model(plan.seed),
        names=names,
        features=len(first.statistics().names) if plan.standardize else 0,
    )
    rounds: _Rounds = (
        _SecureRounds(
            run,
            participants,
            policy,
            run_id=run_id,
            seed=seed,
            noise=partial(noise, COORDINATOR) if noise else NoiseStream,
        )
        if secure
        else _PlainRounds(run, participants, policy, seed=seed, coins=coins)
    )
    history: list[RoundReport | RoundFailure] = []
    while isinstance(step := run.next(), RoundRequest):
        # Whoever vanished is back for the next attempt.
        gone = dropouts.get(step.number, {}) if step.attempt == 0 else {}
        outcome = rounds.play(step, gone)
        history.append(outcome)
        lost = any(isinstance(error, VariateLostError) for error in rounds.errors.values())
        if lost and run.status is RunStatus.RUNNING:
            run.request_refresh()
        if on_round is not None:
            on_round(outcome, run)
    return SimulationResult(
        status=step.status,
        reason=step.reason,
        history=tuple(history),
        state=step.state,
        variates={names[seat]: p.variate() for seat, p in participants.items()},
        uplink_bytes=rounds.uplink_bytes,
        coins=rounds.coins,
    )


class _Rounds(Protocol):
    """A way to carry out attempts."""

    @property
    def errors(self) -> Mapping[int, LearningError]:
        """What silos said instead of contributing to the last attempt."""
        ...

    @property
    def uplink_bytes(self) -> int:
        """What all silos have sent."""
        ...

    @property
    def coins(self) -> Mapping[int, bytes]:
        """The public coins of each round."""
        ...

    def play(self, request: RoundRequest, gone: Mapping[int, Phase]) -> RoundReport | RoundFailure:
        """Carry one attempt out and report it to the run."""
        ...


class _PlainRounds:
    """Sums of plain floats."""

    uplink_bytes = 0

    def __init__(
        self,
        run: TrainingRun,
        participants: Mapping[int, RunParticipant],
        policy: SiloPolicy,
        *,
        seed: int,
        coins: Mapping[int, bytes],
    ) -> None:
        self._run = run
        self._participants = participants
        self._policy = policy
        self._seed = seed
        self.coins = dict(coins)
        self.errors: dict[int, LearningError] = {}

    def play(self, request: RoundRequest, gone: Mapping[int, Phase]) -> RoundReport | RoundFailure:
        contributions: dict[int, Decoded] = {}
        self.errors = {}
        own = digest("simulated-coins", u64(self._seed), u64(request.number))
        coins = self.coins.setdefault(request.number, own)
        for seat in _cohort(self._run, self._participants, self._policy):
            if gone.get(seat) in _BEFORE_UPLOAD:
                continue
            try:
                contributions[seat] = self._participants[seat].contribute_exact(
                    request.number, request.state, coins, is_refresh=request.is_refresh
                )
            except LearningError as error:
                self.errors[seat] = error
        if not contributions:
            return self._run.fail(_reason("no silo contributed", self.errors))
        survivors = tuple(sorted(contributions))
        released = _sum([contributions[seat] for seat in survivors])
        outcome = self._run.receive_decoded(released, survivors)
        if isinstance(outcome, RoundReport):
            for seat in survivors:
                self._participants[seat].settle_exact(request.number, released, survivors)
        return outcome


class _SecureRounds:
    """Sums through the protocol, over `secagg`'s in-memory link."""

    def __init__(
        self,
        run: TrainingRun,
        participants: Mapping[int, RunParticipant],
        policy: SiloPolicy,
        *,
        run_id: RunId,
        seed: int,
        noise: Callable[[], NoiseSource],
    ) -> None:
        self._run = run
        self._policy = policy
        self._participants = participants
        self._noise = noise
        self._run_id = run_id
        self._seed = seed
        self._federation = make_federation(len(participants), seed=seed)
        self._histories = {seat: SiloHistory() for seat in participants}
        self._document = run.plan.document()
        self._abandons: tuple[Abandon, ...] = ()
        self._settled: dict[int, Settled] = {}
        self.errors: dict[int, LearningError] = {}
        self.uplink_bytes = 0
        self.coins: dict[int, bytes] = {}
        self._result: Result | None = None
        self._harness: RoundHarness | None = None

    def play(self, request: RoundRequest, gone: Mapping[int, Phase]) -> RoundReport | RoundFailure:
        roster, privacy = self._federation.roster, privacy_of(self._run.plan)
        least = privacy.n_c if privacy else 0
        parameters = make_parameters(
            roster,
            request.spec,
            n_c=max(self._policy.n_c or 0, least),
            h_dp=privacy.h_dp if privacy else 0,
            dp=document_of(self._run.plan),
            run=self._run_id,
            kind=request.kind.value,
            round=request.number,
            attempt=request.attempt,
            n_max=self._run.plan.max_silos,
            training_plan=self._run.plan.digest(),
            coefficients=request.coefficients,
        )
        known = {seat: one.standpoint() for seat, one in self._participants.items()}
        self.errors, self._result = {}, None
        harness = self._harness = RoundHarness(
            federation=self._federation,
            parameters=parameters,
            state=request.state,
            train=self._train,
            drop=gone,
            plan=self._document,
            cohort=_cohort(self._run, self._participants, self._policy),
            histories=self._histories,
            policies=dict.fromkeys(self._participants, self._policy),
            standpoints={seat: one for seat, one in known.items() if one is not None},
            succession=self._succession(request.state_hash, parameters.n_c + 1),
            seed=self._seed,
            to_silo=self._watch,
            to_server=self._count,
            abandons=self._abandons if request.attempt else (),
            noise=central_noise(self._run.plan, self._noise),
        )
        outcome = harness.run()
        if outcome.aggregate is None:
            self._ask_to_abandon(harness, gone)
            self._abandons += harness.server.abandons
            reason = outcome.aborted.reason if outcome.aborted else "the round did not end"
            refusals = {**outcome.silo_errors, **self.errors}
            return self._run.fail(_reason(reason, refusals), may_retry=harness.server.may_retry)
        self._abandons = ()
        self.coins[request.number] = outcome.aggregate.public_coins
        report = self._run.receive(outcome.aggregate)
        if isinstance(report, RoundReport):
            aggregates = {**outcome.silo_aggregates, **self._caught_up(harness, gone)}
            for seat, aggregate in aggregates.items():
                self._participants[seat].settle(aggregate, request.state)
                self._note_settled(seat)
        return report

    def _note_settled(self, seat: int) -> None:
        """Let a silo sign where it stands, for those that were away."""
        if (standpoint := self._participants[seat].standpoint()) is None:
            return
        settled = standpoint.settled(
            federation=self._federation.roster.federation,
            run=self._run_id,
            seat=seat,
            identity=self._federation.identities[seat],
        )
        if self._settled.get(seat) != settled:
            self._settled[seat] = settled
            self.uplink_bytes += len(settled.encode())

    def _succession(self, state_hash: bytes, needed: int) -> Succession | None:
        """Return the word of so many silos that the run stands here, if so many have given it."""
        found = [one for one in self._settled.values() if one.model_hash == state_hash]
        newest = max((one.round for one in found), default=0)
        signers = [one for one in found if one.round == newest]
        return Succession.of(*signers[:needed]) if len(signers) >= needed else None

    def _train(
        self, seat: int, parameters: RoundParameters, state: bytes
    ) -> Mapping[str, IntVector] | None:
        participant = self._participants[seat]
        try:
            participant.check(parameters, self._document)
            assert self._harness is not None  # it is what calls this
            coins = self._harness.silos[seat].public_coins
            return participant.contribute(parameters, state, coins)
        except LearningError as error:
            self.errors[seat] = error
            return None

    def _watch(self, _seat: int, message: Message) -> Message:
        if isinstance(message, Result):
            self._result = message
        return message

    def _count(self, seat: int, message: Message) -> Message:
        """Add a message and the vectors that go with it to what silos sent."""
        assert self._harness is not None  # it is what calls this
        store = self._harness.stores[seat]
        self.uplink_bytes += len(message.encode())
        for item in attachments(message):
            self.uplink_bytes += sum(len(store.read(item.name, i)) for i in range(item.chunks))
        return message

    def _caught_up(self, harness: RoundHarness, gone: Mapping[int, Phase]) -> dict[int, Aggregate]:
        """Let those who vanished after their upload come back and check the result."""
        aggregates: dict[int, Aggregate] = {}
        assert self._result is not None  # the aggregate is there, so it was sent to someone
        for seat in sorted(gone.keys() - harness.outcome.silo_aggregates.keys()):
            for effect in self._recalled(harness, seat).receive(self._result):
                if isinstance(effect, Finished):
                    aggregates[seat] = effect.aggregate
        return aggregates

    def _ask_to_abandon(self, harness: RoundHarness, gone: Mapping[int, Phase]) -> None:
        """Let those who vanished come back and abandon an attempt that failed without them."""
        attempt = harness.server.parameters.attempt_id
        request = AbandonRequest(run=attempt.run, round=attempt.round, attempt=attempt.attempt)
        # Who vanished before it advertised keys has no share of this attempt's secrets.
        for seat in sorted(seat for seat, phase in gone.items() if phase is not Phase.ADVERTISE):
            for effect in self._recalled(harness, seat).receive(request):
                if isinstance(effect, Send):
                    harness.server.receive(seat, effect.message, 0.0)

    def _recalled(self, harness: RoundHarness, seat: int) -> RecalledRound:
        """Return the attempt as a restarted silo remembers it."""
        return RecalledRound(
            harness.server.parameters.attempt_id,
            seat=seat,
            identity=self._federation.identities[seat],
            roster=self._federation.roster,
            history=self._histories[seat],
            store=harness.outcome.server_store,
        )


def _cohort(run: TrainingRun, seats: Collection[int], policy: SiloPolicy) -> tuple[int, ...]:
    """Return whom a round invites: no fewer than the policies' floor, in plain runs too."""
    n_c = policy.n_c or 0
    meets = (
        n
        for n in range(1, len(seats))
        if n >= max(threshold(n, n_c), policy.n_min, max(n_c, 1) + policy.h_min)
    )
    return run.cohort(tuple(seats), least=next(meets, len(seats)))


def _reason(reason: str, errors: Mapping[int, Exception]) -> str:
    """Return a failure's reason with what the silos said."""
    return "; ".join([reason, *(f"seat {seat}: {errors[seat]}" for seat in sorted(errors))])


def _sum(contributions: list[Decoded]) -> Decoded:
    first = contributions[0]
    return Decoded(
        bulk={name: np.sum([c.bulk[name] for c in contributions], axis=0) for name in first.bulk},
        meta={name: np.sum([c.meta[name] for c in contributions], axis=0) for name in first.meta},
    )
