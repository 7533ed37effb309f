"""What an auditor is shown for charges that came back: every proof that proves nothing is found."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from dp.charges import Proof
from dp.events import GaussianEvent
from dp.filters import Filter, FilterKind
from dp.ledger import Ledger
from dp.recount import read_event
from dp.verify import verify_ledger
from tests.dp.signed_ledger import (
    BUDGET,
    COMMIT,
    DEAD,
    KEYS,
    LEDGER,
    RETURN,
    SIGNERS,
    SILOS,
    STEPS,
    Steps,
    abandon,
    chained,
    proof,
)

pytest.importorskip("dp_accounting")


class TestReturnedCharges:
    """What came back is counted with what all silos signed, never with the proof's own claims."""

    def texts(self, steps: Steps) -> str:
        """What is found."""
        found = verify_ledger(chained(steps), KEYS).findings.items
        return " | ".join(one.text for one in found)

    def returned(self, statements: Proof, **claims: Any) -> Steps:
        """The ledger with this proof for its dead attempt."""
        steps = copy.deepcopy(STEPS)
        steps[RETURN]["body"]["proof"] = json.loads(json.dumps({**statements.to_json(), **claims}))
        return steps

    @pytest.mark.parametrize(("signers", "good"), [(10, True), (8, True), (7, False), (1, False)])
    def test_the_promises_are_counted_against_the_committed_plan(
        self, signers: int, good: bool
    ) -> None:
        """Ten silos, n_c = 3, t = 6: of ten, 8 must promise; 7 leave 3 + 3 who could open."""
        found = self.texts(self.returned(proof(signers=signers)))
        assert (found == "") is good, found
        assert good or f"{signers} genuine promises, expected 8 of 10 silos" in found

    @pytest.mark.parametrize("members", [1, 2, 5, 7])
    def test_invented_members_prove_nothing(self, members: int) -> None:
        """The attack: a proof that names its own cohort and quorum, all genuinely signed."""
        lie = {"members": list(SILOS[:members]), "threshold": members // 2 + 1}
        found = self.texts(self.returned(proof(signers=members), **lie))
        assert "expected 8 of 10 silos" in found

    def test_strangers_and_repeated_silos_prove_nothing(self) -> None:
        """The coordinator and names outside the plan do not count, nor does a silo twice."""
        steps = self.returned(proof(signers=7))
        statements = steps[RETURN]["body"]["proof"]["statements"]
        message = abandon(3, 0, 0)
        for stranger in ("coordinator", "stranger"):
            signature = SIGNERS["coordinator"].sign(message).hex()
            statements.append(
                {"signer": stranger, "message": message.hex(), "signature": signature}
            )
        statements.append(statements[0])
        assert "7 genuine promises" in self.texts(steps)

    @pytest.mark.parametrize(
        "where", [{"charge_round": 4}, {"attempt": 1}, {"run": "cd" * 16}], ids=str
    )
    def test_promises_of_another_attempt_or_run_prove_nothing(self, where: dict[str, Any]) -> None:
        """Genuine ones, of all ten silos."""
        assert "0 genuine promises" in self.texts(self.returned(proof(signers=10, **where)))

    def test_n_c_colluders_beside_too_few_honest_silos_prove_nothing(self) -> None:
        """Three colluders promise and lie: with five honest ones it holds, with four it does not.

        Five honest silos then have not promised, and with the three liars eight could open it.
        """
        for honest, good in ((5, True), (4, False)):
            assert (self.texts(self.returned(proof(signers=3 + honest))) == "") is good

    def test_a_commitment_to_fewer_silos_is_not_the_run_s(self) -> None:
        """Colluders cannot commit among themselves: the release needs the floor of its silos."""
        steps = self.returned(proof(signers=7))
        steps[COMMIT]["body"]["silos"] = list(SILOS[:7])
        steps[COMMIT]["signers"] = ["coordinator", *SILOS[:7]]
        assert "expected at least 7 survivors" in self.texts(steps)

    def data_set(self, *, signed: bool = True, lines_from: Ledger = LEDGER) -> Steps:
        """A data set's ledger with the same dead attempt, as a silo writes it."""
        run_commit = lines_from.entries[COMMIT]
        steps = [copy.deepcopy(STEPS[place]) for place in (0, BUDGET, COMMIT, DEAD, RETURN)]
        steps[0]["body"].update(ledger="data_set", writer="silo-a")
        for step in steps:
            step["signers"] = ["silo-a"]
        body = steps[2]["body"]
        body["refers"] = run_commit.entry_hash
        if signed:
            body["signed"] = run_commit.to_line().decode()
        event = read_event(steps[3]["body"]["booked"])
        account_ = steps[1]["body"]
        rule = Filter(kind=FilterKind.GDP, delta=float(account_["delta"]))
        after = rule.epsilon([GaussianEvent(z=event.z, delta_impl=event.delta_impl)])
        steps[3]["body"].update(eps_before="0", eps_after=f"{after:.12f}")
        steps[4]["body"]["intent"] = "@3"
        return steps

    def test_a_data_set_s_ledger_carries_what_all_signed(self) -> None:
        """Then its returned charges verify, too; without it, nothing shows the quorum."""
        assert self.texts(self.data_set()) == ""
        assert "no commitment of its run" in self.texts(self.data_set(signed=False))

    def test_each_run_of_a_plan_has_its_own_commitment(self) -> None:
        """Two runs of one plan in one data set's ledger: each is judged by its own."""
        steps = self.data_set()
        other = copy.deepcopy(steps[2])
        other["run_id"], other["body"]["silos"] = "cd" * 16, list(SILOS[:7])
        steps.insert(2, other)
        steps[5]["body"]["intent"] = "@4"
        assert self.texts(steps) == ""
        for place in (4, 5):
            steps[place]["run_id"] = "cd" * 16
        assert "no commitment of its run" in self.texts(steps)

    @pytest.mark.parametrize("lie", ["silos", "n_c", "run", "forged"])
    def test_a_silo_cannot_commit_alone(self, lie: str) -> None:
        """A body beside the signed one, another run's commitment, or signatures of its own."""
        steps = self.data_set()
        body = steps[2]["body"]
        match lie:
            case "silos":
                body["silos"] = list(SILOS[:5])
            case "n_c":
                body["n_c"] = 0
            case "run":
                steps[2]["run_id"] = "cd" * 16
            case _:
                mine = replace(LEDGER.entries[COMMIT], sigs=())
                forged = [replace(SIGNERS["silo-a"], name=name) for name in SILOS]
                body["signed"] = mine.signed_by(*forged).to_line().decode()
        assert "no commitment of its run" in self.texts(steps)
