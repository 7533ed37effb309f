"""What a run sums next and what it does with a sum: the same for training and for statistics.

The driver asks `next`, carries the round out, and reports its sum to `receive` or its failure to
`fail`. A round that fails is tried again with the same number, so that silos repeat the same
integers, up to `max_attempts` times; then the run ends as FAILED with the last reason. All that
must survive a restart is in `snapshot`.

`Course` holds what all kinds of runs share: who is in the run, which round and attempt it is at,
and how often the round has failed. What is summed is its children's, `fl.run.TrainingRun` and
`fl.query_run.QueryRun`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from fl import fields
from fl.errors import RunStateError, SpecMismatchError
from fl.plan import RoundKind
from fl.privacy import Planned, document_of, privacy_of
from fl.statistics import IntVector
from secagg.canonical import decode, encode
from secagg.chain import Standpoint
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.messages import MAX_STATE_BYTES, model_hash
from secagg.parameters import COMMON_COEFFICIENTS, RoundParameters, VectorSpec

MAX_ATTEMPTS: Final = 5

_SNAPSHOT_EXTRA: Final = 4 * 1024 * 1024  # plan and counters beside the state


class RunPlan(Planned, Protocol):
    """What any run's plan says: `fl.plan.TrainingPlan` or `fl.query_plan.QueryPlan`."""

    @property
    def algorithm(self) -> str:
        """Return what the run is listed as."""
        ...

    @property
    def max_silos(self) -> int:
        """Return n_max, for which rings are sized."""
        ...

    @property
    def last_round(self) -> int:
        """Return the number of the last round, if nothing is inserted."""
        ...

    def document(self) -> bytes:
        """Return the plan as canonical JSON."""
        ...

    def digest(self) -> bytes:
        """Return the 32 bytes that every round names."""
        ...


class Participant(Protocol):
    """A silo in a run: `fl.participant.RunParticipant` or `fl.query_run.QueryParticipant`."""

    def know(self, names: Mapping[int, str], /) -> None:
        """Learn the names of silos that came to the roster since."""
        ...

    def check(self, parameters: RoundParameters, plan_document: bytes, /) -> None:
        """Refuse a round that is not one of this run as the plan has it.

        Raises:
            SpecMismatchError: says which field differs.
        """
        ...

    def standpoint(self) -> Standpoint | None:
        """Return where this silo left the run, None if it has settled no round of it."""
        ...

    def contribute(
        self, parameters: RoundParameters, state_bytes: bytes, coins: bytes = b"", /
    ) -> dict[str, IntVector]:
        """Return the integers of every data segment for the received state."""
        ...

    def settle(self, aggregate: Aggregate, state_bytes: bytes, /) -> bytes:
        """Take the step that follows from a verified sum; return the next state."""
        ...


def require_round(
    parameters: RoundParameters,
    plan_document: bytes,
    *,
    plan: RunPlan,
    run: RunId,
    kind: RoundKind,
    spec: VectorSpec,
) -> None:
    """Refuse a round that asks for anything else than the plan and the silo's data give.

    Args:
        parameters: as the coordinator asks.
        plan_document: as it came with them.
        plan: as the silo accepted it.
        run: likewise.
        kind: what round `parameters.round` sums.
        spec: its vector, as this silo computes it.

    Raises:
        SpecMismatchError: says which field differs.
    """
    if plan_document != plan.document() or parameters.training_plan != plan.digest():
        raise SpecMismatchError("the round names another plan than the run began with")
    privacy = privacy_of(plan)
    expected = (
        ("run", run, parameters.run),
        ("kind", kind, parameters.kind),
        ("n_max", plan.max_silos, parameters.n_max),
        ("vector", _shown(spec), _shown(parameters.spec)),
        ("coefficients", COMMON_COEFFICIENTS, parameters.coefficients),
        ("privacy plan", document_of(plan).decode(), parameters.dp.decode(errors="replace")),
        ("h_dp", privacy.h_dp if privacy else 0, parameters.h_dp),
    )
    for field, mine, theirs in expected:
        if mine != theirs:
            raise SpecMismatchError(
                f"round {parameters.round}: {field}: the plan and this silo give {mine}, "
                f"the coordinator asks {theirs}"
            )
    if privacy is not None and parameters.n_c < privacy.n_c:
        raise SpecMismatchError(
            f"round {parameters.round}: the privacy plan counts on n_c of at least {privacy.n_c}, "
            f"the coordinator asks {parameters.n_c}"
        )


def _shown(spec: VectorSpec) -> str:
    """Return all that tells two specs apart, for people: name, length, bits, bound."""
    return ", ".join(
        f"{s.name}[{s.length}] {s.kind} {s.value_bits}/{s.ring_bits} bits, at most {s.bound}"
        for s in spec.segments
    )


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


class Course(ABC):
    """One run as the coordinator sees it, without I/O.

    Args:
        names: seat to silo name of the enrolled silos.
        max_silos: the plan's n_max.
        max_attempts: tries of one round before the run fails.
    """

    def __init__(
        self, names: Mapping[int, str], *, max_silos: int, max_attempts: int = MAX_ATTEMPTS
    ) -> None:
        if len(names) > max_silos:
            raise RunStateError(
                f"{len(names)} silos are enrolled, the plan has room for {max_silos}"
            )
        self._names = dict(names)
        self._max_silos = max_silos
        self._max_attempts = max_attempts
        self._number = 1
        self._attempt = 0
        self._skipped = 0
        self._status = RunStatus.RUNNING
        self._reason = ""

    # --- what differs by the kind of run ------------------------------------------------------

    @property
    @abstractmethod
    def state(self) -> bytes:
        """The canonical bytes of what the run has come to: its model, or the sums so far."""

    @property
    def basis(self) -> bytes:
        """The canonical bytes of what silos work on next: the state, if nothing else is said."""
        return self.state

    @abstractmethod
    def preview(self) -> RoundPreview | None:
        """The round after the current one, unless the current one may be the last."""

    @abstractmethod
    def receive(self, aggregate: Aggregate) -> RoundReport | RoundFailure:
        """Take the step that follows from the sum of the current round.

        Returns:
            the report, or a failure if nothing follows from the sum: the state is kept.

        Raises:
            RunStateError: the sum is not of the round that `next` asked for.
        """

    @abstractmethod
    def figures(self, report: RoundReport) -> dict[str, float]:
        """Return what the report of the last sum says in numbers, by name."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """Return all that it takes to go on after a restart."""

    @abstractmethod
    def _kind(self) -> RoundKind:
        """Return what the current round sums."""

    @abstractmethod
    def _spec(self) -> VectorSpec:
        """Return the current round's vector."""

    @property
    def _is_refresh(self) -> bool:
        """Whether the current round renews control variates."""
        return False

    @property
    def _may_skip(self) -> bool:
        """Whether a lost round's number may be left out, for the next one to sum the same."""
        return False

    def cohort(
        self,
        available: tuple[int, ...],
        number: int | None = None,  # noqa: ARG002 (of the interface)
        *,
        least: int = 1,  # noqa: ARG002 (of the interface)
    ) -> tuple[int, ...]:
        """Return whom a round invites: everybody, unless the run samples.

        Args:
            available: seats of the run that can be invited now.
            number: of the round; the current one by default, or one that `preview` gave.
            least: the smallest cohort that the protocol's floor allows.
        """
        return tuple(sorted(available))

    def request_refresh(self) -> None:
        """Make the next round renew what silos keep; nothing where they keep nothing."""
        self._require_running()

    # --- what all runs share ------------------------------------------------------------------

    @property
    def status(self) -> RunStatus:
        """Where the run stands."""
        return self._status

    def next(self) -> RoundRequest | RunFinished:
        """Return what to do now; the same answer until something is reported."""
        if self._status is not RunStatus.RUNNING:
            return RunFinished(status=self._status, reason=self._reason, state=self.state)
        kind = self._kind()
        return RoundRequest(
            kind=kind,
            number=self._number,
            attempt=self._attempt,
            is_refresh=self._is_refresh,
            spec=self._spec(),
            coefficients=COMMON_COEFFICIENTS,
            state=self.basis,
            state_hash=model_hash(kind, self.basis),
        )

    def admit(self, seat: int, name: str) -> None:
        """Let a silo join a run that goes on; it takes part from its first sum.

        Raises:
            RunStateError: the plan has no room, or the seat is another silo's.
        """
        self._require_running()
        if self._names.setdefault(seat, name) != name:
            raise RunStateError(f"seat {seat} is taken by another silo")
        if len(self._names) > self._max_silos:
            del self._names[seat]
            raise RunStateError(f"the plan has room for {self._max_silos} silos")

    def dismiss(self, seat: int) -> None:
        """Invite a silo no more, after it has left in good order or is gone for good.

        In the latter case call `request_refresh`, too: c still counts its variate in.
        """
        self._names.pop(seat, None)

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
        if is_proven and not may_retry and self._may_skip:
            lost = RoundFailure(
                number=self._number, attempt=self._attempt, reason=reason, retried=True
            )
            self._go_on(is_done=False)
            return lost
        failures = self._attempt - self._skipped + 1
        return self._failed(reason, retried=may_retry and failures < self._max_attempts)

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
        """End the run as FAILED with the state it has."""
        self._require_running()
        self._status = RunStatus.FAILED
        self._reason = reason

    def _require_sum(self, aggregate: Aggregate) -> None:
        """Raise RunStateError unless the sum is of the current attempt and state."""
        parameters = aggregate.parameters
        self._require_running()
        got = (parameters.kind, parameters.round, parameters.attempt, aggregate.state_hash)
        kind = self._kind()
        if got != (kind, self._number, self._attempt, model_hash(kind, self.basis)):
            raise RunStateError(
                f"expected the sum of round {self._number}, attempt {self._attempt} on the "
                f"current state; got round {parameters.round}, attempt {parameters.attempt}"
            )

    def _failed(self, reason: str, *, retried: bool) -> RoundFailure:
        failure = RoundFailure(
            number=self._number, attempt=self._attempt, reason=reason, retried=retried
        )
        if retried:
            self._attempt += 1
        else:
            self.stop(f"round {self._number} failed in attempt {self._attempt}: {reason}")
        return failure

    def _go_on(self, *, is_done: bool) -> None:
        """After a sum: on to the next round, or to the end."""
        self._attempt = self._skipped = 0
        if is_done:
            self._status = RunStatus.COMPLETED
        else:
            self._number += 1

    def _require_running(self) -> None:
        if self._status is not RunStatus.RUNNING:
            raise RunStateError(f"the run is {self._status}; start another one")

    def _written(self, label: str, plan: bytes, **more: object) -> bytes:
        """Return a snapshot: the plan's document, the counters and more of them, the state."""
        counters = {
            "number": self._number,
            "attempt": self._attempt,
            "skipped": self._skipped,
            "max_attempts": self._max_attempts,
            "names": {str(seat): name for seat, name in self._names.items()},
            "status": self._status.value,
            "reason": self._reason,
        }
        return encode(label, plan, fields.dump(counters | more), self.state)

    def _restore_counters(self, counters: Mapping[str, Any]) -> None:
        self._number, self._attempt = counters["number"], counters["attempt"]
        self._skipped = counters.get("skipped", 0)  # snapshots of 0.1 have none
        self._status, self._reason = RunStatus(counters["status"]), counters["reason"]


def read_snapshot(
    label: str, snapshot: bytes, names: Mapping[int, str]
) -> tuple[bytes, dict[str, Any], bytes]:
    """Return a snapshot's plan, its counters and its state.

    Args:
        label: of the kind of run.
        snapshot: of such a run.
        names: as at the start; the counters' `names` hold who joined or was dismissed since.

    Raises:
        RunStateError: a seat has another name than it had.
    """
    plan, told, state = decode(
        snapshot, label, max_bytes=MAX_STATE_BYTES + _SNAPSHOT_EXTRA, fields=3
    )
    counters = json.loads(told)
    known = {int(seat): str(name) for seat, name in counters["names"].items()}
    if any(names.get(seat, name) != name for seat, name in known.items()):
        raise RunStateError("the snapshot names other silos than the roster; check the seats")
    return plan, counters | {"names": known}, state
