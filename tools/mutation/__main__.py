"""`python -m tools.mutation`: is every check and every hashed field missed by a test if it goes?

Each mutant (see `checks` and `fields`) is run against the test that is on record for it in
`killers.json` and must make it fail. A mutant without such a test, or whose test passes, is a
check or a field that nobody would miss, and fails the run, as does a line in the list whose mutant
is gone. `--update` looks through all of secagg's tests for the killers that are missing.
`equivalent.toml` names the mutants that nobody could notice, each with the reason.
"""

import argparse
import gc
import json
import os
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tools.mutation.checks import ROOT
from tools.mutation.fields import WIRE, FieldMutant, field_mutants, misplaced_sites
from tools.mutation.worker import Child, Mutant, Witness, code_mutants, first_failure

HERE: Final = Path(__file__).resolve().parent
KILLERS: Final = HERE / "killers.json"
EQUIVALENT: Final = HERE / "equivalent.toml"
TESTS: Final = ("tests/vectors", "tests/secagg", "tests/adversary")
# Slow, and they seldom tell what no other test tells: asked last.
LAST: Final = ("test_bug_cases", "test_random_coordinator", "test_fuzz_decoders", "test_graph")
# Where ctx, setup, binding and what is signed are made, and a silo decides: all in the short form.
SHORT: Final = frozenset({"agreement", "chain", "messages", "result", "silo", "transcript", "view"})
ADVICE: Final = """\
A survivor is a check or a field that no test would miss. Write the test that misses it, then let
`make mutation UPDATE=1` record it; delete the check if another one makes it redundant; or, if truly
nobody could notice, name the mutant in tools/mutation/equivalent.toml with the reason."""

PYTEST: Final = (
    *("-o", "addopts=--import-mode=importlib", "-o", "timeout=60", "--assert=plain", "-s"),
    *("-p", "no:terminal", "-p", "no:randomly", "-p", "no:cacheprovider"),
)


def all_mutants() -> list[Mutant]:
    """Every mutant of the fields, then every mutant of the checks."""
    return [*field_mutants(), *code_mutants()]


def is_short(mutant: Mutant, codes: Mapping[str, str]) -> bool:
    """Whether the short form runs it: hashed fields, the checks A1 to A9, the silo's own."""
    if isinstance(mutant, FieldMutant):
        return mutant.context != WIRE
    is_lettered = any(codes.get(name, "").startswith("A") for name in mutant.errors)
    return is_lettered or mutant.module.split(".")[0] in SHORT


def error_codes() -> dict[str, str]:
    """The codes of the check table in docs/protocol.md, by the name of the error."""
    from secagg import errors  # noqa: PLC0415  # not before pytest has it, for coverage's sake

    found = {name: getattr(kind, "code", None) for name, kind in vars(errors).items()}
    return {name: code for name, code in found.items() if isinstance(code, str)}


class Judge(Witness):
    """Takes pytest's place once all tests are collected: asks them about each mutant.

    Args:
        mutants: to judge.
        known: the test that is on record for each.
        options: the command line; with `update` all tests are asked, and what is found written.

    Attributes:
        verdicts: the test that caught it, by mutant; None if none did.
    """

    def __init__(
        self, mutants: Sequence[Mutant], known: Mapping[str, str], options: argparse.Namespace
    ) -> None:
        super().__init__()
        self.verdicts: dict[str, str | None] = {}
        self._mutants = mutants
        self._known = known
        self._options = options

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run mutants instead of tests."""
        gc.collect()
        by_name = {item.nodeid: item for item in session.items}
        asked = {self._known.get(one.name, "") for one in self._mutants}
        self._require_passing(asked, by_name)
        for name, killer in self._run(session.items, by_name):
            self.verdicts[name] = killer
            if self._options.update and len(self.verdicts) % 25 == 0:
                caught = {one: test for one, test in self.verdicts.items() if test}
                write(self._options.killers, {**self._known, **caught})  # a run may be cut short
            if len(self.verdicts) % 200 == 0:
                print(f"{len(self.verdicts)} of {len(self._mutants)}", flush=True)
            if killer is None:
                on_record = self._known.get(name, "no test is on record for it")
                print(f"SURVIVES  {name}\n          {on_record}", flush=True)
        found = {killer for killer in self.verdicts.values() if killer is not None}
        self._require_passing(found - asked, by_name)
        return True

    def _require_passing(self, names: set[str], by_name: Mapping[str, pytest.Item]) -> None:
        """Only a test that passes without a mutant can catch one."""
        control = self._start(None, [by_name[name] for name in sorted(names & by_name.keys())])
        os.waitpid(control.pid, 0)
        if (failed := control.answer()) is not None:
            print(f"expected the tests to pass without a mutant, {failed} fails")
            pytest.exit("no judgment", returncode=pytest.ExitCode.TESTS_FAILED)

    def _run(
        self, items: Sequence[pytest.Item], by_name: Mapping[str, pytest.Item]
    ) -> Iterator[tuple[str, str | None]]:
        running: dict[int, tuple[Mutant, Child]] = {}
        for mutant in self._mutants:
            first = by_name.get(self._known.get(mutant.name, ""))
            asked = [first] if first else []
            if self._options.update:
                ranked = sorted(items, key=partial(_rank, near=mutant.near))
                asked += [
                    one for one in ranked if not (self._options.near and _rank(one, mutant.near)[1])
                ]
            if not asked:
                yield mutant.name, None
                continue
            if len(running) == self._options.processes:
                yield _next(running)
            child = self._start(mutant, asked)
            running[child.pid] = (mutant, child)
        while running:
            yield _next(running)

    def _start(self, mutant: Mutant | None, items: Sequence[pytest.Item]) -> Child:
        return Child(lambda: first_failure(self, mutant, items))


def _next(running: dict[int, tuple[Mutant, Child]]) -> tuple[str, str | None]:
    pid, _ = os.wait()
    mutant, child = running.pop(pid)
    return mutant.name, child.answer()


def _rank(item: pytest.Item, near: frozenset[str]) -> tuple[bool, bool, bool]:
    """Those first that most likely tell, other modules' mirrors after the liars, slow ones last."""
    is_far = item.path.stem.removeprefix("test_") not in near
    return (item.path.stem in LAST, is_far, item.path.parent.name == "secagg")


def write(path: Path, killers: Mapping[str, str]) -> None:
    """The list, sorted, one line a mutant."""
    text = json.dumps(killers, indent=0, ensure_ascii=False, sort_keys=True)
    path.write_text(text + "\n", "utf-8")


def table(mutants: Sequence[Mutant], verdicts: Mapping[str, str | None]) -> str:
    """Mutants, caught and surviving by module."""
    rows: dict[str, list[int]] = {}
    for one in mutants:
        row = rows.setdefault(one.name.split(".")[0].split(":")[0], [0, 0])
        row[0] += 1
        row[1] += verdicts[one.name] is not None
    rows["all"] = [sum(row[place] for row in rows.values()) for place in range(2)]
    lines = [f"{'module':14}{'mutants':>9}{'caught':>9}{'surviving':>11}"]
    lines += [f"{name:14}{row[0]:9}{row[1]:9}{row[0] - row[1]:11}" for name, row in rows.items()]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("--short", action="store_true", help="hashed fields and checks A1 to A9")
    parser.add_argument("--new", action="store_true", help="mutants without a test on record")
    parser.add_argument("--only", default="", help="mutants whose name holds this text")
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("--update", action="store_true", help="look for missing killers, and write")
    parser.add_argument(
        "--near", action="store_true", help="--update asks only a mutant's own tests"
    )
    parser.add_argument("--tests", nargs="*", default=TESTS, help="where --update looks for them")
    parser.add_argument("--killers", type=Path, default=KILLERS, help="another list, for tests")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def main() -> int:
    """Run and report; 1 if a mutant survives or the lists are not exact."""
    options = arguments()
    started = time.monotonic()
    if misplaced := misplaced_sites():
        sys.exit(f"expected fields.CONTEXTS to list what hashes a record, and no more: {misplaced}")
    everything = all_mutants()
    names = {one.name for one in everything}
    known: dict[str, str] = json.loads(options.killers.read_text("utf-8"))
    excused = {str(one["name"]) for one in tomllib.loads(EQUIVALENT.read_text("utf-8"))["mutant"]}
    if gone := sorted(excused - names):
        sys.exit("no such mutant any more, take it out of equivalent.toml: " + "\n".join(gone))
    codes = error_codes()
    chosen = [one for one in everything if options.only in one.name and one.name not in excused]
    if options.short:
        chosen = [one for one in chosen if is_short(one, codes)]
    if options.new:
        chosen = [one for one in chosen if one.name not in known]
    if options.list:
        print("\n".join(one.name for one in chosen))
        return 0
    gone = [] if options.update else sorted(known.keys() - (names - excused))
    for name in gone:
        print(f"GONE      {name}\n          no such mutant any more; --update takes it out")
    files = {known[one.name].split("::")[0] for one in chosen if one.name in known}
    judge = Judge(chosen, known, options)
    files = {name for name in files if (ROOT / name).exists()}
    tests = dict.fromkeys([*options.tests, *sorted(files)] if options.update else sorted(files))
    code = pytest.main([*PYTEST, *tests], plugins=[judge])
    if code != pytest.ExitCode.OK:  # the tests could not be read, or fail without a mutant
        return int(code) or 1
    print(table(chosen, judge.verdicts))
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(
        f"{len(chosen)} of {len(everything)} mutants ({len(excused)} more are excused) "
        f"in {minutes}:{seconds:02} minutes"
    )
    if options.update:
        known |= {name: killer for name, killer in judge.verdicts.items() if killer}
        lost = {name for name, killer in judge.verdicts.items() if killer is None}
        kept = names - excused - lost
        write(options.killers, {name: test for name, test in known.items() if name in kept})
    if survives := None in judge.verdicts.values():
        print(ADVICE)
    return 1 if survives or gone else 0


if __name__ == "__main__":
    sys.exit(main())
