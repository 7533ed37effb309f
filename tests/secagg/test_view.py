"""Mirror of `secagg.view`: what a silo has accepted, and what follows from it."""

import pytest

from secagg.errors import LocalProtocolError
from secagg.transcript import binding_digest, setup_digest
from secagg.view import View
from tests.adversary.stage import Stage


def test_before_u1_and_k_are_known() -> None:
    """Asking too early is our own mistake."""
    stage = Stage(4)
    view = View(seat=1, parameters=stage.parameters, roster=stage.roster)
    for name in ("graph", "near", "tags", "submission"):
        with pytest.raises(LocalProtocolError):
            getattr(view, name)
    assert view.u1 == ()


def test_a_view_from_first_to_last() -> None:
    """Setup follows from ctx and U1; the binding from setup, state and U2."""
    stage = Stage(4)
    stage.mask()
    view = stage.silos[1]._view
    assert view.u1 == view.near == (1, 2, 3, 4)
    assert view.setup == setup_digest(stage.parameters.ctx(), view.advertises) == stage.setup
    assert view.binding == binding_digest(view.setup, view.model_hash, view.share_roots)
    kept = view.submission
    assert (kept.binding, kept.model_hash, kept.u1) == (view.binding, view.model_hash, view.u1)
    assert (kept.signers, kept.threshold) == (view.near, view.graph.threshold)
    assert kept.key == view.tags.key
