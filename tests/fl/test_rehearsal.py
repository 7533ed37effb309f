"""Canaries find the planned noise, and find out when it is missing."""

import numpy as np
import pytest

from dp.audit import AuditFigure
from dp.plan import AdaptiveClip, Adjacency, Mode, Participation, PrivacyPlan, Unit
from dp.rng import Words
from fl.errors import PlanError
from fl.rehearsal import Rehearsal, canary_audit, one_run_audit

SEED = bytes(range(32))


def plan(mode: Mode = Mode.SILO, **changes: object) -> PrivacyPlan:
    """A plan of a silo unit."""
    ring = mode is Mode.SILO
    fields: dict[str, object] = {
        "unit": Unit.SILO,
        "adjacency": Adjacency.ZERO_OUT,
        "mode": mode,
        "clip": 0.5,
        "z": 1.0,
        "rounds": 5,
        "delta": 1e-5,
        "dimension": 3,
        "cohort_size": 5,
        "denominator": 5.0,
        "n_c": 1 if ring else 0,
        "h_dp": 2 if ring else 0,
    }
    return PrivacyPlan(**(fields | changes))  # type: ignore[arg-type]  # checked at run time


def rehearsal(**changes: object) -> Rehearsal:
    """Small enough for a test, large enough to see a missing half of the noise."""
    fields: dict[str, object] = {
        "privacy": plan(),
        "dimension": 4000,
        "count": 24,
        "rounds": 1,
        "seed": SEED,
    }
    return Rehearsal(**(fields | changes))  # type: ignore[arg-type]  # checked at run time


class Silence:
    """A generator whose words are all in the middle: it draws zeros."""

    is_private = False

    def words(self, count: int) -> Words:
        """Words that no table maps to noise."""
        return np.full(count, 2**63, np.uint64)


def mean_audit(audited: Rehearsal) -> AuditFigure:
    """The mean of six audits, each of which errs one time in twenty: four alarms hardly (10⁻⁴)."""
    found = [canary_audit(audited) for _ in range(6)]
    assert sum(one.is_alarm for one in found) < 4, found
    return AuditFigure(
        estimate=sum(one.estimate for one in found) / len(found),
        lower=sum(one.lower for one in found) / len(found),
        claimed=found[0].claimed,
    )


def test_the_planned_noise_is_found_and_raises_no_alarm() -> None:
    """One release at z = 1, with a third more shares than are counted on."""
    found = mean_audit(rehearsal())
    assert 3.2 < found.claimed < 3.8
    assert 1.8 < found.estimate < 6.0  # one estimate's deviation is 0.3 of the claim
    assert found.lower < found.estimate


@pytest.mark.slow
def test_several_releases_add_up() -> None:
    """Two releases at z = 2."""
    found = mean_audit(rehearsal(privacy=plan(z=2.0), rounds=2))
    assert 2.2 < found.claimed < 2.6


def test_missing_noise_raises_the_alarm() -> None:
    """Mutant of privacy.md 8.3: no noise."""
    found = canary_audit(rehearsal(privacy=plan(z=4.0)), noise=lambda _: Silence())
    assert found.is_alarm, found


@pytest.mark.slow
def test_guesses_find_missing_noise_too() -> None:
    """The proof-grade bound needs more canaries to say as much."""
    silent = rehearsal(privacy=plan(z=4.0), count=100, dimension=1000)
    (found,) = one_run_audit(silent, noise=lambda _: Silence()).values()
    assert found.is_alarm, found


def test_a_one_run_audit_refutes_no_right_claim() -> None:
    """Its bound has proof, and stays below."""
    (found,) = one_run_audit(rehearsal()).values()
    assert not found.is_alarm
    assert found.lower <= found.claimed


def units(mode: Mode, **changes: object) -> PrivacyPlan:
    """A plan of a mode that clips records or patients, sampled."""
    ring = {"n_c": 1, "h_dp": 2} if mode is not Mode.ISRL else {}
    fields: dict[str, object] = {
        "unit": Unit.PATIENT if mode is Mode.PATIENT else Unit.RECORD,
        "q": 0.5,
        "participation": Participation.POISSON,
        "denominator": 300.0 if ring else 5.0,
        "max_units_per_silo": 100,
        "local_steps": 1 if mode is Mode.FEDSGD else 2,
        **ring,
    }
    return plan(mode, **(fields | changes))


@pytest.mark.parametrize("mode", [Mode.FEDSGD, Mode.PATIENT, Mode.ISRL])
def test_unit_modes_are_measured_through_per_sample_gradients(mode: Mode) -> None:
    """The planned noise is found in each, and its absence raises the alarm."""
    canaries = pytest.importorskip("fl.training.canaries")
    right = rehearsal(privacy=units(mode, z=2.0), unit_task=canaries.canary_task)
    found = mean_audit(right)  # one estimate's deviation is 0.6 of the claim
    assert 0.25 * found.claimed < found.estimate < 2.0 * found.claimed
    wrong = rehearsal(privacy=units(mode, z=4.0), unit_task=canaries.canary_task)
    silent = canary_audit(wrong, noise=lambda _: Silence())
    assert silent.is_alarm, silent


@pytest.mark.parametrize("mode", [Mode.FEDSGD, Mode.PATIENT, Mode.ISRL])
def test_sampling_is_measured_where_a_plan_samples(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the units in each release, through the plan's own sampler; and without it.

    Mutant: the accountant counts q = 1/4, and everybody takes part in every release.
    """
    task = pytest.importorskip("fl.training.canaries").canary_task
    sampled = rehearsal(
        privacy=units(mode, q=0.25, z=0.6), unit_task=task, count=60, dimension=1000, rounds=4
    )
    assert sampled.claimed_sampled < 0.8 * sampled.claimed
    found = one_run_audit(sampled)
    assert found["one-run"].claimed == sampled.claimed_sampled
    assert not found["one-run"].is_alarm
    assert found["sampling"].claimed == 0.25
    assert found["sampling"].estimate < 0.65  # four deviations above 1/4, of isrl's noise
    monkeypatch.setattr(
        "dp.unit_data.poisson_mask", lambda count, _q, _source: np.ones(count, np.bool_)
    )
    found = one_run_audit(sampled)
    assert found["sampling"].is_alarm, found
    assert found["sampling"].estimate > 0.5


def test_a_plan_that_does_not_sample_has_no_rate() -> None:
    """One figure, against the claim with every unit in every release."""
    whole = rehearsal()
    assert whole.claimed_sampled == whole.claimed
    assert set(one_run_audit(whole)) == {"one-run"}


def test_unit_modes_need_a_task_of_canaries() -> None:
    """The torch module that makes one is the caller's; an adaptive clip is nobody's."""
    with pytest.raises(PlanError, match="canary units"):
        rehearsal(privacy=units(Mode.FEDSGD))
    moving = AdaptiveClip(count_noise_std=6.0, clip_min=0.1, clip_max=1.0)
    with pytest.raises(PlanError, match="fixed clip"):
        rehearsal(privacy=units(Mode.PATIENT, adaptive=moving, dimension=4))


def test_a_rehearsal_that_measures_nothing_is_refused() -> None:
    """Other modes, too few dimensions, more rounds than the plan."""
    with pytest.raises(PlanError, match="canaries"):
        rehearsal(dimension=100)
    with pytest.raises(PlanError, match="rounds"):
        rehearsal(rounds=6)
    isrl = plan(Mode.CENTRAL)
    assert rehearsal(privacy=isrl).commitment == rehearsal().commitment
