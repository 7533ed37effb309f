"""What all honest parties of an attempt must have seen alike, as digests (SA1 spec 3.2).

Nothing is circular: ctx → Advertise → setup → Share → U2 → (training) → model hash → binding →
masks, tags and every later signature. Two silos that were shown different keys, different
cohorts or different models derive different bindings, so their masks do not cancel.
"""

from collections.abc import Mapping

from secagg import canonical
from secagg.messages import Advertise, Result


def setup_digest(ctx: bytes, advertises: Mapping[int, Advertise]) -> bytes:
    """H("SA1/setup", ctx, for u in sorted U1: u, H(all fields of Advertise_u)).

    The signature is left out: it follows from the fields, and a silo could make several.
    """
    fields: list[bytes] = []
    for seat in sorted(advertises):
        item = advertises[seat]
        unsigned = item.field_bytes(without=("signature",))
        fields += (canonical.u32(seat), canonical.digest(item.SIGNED_LABEL, *unsigned))
    return canonical.digest("setup", ctx, *fields)


def binding_digest(setup: bytes, model: bytes, share_roots: Mapping[int, bytes]) -> bytes:
    """H("SA1/binding", setup, model_hash, H("SA1/u2", for u in sorted U2: u, share_root_u))."""
    fields: list[bytes] = []
    for seat in sorted(share_roots):
        fields += (canonical.u32(seat), share_roots[seat])
    return canonical.digest("binding", setup, model, canonical.digest("u2", *fields))


def public_coins(binding: bytes) -> bytes:
    """H("SA1/public-coins", binding): 32 bytes that all parties of an attempt share.

    No party chose them alone, but a server can try out cohorts: for accuracy only, never where
    privacy or soundness needs a random choice (SA1 spec 4).
    """
    return canonical.digest("public-coins", binding)


def transcript_digest(result: Result) -> bytes:
    """Digest over the finished attempt: binding, survivors, their certificate and the sum."""
    return canonical.digest(
        "transcript",
        result.binding,
        canonical.encode_list([entry.encode() for entry in result.entries]),
        canonical.encode_list([item.encode() for item in result.endorsements]),
        result.root,
    )
