"""Keys that are replaced inside a ledger: both readers follow, budgets hold, forgery is found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dp.account import Account, intent_for
from dp.budget import Budget, Deny
from dp.canonical import Json
from dp.commitments import genesis_body, plan_commit_body
from dp.entries import Entry, Kind
from dp.errors import LedgerIntegrityError, PlanError
from dp.filters import Filter, FilterKind
from dp.keyring import Keyring, Rotation, accepted_message, current_key
from dp.ledger import Ed25519Signer, Ledger, LedgerKind, sign_head
from dp.ledger_testing import MemoryLedgerStore
from dp.plan import Adjacency, Mode, PrivacyPlan, Unit
from dp.verify import verify_ledger

pytest.importorskip("dp_accounting")

NOW = "2026-11-30T12:00:00Z"
RUN = "ab" * 16
PLAN = PrivacyPlan(
    unit=Unit.SILO, adjacency=Adjacency.ZERO_OUT, mode=Mode.SILO, clip=1.0, z=4.0, rounds=50,
    delta=1e-5, dimension=20, cohort_size=10, denominator=10.0, n_c=3, h_dp=4,
)  # fmt: skip
LIMIT = 1.9  # of rounds with z = 4: three are 1.70, four are 1.99


def signer(number: int, name: str = "silo-a") -> Ed25519Signer:
    """A key of this party."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    return Ed25519Signer(name=name, key=key)


FIRST, SECOND, THIRD, THIEF = (signer(number) for number in (1, 2, 3, 9))
Known = dict[str, bytes | Sequence[bytes]]


def known(*keys: Ed25519Signer) -> Known:
    """What rosters list and have listed for the silo, oldest first."""
    return {"silo-a": [one.public_key for one in keys]}


def begun(by: Ed25519Signer = FIRST) -> tuple[Ledger, Budget]:
    """A data set's ledger with a plan."""
    ledger = Ledger(MemoryLedgerStore())
    body = genesis_body(
        LedgerKind.DATA_SET, writer="silo-a", subject="heart", keys={"silo-a": by.public_key},
        policy="", software={},
    )  # fmt: skip
    append(ledger, Kind.GENESIS, body, by)
    budget = Budget(ledger, by)
    rule = Filter(kind=FilterKind.GDP, delta=1e-5)
    account = Account(
        data_set="heart", unit=Unit.SILO, adjacency=Adjacency.ZERO_OUT, filter=rule, epsilon=LIMIT
    )
    budget.set(account, time_utc=NOW)
    commit = plan_commit_body(PLAN, silos=("silo-a",), threshold=6, floor=7, manifest="")
    append(ledger, Kind.PLAN_COMMIT, commit, by)
    return ledger, budget


def append(ledger: Ledger, kind: Kind, body: dict[str, Json], *by: Ed25519Signer) -> Entry:
    """Draft, sign, append."""
    return ledger.append(ledger.draft(kind, body, time_utc=NOW).signed_by(*by))


def spend(ledger: Ledger, number: int, by: Ed25519Signer) -> Budget:
    """A charged round, by whoever writes now."""
    budget = Budget(ledger, by)
    intent = intent_for(PLAN, run_id=RUN, round_number=number, epsilon=LIMIT)
    budget.charge(intent, time_utc=NOW)
    return budget


def rotate(
    ledger: Ledger,
    old: Ed25519Signer,
    new: Ed25519Signer,
    /,
    *,
    signed_by: Ed25519Signer | None = None,
    accepted_by: Ed25519Signer | None = None,
    **changes: Any,
) -> None:
    """KEY_ROTATE; by default signed by the old key and accepted by the new one."""
    message = accepted_message(ledger.head().entry_hash, "silo-a", old.public_key, new.public_key)
    body: dict[str, Json] = {
        "name": "silo-a", "old": old.public_key.hex(), "key": new.public_key.hex(),
        "accepted": (accepted_by or new).sign(message).hex(), **changes,
    }  # fmt: skip
    append(ledger, Kind.KEY_ROTATE, {k: v for k, v in body.items() if v is not None},
           signed_by or old)  # fmt: skip


def lose(ledger: Ledger, old: Ed25519Signer, new: Ed25519Signer, /, **changes: Any) -> None:
    """KEY_ROTATE without the old key."""
    rotate(ledger, old, new, **{"signed_by": new, "accepted": None, "lost": True, **changes})


def findings(ledger: Ledger, keys: Known) -> str:
    """What the offline reader finds; the service's own reader agrees whether it is in order."""
    found = verify_ledger([one.to_line() for one in ledger.entries], keys).findings.items
    try:
        ledger.verify(keys)
    except LedgerIntegrityError:
        assert found, "the service's reader refuses what the auditor's accepts"
    else:
        assert not found, f"the auditor's reader refuses what the service's accepts: {found}"
    return " | ".join(one.text for one in found)


class TestARotation:
    def test_what_was_spent_stays_spent_and_the_limit_holds(self) -> None:
        """Two rounds, a new key, a third round; the fourth is refused; nothing is uncounted."""
        ledger, _ = begun()
        spend(ledger, 1, FIRST)
        before = spend(ledger, 2, FIRST).spent()
        rotate(ledger, FIRST, SECOND)
        after = Budget(ledger, SECOND)
        assert after.spent() == before > 1.0
        assert spend(ledger, 3, SECOND).spent() > before
        fourth = intent_for(PLAN, run_id=RUN, round_number=4, epsilon=LIMIT)
        assert isinstance(after.check(fourth, time_utc=NOW), Deny)
        assert [one.round for one in after.charges] == [1, 2, 3]
        assert current_key(ledger.entries, "silo-a") == SECOND.public_key
        for keys in (known(FIRST), known(SECOND), known(FIRST, SECOND)):
            assert findings(ledger, keys) == ""

    def test_keys_follow_one_another(self) -> None:
        """Twice; whichever of the three is known speaks for the others."""
        ledger, _ = begun()
        rotate(ledger, FIRST, SECOND)
        spend(ledger, 1, SECOND)
        rotate(ledger, SECOND, THIRD)
        spend(ledger, 2, THIRD)
        for one in (FIRST, SECOND, THIRD):
            assert findings(ledger, known(one)) == ""
        assert "vouches" in findings(ledger, known(THIEF))

    def test_after_it_the_old_key_writes_nothing(self) -> None:
        """A stolen old key charges nothing and gives nothing back."""
        ledger, _ = begun()
        rotate(ledger, FIRST, SECOND)
        spend(ledger, 1, FIRST)
        assert "bad or unknown signature" in findings(ledger, known(FIRST, SECOND))

    def test_before_it_the_new_key_wrote_nothing(self) -> None:
        """Else a new key could write a past of its own."""
        ledger, _ = begun()
        spend(ledger, 1, SECOND)
        rotate(ledger, FIRST, SECOND)
        assert "bad or unknown signature" in findings(ledger, known(FIRST, SECOND))

    def test_without_a_rotation_one_key_writes_all_of_it(self) -> None:
        """That both were listed at some time is not enough."""
        ledger, _ = begun()
        spend(ledger, 1, SECOND)
        assert "bad or unknown signature" in findings(ledger, known(FIRST, SECOND))
        whole, _ = begun(SECOND)
        spend(whole, 1, SECOND)
        assert findings(whole, known(FIRST, SECOND)) == ""

    def test_heads_that_the_old_key_signed_stay_genuine(self) -> None:
        """A peer has seen them before."""
        ledger, _ = begun()
        seen = sign_head(ledger.head(), FIRST)
        rotate(ledger, FIRST, SECOND)
        assert ledger.verify(known(SECOND), [seen]).entries == 4
        lines = [one.to_line() for one in ledger.entries]
        assert verify_ledger(lines, known(SECOND), [seen.to_bytes()]).ok

    LIES: ClassVar[dict[str, tuple[dict[str, Any], str]]] = {
        "accepted by a thief": ({"accepted_by": THIEF}, "not accepted"),
        "accepted by nobody": ({"accepted": "00" * 64}, "not accepted"),
        "accepted with rubbish": ({"accepted": "zz"}, "not accepted"),
        "not accepted": ({"accepted": None}, "not accepted"),
        "signed by a thief": ({"signed_by": THIEF}, "bad or unknown"),
        "signed by the new key": ({"signed_by": SECOND}, "bad or unknown"),
        "to no key": ({"key": "zz" * 32}, "names no party"),
        "to itself": ({"key": FIRST.public_key.hex()}, "names no party"),
        "of nobody": ({"name": 1}, "names no party"),
        "of another": ({"name": "silo-b"}, "lacks the signature"),
        "of another key": ({"old": THIRD.public_key.hex()}, "bad or unknown"),
        "lost and accepted": ({"lost": True}, "not accepted"),
    }

    @pytest.mark.parametrize("name", LIES)
    def test_a_forged_one(self, name: str) -> None:
        """By a thief of either key, by nobody, to nobody, for another."""
        lie, reason = self.LIES[name]
        ledger, _ = begun()
        rotate(ledger, FIRST, SECOND, **lie)
        assert reason in findings(ledger, known(FIRST, SECOND))

    def test_a_thief_of_the_old_key_cannot_pass_it_to_himself(self) -> None:
        """Who knows the silo's new key from the roster does not follow the thief's."""
        ledger, _ = begun()
        rotate(ledger, FIRST, THIEF)
        assert "vouches" in findings(ledger, known(SECOND))

    def test_an_acceptance_cannot_be_moved_to_another_ledger(self) -> None:
        """It names what comes before it."""
        one, _ = begun()
        other, _ = begun()
        spend(other, 1, FIRST)
        rotate(one, FIRST, SECOND)
        accepted = one.entries[-1].body["accepted"]
        rotate(other, FIRST, SECOND, accepted=accepted)
        assert "not accepted" in findings(other, known(FIRST, SECOND))

    def test_it_replaces_the_key_that_is_in_force(self) -> None:
        """Not one of before."""
        ledger, _ = begun()
        rotate(ledger, FIRST, SECOND)
        rotate(ledger, FIRST, THIRD, signed_by=SECOND)
        assert "another key there" in findings(ledger, known(FIRST, SECOND, THIRD))


class TestALostKey:
    def test_signed_rosters_vouch_for_both(self) -> None:
        """The reader knows both keys by itself; one is not enough."""
        ledger, _ = begun()
        before = spend(ledger, 1, FIRST).spent()
        lose(ledger, FIRST, SECOND)
        assert spend(ledger, 2, SECOND).spent() > before
        assert findings(ledger, known(FIRST, SECOND)) == ""
        assert "vouches" in findings(ledger, known(FIRST))
        assert "vouches" in findings(ledger, known(SECOND))

    LIES: ClassVar[dict[str, dict[str, Any]]] = {
        "signed by a thief": {"signed_by": THIEF},
        "signed by the old key": {"signed_by": FIRST},
        "said not to be lost": {"lost": False},
        "not said to be lost": {"lost": None},
        "lost and accepted": {"accepted": "00" * 64},
        "another old key": {"old": THIEF.public_key.hex()},
        "to a thief": {"key": THIEF.public_key.hex(), "signed_by": THIEF},
    }

    @pytest.mark.parametrize("name", LIES)
    def test_a_forged_one(self, name: str) -> None:
        """Whoever finds that a key is lost does not choose the next one."""
        ledger, _ = begun()
        lose(ledger, FIRST, SECOND, **self.LIES[name])
        assert findings(ledger, known(FIRST, SECOND))

    def test_keys_that_accepted_one_another_need_one_known_on_each_side(self) -> None:
        """Rotated, lost, rotated again."""
        ledger, _ = begun()
        rotate(ledger, FIRST, SECOND)
        lose(ledger, SECOND, THIRD)
        rotate(ledger, THIRD, THIEF)
        for good in ((FIRST, THIRD), (SECOND, THIEF), (FIRST, THIEF)):
            assert findings(ledger, known(*good)) == ""
        for bad in ((FIRST, SECOND), (THIRD, THIEF)):
            assert "vouches" in findings(ledger, known(*bad))

    def test_the_successor_is_in_a_later_roster(self) -> None:
        """A retired key that a thief holds does not say that the present one is lost."""
        ledger, _ = begun(SECOND)
        lose(ledger, SECOND, FIRST)
        retired_first: Known = {"silo-a": [FIRST.public_key, SECOND.public_key]}
        assert "older key" in findings(ledger, retired_first)
        retired_last: Known = {"silo-a": (SECOND.public_key, FIRST.public_key)}
        assert findings(ledger, retired_last) == ""

    def test_a_replaced_key_comes_back_by_no_entry(self) -> None:
        """A was stolen, the silo went on with B; the thief of A cannot say that B is lost."""
        ledger, _ = begun()
        rotate(ledger, FIRST, SECOND)
        lose(ledger, SECOND, FIRST)
        account = Budget(ledger, FIRST).account
        append(ledger, Kind.BUDGET_SET, replace(account, epsilon=1000.0).to_body(), FIRST)
        listed: Known = {"silo-a": [FIRST.public_key, SECOND.public_key]}
        for keys in (known(FIRST, SECOND), listed):
            assert "goes back to a key" in findings(ledger, keys)
        willing, _ = begun()
        rotate(willing, FIRST, SECOND)
        rotate(willing, SECOND, THIRD)
        rotate(willing, THIRD, FIRST)
        assert "goes back to a key" in findings(willing, known(FIRST, SECOND, THIRD))


def test_in_a_run_s_ledger_the_writer_signs_it_too() -> None:
    """A silo's new key is the coordinator's entry with the silo's old signature."""
    hub = signer(20, "coordinator")
    ledger = Ledger(MemoryLedgerStore())
    body = genesis_body(
        LedgerKind.RUN, writer="coordinator", subject=RUN, keys={}, policy="", software={}
    )
    append(ledger, Kind.GENESIS, body, hub)
    with_hub: Known = {**known(FIRST, SECOND), "coordinator": hub.public_key}
    rotate(ledger, FIRST, SECOND)
    assert "lacks signatures" in findings(ledger, with_hub)
    entry = ledger.entries[-1]
    alone = Ledger(MemoryLedgerStore([ledger.entries[0].to_line()]))
    alone.append(replace(entry, sigs=()).signed_by(hub))
    assert "lacks the signature of 'silo-a'" in findings(alone, with_hub)
    whole = Ledger(MemoryLedgerStore([ledger.entries[0].to_line()]))
    whole.append(entry.signed_by(hub))
    assert findings(whole, with_hub) == ""


def test_a_ring_knows_every_key() -> None:
    """Known ones and those that the ledger adds; the key in force as the ledger says it."""
    ledger, _ = begun()
    rotate(ledger, FIRST, SECOND)
    ring = Keyring(ledger.entries, known(SECOND, THIEF)).ring
    assert ring["silo-a"] == {one.public_key for one in (FIRST, SECOND, THIEF)}
    assert current_key(ledger.entries[:1], "silo-b") is None
    assert current_key([], "silo-a") is None
    with pytest.raises(LedgerIntegrityError, match="lost"):
        Rotation.of(replace(ledger.entries[-1], body={**ledger.entries[-1].body, "lost": True}))
    with pytest.raises(PlanError):
        append(ledger, Kind.KEY_ROTATE, {"name": 1.5}, FIRST)  # type: ignore[dict-item] # no JSON of a ledger
