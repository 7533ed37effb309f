"""Mutants of the code: each check, and each field of a hash or signature, deleted alone.

The list follows from the source, so a check that is written tomorrow has its mutants tomorrow.
What is deleted: a refusal (a branch that raises, refuses, aborts or skips never runs, a `raise`
elsewhere does nothing), a part of its condition, the call of a check, one field or the label of a
hash, a signature or a key derivation, one side of an intersection that says whose word counts;
where limits stand, a part of any condition. What is altered there: a bound by one, what is
done only on a condition into always and never.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "secagg"
# Nothing is decided in these: names of errors and effects, interfaces, and the simulator.
LEFT_OUT: Final = frozenset({"__init__", "effects", "errors", "ports", "testing"})
# Refusals of what only our own caller can get wrong have mutants only where a round's rules stand.
OWN_FAULTS: Final = frozenset({"LocalProtocolError", "NonFiniteError", "ParameterError"})
RULES: Final = frozenset({"parameters", "policy", "roster", "server", "silo", "view"})
# A round's limits: here every condition counts, a refusal's or not, and every bound.
DECIDES: Final = frozenset({"parameters", "policy", "repeats", "roster", "server"})
# Arithmetic and containers, whose values the mirror tests compare with another way to get them:
# only what they hash has mutants.
PLAIN: Final = frozenset(
    {"canonical", "codec", "coefficients", "graph", "ids", "prg", "quantizer", "ring"}
    | {"secretbytes", "shamir", "suites"}
)

# Bounds, and the same moved by one.
_MOVED: Final[dict[type[ast.cmpop], tuple[str, type[ast.cmpop]]]] = {
    ast.Lt: ("<=", ast.LtE),
    ast.LtE: ("<", ast.Lt),
    ast.Gt: (">=", ast.GtE),
    ast.GtE: (">", ast.Gt),
}
_CHECK: Final = re.compile(
    r"_?(check|verify|require|refuse|judge|see|merkle_verify|wipe|exchange|read_public"
    r"|accept|discard)\w*"
)
_REFUSES: Final = re.compile(r"_?(refuse|abort)\w*")
_HASHES: Final = frozenset({"digest", "encode"})


@dataclass(frozen=True, slots=True)
class Alteration:
    """One deletion.

    Attributes:
        name: stays the same while the altered expression and its function do.
        errors: names of the errors that would not be raised.
        apply: alters the tree that it was read from.
    """

    name: str
    place: str
    errors: frozenset[str]
    apply: Callable[[], None] = field(repr=False, compare=False)


def modules() -> tuple[str, ...]:
    """Modules of secagg that have mutants."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if path.stem not in LEFT_OUT)
    return tuple(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in paths)


def source(module: str) -> Path:
    """Where the module is written."""
    return PACKAGE.joinpath(*module.split(".")).with_suffix(".py")


def parse(module: str) -> ast.Module:
    """The module's tree, fresh: mutants alter it."""
    return ast.parse(source(module).read_text("utf-8"))


def alterations(module: str, tree: ast.Module) -> list[Alteration]:
    """All of this tree, in the order of the source; apply one, then throw the tree away."""
    found = []
    seen: dict[str, int] = {}
    makers = None if module in PLAIN else _makers(tree)
    for place, what, errors, apply in _walk(tree, "", makers, decides=module in DECIDES):
        if errors and errors <= OWN_FAULTS and module not in RULES:
            continue
        name = f"{module}.{place}: {what}"
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name} #{seen[name]}"
        found.append(Alteration(name, place, errors, apply))
    return found


_Errors = frozenset[str]
_Found = tuple[str, str, _Errors, Callable[[], None]]
_One = tuple[str, _Errors, Callable[[], None]]
_Replace = Callable[[ast.AST], None]
_NONE: Final[_Errors] = frozenset()


def _makers(tree: ast.Module) -> dict[str, str]:
    """Functions of the module that return an error to be raised, with its name."""
    return {
        item.name: item.returns.id
        for item in ast.walk(tree)
        if isinstance(item, ast.FunctionDef) and isinstance(item.returns, ast.Name)
        if item.returns.id.endswith("Error")
    }


def _walk(
    node: ast.AST, place: str, makers: dict[str, str] | None, *, decides: bool
) -> Iterator[_Found]:
    """Every alteration below `node`, which stands in the function or class `place`.

    Without `makers` those of hashes alone.
    """
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for position, child in enumerate(children):
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inside = f"{place}.{child.name}".lstrip(".")
                yield from _walk(child, inside, makers, decides=decides)
                continue
            if place and name not in {"annotation", "returns", "decorator_list", "type_params"}:
                replace = _replacer(node, name, position if isinstance(value, list) else None)
                guarded = isinstance(node, ast.If) and name == "body" and _refuses(node)
                if makers is not None and isinstance(child, ast.Raise) and not guarded:
                    errors = _raised([child], makers)
                    what = f"no raise: {_text(child)}"
                    yield place, what, errors, _replaced(replace, ast.Pass())
                for what, errors, apply in _alterations(child, replace, makers):
                    yield place, what, errors, apply
                if decides:
                    is_taken = isinstance(node, ast.If) and name == "test" and _refuses(node)
                    for what, apply in _conditions(child, replace, is_taken=is_taken):
                        yield place, what, _NONE, apply
            yield from _walk(child, place, makers, decides=decides)


def _replacer(parent: ast.AST, name: str, position: int | None) -> _Replace:
    def replace(new: ast.AST) -> None:
        if position is None:
            setattr(parent, name, new)
        else:
            getattr(parent, name)[position] = new

    return replace


def _alterations(node: ast.AST, replace: _Replace, makers: dict[str, str] | None) -> Iterator[_One]:
    """Of this node alone."""
    for what, apply in (*_hashed(node), *_derived(node, replace)):
        yield what, _NONE, apply
    if makers is None:
        return
    match node:
        case ast.If() if _refuses(node):
            errors = _raised(node.body, makers)
            yield f"never: {_text(node.test)}", errors, _set(node, "test", ast.Constant(False))
            for what, apply in _parts(node.test, _replacer(node, "test", None)):
                yield what, errors, apply
        case ast.BinOp(op=ast.BitAnd()):
            for side in (node.left, node.right):
                yield f"only {_text(side)} of: {_text(node)}", _NONE, _replaced(replace, side)
        case ast.Expr(value=ast.Call() as call) if _CHECK.fullmatch(_called(call)):
            yield f"no call: {_text(call)}", _NONE, _replaced(replace, ast.Pass())
        case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)]) if not call.args:
            bare = ast.If(ast.Constant(value=True), node.body, [])
            yield f"not inside: {_text(call)}", _NONE, _replaced(replace, bare)
        case _:
            pass


def _parts(test: ast.expr, replace: _Replace) -> Iterator[tuple[str, Callable[[], None]]]:
    """A refusal's condition without one of its reasons to refuse."""
    match test:
        case ast.BoolOp(op=ast.Or()):
            for value in test.values:
                rest = [one for one in test.values if one is not value]
                left = ast.BoolOp(test.op, rest) if len(rest) > 1 else rest[0]
                yield f"no {_text(value)} in: {_text(test)}", _replaced(replace, left)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(ops=[_, _, *_]) as chain):
            terms = [chain.left, *chain.comparators]
            links: list[ast.expr] = [
                ast.Compare(terms[place], [operator], [terms[place + 1]])
                for place, operator in enumerate(chain.ops)
            ]
            for link in links:
                rest = [one for one in links if one is not link]
                left = ast.UnaryOp(ast.Not(), ast.BoolOp(ast.And(), rest) if rest[1:] else rest[0])
                yield f"no {_text(link)} in: {_text(test)}", _replaced(replace, left)
        case ast.Compare(left=ast.Tuple(elts=ours), comparators=[ast.Tuple(elts=theirs)]):
            for one, other in zip(ours, theirs, strict=True):
                what = f"no {_text(one)} in: {_text(test)}"
                yield what, _both(_drop(ours, one), _drop(theirs, other))
        case _:
            pass


def _conditions(
    node: ast.AST, replace: _Replace, *, is_taken: bool
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Of a condition wherever it stands.

    Args:
        node: perhaps one.
        replace: puts something in its place.
        is_taken: whether it is a refusal's, whose alternatives are `_parts`.
    """
    match node:
        case ast.BoolOp(op=joined, values=values):
            if not (is_taken and isinstance(joined, ast.Or)):
                for value in values:
                    rest = [one for one in values if one is not value]
                    left = ast.BoolOp(joined, rest) if rest[1:] else rest[0]
                    yield f"no {_text(value)} in: {_text(node)}", _replaced(replace, left)
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                if type(operator) in _MOVED:
                    sign, moved = _MOVED[type(operator)]
                    others = [*operators[:place], moved(), *operators[place + 1 :]]
                    which = f" at {place + 1}" if operators[1:] else ""
                    yield f"{sign}{which} in: {_text(node)}", _set(node, "ops", others)
        case ast.IfExp(body=chosen, orelse=other):
            for what, value in (("always", chosen), ("never", other)):
                yield f"{what}: {_text(node)}", _replaced(replace, value)
        case _:
            pass


def _hashed(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """A hash or a signature without one field, or under another label."""
    match node:
        case ast.AugAssign(value=ast.Tuple(elts=members)):  # collected before they are hashed
            for member in members:
                yield f"no {_text(member)} in: {_text(node)}", _drop(members, member)
        # `text.encode("utf-8")` has no fields
        case ast.Call(args=[label, _, *_] as items) if _called(node) in _HASHES:
            for item in items[1:]:
                yield f"no {_text(item)} in: {_text(node)}", _drop(items, item)
            if isinstance(label, ast.Constant) and isinstance(label.value, str):
                yield f"another label: {_text(node)}", _set(label, "value", f"{label.value}-x")
        case _:
            pass


def _derived(node: ast.AST, replace: _Replace) -> Iterator[tuple[str, Callable[[], None]]]:
    """A key that is derived without its salt, its label, or the second of its secrets."""
    match node:
        case ast.Call(func=ast.Name(id="hkdf"), keywords=keywords):
            for keyword in keywords:
                is_empty = isinstance(keyword.value, ast.Constant) and not keyword.value.value
                if keyword.arg in {"salt", "info"} and not is_empty:
                    what = f"no {keyword.arg} in: {_text(node)}"
                    yield what, _set(keyword, "value", ast.Constant(b""))
        case ast.Call(func=ast.Attribute(value=ast.Call() as first, attr="join"), args=[second]):
            yield f"no {_text(second)} in: {_text(node)}", _replaced(replace, first)
        case _:
            pass


def _refuses(node: ast.If) -> bool:
    """Whether the branch taken ends in a refusal, or passes over what does not count."""
    match node.body[-1]:
        case ast.Raise() | ast.Continue():
            return True
        case ast.Return(value=ast.Constant(value=False) | ast.List(elts=[]) | ast.Tuple(elts=[])):
            return True
        case ast.Return(value=ast.Name(id=name)):
            return name == "short"  # a list of effects that abort
        case ast.Expr(value=ast.Call() as call) | ast.Return(value=ast.Call() as call):
            return _REFUSES.fullmatch(_called(call)) is not None
        case _:
            return False


def _raised(body: list[ast.stmt], makers: dict[str, str]) -> _Errors:
    """Names of the errors that these statements raise."""
    names = set()
    for item in body:
        call = item.exc if isinstance(item, ast.Raise) else getattr(item, "value", None)
        if isinstance(call, ast.Call):
            name = _called(call)
            if isinstance(item, ast.Raise) or name == "_refuse":
                names.add(makers.get(name, name))
    return frozenset("PolicyRefusedError" if name == "_refuse" else name for name in names)


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _text(node: ast.AST, limit: int = 100) -> str:
    """The node's source on one line."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# What a mutant does when it is chosen. Deferred: all mutants of a tree are listed first.


def _set(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


def _replaced(replace: _Replace, new: ast.AST) -> Callable[[], None]:
    return lambda: replace(new)


def _drop(items: list[ast.expr], item: ast.expr) -> Callable[[], None]:
    def drop() -> None:
        items[:] = [one for one in items if one is not item]

    return drop


def _both(one: Callable[[], None], other: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        one()
        other()

    return both
