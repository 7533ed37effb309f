"""The report: one page of HTML for a data protection officer, with an annex for auditors.

Self-contained: no script, no font, no image from anywhere else. It says what is promised and to
whom, what that means in words, what is left, and on whose honesty it rests.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Final, Literal

from scipy import special

from dp.accountant import delta_for
from dp.charges import ChargeState
from dp.errors import PrivacyError
from dp.plan import Adjacency, Mode, PrivacyPlan, Unit, metric_noise, noise_on_mean
from services.errors import CorruptError
from services.ledger.audits import quantity
from services.report.facts import Facts, PlanFacts, event_text
from services.report.plots import Plot, bars

_STYLE: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 2rem auto;
  max-width: 46rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; margin: 0.6rem 0; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.6rem 0.3rem 0;
  border-bottom: 1px solid #ddd; } td.n, th.n { text-align: right; }
.enforced { font-weight: 600; } .note { color: #555; } .alarm { color: #a40000; font-weight: 600; }
code { font-size: 0.85em; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg .grid { stroke: #e4e4e4; } svg .limit { stroke: #a40000; stroke-dasharray: 6 4; }
svg .curve { fill: none; stroke: #1f5fa8; stroke-width: 2; } svg .dot { fill: #1f5fa8; }
svg .room { fill: #eee; } svg .bar { fill: #1f5fa8; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; }
  table, svg { break-inside: avoid; } }
"""
_UNITS: Final = {Unit.RECORD: "one record", Unit.PATIENT: "one patient", Unit.SILO: "one silo"}
_RELATIONS: Final = {
    Adjacency.ADD_REMOVE: "data with it and data without it",
    Adjacency.ZERO_OUT: "data with it and data where its contribution is empty",
    Adjacency.REPLACE_ONE: "data with it and data with another in its place",
}
_LINES: Final = (
    ("nobody_colludes", "against everybody who sees the released models and sums"),
    ("coordinator_colludes", "against the coordinator together with {n_c} of the silos"),
    ("aggregation_fails", "if secure aggregation failed wholly"),
)
_FALSE_ALARMS: Final = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def html(facts: Facts) -> str:
    """The page.

    Raises:
        CorruptError: there is nothing to report on.
    """
    if not facts.entries:
        raise CorruptError("the ledger is empty; there is nothing to report on yet")
    what = "Run" if facts.kind == "run" else "Data set"
    body = [
        f"<h1>Privacy report: {what.lower()} {escape(facts.subject)}</h1>",
        f'<p class="note">Written by {escape(facts.writer)}; {len(facts.entries)} entries from '
        f"{facts.entries[0].time_utc} to {facts.entries[-1].time_utc}; last entry "
        f"<code>{facts.entries[-1].entry_hash}</code>. This page shows the ledger and proves "
        "nothing: <code>secagg ledger verify</code> checks it.</p>",
        *_promise(facts),
        *_meaning(facts),
        *_budget(facts),
        *_rounds(facts),
        *_assumptions(facts),
        *_annex(facts),
    ]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Privacy report {escape(facts.subject)}</title><style>{_STYLE}</style></head>"
    )
    return head + "<body>" + "\n".join(body) + "</body></html>\n"


def _promise(facts: Facts) -> list[str]:
    parts = ["<h2>What is promised</h2>"]
    for one in facts.plans:
        plan = one.plan
        parts.append(
            f"<p>Mode <b>{plan.mode}</b>, {plan.rounds} rounds: what is released differs little "
            f"between {_RELATIONS[plan.adjacency]}, for <b>{_UNITS[plan.unit]}</b> "
            f"({plan.adjacency}). δ = {plan.delta:g}.</p>"
        )
        rows = [
            _row(
                words.format(n_c=plan.n_c) + (" (enforced)" if _is_enforced(one, name) else ""),
                _number(one.claimed[name]),
                css="enforced" if _is_enforced(one, name) else "",
            )
            for name, words in _LINES
        ]
        parts.append(_table(("Protected", "ε"), rows))
    if not facts.plans:
        parts.append("<p>No privacy plan has been committed to yet.</p>")
    return parts


def _is_enforced(one: PlanFacts, name: str) -> bool:
    """Which of the lines budgets are charged with."""
    return name == ("nobody_colludes" if one.plan.mode is Mode.CENTRAL else "coordinator_colludes")


def _meaning(facts: Facts) -> list[str]:
    """The guarantee in words, from what was really spent."""
    if facts.account is None or not 0.0 < facts.spent < math.inf:
        return []
    unit, delta = _UNITS[facts.account.unit], facts.account.filter.delta
    odds = math.exp(min(facts.spent, 50.0))
    right = (odds + delta) / (1.0 + odds)
    return [
        "<h2>What that means</h2>",
        f"<p>Somebody who knows everything but {unit}, and sees all that was released so far, "
        f"guesses whether it took part. Without the releases the guess is right in 50 of 100 cases "
        f"at best; with them in at most <b>{100 * right:.1f}</b> of 100, whatever method is used "
        f"(ε = {facts.spent:.3f}, δ = {delta:g}).</p>",
        '<p class="note">Not promised: facts about groups and populations stay visible, because '
        "they are what is learned; so do the names of who took part, when, and how long it "
        "took.</p>",
    ]


def _budget(facts: Facts) -> list[str]:
    account = facts.account
    if account is None:
        return []
    still_open = sum(one.state is ChargeState.OPEN for one in facts.charges)
    returned = sum(one.state is ChargeState.RETURNED for one in facts.charges)
    left = max(account.epsilon - facts.spent, 0.0)
    rows = [
        _row("spent", f"{facts.spent:.4f}", css="enforced"),
        _row("limit", f"{account.epsilon:.4f}"),
        _row("left", f"{left:.4f}"),
    ]
    changes = [_row(str(seq), text) for seq, text in facts.changes]
    note = f"{len(facts.live)} releases are charged, {still_open} of them not settled; "
    note += f"{returned} charges came back (this page checks no proof)."
    return [
        "<h2>Budget</h2>",
        bars("spent of the limit", [(account.data_set, facts.spent, account.epsilon)]),
        _table((f"ε at δ = {account.filter.delta:g}", ""), rows),
        f'<p class="note">Read by the filter {account.filter.kind}'
        + (f" at order {account.filter.order}" if account.filter.order else "")
        + f". {note}</p>",
        _table(("Entry", "Limits and keys, as they were changed"), changes),
    ]


def _rounds(facts: Facts) -> list[str]:
    rows = []
    spending = dict(facts.spending)
    by_hash = {entry.entry_hash: entry for entry in facts.entries}
    for one in facts.charges:
        seq = by_hash[one.entry_hash].seq
        survivors = facts.survivors.get(one.entry_hash)
        rows.append(
            _row(
                f"{one.purpose}, round {one.round}, attempt {one.attempt + 1}",
                one.state.value,
                "" if survivors is None else str(len(survivors)),
                f"{spending.get(seq, 0.0):.4f}",
            )
        )
    table = _table(("Release", "state", "silos in the sum", "ε after"), rows)
    return ["<h2>Releases</h2>", table if rows else "<p>None yet.</p>"]


def _assumptions(facts: Facts) -> list[str]:
    if not facts.plans:
        return []
    plan = facts.plans[-1].plan
    rows = [_row(text, owner) for text, owner in _assumed(plan)]
    return [
        "<h2>What it rests on</h2>",
        _table(("Assumption", "Whose it is"), rows),
    ]


def _assumed(plan: PrivacyPlan) -> list[tuple[str, str]]:
    """Every assumption of the plan's guarantee, and who answers for it."""
    found = [
        ("The numbers of persons behind δ are right: δ is below 1/N", "each silo"),
        ("Certificates and roster name real, separate organizations", "the authority"),
        ("The software that adds noise is the one named below", "each silo's operator"),
        (f"Clip norm C = {plan.clip:g} was chosen without looking at private data", "the operator"),
    ]
    if plan.is_ring:
        found.append(
            (
                f"At most {plan.n_c} of the silos collude with the coordinator; at least "
                f"{plan.h_dp} others added their share of noise. The padding test finds faults, "
                "not malice",
                "the silos together",
            )
        )
    if plan.mode is Mode.CENTRAL:
        found.append(
            ("The coordinator, which sees the exact sums, keeps them to itself", "the coordinator")
        )
    if plan.unit is not Unit.SILO and not plan.strict:
        found.append(
            (
                "Sums of clipped gradients in the model's own floating-point format are exact "
                "enough; a float64 model or a strict plan removes this",
                "the operator",
            )
        )
    if plan.q < 1.0:
        found.append(("Which records were sampled stays secret in the silo", "each silo"))
    if plan.max_silos_per_unit == 1 and plan.unit is Unit.PATIENT:
        found.append(("No patient is in two silos", "the silos together"))
    return found


def _annex(facts: Facts) -> list[str]:
    parts = ["<h2>Annex: ε by release</h2>"]
    limit = None if facts.account is None else facts.account.epsilon
    points = [(float(place), eps) for place, (_, eps) in enumerate(facts.spending, 1)]
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    parts.append(
        Plot(
            title="epsilon spent after each release",
            points=finite,
            x_label="release",
            y_label="ε",
            limit=limit,
            is_step=True,
        ).svg()
    )
    parts += [*_delta_curve(facts), *_operating_curve(facts), *_events(facts), *_audits(facts)]
    parts += ["<h2>Annex: plans</h2>"]
    for one in facts.plans:
        rows = [_row(name, str(value)) for name, value in _plan_rows(one)]
        parts.append(_table(("Field", "Value"), rows))
    software = [_row(name, version) for name, version in sorted(facts.software.items())]
    parts += ["<h2>Annex: software</h2>", _table(("Package", "Version"), software)]
    return parts


def _delta_curve(facts: Facts) -> list[str]:
    events = [one.event for one in facts.live]
    if not events or not 0.0 < facts.spent < math.inf:
        return []
    points = []
    method: Literal["closed", "rdp"] = "closed" if facts.mu is not None else "rdp"
    for step in range(1, 25):
        eps = facts.spent * step / 16.0
        try:
            delta = delta_for(events, eps, method=method)
        except PrivacyError:
            return []
        if delta > 0.0:
            points.append((eps, max(-math.log10(delta), 0.0)))
    curve = Plot(
        title="delta at each epsilon",
        points=points,
        x_label="ε",
        y_label="−log10 δ",
    )
    return ["<h2>Annex: δ(ε)</h2>", curve.svg()]


def _operating_curve(facts: Facts) -> list[str]:
    """How often a unit can be recognized at a rate of false alarms."""
    if facts.account is None or not 0.0 < facts.spent < math.inf:
        return []
    mu, eps, delta = facts.mu, facts.spent, facts.account.filter.delta

    def caught(rate: float) -> float:
        if mu is not None:
            return float(special.ndtr(special.ndtri(rate) + mu)) if rate < 1.0 else 1.0
        odds = math.exp(min(eps, 50.0))
        return min(odds * rate + delta, 1.0 - (1.0 - delta - rate) / odds, 1.0)

    points = [(0.0, 0.0), *((rate, caught(rate)) for rate in _FALSE_ALARMS)]
    curve = Plot(
        title="operating curve of the best attack",
        points=points,
        x_label="false alarms",
        y_label="units recognized, at most",
    )
    words = ", ".join(f"{caught(rate):.2%} at {rate:.1%} false alarms" for rate in (0.01, 0.001))
    return ["<h2>Annex: operating curve</h2>", f"<p>At most {words}.</p>", curve.svg()]


def _events(facts: Facts) -> list[str]:
    rows = [
        _row(
            f"{one.round}.{one.attempt + 1}",
            one.purpose,
            event_text(one.event),
            event_text(one.local),
        )
        for one in facts.charges
    ]
    if not rows:
        return []
    head = ("Round.attempt", "purpose", "booked", "if secure aggregation fails")
    return ["<h2>Annex: events</h2>", _table(head, rows)]


def _audits(facts: Facts) -> list[str]:
    if not facts.audits:
        return []
    rows = [
        _row(
            one.method,
            quantity(one.method),
            one.silos,
            f"{one.lower:.3f}",
            f"{one.claimed:.3f}",
            "ALARM" if one.lower > one.claimed else "consistent",
            css="alarm" if one.lower > one.claimed else "",
        )
        for one in facts.audits
    ]
    head = ("Method", "of", "silos rehearsed", "at least", "claimed", "")
    return ["<h2>Annex: audits</h2>", _table(head, rows)]


def _plan_rows(one: PlanFacts) -> list[tuple[str, object]]:
    plan = one.plan
    return [
        ("digest", plan.digest.hex()),
        ("clip norm C", plan.clip),
        ("noise multiplier z", plan.z),
        ("sampling rate q", plan.q),
        ("local steps K", plan.local_steps),
        ("coordinates d", plan.dimension),
        ("metrics in each release", _metric_words(plan)),
        ("silos planned", plan.cohort_size),
        ("n_c, h_dp", f"{plan.n_c}, {plan.h_dp}"),
        ("n_c of threshold and returns", "not committed" if one.n_c is None else one.n_c),
        ("fewest survivors", one.floor),
        ("divisor W", plan.denominator),
        ("noise on the mean, L2", f"{noise_on_mean(plan):.4g}"),
        ("signed by", ", ".join(one.silos)),
    ]


def _metric_words(plan: PrivacyPlan) -> str:
    if plan.metrics is None:
        return "none"
    share = f"a share has noise of std {metric_noise(plan):.2g}"
    if plan.metrics.z is None:
        return f"loss up to {plan.metrics.loss_cap:g} and accuracy, one noised step more; {share}"
    cost = f"z = {plan.metrics.z:g} of their own, inside the plan's z"
    return f"loss up to {plan.metrics.loss_cap:g} and accuracy, {cost}; {share}"


def _number(value: float) -> str:
    return "none" if math.isinf(value) else f"{value:.4f}"


def _row(*cells: str, css: str = "") -> str:
    name = f' class="{css}"' if css else ""
    return f"<tr{name}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
