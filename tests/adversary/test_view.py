"""The checker finds the input in protocols that are broken on purpose, and nothing in SA1."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from secagg import holdings, masking
from secagg.messages import Opening, ShareKind
from secagg.policy import SiloPolicy
from secagg.secretbytes import Secret
from secagg.silo import SiloRound
from secagg.testing import RoundHarness, make_federation, make_parameters
from tests.adversary.stage import Stage, random_inputs, small_spec
from tests.adversary.watched import Watch

pytestmark = pytest.mark.adversary

# What the attacks below need of every silo: that it lets them go on.
LENIENT = {seat: SiloPolicy(n_c=0) for seat in range(1, 6)}


def test_an_honest_round_shows_nothing() -> None:
    """Five silos, one of them corrupted, one dropped out after its shares."""
    stage = Stage(5, corrupted=(5,))
    stage.finish(1, 2, 4, 5)
    assert sorted(stage.finished) == [1, 2, 3, 4, 5]
    stage.assert_hidden()


def test_an_honest_round_with_a_late_upload_shows_nothing() -> None:
    """Silo 3 uploads, is left out, and its mask key is opened: its self mask stays."""
    stage = Stage(5, corrupted=(5,))
    stage.announce()
    stage.submit()
    stage.tell_all(stage.request(1, 2, 4, 5))
    stage.tell_all(stage.certificate())
    assert stage.view.rebuilt()[stage.setup, 3, ShareKind.KEY]
    stage.assert_hidden()


def test_it_finds_inputs_without_a_self_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same late upload, made by silos that forget the self mask."""
    honest = SiloRound._mask_seeds

    def forgetful(self: SiloRound, *args: Any) -> dict[str, list[tuple[int, bytes]]]:
        return {name: seeds[1:] for name, seeds in honest(self, *args).items()}

    monkeypatch.setattr(SiloRound, "_mask_seeds", forgetful)
    stage = Stage(5)
    stage.announce()
    stage.submit()
    assert stage.view.search(stage.truth()) == []
    stage.tell_all(stage.request(1, 2, 4, 5))
    stage.tell_all(stage.certificate())
    assert any(leak.startswith("seat 3") for leak in stage.view.search(stage.truth()))


def test_it_finds_inputs_if_both_shares_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the survivors, whose self masks are open already, the mask keys too."""
    stage = Stage(4)
    honest = SiloRound._opening

    def generous(self: SiloRound, dealer: int) -> Opening:
        both = self._own.held[dealer]
        for kind, share in ((ShareKind.KEY, both.share_a), (ShareKind.SELF, both.share_b)):
            stage.view.see_share(stage.setup, dealer, kind, self.seat, share)
        return honest(self, dealer)

    monkeypatch.setattr(SiloRound, "_opening", generous)
    stage.open_shares()
    leaks = stage.view.search(stage.truth())
    assert {leak.split(",")[0] for leak in leaks} == {"seat 1", "seat 2", "seat 3", "seat 4"}


def test_it_finds_one_key_for_all_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two segments is then that of the inputs, before anything is opened."""
    honest_self, honest_pair = masking.self_seed, masking.pairwise_seeds

    def one_self_seed(secret: Any, *, segment: str, **rest: Any) -> bytes:
        assert segment
        return honest_self(secret, segment="one", **rest)

    def one_pair_seed(*args: Any, segments: Sequence[str], **rest: Any) -> dict[str, bytes]:
        seed = honest_pair(*args, segments=("one",), **rest)["one"]
        return dict.fromkeys(segments, seed)

    monkeypatch.setattr(holdings, "self_seed", one_self_seed)
    monkeypatch.setattr(holdings, "pairwise_seeds", one_pair_seed)
    stage = Stage(4)
    stage.mask()
    leaks = stage.view.search(stage.truth())
    assert "one keystream of seat 1: uploads 0/update and 0/variate" in leaks


@pytest.mark.parametrize("bound", [True, False])
def test_it_finds_masks_that_are_not_bound_to_the_round(
    bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that serve two rounds are forgiven by the binding, and by nothing else."""
    if not bound:
        for name in ("self_seed", "pairwise_seeds"):
            honest = getattr(masking, name)

            def unbound(*args: Any, _honest: Any = honest, **rest: Any) -> Any:
                return _honest(*args, **(rest | {"binding": bytes(32)}))

            monkeypatch.setattr(holdings, name, unbound)
    first = Stage(4, secrets="the same", seed=1)
    first.mask()
    second = Stage(4, secrets="the same", seed=1, round=2, view=first.view)
    second.inputs = Stage(4, seed=2).inputs
    second.mask(state=b"the next state")
    leaks = second.view.search(first.truth() | second.truth())
    assert bool(leaks) is not bound
    assert bound or "one keystream of seat 1: uploads 0/update and 4/update" in leaks


def test_it_finds_the_difference_of_two_sums() -> None:
    """The same inputs summed with and without silo 3, by silos that have lost their journals."""
    first = Stage(4)
    first.finish()
    first.assert_hidden()
    second = Stage(4, round=2, view=first.view, inputs=first.inputs)
    second.finish(1, 2, 4)
    leaks = second.view.search(first.truth() | second.truth())
    assert any(leak.startswith("seat 3, segment update") and "less" in leak for leak in leaks)


def test_it_finds_the_one_honest_input_of_a_sum() -> None:
    """Three of four collude: the sum less theirs is the fourth's."""
    stage = Stage(4, corrupted=(2, 3, 4))
    stage.finish()
    assert any(leak.startswith("seat 1") for leak in stage.view.search(stage.truth()))


def test_it_finds_inputs_if_colluders_reach_the_threshold() -> None:
    """Three of five against a threshold of three, before any share is opened."""
    stage = Stage(5, corrupted=(3, 4, 5), policies=LENIENT, n_c=0)
    assert stage.threshold == 3
    stage.mask()
    found = {leak.split(",")[0] for leak in stage.view.search(stage.truth())}
    assert found == {"seat 1", "seat 2"}
    fewer = Stage(5, corrupted=(4, 5), policies=LENIENT, n_c=0)
    fewer.mask()
    fewer.assert_hidden()


def test_it_finds_inputs_by_keys_in_the_middle() -> None:
    """With the mask keys of all peers, the self mask is what is left; with that, nothing."""
    stage = Stage(4)
    stage.announce()
    for peer in (2, 3, 4):
        stage.view.see_key(stage.silos[peer]._own.keys.mask)
    self_secret = stage.silos[1]._own.b.reveal()
    stage.submit(1)
    stage.assert_hidden()
    stage.view.see_secret(stage.setup, 1, ShareKind.SELF, self_secret)
    found = stage.view.search(stage.truth())
    assert {leak.split(",")[0] for leak in found} == {"seat 1"}
    assert len(found) == len(stage.wire.segments)


def test_a_liars_shares_rebuild_nothing() -> None:
    """The checker goes on where shares are rubbish."""
    stage = Stage(4)
    stage.open_shares()
    for holder in stage.cohort:
        share = Secret(b"\xff" * 33)
        stage.view.see_share(stage.setup, 1, ShareKind.KEY, holder, share)
    assert (stage.setup, 1, ShareKind.KEY) not in stage.view.rebuilt()
    stage.assert_hidden()


def test_an_announced_sum_is_searched() -> None:
    """A sum that is an input is found wherever it came from."""
    stage = Stage(4)
    stage.mask()
    stage.view.see_sum(stage.setup, "a gift", {"update": stage.inputs[2]["update"]})
    assert stage.view.search(stage.truth()) == [
        f"seat 2, segment update, attempt {stage.setup.hex()[:6]}: is a gift"
    ]
    assert np.any(stage.inputs[2]["update"])


@pytest.mark.parametrize(("liars", "is_found"), [((), False), ((1,), False), ((1, 2, 3, 4), True)])
def test_a_watched_round(liars: tuple[int, ...], is_found: bool) -> None:
    """Whoever colludes with all others of an honest server's round finds the one that is left."""
    federation, spec = make_federation(5), small_spec(8)
    inputs = random_inputs(range(1, 6), spec, 7)
    harness = RoundHarness(
        federation=federation,
        parameters=make_parameters(federation.roster, spec),
        state=b"state",
        train=lambda seat, _parameters, _state: inputs[seat],
    )
    watch = Watch(harness, *liars)
    assert harness.run().aggregate is not None
    leaks = watch.leaks(inputs)
    assert bool(leaks) is is_found
    assert all("seat 5" in leak for leak in leaks)
