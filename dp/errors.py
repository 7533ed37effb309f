"""Every way in which privacy arithmetic can refuse, as one tree of exceptions.

::

    PrivacyError
    ├── PlanError                 a field is out of range, or a combination is refused
    ├── UnsupportedEventError     an accountant or a reader does not know this event
    ├── CalibrationError          no noise multiplier reaches the target
    ├── InfeasibleError           the method cannot work at this size
    ├── NoiseShortfallError       fewer honest noise shares than the plan counts on
    ├── OverflowAlarmError        a decoded coordinate is too near the ring's edge
    ├── UnsafeModuleError         a module or loss mixes records
    ├── BudgetExceededError       a release would pass a data set's limit
    ├── LedgerConflictError       somebody else appended first; read again and retry
    ├── LedgerIntegrityError      an entry, a chain or a signature is not what it should be
    └── EquivocationError         two signed heads at one place of one ledger

Messages carry public constants only: never a norm, a loss or a number of patients.
"""

from collections.abc import Sequence
from typing import ClassVar


class PrivacyError(Exception):
    """The root of this package's exceptions; ``code`` is their name in logs and on the wire."""

    code: ClassVar[str] = "PRIVACY"


class PlanError(PrivacyError):
    """A field is out of range or a combination is refused; the message says why."""

    code: ClassVar[str] = "PLAN"


class UnsupportedEventError(PrivacyError):
    """This method cannot account for this event; nothing is substituted silently."""

    code: ClassVar[str] = "UNSUPPORTED_EVENT"


class CalibrationError(PrivacyError):
    """No noise multiplier in the searched range reaches the target."""

    code: ClassVar[str] = "CALIBRATION"


class InfeasibleError(PrivacyError):
    """The method cannot work at this size; the message holds the numbers."""

    code: ClassVar[str] = "INFEASIBLE"


class NoiseShortfallError(PrivacyError):
    """The survivors' noise would fall short of the plan; abort before unmasking."""

    code: ClassVar[str] = "NOISE_SHORTFALL"

    def __init__(self, survivors: int, n_c: int, h_dp: int) -> None:
        """Say what the plan needs: `n_c` possible colluders and `h_dp` honest shares."""
        super().__init__(
            f"expected at least n_c + h_dp = {n_c} + {h_dp} survivors, got {survivors}: "
            "their noise would fall short of the plan; abort before unmasking"
        )
        self.survivors = survivors
        self.n_c = n_c
        self.h_dp = h_dp


class OverflowAlarmError(PrivacyError):
    """A decoded coordinate is so large that the sum may have wrapped."""

    code: ClassVar[str] = "OVERFLOW_ALARM"


class UnsafeModuleError(PrivacyError):
    """Modules, buffers or a loss by which one record steers what is computed for another."""

    code: ClassVar[str] = "UNSAFE_MODULE"


class BudgetExceededError(PrivacyError):
    """A release would pass the limit of a data set; nothing was charged."""

    code: ClassVar[str] = "BUDGET_EXHAUSTED"

    def __init__(self, eps_after: float, limit: float, dataset: str) -> None:
        """Name the figure after the release, the limit and the data set."""
        super().__init__(
            f"data set {dataset!r}: epsilon would be {eps_after:.4f} after this release, "
            f"its limit is {limit:.4f}; nothing was charged"
        )
        self.eps_after = eps_after
        self.limit = limit
        self.dataset = dataset


class LedgerConflictError(PrivacyError):
    """The head moved between reading and appending."""

    code: ClassVar[str] = "LEDGER_CONFLICT"


class LedgerIntegrityError(PrivacyError):
    """A ledger is not what its writers wrote."""

    code: ClassVar[str] = "LEDGER_INTEGRITY"

    def __init__(self, seq: int, reason: str) -> None:
        """Say at which entry and why."""
        super().__init__(f"ledger entry {seq}: {reason}")
        self.seq = seq
        self.reason = reason


class EquivocationError(PrivacyError):
    """Two heads were signed for one place of one ledger: its writer showed two histories."""

    code: ClassVar[str] = "EQUIVOCATION"

    def __init__(self, seq: int, heads: Sequence[str]) -> None:
        """Keep both heads: with their signatures they are the proof."""
        super().__init__(f"ledger entry {seq} has {len(heads)} signed heads: {', '.join(heads)}")
        self.seq = seq
        self.heads = tuple(heads)
