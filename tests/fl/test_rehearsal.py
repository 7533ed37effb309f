"""Canaries find the planned noise, and find out when it is missing."""

import numpy as np
import pytest

from dp.plan import Adjacency, Mode, PrivacyPlan, Unit
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


def test_the_planned_noise_is_found_and_raises_no_alarm() -> None:
    """One release at z = 1, with a third more shares than are counted on."""
    found = canary_audit(rehearsal())
    assert 3.2 < found.claimed < 3.8
    assert not found.is_alarm
    assert 1.8 < found.estimate < 6.0
    assert found.lower < found.estimate


@pytest.mark.slow
def test_several_releases_add_up() -> None:
    """Two releases at z = 2; an audit of 95 % errs at times, three in a row hardly (10⁻⁴)."""
    audits = (canary_audit(rehearsal(privacy=plan(z=2.0), rounds=2)) for _ in range(3))
    found = next((audit for audit in audits if not audit.is_alarm), None)
    assert found is not None
    assert 2.2 < found.claimed < 2.6


def test_missing_noise_raises_the_alarm() -> None:
    """Mutant of privacy.md 8.3: no noise."""
    found = canary_audit(rehearsal(privacy=plan(z=4.0)), noise=lambda _: Silence())
    assert found.is_alarm, found


@pytest.mark.slow
def test_guesses_find_missing_noise_too() -> None:
    """The proof-grade bound needs more canaries to say as much."""
    silent = rehearsal(privacy=plan(z=4.0), count=100, dimension=1000)
    found = one_run_audit(silent, noise=lambda _: Silence())
    assert found.is_alarm, found


def test_a_one_run_audit_refutes_no_right_claim() -> None:
    """Its bound has proof, and stays below."""
    found = one_run_audit(rehearsal())
    assert not found.is_alarm
    assert found.lower <= found.claimed


def test_a_rehearsal_that_measures_nothing_is_refused() -> None:
    """Other modes, too few dimensions, more rounds than the plan."""
    with pytest.raises(PlanError, match="canaries"):
        rehearsal(dimension=100)
    with pytest.raises(PlanError, match="rounds"):
        rehearsal(rounds=6)
    isrl = plan(Mode.CENTRAL)
    assert rehearsal(privacy=isrl).commitment == rehearsal().commitment
