"""Presence: one process speaks for a silo (bug cases DRP-07 and DRP-08)."""

import asyncio
from itertools import pairwise

import pytest

from secagg.ids import SiloId
from services.coordinator.presence import Presence
from services.errors import ConflictError, NotAllowedError, NotNowError

SILO = SiloId("north")
FIRST, SECOND = b"1" * 16, b"2" * 16


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock at 100 seconds."""
    return Clock()


@pytest.fixture
def presence(clock: Clock) -> Presence:
    """Nobody is connected yet."""
    return Presence(silent_after_s=10, now=clock, wall_clock=lambda: "2026-01-01T00:00:00")


def test_a_second_process_is_refused_while_the_first_is_alive(presence: Presence) -> None:
    """The refusal names the silo and since when it is connected."""
    assert presence.hello(SILO, FIRST)
    with pytest.raises(ConflictError, match="north is already connected since 2026") as refusal:
        presence.hello(SILO, SECOND)
    assert refusal.value.remote_code == "ALREADY_CONNECTED"
    presence.check(SILO, FIRST)
    assert presence.connected() == {SILO}


def test_hello_again_is_the_same_process(presence: Presence) -> None:
    """A reconnect changes nothing."""
    presence.hello(SILO, FIRST)
    assert not presence.hello(SILO, FIRST)


def test_after_silence_the_second_takes_over_and_the_first_is_fenced(
    presence: Presence, clock: Clock
) -> None:
    """What the first sends from then on is refused, also its Hello."""
    presence.hello(SILO, FIRST)
    clock.now += 10
    assert presence.is_silent(SILO)
    assert presence.hello(SILO, SECOND)
    with pytest.raises(NotAllowedError, match="taken over"):
        presence.check(SILO, FIRST)
    with pytest.raises(NotAllowedError, match="taken over"):
        presence.hello(SILO, FIRST)
    presence.check(SILO, SECOND)


def test_whoever_holds_the_storage_of_the_first_takes_over_at_once(presence: Presence) -> None:
    """A restart costs no silence; the first, should it live after all, is fenced (DRP-08)."""
    presence.hello(SILO, FIRST)
    assert presence.hello(SILO, SECOND, (b"0" * 16, FIRST))
    assert presence.incarnation(SILO) == SECOND
    with pytest.raises(NotAllowedError, match="taken over by a later process"):
        presence.hello(SILO, FIRST, (SECOND,))
    assert not presence.hello(SILO, SECOND, (FIRST,)), "a reconnect of the same process"


def test_an_open_poll_is_no_silence(presence: Presence, clock: Clock) -> None:
    """A silo that waits for a message is alive however long it waits."""
    presence.hello(SILO, FIRST)
    with presence.polling(SILO):
        clock.now += 1000
        assert presence.connected() == {SILO}
        assert not presence.is_silent(SILO)


def test_a_cut_poll_frees_the_seat_at_once(presence: Presence, clock: Clock) -> None:
    """A killed process's connection closes; its successor need not wait, and it is not invited."""
    presence.hello(SILO, FIRST)
    with pytest.raises(asyncio.CancelledError), presence.polling(SILO):
        raise asyncio.CancelledError
    assert presence.connected() == frozenset()
    clock.now += 2.9
    assert not presence.is_silent(SILO), "a cut line alone is not silence"
    clock.now += 0.1
    assert presence.is_silent(SILO), "but a process that lives would have called again"
    assert presence.hello(SILO, SECOND)


@pytest.mark.parametrize("call", ["check", "touch", "hello"])
def test_a_call_after_a_cut_poll_shows_that_the_silo_lives(
    presence: Presence, clock: Clock, call: str
) -> None:
    """A line that broke and came back costs nothing."""
    presence.hello(SILO, FIRST)
    with pytest.raises(asyncio.CancelledError), presence.polling(SILO):
        raise asyncio.CancelledError
    getattr(presence, call)(SILO, FIRST)
    assert presence.connected() == {SILO}
    clock.now += 5
    assert not presence.is_silent(SILO)


def test_before_hello_nothing_is_answered(presence: Presence) -> None:
    """A restarted coordinator asks every silo for a Hello."""
    with pytest.raises(NotNowError) as refusal:
        presence.check(SILO, FIRST)
    assert refusal.value.remote_code == "HELLO_FIRST"


def test_what_a_replaced_process_uploads_is_refused(presence: Presence, clock: Clock) -> None:
    """Not only its polls: an upload that was stalled, too; before any Hello nobody is replaced."""
    presence.touch(SILO, FIRST)
    presence.hello(SILO, FIRST)
    clock.now += 8
    presence.touch(SILO, FIRST)
    clock.now += 8
    assert not presence.is_silent(SILO), "a long upload is no silence"
    with pytest.raises(NotAllowedError, match="taken over"):
        presence.touch(SILO, SECOND)
    clock.now += 10
    presence.hello(SILO, SECOND)
    with pytest.raises(NotAllowedError) as refusal:
        presence.touch(SILO, FIRST)
    assert refusal.value.remote_code == "FENCED"


def test_after_a_new_roster_every_silo_greets_again(presence: Presence) -> None:
    """Its next poll says so; an upload goes on."""
    presence.hello(SILO, FIRST)
    presence.greet_again()
    with pytest.raises(NotNowError):
        presence.check(SILO, FIRST)
    presence.touch(SILO, FIRST)
    assert not presence.hello(SILO, FIRST), "it is the same process"
    presence.check(SILO, FIRST)


def test_replaced_processes_are_not_kept_without_end(presence: Presence) -> None:
    """One that is forgotten is a stranger beside a live process, and still does not speak."""
    names = [bytes([number]) * 16 for number in range(40)]
    presence.hello(SILO, names[0])
    for before, name in pairwise(names):
        presence.hello(SILO, name, (before,))
    assert len(presence._fenced[SILO]) < 20
    for old in names[:-1]:
        with pytest.raises((NotAllowedError, ConflictError)):
            presence.hello(SILO, old)
        with pytest.raises((NotAllowedError, NotNowError)):
            presence.check(SILO, old)
