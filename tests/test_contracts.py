"""The import arrows hold, and each contract catches a planted violation of it.

The packages are copied into a temporary project with our own contracts, one line is planted, and
the linter must break that contract. What it cannot see, that heavy imports stay late, is tried.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dp", "fl", "secagg", "services")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
    "contracts"
]

# (contract, file that gets the line, line). A file that does not exist is a new module.
PLANTS = [
    ("layers", "secagg/ring.py", "import fl"),
    ("layers", "secagg/ring.py", "import dp"),
    ("layers", "dp/__init__.py", "import secagg"),
    ("layers", "dp/__init__.py", "import fl"),
    ("layers", "fl/plan.py", "import services"),
    ("layers", "fl/plan.py", "def late():\n    import services.config"),
    ("core-layers", "secagg/errors.py", "import secagg.ring"),
    ("core-layers", "secagg/silo.py", "import secagg.server"),
    ("core-layers", "secagg/unplaced.py", "import secagg.ring"),
    ("torch", "fl/simulation.py", "def late():\n    import torch"),
    ("torch", "services/coordinator/late.py", "import opacus.accountants"),
    ("torch", "dp/plan.py", "import dp_accounting"),
    ("torch", "secagg/testing.py", "import torch"),
    ("training", "fl/simulation.py", "import fl.training"),
    ("training", "services/coordinator/late.py", "import fl.training"),
    ("roles", "services/coordinator/late.py", "import services.silo"),
    ("roles", "services/silo/late.py", "import services.coordinator"),
    ("stubs", "services/silo/late.py", "import services.wire.v1"),
    ("stubs", "services/coordinator/late.py", "from services.wire.v1 import vector_pb2"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the four packages and of pyproject.toml."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(project: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    """Run the import linter there, on these contracts or on all."""
    chosen = [part for contract in contracts for part in ("--contract", contract)]
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", *chosen],
        cwd=project,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def plant(project: Path, file: str, line: str) -> None:
    """Append the line to the file, making the file if there is none."""
    path = project / file
    text = path.read_text("utf-8") if path.exists() else ""
    path.write_text(f"{text}\n{line}\n", "utf-8")


def test_every_contract_has_a_planted_violation() -> None:
    """A contract that nobody tried to break proves nothing."""
    planted = {contract for contract, _, _ in PLANTS} | {"core-pure"}
    assert planted == {contract["id"] for contract in CONTRACTS}


def test_the_tree_keeps_every_contract(project: Path) -> None:
    """Without a plant all are kept; otherwise the tests below would pass for a wrong reason."""
    result = lint(project)
    assert result.returncode == 0, result.stdout
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in result.stdout


@pytest.mark.parametrize(("contract", "file", "line"), PLANTS)
def test_a_planted_violation_is_caught(project: Path, contract: str, file: str, line: str) -> None:
    """The contract breaks, and no other reason stops the linter."""
    plant(project, file, line)
    result = lint(project, contract)
    assert result.returncode == 1, result.stdout
    assert "Contracts: 0 kept, 1 broken." in result.stdout


def test_every_impure_import_of_the_core_is_caught(project: Path) -> None:
    """All forbidden modules at once, in a file that uses none today; each is reported by name."""
    (contract,) = (contract for contract in CONTRACTS if contract["id"] == "core-pure")
    forbidden = sorted(contract["forbidden_modules"])
    plant(project, "secagg/shamir.py", "\n".join(f"import {name}" for name in forbidden))
    result = lint(project, "core-pure")
    assert result.returncode == 1
    named = re.findall(r"^\s*-?\s*secagg\.shamir -> (\w+)", result.stdout, flags=re.MULTILINE)
    assert sorted(set(named)) == forbidden, result.stdout


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that a new interpreter has loaded after the statement."""
    program = f"import sys\n{statement}\nprint('loaded', *{{m.split('.')[0] for m in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1].split()
    assert last[0] == "loaded"
    return set(last[1:])


def test_help_loads_nothing_heavy() -> None:
    """`secagg --help` answers at once: no torch, opacus, gRPC, database or scikit-learn."""
    loaded = loaded_after(
        "sys.argv = ['secagg', '--help']\n"
        "from services.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code in (0, None), end.code"
    )
    assert "typer" in loaded
    assert not loaded & {"torch", "opacus", "grpc", "sqlalchemy", "sklearn"}


def test_the_coordinator_loads_no_torch() -> None:
    """It sums and applies in numpy; torch would cost it 1.5 s and 225 MB."""
    loaded = loaded_after(
        "import importlib, pkgutil, services.coordinator as package\n"
        "for module in pkgutil.walk_packages(package.__path__, 'services.coordinator.'):\n"
        "    importlib.import_module(module.name)"
    )
    assert "grpc" in loaded
    assert not loaded & {"torch", "opacus", "sklearn"}


@pytest.mark.parametrize("package", ["secagg", "dp"])
def test_the_core_loads_only_its_base(package: str) -> None:
    """The protocol and the privacy arithmetic need numpy, scipy and cryptography, no more.

    Three modules of dp are about torch (contract 4).
    """
    loaded = loaded_after(
        f"import importlib, pkgutil, {package} as package\n"
        f"for module in pkgutil.walk_packages(package.__path__, '{package}.'):\n"
        "    if module.name not in ('dp.local_sgd', 'dp.modules', 'dp.unit_data'):\n"
        "        importlib.import_module(module.name)"
    )
    allowed = {package, "numpy", "scipy", "cryptography", "_cffi_backend", "cython_runtime"}
    installed = {
        name for name in loaded if name not in sys.stdlib_module_names and not name.startswith("_")
    }
    assert installed - {"editable"} <= allowed
