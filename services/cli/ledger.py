"""`secagg ledger`: what was promised and spent, for people, and whether it is true."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import AsJson, require_apart, show

if TYPE_CHECKING:
    from services.report.facts import Facts

app = typer.Typer(no_args_is_help=True, help="Privacy ledgers: show, verify and report.")

LedgerFile = Annotated[
    Path, typer.Argument(help="The ledger: JSON lines, or the report's CSV.", show_default=False)
]


@app.command("show", epilog="Example: secagg ledger show storage/ledgers/run-0f3a….jsonl")
def show_ledger(ledger: LedgerFile, as_json: AsJson = False) -> None:
    """Show a ledger's entries, one a line, and what was spent."""
    facts = _facts(ledger)
    spending = dict(facts.spending)
    lines = [
        f"{entry.seq:>5}  {entry.time_utc}  {entry.kind.value:<14}"
        f"{'' if entry.seq not in spending else f'epsilon {spending[entry.seq]:.4f}'}"
        for entry in facts.entries
    ]
    limit = None if facts.account is None else facts.account.epsilon
    lines.append(f"spent {facts.spent:.4f}" + ("" if limit is None else f" of {limit:.4f}"))
    entries = [json.loads(entry.to_line()) for entry in facts.entries]
    show(
        {"entries": entries, "spent": facts.spent, "limit": limit},
        "\n".join(lines),
        as_json=as_json,
    )


@app.command(epilog="Example: secagg ledger verify run-0f3a….jsonl --directory operator/keys")
def verify(
    ledger: LedgerFile,
    *,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", help='JSON: {"name": "public key in hex"}, or lists of them.'),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--directory", "-d", help="Folder with a roster to take the keys from."),
    ] = None,
    former: Annotated[
        list[Path] | None,
        typer.Option("--former", help="With --directory: an older signed roster, for old keys."),
    ] = None,
    heads: Annotated[
        Path | None, typer.Option("--heads", help="Heads that peers have signed, one a line.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a ledger with a second accountant. Exit code 0: verified, 1: not, 2: cannot tell.

    `python -m dp.verify` does the same with nothing but this file, the keys and dp-accounting.
    """
    from dp.verify import ledger_lines, read_keys, verify_ledger
    from services.errors import ConfigError
    from services.ledger.parties import listed_keys
    from services.report.table import from_csv, is_csv, read_lines

    if (keys is None) == (directory is None):
        raise ConfigError("expected --keys or --directory, one of them")
    if keys is not None and former:
        raise ConfigError("--former goes with --directory; --keys lists former keys itself")
    try:
        if directory is not None:
            known = listed_keys(directory, former or ())
        else:
            assert keys is not None  # one of the two is given
            known = read_keys(keys)
        signed = read_lines(heads.read_bytes()) if heads is not None else []
        data = ledger.read_bytes()
        lines = from_csv(data) if is_csv(data) else ledger_lines(ledger)
        report = verify_ledger(lines, known, signed)
    except (OSError, ValueError) as error:
        typer.echo(f"not verified: {error}", err=True)
        raise typer.Exit(2) from error
    except ImportError as error:
        typer.echo("not verified: dp-accounting is missing; pip install 'secagg[verify]'", err=True)
        raise typer.Exit(2) from error
    except Exception as error:  # 1 would say that something was found
        typer.echo(f"not verified: {type(error).__name__}: {error}", err=True)
        raise typer.Exit(2) from error
    findings = [f"FAIL entry {one.seq}: {one.text}" for one in report.findings.items]
    words = "verified" if report.ok else "NOT verified"
    show(
        {"ok": report.ok, "figures": report.figures, "findings": findings},
        "\n".join([*report.figures, *findings, words]),
        as_json=as_json,
    )
    if not report.ok:
        raise typer.Exit(1)


@app.command(epilog="Example: secagg ledger rotate ledgers/data-set-*.jsonl -d keys --old old-keys")
def rotate(
    ledgers: Annotated[list[Path], typer.Argument(help="Ledgers that the old key wrote.")],
    directory: Annotated[
        Path, typer.Option("--directory", "-d", help="The folder with the new keys and roster.")
    ],
    old: Annotated[
        Path | None, typer.Option("--old", help="The folder with the old identity.key.")
    ] = None,
    old_roster: Annotated[
        Path | None,
        typer.Option("--old-roster", help="The key is lost: a signed roster that lists it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a new identity key go on in ledgers that an old one wrote; what was spent stays spent.

    Stop the process whose ledgers they are. With --old both keys sign; with --old-roster the
    authority's signed rosters vouch for both.
    """
    from services.clock import utc_now
    from services.ledger.parties import stamp
    from services.ledger.rotation import new_keys, old_key, rotate_ledger

    fresh = new_keys(directory)
    known = old_key(fresh, folder=old, roster_file=old_roster)
    written = [rotate_ledger(path, fresh, known, time_utc=stamp(utc_now())) for path in ledgers]
    show(
        {"rotated": [str(path) for path, is_new in zip(ledgers, written, strict=True) if is_new]},
        "\n".join(
            f"{path}: {'goes on with the new key' if is_new else 'had the new key already'}"
            for path, is_new in zip(ledgers, written, strict=True)
        ),
        as_json=as_json,
    )


@app.command(epilog="Example: secagg ledger report run-0f3a….jsonl --output report.html")
def report(
    ledger: LedgerFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")],
    table: Annotated[
        Path | None, typer.Option("--csv", help="Where to write the entries as CSV.")
    ] = None,
) -> None:
    """Write one page for a data protection officer, with an annex for auditors."""
    from services.files import write_atomic
    from services.report.page import html
    from services.report.table import to_csv

    require_apart(output, ledger)
    if table is not None:
        require_apart(table, ledger, output)
    facts = _facts(ledger)
    write_atomic(output, html(facts).encode())
    typer.echo(f"{output}: epsilon {facts.spent:.4f} spent in {len(facts.live)} releases")
    if table is not None:
        write_atomic(table, to_csv(facts))
        typer.echo(f"{table}: {len(facts.entries)} entries")


def _facts(ledger: Path) -> "Facts":
    from services.errors import StorageError
    from services.report.facts import read_facts
    from services.report.table import read_lines

    try:
        data = ledger.read_bytes()
    except OSError as error:
        raise StorageError(f"{ledger}: cannot be read: {error.strerror}") from error
    return read_facts(read_lines(data))
