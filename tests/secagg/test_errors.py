"""Tests of secagg.errors."""

import pytest

from secagg import errors
from secagg.errors import ProtocolError, RemoteProtocolError, SecAggError


def _tree(root: type[SecAggError]) -> list[type[SecAggError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


def test_every_error_has_a_code_of_its_own() -> None:
    """Logs and the wire name an error by its code, so no two share one."""
    tree = _tree(SecAggError)
    codes = {error.code for error in tree}
    assert len(codes) == len(tree)
    assert all(code.replace("_", "").isalnum() and code.isupper() for code in codes)


def test_the_tree_holds_every_class_of_the_module() -> None:
    """Nothing in the module is outside the documented tree."""
    defined = {value for value in vars(errors).values() if isinstance(value, type)}
    assert defined == set(_tree(SecAggError))


@pytest.mark.parametrize("number", range(1, 10))
def test_each_check_of_the_specification_has_an_error(number: int) -> None:
    """A1 to A9 are all there, each a peer's fault."""
    codes = {error.code for error in _tree(RemoteProtocolError)}
    assert any(code.startswith(f"A{number}_") for code in codes)


def test_a_remote_error_carries_blame_and_hint() -> None:
    """The seat and the hint are attributes; the message stands alone."""
    blamed = errors.BadShareError("expected a share", silo=3, hint="ask again")
    assert (str(blamed), blamed.silo, blamed.hint) == ("expected a share", 3, "ask again")
    plain = errors.ReplayError("old")
    assert (plain.silo, plain.hint) == (None, "")
    assert isinstance(plain, ProtocolError)
