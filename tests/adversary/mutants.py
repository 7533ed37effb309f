"""Silos with one check taken out, to show what the check is there for."""

import sys
from pathlib import Path
from types import ModuleType

import secagg.agreement
import secagg.silo
from secagg.silo import SiloRound


def silo_without(*edits: tuple[str, str]) -> type[SiloRound]:
    """A SiloRound from the same source with pieces of it replaced; each must occur once.

    Its lists are checked in `secagg.agreement`, so the pieces may stand there too.
    """
    original = {
        module.__name__: Path(str(module.__file__)).read_text(encoding="utf-8")
        for module in (secagg.agreement, secagg.silo)
    }
    for old, _ in edits:
        assert "".join(original.values()).count(old) == 1, f"the source holds {old!r} not once"
    mutants = {}
    for name, source in original.items():
        for edit in edits:
            source = source.replace(*edit)  # noqa: PLW2901  # edit after edit
        mutants[name] = ModuleType(f"mutant of {name}")
        sys.modules[mutants[name].__name__] = mutants[name]
        exec(compile(source, "mutant", "exec"), mutants[name].__dict__)  # noqa: S102  # our own source
    agreement, silo = mutants.values()
    for name in ("check_keys", "check_sharers", "check_survivor_list"):
        setattr(silo, name, getattr(agreement, name))
    mutant: type[SiloRound] = silo.SiloRound
    return mutant
