"""Runs tests against one mutant, in a process of its own that is forked and thrown away.

The process that forks has imported secagg and collected all tests, and runs none. Each child puts
the mutant's code into the one function that it alters, or alters how records give their fields,
and runs tests until one fails.
"""

import ast
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Final, TypeAlias

import hypothesis
import pytest

from tools.mutation.checks import alterations, modules, parse, source
from tools.mutation.fields import FieldMutant

ENDED = "(the process ended)"
# A mutant that waits or counts without end is caught, not waited for.
_LIMIT_S = 120
# Tests under another name than their module's that most likely notice its mutants.
ATTACKS: Final = {
    "agreement": ("boxes", "keys", "too_few"),
    "auditors": ("wrong_sum",),
    "intake": ("dealers_and_revealers", "server", "uploads"),
    "journal": ("lifted_dealers", "recall", "replays", "retries", "silo"),
    "parameters": ("changed_parameters", "intake"),
    "policy": ("changed_parameters", "differencing", "isolating_coefficients", "too_few"),
    "recall": ("late_result", "recall_left_out", "restored_disk", "retries"),
    "roster": ("evidence", "keys"),
    "server": (
        *("lifted_dealers", "made_up_prior", "noised", "opened_ahead", "recompute", "retries"),
        *("too_few", "uploads", "wrong_sum"),
    ),
    "silo": ("late_result", "lifted_dealers", "opened_ahead", "retries", "swapped_model"),
    "verification": ("vectors", "forged_sum"),
    "evidence": ("dealers_and_revealers", "framing", "wrong_sum"),
    "hybrid": ("false_pairs",),
    "lifting": ("lifted_dealers",),
    "recompute": ("wrong_sum",),
    "result": ("forged_sum",),
    "unmasking": ("dealers_and_revealers", "false_pairs"),
    "view": ("swapped_model",),
}

# What is hashed or derived, these notice in whatever module.
ALWAYS: Final = ("derivations", "transcripts")


@dataclass(frozen=True, slots=True)
class CodeMutant:
    """A mutant of a function's source.

    Attributes:
        name: in the list of killers.
        errors: names of the errors that would not be raised any more.
    """

    module: str
    place: str
    name: str
    errors: frozenset[str]

    @property
    def near(self) -> frozenset[str]:
        """Modules whose tests most likely notice."""
        own = self.module.split(".")
        return frozenset({*own, *ATTACKS.get(self.module, ()), *ALWAYS})

    def install(self) -> None:
        """Give the function in this process the altered code."""
        tree = parse(self.module)
        next(one for one in alterations(self.module, tree) if one.name == self.name).apply()
        code = compile(ast.fix_missing_locations(tree), str(source(self.module)), "exec")
        function = _function(f"secagg.{self.module}", self.place)
        function.__code__ = _code(code, function.__qualname__)


Mutant: TypeAlias = CodeMutant | FieldMutant


def code_mutants() -> list[CodeMutant]:
    """All of them."""
    return [
        CodeMutant(module, one.place, one.name, one.errors)
        for module in modules()
        for one in alterations(module, parse(module))
    ]


def _function(module: str, place: str) -> FunctionType:
    """The function of this name; of a nested one, the one around it that a module holds."""
    found: object = importlib.import_module(module)
    for name in place.split("."):
        found = vars(found)[name]
        if isinstance(found, property):
            found = found.fget
        found = getattr(found, "__func__", found)  # a class method's
        while hasattr(found, "__wrapped__"):  # a context manager's
            found = found.__wrapped__
        if isinstance(found, FunctionType):
            return found
    raise LookupError(f"no function {place} in {module}")


def _code(inside: CodeType, name: str) -> CodeType:
    for constant in inside.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == name:
                return constant
            if name.startswith(f"{constant.co_qualname}."):
                return _code(constant, name)
    raise LookupError(f"no code of {name}")


class Witness:
    """Remembers the first test that failed."""

    def __init__(self) -> None:
        self.first: str | None = None

    def pytest_sessionstart(self) -> None:
        """One example list for all time, and no shrinking: only whether a test fails counts."""
        hypothesis.settings.register_profile(
            "mutation",
            hypothesis.settings.get_profile("dev"),
            derandomize=True,
            database=None,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        hypothesis.settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test, or what prepares it, has run."""
        if report.failed and self.first is None:
            self.first = report.nodeid


def first_failure(
    witness: Witness, mutant: Mutant | None, items: Sequence[pytest.Item]
) -> str | None:
    """The first of these tests that fails under the mutant, None if all pass."""
    if mutant is not None:
        mutant.install()
    for item in items:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if witness.first is not None:
            return witness.first
    return None


class Child:
    """`work` in a forked process that prints nothing."""

    def __init__(self, work: Callable[[], str | None]) -> None:
        """Start it."""
        sys.stdout.flush()
        self._receive, send = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(send)
            return
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signal.alarm(_LIMIT_S)
        gc.freeze()  # what is the parent's is not collected, and warned of, in a test
        try:
            answer = {"found": work()}
        except BaseException:  # noqa: BLE001  # handed to the parent, which raises
            answer = {"failed": traceback.format_exc()}
        with os.fdopen(send, "w") as stream:
            json.dump(answer, stream)
        os._exit(0)

    def answer(self) -> str | None:
        """What `work` returned, ENDED if the process was killed; once it has ended.

        Raises:
            RuntimeError: `work` raised, with its traceback.
        """
        with os.fdopen(self._receive) as stream:
            text = stream.read()
        answer = json.loads(text) if text else {"found": ENDED}
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        found: str | None = answer["found"]
        return found
