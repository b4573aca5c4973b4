"""Draws small changes of the code, with the operators of cosmic-ray: `<` for `<=`, `or` for `and`, 2 for 1, no loop.

A place in the code is drawn first, then one of the changes that are possible there; so a `+`, which eleven operators
can replace, is drawn no more often than an `if`. The draw depends on the seed and on the text of each line, not on its
number: an edit elsewhere does not change which mutants are drawn.

What no test of a behavior could tell apart is not drawn:

- type annotations, aliases of types, decorators for the type checker, and the `*` between parameters;
- what Python cannot compile, or compiles with a warning, or compiles to the same;
- `is` for `==` and the reverse: whether equal strings are one object is up to the interpreter.
"""

import ast
import difflib
import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

# What the operators look at, by the names of parso: asking each of them about every node would take minutes.
MUTABLE_NODES = {"number", "comparison", "factor", "not_test", "test", "except_clause", "decorator"} | {
    f"{statement}_stmt" for statement in ("if", "while", "for", "assert")
}
MUTABLE_WORDS = {"+", "-", "*", "/", "//", "%", "**", ">>", "<<", "|", "&", "^"} | {
    *("True", "False", "and", "or", "break", "continue"),
}
SAME_FOR_EVERY_TEST = frozenset(
    f"core/ReplaceComparisonOperator_{pair}" for pair in ("Eq_Is", "Is_Eq", "NotEq_IsNot", "IsNot_NotEq")
)
NEED_ARGUMENTS = frozenset({"core/VariableReplacer", "core/VariableInserter"})
CHECKER_ONLY = frozenset({"overload", "override", "final"})
BUILT_IN_TYPES = frozenset({"str", "int", "float", "bool", "bytes", "list", "dict"})


class _Operator(Protocol):
    def mutation_positions(self, node: object) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]: ...


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file, as cosmic-ray counts it: the n-th place in the file where the operator applies."""

    path: str
    line: int
    operator: str
    occurrence: int
    diff: str
    """The lines that the change removes and adds, without context."""
    key: str
    """A name that stays the same when other lines of the file change."""

    def apply(self, source: str) -> str:
        """Return the source with the change, as one valid file."""
        changed = _changed(source, self.operator, self.occurrence)
        assert changed is not None  # noqa: S101 - it was drawn because it compiles
        return changed


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file can be changed, and in which ways."""

    path: str
    line: int
    key: str
    changes: tuple[tuple[str, int], ...]

    def number(self, seed: int) -> int:
        """Return the number that decides whether this place is drawn, and which of its changes."""
        return int.from_bytes(hashlib.sha256(f"{seed}\n{self.key}".encode()).digest())


def draw_mutants(root: Path, paths: Sequence[str], seed: int, wanted: int) -> list[Mutant]:
    """Return this many mutants of files and those under folders, each at another place, in the order of the draw."""
    files = sorted(
        {file for path in paths for file in ([root / path] if path.endswith(".py") else (root / path).rglob("*.py"))}
    )
    sources = {file.relative_to(root).as_posix(): file.read_text() for file in files}
    places = [place for path, source in sources.items() for place in places_in(path, source)]
    drawn: list[Mutant] = []
    for place in sorted(places, key=lambda one: one.number(seed)):
        if len(drawn) == wanted:
            break
        if mutant := _mutant_at(place, sources[place.path], seed):
            drawn.append(mutant)
    return drawn


def places_in(path: str, source: str) -> Iterator[Place]:
    """Yield each place of a file at which an operator applies, from top to bottom."""
    lines = source.splitlines()
    excluded = _type_positions(source)
    counts: Counter[str] = Counter()
    changes: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for node in ast_nodes(get_ast(source)):
        if node.type not in MUTABLE_NODES and getattr(node, "value", None) not in MUTABLE_WORDS:
            continue
        for name, operator in _operators().items():
            for start, _ in operator.mutation_positions(node):
                changes[start].append((name, counts[name]))
                counts[name] += 1
        if node.parent is not None and node.parent.type == "parameters":
            excluded.append((node.start_pos, node.end_pos))
    texts: Counter[str] = Counter()
    for line, column in sorted(changes):
        text = lines[line - 1].strip()
        indent = len(lines[line - 1]) - len(lines[line - 1].lstrip())
        key = f"{path}\n{text}\n{column - indent}"
        texts[key] += 1
        is_for_checker = text.startswith("@") and text[1:].rpartition(".")[2] in CHECKER_ONLY
        if not is_for_checker and not any(start <= (line, column) < end for start, end in excluded):
            yield Place(path, line, f"{key}\n{texts[key]}", tuple(changes[line, column]))


@cache
def _operators() -> dict[str, _Operator]:
    names = sorted(set(operator_names()) - SAME_FOR_EVERY_TEST - NEED_ARGUMENTS)
    return {name: get_operator(name)() for name in names}


def _mutant_at(place: Place, source: str, seed: int) -> Mutant | None:
    """Return the first valid change of a place, beginning with the one that was drawn."""
    first = place.number(seed) // 7919 % len(place.changes)
    for operator, occurrence in place.changes[first:] + place.changes[:first]:
        if changed := _changed(source, operator, occurrence):
            lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), lineterm="", n=0)
            diff = "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
            key = hashlib.sha256(f"{place.key}\n{operator}\n{diff}".encode()).hexdigest()[:16]
            return Mutant(place.path, place.line, operator, occurrence, diff, key)
    return None


def _changed(source: str, operator: str, occurrence: int) -> str | None:
    """Return the changed source, if that is another program and Python compiles it without a warning."""
    try:
        changed = mutate_code(source, get_operator(operator)(), occurrence)
    except AttributeError:  # cosmic-ray 8.7 cannot replace a dotted name in a list of exceptions
        return None
    if changed is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(changed, "mutant", "exec")
        except (SyntaxError, ValueError):
            return None
    return changed if ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)) else None


def _type_positions(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where types are written, which only a type checker reads."""
    spans: list[tuple[tuple[int, int], tuple[int, int]]] = []
    lines = source.splitlines()

    def column(line: int, byte: int) -> int:
        return len(lines[line - 1].encode()[:byte].decode())

    def exclude(node: ast.AST | None) -> None:
        if isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None and node.end_col_offset is not None:
            start = (node.lineno, column(node.lineno, node.col_offset))
            spans.append((start, (node.end_lineno, column(node.end_lineno, node.end_col_offset))))

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.arg() | ast.AnnAssign():
                exclude(node.annotation)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                exclude(node.returns)
            case ast.Assign(value=ast.BinOp() as value) if _is_type(value):
                exclude(value)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                exclude(node)
            case ast.Call(func=ast.Name(id="cast"), args=[kind, _]):
                exclude(kind)
            case _:
                pass
    return spans


def _is_type(node: ast.expr) -> bool:
    """Return whether an expression is an alias such as `Text | Image | None`."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_type(left) and _is_type(right)
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(value=ast.Name(id=name)):
            return name in BUILT_IN_TYPES or (name[:1].isupper() and not name.isupper())
        case ast.Constant(value=None):
            return True
        case _:
            return False
