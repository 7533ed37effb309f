"""The command line: fast help, examples, messages instead of tracebacks, exit codes."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from services.cli.run import exit_code
from services.wire.calls import RunState

LEAVES = (
    ("audit",),
    ("authority", "init"),
    ("authority", "issue"),
    ("authority", "renew"),
    ("authority", "revoke"),
    ("coordinator", "enroll"),
    ("coordinator", "install"),
    ("coordinator", "serve"),
    ("demo",),
    ("ledger", "report"),
    ("ledger", "rotate"),
    ("ledger", "show"),
    ("ledger", "verify"),
    ("model", "evaluate"),
    ("model", "predict"),
    ("model", "show"),
    ("plan",),
    ("reproduce",),
    ("run", "admit"),
    ("run", "dismiss"),
    ("run", "enroll"),
    ("run", "fetch"),
    ("run", "install"),
    ("run", "list"),
    ("run", "show"),
    ("run", "start"),
    ("run", "stop"),
    ("run", "watch"),
    ("silo", "check"),
    ("silo", "enroll"),
    ("silo", "install"),
    ("silo", "join"),
    ("silo", "leave"),
    ("silo", "forgive"),
    ("silo", "status"),
    ("simulate",),
    ("stats", "advise"),
    ("stats", "describe"),
    ("stats", "show"),
    ("transcript", "verify"),
)


def secagg(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | environment,
    )


def test_help_loads_nothing_heavy() -> None:
    """Neither torch nor grpc nor numpy for `secagg --help`."""
    code = (
        "import sys\n"
        "from services.cli.main import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print([m for m in ('torch', 'grpc', 'numpy', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.endswith("[]\n")


def test_the_release_is_named() -> None:
    """As whoever reports a fault is asked for it."""
    done = secagg("--version")
    assert (done.returncode, done.stdout) == (0, f"secagg {version('secagg')}\n")


@pytest.mark.parametrize("command", LEAVES, ids=" ".join)
def test_every_command_has_help_with_an_example(command: tuple[str, ...]) -> None:
    """The list above is complete, and each command shows how it is typed."""
    from typer.main import get_command

    from services.cli.main import app

    found: set[tuple[str, ...]] = set()
    for name, entry in get_command(app).commands.items():  # type: ignore[attr-defined] # a group
        found |= {(name, leaf) for leaf in getattr(entry, "commands", {})} or {(name,)}
    assert found == set(LEAVES)
    entry = get_command(app)
    for part in command:
        entry = entry.commands[part]  # type: ignore[attr-defined] # a group, until the leaf
    assert entry.help
    assert (entry.epilog or "").startswith(f"Example: secagg {' '.join(command)}")


@pytest.mark.parametrize("command", LEAVES, ids=" ".join)
def test_help_shows_every_word(command: tuple[str, ...]) -> None:
    """Brackets are TOML tables and no markup: nothing of a help text is lost on the way."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from services.cli.main import app

    shown = CliRunner().invoke(app, [*command, "--help"], terminal_width=200).output
    entry = get_command(app)
    for part in command:
        entry = entry.commands[part]  # type: ignore[attr-defined] # a group, until the leaf
    texts = [entry.help or "", *(getattr(one, "help", None) or "" for one in entry.params)]
    words = shown.split()
    assert "[]" not in shown
    assert not [word for text in texts for word in text.split() if word not in words]


def test_a_missing_file_is_a_message(tmp_path: Path) -> None:
    """What was expected where, exit code 2, no traceback."""
    done = secagg("silo", "join", "-c", str(tmp_path / "none.toml"))
    assert done.returncode == 2
    assert "none.toml" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_without_utf_8_shows_help() -> None:
    """Examples and names hold letters beyond ASCII."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = secagg("run", "watch", "--help", **ascii_only)
    assert done.returncode == 0, done.stderr
    assert "secagg run watch 0f3a" in done.stdout


def test_names_beyond_ascii_and_folders_with_spaces(tmp_path: Path) -> None:
    """Organization, folders and settings in any letters, whatever the locale (bug case PLT-01)."""
    locale = {"LC_ALL": "C", "PYTHONIOENCODING": "cp1252"}
    home = tmp_path / "Hôpital Zürich ★"
    authority, hub, silo = (str(home / name) for name in ("Behörde", "Zentrale", "Klinik 1"))

    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "services.cli", *arguments],
            capture_output=True,
            encoding="cp1252",
            check=False,
            timeout=60,
            env=os.environ | locale,
        )

    assert said("authority", "init", "-d", authority, "-f", "nord").returncode == 0
    assert said("coordinator", "enroll", "-d", hub, "-n", "hub", "--host", "h").returncode == 0
    issue = ("authority", "issue", "-d", authority)
    assert said(*issue, f"{hub}/request.json", "--coordinator").returncode == 0
    assert said("silo", "enroll", "-d", silo, "-n", "a").returncode == 0
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    lost = secagg(*issue, f"{silo}/request.json", "-o", "Zürich", **ascii_only)
    assert lost.returncode == 4, lost.stderr
    assert "no text in this terminal's encoding; set LC_ALL" in lost.stderr
    done = said(*issue, f"{silo}/request.json", "-o", "Universitätsspital Zürich ★")
    assert done.returncode == 0, done.stderr
    assert said("silo", "install", "-d", silo, f"{authority}/issued/a").returncode == 0
    config = home / "Klinik.toml"
    config.write_text(
        f'coordinator = "127.0.0.1:1"\ndirectory = "{silo}"\nstorage = "Ablage ä"\n'
        'task = "fl.testing:toy_task"\n',
        encoding="utf-8",
    )
    checked = said("silo", "check", "-c", str(config))
    assert checked.returncode == 7, checked.stderr
    assert "ok   disk" in checked.stdout
    refused = said("silo", "enroll", "-d", str(home / "x"), "-n", "Hôpital")
    assert refused.returncode == 4, refused.stdout
    assert "1 to 63 letters, digits" in refused.stderr


def test_simulating_the_built_in_task_needs_files(tmp_path: Path) -> None:
    """`--silos` makes no tables; the message says what does."""
    config = tmp_path / "run.toml"
    config.write_text(
        '[run]\nname = "t"\nrounds = 1\n[local]\nsteps = 1\nlearning_rate = 0.1\n[task]\n'
        'name = "tabular"\nmodel = "logistic"\ntarget = { name = "y", classes = ["0", "1"] }\n'
        'features = [{ name = "x", kind = "numeric" }]\n',
        encoding="utf-8",
    )
    done = secagg("simulate", "-c", str(config), "--silos", "20")
    assert done.returncode == 2
    assert "one CSV file a silo; --silos is for an own task" in done.stderr


@pytest.mark.parametrize(
    ("partition", "silos"),
    [
        ('silos = 4\npartition = "dirichlet"\nalpha = 0.5\nleast = 5', 4),
        ('partition = "column"\ncolumn = "ward"', 3),
    ],
)
def test_simulate_deals_one_file_to_silos(tmp_path: Path, partition: str, silos: int) -> None:
    """By the settings' table; a column's values are silos. What fills a blank cell is told."""
    config, data = tmp_path / "run.toml", tmp_path / "all.csv"
    config.write_text(
        '[run]\nname = "t"\nrounds = 2\n[local]\nsteps = 1\nlearning_rate = 0.1\n[task]\n'
        'name = "tabular"\nmodel = "logistic"\ntarget = { name = "y", classes = ["0", "1"] }\n'
        f'features = [{{ name = "x", missing = "zero" }}]\n[simulation]\n{partition}\n',
        encoding="utf-8",
    )
    rows = [f"{row % 7},{row % 2},{'abc'[row % 3]}" for row in range(60)]
    data.write_text("\n".join(["x,y,ward", *rows, ",1,a"]), encoding="utf-8")
    done = secagg("simulate", "-c", str(config), "--data", str(data), "--plain")
    assert done.returncode == 0, done.stderr
    assert f"round 3/3: {silos} silos, loss" in done.stdout
    assert "column 'x': 1 cell (line 62) missing, taken as 0" in done.stderr
    twice = secagg("simulate", "-c", str(config), "--data", str(data), "--data", str(data))
    assert twice.returncode == 2
    assert "expected one --data, got 2" in twice.stderr


def test_a_missing_certificate_names_what_to_do(tmp_path: Path) -> None:
    """Exit code 3 is for keys and certificates."""
    config = tmp_path / "silo.toml"
    config.write_text(
        'coordinator = "127.0.0.1:1"\ndirectory = "keys"\nstorage = "storage"\n'
        'task = "fl.testing:toy_task"\n',
        encoding="utf-8",
    )
    done = secagg("silo", "join", "-c", str(config))
    assert done.returncode == 3
    assert "enroll" in done.stderr


def test_enrollment_by_hand(tmp_path: Path) -> None:
    """Authority, coordinator and a silo through the commands; a second role is refused."""
    authority = str(tmp_path / "authority")
    assert secagg("authority", "init", "-d", authority, "-f", "north").returncode == 0
    hub, silo = str(tmp_path / "hub"), str(tmp_path / "silo")
    assert secagg("coordinator", "enroll", "-d", hub, "-n", "hub", "--host", "h").returncode == 0
    assert secagg("silo", "enroll", "-d", silo, "-n", "a").returncode == 0
    early = secagg("authority", "issue", "-d", authority, f"{silo}/request.json", "-o", "A")
    assert early.returncode == 4
    assert "coordinator" in early.stderr
    issue = ("authority", "issue", "-d", authority)
    assert secagg(*issue, f"{hub}/request.json", "--coordinator").returncode == 0
    wrong = secagg(*issue, f"{silo}/request.json", "--operator")
    assert wrong.returncode == 4
    assert secagg(*issue, f"{silo}/request.json", "-o", "A", "--json").stdout.startswith("{")
    assert secagg("silo", "install", "-d", silo, f"{authority}/issued/a").returncode == 0
    assert secagg("silo", "install", "-d", hub, f"{authority}/issued/a").returncode == 3


def test_simulate_runs_the_toy(tmp_path: Path) -> None:
    """A whole secure simulation from a settings file."""
    config = tmp_path / "run.toml"
    config.write_text(
        '[run]\nname = "toy"\nrounds = 2\n[local]\nsteps = 2\nbatch_size = 0\n'
        'learning_rate = 0.05\n[task]\nname = "fl.testing:toy_task"\n',
        encoding="utf-8",
    )
    done = secagg("simulate", "-c", str(config), "--silos", "4", "--json")
    assert done.returncode == 0, done.stderr
    assert '"status": "completed"' in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("model", "predict", "a.bin", "--data", "b.csv", "-o", "a.bin"),
        ("model", "predict", "a.bin", "--data", "b.csv", "-o", "./b.csv"),
        ("ledger", "report", "a.bin", "-o", "a.bin"),
        ("ledger", "report", "a.bin", "-o", "page.html", "--csv", "page.html"),
        ("audit", "-c", "a.bin", "-o", "a.bin"),
    ],
    ids=" ".join,
)
def test_no_result_is_written_over_what_it_is_made_of(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command refuses before it reads or writes anything."""
    from typer.testing import CliRunner

    from services.cli.main import app
    from services.errors import ConfigError

    monkeypatch.chdir(tmp_path)
    for name in ("a.bin", "b.csv"):
        Path(name).write_text(name, "utf-8")
    failure = CliRunner().invoke(app, command).exception
    assert isinstance(failure, ConfigError)
    assert "expected another file" in str(failure)
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == {
        "a.bin": "a.bin",
        "b.csv": "b.csv",
    }


def test_who_watches_is_told_that_the_coordinator_is_away() -> None:
    """Nobody listens there; the watcher says so and goes on trying."""
    import asyncio

    import grpc

    from secagg.ids import RunId
    from services.cli.operator import follow
    from services.wire.clients import RunClient

    async def watch() -> str:
        told: asyncio.Queue[str] = asyncio.Queue()
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            client = RunClient(channel, target="127.0.0.1:1")
            statuses = follow(client, RunId(bytes(16)), told.put_nowait)
            waiting = asyncio.ensure_future(anext(statuses))
            text = await told.get()
            waiting.cancel()
        return text

    assert "cannot reach the coordinator, trying again" in asyncio.run(watch())


PLAN = ("plan", "-n", "5", "-d", "10", "-N", "500", "-T", "10")


def test_a_plan_shows_no_noise_for_what_is_refused() -> None:
    """A dash, for a zero would read as none needed."""
    done = secagg("plan", "-n", "5", "-d", "1000000", "-N", "10", "-T", "1000", "-e", "0.01")
    refused = [line for line in done.stdout.splitlines() if " refused " in line]
    assert refused
    assert all("–" in line and "0.000" not in line for line in refused)
    assert "note:" not in done.stderr


def test_a_plan_shows_noise_by_target_and_rounds() -> None:
    """A quarter, half and double of what was asked stand beside it; JSON has the same cells."""
    import json

    done = secagg(*PLAN, "-e", "5")
    lines = done.stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("epsilon  rounds  central"))
    cells = [line.split() for line in lines[start + 1 :]]
    pairs = [(eps, count) for eps in ("1", "3", "5", "8") for count in ("2", "5", "10", "20")]
    assert [tuple(row[:2]) for row in cells] == pairs
    rows = json.loads(secagg(*PLAN, "-e", "5", "--json").stdout)["noise"]
    assert len(rows) == 5 * len(pairs)
    asked = next(r for r in rows if (r["mode"], r["epsilon"], r["rounds"]) == ("central", 5, 10))
    assert asked["z"] == pytest.approx(2.820, rel=2e-3)
    shown = cells[pairs.index(("5", "10"))][2]
    assert shown.startswith(f"{asked['z']:.4g}/{asked['signal_to_noise']:.2g}")
    assert "PRV" not in done.stdout


def test_a_sampled_plan_shows_prv_or_why_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the enforced figure, and named as shown only."""
    from dp import accountant
    from services.cli.plan import plan

    def lines(command: str) -> list[str]:
        monkeypatch.setattr(accountant, "_PRV_COMMAND", command)
        plan(silos=10, dimension=10, units=500, rounds=4, q=0.1)
        return [line for line in capsys.readouterr().out.splitlines() if "PRV" in line]

    (shown,) = lines("import sys; print('ready', flush=True); sys.stdin.read(); print(6.5)")
    assert shown == (
        "epsilon of 4 rounds, fedsgd, patient, isrl: 8.000 enforced (RDP); 6.500 by PRV: "
        "tighter, shown only"
    )
    (failed,) = lines("print('no')")
    assert failed.endswith("no figure by PRV (PRV did not start; RDP shown)")


@pytest.mark.parametrize("target", ["epsilon = 6.0", "z = 4.0"])
def test_skellam_takes_z_or_a_target(tmp_path: Path, target: str) -> None:
    """What z follows from a target: test_privacy_settings."""
    config = tmp_path / "run.toml"
    config.write_text(
        '[run]\nname = "x"\nrounds = 1\nmin_silos = 5\n[local]\nsteps = 1\nlearning_rate = 0.1\n'
        '[task]\nname = "fl.testing:toy_task"\n[privacy]\nmode = "silo"\n'
        'adjacency = "zero_out"\nclip = 1.0\ndelta = 1e-5\ndimension = 1\nnoise = "skellam"\n'
        + target,
        encoding="utf-8",
    )
    done = secagg("simulate", "--config", str(config), "--silos", "5")
    assert done.returncode == 0, done.stderr


def test_a_plan_without_two_honest_silos_is_refused() -> None:
    """Whatever the mode: the sum of one honest silo is its input."""
    done = secagg(*PLAN, "--n-c", "4")
    assert done.returncode == 2
    assert "expected at most 3 of 5 silos, got 4" in done.stderr


def test_a_delta_for_one_person_is_noted() -> None:
    """A plan may be looked at anyway."""
    done = secagg(*PLAN, "--delta", "0.01")
    assert done.returncode == 0
    assert "note: delta 0.01 is not below one over 500 persons" in done.stderr


def test_what_is_no_ledger_cannot_be_judged(tmp_path: Path) -> None:
    """That is no verdict on a ledger."""
    (tmp_path / "keys.json").write_text("{}", "utf-8")
    (tmp_path / "run.toml").write_text("[run]\nrounds = 1\n", "utf-8")
    files = (str(tmp_path / "run.toml"), "--keys", str(tmp_path / "keys.json"))
    done = secagg("ledger", "verify", *files)
    assert done.returncode == 2
    assert "is not a ledger" in done.stderr


@pytest.mark.parametrize("text", ["", "0f3", "0F3A", "first run", "0" * 33])
def test_what_names_no_run_is_refused_before_anybody_is_asked(text: str) -> None:
    """A run is named by its id or four digits of it at least."""
    import asyncio

    import grpc

    from services.cli.operator import find_run
    from services.errors import ConfigError
    from services.wire.clients import RunClient

    async def find() -> None:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            await find_run(RunClient(channel, target="127.0.0.1:1"), text)

    with pytest.raises(ConfigError, match="4 of its first digits"):
        asyncio.run(find())


def test_a_run_that_goes_on_is_named_as_every_other_one() -> None:
    """Else it is a new one."""
    import asyncio

    import grpc

    from services.cli.operator import run_to_start
    from services.errors import ConfigError
    from services.wire.clients import RunClient

    async def start(resume: str | None) -> str:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            return (await run_to_start(RunClient(channel, target="127.0.0.1:1"), resume)).hex

    assert asyncio.run(start("0f" * 16)) == "0f" * 16
    assert asyncio.run(start(None)) != asyncio.run(start(None))
    with pytest.raises(ConfigError, match="4 of its first digits"):
        asyncio.run(start("0f3"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("fedavg", "fedavgg"), "got 'fedavgg'; did you mean 'fedavg'?"),
        (("fedavg", "zzz"), "expected one of fedsgd, fedavg, fedprox, scaffold"),
        (("sgd", "sdg"), "got 'sdg'; did you mean 'sgd'?"),
        (("steps", "step"), "local.step: unknown key; did you mean local.steps?"),
    ],
)
def test_a_runs_settings_are_checked_before_anybody_is_asked(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    """Here there is no certificate yet, nor a coordinator: what is wrong is told all the same."""
    config = tmp_path / "run.toml"
    config.write_text(
        '[run]\nname = "x"\nrounds = 1\n[algorithm]\nname = "fedavg"\n[local]\nsteps = 1\n'
        'learning_rate = 0.1\noptimizer = "sgd"\n[task]\nname = "fl.testing:toy_task"\n'.replace(
            *change
        ),
        encoding="utf-8",
    )
    done = secagg("run", "start", "-c", str(config), "--operator", str(tmp_path / "operator.toml"))
    assert done.returncode == 2
    assert words in done.stderr


def test_a_beginning_that_fits_several_runs_is_refused_with_their_ids() -> None:
    """None is picked; one that fits a single run is that run."""
    from secagg.ids import RunId
    from services.cli.options import pick_run, whole_id
    from services.errors import ConfigError

    runs = [RunId.parse(f"0f3a{number}{'0' * 27}") for number in (2, 1)]
    assert whole_id(runs[0].hex) == runs[0]
    assert whole_id("0f3a") is None
    assert pick_run("0f3a2", runs, hint="") == runs[0]
    with pytest.raises(ConfigError, match=rf"got 2: {runs[1].hex}, {runs[0].hex}"):
        pick_run("0f3a", runs, hint="")
    with pytest.raises(ConfigError, match=r"begins with 0f3b, got 0$"):
        pick_run("0f3b", runs, hint="")


def test_a_run_s_end_has_an_exit_code_of_its_own() -> None:
    """DPA-09: a spent budget is 11, which no other end has; e2e/test_privacy_runs.py meets it."""
    codes = {state: exit_code(state) for state in RunState}
    assert codes[RunState.FINISHED] == 0
    assert codes[RunState.STOPPED] == 10
    assert [state for state, code in codes.items() if code == 11] == [RunState.BUDGET_EXHAUSTED]
    others = {RunState.FINISHED, RunState.STOPPED, RunState.BUDGET_EXHAUSTED}
    assert {code for state, code in codes.items() if state not in others} == {1}


def test_the_core_alone_says_what_the_command_line_needs(tmp_path: Path) -> None:
    """The command is installed with it; what is missing is named, without a traceback."""
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(name='typer')\n", "utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = secagg("--help", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: typer is not installed; the command line needs secagg[")
    assert done.stderr.count("\n") == 1
