"""Tests of secagg.effects."""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import get_args

import pytest

from secagg import effects
from secagg.effects import Aborted, AbortReason, DeadlineSet, ServerEffect, SiloEffect

EFFECTS = {*get_args(SiloEffect), *get_args(ServerEffect)}


def test_effects_are_frozen_values() -> None:
    """All of them, with keyword arguments only, and every one of the module in a union."""
    public = {item for item in vars(effects).values() if isinstance(item, type)}
    own = {item for item in public if item.__module__ == effects.__name__ and is_dataclass(item)}
    assert own - {effects.Aggregate} == EFFECTS
    for kind in own:
        assert all(field.kw_only for field in fields(kind))
    effect = DeadlineSet(at=1.0)
    with pytest.raises(FrozenInstanceError):
        effect.at = 2.0  # type: ignore[misc]  # what is tested


def test_an_abort_says_why() -> None:
    """In words, that are distinct; nobody is missing unless named."""
    assert len({reason.value for reason in AbortReason}) == len(AbortReason)
    aborted = Aborted(reason=AbortReason.STOPPED)
    assert (aborted.detail, aborted.missing) == ("", ())
    assert f"{aborted.reason}" == "stopped"
