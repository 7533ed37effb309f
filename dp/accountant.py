"""The validated front of every accountant: events in, epsilon or delta out, never a silent guess.

Enforced is the closed form where every unit takes part, and Opacus' RDP functions with our orders
where units are Poisson-sampled. PRV is shown for a frozen plan: in a child process, because it can
hang, with RDP where it fails. Opacus brings torch (2.5 s), so it is imported only for Poisson
events.

Every function here knows the limits: no events 0, delta 0 infinite, z = 0 infinite, q = 0 nothing.
"""

import json
import math
import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias, assert_never

from dp.closed_form import gaussian_delta, gaussian_epsilon
from dp.errors import PlanError, UnsupportedEventError
from dp.events import Event, GaussianEvent, NonPrivateEvent, PoissonGaussianEvent, SkellamEvent
from dp.renyi import ORDERS, delta_at, epsilon_at, gaussian_rdp, skellam_rdp

Method: TypeAlias = Literal["closed", "rdp", "prv"]

# Counted from the child's ready signal: importing Opacus alone takes 2.5 s, more under load.
PRV_TIMEOUT_S: Final = 5.0

_START_TIMEOUT_S: Final = 120.0
_READY: Final = b"ready\n"
_PRV_COMMAND: Final = "from dp.accountant import serve_prv; serve_prv()"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsResult:
    """An epsilon and where it comes from.

    Attributes:
        eps: from 0 to infinity.
        method: which accountant it is from; "rdp" in answer to "prv" means that PRV failed.
        order: the Rényi order, where there is one.
        upper: whether it is a bound; the closed form is exact.
        note: why another method answered than was asked; empty otherwise.
    """

    eps: float
    method: Method
    order: float | None
    upper: bool
    note: str = ""


def epsilon(
    events: Iterable[Event],
    delta: float,
    *,
    method: Method,
    prv_timeout_s: float = PRV_TIMEOUT_S,
) -> EpsResult:
    """ε of all events together; no adjacency here, it is inside z.

    Args:
        events: releases, in any order.
        delta: 0 <= delta < 1; what the events take for their integers is subtracted first.
        method: "closed" knows Gaussian events only, "prv" no Skellam ones.
        prv_timeout_s: how long PRV may compute.

    Raises:
        PlanError: delta is out of range.
        UnsupportedEventError: the method cannot account for one of the events.
    """
    if not 0.0 <= delta < 1.0:
        raise PlanError(f"delta: expected 0 <= delta < 1, got {delta!r}")
    active = _active(events)
    _require_supported(active, method)
    if not active:
        return EpsResult(eps=0.0, method=method, order=None, upper=method != "closed")
    left = delta - sum(event.delta_impl for event in active)
    if left <= 0.0 or any(_is_exposed(event) for event in active):
        return EpsResult(eps=math.inf, method=method, order=None, upper=method != "closed")
    if method == "closed":
        value = gaussian_epsilon(_mu(active), left)
        return EpsResult(eps=value, method="closed", order=None, upper=False)
    best = _rdp_epsilon(active, left)
    return best if method == "rdp" else _prv_epsilon(active, left, best, prv_timeout_s)


def enforced_method(events: Iterable[Event]) -> Method:
    """The closed form if it knows every event, otherwise RDP."""
    return "closed" if all(isinstance(e, GaussianEvent) for e in _active(events)) else "rdp"


def enforced_epsilon(events: Sequence[Event], delta: float) -> EpsResult:
    """The figure that is enforced for a plan that was frozen before its first round.

    Raises:
        PlanError: delta is out of range.
    """
    return epsilon(events, delta, method=enforced_method(events))


def delta_for(events: Iterable[Event], eps: float, *, method: Literal["closed", "rdp"]) -> float:
    """δ of all events together at one epsilon, from 0 to 1.

    Raises:
        PlanError: epsilon is negative or not a number.
        UnsupportedEventError: the method cannot account for one of the events.
    """
    if not eps >= 0.0:
        raise PlanError(f"epsilon: expected at least 0, got {eps!r}")
    active = _active(events)
    _require_supported(active, method)
    if not active:
        return 0.0
    if any(_is_exposed(event) for event in active):
        return 1.0
    if math.isinf(eps):
        value = 0.0
    elif method == "closed":
        value = gaussian_delta(_mu(active), eps)
    else:
        divergences = rdp_curve(active, ORDERS)
        value = min(delta_at(*pair, eps) for pair in zip(ORDERS, divergences, strict=True))
    return min(1.0, value + sum(event.delta_impl for event in active))


def rdp_curve(events: Iterable[Event], orders: Sequence[float]) -> tuple[float, ...]:
    """The divergence of all events together at each order; infinite where an event has none."""
    curves = [_event_rdp(replace(event, delta_impl=0.0), tuple(orders)) for event in events]
    return tuple(math.fsum(at_order) for at_order in zip(*curves, strict=True))


def _active(events: Iterable[Event]) -> list[Event]:
    """Drop what releases nothing; a rate of 1 is no sampling."""
    active: list[Event] = []
    for event in events:
        if event.count == 0:
            continue
        if isinstance(event, PoissonGaussianEvent):
            if event.q == 0.0:
                continue
            if event.q == 1.0:
                active.append(
                    GaussianEvent(z=event.z, count=event.count, delta_impl=event.delta_impl)
                )
                continue
        active.append(event)
    return active


def _require_supported(events: Iterable[Event], method: Method) -> None:
    known: dict[Method, tuple[type[Event], ...]] = {
        "closed": (GaussianEvent, NonPrivateEvent),
        "rdp": (GaussianEvent, PoissonGaussianEvent, SkellamEvent, NonPrivateEvent),
        "prv": (GaussianEvent, PoissonGaussianEvent, NonPrivateEvent),
    }
    if method not in known:
        raise PlanError(f"method: expected one of {', '.join(known)}, got {method!r}")
    for event in events:
        if not isinstance(event, known[method]):
            raise UnsupportedEventError(
                f"the method {method!r} cannot account for {type(event).__name__}; use rdp"
            )


def _is_exposed(event: Event) -> bool:
    """Whether a release has no noise at all."""
    match event:
        case NonPrivateEvent():
            return True
        case SkellamEvent():
            return event.mu == 0.0
        case GaussianEvent() | PoissonGaussianEvent():
            return event.z == 0.0
        case _:
            assert_never(event)


def _mu(events: Iterable[Event]) -> float:
    """1/z of all Gaussian events together."""
    return math.sqrt(
        math.fsum(event.count / event.z**2 for event in events if isinstance(event, GaussianEvent))
    )


def _rdp_epsilon(events: Sequence[Event], delta: float) -> EpsResult:
    divergences = rdp_curve(events, ORDERS)
    value, order = min(
        (epsilon_at(order, rdp, delta), order)
        for order, rdp in zip(ORDERS, divergences, strict=True)
    )
    return EpsResult(eps=value, method="rdp", order=order, upper=True)


@lru_cache(maxsize=512)
def _event_rdp(event: Event, orders: tuple[float, ...]) -> tuple[float, ...]:
    match event:
        case GaussianEvent():
            return tuple(gaussian_rdp(event, order) for order in orders)
        case SkellamEvent():
            return tuple(skellam_rdp(event, order) for order in orders)
        case PoissonGaussianEvent():
            return _poisson_rdp(event.q, event.z, event.count, orders)
        case NonPrivateEvent():
            return (math.inf,) * len(orders)
        case _:
            assert_never(event)


def _poisson_rdp(q: float, z: float, count: int, orders: tuple[float, ...]) -> tuple[float, ...]:
    from opacus.accountants.analysis.rdp import compute_rdp  # noqa: PLC0415 # torch comes with it

    curve = compute_rdp(q=q, noise_multiplier=z, steps=count, orders=list(orders))
    return tuple(float(value) for value in curve)


def _prv_epsilon(
    events: Sequence[Event], delta: float, best: EpsResult, timeout_s: float
) -> EpsResult:
    """PRV's upper bound, or the RDP figure with the reason why not."""
    counts: Counter[tuple[float, float]] = Counter()
    for z, q, count in _segments(events):
        counts[z, q] += count
    history = [(z, q, count) for (z, q), count in counts.items()]
    value, reason = _ask_child({"history": history, "delta": delta}, timeout_s)
    if value is None:
        return replace(best, note=f"PRV {reason}; RDP shown")
    if enforced_method(events) == "closed" and value < gaussian_epsilon(_mu(events), delta):
        return replace(best, note="PRV below the exact figure; RDP shown")
    if value > best.eps:
        return replace(best, note="PRV's bound is above RDP's; RDP shown")
    return EpsResult(eps=max(0.0, value), method="prv", order=None, upper=True)


def _segments(events: Sequence[Event]) -> list[tuple[float, float, int]]:
    """Noise multiplier, rate and count of each Gaussian event, as Opacus has them."""
    return [
        (event.z, event.q if isinstance(event, PoissonGaussianEvent) else 1.0, event.count)
        for event in events
        if isinstance(event, GaussianEvent | PoissonGaussianEvent)
    ]


def _ask_child(
    request: dict[str, object], timeout_s: float, start_timeout_s: float = _START_TIMEOUT_S
) -> tuple[float | None, str]:
    """Let a fresh interpreter compute, and end it if it does not answer in time."""
    with subprocess.Popen(
        [sys.executable, "-c", _PRV_COMMAND],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # PRV warns about log(0) at q = 1
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        assert child.stdout is not None, "a pipe was asked for"
        try:
            started, _, _ = select.select([child.stdout], [], [], start_timeout_s)
            if not started or child.stdout.readline() != _READY:
                return None, "did not start"
            answer, _ = child.communicate(json.dumps(request).encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None, f"gave no answer in {timeout_s:g} s"
        finally:
            child.kill()
    try:
        value = float(answer)
    except ValueError:
        return None, "failed"
    return (value, "") if math.isfinite(value) else (None, "failed")


def serve_prv() -> None:
    """The child's side: say that Opacus is loaded, read one request, write one number.

    Whatever goes wrong ends the child without an answer, which the parent reads as a failure.
    """
    from opacus.accountants import PRVAccountant  # noqa: PLC0415 # torch comes with it

    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    request = json.load(sys.stdin)
    accountant = PRVAccountant()
    accountant.history = [tuple(segment) for segment in request["history"]]
    sys.stdout.write(repr(float(accountant.get_epsilon(request["delta"]))))
