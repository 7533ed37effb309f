"""Writes the table of error codes into docs/operations.md; `--check` only compares.

Code and meaning come from the error classes, what to do from the table below: a code without an
entry, and an entry without a code, are errors.
"""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import dp.errors
import fl.errors
import secagg.errors
import services.errors
import services.silo.node

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs" / "operations.md"
MODULES: Final = (services.errors, secagg.errors, fl.errors, dp.errors, services.silo.node)
_NAMED: Final = re.compile(r'remote_code="([A-Z_]+)"')

# Names that say more than their class's own code, with what they mean.
REFUSALS: Final = {
    "ALREADY_CONNECTED": "Another process of this silo is connected.",
    "BUSY": "One holder has too many calls open at once.",
    "CERTIFICATE_ENDED": "The certificate has ended since the connection was opened.",
    "DIGEST_MISMATCH": "A chunk's bytes are not those that its digest names.",
    "FENCED": "A later process of this silo has taken over.",
    "HELLO_FIRST": "The coordinator was restarted or has a newer roster.",
    "NOT_IN_ROSTER": "The roster in force does not list this name with this certificate's key.",
    "RUN_ACTIVE": "The coordinator drives one run at a time.",
    "STALE": "The round or attempt is over.",
}

_REPORT: Final = "A bug: report it with the log of both sides, without keys and data."
_NOTHING: Final = "Nothing, if it is rare: the silo counts as a dropout of this attempt."
_ACCUSE: Final = (
    "Stop runs with that party and keep the `evidence` folder: `secagg transcript verify` shows it "
    "to others."
)
_ROOM: Final = "Make room on that silo's disk; it takes part in the next round without a restart."
_PLAN: Final = "Correct the run's settings; the message names the field."
ACTIONS: Final = {
    "SERVICE": "Read the message; it says what to do.",
    "CONFIG": "Correct the keys that the message lists.",
    "CREDENTIAL": "Install the newest bundle; have an ended certificate renewed; check the clock.",
    "ENROLLMENT": "Do what the message says: another name, new keys, or another role.",
    "STORAGE": "Look at the disk (space, mount options) or the database; start again.",
    "CORRUPT": "Restore the folder from a backup, as described below; never edit it.",
    "SCHEMA_VERSION": "Install the newer software again; databases are never migrated backwards.",
    "LEASE_LOST": "Nothing: the standby serves. Start this one again as the next standby.",
    "ADDRESS_IN_USE": "End the process that has the port, or change `listen` or `metrics`.",
    "UNREACHABLE": "Is the coordinator up, the address right, the firewall open? Silos try for an "
    "hour.",
    "TLS": "Run `secagg silo check`: it names the certificate, the name or the clock at fault.",
    "REMOTE": "Read the name beside it: one of the rows below.",
    "INVALID_REQUEST": "Compare the software versions of both sides; else a bug.",
    "UNAUTHENTICATED": "Install the bundle that was issued for this holder.",
    "NOT_ALLOWED": "Use the right role's certificate; a silo not invited waits for the next run.",
    "NOT_FOUND": "Check the run's id with `secagg run list`.",
    "CONFLICT": "Two things have one name: choose another, or find the second process.",
    "NOT_NOW": "Wait; the message says for what.",
    "VERSION": "Install the newer software or roster bundle on the side that is behind.",
    "TOO_LARGE": "Raise the setting that the message names; look for a proxy's limit.",
    "UNAVAILABLE": "Nothing: the caller tries again by itself.",
    "INTERNAL": "Read the coordinator's log at that time.",
    "ALREADY_CONNECTED": "Stop the other process; after a crash wait ten seconds.",
    "BUSY": "Stop what floods: a second program with this holder's certificate.",
    "CERTIFICATE_ENDED": "Install the renewed certificate; renew earlier (see Certificates).",
    "DIGEST_MISMATCH": "Once: nothing, it is sent again. Often: a broken proxy or memory.",
    "FENCED": "Stop this process; the later one goes on.",
    "HELLO_FIRST": "Nothing.",
    "NOT_IN_ROSTER": "Revoked: nothing. Newly enrolled: give the coordinator its newest bundle.",
    "RUN_ACTIVE": "Wait for the run's end, or `secagg run stop` it.",
    "STALE": _NOTHING,
    "SECAGG": _REPORT,
    "PARAMETER": "Correct the value that the message names.",
    "NON_FINITE": "Training diverged at this silo: smaller learning rate, or look at its data.",
    "EVIDENCE": "The file proves nothing; ask for the original.",
    "PROTOCOL": _REPORT,
    "LOCAL": _REPORT,
    "A1_POLICY_REFUSED": "Compare the run with the silo's `[policy]`; the silo's owner decides.",
    "A2_REPLAY": "After a restored backup: see there. Else report it to the federation.",
    "A3_ROSTER": "Both sides need the same roster version: install the newest bundle.",
    "A3_BAD_KEY": _ACCUSE,
    "A4_BAD_SHARE": _ACCUSE,
    "A4_BAD_DEALER": _ACCUSE,
    "A4_FALSE_PAIR": _ACCUSE,
    "A4_COHORT_REFUSED": "Too few silos for this silo's policy: wait for more.",
    "A5_MODEL_MISMATCH": "If other silos' word is missing: this silo was away or joins, and takes "
    "part again when n_c + 1 silos have settled the last round. Else do not go on before the "
    "coordinator has explained it: it showed another model than the sums give.",
    "A6_SURVIVORS_MISMATCH": _ACCUSE,
    "A7_SURVIVORS_UNCERTIFIED": "Too many silos were lost; if it comes again, ask the coordinator.",
    "A8_SECOND_UNMASK": _ACCUSE,
    "A9_FORGED_SUM": _ACCUSE,
    "A9_BAD_DISCLOSURE": _ACCUSE,
    "BAD_SIGNATURE": "Both sides need the same roster; if they have it, somebody forges: tell the "
    "federation.",
    "CONTRADICTION": "Look for a second process with this silo's keys; if there is none, accuse as "
    "above.",
    "MALFORMED": "Compare the software versions of both sides.",
    "OVERSIZE": "Compare the limits in both sides' settings.",
    "WRONG_PHASE": _NOTHING,
    "LearningError": "Read the message.",
    "PlanError": _PLAN,
    "SpecMismatchError": (
        "Both sides must mean the same plan and model: compare task and settings. `the first "
        "state: … not the initial model`: another version of the task, or a run from another "
        "model, whose state the silos pin (`first_states`). `policy rule least_change`: the model "
        "stands still; stop the run, or let the silo lower the rule. "
        "`advice: …`: the totals of a column are not those of the silo's first advice (data have "
        "changed, or a silo lies): use that one, or `describe`."
    ),
    "NonFiniteUpdateError": "Training diverged: smaller learning rate, or look at the data.",
    "WeightError": "Raise `n_cap` or correct the silo's data.",
    "SchemaError": "Make the silo's file fit the schema; its own log names the column.",
    "DataError": "Correct the silo's file; its own log says where.",
    "CoordinatorAccusedError": _ACCUSE,
    "NoRoomError": _ROOM,
    "VariateLostError": "Nothing: a refresh round gives the silo a new one.",
    "RenewedError": "Nothing: the silo takes part again once a training round has moved the model.",
    "LeftRunError": "Nothing, or `secagg run dismiss`; after that `admit` lets it join again.",
    "QueryRefusedError": "Ask with `--z`, or without this silo (`--min-silos`); its owner can set "
    '`statistics = "exact"` and `statistics_columns`. A training run: likewise, or '
    "`task.standardize = false`.",
    "RunStateError": "Look at the run with `secagg run show`.",
    "LedgerRefusedError": "Compare the run's privacy plan with the silo's `[privacy]`. Where a "
    "silo has answered the plans of eight runs within seven days that charged nothing, its "
    "operator looks at them and lets it answer again (`secagg silo forgive`), or the week goes by. "
    "A run that is proven false stays refused; `said.jsonl` has the proof: begin a new run.",
    "BudgetExhaustedError": "The data set's budget is spent; its owner decides.",
    "PRIVACY": "Read the message.",
    "PLAN": _PLAN,
    "UNSUPPORTED_EVENT": "Choose another accounting rule in the privacy plan.",
    "CALIBRATION": "A weaker target, fewer rounds or more silos: `secagg plan` shows which.",
    "INFEASIBLE": "A smaller model or more silos; the message holds the numbers.",
    "NOISE_SHORTFALL": "Too few silos stayed; the round is repeated.",
    "OVERFLOW_ALARM": "Do not use this round's sum; raise the value bits and report it.",
    "UNSAFE_MODULE": "Replace the module that the message names in the own task.",
    "BUDGET_EXHAUSTED": "The budget is spent; the run ends with the model it has.",
    "LEDGER_CONFLICT": "Two processes write one ledger: stop one of them.",
    "LEDGER_INTEGRITY": "Restore a backup and compare it with the silos' signed heads.",
    "EQUIVOCATION": "Keep both heads: they prove that the ledger's writer showed two histories.",
}


def codes(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Each class's code with its exit code and meaning."""
    found: dict[str, tuple[str, str]] = {}
    for name, kind in vars(module).items():
        if (
            isinstance(kind, type)
            and issubclass(kind, Exception)
            and kind.__module__ == module.__name__
        ):
            meaning = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
            code = str(getattr(kind, "code", name))
            found.setdefault(
                code, (str(getattr(kind, "exit_code", "")), meaning.replace("``", "`"))
            )
    return found


def table() -> str:
    """The run book's table.

    Raises:
        SystemExit: a code has no action, or an action no code.
    """
    rows: dict[str, tuple[str, str]] = {}
    for module in MODULES:
        for code, facts in codes(module).items():
            rows.setdefault(code, facts)
    used = {
        name
        for path in (ROOT / "services").rglob("*.py")
        for name in _NAMED.findall(path.read_text("utf-8"))
    }
    rows |= {name: ("9", REFUSALS.get(name, "")) for name in sorted(used - set(rows))}
    wrong = set(rows) ^ set(ACTIONS) | (used - set(rows)) | set(REFUSALS) - used
    wrong |= {name for name, (_, meaning) in rows.items() if not meaning}
    if wrong:
        raise SystemExit(f"tools/list_errors.py: say what {sorted(wrong)} mean and what to do")
    lines = ["| code | exit | what it means | what to do |", "|---|---|---|---|"]
    for code, (exit_code, meaning) in rows.items():
        lines.append(
            f"| `{code}` | {exit_code} | {meaning} | {ACTIONS[code]} |".replace("|  |", "| |")
        )
    return "\n".join(lines)


def main() -> int:
    """Write or check; returns the exit code."""
    text = DOCUMENT.read_text("utf-8")
    start, end = "<!-- begin codes -->\n", "<!-- end codes -->"
    before, rest = text.split(start)
    _, after = rest.split(end)
    fresh = f"{before}{start}{table()}\n{end}{after}"
    if "--check" in sys.argv[1:]:
        if fresh != text:
            sys.stderr.write("docs/operations.md is stale: run python tools/list_errors.py\n")
            return 1
        return 0
    DOCUMENT.write_text(fresh, "utf-8")
    sys.stdout.write(f"{len(ACTIONS)} codes written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
