"""The driver of a run's privacy ledger: charges before rounds, signatures before sums.

PLAN_COMMIT is signed by every silo before the first round, ROUND_INTENT is written before a round
is opened, ROUND_RELEASE is signed by a threshold of the survivors before the sum can be read. Each
notice brings the silos the lines they lack and the heads that the others have signed; each answer a
signed head. Every wait has a bound.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from dp.charges import Charge, ChargeState, Proof
from dp.entries import Entry, Signature
from dp.errors import BudgetExceededError, LedgerIntegrityError, PlanError, PrivacyError
from dp.ledger import SignedHead, check_heads, find_equivocation
from dp.mechanisms import split_padding
from dp.plan import PrivacyPlan, share_noise_std
from fl.errors import BudgetExhaustedError
from secagg.effects import Aggregate
from secagg.ids import RunId
from secagg.messages import Abandon
from secagg.parameters import RoundParameters
from secagg.roster import Roster
from services.clock import monotonic
from services.coordinator.mailbox import Mailbox
from services.errors import InvalidRequestError
from services.files import write_atomic
from services.ledger.messages import NOTICE_BYTES, LedgerAnswer, LedgerNotice
from services.ledger.parties import Party, public_keys, stamp
from services.ledger.proofs import gather, is_promise, smallest_cohort
from services.ledger.run_book import RunBook, ledger_path, run_account
from services.observe.logs import Logger
from services.release import software_versions
from services.wire.calls import ProtocolEnvelope

LEDGERS: Final = "ledgers"
# How long the promises of an attempt that failed are awaited beyond those that a retry needs.
_PROMISES_S: Final = 2.0
_GLANCE_S: Final = 0.1
# A variance so far from what the shares should give comes by chance once in a million rounds.
_ALARM: Final = 1e-6


class BudgetSpentError(Exception):
    """The run's or a silo's budget does not allow another release; the run is over."""


class LedgerUnsignedError(Exception):
    """Signatures are missing that an entry needs; names who has not signed, and why."""


def heads_path(folder: Path, run: RunId) -> Path:
    """Where the silos' signed heads lie, one a line, for `dp.verify --heads`."""
    return ledger_path(folder, run).with_suffix(".heads.jsonl")


@dataclass(slots=True, kw_only=True)
class RunLedger:
    """One run's ledger and what the silos have said about it.

    Attributes:
        run: whose.
        name: the run's, for people.
        plan: the run's privacy plan.
        folder: where ledgers lie.
        writer: signs as the coordinator.
        roster: in force.
        mailbox: of a seat.
        now: the wall clock.
        epsilon: the run's limit, None for the plan's own.
    """

    run: RunId
    name: str
    plan: PrivacyPlan
    folder: Path
    writer: Party
    roster: Roster
    mailbox: Callable[[int], Mailbox]
    now: Callable[[], datetime]
    log: Logger
    epsilon: float | None = None
    _book: RunBook | None = None
    _known: dict[int, int] = field(default_factory=dict)
    _heads: dict[int, SignedHead] = field(default_factory=dict)
    _signatures: dict[str, dict[int, Signature]] = field(default_factory=dict)
    _refusals: dict[int, tuple[str, str]] = field(default_factory=dict)
    _lost_lines: set[int] = field(default_factory=set)
    _is_given_up: bool = False
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spent(self) -> float | None:
        """Epsilon so far; None before the plan is signed."""
        return None if self._book is None else self._book.spent

    # --- what the run's driver calls ----------------------------------------------------------

    async def commit(
        self, seats: Sequence[int], parameters: RoundParameters, *, wait_s: float
    ) -> None:
        """Have every silo sign the plan, unless the ledger holds it already.

        Args:
            seats: who takes part in the run.
            parameters: of the first round.
            wait_s: for the signatures.

        Raises:
            BudgetSpentError: a silo's budget does not allow one round of the plan.
            LedgerUnsignedError: a silo has not signed.
            LedgerIntegrityError: the file was changed.
        """
        book = await asyncio.to_thread(self._begin)
        if book.is_committed:
            return
        draft = await asyncio.to_thread(self._plan_draft, book, seats, parameters)
        await self._sign(draft, seats, least=len(seats), wait_s=wait_s, where=(1, 0))

    def _plan_draft(
        self, book: RunBook, seats: Sequence[int], parameters: RoundParameters
    ) -> Entry:
        """The draft of PLAN_COMMIT, the same after a restart: a silo signs one for a run."""
        least = smallest_cohort(parameters)
        draft = book.draft_plan(
            silos=[self._silo(seat) for seat in seats],
            threshold=parameters.threshold(least),
            floor=parameters.floor(least),
            n_c=parameters.n_c,
            manifest=parameters.spec.encode(),
            time_utc=self._stamp(),
        )
        path = ledger_path(self.folder, self.run).with_suffix(".draft")
        if path.exists():
            asked = Entry.from_line(path.read_bytes())
            if replace(asked, time_utc=draft.time_utc).entry_hash == draft.entry_hash:
                return asked
        write_atomic(path, draft.to_line())
        return draft

    async def charge(self, parameters: RoundParameters, seats: Sequence[int]) -> None:
        """Charge an attempt and tell its cohort, before it is opened.

        Raises:
            BudgetSpentError: the run's budget is spent.
        """
        book = await asyncio.to_thread(self._begin)
        number, attempt = parameters.round, parameters.attempt
        try:
            await asyncio.to_thread(
                book.charge, number, attempt, purpose=parameters.kind, time_utc=self._stamp()
            )
        except BudgetExceededError as error:
            raise BudgetSpentError(f"the run's own budget: {error}") from error
        self.log.info("charged", round=number, attempt=attempt, spent=book.spent)
        for seat in seats:
            self._notify(seat, (number, attempt))

    async def release(
        self, parameters: RoundParameters, survivors: Sequence[int], *, wait_s: float
    ) -> None:
        """Settle an attempt's charge with the survivors' signatures, before its sum is read.

        Raises:
            LedgerUnsignedError: fewer than the threshold have signed; the charge stays.
        """
        book = await asyncio.to_thread(self._begin)
        where = (parameters.round, parameters.attempt)
        charge = book.charge_of(*where)
        if charge is None:
            raise LedgerUnsignedError(f"round {where[0]}, attempt {where[1]} was never charged")
        if charge.state is ChargeState.SETTLED:
            return  # before a restart; the sum was told then, or is told now for the first time
        least = parameters.threshold(len(survivors))
        draft = await asyncio.to_thread(
            book.draft_release,
            charge,
            survivors=[self._silo(seat) for seat in survivors],
            threshold=least,
            transcript=parameters.ctx(),
            time_utc=self._stamp(),
        )
        await self._sign(draft, survivors, least=least, wait_s=wait_s, where=where)

    async def fail(
        self,
        parameters: RoundParameters,
        abandons: Callable[[], Collection[Abandon]],
        reason: str,
    ) -> None:
        """Note that an attempt gave no sum; its charge comes back if enough silos abandoned it.

        A promise more than the protocol needs may still be on its way; the wait has a bound.
        """
        book = await asyncio.to_thread(self._begin)
        charge, committed = book.charge_of(parameters.round, parameters.attempt), book.committed
        if charge is None or committed is None:
            return
        proof = await self._promises(book, charge, parameters, abandons)
        checker = partial(is_promise, committed=committed, roster=self.roster)
        await asyncio.to_thread(
            book.end, charge, reason=reason, proof=proof, checker=checker, time_utc=self._stamp()
        )

    async def _promises(
        self,
        book: RunBook,
        charge: Charge,
        parameters: RoundParameters,
        abandons: Callable[[], Collection[Abandon]],
    ) -> Proof | None:
        """Wait for the promises that give a charge back, if there are any at all."""
        try:
            quorum = book.quorum(charge)
        except PlanError:
            return None  # an early ledger's: it stays spent
        attempt, give_up = parameters.attempt_id, monotonic() + _PROMISES_S
        while (proof := gather(tuple(abandons()), attempt, self.roster, quorum)) is None:
            if not abandons() or monotonic() > give_up:
                break
            await asyncio.sleep(_GLANCE_S)
        return proof

    def committed_n_c(self) -> int:
        """The n_c that the plan was committed with; 0 before that. Reads the ledger's file."""
        book = self._book or RunBook(self.folder, self.run, self.writer, self.plan)
        n_c = book.committed.body.get("n_c") if book.committed is not None else None
        return n_c if isinstance(n_c, int) else 0

    def give_up(self) -> None:
        """Await no more signatures: the run is stopped."""
        self._is_given_up = True
        self._came.set()

    def share(self, seats: Sequence[int]) -> None:
        """Bring silos the lines that they lack, such as the last release.

        Raises:
            PrivacyError: the ledger cannot be read.
        """
        self._begin()
        for seat in seats:
            self._notify(seat, (0, 0))

    def padding(self, aggregate: Aggregate) -> dict[str, float]:
        """How much noise the opened padding holds, beside what the survivors' shares should give.

        It finds faults, not malice (privacy.md 6.3); empty where the mode has no padding.
        """
        if not self.plan.padding:
            return {}
        from dp.audit import padding_test

        expected = math.sqrt(len(aggregate.survivors)) * share_noise_std(self.plan)
        (total,) = aggregate.values.values()
        _, padding = split_padding(total, self.plan)
        ratio, p = padding_test(padding, expected)
        if p < _ALARM:
            self.log.error("noise-alarm", ratio=ratio, p=p, round=aggregate.parameters.round)
        return {"noise_ratio": ratio, "noise_p": p}

    # --- what silos say -----------------------------------------------------------------------

    def receive(self, seat: int, answer: LedgerAnswer) -> None:
        """Take a silo's answer.

        Raises:
            InvalidRequestError: it signs as somebody else, or its head contradicts the ledger.
        """
        book, silo = self._book, self._silo(seat)
        if book is None:
            return  # of an earlier process's question
        if answer.code:
            self._refusals[seat] = (answer.code, answer.reason)
            self.log.warning("ledger-refused", silo=silo, code=answer.code, reason=answer.reason)
        if answer.head:
            self._take_head(seat, silo, answer.head)
        if answer.lines < self._known.get(seat, 0):
            self._lost_lines.add(seat)  # it lost its copy and needs the ledger from its start
        self._known[seat] = answer.lines
        signed = self._signatures.get(answer.entry_hash)
        if signed is not None and answer.signature:  # else of no draft that was sent
            signed[seat] = Signature(signer=silo, sig=answer.signature.hex())
            self._refusals.pop(seat, None)
        self._came.set()

    def _take_head(self, seat: int, silo: str, data: bytes) -> None:
        """Keep a silo's newest head.

        Raises:
            InvalidRequestError: it is not this silo's, or no head of this ledger.
        """
        assert self._book is not None  # the caller has looked
        try:
            head = SignedHead.from_bytes(data)
            if head.signature.signer != silo:
                raise LedgerIntegrityError(head.head.seq, f"expected a head signed by {silo!r}")
            keys = {name: {key} for name, key in public_keys(self.roster).items()}
            check_heads(self._book.ledger.entries, keys, [head])
            find_equivocation([*self._heads.values(), head])
        except PrivacyError as error:
            self.log.warning("ledger-head", silo=silo, reason=str(error))
            raise InvalidRequestError(f"silo {silo}: {error}") from error
        self._heads[seat] = head
        lines = [one.to_bytes() for _, one in sorted(self._heads.items())]
        write_atomic(heads_path(self.folder, self.run), b"\n".join(lines) + b"\n")

    # --- helpers ------------------------------------------------------------------------------

    def _begin(self) -> RunBook:
        if self._book is None:
            book = RunBook(self.folder, self.run, self.writer, self.plan)
            book.begin(
                keys=public_keys(self.roster),
                account=run_account(self.plan, self.name, self.epsilon),
                software=software_versions(),
                policy=self.roster.digest().hex(),
                time_utc=self._stamp(),
            )
            self._book = book
        return self._book

    async def _sign(
        self,
        draft: Entry,
        seats: Sequence[int],
        *,
        least: int,
        wait_s: float,
        where: tuple[int, int],
    ) -> None:
        """Collect signatures of a draft and append it."""
        book = await asyncio.to_thread(self._begin)
        self._refusals.clear()
        self._lost_lines.clear()
        signed = self._signatures.setdefault(draft.entry_hash, {})
        for seat in seats:
            self._notify(seat, where, draft)
        give_up = monotonic() + wait_s
        retried: set[int] = set()
        while len(signed) < least:
            left = give_up - monotonic()
            willing = len(seats) - len(self._refusals.keys() & set(seats))
            if left <= 0 or willing < least or self._is_given_up:
                break
            self._came.clear()
            try:
                async with asyncio.timeout(left):
                    await self._came.wait()
            except TimeoutError:
                continue
            for seat in self._lost_lines - retried:
                retried.add(seat)
                self._refusals.pop(seat, None)
                self._notify(seat, where, draft)
        if len(signed) < least:
            raise self._unsigned(draft, seats, signed.keys())
        await asyncio.to_thread(book.append, draft, list(signed.values()), public_keys(self.roster))
        del self._signatures[draft.entry_hash]

    def _notify(self, seat: int, where: tuple[int, int], draft: Entry | None = None) -> None:
        """Post the lines that a silo lacks, in pieces, with the draft in the last one."""
        assert self._book is not None  # `_begin` was called
        lines = self._book.lines(self._known.get(seat, 0))
        first = self._known.get(seat, 0)
        pieces = _pieces(lines)
        for place, piece in enumerate(pieces):
            is_last = place == len(pieces) - 1
            notice = LedgerNotice(
                run=self.run,
                first=first,
                lines=tuple(piece),
                heads=tuple(one.to_bytes() for one in self._heads.values()) if is_last else (),
                draft=draft.to_line() if is_last and draft is not None else b"",
            )
            first += len(piece)
            envelope = ProtocolEnvelope(
                run=self.run, round=where[0], attempt=where[1], message=notice.encode()
            )
            self.mailbox(seat).post(envelope)
        self._known[seat] = first

    def _unsigned(
        self, draft: Entry, seats: Sequence[int], signed: Collection[int]
    ) -> BudgetSpentError | LedgerUnsignedError:
        """Say who has not signed, and why."""
        told = []
        for seat in sorted(set(seats) - set(signed)):
            code, reason = self._refusals.get(seat, ("", "no answer"))
            told.append(f"{self._silo(seat)}: {reason}")
            if code == BudgetExhaustedError.__name__:
                return BudgetSpentError(f"{self._silo(seat)}: {reason}")
        return LedgerUnsignedError(f"{draft.kind} lacks signatures: {'; '.join(told)}")

    def _silo(self, seat: int) -> str:
        return self.roster.seat(seat).silo.name

    def _stamp(self) -> str:
        return stamp(self.now())


def _pieces(lines: Sequence[bytes]) -> list[list[bytes]]:
    """The lines in pieces that fit a notice; one piece at least."""
    pieces: list[list[bytes]] = [[]]
    size = 0
    for line in lines:
        if size + len(line) > NOTICE_BYTES and pieces[-1]:
            pieces.append([])
            size = 0
        pieces[-1].append(line)
        size += len(line)
    return pieces
