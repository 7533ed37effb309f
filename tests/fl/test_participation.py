"""Cohorts: from the seed alone, as large as the plan says, and every silo in its turn."""

from typing import Any

import numpy as np
import pytest

from fl.errors import PlanError
from fl.participation import ParticipationPlan, cohort_of
from fl.plan import LocalPlan, TaskPlan, TrainingPlan
from fl.plugins import Group, register
from fl.simulation import simulate
from fl.testing import least_squares_toy

SEATS = tuple(range(1, 13))


def cohorts(plan: ParticipationPlan, rounds: int, **changes: Any) -> list[tuple[int, ...]]:
    """The cohorts of the first rounds."""
    values = {"available": SEATS, "enrolled": SEATS, "seed": 5, **changes}
    return [cohort_of(plan, number=number, **values) for number in range(1, rounds + 1)]


def test_all_are_invited_by_default() -> None:
    """Whoever is there."""
    assert cohorts(ParticipationPlan(), 2, available=(3, 1)) == [(1, 3), (1, 3)]


def test_a_uniform_sample_has_its_size_and_is_uniform() -> None:
    """A quarter of twelve each round, nobody left out in the long run, another seed another one."""
    plan = ParticipationPlan(sampler="uniform", fraction=0.25)
    made = cohorts(plan, 2000)
    assert {len(cohort) for cohort in made} == {3}
    assert made == cohorts(plan, 2000)
    assert made != cohorts(plan, 2000, seed=6)
    counts = np.bincount(np.concatenate(made), minlength=13)[1:]
    assert np.abs(counts - 500).max() < 5 * (2000 * 0.25 * 0.75) ** 0.5


def test_an_absent_silo_is_replaced_and_moves_nobody_else() -> None:
    """A retried attempt invites whom the first one did, but for those who are gone."""
    plan = ParticipationPlan(sampler="uniform", fraction=0.5)
    (full,) = cohorts(plan, 1)
    gone = full[0]
    (fewer,) = cohorts(plan, 1, available=tuple(seat for seat in SEATS if seat != gone))
    assert len(fewer) == 6
    assert set(full) - set(fewer) == {gone}


def test_the_minimum_fills_up_small_samples() -> None:
    """A round is never planned below it, and never above the enrolled."""
    plan = ParticipationPlan(sampler="uniform", fraction=0.01, minimum=5)
    assert [len(cohort) for cohort in cohorts(plan, 3)] == [5, 5, 5]
    assert plan.size(3) == 3


@pytest.mark.parametrize(("colluding", "fewest"), [(None, 5), (1, 3)])
def test_a_sample_is_never_below_the_protocol_s_floor(colluding: int | None, fewest: int) -> None:
    """A tenth of ten would be one; with three that may collude, by default, five are the fewest."""
    plan = ParticipationPlan(sampler="uniform", fraction=0.1)
    assert [len(cohort) for cohort in cohorts(plan, 3, least=5)] == [5, 5, 5]
    tasks = least_squares_toy(1, silos=10)
    run = TrainingPlan(
        task=TaskPlan(name="fl.testing:toy_task"),
        local=LocalPlan(local_steps=1, learning_rate=0.1),
        rounds=2,
        max_silos=10,
        participation=plan,
    )
    secure, plain = (
        simulate(run, tasks, secure=secure, colluding=colluding) for secure in (True, False)
    )
    assert [len(report.survivors) for report in secure.reports] == [fewest, fewest]
    for one, two in zip(secure.reports, plain.reports, strict=True):
        assert one.survivors == two.survivors


@pytest.mark.parametrize(("fraction", "groups"), [(0.5, 2), (0.25, 4), (0.3, 3)])
def test_fixed_cohorts_are_disjoint_and_take_turns(fraction: float, groups: int) -> None:
    """Every silo in one group; the same groups come again, so no two differ by one silo."""
    made = cohorts(ParticipationPlan(sampler="fixed", fraction=fraction), 2 * groups)
    assert made[:groups] == made[groups:]
    assert sorted(seat for cohort in made[:groups] for seat in cohort) == list(SEATS)
    assert min(map(len, made)) >= int(fraction * 12)


def test_cohorts_that_take_turns_go_on_with_the_others_word() -> None:
    """Nobody was in the round before: each silo takes the state that the other half vouches for."""
    run = TrainingPlan(
        task=TaskPlan(name="fl.testing:toy_task"),
        local=LocalPlan(local_steps=1, learning_rate=0.1),
        rounds=6,
        max_silos=10,
        participation=ParticipationPlan(sampler="fixed", fraction=0.5),
    )
    found = simulate(run, least_squares_toy(1, silos=10), secure=True)
    cohorts_of = [report.survivors for report in found.reports]
    assert [len(cohort) for cohort in cohorts_of] == [5] * 6
    assert not set(cohorts_of[0]) & set(cohorts_of[1])


class Greedy:
    """Invites one that is not there."""

    def choose(self, *_: object) -> tuple[int, ...]:
        return (1, 99)


def test_a_plugin_chooses_among_those_who_are_there() -> None:
    """And is found by its name, with its settings."""
    register(Group.COHORT_SAMPLER, "greedy", lambda _settings: Greedy())
    with pytest.raises(PlanError, match="'greedy' chose silos that are not available"):
        cohorts(ParticipationPlan(sampler="greedy", settings={"a": 1}), 1)
    with pytest.raises(PlanError, match=r"participation.sampler.*uniform.*'none'"):
        cohorts(ParticipationPlan(sampler="none"), 1)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"fraction": 0.5}, "participation.fraction"),
        ({"sampler": "uniform", "fraction": 1.5}, "participation.fraction"),
        ({"sampler": "uniform", "minimum": 0}, "participation.minimum"),
        ({"sampler": "fixed", "settings": {"a": 1}}, "participation.settings"),
        ({"sampler": ""}, "participation.sampler"),
    ],
)
def test_other_plans_are_refused(values: dict[str, Any], word: str) -> None:
    """The field is named."""
    with pytest.raises(PlanError, match=word):
        ParticipationPlan(**values)
