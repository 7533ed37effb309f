"""The released model's file: complete, the same bytes everywhere, never half written."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from fl.errors import DataError
from fl.modelfile import ModelFile, load_model, save_model

MODEL = ModelFile(
    tensors={
        "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a.bias": np.array(1.5, dtype=np.float16),
        "a.far": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
        "count": np.array([7], dtype=np.int64),
    },
    task="tabular",
    settings={"schema": {"features": [{"name": "größe"}]}, "hidden": [3]},
    preprocess={"mean": np.array([0.1, 1 / 3]), "scale": np.array([1e-300, 2.0])},
    plan_digest=bytes(range(32)),
)


def test_everything_comes_back_as_it_went(tmp_path: Path) -> None:
    """Names, dtypes, shapes and bits, the settings, and the statistics to the last digit."""
    path = tmp_path / "model.safetensors"
    save_model(path, MODEL)
    back = load_model(path)
    assert back.tensors.keys() == MODEL.tensors.keys()
    for name, tensor in MODEL.tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert back.tensors[name].shape == tensor.shape
        assert np.array_equal(back.tensors[name], tensor)
    assert (back.task, back.settings, back.plan_digest) == (
        MODEL.task,
        MODEL.settings,
        MODEL.plan_digest,
    )
    assert back.preprocess.keys() == {"mean", "scale"}
    for name, values in MODEL.preprocess.items():
        assert np.array_equal(back.preprocess[name], values)


def test_equal_models_are_equal_bytes(tmp_path: Path) -> None:
    """Every silo ends with the same file, in whatever order it filled its dictionaries."""
    turned = ModelFile(
        tensors=dict(reversed(list(MODEL.tensors.items()))),
        task=MODEL.task,
        settings=dict(reversed(list(MODEL.settings.items()))),
        preprocess=dict(reversed(list(MODEL.preprocess.items()))),
        plan_digest=MODEL.plan_digest,
    )
    for name, model in (("one", MODEL), ("other", turned)):
        save_model(tmp_path / name, model)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_new_model_replaces_the_old_one_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Also over what a crash left half written."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    (tmp_path / "model.safetensors.partial").write_bytes(b"torn")
    save_model(path, MODEL)
    assert load_model(path).task == "tabular"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


def test_what_is_no_model_of_ours_is_refused(tmp_path: Path) -> None:
    """A missing, a foreign, a cut, and a newer file each have their own words."""
    path = tmp_path / "model.safetensors"
    with pytest.raises(DataError, match="no model file"):
        load_model(path)
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(DataError, match="not a safetensors file"):
        load_model(path)
    save_model(path, MODEL)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="not a safetensors file, or damaged"):
        load_model(path)
    tensors = {"a": np.zeros(1)}
    path.write_bytes(save(tensors))
    with pytest.raises(DataError, match="says nothing about its task"):
        load_model(path)
    path.write_bytes(save(tensors, metadata={"secagg-model": '{"version": 2}'}))
    with pytest.raises(DataError, match="format version 2, expected 1"):
        load_model(path)
    for entry in ("{", "[]", '{"version": 1}', '{"version": 1, "task": "t", "settings": 3}'):
        path.write_bytes(save(tensors, metadata={"secagg-model": entry}))
        with pytest.raises(DataError, match="description is damaged"):
            load_model(path)
