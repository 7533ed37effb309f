"""The ledger: entries, the chain, signatures, heads; whoever edits, cuts or forks it is found."""

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from dp.entries import GENESIS_HASH, MAX_LINE_BYTES, Entry, Kind, Signature, check_signatures
from dp.errors import EquivocationError, LedgerConflictError, LedgerIntegrityError, PlanError
from dp.keyring import accepted_message
from dp.ledger import (
    Ed25519Signer,
    Head,
    Ledger,
    LedgerStore,
    SignedHead,
    find_equivocation,
    prove_equivocation,
    sign_head,
    verify_entries,
)
from dp.ledger_testing import LedgerStoreContract, MemoryLedgerStore

NOW = "2026-11-30T12:00:00Z"
NAMES = ("coordinator", "silo-a", "silo-b", "silo-c")
SIGNERS = {
    name: Ed25519Signer(
        name=name, key=Ed25519PrivateKey.from_private_bytes(bytes([place + 1] * 32))
    )
    for place, name in enumerate(NAMES)
}
KEYS = {name: signer.public_key for name, signer in SIGNERS.items()}
WRITER = SIGNERS["coordinator"]


def add(ledger: Ledger, kind: Kind, body: dict[str, Any], *signers: str, run_id: str = "") -> Entry:
    """Draft, sign and append."""
    entry = ledger.draft(kind, body, time_utc=NOW, run_id=run_id)
    return ledger.append(entry.signed_by(*(SIGNERS[name] for name in signers or NAMES[:1])))


def run_ledger() -> tuple[Ledger, MemoryLedgerStore]:
    """Every kind of entry that has a rule of its own about who signs."""
    store = MemoryLedgerStore()
    ledger = Ledger(store)
    silos = list(NAMES[1:])
    add(ledger, Kind.GENESIS, {"ledger": "run", "writer": "coordinator"})
    add(ledger, Kind.PLAN_COMMIT, {"silos": silos}, *NAMES)
    intent = add(ledger, Kind.ROUND_INTENT, {"round": 1}, run_id="aa")
    body = {"intent": intent.entry_hash, "survivors": silos[:2], "threshold": 2}
    add(ledger, Kind.ROUND_RELEASE, body, *silos[:2], run_id="aa")
    add(ledger, Kind.AUDIT_RESULT, {"text": "ünïcode"})
    return ledger, store


class TestEntry:
    def test_an_entry_comes_back_from_its_line(self) -> None:
        """Line, entry, line."""
        for line in run_ledger()[1].lines:
            assert Entry.from_line(line).to_line() == line

    @pytest.mark.parametrize(
        "change",
        [
            {"seq": -1}, {"seq": True}, {"prev_hash": "AB"}, {"run_id": "run 1"}, {"run_id": 1},
            {"time_utc": "yesterday"}, {"time_utc": 1}, {"body": []}, {"body": {"eps": 1.5}},
            {"prev_hash": None},
        ],
        ids=str,
    )  # fmt: skip
    def test_impossible_entries_are_refused(self, change: dict[str, Any]) -> None:
        """Each field has its form; bodies have no floats."""
        entry = run_ledger()[0].entries[0]
        with pytest.raises(PlanError):
            replace(entry, **change)

    @pytest.mark.parametrize(
        "change",
        [
            {"kind": "NOTE"}, {"extra": 1}, {"sigs": {}}, {"sigs": ["x"]}, {"entry_hash": "0" * 64},
            {"sigs": [{"signer": "", "sig": "0" * 128}]},
            {"sigs": [{"signer": "a", "sig": "00"}]},
            {"sigs": [{"signer": "a"}]},
            {"sigs": [{"signer": "b", "sig": "0" * 128}, {"signer": "a", "sig": "0" * 128}]},
            {"kind": ["GENESIS"]},
        ],
        ids=str,
    )  # fmt: skip
    def test_lines_that_are_no_entries_are_refused(self, change: dict[str, Any]) -> None:
        """Unknown kinds and fields, signatures of another form, a hash of something else."""
        body = {**json.loads(run_ledger()[1].lines[0]), **change}
        line = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(PlanError):
            Entry.from_line(line)

    def test_other_lines_are_refused(self) -> None:
        """Too long, and no object."""
        for line in (b" " * (MAX_LINE_BYTES + 1), b"[]", b""):
            with pytest.raises(PlanError):
                Entry.from_line(line)

    def test_parties_sign_one_after_the_other(self) -> None:
        """The hash leaves signatures out; a second signature of one party replaces the first."""
        entry = run_ledger()[0].entries[2]
        both = entry.signed_by(SIGNERS["silo-b"]).signed_by(SIGNERS["silo-a"])
        assert both.entry_hash == entry.entry_hash
        assert check_signatures(both, KEYS) == {"coordinator", "silo-a", "silo-b"}
        assert both.signed_by(SIGNERS["silo-a"]) == both

    def test_signers_never_show_their_key(self) -> None:
        """No secret in a repr."""
        assert repr(WRITER) == "Ed25519Signer(name='coordinator')"


class TestChain:
    def test_an_empty_ledger_has_a_head_of_zeros(self) -> None:
        """Nothing is before the first entry."""
        head = Ledger(MemoryLedgerStore()).head()
        assert head == Head(ledger=GENESIS_HASH, seq=-1, entry_hash=GENESIS_HASH)

    def test_a_whole_ledger_verifies(self) -> None:
        """Chain, signatures, who must sign."""
        ledger, store = run_ledger()
        report = Ledger(store).verify(KEYS)
        assert report.entries == 5
        assert report.head == ledger.head()
        assert report.writer == "coordinator"

    def test_a_reader_follows_a_writer(self) -> None:
        """What one appended the other finds on refresh."""
        ledger, store = run_ledger()
        reader = Ledger(store)
        added = add(ledger, Kind.CORRECTION, {})
        assert list(reader.refresh()) == [added]
        assert reader.refresh() == []
        assert reader.entries == ledger.entries

    def test_an_entry_drafted_for_an_old_head_conflicts(self) -> None:
        """Compare and append, in the ledger and in the store."""
        ledger, store = run_ledger()
        late = ledger.draft(Kind.CORRECTION, {}, time_utc=NOW).signed_by(WRITER)
        other = Ledger(store)
        add(other, Kind.CORRECTION, {})
        with pytest.raises(LedgerConflictError):
            ledger.append(late)
        ledger.refresh()
        with pytest.raises(LedgerConflictError, match="not after the head"):
            ledger.append(late)

    def test_an_unsigned_entry_is_not_appended(self) -> None:
        """Every line has an author."""
        ledger, _ = run_ledger()
        with pytest.raises(LedgerIntegrityError, match="signature"):
            ledger.append(ledger.draft(Kind.CORRECTION, {}, time_utc=NOW))

    def test_a_closed_ledger_ends(self) -> None:
        """Nothing is appended after CLOSE, and what somebody put there is found."""
        ledger, store = run_ledger()
        add(ledger, Kind.CLOSE, {})
        with pytest.raises(LedgerIntegrityError, match="is closed"):
            add(ledger, Kind.CORRECTION, {})
        after = ledger.draft(Kind.CORRECTION, {}, time_utc=NOW).signed_by(WRITER)
        store.append(after.to_line(), expected_lines=6)
        with pytest.raises(LedgerIntegrityError, match="goes on"):
            ledger.verify(KEYS)

    @settings(max_examples=300)
    @given(st.data())
    def test_a_flipped_byte_anywhere_is_found(self, data: st.DataObject) -> None:
        """Any bit of any byte of any line."""
        lines = list(LINES)
        place = data.draw(st.integers(0, len(lines) - 1))
        at = data.draw(st.integers(0, len(lines[place]) - 1))
        bit = data.draw(st.integers(0, 7))
        damaged = bytearray(lines[place])
        damaged[at] ^= 1 << bit
        lines[place] = bytes(damaged)
        with pytest.raises(LedgerIntegrityError):
            Ledger(MemoryLedgerStore(lines)).verify(KEYS)

    @pytest.mark.parametrize("change", ["drop", "swap", "repeat"])
    def test_lines_moved_are_found(self, change: str) -> None:
        """A line left out, exchanged or repeated breaks the chain."""
        lines = list(LINES)
        if change == "drop":
            del lines[2]
        elif change == "swap":
            lines[2], lines[3] = lines[3], lines[2]
        else:
            lines.insert(2, lines[2])
        with pytest.raises(LedgerIntegrityError):
            Ledger(MemoryLedgerStore(lines))

    def test_a_rewritten_history_lacks_signatures(self) -> None:
        """Who chains anew without the keys is found."""
        ledger = Ledger(MemoryLedgerStore())
        thief = Ed25519Signer(name="coordinator", key=Ed25519PrivateKey.generate())
        body = {"ledger": "run", "writer": "coordinator"}
        entry = ledger.draft(Kind.GENESIS, body, time_utc=NOW)
        ledger.append(entry.signed_by(thief))
        with pytest.raises(LedgerIntegrityError, match="bad signature"):
            ledger.verify(KEYS)

    def test_a_predecessor_of_another_chain_is_found(self) -> None:
        """The hash before must be that of the entry before."""
        entry = run_ledger()[0].entries[1]
        moved = replace(entry, prev_hash="1" * 64, sigs=()).signed_by(WRITER)
        with pytest.raises(LedgerIntegrityError, match="does not follow"):
            Ledger(MemoryLedgerStore([LINES[0], moved.to_line()]))


class TestSignatures:
    def expect(self, reason: str, *entries: tuple[Kind, dict[str, Any], tuple[str, ...]]) -> None:
        ledger = Ledger(MemoryLedgerStore())
        for kind, body, signers in entries:
            add(ledger, kind, body, *signers)
        with pytest.raises(LedgerIntegrityError, match=reason):
            ledger.verify(KEYS)

    GENESIS = (Kind.GENESIS, {"ledger": "run", "writer": "coordinator"}, NAMES[:1])

    def test_a_ledger_begins_with_genesis_and_only_once(self) -> None:
        """And says whose it is."""
        self.expect("GENESIS as the first", (Kind.CLOSE, {}, NAMES[:1]))
        self.expect("only once", self.GENESIS, self.GENESIS)
        self.expect("no kind of ledger", (Kind.GENESIS, {"writer": "x"}, NAMES[:1]))
        self.expect("or no writer", (Kind.GENESIS, {"ledger": "run"}, NAMES[:1]))
        with pytest.raises(LedgerIntegrityError):
            verify_entries([], KEYS)

    def test_the_writer_signs_everything(self) -> None:
        """A silo's entry is not the coordinator's."""
        self.expect(
            "lacks the signature of coordinator",
            self.GENESIS,
            (Kind.ROUND_INTENT, {}, ("silo-a",)),
        )

    def test_every_silo_signs_the_plan(self) -> None:
        """One that has not is named."""
        silos = {"silos": ["silo-a", "silo-b"]}
        signers = ("coordinator", "silo-a")
        self.expect("silo-b", self.GENESIS, (Kind.PLAN_COMMIT, silos, signers))
        self.expect("does not name", self.GENESIS, (Kind.PLAN_COMMIT, {}, signers))

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ({"survivors": ["silo-a", "silo-b"], "threshold": 2}, "1 more"),
            ({"survivors": ["silo-b", "silo-c"], "threshold": 1}, "1 more"),
            ({"survivors": ["silo-a"], "threshold": 0}, "does not name"),
            ({"threshold": 1}, "does not name"),
            ({"survivors": ["silo-a"]}, "does not name"),
        ],
    )
    def test_a_threshold_of_survivors_signs_a_release(
        self, body: dict[str, Any], reason: str
    ) -> None:
        """Of survivors; others do not count."""
        self.expect(reason, self.GENESIS, (Kind.ROUND_RELEASE, body, ("silo-a",)))

    def test_a_data_set_ledger_is_signed_by_its_silo_alone(self) -> None:
        """It never leaves the silo."""
        ledger = Ledger(MemoryLedgerStore())
        add(ledger, Kind.GENESIS, {"ledger": "data_set", "writer": "silo-a"}, "silo-a")
        add(ledger, Kind.ROUND_RELEASE, {}, "silo-a")
        assert ledger.verify(KEYS).writer == "silo-a"

    def test_an_unknown_signer_is_refused(self) -> None:
        """Keys come from the roster, not from the ledger."""
        ledger, _ = run_ledger()
        with pytest.raises(LedgerIntegrityError, match="key is unknown"):
            ledger.verify({})

    def test_keys_rotate_by_both(self) -> None:
        """After it only the new key counts; tests/dp/test_keyring.py has the rest."""
        fresh = Ed25519Signer(name="coordinator", key=Ed25519PrivateKey.generate())
        for signer, good in ((fresh, True), (WRITER, False)):
            ledger, _ = run_ledger()
            old, new = WRITER.public_key, fresh.public_key
            message = accepted_message(ledger.head().entry_hash, "coordinator", old, new)
            body = {
                "name": "coordinator", "old": old.hex(), "key": new.hex(),
                "accepted": fresh.sign(message).hex(),
            }  # fmt: skip
            add(ledger, Kind.KEY_ROTATE, body)
            entry = ledger.draft(Kind.CORRECTION, {}, time_utc=NOW)
            ledger.append(entry.signed_by(signer))
            if good:
                heads = [sign_head(ledger.head(), signer), sign_head(ledger.head(), WRITER)]
                assert ledger.verify(KEYS, heads).entries == 7
            else:
                with pytest.raises(LedgerIntegrityError, match="bad signature"):
                    ledger.verify(KEYS)

    @pytest.mark.parametrize(
        "body",
        [{}, {"name": "silo-a", "key": "0" * 64}, {"name": "coordinator", "key": "zz" * 32}],
        ids=str,
    )
    def test_a_rotation_needs_the_old_key_and_a_new_one(self, body: dict[str, Any]) -> None:
        """Nobody replaces another's key."""
        self.expect("KEY_ROTATE", self.GENESIS, (Kind.KEY_ROTATE, body, NAMES[:1]))


class TestHeads:
    def test_a_truncated_ledger_is_found_by_a_peers_head(self) -> None:
        """The chain of what is left is whole; the peer has seen more."""
        ledger, store = run_ledger()
        seen = sign_head(ledger.head(), SIGNERS["silo-a"])
        short = Ledger(MemoryLedgerStore(store.lines[:3]))
        assert short.verify(KEYS).entries == 3
        with pytest.raises(LedgerIntegrityError, match="it was cut"):
            short.verify(KEYS, [seen])

    def test_a_fork_is_found_by_a_peers_head_and_proven_by_two_entries(self) -> None:
        """Two histories of one writer: either both entries or two heads show it."""
        ledger, store = run_ledger()
        fork = Ledger(MemoryLedgerStore(store.lines[:4]))
        one, two = ledger.entries[4], add(fork, Kind.AUDIT_RESULT, {"text": "another"})
        seen = sign_head(fork.head(), SIGNERS["silo-a"])
        with pytest.raises(EquivocationError) as caught:
            ledger.verify(KEYS, [seen])
        assert caught.value.seq == 4
        assert set(caught.value.heads) == {one.entry_hash, two.entry_hash}
        with pytest.raises(EquivocationError):
            find_equivocation([sign_head(ledger.head(), SIGNERS["silo-b"]), seen])
        with pytest.raises(EquivocationError):
            prove_equivocation(one, two, writer="coordinator", key=KEYS["coordinator"])

    def test_what_proves_no_equivocation(self) -> None:
        """One entry, other places, or a writer who has not signed both."""
        ledger, store = run_ledger()
        fork = Ledger(MemoryLedgerStore(store.lines[:4]))
        one = ledger.entries[4]
        framed = fork.draft(Kind.CLOSE, {}, time_utc=NOW).signed_by(SIGNERS["silo-a"])
        forged = framed.with_signatures(Signature(signer="coordinator", sig="0" * 128))
        for other in (one, ledger.entries[3], framed, forged):
            with pytest.raises(LedgerIntegrityError):
                prove_equivocation(one, other, writer="coordinator", key=KEYS["coordinator"])

    def test_earlier_heads_and_those_of_other_ledgers_agree(self) -> None:
        """A peer that lags, one that has seen nothing, and one that follows another run."""
        ledger, store = run_ledger()
        early = Ledger(MemoryLedgerStore(store.lines[:2])).head()
        other = Ledger(MemoryLedgerStore())
        add(other, Kind.GENESIS, {"ledger": "run", "writer": "silo-a"}, "silo-a")
        empty = Ledger(MemoryLedgerStore()).head()
        heads = [sign_head(head, SIGNERS["silo-b"]) for head in (early, other.head(), empty)]
        assert ledger.verify(KEYS, heads).entries == 5
        find_equivocation(heads)

    def test_a_forged_head_accuses_nobody(self) -> None:
        """Its signature is checked first."""
        ledger, _ = run_ledger()
        head = replace(ledger.head(), entry_hash="1" * 64)
        forged = SignedHead(head=head, signature=Signature(signer="silo-a", sig="0" * 128))
        with pytest.raises(LedgerIntegrityError, match="fits no key"):
            ledger.verify(KEYS, [forged])
        stranger = sign_head(head, Ed25519Signer(name="x", key=Ed25519PrivateKey.generate()))
        with pytest.raises(LedgerIntegrityError, match="fits no key"):
            ledger.verify(KEYS, [stranger])

    def test_heads_travel_as_canonical_bytes(self) -> None:
        """And nothing else is read as one."""
        signed = sign_head(run_ledger()[0].head(), WRITER)
        assert SignedHead.from_bytes(signed.to_bytes()) == signed
        body = json.loads(signed.to_bytes())
        for change in ({"seq": "4"}, {"ledger": 1}, {"more": 1}, {"sig": "00"}, {"signer": ""}):
            data = json.dumps({**body, **change}, sort_keys=True, separators=(",", ":")).encode()
            with pytest.raises(PlanError):
                SignedHead.from_bytes(data)
        with pytest.raises(PlanError):
            SignedHead.from_bytes(b"[]")


class TestMemoryStore(LedgerStoreContract):
    """The fake that ships keeps the contract; every handle is the store itself."""

    @pytest.fixture(autouse=True)
    def _store(self) -> None:
        self.store = MemoryLedgerStore()

    def opened(self) -> LedgerStore:
        return self.store


def test_many_writers_leave_one_whole_chain() -> None:
    """Threads that draft, conflict, refresh and draft again."""
    store = MemoryLedgerStore()
    add(Ledger(store), Kind.GENESIS, {"ledger": "data_set", "writer": "coordinator"})

    def write() -> None:
        own = Ledger(store)
        for number in range(10):
            while True:
                own.refresh()
                try:
                    add(own, Kind.CORRECTION, {"number": number})
                except LedgerConflictError:
                    continue
                break

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Ledger(store).verify(KEYS).entries == 41


LINES = tuple(run_ledger()[1].lines)
