"""Which release of this software is running."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

# What a privacy ledger names: whatever computes noise, figures or the model.
_PACKAGES: Final = ("cryptography", "numpy", "opacus", "scipy", "torch")


def software_version() -> str:
    """The installed release, for people and for Hello."""
    try:
        return version("secagg")
    except PackageNotFoundError:
        return "unknown"


def software_versions() -> dict[str, str]:
    """Versions by package, for a ledger's first entry; packages that are not here are left out."""
    found = {"secagg": software_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
