"""Silos with one check taken out, to show what the check is there for."""

import sys
from pathlib import Path
from types import ModuleType

import secagg.silo
from secagg.silo import SiloRound


def silo_without(*edits: tuple[str, str]) -> type[SiloRound]:
    """A SiloRound from the same source with pieces of it replaced; each must occur once."""
    source = Path(secagg.silo.__file__).read_text(encoding="utf-8")
    for old, new in edits:
        assert source.count(old) == 1, f"the source no longer holds {old!r} once"
        source = source.replace(old, new)
    module = ModuleType("mutant")
    sys.modules["mutant"] = module
    exec(compile(source, "mutant", "exec"), module.__dict__)  # noqa: S102  # our own source
    mutant: type[SiloRound] = module.SiloRound
    return mutant
