"""Vectors and blobs on disk: what was written comes back, or the loss is named."""

import os
import stat
import threading
from pathlib import Path

import pytest

from secagg.ports import VectorStore
from services.errors import CorruptError, StorageError
from services.storage.blobs import BlobStore, FileVectorStore


def test_chunks_come_back_in_any_order_and_after_a_restart(tmp_path: Path) -> None:
    """A gap ends the count; filling it counts what lies behind."""
    store = FileVectorStore(tmp_path / "v")
    port: VectorStore = store
    assert port.chunks("masked.3") == 0
    for chunk in (0, 2, 3):
        port.write("masked.3", chunk, bytes([chunk]) * (chunk + 1))
    assert port.chunks("masked.3") == 1
    port.write("masked.3", 1, b"one")
    assert port.chunks("masked.3") == 4
    store.sync()
    store.close()
    again = FileVectorStore(tmp_path / "v")
    assert again.chunks("masked.3") == 4
    assert [again.read("masked.3", chunk) for chunk in range(4)] == [
        b"\0",
        b"one",
        b"\2\2\2",
        b"\3\3\3\3",
    ]
    assert len(list((tmp_path / "v").iterdir())) == 2


def test_a_repeated_write_replaces_and_the_same_bytes_cost_nothing(tmp_path: Path) -> None:
    """A resend is free; other bytes are the newest word."""
    store = FileVectorStore(tmp_path)
    for _ in range(3):
        store.write("state", 0, b"x" * 100)
    assert (tmp_path / "state.data").stat().st_size == 100
    store.write("state", 0, b"longer" * 50)
    assert store.read("state", 0) == b"longer" * 50


def test_what_is_not_there_is_a_key_error(tmp_path: Path) -> None:
    """As the port says."""
    store = FileVectorStore(tmp_path)
    with pytest.raises(KeyError):
        store.read("state", 0)
    store.write("state", 1, b"x")
    with pytest.raises(KeyError):
        store.read("state", 0)


def test_discarding_removes_the_files_and_leaves_other_vectors(tmp_path: Path) -> None:
    """Also a vector that this process never opened; nothing happens if there is none."""
    first = FileVectorStore(tmp_path)
    first.write("state", 0, b"x")
    first.write("sum", 0, b"y")
    first.close()
    store = FileVectorStore(tmp_path)
    for _ in range(2):
        store.discard("state")
    assert store.chunks("state") == 0
    assert store.read("sum", 0) == b"y"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sum.data", "sum.index"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "A", "x" * 65, "ü", "a\0"])
def test_a_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    """Every method refuses it before it touches the disk."""
    store = FileVectorStore(tmp_path / "v")
    for use in (
        lambda: store.write(name, 0, b"x"),
        lambda: store.read(name, 0),
        lambda: store.chunks(name),
        lambda: store.discard(name),
    ):
        with pytest.raises(StorageError, match="vector name"):
            use()
    assert list((tmp_path / "v").iterdir()) == []


@pytest.mark.parametrize("chunk", [-1, 2**20])
def test_a_chunk_number_has_a_limit(tmp_path: Path, chunk: int) -> None:
    """A peer cannot make the index grow without end."""
    with pytest.raises(StorageError, match="chunk number below"):
        FileVectorStore(tmp_path).write("state", chunk, b"x")


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    """The error names the file and the chunk."""
    store = FileVectorStore(tmp_path)
    store.write("state", 0, b"a" * 10)
    store.write("state", 1, b"b" * 10)
    with (tmp_path / "state.data").open("r+b") as file:
        file.seek(15)
        file.write(b"c")
    assert store.read("state", 0) == b"a" * 10
    with pytest.raises(CorruptError, match="state: chunk 1 is damaged"):
        store.read("state", 1)


def test_a_cut_file_loses_the_chunks_that_are_gone(tmp_path: Path) -> None:
    """A power cut before `sync` may leave an index that is ahead of the data, or half a record."""
    store = FileVectorStore(tmp_path)
    for chunk in range(3):
        store.write("masked", chunk, b"x" * 10)
    store.close()
    os.truncate(tmp_path / "masked.data", 25)
    assert FileVectorStore(tmp_path).chunks("masked") == 2
    os.truncate(tmp_path / "masked.index", 50)
    assert FileVectorStore(tmp_path).chunks("masked") == 1


def test_threads_may_share_a_store(tmp_path: Path) -> None:
    """Chunks written at the same time do not overwrite each other."""
    store = FileVectorStore(tmp_path)

    def write(part: int) -> None:
        for chunk in range(part, 200, 4):
            store.write("masked.1", chunk, chunk.to_bytes(2, "big") * 500)

    threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.chunks("masked.1") == 200
    assert all(
        store.read("masked.1", chunk) == chunk.to_bytes(2, "big") * 500 for chunk in range(200)
    )


def test_vectors_and_blobs_are_their_owners_only(tmp_path: Path) -> None:
    """Under umask 000 too."""
    old = os.umask(0)
    try:
        FileVectorStore(tmp_path / "v").write("masked", 0, b"x")
        BlobStore(tmp_path / "b").put(b"secret")
    finally:
        os.umask(old)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_blob_comes_back_or_is_named(tmp_path: Path) -> None:
    """Damaged and missing blobs name their file."""
    store = BlobStore(tmp_path)
    kept, gone = store.put(b"kept"), store.put(b"gone")
    assert store.put(b"kept") == kept
    assert store.get(kept, "the model") == b"kept"
    store.keep_only([kept])
    with pytest.raises(CorruptError, match=rf"the model: .*{gone}.blob cannot be read"):
        store.get(gone, "the model")
    (tmp_path / f"{kept}.blob").write_bytes(b"other")
    with pytest.raises(CorruptError, match=rf"the model: .*{kept}.blob is damaged"):
        store.get(kept, "the model")


def test_leftovers_of_a_crash_are_removed_at_the_start(tmp_path: Path) -> None:
    """A half-written blob is nobody's."""
    (tmp_path / "abc.blob.part").write_bytes(b"half")
    BlobStore(tmp_path)
    assert list(tmp_path.iterdir()) == []
