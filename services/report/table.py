"""A ledger as CSV: one row an entry, the whole entry in the last column, so that it reads back."""

import csv
import io
from collections.abc import Sequence
from typing import Final

from services.errors import CorruptError
from services.report.facts import Facts

_COLUMNS: Final = ("seq", "kind", "run_id", "time_utc", "signers", "epsilon_so_far", "entry")


def to_csv(facts: Facts) -> bytes:
    """The rows, in UTF-8."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    spent, spending = 0.0, dict(facts.spending)
    for entry in facts.entries:
        spent = spending.get(entry.seq, spent)
        signers = " ".join(one.signer for one in entry.sigs)
        writer.writerow(
            (
                entry.seq,
                entry.kind.value,
                entry.run_id,
                entry.time_utc,
                signers,
                f"{spent:.6f}",
                entry.to_line().decode(),
            )
        )
    return stream.getvalue().encode()


def from_csv(data: bytes) -> list[bytes]:
    """The ledger's lines in what `to_csv` wrote.

    Raises:
        CorruptError: it is no such table.
    """
    try:
        rows: Sequence[dict[str, str]] = list(csv.DictReader(io.StringIO(data.decode())))
        return [row["entry"].encode() for row in rows]
    except (UnicodeDecodeError, KeyError, csv.Error, AttributeError) as error:
        raise CorruptError(
            "expected a ledger as JSON lines, or its CSV with a column entry"
        ) from error


def is_csv(data: bytes) -> bool:
    """Whether a file is the report's table of a ledger, by its first column."""
    return data.startswith(b"seq,")


def read_lines(data: bytes) -> list[bytes]:
    """A ledger's lines, of either form; a last line without line feed was cut and is left out."""
    if is_csv(data):
        return from_csv(data)
    return data.split(b"\n")[:-1]
