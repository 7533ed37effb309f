"""The parties of a run under a privacy plan and their ledgers, without a network."""

from dataclasses import replace
from pathlib import Path

from dp.entries import Entry, Signature
from dp.plan import PrivacyPlan
from secagg.ids import RunId
from services.config import DataSetBudget
from services.ledger.messages import LedgerNotice
from services.ledger.parties import COORDINATOR, Party, public_keys
from services.ledger.run_book import RunBook, run_account
from services.silo.ledger import SiloLedgers
from tests.services.private_run import NOW, PrivateRun, budget

SILOS = 5
SHARED = PrivateRun(silos=SILOS, seed=3, rounds=4)
FEDERATION, ROSTER, PLAN, TRAINING = SHARED.federation, SHARED.roster, SHARED.plan, SHARED.training
round_parameters = SHARED.parameters


def silo(folder: Path, seat: int = 1, settings: DataSetBudget | None = None) -> SiloLedgers:
    """A silo's ledgers; another call is another process on the same folder."""
    return SHARED.silo(folder, seat, settings or budget())


class Coordinator:
    """The run's ledger with everybody's signatures, without a network."""

    def __init__(self, folder: Path, plan: PrivacyPlan = PLAN, run: RunId | None = None) -> None:
        self.parameters = round_parameters()
        if run is not None:
            self.parameters = replace(self.parameters, run=run)
        self.names = [seat.silo.name for seat in ROSTER.seats]
        self.terms = {"n_c": 1, "threshold": 3, "floor": 3}
        self.book = RunBook(
            folder, self.parameters.run, Party(COORDINATOR, FEDERATION.coordinator), plan
        )
        self.book.begin(
            keys=public_keys(ROSTER),
            account=run_account(plan, "a run"),
            software={},
            policy="",
            time_utc=NOW,
        )

    def draft_plan(self) -> Entry:
        return self.book.draft_plan(
            silos=self.names,
            **self.terms,
            manifest=b"manifest",
            time_utc=NOW,
        )

    def notice(
        self, *, first: int = 0, draft: Entry | None = None, heads: tuple[bytes, ...] = ()
    ) -> LedgerNotice:
        return LedgerNotice(
            run=self.parameters.run,
            first=first,
            lines=tuple(self.book.lines(first)),
            heads=heads,
            draft=b"" if draft is None else draft.to_line(),
        )

    def commit(self, *silos: SiloLedgers) -> None:
        """All sign the plan; whoever is not here signs blindly."""
        draft = self.draft_plan()
        known = {one.party.name: one for one in silos}
        signatures = []
        for seat in ROSTER.seats:
            name = seat.silo.name
            if name not in self.names:
                continue
            if name in known:
                answer = known[name].receive(self.notice(draft=draft))
                assert answer.entry_hash == draft.entry_hash, answer.reason
                signatures.append(Signature(signer=name, sig=answer.signature.hex()))
            else:
                party = Party(name, FEDERATION.identities[seat.index])
                signatures += [one for one in draft.signed_by(party).sigs if one.signer == name]
        self.book.append(draft, signatures, public_keys(ROSTER))

    def charge(self, number: int, attempt: int, *silos: SiloLedgers) -> None:
        self.book.charge(number, attempt, time_utc=NOW)
        for one in silos:
            assert not one.receive(self.notice()).code
