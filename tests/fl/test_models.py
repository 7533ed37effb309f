"""The built-in models in numpy: settings, start, and the same function as torch's."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fl.errors import SchemaError
from fl.models import TabularModel, initial_parameters, losses, predict

FEATURES = [{"name": name} for name in ("a", "b", "c")]
SCHEMA = {"features": FEATURES, "target": {"name": "y", "classes": ["no", "yes"]}}
THREE = {"features": FEATURES, "target": {"name": "y", "classes": ["low", "mid", "high"]}}
LOGISTIC = {"schema": SCHEMA}
MLP = {"schema": SCHEMA, "model": "mlp", "hidden": [5, 4]}
MULTICLASS = {"schema": THREE, "model": "mlp", "hidden": [6]}


def test_settings_survive_a_plan() -> None:
    """What the plan's JSON carries is what was meant."""
    for settings in (LOGISTIC, MLP, MULTICLASS):
        model = TabularModel.parse(settings)
        assert TabularModel.parse(json.loads(json.dumps(model.to_settings()))) == model


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"depth": [3]}, "unknown setting 'depth'"),
        ({"schema": None}, "need a schema"),
        ({"model": "forest"}, "expected 'logistic' or 'mlp', got 'forest'"),
        ({"model": "mlp"}, "an MLP needs"),
        ({"hidden": [3]}, "only an MLP has any"),
        ({"model": "mlp", "hidden": [3, 0]}, "1 or more"),
        ({"model": "mlp", "hidden": [3.5]}, "whole numbers"),
        ({"model": "mlp", "hidden": 3}, "whole numbers"),
    ],
)
def test_wrong_settings_are_refused_by_key(change: dict[str, object], said: str) -> None:
    """The message names the key and what it should be."""
    with pytest.raises(SchemaError, match=said):
        TabularModel.parse(LOGISTIC | change)


def test_logistic_regression_starts_at_a_coin() -> None:
    """All zero: each class has probability one half."""
    parameters = initial_parameters(LOGISTIC, seed=1)
    assert {name: p.shape for name, p in parameters.items()} == {
        "output.weight": (1, 3),
        "output.bias": (1,),
    }
    model = TabularModel.parse(LOGISTIC)
    assert predict(model, parameters, np.ones((2, 3))).tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_an_mlp_starts_as_the_seed_says() -> None:
    """The same seed, the same float32 bits; another seed, another start; all within ±1/√inputs."""
    first, again, other = (initial_parameters(MLP, seed=seed) for seed in (1, 1, 2))
    for name, inputs in (("hidden1", 3), ("hidden2", 5), ("output", 4)):
        for part in (f"{name}.weight", f"{name}.bias"):
            assert first[part].dtype == np.float32
            assert first[part].tobytes() == again[part].tobytes()
            assert (first[part] != other[part]).any()
            assert np.abs(first[part]).max() <= 1 / np.sqrt(inputs)
    assert not np.array_equal(first["hidden1.bias"], first["hidden2.bias"][:3])


@pytest.mark.parametrize("settings", [LOGISTIC, MLP, MULTICLASS])
def test_the_same_function_under_the_same_names_as_torch(settings: dict[str, object]) -> None:
    """What a silo trains is what everybody evaluates: strict names, outputs within 1e-5."""
    torch = pytest.importorskip("torch")
    from fl.training.tabular import build_module

    model = TabularModel.parse(settings)
    draws = np.random.default_rng(4)
    parameters = {
        name: draws.normal(size=start.shape).astype(np.float32)
        for name, start in initial_parameters(settings, seed=3).items()
    }
    module = build_module(model)
    module.load_state_dict(
        {name: torch.from_numpy(values) for name, values in parameters.items()}, strict=True
    )
    inputs = draws.normal(size=(50, 3))
    with torch.no_grad():
        outputs = module(torch.tensor(inputs, dtype=torch.float32))
    if outputs.shape[1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    expected = torch.softmax(outputs, dim=1).numpy()
    assert np.abs(predict(model, parameters, inputs) - expected).max() < 1e-5


def test_losses_are_exact_where_probabilities_vanish() -> None:
    """A logit of 1000 against the truth costs 1000, not infinity."""
    model = TabularModel.parse(LOGISTIC)
    parameters = {"output.weight": np.array([[1000.0, 0, 0]]), "output.bias": np.zeros(1)}
    inputs = np.array([[1.0, 0, 0], [1.0, 0, 0], [0.0, 0, 0]])
    found = losses(model, parameters, inputs, np.array([0, 1, 1]))
    assert found == pytest.approx([1000.0, 0.0, np.log(2)])


def test_what_does_not_fit_is_refused() -> None:
    """A missing tensor, another shape and other columns are named."""
    model = TabularModel.parse(LOGISTIC)
    parameters = initial_parameters(LOGISTIC, seed=1)
    with pytest.raises(SchemaError, match=r"look at output\.bias$"):
        predict(model, {"output.weight": parameters["output.weight"]}, np.ones((1, 3)))
    wide = parameters | {"output.weight": np.zeros((1, 4), dtype=np.float32)}
    with pytest.raises(SchemaError, match=r"look at output\.weight$"):
        predict(model, wide, np.ones((1, 3)))
    with pytest.raises(SchemaError, match="takes 3 encoded columns"):
        predict(model, parameters, np.ones((1, 4)))


def test_nothing_a_coordinator_imports_needs_torch() -> None:
    """With torch made unimportable, models, schema, metrics and the tasks' modules still load."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import fl.baselines, fl.metrics, fl.modelfile, fl.models, fl.partition\n"
        "import fl.schema, fl.skew\n"
        "import fl.training, fl.training.custom, fl.training.tabular\n"
        f"start = fl.models.initial_parameters({MLP!r}, 1)\n"
        "print(sorted(start)[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("hidden1.bias\n", "")
