"""What the coordinator knows between calls: who is connected, and what waits for whom.

It lives on one event loop, so between two `await`s nothing else happens: that is its lock.
"""

from dataclasses import dataclass, field
from typing import Final

from secagg.ids import SiloId
from secagg.roster import Roster, Seat
from services.clock import monotonic, utc_now
from services.coordinator.mailbox import Mailbox
from services.coordinator.presence import Presence

# A silo polls, also while it trains, and calls every two seconds while it does anything else: after
# three missed calls its process is dead.
SILENT_AFTER_S: Final = 6.0
# After a restart, silos find the coordinator again within their longest pause and some calls.
RETURN_S: Final = 15.0


def presence(silent_after_s: float = SILENT_AFTER_S) -> Presence:
    """Presence by this machine's clocks."""
    return Presence(
        silent_after_s=silent_after_s,
        return_s=RETURN_S,
        now=monotonic,
        wall_clock=lambda: utc_now().isoformat(timespec="seconds"),
    )


@dataclass(slots=True, kw_only=True)
class Hub:
    """Presence and mailboxes of the silos of one roster.

    Attributes:
        first_sequence: envelopes get numbers above it; above those of every earlier process, so
            that an acknowledgement meant for one of these acknowledges nothing here.
    """

    roster: Roster
    presence: Presence = field(default_factory=presence)
    first_sequence: int = 0
    _mailboxes: dict[int, Mailbox] = field(default_factory=dict)
    _former: dict[int, Seat] = field(default_factory=dict)

    def adopt(self, roster: Roster) -> None:
        """Let a newer roster count from now on: open polls end, and every silo says Hello again."""
        self._former |= {seat.index: seat for seat in self.roster.seats}
        self.roster = roster
        self.presence.greet_again()
        self.interrupt()

    def interrupt(self) -> None:
        """End the silos' open polls; each is answered that there is nothing."""
        for mailbox in self._mailboxes.values():
            mailbox.interrupt()

    def name(self, seat: int) -> str:
        """The name of the silo on a seat, also where it has been revoked."""
        known = self._former | {one.index: one for one in self.roster.seats}
        return known[seat].silo.name if seat in known else f"seat {seat}"

    def mailbox(self, seat: int) -> Mailbox:
        """The seat's mailbox."""
        return self._mailboxes.setdefault(seat, Mailbox(self.first_sequence))

    def waiting(self) -> int:
        """How many envelopes silos have yet to handle."""
        return sum(mailbox.depth for mailbox in self._mailboxes.values())

    def connected(self) -> tuple[Seat, ...]:
        """The seats whose silo is connected now, by index."""
        alive = self.presence.connected()
        return tuple(seat for seat in self.roster.seats if seat.silo in alive)

    def silent(self, seats: tuple[int, ...]) -> frozenset[int]:
        """Those of the seats whose silo has not called for too long, or has been revoked."""
        silos = {seat.index: seat.silo for seat in self.roster.seats}
        return frozenset(
            seat for seat in seats if seat not in silos or self.presence.is_silent(silos[seat])
        )

    def is_connected(self, silo: SiloId) -> bool:
        """Whether this silo is connected now."""
        return silo in self.presence.connected()
