"""Silos with one check taken out, to show what the check is there for."""

import sys
from pathlib import Path
from types import ModuleType

import secagg.agreement
import secagg.holdings
import secagg.lifting
import secagg.silo
import secagg.view
from secagg.silo import SiloRound

# Where a silo's checks and secrets stand, importers after those that they import.
MODULES = (secagg.agreement, secagg.holdings, secagg.lifting, secagg.view, secagg.silo)


def silo_without(*edits: tuple[str, str]) -> type[SiloRound]:
    """A SiloRound from the same sources with pieces of them replaced; each must occur once."""
    original = {
        module.__name__: Path(str(module.__file__)).read_text(encoding="utf-8")
        for module in MODULES
    }
    for old, _ in edits:
        assert "".join(original.values()).count(old) == 1, f"the source holds {old!r} not once"
    changed: dict[str, object] = {}
    for name, source in original.items():
        for edit in edits:
            source = source.replace(*edit)  # noqa: PLW2901  # edit after edit
        mutant = ModuleType(f"mutant of {name}")
        sys.modules[mutant.__name__] = mutant
        exec(compile(source, "mutant", "exec"), mutant.__dict__)  # noqa: S102  # our own source
        mutant.__dict__.update({key: changed[key] for key in changed.keys() & mutant.__dict__})
        own = vars(mutant).items()
        changed |= {
            key: value
            for key, value in own
            if getattr(value, "__module__", None) == mutant.__name__
        }
    found = changed["SiloRound"]
    assert isinstance(found, type)
    assert found.__name__ == "SiloRound"
    return found
