"""A book of charges: what a ledger's entries say has been charged, settled or given back.

It is built from the entries alone, in order, and refuses an entry that contradicts another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol, Self

from dp.account import Account
from dp.canonical import Json
from dp.entries import Entry, Kind
from dp.errors import PlanError
from dp.events import Event, NonPrivateEvent, event_from_json, event_to_json

# Of an event: more of the first protects more, more of the second costs more.
_NOISE: Final = ("z", "mu")
_COST: Final = ("q", "count", "d1", "d2", "delta_impl")


class ChargeState(StrEnum):
    """Where a charge stands."""

    OPEN = "open"
    SETTLED = "settled"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A charge that the ledger holds.

    Attributes:
        entry_hash: of its ROUND_INTENT or METRIC_RELEASE, in hex: its name.
        run_id: of which run, in hex.
        round: its number.
        attempt: which try of it.
        purpose: what for.
        plan_digest: of the plan that was committed to before it, in hex.
        year: the calendar year it was made in.
        planned: what is to be released, as the plan has it.
        event: what is booked for it, under the account's relation.
        local: the same as it counts when secure aggregation fails.
        state: where it stands; only a returned one counts nothing.
    """

    entry_hash: str
    run_id: str
    round: int
    attempt: int
    purpose: str
    plan_digest: str
    year: str
    planned: Event
    event: Event
    local: Event
    state: ChargeState

    @property
    def key(self) -> tuple[str, int, int, str]:
        """One release has one charge."""
        return (self.run_id, self.round, self.attempt, self.purpose)

    def require_cover(self, released: Event) -> None:
        """Refuse a release that costs more than this charge.

        Early silos wrote of a converted plan what they had booked for it, which is what counts.

        Raises:
            PlanError: another kind of event, less noise, or more of anything else.
        """
        if not any(_is_within(released, one) for one in (self.planned, self.event)):
            raise PlanError("ROUND_RELEASE: more was released than was charged")


class ProofKind(StrEnum):
    """Why nothing can have been released (privacy.md 6.3)."""

    ABANDON = "abandon"  # a quorum of the attempt's silos opened nothing and never will


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One party's signed statement, as the protocol has it."""

    signer: str
    message: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Statements by which a charge comes back.

    It says nothing of how many there must be, or by whom: that is read from the plan's commitment.

    Attributes:
        kind: what they show.
        statements: by distinct silos.
    """

    kind: ProofKind
    statements: tuple[Statement, ...]

    def __post_init__(self) -> None:
        """Refuse a silo that speaks twice."""
        if len({one.signer for one in self.statements}) != len(self.statements):
            raise PlanError("proof: expected statements by distinct silos")

    def to_json(self) -> dict[str, Json]:
        """As the entry carries it."""
        return {
            "kind": self.kind.value,
            "statements": [
                {
                    "signer": one.signer,
                    "message": one.message.hex(),
                    "signature": one.signature.hex(),
                }
                for one in sorted(self.statements, key=lambda one: one.signer)
            ],
        }


class StatementChecker(Protocol):
    """Knows the protocol's statements, which this package does not."""

    def __call__(self, charge: Charge, statement: Statement, /) -> bool:
        """Whether a statement is genuine and about this charge's attempt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """Whose promises give a charge back, and how many: all silos of the plan have signed it.

    An attempt's sum is opened by t silos of the plan at least. If `needed` of its silos promise to
    open nothing, at most len(members) − needed + n_c are left that might, which is less than t
    (docs/audit.md has the proof).

    Attributes:
        members: the plan's silos, by name.
        needed: promises of distinct ones.
    """

    members: frozenset[str]
    needed: int

    @classmethod
    def of(cls, commitment: Mapping[str, Json]) -> Self:
        """Read the body of a PLAN_COMMIT.

        Raises:
            PlanError: it names no n_c, so that nothing tells how many promises would do.
        """
        silos, n_c, threshold = (commitment.get(name) for name in ("silos", "n_c", "threshold"))
        if (
            type(n_c) is not int
            or type(threshold) is not int
            or not isinstance(silos, list | tuple)
        ):
            raise PlanError(
                "PLAN_COMMIT names no n_c, as in early ledgers: what was charged "
                "under it never comes back"
            )
        members = frozenset(str(name) for name in silos)
        needed = max(len(members) + n_c - threshold + 1, len(members) // 2 + 1)
        return cls(members=members, needed=needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """How a round ended, for the entry that settles its charge.

    Attributes:
        survivors: whose contributions are in the sum, by name.
        threshold: t, how many of them sign the entry in a run ledger.
        transcript: hash of the round's transcript, in hex.
        event: what was released: the planned event, one with the realized noise, which is no
            less, or that nothing protected it.
        audit: figures of audits of this round, as decimal strings.
    """

    survivors: tuple[str, ...]
    threshold: int
    transcript: str
    event: Event
    audit: Mapping[str, str]

    def to_body(self, charge: str) -> dict[str, Json]:
        """The body of ROUND_RELEASE."""
        return {
            "intent": charge,
            "survivors": tuple(sorted(self.survivors)),
            "threshold": self.threshold,
            "transcript": self.transcript,
            "event": event_to_json(self.event),
            "audit": dict(self.audit),
        }


class ChargeBook:
    """The account and the charges of one ledger."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.account: Account | None = None
        self._charges: dict[str, Charge] = {}
        self._commitments: dict[tuple[str, str], Mapping[str, Json]] = {}

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All charges, in order, returned ones too."""
        return tuple(self._charges.values())

    @property
    def live(self) -> tuple[Charge, ...]:
        """The charges that count: whatever was not given back."""
        return tuple(one for one in self.charges if one.state is not ChargeState.RETURNED)

    def quorum(self, charge: Charge) -> Quorum:
        """Whose promises give a charge back.

        Raises:
            PlanError: none do, or its run has not committed to its plan.
        """
        return Quorum.of(self._commitments.get((charge.run_id, charge.plan_digest), {}))

    def find(self, entry_hash: str) -> Charge:
        """The charge of this name.

        Raises:
            PlanError: there is none.
        """
        found = self._charges.get(entry_hash)
        if found is None:
            raise PlanError("no charge of this name in the ledger")
        return found

    def require_open(self, entry_hash: str) -> Charge:
        """The open charge of this name.

        Raises:
            PlanError: there is none, or it is not open.
        """
        found = self.find(entry_hash)
        if found.state is not ChargeState.OPEN:
            raise PlanError(f"the charge is {found.state}, expected an open one")
        return found

    def require_successor(self, account: Account) -> None:
        """Refuse an account that would read by another rule what was spent.

        Raises:
            PlanError: more than the limits would move.
        """
        if self.account is not None and not account.succeeds(self.account):
            raise PlanError(
                "a budget's unit, adjacency, filter and data set never change: what was spent "
                "would be read by another rule; only limits move"
            )

    def apply(self, entry: Entry) -> None:
        """Take over the next entry.

        Raises:
            PlanError, UnsupportedEventError: it contradicts the entries before.
        """
        match entry.kind:
            case Kind.BUDGET_SET:
                account = Account.from_body(entry.body)
                self.require_successor(account)
                self.account = account
            case Kind.PLAN_COMMIT:
                # The first one of a run counts: a later one could name fewer silos. Another run
                # of the same plan has silos of its own.
                place = (entry.run_id, str(entry.body.get("plan_digest")))
                self._commitments.setdefault(place, entry.body)
            case Kind.ROUND_INTENT:
                self._charges[entry.entry_hash] = _read_charge(entry, ChargeState.OPEN)
            case Kind.METRIC_RELEASE:
                self._charges[entry.entry_hash] = _read_charge(entry, ChargeState.SETTLED)
            case Kind.ROUND_RELEASE:
                self._settle(entry)
            case Kind.ROUND_ABORT if entry.body.get("returned") is True:
                self._replace(self._open_of(entry), state=ChargeState.RETURNED)
            case _:
                pass  # nothing that counts

    def _settle(self, entry: Entry) -> None:
        charge = self._open_of(entry)
        released = event_from_json(entry.body.get("event"))
        if isinstance(released, NonPrivateEvent):
            # Noise of a test generator: whatever was planned, nothing was protected.
            charge = replace(charge, event=released, local=released)
        else:
            charge.require_cover(released)
        self._replace(charge, state=ChargeState.SETTLED)

    def _open_of(self, entry: Entry) -> Charge:
        return self.require_open(str(entry.body.get("intent")))

    def _replace(self, charge: Charge, *, state: ChargeState) -> None:
        self._charges[charge.entry_hash] = replace(charge, state=state)


def _read_charge(entry: Entry, state: ChargeState) -> Charge:
    body = entry.body
    return Charge(
        entry_hash=entry.entry_hash,
        run_id=entry.run_id,
        round=_whole(body, "round"),
        attempt=_whole(body, "attempt"),
        purpose=str(body.get("purpose")),
        plan_digest=str(body.get("plan_digest")),
        year=entry.time_utc[:4],
        planned=event_from_json(body.get("event")),
        event=event_from_json(body.get("booked")),
        local=event_from_json(body.get("booked_local")),
        state=state,
    )


def _whole(body: Mapping[str, Json], name: str) -> int:
    value = body.get(name)
    if type(value) is not int:
        raise PlanError(f"{name}: expected a whole number")
    return value


def _is_within(released: Event, charged: Event) -> bool:
    def pairs(names: tuple[str, ...]) -> list[tuple[float, float]]:
        return [(getattr(released, name, 0.0), getattr(charged, name, 0.0)) for name in names]

    return (
        type(released) is type(charged)
        and all(one >= least for one, least in pairs(_NOISE))
        and all(one <= most for one, most in pairs(_COST))
    )
