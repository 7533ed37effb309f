"""A training run as the coordinator sees it, from the first broadcast to the last, without I/O.

How rounds follow one another is `fl.rounds`'. The model moves only with a sum that gives a finite
next state; a sum that does not ends the run.

A silo whose control variate is lost goes late with VariateLostError, and a silo may vanish for
good. Either makes the driver call `request_refresh`: the next round renews all variates. A silo
that joins is admitted with `admit`, and from then on may be in a cohort; one that leaves says so in
its last sum. Which silos a round invites, `cohort` says.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

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
from fl.rounds import (
    MAX_ATTEMPTS,
    Course,
    RoundFailure,
    RoundPreview,
    RoundReport,
    RunStatus,
    read_snapshot,
)
from fl.state import (
    State,
    decode_state,
    encode_state,
    is_renewed,
    model_of,
    personal_of,
    ranges_of,
    trained_of,
)
from fl.statistics import EXACT_SUMS
from fl.step import initial_state, next_state, total_weight
from fl.update import TensorLayout, summed
from secagg.effects import Aggregate
from secagg.messages import MAX_STATE_BYTES
from secagg.parameters import COMMON_COEFFICIENTS, VectorSpec

_SNAPSHOT: Final = "training-run"
_SLICE: Final = 2**16


class TrainingRun(Course):
    """One training run.

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
        super().__init__(names, max_silos=plan.max_silos, max_attempts=max_attempts)
        if plan.standardize and features < 1:
            raise RunStateError("the plan standardizes features, but the task has no numeric one")
        self.plan: Final = plan
        self._features = features
        self._state: State = initial_state(plan, model, tuple(names))
        self._state_bytes = encode_state(self._state)
        self._due = False  # a refresh
        self._refreshes = 0
        self._losses: list[float] = []
        # Of the last change, of length 1; for the next report's cosine, which needs no more digits.
        self._direction: NDArray[np.float32] | None = None

    @property
    def state(self) -> bytes:
        """The canonical bytes of the current state."""
        return self._state_bytes

    @property
    def basis(self) -> bytes:
        """The state; in a round of moments what all exact statistics are bound to."""
        return EXACT_SUMS if self._kind() is RoundKind.STATISTICS else self._state_bytes

    def model(self) -> dict[str, Tensor]:
        """Return the current model's tensors."""
        return model_of(self._state)

    def preview(self) -> RoundPreview | None:
        """The round after the current one, unless the current one may be the last.

        A refresh that falls due, or an early stop, makes it void.
        """
        trains = self.plan.kind_of(self._number) is RoundKind.TRAINING and not self._is_refresh
        number = self._number + 1
        if (
            self._status is not RunStatus.RUNNING
            or (self._due and not self._is_refresh)
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
        is_refresh = self._is_refresh and number == self._number
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

    def request_refresh(self) -> None:
        """Make the next round renew all control variates.

        Call it when a silo said that its variate is lost, or vanished for good, after the current
        attempt's outcome was reported. A round whose attempt failed is skipped: its number is not
        used again. Nothing happens where silos keep no variates, or a refresh is due already. Right
        after a refresh another one waits for a training round: over the same model, sums of other
        silos would differ by one silo's gradient, and silos refuse (fl.contribution).
        """
        self._require_running()
        traits = algorithm_of(self.plan).traits(self._number)
        if not traits.has_variate or self._due or not trained_of(self._state):
            return
        if self._refreshes == self.plan.max_refreshes:
            self.stop(f"control variates were lost more than {self._refreshes} times")
            return
        self._refreshes += 1
        self._due = True
        if self._is_refresh and self._attempt:
            self._number += 1
            self._attempt = self._skipped = 0

    def receive(self, aggregate: Aggregate) -> RoundReport | RoundFailure:
        """Take the server's step on the sum of the current round.

        Returns:
            the report, or a failure if the sum gives no usable model: the model is kept.

        Raises:
            RunStateError: the sum is not of the round that `next` asked for.
        """
        self._require_sum(aggregate)
        spec = self._spec()
        privacy, ranges = privacy_of(self.plan), ranges_of(self._state)
        survivors, coins = aggregate.survivors, aggregate.public_coins
        try:
            released = decode_aggregate(aggregate.values, spec=spec, ranges=ranges, privacy=privacy)
        except RunStateError as error:  # a noised sum beyond the ring's half: the alarm
            return self._failed(str(error), retried=False)
        del aggregate  # its integers are as big as what was made of them
        maps = compressors(self.plan, spec, self._size, coins)
        released = replace(released, bulk=expanded(released.bulk, maps))
        return self.receive_decoded(released, survivors)

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
        self._due = self._due and not self._is_refresh
        self._state = following
        self._state_bytes = encode_state(following)
        if report.loss is not None:
            self._losses.append(report.loss)
        enough = self.plan.early_stop.is_reached(self._losses)
        self._go_on(is_done=enough or trained_of(following) == self.plan.rounds)
        return report

    def figures(self, report: RoundReport) -> dict[str, float]:
        """Return the report's numbers by name, and the clip ranges that the next round uses."""
        figures = {
            "examples": report.examples,
            "loss": report.loss,
            "accuracy": report.accuracy,
            "model_norm": report.model_norm,
            "update_norm": report.update_norm,
            "cosine": report.cosine,
            "saturated": report.saturated,
        }
        figures |= {f"range.{name}": value for name, value in ranges_of(self._state).items()}
        return {name: float(value) for name, value in figures.items() if value is not None}

    def snapshot(self) -> bytes:
        """Return all that `restore` needs to go on."""
        return self._written(
            _SNAPSHOT,
            self.plan.document(),
            features=self._features,
            refreshing=self._due,
            refreshes=self._refreshes,
            losses=self._losses,
        )

    @classmethod
    def restore(cls, snapshot: bytes, names: Mapping[int, str]) -> Self:
        """Return the run of a snapshot; only the next report's `cosine` is lost.

        Args:
            snapshot: of `snapshot`.
            names: as at the start; the snapshot knows who joined or was dismissed since.

        Raises:
            RunStateError: a seat has another name than it had.
        """
        document, counters, state = read_snapshot(_SNAPSHOT, snapshot, names)
        decoded = decode_state(state, MAX_STATE_BYTES)
        run = cls(
            TrainingPlan.parse(document),
            model={**model_of(decoded), **personal_of(decoded)},
            names=counters["names"],
            features=counters["features"],
            max_attempts=counters["max_attempts"],
        )
        run._state, run._state_bytes = decoded, state
        run._restore_counters(counters)
        run._due, run._refreshes = counters["refreshing"], counters["refreshes"]
        run._losses = counters["losses"]
        return run

    @property
    def _may_skip(self) -> bool:
        """Whether the next number sums the same kind, and one is left."""
        trains = self.plan.kind_of(self._number) is RoundKind.TRAINING
        return trains and self._number < self.plan.highest_round

    def _kind(self) -> RoundKind:
        return self.plan.kind_of(self._number)

    @property
    def _is_refresh(self) -> bool:
        return self._due and not is_renewed(self._state)

    @property
    def _size(self) -> int:
        return TensorLayout.of(summed(self.model())).size

    def _spec(self) -> VectorSpec:
        if self._is_refresh:
            return refresh_spec(self.plan, self._size)
        return self._plain_spec(self._number)

    def _plain_spec(self, number: int) -> VectorSpec:
        training = self.plan.kind_of(number) is RoundKind.TRAINING
        return vector_spec(self.plan, number, self._size if training else self._features)

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
            is_refresh=self._is_refresh,
            saturated=sum(
                int(released.meta[usage][0])
                for usage in map(usage_name, released.bulk)
                if usage in released.meta
            ),
            steps=quantizer_steps(self._spec(), ranges, privacy_of(self.plan)),
        )
        if kind is RoundKind.STATISTICS or self._is_refresh:
            return report
        before, after = summed(self.model()), summed(model_of(following))
        layout = TensorLayout.of(before)
        flat = layout.flatten(after)
        model_norm = float(np.linalg.norm(flat))
        layout.subtract_from(flat, before)
        update_norm = float(np.linalg.norm(flat))
        cosine, known = None, self._direction
        self._direction = None
        if update_norm:
            flat /= update_norm
            cosine = None if known is None else _inner(flat, known)
            self._direction = flat.astype(np.float32)
        del flat
        metrics = _metrics(self.plan, released, len(survivors))
        bins, pairs = released.meta.get(SCORE_BINS), released.meta.get(PAIRS)
        aggregate = float(np.linalg.norm(next(iter(released.bulk.values()))))
        weight = total_weight(self.plan, released, {seat: self._names[seat] for seat in survivors})
        return replace(
            report,
            examples=metrics.examples if metrics else None,
            loss=metrics.loss if metrics else None,
            accuracy=metrics.accuracy if metrics else None,
            auc=None if bins is None else auc_of_histogram(bins),
            concordance=None if pairs is None else concordance_index(*map(int, pairs)),
            model_norm=model_norm,
            update_norm=update_norm,
            aggregate_norm=aggregate / weight,
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


def _inner(one: FloatVector, other: NDArray[np.float32]) -> float:
    """Return the inner product, without a copy of the other in float64."""
    parts = [slice(start, start + _SLICE) for start in range(0, len(one), _SLICE)]
    return math.fsum(float(one[part] @ other[part].astype(np.float64)) for part in parts)
