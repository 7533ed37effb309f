"""Tests of secagg.transcript."""

from dataclasses import fields, replace

import pytest

from secagg.messages import Advertise, Result, SurvivorEntry
from secagg.transcript import binding_digest, setup_digest, transcript_digest
from tests.adversary.stage import Stage


@pytest.fixture(scope="module")
def stage() -> Stage:
    """A whole round of four."""
    stage = Stage(4)
    stage.finish()
    return stage


def test_setup_binds_every_field_of_every_advertise(stage: Stage) -> None:
    """But for the signature, of which a silo could make several."""
    honest = stage.advertises
    ctx = stage.parameters.ctx()
    digests = {setup_digest(ctx, honest)}
    for field in fields(Advertise):
        value = getattr(honest[2], field.name)
        if field.name == "signature":
            changed = replace(honest[2], signature=bytes(64))
            assert setup_digest(ctx, honest | {2: changed}) in digests
            continue
        if field.name == "kem":
            continue  # an example of the hybrid suite stands in test_suites
        other = 9 if field.name == "seat" else bytes(reversed(value))
        changed = replace(honest[2], **{field.name: other})  # type: ignore[arg-type]  # a field by name
        digests.add(setup_digest(ctx, honest | {2: changed}))
    digests.add(setup_digest(bytes(32), honest))
    digests.add(setup_digest(ctx, {seat: honest[seat] for seat in (1, 2, 3)}))
    # The first, five fields, ctx, a silo less.
    assert len(digests) == 8


def test_setup_does_not_depend_on_the_order(stage: Stage) -> None:
    """Silos are sorted by seat."""
    backwards = dict(reversed(stage.advertises.items()))
    assert setup_digest(stage.parameters.ctx(), backwards) == stage.setup


def test_binding_binds_setup_model_and_every_share_root() -> None:
    """And who dealt which."""
    roots = {1: b"a" * 32, 2: b"b" * 32, 10: b"c" * 32}
    honest = binding_digest(b"s" * 32, b"m" * 32, roots)
    assert binding_digest(b"s" * 32, b"m" * 32, dict(reversed(roots.items()))) == honest
    others = [
        binding_digest(b"x" * 32, b"m" * 32, roots),
        binding_digest(b"s" * 32, b"x" * 32, roots),
        binding_digest(b"s" * 32, b"m" * 32, roots | {10: b"x" * 32}),
        binding_digest(b"s" * 32, b"m" * 32, {1: roots[1], 2: roots[2]}),
        binding_digest(b"s" * 32, b"m" * 32, {1: roots[2], 2: roots[1], 10: roots[10]}),
        binding_digest(b"s" * 32, b"m" * 32, {1: roots[1], 3: roots[2], 10: roots[10]}),
    ]
    assert len({honest, *others}) == 7


def test_the_transcript_binds_the_finished_attempt(stage: Stage) -> None:
    """Binding, entries with their signatures, endorsements, root; not the sizes, nor itself."""
    result = stage.result(stage.sum_of(1, 2, 3, 4))
    assert result.transcript == transcript_digest(result)
    entry = result.entries[0]
    changed: list[Result] = [
        replace(result, binding=bytes(32)),
        replace(result, root=bytes(32)),
        replace(result, entries=result.entries[1:]),
        replace(result, endorsements=result.endorsements[1:]),
    ]
    for field in fields(SurvivorEntry):
        other = {"seat": 7, "lengths": (1,), "prior": (1,)}.get(field.name, bytes(64))
        forged = replace(entry, **{field.name: other})  # type: ignore[arg-type]  # a field by name
        changed.append(replace(result, entries=(forged, *result.entries[1:])))
    digests = {transcript_digest(item) for item in (result, *changed)}
    assert len(digests) == 10
    assert transcript_digest(replace(result, chunks=9, nbytes=9, transcript=bytes(32))) in digests
