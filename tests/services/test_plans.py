"""A run's settings become one training plan, the same bytes for the same settings."""

from pathlib import Path

import pytest

from fl.plan import TrainingPlan
from services.errors import ConfigError
from services.plans import build_plan, warnings
from services.run_config import RunConfig
from services.settings import parse_config

RUN = """
[run]
name = "first"
rounds = 10
seed = 7
[algorithm]
name = "scaffold"
option = "II"
[local]
steps = 5
learning_rate = 0.1
[task]
features = [{ name = "age" }, { name = "sex", kind = "categorical", categories = ["f", "m"] }]
target = { name = "ill", classes = ["no", "yes"] }
"""


def plan_of(text: str) -> TrainingPlan:
    """Read settings and build their plan."""
    config = parse_config(text.encode(), RunConfig, source="run.toml", base=Path("/base"))
    return build_plan(config, max_silos=5)


def test_the_plan_says_what_the_settings_say() -> None:
    """Field by field, with the schema's defaults written out."""
    plan = plan_of(RUN)
    assert (plan.algorithm, plan.algorithm_settings) == ("scaffold", {"option": "II"})
    assert (plan.local.local_steps, plan.rounds, plan.max_silos, plan.seed) == (5, 10, 5, 7)
    assert plan.standardize
    schema = plan.task.settings["schema"]
    assert isinstance(schema, dict)
    assert schema["features"][0] == {
        "name": "age",
        "kind": "numeric",
        "missing": "refuse",
        "scale": 1.0,
    }


EVERYTHING = """
[run]
name = "second"
rounds = 20
auc_bins = 50
patience = 3
[algorithm]
name = "fedadam"
settings = { beta2 = 0.9, tau = 0.01 }
server_learning_rate = 0.1
schedule = { curve = "cosine" }
[local]
steps = 8
learning_rate = 0.1
optimizer = "momentum"
optimizer_settings = { momentum = 0.9 }
work = "drawn"
least_steps = 2
schedule = { curve = "steps", factor = 0.1, at = [10, 15] }
[participation]
sampler = "uniform"
fraction = 0.5
[encoding]
value_bits = 8
rotate = true
block = 16
kept = 0.25
[task]
features = [{ name = "age" }]
target = { name = "ill", classes = ["no", "yes"] }
"""


def test_every_setting_reaches_the_plan() -> None:
    """Algorithm, schedules, work, participation and compression by lines of the file."""
    plan = plan_of(EVERYTHING)
    assert plan.algorithm_settings == {"beta2": 0.9, "tau": 0.01}
    assert (plan.work.kind, plan.work.least) == ("drawn", 2)
    assert plan.local.optimizer_settings == {"momentum": 0.9}
    assert (plan.participation.sampler, plan.participation.fraction) == ("uniform", 0.5)
    assert plan.local_rate(10) == pytest.approx(0.01)
    assert plan.server_rate(10) == pytest.approx(0.05)
    assert (plan.compression.rotate, plan.compression.block) == (True, 16)
    assert (plan.auc_bins, plan.early_stop.patience) == (50, 3)
    assert TrainingPlan.parse(plan.document()) == plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"scaffold"\noption = "II"', '"fedfoo"'), "fedfoo"),
        (('"scaffold"\noption = "II"', '"fedprox"'), "μ above 0"),
        (("steps = 5", 'steps = 5\nwork = "own"'), "isolate a silo"),
        (("steps = 5", "steps = 5\nproximal = 0.1"), "plain gradients"),
    ],
)
def test_what_does_not_go_together_is_said_at_once(change: tuple[str, str], words: str) -> None:
    """Before any silo is asked to train."""
    with pytest.raises(ConfigError, match=words):
        plan_of(RUN.replace(*change))


def test_equal_settings_give_equal_bytes() -> None:
    """What silos pin does not depend on the order of keys or on defaults left out."""
    explicit = RUN.replace('{ name = "age" }', '{ scale = 1.0, kind = "numeric", name = "age" }')
    assert plan_of(RUN).document() == plan_of(explicit).document()
    assert TrainingPlan.parse(plan_of(RUN).document()) == plan_of(RUN)
    assert plan_of(RUN).digest() != plan_of(RUN.replace("seed = 7", "seed = 8")).digest()


def test_an_own_task_gets_its_settings_as_they_are() -> None:
    """And no statistics round unless it asks for one."""
    head = RUN.split("[task]", maxsplit=1)[0]
    plan = plan_of(head + '[task]\nname = "own.task:make"\nsettings = { width = 3 }\n')
    assert (plan.task.name, plan.task.settings) == ("own.task:make", {"width": 3})
    assert not plan.standardize


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('kind = "categorical"', 'kind = "text"'), "features"),
        (
            ('target = { name = "ill", classes = ["no", "yes"] }', 'target = { name = "ill" }'),
            "ill",
        ),
        (("[local]", '[weights]\nkind = "hidden"\nn_cap = 4294967295\n[local]'), "n_cap"),
    ],
)
def test_a_rule_of_the_learning_package_is_a_config_error(
    change: tuple[str, str], words: str
) -> None:
    """The run is named and the package's own words follow."""
    with pytest.raises(ConfigError, match=f"run first: .*{words}"):
        plan_of(RUN.replace(*change))


def test_a_mean_that_no_round_sums_is_refused_at_once() -> None:
    """Not by a silo in its first round, when its answer to the plan is on record."""
    text = RUN.replace('{ name = "age" }', '{ name = "age", missing = "mean" }')
    assert plan_of(text).standardize
    with pytest.raises(ConfigError, match=r'task.features age: missing = "mean" needs the means'):
        plan_of(text.replace("[task]", "[task]\nstandardize = false"))


def test_raw_numbers_under_a_privacy_plan_are_noted() -> None:
    """Without standardization only a declared scale makes columns alike."""
    private = (
        '[privacy]\nmode = "fedsgd"\nadjacency = "zero_out"\nclip = 1.0\nz = 1.0\ndelta = 1e-5\n'
    )
    scaled = private + RUN.replace('{ name = "age" }', '{ name = "age", scale = 50.0 }')
    assert [note.partition(":")[0] for note in notes_of(private + RUN)] == ["task.features age"]
    assert notes_of(scaled) == notes_of(RUN) == []


def notes_of(text: str) -> list[str]:
    """What is noted of settings."""
    return warnings(parse_config(text.encode(), RunConfig, source="run.toml", base=Path("/base")))
