"""Bytes that would run code if anybody unpickled them (bug case SEC-01)."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dp.entries import Entry
from dp.errors import PrivacyError
from fl.errors import LearningError
from fl.memory import RunMemory
from fl.modelfile import load_model
from fl.run import TrainingRun
from fl.state import decode_state
from fl.testing import DictMemory
from secagg.errors import SecAggError
from secagg.ids import RunId
from secagg.messages import decode_message
from secagg.roster import SignedRoster
from services.config import CoordinatorConfig, OperatorConfig, SiloConfig
from services.errors import ServiceError
from services.query_config import QueryConfig
from services.run_config import RunConfig
from services.settings import parse_config


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.mark,)


def bombs(mark: Path) -> dict[str, bytes]:
    """A pickle, an archive as torch.save makes it, and a NumPy file of objects."""
    raw = pickle.dumps(Bomb(mark))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as inside:
        inside.writestr("archive/data.pkl", raw)
        inside.writestr("archive/version", "3\n")
    array = io.BytesIO()
    np.save(array, np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    return {"pickle": raw, "torch.save": archive.getvalue(), "npy": array.getvalue()}


@pytest.mark.parametrize("kind", ["pickle", "torch.save", "npy"])
def test_what_arrives_is_never_run(kind: str, tmp_path: Path) -> None:
    """From whoever sends it, and from a disk that others write: malformed, and no mark."""
    mark = tmp_path / "mark"
    data = bombs(mark)[kind]
    file = tmp_path / "model.safetensors"
    file.write_bytes(data)
    run, memory = RunId(bytes(16)), DictMemory()
    memory.write({f"{run}/settled": bytes(8) + data})
    doors: list[Callable[[], object]] = [
        lambda: decode_message(data),
        lambda: decode_state(data, 2**20),
        lambda: TrainingRun.restore(data, {}),
        lambda: SignedRoster.decode(data),
        lambda: load_model(file),
        lambda: RunMemory(memory, run).settled(),  # a control variate
        lambda: Entry.from_line(data),  # of a ledger
        *(
            lambda model=model: parse_config(data, model, source="settings", base=tmp_path)
            for model in (CoordinatorConfig, OperatorConfig, QueryConfig, RunConfig, SiloConfig)
        ),
    ]
    for door in doors:
        with pytest.raises((LearningError, PrivacyError, SecAggError, ServiceError)):
            door()
    assert not mark.exists()


def test_the_bomb_would_go_off(tmp_path: Path) -> None:
    """The test above means something: whoever unpickles it leaves the mark."""
    mark = tmp_path / "mark"
    pickle.loads(bombs(mark)["pickle"])  # noqa: S301 - our own bytes, to see them go off
    assert mark.exists()
