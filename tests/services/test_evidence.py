"""Evidence files, and the command by which a third party checks them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secagg import messages
from secagg.evidence import Evidence, EvidenceKind, two_statements
from secagg.ids import RunId
from secagg.parameters import VectorSpec, meta
from secagg.roster import SignedRoster
from secagg.testing import make_federation, make_parameters
from services.cli.main import app
from services.enrollment.roster_file import Trust, save_signed, save_trust
from services.errors import CorruptError
from services.evidence import (
    COORDINATOR,
    SUFFIX,
    DealerCases,
    accused,
    keep_evidence,
    load_evidence,
)
from services.observe.logs import get_logger

FEDERATION = make_federation(4)
ROOT = FEDERATION.identities[1]  # any key can be a root
PARAMETERS = make_parameters(FEDERATION.roster, VectorSpec(segments=(meta("count", 1, bound=9),)))
LOG = get_logger("test")


def case(*, proven: bool = True) -> Evidence:
    """Two states for one setup; forged ones prove nothing."""
    key = FEDERATION.coordinator if proven else FEDERATION.identities[2]
    first = messages.StateNotice(setup=bytes(32), model_hash=bytes(32), nbytes=1)
    second = replace(first, model_hash=b"\x01" * 32)
    return two_statements(
        EvidenceKind.EQUIVOCATION,
        0,
        PARAMETERS,
        messages.signed(first, key),
        messages.signed(second, key),
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with roster, trust file and evidence of both kinds."""
    roster = FEDERATION.roster
    signature = ROOT.sign(roster.signed_bytes())
    save_signed(
        tmp_path / "roster.json",
        SignedRoster(roster=roster, signatures=((ROOT.public, signature),)),
    )
    for name, root in (("trust", ROOT.public), ("distrust", FEDERATION.identities[2].public)):
        trust = Trust(federation=roster.federation, roots=frozenset({root}))
        save_trust(tmp_path / f"{name}.json", trust)
    (tmp_path / "true.evidence").write_bytes(case().encode())
    (tmp_path / "false.evidence").write_bytes(case(proven=False).encode())
    (tmp_path / "rubbish.evidence").write_bytes(b"rubbish")
    other = replace(case(), parameters=replace(PARAMETERS, roster_digest=bytes(32)))
    (tmp_path / "other.evidence").write_bytes(other.encode())
    return tmp_path


def test_a_case_is_written_once_and_read_back(tmp_path: Path) -> None:
    """The name says the attempt and follows from the bytes; only the owner may read it."""
    folder = tmp_path / "evidence"
    both = [case(), case(proven=False)]
    keep_evidence(folder, both, LOG)
    keep_evidence(folder, both, LOG)
    paths = sorted(folder.iterdir())
    assert len(paths) == 2
    assert {load_evidence(path).encode() for path in paths} == {item.encode() for item in both}
    for path in paths:
        assert path.name.startswith(f"{PARAMETERS.run.hex}-1-0-")
        assert path.stat().st_mode & 0o777 == 0o600
    keep_evidence(tmp_path / "nothing", (), LOG)
    assert not (tmp_path / "nothing").exists()


def test_who_is_accused_is_read_from_the_files(tmp_path: Path) -> None:
    """Of one run or of all; after a restart they are all that is left. Damage is an error."""
    other = RunId(bytes(16))
    keep_evidence(tmp_path, [case()], LOG)
    assert accused(tmp_path) == accused(tmp_path, PARAMETERS.run) == {COORDINATOR: "equivocation"}
    assert accused(tmp_path, other) == accused(tmp_path / "nothing") == {}
    (tmp_path / f"{other.hex}-1-0-00{SUFFIX}").write_bytes(b"rubbish")
    assert accused(tmp_path, PARAMETERS.run)
    with pytest.raises(CorruptError, match=r"not an evidence file, or a damaged one$"):
        accused(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x04.", case().encode() + b"x", case().encode()[:-1]],
    ids=["empty", "pickle", "longer", "shorter"],
)
def test_what_is_no_evidence_file(data: bytes, files: Path) -> None:
    """Canonical bytes or nothing."""
    file = files / "true.evidence"
    file.write_bytes(data)
    with pytest.raises(CorruptError, match=r"not an evidence file, or a damaged one$"):
        load_evidence(file)
    file.unlink()
    with pytest.raises(CorruptError, match="cannot be read"):
        load_evidence(file)


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("true", 0, "proven: the coordinator: it signed two different StateNotice messages"),
        ("false", 1, "not proven: equivocation"),
        ("other", 1, "another roster version"),
        ("rubbish", 2, "unreadable: "),
        ("missing", 2, "unreadable: "),
    ],
)
def test_the_verdict_and_the_exit_code(name: str, code: int, says: str, files: Path) -> None:
    """0 proven, 1 not proven, 2 unreadable."""
    arguments = ["transcript", "verify", str(files / f"{name}.evidence")]
    arguments += ["--roster", str(files / "roster.json"), "--trust", str(files / "trust.json")]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, says in done.output) == (code, True)


def test_the_roster_is_checked_if_one_says_whom_to_trust(files: Path) -> None:
    """Without a trust file the reader answers for the roster."""
    arguments = ["transcript", "verify", str(files / "true.evidence")]
    arguments += ["--roster", str(files / "roster.json")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    foreign = CliRunner().invoke(app, [*arguments, "--trust", str(files / "distrust.json")])
    assert foreign.exit_code == 2
    assert "unreadable: " in foreign.output
    arguments[-1] = str(files / "nowhere.json")
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(("name", "proven"), [("true", True), ("false", False)])
def test_the_verdict_as_json(name: str, *, proven: bool, files: Path) -> None:
    """For programs: what, where, by whom, and why."""
    arguments = ["transcript", "verify", str(files / f"{name}.evidence"), "--json"]
    done = CliRunner().invoke(app, [*arguments, "--roster", str(files / "roster.json")])
    facts = json.loads(done.output)
    assert facts["proven"] is proven
    assert (facts["kind"], facts["run"], facts["round"]) == ("equivocation", PARAMETERS.run.hex, 1)
    assert ("finding" in facts) == proven
    assert ("reason" in facts) != proven


def test_cases_against_dealers_under_the_roster_in_force(tmp_path: Path) -> None:
    """Of either kind; others, those under another roster and damaged files are passed over."""
    about = [
        replace(case(), kind=kind, accused=2)
        for kind in (EvidenceKind.BAD_DEALER, EvidenceKind.FALSE_PAIR, EvidenceKind.BAD_REVEALER)
    ]
    old = replace(about[0], parameters=replace(PARAMETERS, roster_digest=bytes(32)))
    dealers = DealerCases(tmp_path, LOG)
    assert dealers.under(FEDERATION.roster) == ()
    keep_evidence(tmp_path, [*about, old], LOG)
    (tmp_path / f"damaged{SUFFIX}").write_bytes(b"rubbish")
    found = dealers.under(FEDERATION.roster)
    assert sorted(found, key=lambda one: one.kind) == about[:2]
    again = dealers.under(FEDERATION.roster)
    assert list(map(id, again)) == list(map(id, found)), "no file is read and decoded twice"
    for path in tmp_path.iterdir():
        path.unlink()
    assert dealers.under(FEDERATION.roster) == (), "what an operator takes away counts no more"
