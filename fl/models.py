"""The built-in models, described, initialized and evaluated in numpy.

The coordinator and `secagg model predict` need no torch; the module that a silo trains
(fl.training.tabular) has the same parameters under the same names, and the same function.

A model is a chain of dense layers, `hidden1`, `hidden2`, … with ReLU between them and `output` at
the end; logistic regression is the chain without hidden layers. Two classes share one logit, the
log odds of class 1; more classes have one logit each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fl.errors import SchemaError
from fl.schema import FeatureSchema
from fl.seeding import generator


class ModelKind(StrEnum):
    """Built-in models."""

    LOGISTIC = "logistic"
    MLP = "mlp"


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularModel:
    """What the built-in task trains: a schema's columns in, its classes out.

    Args:
        schema: columns and classes.
        hidden: the hidden layers' sizes; empty for logistic regression.
    """

    schema: FeatureSchema
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.hidden):
            raise SchemaError(f"hidden: sizes must be 1 or more, got {list(self.hidden)}")

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> "TabularModel":
        """Read the settings of a plan's `tabular` task.

        Args:
            settings: `schema` (see FeatureSchema.parse), `model` ("logistic", the default, or
                "mlp") and, for an MLP only, `hidden`, a list of sizes.

        Raises:
            SchemaError: names the key that is wrong.
        """
        unknown = sorted(set(settings) - {"schema", "model", "hidden"})
        if unknown:
            raise SchemaError(
                f"tabular task: unknown setting {unknown[0]!r}; known: 'schema', 'model', 'hidden'"
            )
        schema = settings.get("schema")
        if not isinstance(schema, Mapping):
            raise SchemaError("tabular task: settings need a schema with features and target")
        kind = settings.get("model", ModelKind.LOGISTIC)
        if kind not in list(ModelKind):
            raise SchemaError(f"model: expected 'logistic' or 'mlp', got {kind!r}")
        hidden = settings.get("hidden", ())
        if not isinstance(hidden, Sequence) or not all(type(size) is int for size in hidden):
            raise SchemaError(f"hidden: expected a list of whole numbers, got {hidden!r}")
        if (kind == ModelKind.MLP) != bool(hidden):
            raise SchemaError(
                "hidden: an MLP needs the sizes of its hidden layers, and only an MLP has any"
            )
        return cls(schema=FeatureSchema.parse(schema), hidden=tuple(hidden))

    def to_settings(self) -> dict[str, object]:
        """The settings that `parse` reads, complete and JSON-able."""
        kind = ModelKind.MLP if self.hidden else ModelKind.LOGISTIC
        settings: dict[str, object] = {"schema": self.schema.to_mapping(), "model": kind.value}
        if self.hidden:
            settings["hidden"] = list(self.hidden)
        return settings

    @property
    def layers(self) -> tuple[tuple[str, int, int], ...]:
        """(name, inputs, outputs) of the dense layers, from the input on."""
        classes = self.schema.target.class_count
        sizes = (len(self.schema.columns), *self.hidden, 1 if classes == 2 else classes)
        names = (*(f"hidden{place}" for place in range(1, len(sizes) - 1)), "output")
        return tuple(zip(names, sizes[:-1], sizes[1:], strict=True))


def initial_parameters(settings: Mapping[str, object], seed: int) -> dict[str, NDArray[np.float32]]:
    """The parameters that a run starts from.

    Logistic regression starts at zero: it is convex, and the first loss is that of a coin. The
    layers of an MLP are drawn uniformly from ±1/√inputs, weights and biases alike.

    Args:
        settings: of the plan's `tabular` task.
        seed: the plan's; the same seed gives the same parameters on every machine.

    Returns:
        float32 by name, `<layer>.weight` of shape (outputs, inputs) and `<layer>.bias` (outputs,).

    Raises:
        SchemaError: the settings are wrong.
    """
    model = TabularModel.parse(settings)
    parameters: dict[str, NDArray[np.float32]] = {}
    for name, inputs, outputs in model.layers:
        draws = generator(seed, "initial", name)
        reach = 1 / math.sqrt(inputs) if model.hidden else 0.0
        for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            drawn = draws.uniform(-reach, reach, shape)
            parameters[f"{name}.{part}"] = drawn.astype(np.float32)
    return parameters


def predict(
    model: TabularModel, parameters: Mapping[str, NDArray[np.generic]], inputs: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Each row's probability of each class.

    Args:
        model: what the parameters belong to.
        parameters: by name; computed in float64 whatever their dtype.
        inputs: (rows, encoded columns), as FeatureSchema.encode gives them.

    Returns:
        (rows, classes), rows sum to 1.

    Raises:
        SchemaError: parameters or inputs do not fit the model.
    """
    return np.exp(_log_probabilities(model, parameters, inputs))


def losses(
    model: TabularModel,
    parameters: Mapping[str, NDArray[np.generic]],
    inputs: NDArray[np.float64],
    labels: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Each row's cross entropy, in nats: what training minimizes the mean of.

    Args:
        model: what the parameters belong to.
        parameters: by name.
        inputs: (rows, encoded columns).
        labels: (rows,), from 0.

    Returns:
        (rows,), without the clipping that fl.metrics.log_loss needs for probabilities.

    Raises:
        SchemaError: parameters or inputs do not fit the model.
    """
    return -_log_probabilities(model, parameters, inputs)[np.arange(len(labels)), labels]


def _log_probabilities(
    model: TabularModel, parameters: Mapping[str, NDArray[np.generic]], inputs: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Logarithms of the classes' probabilities, exact also where a probability rounds to 0."""
    expected = {
        f"{name}.{part}": shape
        for name, before, after in model.layers
        for part, shape in (("weight", (after, before)), ("bias", (after,)))
    }
    found = {name: values.shape for name, values in parameters.items()}
    if found != expected:
        differing = sorted(
            name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
        )
        raise SchemaError(f"parameters do not fit the model; look at {', '.join(differing)}")
    if inputs.ndim != 2 or inputs.shape[1] != model.layers[0][1]:
        raise SchemaError(
            f"the model takes {model.layers[0][1]} encoded columns, got inputs of shape"
            f" {inputs.shape}"
        )
    activity = np.asarray(inputs, dtype=np.float64)
    for name, _, _ in model.layers:
        weight = parameters[f"{name}.weight"].astype(np.float64)
        activity = activity @ weight.T + parameters[f"{name}.bias"].astype(np.float64)
        if name != "output":
            activity = np.maximum(activity, 0.0)
    if activity.shape[1] == 1:
        activity = np.hstack([np.zeros_like(activity), activity])
    total: NDArray[np.float64] = np.logaddexp.reduce(activity, axis=1, keepdims=True)
    return activity - total
