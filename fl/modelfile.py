"""A released model as one safetensors file that says all that is needed to use it.

The tensors are the model's parameters. One metadata entry holds canonical JSON: the task and its
settings (with the feature schema), the federated mean and scale, and the training plan's digest.
One entry, because safetensors writes several in no fixed order, and every silo shall end with the
same bytes.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fl.errors import DataError
from fl.ports import NamedTensors

_ENTRY: Final = "secagg-model"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelFile:
    """What the file holds.

    Args:
        tensors: the model's parameters by name.
        task: the task's name, "tabular" or "package.module:factory".
        settings: the task's, JSON-able.
        preprocess: released statistics by name ("mean", "scale"), float64; empty without them.
        plan_digest: 32 bytes, of the training plan that made the model.
    """

    tensors: NamedTensors
    task: str
    settings: Mapping[str, object]
    preprocess: Mapping[str, NDArray[np.float64]]
    plan_digest: bytes


def save_model(path: Path, model: ModelFile) -> None:
    """Write the file whole or not at all; equal models give equal bytes.

    Raises:
        OSError: the file cannot be written.
    """
    _write_atomically(path, encode_model(model))


def encode_model(model: ModelFile) -> bytes:
    """Return the file's bytes."""
    about = {
        "version": _VERSION,
        "task": model.task,
        "settings": model.settings,
        # repr of a float64 and back is exact, so JSON keeps the statistics bit by bit.
        "preprocess": {name: values.tolist() for name, values in model.preprocess.items()},
        "plan": model.plan_digest.hex(),
    }
    entry = json.dumps(about, sort_keys=True, ensure_ascii=False, allow_nan=False)
    tensors = {name: np.asarray(values, order="C") for name, values in model.tensors.items()}
    return save(tensors, metadata={_ENTRY: entry})


def load_model(path: Path) -> ModelFile:
    """Read what `save_model` wrote.

    Raises:
        DataError: no such file, not safetensors, or not a model of ours.
    """
    if not path.is_file():
        raise DataError(f"no model file at {path}; check the path")
    try:
        with safe_open(path, framework="numpy") as file:
            entry = (file.metadata() or {}).get(_ENTRY)
            tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
    except SafetensorError as error:
        raise DataError(f"{path} is not a safetensors file, or damaged: {error}") from error
    if entry is None:
        raise DataError(f"{path} says nothing about its task; expected a model of this program")
    try:
        about = json.loads(entry)
        if about["version"] != _VERSION:
            raise DataError(f"{path} has format version {about['version']}, expected {_VERSION}")
        return ModelFile(
            tensors=tensors,
            task=str(about["task"]),
            settings=dict(about["settings"]),
            preprocess={
                name: np.array(values, dtype=np.float64)
                for name, values in about["preprocess"].items()
            },
            plan_digest=bytes.fromhex(about["plan"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: its description is damaged; fetch the model again") from error


def _write_atomically(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one, also after a power cut."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
