"""Writes the protocol's tables into docs/protocol.md from the code; `--check` only compares.

The state diagram comes from `secagg.phases`, the table of checks from the error classes.
"""

import sys
from pathlib import Path

from secagg import errors, phases
from secagg.phases import SERVER_HEARS, SILO_HEARS, TRANSITIONS, Phase, Step

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"


def diagram() -> str:
    """The transition table as a Mermaid state diagram; FAILED leads from everywhere to ABORTED."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.ADVERTISE.value}"]
    for (phase, step), target in TRANSITIONS.items():
        if step is not Step.FAILED:
            lines.append(f"    {phase.value} --> {target.value}: {step.value}")
    lines.append(f"    {Phase.CLOSED.value} --> [*]")
    return "\n".join([*lines, "```"])


def hearing() -> str:
    """Which messages each role listens to in which phase."""
    lines = ["| phase | a silo hears | the server hears |", "|---|---|---|"]
    for phase in Phase:
        cells = [
            ", ".join(sorted(kind.__name__ for kind in hears[phase])) or "–"
            for hears in (SILO_HEARS, SERVER_HEARS)
        ]
        lines.append(f"| {phase.value} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def checks() -> str:
    """The named errors of the checks A1–A9, from their docstrings."""
    lines = ["| code | error | when |", "|---|---|---|"]
    for name in dir(errors):
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, errors.RemoteProtocolError):
            when = (kind.__doc__ or "").splitlines()[0].split(": ", 1)[-1]
            lines.append(f"| {kind.code} | `{name}` | {when} |")
    return "\n".join([*lines[:2], *sorted(lines[2:])])


def main() -> int:
    """Write or check; returns the exit code."""
    text = DOCUMENT.read_text("utf-8")
    fresh = text
    for name, content in (
        ("states", diagram()),
        ("hearing", hearing()),
        ("checks", checks()),
    ):
        start, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, rest = fresh.split(start)
        _, after = rest.split(end)
        fresh = f"{before}{start}{content}\n{end}{after}"
    if "--check" in sys.argv[1:]:
        if fresh != text:
            sys.stderr.write("docs/protocol.md is stale: run python tools/draw_states.py\n")
            return 1
        return 0
    DOCUMENT.write_text(fresh, "utf-8")
    sys.stdout.write(f"{len(phases.TRANSITIONS)} transitions written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
