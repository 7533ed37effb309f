"""What coordinator and silos say to one another about a run's ledger, inside a round's messages.

A notice brings the lines that a silo lacks, the heads that other silos have signed, and at times a
draft to sign. The answer names the head that the silo now has, signed, so that nobody can be shown
another history later; with it comes the signature of the draft, or why there is none.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from secagg import canonical
from secagg.codec import RUN, TEXT, U64, Record, blob, listed
from secagg.errors import MalformedMessageError
from secagg.ids import RunId

MAX_LINE_BYTES: Final = 1024 * 1024
MAX_LINES: Final = 4096
# Of the lines in one notice together; the rest follows in the next.
NOTICE_BYTES: Final = 512 * 1024

_LINE = blob(MAX_LINE_BYTES, "a ledger's line")
_HEAD = blob(4096, "a signed head")
_HEX = blob(128, "a signature in hex")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerNotice(Record):
    """The coordinator's words.

    Attributes:
        run: whose ledger.
        first: place of the first of the lines.
        lines: entries in order.
        heads: what silos have signed (`dp.ledger.SignedHead`).
        draft: an entry to sign, as a line; empty for none.
    """

    LABEL: ClassVar[str] = "ledger-notice"

    run: Annotated[RunId, RUN]
    first: Annotated[int, U64]
    lines: Annotated[tuple[bytes, ...], listed(_LINE, MAX_LINES)]
    heads: Annotated[tuple[bytes, ...], listed(_HEAD, MAX_LINES)] = ()
    draft: Annotated[bytes, _LINE] = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAnswer(Record):
    """A silo's words.

    Attributes:
        run: whose ledger.
        lines: how many it has now.
        head: the last one, signed; empty while it has none.
        entry_hash: of the draft that it signed, in hex; empty for none.
        signature: of it, in hex.
        code: why it signs nothing, by name; empty if nothing is wrong.
        reason: likewise, in words.
    """

    LABEL: ClassVar[str] = "ledger-answer"

    run: Annotated[RunId, RUN]
    lines: Annotated[int, U64]
    head: Annotated[bytes, _HEAD] = b""
    entry_hash: Annotated[str, TEXT] = ""
    signature: Annotated[bytes, _HEX] = b""
    code: Annotated[str, TEXT] = ""
    reason: Annotated[str, TEXT] = ""


def is_ledger(message: bytes) -> bool:
    """Whether these bytes are words about a ledger, and no message of the protocol."""
    try:
        return canonical.peek_label(message) in {LedgerNotice.LABEL, LedgerAnswer.LABEL}
    except MalformedMessageError:
        return False
