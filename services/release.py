"""Which release of this software is running."""

from importlib.metadata import PackageNotFoundError, version


def software_version() -> str:
    """The installed release, for people and for Hello."""
    try:
        return version("secagg")
    except PackageNotFoundError:
        return "unknown"
