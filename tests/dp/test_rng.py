"""The noise stream: fresh, unrepeatable, closed for good; the replay stream: marked."""

import copy
import inspect
import os
import pickle  # shows that a stream refuses to be pickled

import numpy as np
import pytest

from dp.errors import PrivacyError
from dp.rng import NoiseStream, ReplayStream


def test_words_are_uint64_of_the_asked_length_and_fresh() -> None:
    """Two draws of one stream share no word; zero words are fine."""
    stream = NoiseStream()
    first, second = stream.words(1000), stream.words(1000)
    assert first.dtype == np.uint64
    assert first.shape == second.shape == (1000,)
    assert not set(first.tolist()) & set(second.tolist())
    assert stream.words(0).shape == (0,)


def test_a_stream_has_no_seed_to_set() -> None:
    """The constructor takes nothing, so that no configuration can reach the key."""
    assert list(inspect.signature(NoiseStream).parameters) == []
    assert NoiseStream.is_private
    assert not ReplayStream(b"").is_private


def test_dpn_08_user_seeds_do_not_reach_the_noise() -> None:
    """DPN-08: the same seeds of the general-purpose generators, yet two silos differ."""
    import random  # the generator whose seed must not matter

    drawn = []
    for _ in ("silo A", "silo B", "silo A in a second run"):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002  # the global state is the point
        drawn.append(NoiseStream().words(4).tolist())
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_a_forked_child_takes_a_key_of_its_own() -> None:
    """Parent and child inherit one state and still draw different words."""
    stream = NoiseStream()
    stream.words(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover  # runs in the child, which coverage does not see
        os.write(writer, stream.words(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    theirs = os.read(reader, 32)
    os.close(reader)
    assert len(theirs) == 32
    assert theirs != stream.words(4).tobytes()


def test_another_process_id_means_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is the process id, at every draw; the new key then stays."""
    stream = NoiseStream()
    keys: list[int] = []
    draw_entropy = os.urandom

    def counted(count: int) -> bytes:
        keys.append(count)
        return draw_entropy(count)

    monkeypatch.setattr(os, "urandom", counted)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    stream.words(1)
    stream.words(1)
    assert keys == [32]


def test_a_closed_stream_draws_no_more() -> None:
    """After the with block the cipher is gone."""
    with NoiseStream() as stream:
        stream.words(1)
    with pytest.raises(PrivacyError, match="closed"):
        stream.words(1)


def test_a_stream_is_neither_copied_nor_pickled() -> None:
    """A copy would repeat the words."""
    stream = NoiseStream()
    with pytest.raises(TypeError, match="not copied"):
        copy.copy(stream)
    with pytest.raises(TypeError, match="not copied"):
        pickle.dumps(stream)


def test_a_replay_stream_repeats_from_its_seed_only() -> None:
    """Same seed, same words, however they are asked for; another seed, others."""
    whole = ReplayStream(b"a").words(10)
    parts = ReplayStream(b"a")
    assert np.concatenate([parts.words(3), parts.words(7)]).tolist() == whole.tolist()
    assert ReplayStream(b"b").words(10).tolist() != whole.tolist()


def test_words_look_uniform() -> None:
    """Each bit is set about half of the time: 64 counts of 20 000 within 5 sigma."""
    words = ReplayStream(b"bits").words(20_000)
    ones = np.array(
        [int(np.count_nonzero(words >> np.uint64(bit) & np.uint64(1))) for bit in range(64)]
    )
    assert np.all(np.abs(ones - 10_000) < 5 * np.sqrt(20_000 / 4))
