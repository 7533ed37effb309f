"""The wheel, the pins, the generated code and the source tree are what they promise to be."""

import ast
import re
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.build import build_wheel
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dp", "fl", "secagg", "services")
STUBS = ROOT / "services" / "wire" / "v1"
SOURCES = sorted(
    path
    for folder in (*PACKAGES, "bench", "examples", "tests", "tools")
    for path in (ROOT / folder).rglob("*.py")
    if STUBS not in path.parents
)


# ------------------------------------------------------------------------------------ the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # the build hook builds its working directory
        name = build_wheel(str(folder))
    with zipfile.ZipFile(folder / name) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """The wheel's METADATA."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_holds_exactly_the_four_packages(wheel: zipfile.ZipFile) -> None:
    """No tests, bench, tools, proto or examples as top-level names in somebody's environment."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_holds_every_module_and_the_type_markers(wheel: zipfile.ZipFile) -> None:
    """What is in the tree is in the wheel; every package says that it is typed."""
    names = set(wheel.namelist())
    in_tree = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py*")
        if "__pycache__" not in path.parts
    }
    assert in_tree <= names
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_the_wheel_names_licence_and_command(wheel: zipfile.ZipFile, metadata: Message) -> None:
    """Apache-2.0 with its text, and the console script."""
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    (licence,) = (name for name in wheel.namelist() if name.endswith("/LICENSE"))
    assert b"Apache License" in wheel.read(licence)
    (scripts,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    assert "secagg = services.cli.__main__:main" in wheel.read(scripts).decode()


def test_the_base_needs_neither_torch_nor_grpc(metadata: Message) -> None:
    """Whoever wants the protocol installs numpy, scipy and cryptography."""
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    base = {requirement.name for requirement in requirements if requirement.marker is None}
    assert base == {"cryptography", "numpy", "scipy"}


# ------------------------------------------------------------------------- pins, generated code


def generated_versions() -> dict[str, set[str]]:
    """Versions of protobuf and grpcio that wrote the stubs, as they say themselves."""
    text = "\n".join(path.read_text("utf-8") for path in sorted(STUBS.glob("*.py")))
    return {
        "protobuf": set(re.findall(r"^# Protobuf Python Version: (\S+)$", text, re.MULTILINE)),
        "grpcio": set(re.findall(r"^GRPC_GENERATED_VERSION = '(\S+)'$", text, re.MULTILINE)),
    }


@pytest.mark.parametrize("name", ["protobuf", "grpcio"])
def test_generated_code_loads_under_every_allowed_runtime(metadata: Message, name: str) -> None:
    """The floor is not below the generator, the ceiling at most one major above it (PLT-02).

    Generated code refuses an older runtime at import; protobuf promises one newer major.
    """
    (generator,) = map(Version, generated_versions()[name])
    requirements = map(Requirement, metadata.get_all("Requires-Dist", []))
    (specifier,) = {
        requirement.specifier for requirement in requirements if requirement.name == name
    }
    bounds = {bound.operator: Version(bound.version) for bound in specifier}
    assert bounds.keys() == {">=", "<"}
    assert bounds[">="] >= generator
    assert bounds["<"] <= Version(str(generator.major + 2))


def declared_requirements() -> Iterator[Requirement]:
    """Every requirement of pyproject.toml: base, extras, groups and the build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    yield from map(Requirement, project["build-system"]["requires"])
    yield from map(Requirement, project["project"]["dependencies"])
    for table in (project["project"]["optional-dependencies"], project["dependency-groups"]):
        for lines in table.values():
            yield from map(Requirement, lines)


def test_constraints_pin_what_is_declared() -> None:
    """One exact version each, inside the declared range, from the public index (no local part)."""
    pins: dict[str, Version] = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, separator, version = line.partition("==")
        assert separator, f"not an exact pin: {line}"
        pins[canonicalize_name(name)] = Version(version)
    for requirement in declared_requirements():
        if requirement.name == "secagg":
            continue
        pin = pins[canonicalize_name(requirement.name)]
        assert pin in requirement.specifier, f"{requirement} but {pin} is pinned"
        assert pin.local is None


# ------------------------------------------------------------------------------ the source tree


def test_no_package_marker_shadows_a_package() -> None:
    """tests/dp/__init__.py would hijack `import dp`; proto/ holds .proto files alone."""
    assert not list((ROOT / "tests").rglob("__init__.py"))
    assert {path.suffix for path in (ROOT / "proto").rglob("*") if path.is_file()} == {".proto"}


SUPPRESSION = re.compile(
    r"#\s*(?:noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[^\]]*\])?"
    r"|pragma:\s*no\s*(?:cover|branch))(?P<reason>.*)$"
)


def unexplained(text: str) -> list[str]:
    """Lines with a suppression that is followed by fewer than two words."""
    return [
        line.strip()
        for line in text.splitlines()
        if (found := SUPPRESSION.search(line)) and len(re.findall(r"\w+", found["reason"])) < 2
    ]


def test_every_suppression_has_its_reason() -> None:
    """On the same line, in words."""
    assert unexplained("x = 1  # noqa: E501")
    assert unexplained("x = y  # type: ignore[attr-defined]")
    assert not unexplained("x = 1  # noqa: E501, S101 - a table reads better wide")
    found = {
        str(path.relative_to(ROOT)): lines
        for path in SOURCES
        if path != Path(__file__) and (lines := unexplained(path.read_text("utf-8")))
    }
    assert found == {}


FORBIDDEN_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec"}
# Calls that are safe with this argument alone: (name of the call) -> (keyword, its literal value).
GUARDED_CALLS = {"numpy.load": ("allow_pickle", False), "torch.load": ("weights_only", True)}


def unsafe_decoding(source: str) -> list[str]:
    """What in the source could run code that arrived as data, as `line: name`."""
    tree = ast.parse(source)
    names: dict[str, str] = {}  # what a local name means
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [name.name for name in node.names]
            names |= {name.asname: name.name for name in node.names if name.asname}
        elif isinstance(node, ast.ImportFrom):
            imported = [f"{node.module}.{name.name}" for name in node.names]
            names |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        else:
            continue
        found += [
            f"{node.lineno}: import {name}"
            for name in imported
            if name.split(".")[0] in FORBIDDEN_MODULES
        ]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        head, dot, rest = ast.unparse(node.func).partition(".")
        call = names.get(head, head) + dot + rest
        if call in FORBIDDEN_CALLS or (call in GUARDED_CALLS and not guarded(node, call)):
            found.append(f"{node.lineno}: {call}")
    return found


def guarded(node: ast.Call, call: str) -> bool:
    """Whether the call has its safe argument, as a literal."""
    keyword, value = GUARDED_CALLS[call]
    return any(
        argument.arg == keyword
        and isinstance(argument.value, ast.Constant)
        and argument.value.value is value
        for argument in node.keywords
    )


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def late():\n    from cloudpickle import loads",
        "import joblib.numpy_pickle as harmless",
        "import yaml\nyaml.load(data)",
        "eval(text)",
        "exec(text)",
        "import torch\ntorch.load(path)",
        "import torch as t\nt.load(path, weights_only=False)",
        "from torch import load\nload(path, weights_only=flag)",
        "import numpy as np\nnp.load(path)",
        "from numpy import load as read\nread(path, allow_pickle=True)",
    ],
)
def test_the_scan_finds_unsafe_decoding(source: str) -> None:
    """Each way in which data could become code is seen, also late or renamed."""
    assert len(unsafe_decoding(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.load(file)",
        "import re\nre.compile('x')",
        "model.eval()",
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
    ],
)
def test_the_scan_leaves_safe_calls_alone(source: str) -> None:
    """It reports names, not letters."""
    assert unsafe_decoding(source) == []


def test_nothing_that_arrives_is_run() -> None:
    """No unpickling and no evaluation in anything but tests, which may send such bytes."""
    sources = [path for path in SOURCES if ROOT / "tests" not in path.parents]
    assert len(sources) > 10
    found = {
        str(path.relative_to(ROOT)): calls
        for path in sources
        if (calls := unsafe_decoding(path.read_text("utf-8")))
    }
    assert found == {}
