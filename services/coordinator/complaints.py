"""A run's complaints that count, on disk: whoever drives it next leaves out the same silos.

A complaint proves nothing and leaves out both its ends for the rest of the run (SA1 spec 3.4). If a
restart of the coordinator ended that, a liar would only have to wait for the next one.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from secagg.canonical import decode_list, encode_list
from secagg.errors import RemoteProtocolError
from secagg.messages import Complaint
from services.errors import CorruptError
from services.files import write_atomic

COMPLAINTS: Final = "complaints"
# One for every two silos at most.
_MOST: Final = 10_000


def keep_complaints(folder: Path, complaints: Iterable[Complaint]) -> None:
    """Write all of a run's complaints, in the order in which they came.

    Raises:
        StorageError: the disk refuses.
    """
    write_atomic(folder / COMPLAINTS, encode_list([item.encode() for item in complaints]))


def load_complaints(folder: Path) -> tuple[Complaint, ...]:
    """Read them; none if there is no file.

    Raises:
        CorruptError: the file is damaged.
    """
    path = folder / COMPLAINTS
    try:
        items = decode_list(path.read_bytes(), max_items=_MOST)
        return tuple(map(Complaint.decode, items))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CorruptError(f"{path}: cannot be read: {error.strerror}") from error
    except RemoteProtocolError as error:
        raise CorruptError(
            f"{path}: damaged",
            hint="move it away to invite again whom it left out, and start the coordinator again",
        ) from error
