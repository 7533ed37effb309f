"""Table 5.4 of the privacy design, mode by mode: what the coordinator opens, decoded.

Each mode's round goes through the secure sum twice over: once with a source that draws no noise,
which gives the exact sum, and then with real noise. What is opened is one vector whose distance
from the exact sum has the spread that the plan's shares should give, and nothing beside it.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dp import local_sgd
from dp.plan import (
    AdaptiveClip,
    Adjacency,
    MetricRelease,
    Mode,
    Participation,
    PrivacyPlan,
    Unit,
    bound_on_grid,
    share_noise_std,
)
from dp.rng import NoiseSource, NoiseStream, Words
from fl.errors import PlanError
from fl.participant import RunParticipant
from fl.pipeline import decode_aggregate
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.privacy import (
    CLIP_COUNT,
    METRIC_SUMS,
    UNIT_MODES,
    as_settings,
    central_noise,
    document_of,
    first_range,
    noise_share,
)
from fl.rounds import RoundRequest
from fl.run import TrainingRun
from fl.seeding import generator
from fl.state import ranges_of
from fl.testing import DictMemory
from fl.training.custom import OwnModel, OwnTask
from fl.training.loop import TensorExamples
from secagg import verification
from secagg.ids import RunId
from secagg.messages import Advertise, MaskedInput, Share, Survivors, Unmask
from secagg.testing import (
    Outcome,
    RoundHarness,
    SeededRng,
    make_federation,
    make_parameters,
    make_succession,
)

SILOS = 4
ROWS = 32
FEATURES = 5
RUN = RunId(b"table-of-outputs")
FEDERATION = make_federation(SILOS, seed=6)
NAMES = {seat.index: seat.silo.name for seat in FEDERATION.roster.seats}


class Silence:
    """A source whose words are all in the middle: it draws zeros, and rounds alike every time."""

    is_private = False

    def words(self, count: int) -> Words:
        """Words that no table maps to noise."""
        return np.full(count, 2**63, np.uint64)


def task(seat: int, *, rows: int = ROWS, scale: float = 1.0) -> OwnTask:
    """A silo's rows; each is a unit."""
    draws = generator(seat, "rows")
    inputs = scale * draws.normal(size=(rows, FEATURES))
    targets = (inputs[:, :1] > 0).astype(np.float64)
    return OwnTask(
        OwnModel(
            build=lambda: nn.Linear(FEATURES, 1, dtype=torch.float64),
            examples=TensorExamples(
                inputs=torch.from_numpy(inputs), targets=torch.from_numpy(targets)
            ),
            loss=nn.functional.binary_cross_entropy_with_logits,
            correct=lambda outputs, truth: int(((outputs > 0) == (truth > 0.5)).sum()),
            unit_of=np.arange(rows),
        )
    )


# What a round may have beside a plain update, and the modes that have it.
VARIANTS = {
    "update": tuple(Mode),
    "metrics": tuple(Mode),
    "scaffold": (Mode.SILO, Mode.CENTRAL, Mode.ISRL),
    "adaptive": (Mode.PATIENT,),
    "half": (Mode.FEDSGD, Mode.PATIENT, Mode.ISRL),  # q = 0.5
}
CELLS = [(mode, variant) for variant, modes in VARIANTS.items() for mode in modes]


def plan_of(mode: Mode, variant: str) -> TrainingPlan:
    """One round of a plan; but for the variant half every unit takes part."""
    of_units, ring = mode in UNIT_MODES, mode not in {Mode.CENTRAL, Mode.ISRL}
    rides = variant == "metrics" and mode is not Mode.ISRL
    q = 0.5 if variant == "half" else 1.0
    units: dict[Mode, Unit] = {Mode.PATIENT: Unit.PATIENT}
    fields: dict[str, Any] = {
        "unit": units.get(mode, Unit.RECORD) if of_units else Unit.SILO,
        "adjacency": Adjacency.ZERO_OUT,
        "mode": mode,
        "clip": 1.0,
        "z": 1.0,
        "rounds": 1,
        "delta": 1e-5,
        "dimension": FEATURES + 1 + 2 * rides + (variant == "adaptive"),
        "cohort_size": SILOS,
        "denominator": (float(SILOS) if not of_units or mode is Mode.ISRL else q * SILOS * ROWS),
        "q": q,
        "participation": Participation.ALL if q == 1 else Participation.POISSON,
        "local_steps": 2 if mode in {Mode.PATIENT, Mode.ISRL} else 1,
        "n_c": 1 if ring else 0,
        "h_dp": 2 if ring else 0,
        "max_units_per_silo": ROWS if of_units else 1,
        "allow_low_utility": True,
    }
    if variant == "adaptive":
        fields["adaptive"] = AdaptiveClip(count_noise_std=2.0, clip_min=0.1, clip_max=4.0)
    if variant == "metrics":
        fields["metrics"] = MetricRelease(loss_cap=4.0, z=2.0 if rides else None)
    privacy = PrivacyPlan(**fields)
    plain = "fedsgd" if mode is Mode.FEDSGD else "fedavg"
    return TrainingPlan(
        task=TaskPlan(name="tests:task"),
        local=LocalPlan(local_steps=privacy.local_steps, learning_rate=0.5),
        rounds=1,
        max_silos=SILOS,
        algorithm="scaffold" if variant == "scaffold" else plain,
        metrics=False,
        max_refreshes=0,
        privacy=as_settings(privacy),
    )


class Opened:
    """Rounds of one plan on one state."""

    def __init__(self, mode: Mode, variant: str = "update") -> None:
        self.plan = plan_of(mode, variant)
        self.privacy = PrivacyPlan.from_bytes(document_of(self.plan))
        self.run = TrainingRun(self.plan, model=task(1).initial_model(0), names=NAMES)
        request = self.run.next()
        assert isinstance(request, RoundRequest)
        self.request = request
        self.tasks = {seat: task(seat) for seat in NAMES}

    def outcome(self, noise: type[NoiseStream] | type[Silence] = NoiseStream) -> Outcome:
        """One round through the secure sum."""
        silos = {
            seat: RunParticipant(
                self.plan,
                run=RUN,
                seat=seat,
                names=NAMES,
                task=self.tasks[seat],
                memory=DictMemory(),
                rng=SeededRng(1),
                noise=noise,
            )
            for seat in NAMES
        }
        parameters = make_parameters(
            FEDERATION.roster,
            self.request.spec,
            run=RUN,
            n_c=max(self.privacy.n_c, 1),
            n_max=SILOS,
            training_plan=self.plan.digest(),
            dp=document_of(self.plan),
            h_dp=self.privacy.h_dp,
        )

        def source() -> NoiseSource:
            return noise()

        return RoundHarness(
            federation=FEDERATION,
            parameters=parameters,
            state=self.run.state,
            train=lambda seat, its, state: silos[seat].contribute(its, state),
            plan=self.plan.document(),
            noise=central_noise(self.plan, source),
        ).run()

    def values(self, noise: type[NoiseStream] | type[Silence] = NoiseStream) -> dict[str, Any]:
        """The opened integers by segment; every silo has verified the same ones."""
        found = self.outcome(noise)
        assert found.aggregate is not None, found.aborted
        for one in found.silo_aggregates.values():
            assert all(np.array_equal(one.values[k], v) for k, v in found.aggregate.values.items())
        return dict(found.aggregate.values)


def spread_in_steps(opened: Opened) -> float:
    """Std of the noise that all silos' shares make together, in steps of what is opened."""
    privacy = opened.privacy
    share = share_noise_std(privacy)
    if privacy.mode is Mode.CENTRAL:
        return share  # the coordinator's one draw
    if privacy.mode is not Mode.ISRL:
        return float(np.sqrt(SILOS)) * share
    # K steps of full noise in each silo, over the units it declared, times the learning rate.
    per_step = share / bound_on_grid(privacy) * privacy.clip * 0.5 / (privacy.q * ROWS)
    step = first_range(opened.plan, privacy) / (2**23 - 1)
    return float(np.sqrt(SILOS * privacy.local_steps)) * per_step / step


@pytest.mark.parametrize(("mode", "variant"), CELLS)
def test_what_is_opened_is_noised_and_nothing_else_is_opened(
    mode: Mode, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Update, metrics, variate, clip bit, sampled units: never an un-noised sum, in no mode."""
    pytest.importorskip("opacus")
    opened = Opened(mode, variant)
    if variant == "half":  # The same half each time, so that the exact sum stands still.
        monkeypatch.setattr(local_sgd, "sampled", lambda *_: np.arange(0, ROWS, 2))
    exact = opened.values(Silence)
    noised = [opened.values() for _ in range(12)]
    beside = {METRIC_SUMS} if variant == "metrics" and mode is Mode.ISRL else set()
    assert set(exact) == {"update"} | beside
    coordinates = opened.privacy.dimension
    moved = np.array([(one["update"] - exact["update"])[:coordinates] for one in noised])
    # Twelve draws of six coordinates or eight: standard error 8 %.
    assert 0.65 < moved.std() / spread_in_steps(opened) < 1.4
    assert (moved != 0).any(axis=0).all()
    if beside:
        apart = np.array([one[METRIC_SUMS] - exact[METRIC_SUMS] for one in noised])
        full = float(np.sqrt(SILOS)) * share_noise_std(opened.privacy)
        assert 0.5 < apart.std() / full < 1.6  # 24 draws: standard error 14 %
    ranges = ranges_of(opened.run._state)
    decoded = decode_aggregate(
        noised[0], spec=opened.request.spec, ranges=ranges, privacy=opened.privacy
    )
    more = {"metrics": {METRIC_SUMS}, "adaptive": {CLIP_COUNT}}
    assert set(decoded.bulk) | set(decoded.meta) == {"update"} | more.get(variant, set())


@pytest.mark.parametrize("mode", [Mode.SILO, Mode.FEDSGD, Mode.PATIENT])
@pytest.mark.parametrize("is_mutant", [False, True])
def test_tags_are_over_the_noised_integers(
    mode: Mode, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant tags a silo's integers as they were before its share: nobody accepts the sum."""
    opened = Opened(mode)
    shares: list[Any] = []
    before: list[int] = []
    draw, tag = noise_share, verification.SegmentTags.add

    def drawn(*arguments: Any) -> Any:
        shares.append(draw(*arguments))
        return shares[-1]

    def add(self: Any, values: Any, *, first_word: int) -> None:
        if shares:  # of the silo that has just contributed; the sum's own tags come later
            share = shares[-1][first_word : first_word + len(values)]
            before.append(len(share))
            if first_word + len(values) == len(shares[-1]):
                shares.pop()
            values = values - share if is_mutant else values
        tag(self, values, first_word=first_word)

    monkeypatch.setattr("fl.participant.noise_share", drawn)
    monkeypatch.setattr(verification.SegmentTags, "add", add)
    outcome = opened.outcome()
    assert len(outcome.silo_aggregates) == (0 if is_mutant else SILOS)
    assert sum(before) == SILOS * (opened.privacy.dimension + 1024)


@pytest.mark.parametrize(("mode", "variant"), [(m, v) for m, v in CELLS if v != "update"])
def test_what_a_silo_sends_has_the_kinds_and_sizes_of_the_plan(mode: Mode, variant: str) -> None:
    """Not of its data: fewer rows, far values or no number at all show in no message.

    The five kinds have no place for a count, a norm, a loss or a reason in words.
    """
    seen = []
    for other in (task(2), task(2, rows=30), task(2, scale=1e6), task(2, scale=float("nan"))):
        opened = Opened(mode, variant)
        opened.tasks[2] = other
        outcome = opened.outcome()
        assert outcome.aggregate is not None, outcome.aborted
        # An upload's digests stand in its message; its length is the vector's, which is the plan's.
        seen.append([(seat, type(one), len(one.encode())) for seat, one in outcome.received])
    assert all(one == seen[0] for one in seen)
    kinds = {kind for _, kind, _ in seen[0]}
    assert kinds == {Advertise, Share, MaskedInput, Survivors, Unmask}


class PlainRun:
    """SCAFFOLD without a plan, whose silos are kept from round to round."""

    def __init__(self) -> None:
        self.plan = TrainingPlan(
            task=TaskPlan(name="tests:task"),
            local=LocalPlan(local_steps=2, learning_rate=0.5),
            rounds=2,
            max_silos=SILOS,
            algorithm="scaffold",
        )
        self.run = TrainingRun(self.plan, model=task(1).initial_model(0), names=NAMES)
        self.tasks = {seat: task(seat) for seat in NAMES}
        self.silos = {
            seat: RunParticipant(
                self.plan,
                run=RUN,
                seat=seat,
                names=NAMES,
                task=self.tasks[seat],
                memory=DictMemory(),
                rng=SeededRng(seat),
            )
            for seat in NAMES
        }

    def opened(self) -> tuple[RoundRequest, dict[str, Any], list[dict[str, Any]]]:
        """One round: the request, the opened sums, and what each silo gave."""
        request = self.run.next()
        assert isinstance(request, RoundRequest)
        given: list[dict[str, Any]] = []

        def train(seat: int, parameters: Any, state: bytes) -> Any:
            given.append(self.silos[seat].contribute(parameters, state))
            return given[-1]

        state = self.run.state
        parameters = make_parameters(
            FEDERATION.roster,
            request.spec,
            run=RUN,
            round=request.number,
            n_max=SILOS,
            training_plan=self.plan.digest(),
        )
        first = request.number == 1
        outcome = RoundHarness(
            federation=FEDERATION,
            parameters=parameters,
            state=state,
            train=train,
            plan=self.plan.document(),
            succession=None if first else make_succession(FEDERATION, parameters, state),
        ).run()
        assert outcome.aggregate is not None, outcome.aborted
        for silo in self.silos.values():
            silo.settle(outcome.aggregate, state)
        self.run.receive(outcome.aggregate)
        return request, dict(outcome.aggregate.values), given


def test_without_a_plan_sums_are_exact_and_still_nothing_but_sums() -> None:
    """Column none: update, usage, members and mean metrics; no count, no one silo's value."""
    _, sums, given = PlainRun().opened()
    assert set(sums) == {"update", "usage_update", "members", "accuracy", "loss"}
    for name, total in sums.items():
        np.testing.assert_array_equal(total, np.sum([one[name] for one in given], axis=0))
    assert all(not np.array_equal(sums["update"], one["update"]) for one in given)


def test_a_refresh_opens_the_exact_sum_of_variates_and_no_plan_has_one() -> None:
    """Row refresh: exact without a plan; as a charged release it is refused by every plan."""
    plain = PlainRun()
    plain.opened()
    plain.run.request_refresh()
    _, sums, given = plain.opened()
    assert set(sums) == {"variate", "usage_variate"}
    np.testing.assert_array_equal(sums["variate"], np.sum([one["variate"] for one in given], 0))
    for mode, variant in CELLS:
        if variant == "scaffold":
            assert plan_of(mode, variant).max_refreshes == 0
            with pytest.raises(PlanError, match="max_refreshes is refused"):
                replace(plan_of(mode, variant), max_refreshes=1)
