"""Who writes and signs ledgers, under which names and keys, and when."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from secagg.keys import IdentityKey
from secagg.roster import Roster

# The coordinator's name in ledgers; silos have their own.
COORDINATOR: Final = "coordinator"


@dataclass(frozen=True, slots=True)
class Party:
    """A `dp.entries.Signer` with a party's identity key."""

    name: str
    key: IdentityKey

    def __repr__(self) -> str:
        """Never show a key."""
        return f"Party({self.name!r})"

    def sign(self, message: bytes) -> bytes:
        """64 bytes; ledgers sign under labels of their own."""
        return self.key.sign(message)


def public_keys(roster: Roster) -> dict[str, bytes]:
    """Raw Ed25519 keys by name: what a ledger is verified with."""
    keys = {seat.silo.name: seat.identity_key for seat in roster.seats}
    return {**keys, COORDINATOR: roster.coordinator_key}


def stamp(now: datetime) -> str:
    """A time as entries have it, to the second."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
