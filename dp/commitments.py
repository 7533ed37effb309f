"""What a ledger says before its first round: who writes it, and which plan is frozen.

Bodies of GENESIS and PLAN_COMMIT as the offline verifier reads them. A plan is committed with the
epsilon that is claimed for it on all three trust lines, before anything is released.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from dp.accountant import EpsResult
from dp.canonical import Json, decimal, parse_canonical
from dp.errors import PlanError
from dp.ledger import LedgerKind
from dp.plan import PrivacyPlan, grid_sensitivity
from dp.trust import trust_lines

RING_MODULUS: Final = 2**32


def genesis_body(
    kind: LedgerKind,
    *,
    writer: str,
    subject: str,
    keys: Mapping[str, bytes],
    policy: str,
    software: Mapping[str, str],
) -> dict[str, Json]:
    """The body of GENESIS.

    Args:
        kind: whose ledger it is.
        writer: who signs it.
        subject: the federation, or the data set.
        keys: raw Ed25519 public keys by name; a verifier takes its own from the roster.
        policy: SHA-256 of the policy in force, in hex.
        software: versions by package.
    """
    return {
        "ledger": kind.value,
        "writer": writer,
        "subject": subject,
        "keys": {name: key.hex() for name, key in keys.items()},
        "policy": policy,
        "software": dict(software),
    }


def plan_commit_body(
    plan: PrivacyPlan,
    *,
    silos: Sequence[str],
    threshold: int,
    floor: int,
    manifest: str,
    n_c: int | None = None,
) -> dict[str, Json]:
    """The body of PLAN_COMMIT.

    Args:
        plan: what is frozen.
        silos: who signs it in a run ledger, by name.
        threshold: t of the smallest cohort: so many survivors sign each release, and with fewer
            silos no sum can be opened.
        floor: F, the fewest survivors.
        manifest: SHA-256 of the vector's manifest, in hex.
        n_c: silos that may collude, the least that its rounds ask for; None where no charge comes
            back.

    Raises:
        NoiseShortfallError: the floor is below n_c + h_dp.
        PlanError: integers cost more than the plan's reserve of delta, or no silos.
    """
    if not silos:
        raise PlanError("silos: expected the silos of the plan")
    lines = trust_lines(plan, floor=floor)
    return {
        "plan": parse_canonical(plan.to_bytes()),
        "plan_digest": plan.digest.hex(),
        "silos": tuple(sorted(silos)),
        "threshold": threshold,
        "floor": floor,
        **({} if n_c is None else {"n_c": n_c}),
        "manifest": manifest,
        "modulus": RING_MODULUS,
        "grid_sensitivity": decimal(grid_sensitivity(plan)),
        "claimed": {
            "nobody_colludes": _figure(lines.nobody_colludes),
            "coordinator_colludes": _figure(lines.coordinator_colludes),
            "aggregation_fails": _figure(lines.aggregation_fails),
            "enforced": _figure(lines.enforced),
        },
    }


def _figure(result: EpsResult) -> dict[str, Json]:
    return {
        "eps": "inf" if math.isinf(result.eps) else decimal(result.eps),
        "method": result.method,
        "order": None if result.order is None else decimal(result.order),
    }
