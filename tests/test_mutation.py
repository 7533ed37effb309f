"""The mutation suite itself: that its list is complete, and that a survivor fails the run."""

import ast
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from secagg import errors, messages
from secagg.codec import Record
from secagg.parameters import RoundParameters
from tools.mutation.__main__ import EQUIVALENT, KILLERS, all_mutants, error_codes, is_short
from tools.mutation.checks import ROOT, alterations
from tools.mutation.fields import WIRE, FieldMutant, field_mutants, misplaced_sites

# Raised by the driver's reading of the wire only, or the name of a whole family.
FAMILIES: Final = {"PROTOCOL", "REMOTE", "SECAGG"}

SAMPLE: Final = '''
class Box:
    def check(self, item, floor):
        """Not code."""
        if item.root != self.root or not floor <= item.count <= 9:
            raise RosterError("no")
        verify(self.key, item)
        try:
            self.read(item)
        except ValueError as error:
            raise BadKeyError("no") from error
        return digest("box", self.root, item.ctx)
'''


def test_a_new_check_has_its_mutants() -> None:
    """Each refusal, each part of its condition, each call of a check, each hashed field."""
    names = [one.name for one in alterations("box", ast.parse(SAMPLE))]
    condition = "item.root != self.root or not floor <= item.count <= 9"
    call = "digest('box', self.root, item.ctx)"
    assert names == [
        f"box.Box.check: never: {condition}",
        f"box.Box.check: no item.root != self.root in: {condition}",
        f"box.Box.check: no not floor <= item.count <= 9 in: {condition}",
        "box.Box.check: no call: verify(self.key, item)",
        "box.Box.check: no raise: raise BadKeyError('no') from error",
        f"box.Box.check: no self.root in: {call}",
        f"box.Box.check: no item.ctx in: {call}",
        f"box.Box.check: another label: {call}",
    ]


BOOK: Final = """
class Book:
    def take(self, item, now):
        if item.number < self.least and not item.again:
            return []
        return self.close(now) if self.is_full or now >= self.end else []
"""


def test_where_limits_stand_conditions_and_bounds_have_mutants() -> None:
    """Each part of a condition, each bound, both branches."""
    names = [
        one.name.removeprefix("policy.Book.") for one in alterations("policy", ast.parse(BOOK))
    ]
    condition = "item.number < self.least and (not item.again)"
    choice = "self.close(now) if self.is_full or now >= self.end else []"
    assert names == [
        f"take: never: {condition}",
        f"take: no item.number < self.least in: {condition}",
        f"take: no not item.again in: {condition}",
        "take: <= in: item.number < self.least",
        f"take: always: {choice}",
        f"take: never: {choice}",
        "take: no self.is_full in: self.is_full or now >= self.end",
        "take: no now >= self.end in: self.is_full or now >= self.end",
        "take: > in: now >= self.end",
    ]
    elsewhere = [one.name for one in alterations("sealing", ast.parse(BOOK))]
    assert elsewhere == [f"sealing.Book.take: never: {condition}"]


@pytest.mark.parametrize("number", range(8))
def test_each_alteration_alters_its_own_place(number: int) -> None:
    """Applied alone, no two of them give the same code, nor the code unaltered."""
    codes = []
    for chosen in (None, *range(8)):
        tree = ast.parse(SAMPLE)
        found = alterations("box", tree)
        if chosen is not None:
            found[chosen].apply()
        codes.append(ast.unparse(tree))
    assert codes.count(codes[1 + number]) == 1


def test_every_field_of_every_message_has_a_mutant() -> None:
    """On the wire, and each of ctx, setup and the signatures where it belongs."""
    mutants = {(one.context, one.record, one.field) for one in field_mutants()}
    seen = []
    for kind in vars(messages).values():
        if isinstance(kind, type) and issubclass(kind, Record) and hasattr(kind, "LABEL"):
            seen.append(kind.__name__)
            for item in fields(kind):  # type: ignore[arg-type]  # records are dataclasses
                assert (WIRE, kind.__name__, item.name) in mutants
    assert {"Advertise", "RoundOpen", "SurvivorEntry", "Unmask"} <= set(seen)
    for item in fields(RoundParameters):
        assert ("ctx", "RoundParameters", item.name) in mutants
    for item in fields(messages.Advertise):
        hashed = item.name != "signature"
        assert (("setup", "Advertise", item.name) in mutants) == hashed
        assert (("a signature", "Advertise", item.name) in mutants) == hashed


def test_every_place_that_hashes_a_record_is_known() -> None:
    """A new one needs its line in `fields.CONTEXTS`, a line without a place goes."""
    assert misplaced_sites() == []


def test_every_check_of_the_table_has_a_mutant_in_the_short_form() -> None:
    """Each code of A1 to A9; and each other error of a peer has one in the long form."""
    codes = error_codes()
    mutants = all_mutants()
    short = {codes.get(name) for one in mutants if is_short(one, codes) for name in one.errors}
    every = {codes.get(name) for one in mutants for name in one.errors}
    table = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.RemoteProtocolError)
    }
    assert {code for code in table if code.startswith("A")} <= short
    assert table - FAMILIES <= every


def test_the_lists_are_of_mutants_that_exist() -> None:
    """One name a mutant; every one has a killer on record, or a reason why there can be none."""
    names = [one.name for one in all_mutants()]
    assert len(names) == len(set(names))
    killers = json.loads(KILLERS.read_text("utf-8"))
    excused = EQUIVALENT.read_text("utf-8").count("\nname = ")
    assert set(killers) <= set(names)
    assert len(killers) + excused == len(names)


def run(killers: Path, only: str) -> subprocess.CompletedProcess[str]:
    """The suite on the mutants of this name, with another list of killers."""
    command = [sys.executable, "-m", "tools.mutation", "--only", only, "--killers", str(killers)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_survivor_fails_the_run(tmp_path: Path) -> None:
    """Caught by the test on record; else named, whether its test passes or there is none."""
    ctx = FieldMutant("ctx", "RoundParameters", "n_c").name
    other = FieldMutant("ctx", "RoundParameters", "n_max").name
    killers = json.loads(KILLERS.read_text("utf-8"))
    path = tmp_path / "killers.json"
    path.write_text(KILLERS.read_text("utf-8"), "utf-8")
    assert run(path, ctx).returncode == 0
    innocent = "tests/secagg/test_ids.py::test_a_federation_is_no_silo"
    wrong = {one: test for one, test in killers.items() if one != other} | {ctx: innocent}
    wrong["a check that is gone"] = innocent
    path.write_text(json.dumps(wrong), "utf-8")
    found = run(path, "RoundParameters.n_")
    assert found.returncode == 1
    assert f"SURVIVES  {ctx}\n          {innocent}" in found.stdout
    assert f"SURVIVES  {other}\n          no test is on record for it" in found.stdout
    assert "GONE      a check that is gone" in found.stdout
    assert "Write the test that misses it" in found.stdout
