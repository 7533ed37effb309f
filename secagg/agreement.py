"""What a silo must find in what the server shows it, before it agrees.

U1 with its keys (check A3), U2 with its share roots (A4), the state (A5) and U3 with its uploads
(A6). The server chooses all of them; a silo accepts only lists that hold itself unaltered, that the
roster and the signatures bear out, and that stay above its floor (SA1 spec 2.2, 3.4).
"""

from collections.abc import Mapping

from secagg.errors import (
    BadKeyError,
    BadSignatureError,
    CohortRefusedError,
    ModelMismatchError,
    RemoteProtocolError,
    ReplayError,
    RosterError,
    SurvivorsMismatchError,
)
from secagg.keys import check_encoding, verify
from secagg.messages import (
    STATE,
    Advertise,
    Boxes,
    Keys,
    StateNotice,
    SurvivorEntry,
    masked_signed_bytes,
    model_hash,
)
from secagg.parameters import RoundParameters
from secagg.ports import VectorStore
from secagg.roster import Roster


def _require_organizations(
    seats: tuple[int, ...],
    parameters: RoundParameters,
    roster: Roster,
    error: type[RemoteProtocolError],
) -> None:
    found = roster.organizations(seats)
    if found < parameters.n_orgs:
        raise error(
            f"these silos belong to {found} organizations; at least {parameters.n_orgs} are needed"
        )


def check_keys(
    message: Keys, own: Advertise, *, parameters: RoundParameters, roster: Roster
) -> dict[int, Advertise]:
    """A3: U1 holds this silo, is large enough, and every key in it is signed and another one.

    Returns:
        The advertised keys by seat, sorted.

    Raises:
        RosterError, ReplayError, BadSignatureError, BadKeyError: it does not.
    """
    advertises = {item.seat: item for item in message.advertises}
    u1 = tuple(item.seat for item in message.advertises)
    if list(u1) != sorted(advertises):
        raise RosterError("U1 must be sorted and name every silo once")
    if advertises.get(own.seat) != own:
        raise RosterError("this silo's own keys are missing from U1 or were changed")
    floor = parameters.floor(len(u1))
    if not floor <= len(u1) <= parameters.n_max:
        raise RosterError(f"U1 has {len(u1)} silos; {floor} to {parameters.n_max} are needed")
    ctx = parameters.ctx()
    public_keys: set[bytes] = set()
    expected = 4 if parameters.cipher_suite.is_hybrid else 2
    for item in message.advertises:
        if item.ctx != ctx:
            raise ReplayError("keys were advertised for another attempt", silo=item.seat)
        verify(roster.seat(item.seat).identity_key, item.signature, item.signed_bytes())
        if len(item.public_keys) != expected or item.public_keys & public_keys:
            raise BadKeyError(
                f"{expected} keys are advertised in this suite, each another one", silo=item.seat
            )
        for key in (item.enc_key, item.mask_key):  # low orders are found when shares are dealt
            check_encoding(key, silo=item.seat)
        public_keys |= item.public_keys
    _require_organizations(u1, parameters, roster, RosterError)
    return advertises


def check_sharers(
    message: Boxes,
    own: bytes,
    *,
    seat: int,
    holders: tuple[int, ...],
    u1: tuple[int, ...],
    parameters: RoundParameters,
    roster: Roster,
) -> dict[int, bytes]:
    """A4, the cohort: U2 is a part of U1, large enough, with a box from each neighbor in it.

    Args:
        message: U2 as the server tells it.
        own: the share root of what this silo dealt.
        seat: this silo.
        holders: its closed neighborhood.
        u1: silos with keys.
        parameters: of the attempt.
        roster: gives the organizations.

    Returns:
        The share roots of U2 by seat.

    Raises:
        CohortRefusedError: it is not.
    """
    near = tuple(item.dealer for item in message.deliveries)
    roots = {item.dealer: item.root for item in message.deliveries}
    roots |= {item.dealer: item.root for item in message.distant}
    u2 = tuple(sorted(roots))
    named = len(message.deliveries) + len(message.distant)
    if list(near) != sorted(near) or named != len(u2) or not set(u2) <= set(u1):
        raise CohortRefusedError("U2 must be a sorted part of U1 that names every silo once")
    if set(near) != set(u2) & set(holders):
        raise CohortRefusedError("boxes come from the neighbors in U2, from each of them")
    floor = parameters.floor(len(u1))
    if len(u2) < floor:
        raise CohortRefusedError(f"U2 has {len(u2)} silos; at least {floor} are needed")
    _require_organizations(u2, parameters, roster, CohortRefusedError)
    if roots.get(seat) != own:
        raise CohortRefusedError("this silo's own shares are missing from U2 or were changed")
    return roots


def read_state_hash(message: StateNotice, store: VectorStore, *, kind: str) -> bytes:
    """A5, the bytes: those in the store are what the server signed.

    Returns:
        The state's model hash.

    Raises:
        ModelMismatchError: they are not.
    """
    pieces = range(store.chunks(STATE))
    state = b"".join(store.read(STATE, piece) for piece in pieces)
    found = model_hash(kind, state)
    if (len(state), found) != (message.nbytes, message.model_hash):
        raise ModelMismatchError("the state's bytes are not those that the coordinator signed")
    return found


def check_survivor_list(
    entries: tuple[SurvivorEntry, ...],
    own: SurvivorEntry | None,
    *,
    seat: int,
    binding: bytes,
    share_roots: Mapping[int, bytes],
    silos: int,
    parameters: RoundParameters,
    roster: Roster,
    liars: frozenset[int] = frozenset(),
) -> tuple[int, ...]:
    """A6: U3 lies in this silo's own U2, is large enough, and every upload is signed for its view.

    Args:
        entries: U3 with roots, priors and signatures.
        own: this silo's upload; None if it sent none.
        seat: this silo.
        binding: its view of the attempt.
        share_roots: of its own U2.
        silos: |U1|.
        parameters: of the attempt.
        roster: gives keys and organizations.
        liars: proven bad dealers, which earlier survivors may lack now.

    Returns:
        The survivors' seats.

    Raises:
        SurvivorsMismatchError: it does not.
    """
    seats = tuple(item.seat for item in entries)
    if list(seats) != sorted(set(seats)):
        raise SurvivorsMismatchError("U3 must be sorted and name every silo once")
    if not set(seats) <= set(share_roots):
        raise SurvivorsMismatchError("U3 names a silo outside this silo's own U2")
    floor = parameters.floor(silos)
    if len(seats) < floor:
        raise SurvivorsMismatchError(f"U3 has {len(seats)} silos; at least {floor} are needed")
    _require_organizations(seats, parameters, roster, SurvivorsMismatchError)
    lengths = tuple(segment.length for segment in parameters.wire_spec.segments)
    for entry in entries:
        if entry.seat == seat and entry != own:
            raise SurvivorsMismatchError("this silo's own upload was changed or invented")
        if entry.lengths != lengths:
            raise SurvivorsMismatchError("an upload has other segment lengths", silo=entry.seat)
        if entry.prior and set(entry.prior) - liars != set(seats):
            raise SurvivorsMismatchError(
                "this state was summed before over other silos; their difference would show one "
                "silo's input. Start from another state (another seed, say) or with the same silos",
                silo=entry.seat,
            )
        try:
            key = roster.seat(entry.seat).identity_key
            verify(key, entry.signature, masked_signed_bytes(binding, entry))
        except BadSignatureError as error:
            raise SurvivorsMismatchError(
                "an upload is not signed for this silo's view of the round", silo=entry.seat
            ) from error
    return seats
