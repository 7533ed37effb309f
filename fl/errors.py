"""What can go wrong in federated learning, each with its own class.

    LearningError
    ├── PlanError              a training plan's field is missing, unknown or out of range
    ├── SpecMismatchError      two parties do not mean the same model, plan or vector
    ├── NonFiniteUpdateError   a NaN or an infinity where only numbers may pass
    ├── WeightError            a silo's weight or sample count is unusable
    ├── SchemaError            the feature schema is wrong, or a file does not fit it
    ├── DataError              the data cannot be used as they are
    ├── NoRoomError            a silo's disk has no room for a round
    ├── VariateLostError       a silo's control variate is not the one the run counts on
    ├── RenewedError           variates were renewed at this very model; a sum must move it first
    ├── LeftRunError           a silo has left the run in good order
    ├── QueryRefusedError      a silo's settings do not allow a statistics query
    ├── RunStateError          a run was asked for something that its state does not allow
    ├── LedgerRefusedError     a run's privacy ledger is not in order, or fits no data set's
    └── BudgetExhaustedError   a data set's privacy budget does not allow another release

A message says what was expected, what came and what to do. It never holds an update, a weight or
a sample count: these errors travel to logs and to the coordinator.
"""


class LearningError(Exception):
    """Anything that this package refuses."""


class PlanError(LearningError):
    """A training plan's field is missing, unknown or out of range."""


class SpecMismatchError(LearningError):
    """Two parties do not mean the same model, plan or vector."""


class NonFiniteUpdateError(LearningError):
    """A NaN or an infinity where only numbers may pass."""


class WeightError(LearningError):
    """A silo's weight or sample count is unusable."""


class SchemaError(LearningError):
    """The feature schema is wrong, or a file does not fit it."""


class DataError(LearningError):
    """The data cannot be used as they are."""


class NoRoomError(LearningError):
    """A silo's disk has no room for a round; it takes part again when there is some."""


class VariateLostError(LearningError):
    """A silo's control variate is not the one the run counts on."""


class RenewedError(LearningError):
    """Control variates were renewed at this very model; it must move before this silo's part."""


class LeftRunError(LearningError):
    """A silo has left the run in good order, and is not admitted to it again."""


class QueryRefusedError(LearningError):
    """A silo's settings do not allow a statistics query, or not without noise."""


class RunStateError(LearningError):
    """A run was asked for something that its state does not allow."""


class LedgerRefusedError(LearningError):
    """A run's privacy ledger is not in order, or does not go together with the data set's."""


class BudgetExhaustedError(LearningError):
    """A data set's privacy budget does not allow another release."""
