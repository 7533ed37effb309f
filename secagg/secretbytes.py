"""Secret bytes that do not print, compare in constant time and can be overwritten.

Python copies objects freely, so wiping removes our own reference copy and nothing else;
it shortens a secret's life in memory, it does not guarantee its end.
"""

import hmac
from typing import NoReturn

from secagg.errors import LocalProtocolError


class Secret:
    """A copy of a seed, a private key or a share; the only way to its bytes is `reveal`."""

    __slots__ = ("_content",)
    __hash__ = None  # type: ignore[assignment]  # a hash would be a fingerprint of the secret

    def __init__(self, content: bytes) -> None:
        self._content: bytearray | None = bytearray(content)

    def reveal(self) -> bytes:
        """Return a copy of the bytes.

        Raises:
            LocalProtocolError: the secret has been wiped.
        """
        if self._content is None:
            raise LocalProtocolError(
                "expected a live secret, found a wiped one; it must not be used after its round"
            )
        return bytes(self._content)

    def join(self, other: "Secret | None") -> "Secret":
        """Return this secret followed by another one; itself if there is none."""
        return self if other is None else Secret(self.reveal() + other.reveal())

    def wipe(self) -> None:
        """Overwrite the bytes with zeros and forget them; wiping twice is harmless."""
        if self._content is not None:
            self._content[:] = bytes(len(self._content))
        self._content = None

    def __len__(self) -> int:
        """Return the number of bytes, 0 once wiped."""
        return len(self._content or b"")

    def __eq__(self, other: object) -> bool:
        # In time that depends on the lengths only.
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.reveal(), other.reveal())

    def __repr__(self) -> str:
        return f"Secret(<{len(self)} bytes>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("expected no serialization of a Secret; call reveal() where it is meant")


def reveal(value: Secret | bytes) -> bytes:
    """Return the bytes of a secret, or the bytes themselves."""
    return value.reveal() if isinstance(value, Secret) else value
