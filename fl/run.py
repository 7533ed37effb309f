"""A run as the coordinator sees it, from the first broadcast to the last, without I/O.

The driver asks `next`, carries the round out, and reports its sum to `receive` or its failure to
`fail`. A round that fails is tried again with the same number, so that silos repeat the same
integers, up to `max_attempts` times; then the run ends as FAILED with the last reason. The model
moves only with a sum that gives a finite next state; a sum that does not ends the run. All that
must survive a restart is in `snapshot`.

A silo whose control variate is lost goes late with VariateLostError, and a silo may vanish for
good. Either makes the driver call `request_refresh`: the next round renews all variates. A silo
that joins is admitted with `admit`, and from then on may be in a cohort; one that leaves says so in
its last sum. Which silos a round invites, `cohort` says.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

import numpy as np

from fl import fields
from fl.algorithms import algorithm_of
from fl.errors import LearningError, RunStateError
from fl.metrics import auc_of_histogram, concordance_index
from fl.participation import cohort_of
from fl.pipeline import (
    PAIRS,
    SCORE_BINS,
    Decoded,
    ReleasedMetrics,
    compressors,
    decode_aggregate,
    expanded,
    quantizer_steps,
    refresh_spec,
    released_metrics,
    usage_name,
    vector_spec,
)
from fl.plan import TABULAR, RoundKind, TrainingPlan
from fl.ports import FloatVector, NamedTensors, Tensor
from fl.privacy import privacy_of, released_means
from fl.state import (
    State,
    decode_state,
    encode_state,
    model_of,
    personal_of,
    ranges_of,
    trained_of,
)
from fl.step import initial_state, next_state, total_weight
from fl.update import TensorLayout, summed
from secagg.canonical import decode, encode
from secagg.effects import Aggregate
from secagg.messages import MAX_STATE_BYTES, model_hash
from secagg.parameters import COMMON_COEFFICIENTS, VectorSpec

MAX_ATTEMPTS: Final = 3

_SNAPSHOT: Final = "training-run"
_SNAPSHOT_EXTRA: Final = 4 * 1024 * 1024  # plan and counters beside the state


class RunStatus(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRequest:
    """One attempt of a round that the driver shall carry out.

    Attributes:
        kind: what is summed.
        number: the round's, from 1.
        attempt: from 0.
        is_refresh: whether the round renews control variates.
        spec: the vector's segments.
        coefficients: names of the coefficient vectors, for ctx.
        state: canonical bytes of what the silos work on.
        state_hash: its model hash.
    """

    kind: RoundKind
    number: int
    attempt: int
    is_refresh: bool = False
    spec: VectorSpec
    coefficients: tuple[str, ...]
    state: bytes
    state_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPreview:
    """What is known of a round while the one before it still runs: enough for its ctx.

    Keys and shares can be exchanged on the strength of it (protocol.md 2.2, 1).
    """

    kind: RoundKind
    number: int
    spec: VectorSpec
    coefficients: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """Nothing more to do.

    Attributes:
        status: COMPLETED or FAILED.
        reason: why it failed; empty otherwise.
        state: canonical bytes of the last good state.
    """

    status: RunStatus
    reason: str
    state: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What a round released, in numbers for people. Only sums over the survivors enter.

    Attributes:
        kind: what was summed.
        number: the round's.
        attempt: the one that succeeded.
        survivors: seats in the sum.
        examples: of all survivors; None where they send no count.
        loss: mean over their examples, or over them where they send no count, at the model that the
            round started from; noised under a privacy plan that releases metrics, None without.
        accuracy: likewise; None also where a task does not count right predictions.
        auc: of all survivors' examples, from summed histograms; None where there is none.
        concordance: C-index over pairs within the silos; None where there is none.
        is_refresh: whether the round renewed control variates and left the model.
        model_norm: of the new model; 0 in a statistics round, as the next.
        update_norm: of the model's change.
        aggregate_norm: of the silos' mean change or gradient; what the algorithm made of it is
            `update_norm`, and their ratio the effective step.
        cosine: between this change and the one before; None if there is none.
        saturated: coordinates that lay beyond their clip range, over all survivors.
        steps: the quantizer's step of each bulk segment.
    """

    kind: RoundKind
    number: int
    attempt: int
    survivors: tuple[int, ...]
    examples: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    auc: float | None = None
    concordance: float | None = None
    is_refresh: bool = False
    model_norm: float = 0.0
    update_norm: float = 0.0
    aggregate_norm: float = 0.0
    cosine: float | None = None
    saturated: int = 0
    steps: Mapping[str, float]

    @property
    def effective_step(self) -> float | None:
        """How far the model moved for each unit of the aggregate; None without one."""
        return self.update_norm / self.aggregate_norm if self.aggregate_norm else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailure:
    """An attempt that gave no next state; the model is what it was.

    Attributes:
        number: the round's.
        attempt: which one failed.
        reason: why.
        retried: whether another attempt follows.
    """

    number: int
    attempt: int
    reason: str
    retried: bool


class TrainingRun:
    """One run.

    Args:
        plan: what is trained and how.
        model: the initial model.
        names: seat to silo name of the enrolled silos.
        features: numeric features, for a plan that standardizes.
        max_attempts: tries of one round before the run fails.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        *,
        model: NamedTensors,
        names: Mapping[int, str],
        features: int = 0,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        if len(names) > plan.max_silos:
            raise RunStateError(
                f"{len(names)} silos are enrolled, the plan has room for {plan.max_silos}"
            )
        if plan.standardize and features < 1:
            raise RunStateError("the plan standardizes features, but the task has no numeric one")
        self.plan: Final = plan
        self._names = dict(names)
        self._features = features
        self._max_attempts = max_attempts
        self._state: State = initial_state(plan, model, tuple(names))
        self._state_bytes = encode_state(self._state)
        self._number = 1
        self._attempt = 0
        self._skipped = 0
        self._refreshing = False
        self._refreshes = 0
        self._losses: list[float] = []
        self._status = RunStatus.RUNNING
        self._reason = ""
        self._last_change: FloatVector | None = None

    @property
    def status(self) -> RunStatus:
        """Where the run stands."""
        return self._status

    @property
    def state(self) -> bytes:
        """The canonical bytes of the current state."""
        return self._state_bytes

    def model(self) -> dict[str, Tensor]:
        """Return the current model's tensors."""
        return model_of(self._state)

    def next(self) -> RoundRequest | RunFinished:
        """Return what to do now; the same answer until something is reported."""
        if self._status is not RunStatus.RUNNING:
            return RunFinished(status=self._status, reason=self._reason, state=self._state_bytes)
        kind = self.plan.kind_of(self._number)
        return RoundRequest(
            kind=kind,
            number=self._number,
            attempt=self._attempt,
            is_refresh=self._refreshing,
            spec=self._spec(),
            coefficients=COMMON_COEFFICIENTS,
            state=self._state_bytes,
            state_hash=model_hash(kind, self._state_bytes),
        )

    def preview(self) -> RoundPreview | None:
        """The round after the current one, unless the current one may be the last.

        A refresh that falls due, or an early stop, makes it void.
        """
        trains = self.plan.kind_of(self._number) is RoundKind.TRAINING and not self._refreshing
        number = self._number + 1
        if (
            self._status is not RunStatus.RUNNING
            or trained_of(self._state) + trains >= self.plan.rounds
            or number > self.plan.highest_round
        ):
            return None
        return RoundPreview(
            kind=self.plan.kind_of(number),
            number=number,
            spec=self._plain_spec(number),
            coefficients=COMMON_COEFFICIENTS,
        )

    def cohort(
        self, available: tuple[int, ...], number: int | None = None, *, least: int = 1
    ) -> tuple[int, ...]:
        """Return whom a round invites, by the plan's sampler; a refresh invites all.

        Args:
            available: seats of the run that can be invited now.
            number: of the round; the current one by default, or one that `preview` gave.
            least: the smallest cohort that the protocol's floor allows; a sample is never smaller.
        """
        number = self._number if number is None else number
        is_refresh = self._refreshing and number == self._number
        if is_refresh or self.plan.kind_of(number) is RoundKind.STATISTICS:
            return tuple(sorted(available))
        return cohort_of(
            self.plan.participation,
            available,
            tuple(self._names),
            seed=self.plan.seed,
            number=number,
            least=least,
        )

    def admit(self, seat: int, name: str) -> None:
        """Let a silo join a run that goes on; it takes part from its first sum.

        Raises:
            RunStateError: the plan has no room, or the seat is another silo's.
        """
        self._require_running()
        if self._names.setdefault(seat, name) != name:
            raise RunStateError(f"seat {seat} is taken by another silo")
        if len(self._names) > self.plan.max_silos:
            del self._names[seat]
            raise RunStateError(f"the plan has room for {self.plan.max_silos} silos")

    def dismiss(self, seat: int) -> None:
        """Invite a silo no more, after it has left in good order or is gone for good.

        In the latter case call `request_refresh`, too: c still counts its variate in.
        """
        self._names.pop(seat, None)

    def request_refresh(self) -> None:
        """Make the next round renew all control variates.

        Call it when a silo said that its variate is lost, or vanished for good, after the current
        attempt's outcome was reported. A round whose attempt failed is skipped: its number is not
        used again. Nothing happens where silos keep no variates, or a refresh is due already.
        """
        self._require_running()
        traits = algorithm_of(self.plan).traits(self._number)
        if not traits.has_variate or self._refreshing or not trained_of(self._state):
            return
        if self._refreshes == self.plan.max_refreshes:
            self.stop(f"control variates were lost more than {self._refreshes} times")
            return
        self._refreshes += 1
        self._refreshing = True
        if self._attempt:
            self._number += 1
            self._attempt = self._skipped = 0

    def receive(self, aggregate: Aggregate) -> RoundReport | RoundFailure:
        """Take the server's step on the sum of the current round.

        Returns:
            the report, or a failure if the sum gives no usable model: the model is kept.

        Raises:
            RunStateError: the sum is not of the round that `next` asked for.
        """
        parameters = aggregate.parameters
        self._require_running()
        got = (parameters.kind, parameters.round, parameters.attempt, aggregate.state_hash)
        kind = self.plan.kind_of(self._number)
        current = model_hash(kind, self._state_bytes)
        if got != (kind, self._number, self._attempt, current):
            raise RunStateError(
                f"expected the sum of round {self._number}, attempt {self._attempt} on the "
                f"current state; got round {parameters.round}, attempt {parameters.attempt}"
            )
        spec = self._spec()
        privacy, ranges = privacy_of(self.plan), ranges_of(self._state)
        try:
            released = decode_aggregate(aggregate.values, spec=spec, ranges=ranges, privacy=privacy)
        except RunStateError as error:  # a noised sum beyond the ring's half: the alarm
            return self._failed(str(error), retried=False)
        maps = compressors(self.plan, spec, self._size, aggregate.public_coins)
        released = replace(released, bulk=expanded(released.bulk, maps))
        return self.receive_decoded(released, aggregate.survivors)

    def receive_decoded(
        self, released: Decoded, survivors: tuple[int, ...]
    ) -> RoundReport | RoundFailure:
        """Take the server's step on a decoded sum of the current round, as `receive` does."""
        self._require_running()
        if not set(survivors) <= self._names.keys():
            raise RunStateError(
                f"the sum holds seats {sorted(survivors)}, the run has {sorted(self._names)}"
            )
        named = {seat: self._names[seat] for seat in survivors}
        try:
            following = next_state(self.plan, self._state, self._number, released, named)
        except LearningError as error:
            # Another attempt on this state would have to sum the same silos again (protocol.md
            # 2.5 v), with the same end.
            return self._failed(str(error), retried=False)
        report = self._report(following, released, survivors)
        self._state = following
        self._state_bytes = encode_state(following)
        self._attempt = self._skipped = 0
        self._refreshing = False
        if report.loss is not None:
            self._losses.append(report.loss)
        enough = self.plan.early_stop.is_reached(self._losses)
        if enough or trained_of(following) == self.plan.rounds:
            self._status = RunStatus.COMPLETED
        else:
            self._number += 1
        return report

    def fail(self, reason: str, *, may_retry: bool = True, is_proven: bool = False) -> RoundFailure:
        """Note that the current attempt gave no sum; retry, or end the run.

        Args:
            reason: for people.
            may_retry: whether the protocol allows another attempt (`ServerRound.may_retry`).
            is_proven: whether it was lost to a dealer that is proven to lie and that no later
                attempt invites. Then the next round trains on the same state, over the same silos
                without that one; the lost round's number is not used again (protocol.md 2.5 v).
        """
        self._require_running()
        failures = self._attempt - self._skipped + 1
        retried = may_retry and failures < self._max_attempts
        if is_proven and not may_retry and self._may_skip:
            lost = RoundFailure(
                number=self._number, attempt=self._attempt, reason=reason, retried=True
            )
            self._number += 1
            self._attempt = self._skipped = 0
            return lost
        return self._failed(reason, retried=retried)

    @property
    def _may_skip(self) -> bool:
        """Whether the next number sums the same kind, and one is left."""
        trains = self.plan.kind_of(self._number) is RoundKind.TRAINING
        return trains and self._number < self.plan.highest_round

    def skip_to(self, attempt: int) -> None:
        """Go on with this attempt of the current round, after a restart of the coordinator.

        The attempts that it cut short do not count as failures: nothing speaks against the round.

        Raises:
            RunStateError: the attempt lies behind.
        """
        self._require_running()
        if attempt < self._attempt:
            raise RunStateError(f"attempt {attempt} lies behind attempt {self._attempt}")
        self._skipped += attempt - self._attempt
        self._attempt = attempt

    def stop(self, reason: str) -> None:
        """End the run as FAILED with the model it has."""
        self._require_running()
        self._status = RunStatus.FAILED
        self._reason = reason

    def snapshot(self) -> bytes:
        """Return all that `restore` needs to go on."""
        counters = {
            "number": self._number,
            "attempt": self._attempt,
            "skipped": self._skipped,
            "max_attempts": self._max_attempts,
            "features": self._features,
            "refreshing": self._refreshing,
            "refreshes": self._refreshes,
            "losses": self._losses,
            "names": {str(seat): name for seat, name in self._names.items()},
            "status": self._status.value,
            "reason": self._reason,
        }
        return encode(_SNAPSHOT, self.plan.document(), fields.dump(counters), self._state_bytes)

    @classmethod
    def restore(cls, snapshot: bytes, names: Mapping[int, str]) -> Self:
        """Return the run of a snapshot; only the next report's `cosine` is lost.

        Args:
            snapshot: of `snapshot`.
            names: as at the start; the snapshot knows who joined or was dismissed since.

        Raises:
            RunStateError: a seat has another name than it had.
        """
        document, told, state = decode(
            snapshot, _SNAPSHOT, max_bytes=MAX_STATE_BYTES + _SNAPSHOT_EXTRA, fields=3
        )
        counters = json.loads(told)
        known = {int(seat): str(name) for seat, name in counters["names"].items()}
        if any(names.get(seat, name) != name for seat, name in known.items()):
            raise RunStateError("the snapshot names other silos than the roster; check the seats")
        decoded = decode_state(state, MAX_STATE_BYTES)
        run = cls(
            TrainingPlan.parse(document),
            model={**model_of(decoded), **personal_of(decoded)},
            names=known,
            features=counters["features"],
            max_attempts=counters["max_attempts"],
        )
        run._state, run._state_bytes = decoded, state
        run._number, run._attempt = counters["number"], counters["attempt"]
        run._skipped = counters.get("skipped", 0)  # snapshots of 0.1 have none
        run._refreshing, run._refreshes = counters["refreshing"], counters["refreshes"]
        run._losses = counters["losses"]
        run._status, run._reason = RunStatus(counters["status"]), counters["reason"]
        return run

    def _failed(self, reason: str, *, retried: bool) -> RoundFailure:
        failure = RoundFailure(
            number=self._number, attempt=self._attempt, reason=reason, retried=retried
        )
        if retried:
            self._attempt += 1
        else:
            self.stop(f"round {self._number} failed in attempt {self._attempt}: {reason}")
        return failure

    @property
    def _size(self) -> int:
        return TensorLayout.of(summed(self.model())).size

    def _spec(self) -> VectorSpec:
        if self._refreshing:
            return refresh_spec(self.plan, self._size)
        return self._plain_spec(self._number)

    def _plain_spec(self, number: int) -> VectorSpec:
        training = self.plan.kind_of(number) is RoundKind.TRAINING
        return vector_spec(self.plan, number, self._size if training else self._features)

    def _require_running(self) -> None:
        if self._status is not RunStatus.RUNNING:
            raise RunStateError(f"the run is {self._status}; start another one")

    def _report(
        self, following: State, released: Decoded, survivors: tuple[int, ...]
    ) -> RoundReport:
        kind = self.plan.kind_of(self._number)
        ranges = ranges_of(self._state)
        report = RoundReport(
            kind=kind,
            number=self._number,
            attempt=self._attempt,
            survivors=survivors,
            is_refresh=self._refreshing,
            saturated=sum(
                int(released.meta[usage][0])
                for usage in map(usage_name, released.bulk)
                if usage in released.meta
            ),
            steps=quantizer_steps(self._spec(), ranges, privacy_of(self.plan)),
        )
        if kind is RoundKind.STATISTICS or self._refreshing:
            return report
        before, after = summed(self.model()), summed(model_of(following))
        layout = TensorLayout.of(before)
        flat = layout.flatten(after)
        change = flat - layout.flatten(before)
        cosine = _cosine(change, self._last_change)
        self._last_change = change
        metrics = _metrics(self.plan, released, len(survivors))
        bins, pairs = released.meta.get(SCORE_BINS), released.meta.get(PAIRS)
        moved = next(iter(released.bulk.values())) / total_weight(
            self.plan, released, {seat: self._names[seat] for seat in survivors}
        )
        return replace(
            report,
            examples=metrics.examples if metrics else None,
            loss=metrics.loss if metrics else None,
            accuracy=metrics.accuracy if metrics else None,
            auc=None if bins is None else auc_of_histogram(bins),
            concordance=None if pairs is None else concordance_index(*map(int, pairs)),
            model_norm=float(np.linalg.norm(flat)),
            update_norm=float(np.linalg.norm(change)),
            aggregate_norm=float(np.linalg.norm(moved)),
            cosine=cosine,
        )


def _metrics(plan: TrainingPlan, released: Decoded, silos: int) -> ReleasedMetrics | None:
    """Return what the sum says of its silos' losses: exact, or noised by a privacy plan."""
    noised = released_means(privacy_of(plan), released.bulk, released.meta)
    if noised is not None:
        return ReleasedMetrics(loss=noised[0], accuracy=noised[1])
    found = released_metrics(released.meta, silos)
    if found is not None and plan.task.name != TABULAR and not found.accuracy:
        return replace(found, accuracy=None)  # an own task need not know what is right
    return found


def _cosine(change: FloatVector, before: FloatVector | None) -> float | None:
    """Return the cosine between two changes, None where one is missing or zero."""
    if before is None:
        return None
    product = math.sqrt(float(change @ change)) * math.sqrt(float(before @ before))
    return float(change @ before) / product if product else None
