"""Plugins: by entry point or by registration, and never two under one name."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint

import pytest

from fl import plugins
from fl.errors import PlanError
from fl.plugins import Group, find, register


def made(settings: Mapping[str, object]) -> object:
    """A plugin's factory."""
    return settings


def test_an_installed_entry_point_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By group and name, as a package declares it."""
    entry = EntryPoint(name="mine", value=f"{__name__}:made", group=Group.AGGREGATION_RULE)

    def installed(*, group: str, name: str) -> list[EntryPoint]:
        return [entry] if (group, name) == (entry.group, entry.name) else []

    monkeypatch.setattr(plugins, "entry_points", installed)
    monkeypatch.setattr(EntryPoint, "load", lambda _self: made)
    assert find(Group.AGGREGATION_RULE, "mine", (), "algorithm") is made
    with pytest.raises(PlanError, match=r"algorithm: expected one of a, b.*got 'mine'"):
        find(Group.LOCAL_OPTIMIZER, "mine", ("a", "b"), "algorithm")


def test_a_name_has_one_owner() -> None:
    """Registering the same again changes nothing; another one is refused."""
    register(Group.COHORT_SAMPLER, "test-owner", made)
    register(Group.COHORT_SAMPLER, "test-owner", made)
    assert find(Group.COHORT_SAMPLER, "test-owner", (), "x") is made
    with pytest.raises(PlanError, match="registered already"):
        register(Group.COHORT_SAMPLER, "test-owner", lambda settings: settings)
