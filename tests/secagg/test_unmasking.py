"""Tests of secagg.unmasking: the masks that are left are exactly those that are named."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from secagg.errors import BadDealerError
from secagg.graph import complete
from secagg.messages import Advertise, Share, ShareKind, Survivors, Unmask
from secagg.policy import SiloPolicy
from secagg.prg import MaskStream
from secagg.ring import container
from secagg.secretbytes import Secret
from secagg.suites import SUITES
from secagg.unmasking import Openings, residual_masks
from tests.adversary.stage import Stage

LENIENT = {seat: SiloPolicy(suites=frozenset({1, 2, 3, 4})) for seat in range(1, 6)}


def _openings(stage: Stage) -> dict[int, Openings]:
    """What everybody opened."""
    return {
        seat: {(item.dealer, item.kind): item.share for item in unmask.openings}
        for seat, unmask in stage.all_of(Unmask).items()
    }


def _masks(
    stage: Stage,
    survivors: tuple[int, ...],
    *,
    openings: dict[int, Openings] | None = None,
    advertises: dict[int, Advertise] | None = None,
    shares: dict[int, Share] | None = None,
) -> dict[str, list[tuple[int, bytes]]]:
    return residual_masks(
        suite=stage.parameters.cipher_suite,
        setup=stage.setup,
        binding=stage.last(survivors[0], Survivors).binding,
        segments=stage.wire.names,
        survivors=survivors,
        advertises=advertises or stage.advertises,
        shares=shares or stage.all_of(Share),
        openings=openings or _openings(stage),
        graph=complete(stage.cohort, stage.threshold),
    )


@pytest.fixture(scope="module")
def stage() -> Stage:
    """Five silos, one dropped out after its shares; all others have opened."""
    stage = Stage(5)
    stage.open_shares(1, 2, 4, 5)
    return stage


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("survivors", [(1, 2, 3, 4, 5), (2, 3, 4, 5), (1, 2, 3, 4), (1, 2, 4, 5)])
def test_the_residual_masks_turn_the_sum_of_uploads_into_the_sum(
    survivors: tuple[int, ...], suite: int
) -> None:
    """In every segment, for every set of survivors, in every suite."""
    stage = Stage(5, suite=suite, policies=LENIENT)
    stage.open_shares(*survivors)
    masks = _masks(stage, survivors)
    uploads = {upload.seat: upload.words for upload in stage.view.uploads}
    truth = stage.sum_of(*survivors)
    generator = SUITES[suite].generator
    for segment in stage.wire.segments:
        dtype = container(segment.ring_bits)
        total = np.zeros(segment.length, np.uint64)
        for seat in survivors:
            total += uploads[seat][segment.name]
        for sign, seed in masks[segment.name]:
            stream = MaskStream(seed, dtype, generator=generator)
            words = stream.words(0, segment.length).astype(np.uint64)
            total = total + words if sign > 0 else total - words
        ring = np.uint64(2**segment.ring_bits - 1)
        assert (total & ring).tolist() == (truth[segment.name].view(np.uint64) & ring).tolist()


def test_one_self_mask_a_survivor_and_one_pair_mask_a_dropout_and_survivor(stage: Stage) -> None:
    """With the signs that take them off."""
    masks = _masks(stage, (1, 2, 4, 5))
    for name in stage.wire.names:
        signs = [sign for sign, _ in masks[name]]
        # Silo 3 would have added its masks with 1 and 2 and subtracted those with 4 and 5.
        assert signs == [-1, -1, -1, -1, 1, 1, -1, -1]
    seeds = [seed for name in stage.wire.names for _, seed in masks[name]]
    assert len(set(seeds)) == 8 * len(stage.wire.names)


def test_any_t_holders_will_do(stage: Stage) -> None:
    """T of five, whichever."""
    everybody = _openings(stage)
    expected = _masks(stage, (1, 2, 4, 5))
    for holders in combinations(everybody, stage.threshold):
        some = {holder: everybody[holder] for holder in holders}
        assert _masks(stage, (1, 2, 4, 5), openings=some) == expected


@pytest.mark.parametrize(("dealer", "kind"), [(1, ShareKind.SELF), (3, ShareKind.KEY)])
@pytest.mark.parametrize("value", [5, 2**256 + 11])
def test_a_secret_that_fails_its_public_check_names_the_dealer(
    stage: Stage, dealer: int, kind: ShareKind, value: int
) -> None:
    """Another secret, or none at all; of a survivor and of a dropout."""
    openings = _openings(stage)
    # A constant polynomial: all shares are the secret itself.
    lie = Secret(value.to_bytes(33, "big"))
    wrong = {holder: opened | {(dealer, kind): lie} for holder, opened in openings.items()}
    with pytest.raises(BadDealerError, match=f"seat {dealer} rebuild another secret") as caught:
        _masks(stage, (1, 2, 4, 5), openings=wrong)
    assert caught.value.silo == dealer


def test_public_values_that_do_not_belong_to_the_secret(stage: Stage) -> None:
    """The commitment of a survivor, the mask key of a dropout."""
    shares = stage.all_of(Share)
    shares[2] = replace(shares[2], commitment_b=bytes(32))
    with pytest.raises(BadDealerError, match="seat 2"):
        _masks(stage, (1, 2, 4, 5), shares=shares)
    advertises = stage.advertises
    advertises[3] = replace(advertises[3], mask_key=bytes(32))
    with pytest.raises(BadDealerError, match="seat 3"):
        _masks(stage, (1, 2, 4, 5), advertises=advertises)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_kem_key_that_does_not_belong_to_the_secret(*, is_there: bool) -> None:
    """In the hybrid suite a dropout's second mask key follows from its secret too."""
    stage = Stage(5, suite=4, policies=LENIENT)
    stage.open_shares(1, 2, 4, 5)
    advertises = stage.advertises
    kem = advertises[3].kem
    assert kem is not None
    other = replace(kem, mask_key=kem.box_key) if is_there else None
    advertises[3] = replace(advertises[3], kem=other)
    with pytest.raises(BadDealerError, match="seat 3"):
        _masks(stage, (1, 2, 4, 5), advertises=advertises)
