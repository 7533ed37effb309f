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
    fields = []
    for seat in sorted(advertises):
        item = advertises[seat]
        fields.append(canonical.u32(seat))
        fields.append(
            canonical.digest(
                "adv", item.ctx, item.nonce, item.enc_key, item.mask_key, canonical.u32(item.seat)
            )
        )
    return canonical.digest("setup", ctx, *fields)


def binding_digest(setup: bytes, model: bytes, share_roots: Mapping[int, bytes]) -> bytes:
    """H("SA1/binding", setup, model_hash, H("SA1/u2", for u in sorted U2: u, share_root_u))."""
    fields = []
    for seat in sorted(share_roots):
        fields += (canonical.u32(seat), share_roots[seat])
    return canonical.digest("binding", setup, model, canonical.digest("u2", *fields))


def transcript_digest(result: Result) -> bytes:
    """Digest over the finished attempt: binding, survivors, their certificate and the sum."""
    signers = [
        canonical.encode("signed-by", canonical.u32(seat), signature)
        for seat, signature in result.certificate
    ]
    return canonical.digest(
        "transcript",
        result.binding,
        canonical.encode_list([entry.encode() for entry in result.entries]),
        canonical.encode_list(signers),
        result.root,
    )
