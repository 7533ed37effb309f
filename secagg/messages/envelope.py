"""What all messages of a round share: a signature over canonical bytes, and attachments."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeVar

from secagg import canonical
from secagg.codec import SIGNATURE, Record
from secagg.keys import IdentityKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A vector that travels beside a message."""

    name: str
    chunks: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedMessage(Record):
    """A message with a signature over `signed_bytes`: by default, over all other fields."""

    SIGNED_LABEL: ClassVar[str]

    signature: Annotated[bytes, SIGNATURE] = b""

    def signed_bytes(self) -> bytes:
        """What is signed."""
        return canonical.encode(self.SIGNED_LABEL, *self.field_bytes(without=("signature",)))


M = TypeVar("M", bound=SignedMessage)


def signed(message: M, identity: IdentityKey) -> M:
    """The same message with this key's signature."""
    return replace(message, signature=identity.sign(message.signed_bytes()))
