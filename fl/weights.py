"""How much a silo counts in a sum: checked at the silo, because nobody else sees its count.

A silo scales its floats by ρ = min(n_k, n_cap) / n_cap before they are quantized and the sum of
the ρ comes from the same cohort's secure sum: no example count is ever in clear, and the divisor
is never that of silos that were merely invited (AGG-03).
"""

from fl.errors import WeightError
from fl.plan import MAX_EXAMPLES, TrainingPlan, Weighting


def check_examples(count: object) -> int:
    """Return a silo's number of examples if it is one (AGG-05).

    Raises:
        WeightError: not an integer of 1 .. MAX_EXAMPLES. The message does not show the count.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise WeightError(
            f"n_examples: expected a whole number of at least 1, got {type(count).__name__}"
        )
    if not 1 <= count <= MAX_EXAMPLES:
        raise WeightError(
            f"n_examples: expected 1 to {MAX_EXAMPLES} examples, got a count "
            f"{'below' if count < 1 else 'above'} that range; check the silo's data"
        )
    return count


def capped_examples(plan: TrainingPlan, count: object) -> int:
    """Return min(n_k, n_cap), the integer that a silo of a plan with hidden weights adds."""
    return min(check_examples(count), plan.n_cap)


def silo_weight(plan: TrainingPlan, silo: str, count: object) -> float:
    """Return ρ in (0, 1], the factor on everything that a silo's local training gave.

    Args:
        plan: whose weighting decides; 1 for uniform weights.
        silo: the silo's name, for declared weights.
        count: the silo's number of examples.

    Raises:
        WeightError: the count is unusable, or the plan declares no class for the silo.
    """
    check_examples(count)
    match plan.weighting:
        case Weighting.UNIFORM:
            return 1.0
        case Weighting.HIDDEN:
            return capped_examples(plan, count) / plan.n_cap
        case Weighting.DECLARED:
            return declared_weight(plan, silo)


def declared_weight(plan: TrainingPlan, silo: str) -> float:
    """Return the public weight class of a silo.

    Raises:
        WeightError: the plan declares none for it.
    """
    share = plan.declared.get(silo)
    if share is None:
        raise WeightError(f"the plan declares no weight class for silo {silo!r}; add it to the run")
    return share
