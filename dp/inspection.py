"""What a ledger's entries claim, checked one after the other against a second computation.

Plan against round, INTENT before RELEASE, survivors against the floor, conversions, every epsilon
that is booked, every limit at every entry, and the proof behind each charge that came back.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dp.offline import (
    Findings,
    Object,
    canonical_digest,
    signature_fits,
    signed_commitment,
    signing_keys,
)
from dp.recount import (
    RESERVE,
    Event,
    Recount,
    Tally,
    UnreadableError,
    abandons,
    grid_sensitivity,
    integer_cost,
    number,
    per_round,
    plan_event,
    read_event,
)

# A filter's figure uses exact arithmetic on both sides; what differs is the root finder.
_CLOSE: Final = 1e-6
# A rehearsal has three silos at least, or its sum would not be opened.
_LEAST_SILOS: Final = 3
_ALL: Final = ("epsilon", "")
_LOCAL: Final = ("local_epsilon", "")
_UNREADABLE: Final = (
    UnreadableError,
    ArithmeticError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
)


# The silos whose promises count, with the keys that signed the plan, and how many are needed.
Quorum = tuple[dict[str, set[bytes]], int]


@dataclass(slots=True)
class VerifyReport:
    """What was checked, what was found, and the recomputed figures.

    Attributes:
        entries: lines that were read.
        findings: what does not hold; empty if all does.
        figures: recomputed numbers, in words, for a person.
    """

    entries: int
    findings: Findings
    figures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return not self.findings.items


class Inspection:
    """One pass over the entries, with what they have established so far."""

    def __init__(
        self,
        entries: Sequence[Object],
        ring: Mapping[str, set[bytes]],
        recount: Recount,
        report: VerifyReport,
    ) -> None:
        """Begin before the first of the entries, which have been read and are not empty."""
        self._recount = recount
        self._entries = entries
        self._ring = ring
        self._report = report
        self._found = report.findings
        self._kind = entries[0]["body"].get("ledger")
        self._account: Object | None = None
        self._plans: dict[str, Object] = {}
        # Of each run and plan: who promises with which keys, and how many must.
        self._quorums: dict[tuple[str, str], Quorum | None] = {}
        # What has been charged and not given back: by the entry's hash.
        self._live: dict[str, Object] = {}
        self._open: set[str] = set()
        self._keys_charged: set[tuple[object, ...]] = set()
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._closed = False
        self._spent = 0.0

    def run(self) -> None:
        """Look at every entry; what does not hold goes into the report."""
        readers: Mapping[str, Callable[[Object], None]] = {
            "BUDGET_SET": self._budget_set,
            "PLAN_COMMIT": self._plan_commit,
            "ROUND_INTENT": self._intent,
            "METRIC_RELEASE": self._intent,
            "ROUND_RELEASE": self._release,
            "ROUND_ABORT": self._abort,
            "AUDIT_RESULT": self._audit_result,
            "CORRECTION": self._correction,
        }
        before = ""
        for entry in self._entries:
            seq, kind = entry["seq"], entry["kind"]
            self._found.need(
                seq, entry["time_utc"] >= before, "its time lies before the last one's"
            )
            before = max(before, entry["time_utc"])
            self._found.need(seq, not self._closed, "it follows CLOSE")
            if kind == "GENESIS":
                self._found.need(seq, seq == 0, "a ledger begins only once")
            self._closed = self._closed or kind == "CLOSE"
            reader = readers.get(kind)
            if reader is None:
                continue
            try:
                reader(entry)
            except _UNREADABLE as error:
                # Fail closed: a body of another shape than its kind's is a finding, not a crash.
                self._found.add(seq, f"{kind} cannot be read ({error})")
        if self._account is not None:  # whose fields were read when it was set
            self._report.figures.append(
                f"account {self._account['data_set']} (unit {self._account['unit']}, "
                f"{self._account['adjacency']}, delta {self._account['delta']}): spent "
                f"{self._spent:.4f} of {number(self._account['epsilon']):.4f}, "
                f"{len(self._open)} charges open"
            )

    # --- limits ---------------------------------------------------------------------------

    def _budget_set(self, entry: Object) -> None:
        body, before = entry["body"], self._account
        fixed = ("data_set", "unit", "adjacency", "filter", "delta", "order", "records_per_unit")
        for name in fixed:
            value = body[name]
            same = before is None or before[name] == value
            self._found.need(entry["seq"], same, f"BUDGET_SET changes {name}")
        number(body["epsilon"])
        if not 0.0 < number(body["delta"]) < 1.0 or body["filter"] not in {"gdp", "rdp"}:
            raise UnreadableError("filter")
        if body["filter"] == "rdp" and (type(body["order"]) is not int or body["order"] < 2):
            raise UnreadableError("order")
        self._account = body

    # --- plans ----------------------------------------------------------------------------

    def _plan_commit(self, entry: Object) -> None:
        seq, body = entry["seq"], entry["body"]
        plan = body["plan"]
        d2 = grid_sensitivity(plan)
        booked_d2 = number(body["grid_sensitivity"])
        self._found.need(
            seq, math.isclose(d2, booked_d2, rel_tol=_CLOSE), f"grid sensitivity is {d2:.6f}"
        )
        commit = {**body, "d2": d2}
        self._plans.setdefault(body["plan_digest"], commit)
        place = (entry["run_id"], body["plan_digest"])
        self._found.need(seq, place not in self._quorums, "this plan was committed to before")
        self._quorums.setdefault(place, self._quorum(entry))
        digest = canonical_digest(plan)
        self._found.need(seq, digest == body["plan_digest"], "plan_digest is not the plan's hash")
        floor, ring = body["floor"], plan["mode"] in {"silo", "fedsgd", "patient"}
        needs = plan["n_c"] + plan["h_dp"]
        self._found.need(seq, floor >= needs, f"the floor of {floor} is below n_c + h_dp = {needs}")
        z = number(plan["z"])
        if ring:
            shares = plan["h_dp"]
            zs = {
                "nobody_colludes": z * math.sqrt(floor / shares),
                "coordinator_colludes": z,
                "aggregation_fails": z / math.sqrt(shares),
            }
        elif plan["mode"] == "central":
            zs = {"nobody_colludes": z, "coordinator_colludes": 0.0, "aggregation_fails": 0.0}
        else:
            zs = dict.fromkeys(("nobody_colludes", "coordinator_colludes", "aggregation_fails"), z)
        for name, value in {**zs, "enforced": z}.items():
            self._figure(seq, name, value, commit)
        self._two_relations(plan, z)

    def _quorum(self, entry: Object) -> Quorum | None:
        """Whose promises end an attempt, with the keys that signed the plan, and how many.

        None where nothing shows it, as in an early ledger.
        What is counted with are facts that every silo of the plan has signed; a data set's ledger,
        which one silo signs, carries the run's own entry.
        """
        body = entry["body"]
        signed = entry if self._kind == "run" else signed_commitment(body)
        if signed is None or "n_c" not in body:
            return None
        keys = signing_keys(signed, self._ring)
        members = {name: keys.get(name, set()) for name in body["silos"]}
        n_c, floor, least = body["n_c"], body["floor"], body["threshold"]
        self._found.need(
            entry["seq"],
            type(n_c) is int
            and n_c >= body["plan"]["n_c"]
            and least == (floor + n_c) // 2 + 1 <= floor,
            "the threshold is not that of its floor and n_c",
        )
        if signed["run_id"] != entry["run_id"] or not all(members.values()):
            return None
        # Of a sum's silos t must open it; whoever has not promised may, and n_c may lie.
        return members, max(len(members) + n_c - least + 1, len(members) // 2 + 1)

    def _figure(self, seq: int, name: str, z: float, commit: Object) -> None:
        """Compare one claimed epsilon of a plan with what the second accountant finds."""
        plan, figure = commit["plan"], commit["claimed"][name]
        delta = number(plan["delta"]) * (1.0 - RESERVE)
        claimed = math.inf if figure["eps"] == "inf" else number(figure["eps"])
        if z == 0.0:
            self._found.need(seq, math.isinf(claimed), f"{name}: expected no guarantee")
            return
        event = plan_event(plan, commit["d2"], z)
        low, high = self._recount.plan_bounds(event, delta)
        self._report.figures.append(
            f"plan at entry {seq}, {name}: claimed {claimed:.4f} ({figure['method']}), "
            f"recomputed {low:.4f} to {high:.4f}, unit {plan['unit']}, {plan['adjacency']}"
        )
        self._found.need(
            seq,
            low <= claimed <= high,
            f"{name}: epsilon {claimed:.6f} is booked, the second accountant finds "
            f"{low:.6f} to {high:.6f}",
        )

    def _two_relations(self, plan: Object, z: float) -> None:
        """Adjacency double line: what the same noise means if a unit is replaced (z and z/2)."""
        if plan["participation"] == "poisson" or plan["noise"] != "gaussian":
            return
        count = plan["rounds"] * per_round(plan)
        delta = number(plan["delta"]) * (1.0 - RESERVE)
        one, two = (self._recount.closed(count / value**2, delta) for value in (z, z / 2.0))
        self._report.figures.append(
            f"the same noise by relation: {one:.4f} at z = {z:g}, {two:.4f} at z/2"
        )

    # --- rounds ---------------------------------------------------------------------------

    def _intent(self, entry: Object) -> None:
        seq, body = entry["seq"], entry["body"]
        if not self._found.need(seq, self._account is not None, "it is charged to no budget"):
            return
        assert self._account is not None, "checked just above"
        key = (entry["run_id"], body["round"], body["attempt"], body["purpose"])
        self._found.need(seq, key not in self._keys_charged, "this release was charged before")
        self._keys_charged.add(key)
        event = read_event(body["event"])
        self._against_plan(seq, body, event)
        self._conversion(seq, body, event)
        self._same(seq, "eps_before", body, self._spent)
        scopes = _scopes(entry)
        for scope in scopes:
            self._tally(scope).add(_counted(body, scope))
        self._live[entry["entry_hash"]] = entry
        if entry["kind"] == "ROUND_INTENT":
            self._open.add(entry["entry_hash"])
        self._spent = self._recount.filter_epsilon(self._account, self._tally(_ALL))
        self._same(seq, "eps_after", body, self._spent)
        for scope in scopes:
            self._limit(seq, scope, self._account)

    def _limit(self, seq: int, scope: tuple[str, str], account: Object) -> None:
        """No limit is passed, at any entry."""
        name = scope[0]
        if account[name] is None:
            return
        value = self._recount.filter_epsilon(account, self._tally(scope))
        self._found.need(
            seq,
            value <= number(account[name]) * (1.0 + _CLOSE),
            f"{name} is {value:.4f}, its limit is {account[name]}",
        )

    def _tally(self, scope: tuple[str, str]) -> Tally:
        return self._tallies.setdefault(scope, Tally())

    def _against_plan(self, seq: int, body: Object, event: Event) -> None:
        plan_entry = self._plans.get(body["plan_digest"])
        if plan_entry is None:
            self._found.add(seq, "no PLAN_COMMIT of this plan comes before")
            return
        plan = plan_entry["plan"]
        for name in ("unit", "adjacency"):
            self._found.need(seq, body[name] == plan[name], f"{name} is not the plan's")
        planned = plan_event(plan, plan_entry["d2"], number(plan["z"]), rounds=1)
        same = (event.kind, event.count) == (planned.kind, planned.count) and all(
            math.isclose(getattr(event, name), getattr(planned, name), rel_tol=_CLOSE)
            for name in ("z", "q", "mu", "d1", "d2")
        )
        self._found.need(seq, same, "the event is not the one that was planned")
        assert self._account is not None, "the caller has checked it"
        cost = integer_cost(plan, plan_entry["d2"], number(self._account["epsilon"]))
        self._found.need(
            seq,
            event.delta_impl >= cost * (1.0 - _CLOSE),
            f"integers cost {cost:.3g} of delta a round, {event.delta_impl:.3g} is booked",
        )

    def _conversion(self, seq: int, body: Object, event: Event) -> None:
        """The booked event is the planned one under the account's unit and relation."""
        assert self._account is not None, "the caller has checked it"
        divisor = 1
        if self._account["unit"] != body["unit"]:
            known = (self._account["unit"], body["unit"]) == ("patient", "record")
            self._found.need(seq, known, "no rule converts the plan's unit into the account's")
            divisor = self._account["records_per_unit"]
        if self._account["adjacency"] == "replace_one" and body["adjacency"] != "replace_one":
            divisor *= 2
        booked = read_event(body["booked"])
        if divisor > 1:
            self._found.need(
                seq, event.kind == "gaussian", "only q = 1 Gaussian events can be converted"
            )
        expected = event.z / divisor
        same = math.isclose(booked.z, expected, rel_tol=_CLOSE) and all(
            getattr(booked, name) == getattr(event, name)
            for name in ("kind", "q", "mu", "d1", "d2", "count", "delta_impl")
        )
        self._found.need(seq, same, "what is booked is not what is released")

    def _release(self, entry: Object) -> None:
        seq, body = entry["seq"], entry["body"]
        intent = body["intent"]
        if not self._found.need(seq, intent in self._open, "no open INTENT comes before"):
            return
        self._open.discard(intent)
        charge = self._live[intent]["body"]
        real = read_event(body["event"])
        # Early silos wrote of a converted plan what they had booked for it, which is what counts.
        within = [_compare(real, read_event(charge[name])) for name in ("booked", "event")]
        kept, no_more = next((one for one in within if all(one)), within[-1])
        self._found.need(seq, kept, "less noise was released than was charged")
        self._found.need(seq, no_more, "more was released than was charged")
        commit = self._plans.get(charge["plan_digest"])
        if commit is None or self._kind != "run":
            return
        survivors = set(body["survivors"])
        self._found.need(
            seq,
            len(survivors) >= commit["floor"] and survivors <= set(commit["silos"]),
            f"expected at least {commit['floor']} survivors of the plan's silos",
        )
        self._found.need(
            seq, body["threshold"] >= commit["threshold"], "fewer signatures than the threshold"
        )

    def _abort(self, entry: Object) -> None:
        seq, body = entry["seq"], entry["body"]
        intent = body["intent"]
        if not self._found.need(seq, intent in self._open, "no open INTENT comes before"):
            return
        if not body["returned"]:
            return
        charge = self._live[intent]
        self._proof(seq, body["proof"], charge)
        self._open.discard(intent)
        for scope in _scopes(charge):
            self._tally(scope).add(_counted(charge["body"], scope), -1)
        assert self._account is not None, "without a budget no INTENT is open"
        self._spent = self._recount.filter_epsilon(self._account, self._tally(_ALL))

    def _proof(self, seq: int, proof: Object, charge: Object) -> None:
        """A charge comes back only with the promises of enough silos of the committed plan.

        Which silos, which keys and how many is the plan's commitment, never the proof's own claim.
        """
        quorum = self._quorums.get((charge["run_id"], charge["body"]["plan_digest"]))
        if quorum is None:
            self._found.add(
                seq,
                "the charge came back, and no commitment of its run tells n_c with all silos' "
                "signatures, as in early ledgers: nothing shows how many promises would do",
            )
            return
        members, needed = quorum
        genuine = set()
        for one in proof["statements"]:
            message, signature = bytes.fromhex(one["message"]), bytes.fromhex(one["signature"])
            keys = members.get(one["signer"], ())
            fits = any(signature_fits(key, message, signature) for key in keys)
            about = proof["kind"] == "abandon" and abandons(message, charge)
            if fits and about:
                genuine.add(one["signer"])
        self._found.need(
            seq,
            len(genuine) >= needed,
            f"the charge came back without a quorum's proof: {len(genuine)} genuine promises, "
            f"expected {needed} of {len(members)} silos",
        )

    def _audit_result(self, entry: Object) -> None:
        body = entry["body"]
        lower, claimed = number(body["lower"]), number(body["claimed"])
        of = "rate" if body["method"] == "sampling" else "epsilon"
        silos = body.get("silos")
        of_silos = "an unknown number of" if silos is None else silos
        self._report.figures.append(
            f"audit at entry {entry['seq']} ({body['method']}): {of} at least {lower:.4f}, "
            f"claimed {claimed:.4f}, by a rehearsal of {of_silos} silos"
        )
        seq, commit = entry["seq"], self._plans.get(body["plan_digest"])
        self._found.need(seq, lower <= claimed, f"an audit found more than the claimed {of}")
        if commit is None:
            self._found.add(seq, "no PLAN_COMMIT of the audited plan comes before")
            return
        plan, rounds = commit["plan"], body["rounds"]
        within = type(rounds) is int and 1 <= rounds <= plan["rounds"]
        if self._found.need(
            seq, within, f"audited: {rounds} of the plan's {plan['rounds']} rounds"
        ):
            z = self._rehearsed_z(seq, plan, body.get("silos"))
            most = self._audit_claim(seq, body["method"], plan, rounds, z)
            self._found.need(
                seq,
                claimed <= most * (1.0 + _CLOSE),
                f"{of} {claimed:g} is claimed, the plan's noise gives at "
                f"most {most:g} for the audited releases",
            )

    def _rehearsed_z(self, seq: int, plan: Object, silos: object) -> float:
        """The noise of one rehearsed release: all silos of a rehearsal are honest.

        A third of the others may collude, by the plan that is rehearsed, and the shares of the rest
        have the plan's noise; in isrl each silo has all of it. Entries of before name no number of
        silos; then no more is claimed than under the plan's own noise.
        """
        z = number(plan["z"])
        if silos is None:
            return z
        if not self._found.need(seq, type(silos) is int and silos >= _LEAST_SILOS, "audited silos"):
            return z
        assert isinstance(silos, int), "looked at above"
        if plan["mode"] == "isrl":
            return z * math.sqrt(silos)
        if plan["mode"] == "central":
            return z
        return z * math.sqrt(silos / (silos - max((silos - 1) // 3, 1)))

    def _audit_claim(self, seq: int, method: object, plan: Object, rounds: int, z: float) -> float:
        """The most that a method may claim under the noise that was rehearsed."""
        q = number(plan["q"])
        if method == "sampling":
            return q * (1.0 + _CLOSE)
        self._found.need(seq, method in ("cosine", "one-run"), "an audit by no known method")
        # A rehearsal adds Gaussian noise, and sums no releases of metrics.
        count = rounds * (plan["local_steps"] if plan["mode"] == "isrl" else 1)
        is_sampled = method == "one-run" and q < 1.0
        kind = "poisson_gaussian" if is_sampled else "gaussian"
        event = Event(kind, z=z, q=q, count=count)
        return self._recount.plan_bounds(event, number(plan["delta"]))[1]

    def _correction(self, entry: Object) -> None:
        earlier = {one["entry_hash"] for one in self._entries[: entry["seq"]]}
        self._found.need(
            entry["seq"], entry["body"]["refers"] in earlier, "it corrects no earlier entry"
        )

    def _same(self, seq: int, name: str, body: Object, value: float) -> None:
        booked = number(body[name])
        self._found.need(
            seq,
            math.isclose(booked, value, rel_tol=_CLOSE, abs_tol=_CLOSE),
            f"{name}: {booked:.6f} is booked, recomputed {value:.6f}",
        )


def _compare(released: Event, charged: Event) -> tuple[bool, bool]:
    """Whether a release has no less noise than its charge, and costs no more in anything else."""
    kept = released.kind == charged.kind and released.z >= charged.z * (1.0 - _CLOSE)
    kept = kept and released.mu >= charged.mu * (1.0 - _CLOSE) and released.q <= charged.q
    # What happened may cost less than its charge, in nothing more: count, d1, d2, integers.
    no_more = released.count <= charged.count and all(
        getattr(released, name) <= getattr(charged, name) * (1.0 + _CLOSE)
        for name in ("d1", "d2", "delta_impl")
    )
    return kept, no_more


def _scopes(entry: Object) -> tuple[tuple[str, str], ...]:
    """Where a charge counts: each limit's name, and of what."""
    year = entry["time_utc"][:4]
    return (_ALL, _LOCAL, ("run_epsilon", entry["run_id"]), ("year_epsilon", year))


def _counted(body: Object, scope: tuple[str, str]) -> Event:
    return read_event(body["booked_local" if scope == _LOCAL else "booked"])
