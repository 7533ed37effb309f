"""What a ledger says, gathered for people: who promised what, what was spent, what was found."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dp.account import Account
from dp.canonical import Json, canonical_json
from dp.charges import Charge, ChargeBook, ChargeState
from dp.closed_form import gaussian_mu
from dp.entries import Entry, Kind
from dp.errors import LedgerIntegrityError, PlanError, UnsupportedEventError
from dp.events import Event, GaussianEvent, PoissonGaussianEvent, SkellamEvent
from dp.filters import FilterKind
from dp.ledger import Ledger
from dp.plan import PrivacyPlan
from services.errors import CorruptError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """A plan that was frozen.

    Attributes:
        seq: of its PLAN_COMMIT.
        plan: the plan.
        claimed: epsilon by trust line, infinite for no guarantee.
        floor: the fewest survivors.
        n_c: silos that the threshold and returned charges count with; None in early ledgers.
        silos: who signed it in the run's ledger.
    """

    seq: int
    plan: PrivacyPlan
    claimed: Mapping[str, float]
    floor: int
    n_c: int | None
    silos: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found; silos as the entry names them, which early ones did not."""

    seq: int
    method: str
    silos: str
    lower: float
    estimate: float
    claimed: float


@dataclass(slots=True, kw_only=True)
class Facts:
    """A whole ledger.

    Attributes:
        entries: in order.
        kind: "run" or "data_set".
        writer: who signs it.
        subject: the run or data set.
        software: versions by package.
        account: the limits in force, None if none were set.
        plans: in order.
        charges: all, in order.
        survivors: names by the charge's entry hash, where a round was released.
        spending: (seq, epsilon so far) after each entry that changed it.
        audits: in order.
        changes: (seq, what) of limits and keys, in order; the first limits are the first of them.
    """

    entries: Sequence[Entry]
    kind: str
    writer: str
    subject: str
    software: Mapping[str, str]
    account: Account | None = None
    plans: list[PlanFacts] = field(default_factory=list)
    charges: Sequence[Charge] = ()
    survivors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    spending: list[tuple[int, float]] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    changes: list[tuple[int, str]] = field(default_factory=list)

    @property
    def spent(self) -> float:
        """Epsilon on the enforced line; open charges count."""
        return self.spending[-1][1] if self.spending else 0.0

    @property
    def live(self) -> tuple[Charge, ...]:
        """Charges that count."""
        return tuple(one for one in self.charges if one.state is not ChargeState.RETURNED)

    @property
    def mu(self) -> float | None:
        """Sensitivity over noise of all that was spent, if every unit took part in all of it."""
        if self.account is None or self.account.filter.kind is not FilterKind.GDP:
            return None
        if not 0.0 < self.spent < math.inf:
            return None
        return gaussian_mu(self.spent, self.account.filter.delta * 0.99)


class _Lines:
    """A ledger's lines, to read."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    def read(self, start: int) -> Sequence[bytes]:
        """All lines from place `start` on."""
        return self._lines[start:]

    def append(self, line: bytes, *, expected_lines: int) -> None:
        """Refuse: nothing is written here."""
        raise NotImplementedError  # Facts are only read


def read_facts(lines: Sequence[bytes]) -> Facts:
    """Gather the facts of a ledger's lines; signatures are the verifier's affair.

    Raises:
        CorruptError: the lines are no ledger.
    """
    try:
        return _read(Ledger(_Lines(lines)).entries)
    except (LedgerIntegrityError, PlanError, UnsupportedEventError) as error:
        raise CorruptError(f"the ledger cannot be read: {error}") from error


def _read(entries: Sequence[Entry]) -> Facts:
    if not entries:
        return Facts(entries=(), kind="", writer="", subject="", software={})
    if entries[0].kind is not Kind.GENESIS:
        raise PlanError("expected GENESIS as the first entry")
    first = entries[0].body
    software = first.get("software")
    facts = Facts(
        entries=entries,
        kind=str(first.get("ledger")),
        writer=str(first.get("writer")),
        subject=str(first.get("subject")),
        software={str(k): str(v) for k, v in software.items()}
        if isinstance(software, Mapping)
        else {},
    )
    book = ChargeBook()
    for entry in entries:
        before = book.account
        book.apply(entry)
        facts.account, facts.charges = book.account, book.charges
        facts.changes += _changes(entry, before, book.account)
        match entry.kind:
            case Kind.PLAN_COMMIT:
                found = _plan(entry)
                # A data set's ledger repeats a plan for each run that has it; once is enough here.
                if all(replace(found, seq=one.seq) != one for one in facts.plans):
                    facts.plans.append(found)
            case Kind.ROUND_RELEASE:
                facts.survivors[str(entry.body["intent"])] = _names(entry.body["survivors"])
            case Kind.AUDIT_RESULT:
                facts.audits.append(_audit(entry))
            case _:
                pass
        if book.account is not None and entry.kind in _SPENDING:
            total = book.account.filter.epsilon(one.event for one in book.live)
            # An abort without proof gives nothing back.
            if entry.kind is not Kind.ROUND_ABORT or total != facts.spent:
                facts.spending.append((entry.seq, total))
    return facts


_SPENDING = frozenset({Kind.ROUND_INTENT, Kind.METRIC_RELEASE, Kind.ROUND_ABORT})


def _plan(entry: Entry) -> PlanFacts:
    body = entry.body
    claimed = body["claimed"]
    assert isinstance(claimed, Mapping)  # PLAN_COMMIT as dp.commitments writes it
    floor, n_c = body["floor"], body.get("n_c")
    return PlanFacts(
        seq=entry.seq,
        plan=PrivacyPlan.from_bytes(canonical_json(body["plan"])),
        claimed={str(name): _epsilon(one) for name, one in claimed.items()},
        floor=floor if isinstance(floor, int) else 0,
        n_c=n_c if isinstance(n_c, int) else None,
        silos=_names(body["silos"]),
    )


def _changes(entry: Entry, before: Account | None, after: Account | None) -> list[tuple[int, str]]:
    """Whose key is new, or each limit of epsilon that is new or another than before."""
    if entry.kind not in {Kind.KEY_ROTATE, Kind.BUDGET_SET}:
        return []
    if entry.kind is Kind.KEY_ROTATE:
        how = "the old one lost" if entry.body.get("lost") is True else "both keys signed"
        return [(entry.seq, f"new key of {entry.body.get('name')}, {how}")]
    words = {
        "epsilon": "in all", "run_epsilon": "a run", "year_epsilon": "a year",
        "local_epsilon": "if secure aggregation fails",
    }  # fmt: skip
    found = []
    for name, what in words.items():
        old, new = (None if one is None else getattr(one, name) for one in (before, after))
        if old != new:
            shown = ["none" if one is None else f"{one:g}" for one in (old, new)]
            found.append(f"limit {what}: {' → '.join(shown)}")
    return [(entry.seq, "; ".join(found) or "other terms, the same limits")]


def _epsilon(figure: Json) -> float:
    text = figure.get("eps") if isinstance(figure, Mapping) else None
    return float(str(text))


def _names(value: Json) -> tuple[str, ...]:
    return tuple(str(name) for name in value) if isinstance(value, list | tuple) else ()


def _audit(entry: Entry) -> Audit:
    body = entry.body
    return Audit(
        seq=entry.seq,
        method=str(body.get("method")),
        silos=str(body.get("silos", "not told")),
        lower=float(str(body.get("lower"))),
        estimate=float(str(body.get("estimate", body.get("lower")))),
        claimed=float(str(body.get("claimed"))),
    )


def event_text(event: Event) -> str:
    """An event in words."""
    match event:
        case GaussianEvent():
            text = f"Gaussian, z = {event.z:.6g}"
        case PoissonGaussianEvent():
            text = f"Gaussian, z = {event.z:.6g}, Poisson sampled with q = {event.q:.6g}"
        case SkellamEvent():
            text = f"Skellam, mu = {event.mu:.6g}"
        case _:
            text = "without noise"
    return text if event.count == 1 else f"{text}, {event.count} times"
