"""[privacy] of a run's settings: what follows by itself, and what is refused by name."""

from dataclasses import replace
from pathlib import Path

import pytest

from dp.plan import Mode, Noise, Participation, PrivacyPlan, Unit, noise_on_mean, update_z
from dp.trust import plan_epsilon
from fl.plan import TrainingPlan
from fl.privacy import privacy_of
from services.errors import ConfigError
from services.plans import build_plan
from services.run_config import RunConfig
from services.settings import parse_config

RUN = """
[run]
name = "r"
rounds = {rounds}
min_silos = 10
{run}

[local]
steps = {steps}
learning_rate = 0.1

[task]
name = "tabular"
model = "logistic"

[task.target]
name = "ill"
classes = ["no", "yes"]

[[task.features]]
name = "age"
kind = "numeric"
scale = 50.0

[privacy]
adjacency = "zero_out"
clip = 1.0
delta = 1e-5
{privacy}
"""


def built(privacy: str, *, run: str = "", steps: int = 1, rounds: int = 5) -> TrainingPlan:
    """The training plan of such settings."""
    text = RUN.format(run=run, steps=steps, rounds=rounds, privacy=privacy)
    config = parse_config(text.encode(), RunConfig, source="run.toml", base=Path())
    return build_plan(config, max_silos=10)


def plan_of(privacy: str, **changes: int) -> PrivacyPlan:
    """The privacy plan in it."""
    found = privacy_of(built(privacy, **changes))  # type: ignore[arg-type] # whole numbers only
    assert found is not None
    return found


@pytest.mark.parametrize("epsilon", [0.5, 6.0])
@pytest.mark.parametrize("mode", ["silo", "patient"])
def test_skellam_noise_is_as_large_as_its_own_accountant_asks(mode: str, epsilon: float) -> None:
    """The Gaussian's z would pass the target (6.52 for 6); a little less than this one does."""
    text = f'mode = "{mode}"\nallow_low_utility = true\nepsilon = {epsilon}'
    plan, gaussian = plan_of(f'{text}\nnoise = "skellam"'), plan_of(text)
    assert plan.noise is Noise.SKELLAM
    assert plan_epsilon(plan).eps <= epsilon
    assert plan_epsilon(replace(plan, z=plan.z * (1.0 - 1e-3))).eps > epsilon
    assert plan_epsilon(replace(plan, z=gaussian.z)).eps > epsilon


def test_what_is_left_open_follows() -> None:
    """Unit, dimension, n_c, h_dp, divisor and z; metrics and standardization go off."""
    training = built('mode = "silo"\nepsilon = 8.0')
    plan = privacy_of(training)
    assert plan is not None
    assert (plan.unit, plan.dimension, plan.n_c, plan.h_dp) == (Unit.SILO, 2, 3, 4)
    assert plan.denominator == 10.0
    assert plan_epsilon(plan).eps == pytest.approx(8.0, rel=1e-3)
    assert plan_epsilon(plan).eps <= 8.0
    assert (training.metrics, training.standardize, training.max_refreshes) == (False, False, 0)


def test_sampled_units_are_divided_by_what_was_declared() -> None:
    """Denominator q·N in joint modes; one a silo in isrl."""
    joint = plan_of('mode = "patient"\nz = 1.0\nq = 0.1\nunits = 900\nmax_units_per_silo = 200')
    assert joint.participation is Participation.POISSON
    assert joint.denominator == pytest.approx(90.0)
    local = plan_of('mode = "isrl"\nz = 1.0\nq = 0.1\nmax_units_per_silo = 200', steps=3)
    assert (local.mode, local.local_steps, local.denominator) == (Mode.ISRL, 3, 10.0)
    assert (local.n_c, local.h_dp, local.padding) == (0, 0, 0)
    assert noise_on_mean(local) > 0


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ('mode = "silo"', "epsilon or z"),
        ('mode = "silo"\nepsilon = 1.0\nz = 1.0', "epsilon or z"),
        ('mode = "silo"\nz = 1.0\nq = 0.5', "refused for silos"),
        ('mode = "silo"\nz = 1.0\nunit = "record"', "protects the unit"),
        ('mode = "central"\nz = 1.0\nn_c = 1', "divides no noise"),
        (
            'mode = "isrl"\nz = 1.0\nadaptive = { count_noise_std = 1.0, clip_min = 1.0, '
            "clip_max = 2.0 }",
            "adaptive",
        ),
        ('mode = "silo"\nz = 4000.0', "noise"),
        ('mode = "silo"\nz = 1.0\nmaks = 3', "unknown key"),
    ],
)
def test_what_no_plan_allows_is_refused(privacy: str, words: str) -> None:
    """With the reason."""
    with pytest.raises(ConfigError, match=words):
        built(privacy)


def test_exact_sums_asked_for_by_name_are_refused() -> None:
    """Metrics under a plan: an exact sum of patients has infinite epsilon."""
    with pytest.raises(ConfigError, match="metrics"):
        built('mode = "silo"\nz = 1.0', run="metrics = true")


def test_joint_noise_allows_one_local_step() -> None:
    """privacy.md 5.2: the counterexample is a refusal."""
    with pytest.raises(ConfigError, match="local_steps"):
        built('mode = "fedsgd"\nz = 1.0', steps=2)


def test_an_own_task_has_to_say_its_size() -> None:
    """The noise is planned before any model is loaded."""
    text = RUN.format(run="", steps=1, rounds=5, privacy='mode = "silo"\nz = 1.0')
    own = (
        text[: text.index("[task]")] + '[task]\nname = "a.b:c"\n' + text[text.index("[privacy]") :]
    )
    config = parse_config(own.encode(), RunConfig, source="run.toml", base=Path())
    with pytest.raises(ConfigError, match="dimension"):
        build_plan(config, max_silos=10)


def test_metrics_draw_on_the_plan_s_own_epsilon() -> None:
    """With or without them the promise is the same; what they take, the update lacks."""
    table = "\n[privacy.metrics]\nloss_cap = 3.0\n"
    common = "epsilon = 8.0\nq = 0.1\nunits = 9000\nmax_units_per_silo = 2000"
    with_them = plan_of(f'mode = "patient"\n{common}{table}z = 20.0')
    bare = plan_of(f'mode = "patient"\n{common}')
    assert with_them.dimension == bare.dimension + 2
    assert plan_epsilon(with_them).eps == pytest.approx(plan_epsilon(bare).eps)
    assert update_z(with_them) > bare.z
    local = plan_of(f'mode = "isrl"\n{common}{table}', steps=3)
    alone = plan_of(f'mode = "isrl"\n{common}', steps=3)
    assert local.dimension == alone.dimension
    assert plan_epsilon(local).eps <= 8.0
    assert local.z > alone.z
