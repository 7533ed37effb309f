"""Mutants of records: a field is left out where records are hashed, signed or sent.

The list follows from the records' annotated fields, down to the records inside them, so that a
new field has its mutants: it must be in ctx, in the setup, under the signature, under the root,
and on the wire.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import FrameType
from typing import Final, get_args, get_type_hints

from tools.mutation.checks import modules, parse

# Every place where a record's fields are hashed or signed: what for, in which functions, and of
# which record; None stands for all that sign all their fields. `unlisted_sites` finds others.
CONTEXTS: Final[dict[str, tuple[frozenset[str], str | None]]] = {
    "ctx": (frozenset({"RoundParameters.ctx"}), "RoundParameters"),
    "a signature": (frozenset({"SignedMessage.signed_bytes"}), None),
    "setup": (frozenset({"setup_digest"}), "Advertise"),
    "an upload's signature": (frozenset({"SurvivorEntry.body"}), "SurvivorEntry"),
    "the share root": (
        frozenset({"Share.tree", "check_delivered", "_check_pair"}),
        "ShareBox",
    ),
    "the openings' digest": (frozenset({"Unmask.signed_bytes"}), "Opening"),
    "the transcript: survivors": (frozenset({"transcript_digest"}), "SurvivorEntry"),
    "the transcript: signers": (frozenset({"transcript_digest"}), "Endorsement"),
    "the roster's digest": (frozenset({"Roster.digest"}), "Roster"),
}
# `Record.encode` is the wire's, and what the other contexts are cut from.
WIRE: Final = "the encoding"
_WIRE_SITE: Final = "Record.encode"
# Nothing signs itself.
_WITHOUT_SIGNATURE: Final = frozenset({"a signature", "setup", "an upload's signature"})
_HASHING: Final = frozenset(
    {"digest", "encode", "encode_list", "merkle_root", "merkle_verify", "of"}
)


@dataclass(frozen=True, slots=True)
class FieldMutant:
    """`field` of `record` is left out of what `context` hashes or signs.

    Or, in the encoding, stays as it was when such a record was first encoded: what left it out
    altogether could not be decoded, which any test would notice.
    """

    context: str
    record: str
    field: str

    @property
    def name(self) -> str:
        """As in the list of killers."""
        return f"fields: no {self.record}.{self.field} in {self.context}"

    @property
    def near(self) -> frozenset[str]:
        """Modules whose tests most likely notice."""
        own = records()[self.record].__module__.split(".")
        return frozenset({*own, "codec", "known_answers", "parameters", "transcripts"})

    @property
    def errors(self) -> frozenset[str]:
        """None: it is no check."""
        return frozenset()

    def install(self) -> None:
        """Alter the secagg of this process."""
        from secagg.codec import Record  # noqa: PLC0415  # only a test process has it

        sites = frozenset({_WIRE_SITE}) if self.context == WIRE else CONTEXTS[self.context][0]
        original = Record.field_bytes
        first: list[bytes] = []

        def field_bytes(record: Record, *, without: tuple[str, ...] = ()) -> tuple[bytes, ...]:
            caller = sys._getframe(1)  # noqa: SLF001  # where in the code is what decides
            if type(record).__name__ != self.record or not _is_inside(sites, caller):
                return original(record, without=without)
            if self.context != WIRE:
                return original(record, without=(*without, self.field))
            found = list(original(record, without=without))
            place = [item.name for item in fields(record)].index(self.field)  # type: ignore[arg-type]  # records are dataclasses
            first.append(found[place])
            found[place] = first[0]
            return tuple(found)

        Record.field_bytes = field_bytes  # type: ignore[method-assign, assignment]  # that is the mutant


def _is_inside(sites: frozenset[str], frame: FrameType | None) -> bool:
    """Whether one of these functions is at work, through code of secagg and this file alone."""
    while frame is not None:
        if frame.f_globals["__name__"].startswith("secagg."):
            if frame.f_code.co_qualname.split(".<locals>")[0] in sites:
                return True
        elif frame.f_globals is not globals():
            return False
        frame = frame.f_back
    return False


def field_mutants() -> list[FieldMutant]:
    """All of them; imports secagg, so call it in a process that runs no mutant."""
    kinds = records()
    found = []
    for context, (_, root) in CONTEXTS.items():
        roots = [root] if root else [name for name, kind in kinds.items() if _signs_all(kind)]
        for start in roots:
            for kind in _reached(kinds[start]):
                found += [
                    FieldMutant(context, kind.__name__, item.name)
                    for item in fields(kind)
                    if item.name != "signature" or context not in _WITHOUT_SIGNATURE
                ]
    found += [
        FieldMutant(WIRE, name, item.name) for name, kind in kinds.items() for item in fields(kind)
    ]
    return list(dict.fromkeys(found))


def records() -> dict[str, type]:
    """Every kind of record in secagg, by name."""
    from secagg import evidence, journal, messages, roster  # noqa: PLC0415  # see above
    from secagg.codec import Record  # noqa: PLC0415  # see above

    del evidence, journal, messages, roster  # they define the records
    kinds = sorted(_subclasses(Record), key=lambda kind: kind.__name__)
    return {kind.__name__: kind for kind in kinds if "LABEL" in vars(kind)}


def _signs_all(kind: type) -> bool:
    return hasattr(kind, "SIGNED_LABEL") and "signed_bytes" not in vars(kind)


def _subclasses(kind: type[object]) -> Iterator[type[object]]:
    for below in kind.__subclasses__():
        if below.__module__.startswith("secagg."):
            yield below
        yield from _subclasses(below)


def _reached(kind: type) -> list[type]:
    """The record and all records inside its fields."""
    found = [kind]
    for hint in get_type_hints(kind).values():
        for inner in _records(hint):
            found += [one for one in _reached(inner) if one not in found]
    return found


def _records(hint: object) -> Iterator[type]:
    if isinstance(hint, type) and hasattr(hint, "field_bytes"):
        yield hint
    for argument in get_args(hint):
        yield from _records(argument)


def misplaced_sites() -> list[str]:
    """Functions that hash or sign a record's fields and stand in no context, and the reverse."""
    listed = {site for sites, _ in CONTEXTS.values() for site in sites} | {_WIRE_SITE}
    found = {place for module in modules() for place in _sites(parse(module), "")}
    return sorted(found ^ listed)


def _sites(node: ast.AST, place: str, *, is_hashed: bool = False) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from _sites(child, f"{place}.{child.name}".lstrip("."))
            continue
        match child:
            case ast.Call(func=ast.Attribute(attr="field_bytes")):
                yield place
            case ast.Call(func=ast.Attribute(attr="encode"), args=[]) if is_hashed:
                yield place
        hashes = isinstance(child, ast.Call) and _called(child) in _HASHING
        yield from _sites(child, place, is_hashed=is_hashed or hashes)


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
