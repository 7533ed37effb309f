"""Every way in which secure aggregation can fail, as one tree of exceptions.

::

    SecAggError
    ├── ParameterError              a value we were given cannot be used
    ├── EvidenceError               an accusation that its statements do not prove
    ├── NonFiniteError              a NaN or an infinity among the values to encode
    └── ProtocolError               abstract: something is wrong in a round
        ├── LocalProtocolError      we used our own objects wrongly
        └── RemoteProtocolError     a peer's message is at fault; one child for each check:
            ├── PolicyRefusedError          A1
            ├── ReplayError                 A2
            ├── RosterError, BadKeyError    A3
            ├── BadShareError, CohortRefusedError    A4
            │   └── BadDealerError
            │       └── FalsePairError
            ├── ModelMismatchError          A5
            ├── SurvivorsMismatchError      A6
            ├── SurvivorsUncertifiedError   A7
            ├── SecondUnmaskError           A8
            ├── ForgedSumError, BadDisclosureError    A9
            └── BadSignatureError, ContradictionError, MalformedMessageError, OversizeError,
                WrongPhaseError

Too few survivors or a passed deadline is an outcome of a round, not an exception.
The names A1–A9 are those of SA1 spec 3.4.
"""

from typing import ClassVar


class SecAggError(Exception):
    """The root of this package's exceptions; ``code`` is their name in logs and on the wire."""

    code: ClassVar[str] = "SECAGG"


class ParameterError(SecAggError):
    """A value that we were given is outside what the operation can accept."""

    code: ClassVar[str] = "PARAMETER"


class NonFiniteError(SecAggError):
    """A value to be encoded is NaN or infinite."""

    code: ClassVar[str] = "NON_FINITE"


class EvidenceError(SecAggError):
    """An accusation that its statements do not prove."""

    code: ClassVar[str] = "EVIDENCE"


class ProtocolError(SecAggError):
    """Something is wrong in a round; only the two branches below it are ever raised."""

    code: ClassVar[str] = "PROTOCOL"


class LocalProtocolError(ProtocolError):
    """Our own side used a round or a key in a way that its state does not allow."""

    code: ClassVar[str] = "LOCAL"


class RemoteProtocolError(ProtocolError):
    """A peer's message fails a check.

    Attributes:
        silo: the seat index at fault, None where the sender is the server or is not known.
        hint: what the operator can do, empty where there is nothing.
    """

    code: ClassVar[str] = "REMOTE"

    def __init__(self, message: str, *, silo: int | None = None, hint: str = "") -> None:
        """Keep the message, whom it blames and what can be done."""
        super().__init__(message)
        self.silo = silo
        self.hint = hint


class PolicyRefusedError(RemoteProtocolError):
    """A1: the round's parameters ask for more than the silo's policy allows."""

    code: ClassVar[str] = "A1_POLICY_REFUSED"


class ReplayError(RemoteProtocolError):
    """A2: the round, the attempt or the message belongs to the past."""

    code: ClassVar[str] = "A2_REPLAY"


class RosterError(RemoteProtocolError):
    """A3: the list of advertised keys does not fit the roster or leaves out our own."""

    code: ClassVar[str] = "A3_ROSTER"


class BadKeyError(RemoteProtocolError):
    """A3: a public key has the wrong length or encoding, a low order, or appears twice."""

    code: ClassVar[str] = "A3_BAD_KEY"


class BadShareError(RemoteProtocolError):
    """A4: a box does not open, or a share contradicts its commitment or its range."""

    code: ClassVar[str] = "A4_BAD_SHARE"


class BadDealerError(BadShareError):
    """A4: enough shares match their commitments, but the secret fails its public check."""

    code: ClassVar[str] = "A4_BAD_DEALER"


class FalsePairError(BadDealerError):
    """A4: in the hybrid suite, a pair's secret is not the one that its lower seat committed to."""

    code: ClassVar[str] = "A4_FALSE_PAIR"


class CohortRefusedError(RemoteProtocolError):
    """A4: the silos that shared keys are too few, or not those that advertised."""

    code: ClassVar[str] = "A4_COHORT_REFUSED"


class ModelMismatchError(RemoteProtocolError):
    """A5: the state received is not the one its signature or the history names."""

    code: ClassVar[str] = "A5_MODEL_MISMATCH"


class SurvivorsMismatchError(RemoteProtocolError):
    """A6: the list of survivors contradicts the cohort, the floor or our own upload."""

    code: ClassVar[str] = "A6_SURVIVORS_MISMATCH"


class SurvivorsUncertifiedError(RemoteProtocolError):
    """A7: fewer valid signatures over the survivors than the threshold."""

    code: ClassVar[str] = "A7_SURVIVORS_UNCERTIFIED"


class SecondUnmaskError(RemoteProtocolError):
    """A8: shares were asked for a second time."""

    code: ClassVar[str] = "A8_SECOND_UNMASK"


class ForgedSumError(RemoteProtocolError):
    """A9: the announced sum fails its tags, its range or its signature."""

    code: ClassVar[str] = "A9_FORGED_SUM"


class BadDisclosureError(RemoteProtocolError):
    """A9: what a server shows for recomputing the sum is not what was signed or committed to."""

    code: ClassVar[str] = "A9_BAD_DISCLOSURE"


class BadSignatureError(RemoteProtocolError):
    """A signature does not verify under the key that the roster names."""

    code: ClassVar[str] = "BAD_SIGNATURE"


class ContradictionError(RemoteProtocolError):
    """Two different messages of one kind in one attempt from one silo; the first one stands."""

    code: ClassVar[str] = "CONTRADICTION"


class MalformedMessageError(RemoteProtocolError):
    """Bytes that are not the one canonical encoding of what they should hold."""

    code: ClassVar[str] = "MALFORMED"


class OversizeError(RemoteProtocolError):
    """Bytes or counts beyond the limit set for them."""

    code: ClassVar[str] = "OVERSIZE"


class WrongPhaseError(RemoteProtocolError):
    """A well-formed message that the present phase does not await."""

    code: ClassVar[str] = "WRONG_PHASE"
