"""Find every pattern and text function of the package, and run each on text that is made to be slow.

A pattern is found wherever the package has it: compiled in a module, a class or a container, as an argument of a
function of `re`, or as a string that is passed on and reads like a pattern. No pattern is listed here, so a new one is
tried too. The text for a pattern is made from the pattern itself: something it repeats, many times, with an end that
does not match.

Only processor time is judged. Text four times as long may take eight times as long: 4 is linear, 16 is quadratic.
The processor clock may tick as coarsely as 10 ms, so no time below `FLOOR_S` is compared; what is faster is tried on
longer text, up to a megabyte. Nearly everything is fast on the first text and is not tried again.

As a program, it prints whatever is not linear in the package that it is given, a line each.
"""

import ast
import builtins
import gc
import importlib
import inspect
import pkgutil
import re
import resource
import sys
import tomllib
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from re import _constants as sre  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as sre_parser  # pyright: ignore[reportAttributeAccessIssue]
from time import process_time
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, cast

from holdfast.text import LazyPattern

FIRST_CHARS = 3_000
SIZES = tuple(4_000 * 4**power for power in range(5))
"""Up to a megabyte."""
MAX_GROWTH = 8
FLOOR_S = 0.1
GLANCE_S = 0.004
"""Faster on the first text is fast enough: a quadratic pattern takes 10 ms or more there."""
ATTEMPTS = 3
"""A measurement must be confirmed so often before it counts."""
CERTAIN_S = 1.0
"""If a text takes so long, though a quarter of it took less than `FLOOR_S`, half of the text confirms it."""
MAX_MEASURED = 3
"""How many of the texts that are slow at a glance are measured."""
LIMIT_S = 120
"""The processor time of the whole program: exponential work ends here, with a failure."""
UNITS = (
    "255,0,17,", "1", "1,", "1.", "#1", "#1\n", "[[],\n", "[", '{"a":', " ", " \n", "\n", "\t", "\r\n", "-", "- ",
    "---\n", '"', "'", "\\", "`", "```\n", "<", "<a>", "</", "<!--", "-----BEGIN ", "(", "()", "a", "a ", "A", "aA",
    "a_", "a.", "a-", "a/", "./", "://", "://a:", "a@", "*", "# ", "=", "a:", "|", ". ", "é", "中", "中 ", "。",
    "\u2028", "\U0001f600", "\ud800", "\0", "\x1b[", "token=a", "password is a", "Bearer a", "eyJaaaaaaaaa.", "<think>",
    "```json\n", '[artifact: "" (id: )[',
)  # fmt: skip
"""Text that was slow once, and text like it."""
ENDS = ("\0", "")
SAMPLES = "a1A ,.-_/#<>\"'\\\n\t(:é中"
READS_LIKE_A_PATTERN = re.compile(r"\\[sSdDwWbB]|\(\?|[\])][*+?{]|\.[*+?]")
FLAGS_AT = {
    "compile": 1, "match": 2, "fullmatch": 2, "search": 2, "findall": 2, "finditer": 2, "split": 3, "sub": 4, "subn": 4,
}  # fmt: skip
"""The functions of `re` that take a pattern, and which of their arguments are the flags."""
MAX_DEPTH = 3
UNKNOWN = "ab"
"""Stands in a pattern for a part that only a call knows, such as an escaped word."""
UNREADABLE = re.compile("")
BOUNDED = {
    "(?P<mail>": "a run of at most 200 characters, the longest path that is kept",
    r"\b(?:(?<!\bi )(?<!\bit )": "a sentence of at most 300 characters",
}
"""How the patterns begin that only read short text, and what. `test_linear_text.py` holds their callers to it."""


class FoundPattern(NamedTuple):
    """A pattern, where it is, and whether it is only ever matched at the start of a text."""

    where: str
    pattern: re.Pattern[str]
    is_anchored: bool


def import_modules(package_name: str) -> list[ModuleType]:
    """Return every module of a package that can be imported without an extra that is missing."""
    package = importlib.import_module(package_name)
    found = [package]
    for info in pkgutil.walk_packages(package.__path__, f"{package_name}."):
        if not info.name.endswith(".__main__"):
            with suppress(ImportError):
                found.append(importlib.import_module(info.name))
    return found


def find_patterns(modules: Iterable[ModuleType]) -> list[FoundPattern]:
    """Return every pattern of the modules, each once."""
    found: dict[tuple[str, int], str] = {}
    uses: dict[tuple[str, int], set[bool]] = {}
    for module in modules:
        for name, value in vars(module).items():
            if not name.startswith("__"):
                for inner in _patterns_in(value, module.__name__):
                    if isinstance(inner, re.Pattern) and (pattern := _compiled(inner)):
                        found.setdefault(_key(pattern), f"{module.__name__}.{name}")
        for where, pattern, is_anchored in _patterns_in_code(module):
            found.setdefault(_key(pattern), where)
            uses.setdefault(_key(pattern), set()).add(is_anchored)
    return [FoundPattern(where, re.compile(*key), uses.get(key) == {True}) for key, where in found.items()]


def _key(pattern: re.Pattern[str]) -> tuple[str, int]:
    return pattern.pattern, pattern.flags


def _patterns_in(value: object, module: str = "", depth: int = 0) -> Iterator[object]:
    """Yield the compiled patterns and the strings of a value, of a container, or of a module's own class."""
    inner: Iterable[object] = ()
    if isinstance(value, LazyPattern):
        yield value.compiled()
    elif isinstance(value, re.Pattern | str):
        yield value
    elif isinstance(value, Mapping):
        inner = cast("Mapping[object, object]", value).values()
    elif isinstance(value, list | tuple | set | frozenset):
        inner = cast("Iterable[object]", value)
    elif isinstance(value, type) and value.__module__ == module:
        inner = vars(value).values()
    if depth < MAX_DEPTH:
        for item in inner:
            yield from _patterns_in(item, module, depth + 1)


def _compiled(value: object, flags: int = 0) -> re.Pattern[str] | None:
    if isinstance(value, re.Pattern):
        value, flags = value.pattern, value.flags
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    try:
        return re.compile(value, flags) if isinstance(value, str) else None
    except (re.error, OverflowError):
        return None


def _patterns_in_code(module: ModuleType) -> Iterator[tuple[str, re.Pattern[str], bool]]:  # noqa: C901 - one walk
    """Yield the patterns that a module's code uses, and whether it only matches them at the start of a text."""
    tree = ast.parse(Path(cast("str", module.__file__)).read_text(encoding="utf-8"))
    nodes = [*ast.walk(tree)]
    assigned = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    anchored: set[ast.AST] = set()
    passed_on: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            is_of_re, method = _called(node)
            # `match` with a position is called in a loop: that is a search.
            is_anchored = method in {"match", "fullmatch"} and len(node.args) == (2 if is_of_re else 1)
            if is_of_re and node.args:
                flags = [word.value for word in node.keywords if word.arg == "flags"] or node.args[FLAGS_AT[method] :]
                known_flags = next(_values(flags[0], module, assigned), 0) if flags else 0
                for value in _values(node.args[0], module, assigned):
                    pattern = _compiled(value, known_flags if isinstance(known_flags, int) else 0)
                    if pattern is None:
                        yield f"{module.__name__}:{node.lineno}", UNREADABLE, False
                    elif method != "compile":
                        yield f"{module.__name__}:{node.lineno}", pattern, is_anchored
                    elif node not in assigned.values():
                        yield f"{module.__name__}:{node.lineno}", pattern, False
            elif is_anchored:
                anchored.add(cast("ast.Attribute", node.func).value)
            # A string that reads like a pattern may be one that the called function compiles.
            passed_on |= {argument.id for argument in node.args if isinstance(argument, ast.Name) and not is_of_re}
    loaded = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    for name, is_anchored in {(node.id, node in anchored) for node in loaded if node.id in vars(module)}:
        for inner in _patterns_in(vars(module)[name]):
            is_passed = name in passed_on and READS_LIKE_A_PATTERN.search(str(inner))
            if (is_passed or isinstance(inner, re.Pattern)) and (pattern := _compiled(inner)):
                yield f"{module.__name__}.{name}", pattern, is_anchored


def _called(node: ast.Call) -> tuple[bool, str]:
    """Return whether a call is of a function of `re` that takes a pattern, and the name of the attribute called."""
    if not isinstance(node.func, ast.Attribute):
        return False, ""
    owner, name = node.func.value, node.func.attr
    return isinstance(owner, ast.Name) and owner.id == "re" and name in FLAGS_AT, name


def _values(node: ast.expr, module: ModuleType, assigned: Mapping[str, ast.expr]) -> Iterator[object]:
    """Yield the values that an expression may have, with `UNKNOWN` for the names that only a call knows."""
    if isinstance(node, ast.IfExp):
        yield from _values(node.body, module, assigned)
        yield from _values(node.orelse, module, assigned)
        return
    # Parsed again, so that the names can be replaced in a copy.
    expression = ast.Expression(_Known(module, assigned).visit(ast.parse(ast.unparse(node), mode="eval").body))
    try:
        yield eval(compile(ast.fix_missing_locations(expression), module.__name__, "eval"), dict(vars(module)))  # noqa: S307 - the package's own
    except Exception:  # noqa: BLE001 - reported as unreadable
        yield None


class _Known(ast.NodeTransformer):
    """Puts what a local name was assigned in its place, and `UNKNOWN` where that cannot be read from the code."""

    def __init__(self, module: ModuleType, assigned: Mapping[str, ast.expr]) -> None:
        self._module, self._assigned = module, assigned

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if hasattr(self._module, node.id) or hasattr(builtins, node.id):
            return node
        value = self._assigned.get(node.id)
        others = {name: one for name, one in self._assigned.items() if name != node.id}
        values = [one for one in _values(value, self._module, others) if isinstance(one, str)] if value else []
        return ast.Constant(values[0] if values else UNKNOWN)


def texts_for(pattern: re.Pattern[str]) -> list[tuple[str, str, str]]:
    """Return texts on which a pattern may be slow, each as a start, a repeated unit and an end."""
    texts: dict[tuple[str, str, str], None] = {}
    for before, body in _repeats(sre_parser.parse(pattern.pattern, pattern.flags), ""):
        pairs = [("", body), ("", before + body), ("", before), (before, body)]
        texts |= dict.fromkeys((start, unit, end) for start, unit in pairs if unit for end in ENDS)
    return [*(texts | dict.fromkeys(("", unit, ENDS[0]) for unit in UNITS))]


def _repeats(tree: Any, before: str) -> Iterator[tuple[str, str]]:
    """Yield for each repetition an example of the text before it, and one of the text it repeats."""
    for op, argument in tree:
        if op in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}:
            low, high, body = argument
            if high > 3:
                for example in _examples(body):
                    yield before, example
            yield from _repeats(body, before)
            before += _example(body) * max(1, min(low, 64))
            continue
        for inner in _inside(op, argument):
            yield from _repeats(inner, before)
        before += _example([(op, argument)])


def _inside(op: Any, argument: Any) -> list[Any]:
    if op is sre.SUBPATTERN:
        return [argument[3]]
    if op is sre.BRANCH:
        return argument[1]
    if op in {sre.ASSERT, sre.ASSERT_NOT}:
        return [argument[1]]
    return [argument] if op is sre.ATOMIC_GROUP else []


def _examples(tree: Any) -> list[str]:
    """Return some texts that a part of a pattern matches: one for each kind of character, and each alternative."""
    items = list(tree)
    if len(items) == 1:
        op, argument = items[0]
        if op is sre.IN:
            return _members(argument)[:4]
        if op is sre.SUBPATTERN:
            return _examples(argument[3])
        if op is sre.ATOMIC_GROUP:
            return _examples(argument)
        if op is sre.BRANCH:
            return [example for inner in argument[1][:6] for example in _examples(inner)[:3]]
        if op in {sre.ANY, sre.NOT_LITERAL}:
            return ["a", " "]
    return [example] if (example := _example(items)) else []


def _example(tree: Any) -> str:
    return "".join(_example_of(op, argument) for op, argument in tree)


def _example_of(op: Any, argument: Any) -> str:
    if op is sre.LITERAL:
        return chr(argument)
    if op is sre.NOT_LITERAL:
        return "a" if argument != ord("a") else "b"
    if op is sre.ANY:
        return "a"
    if op is sre.IN:
        return next(iter(_members(argument)), "")
    if op in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}:
        return _example(argument[2]) * max(1, min(argument[0], 64))
    if op in {sre.SUBPATTERN, sre.BRANCH, sre.ATOMIC_GROUP}:
        return _example(_inside(op, argument)[0])
    return ""


def _members(items: Any) -> list[str]:
    """Return some characters of a class."""
    is_negated = items[0][0] is sre.NEGATE
    rest = items[1:] if is_negated else items
    own = [chr(argument) if op is sre.LITERAL else chr(argument[0]) for op, argument in rest if op is not sre.CATEGORY]
    known = [char for char in SAMPLES if any(_is_member(char, op, argument) for op, argument in rest) != is_negated]
    return list(dict.fromkeys([*known, *([] if is_negated else own)]))


def _is_member(char: str, op: Any, argument: Any) -> bool:
    if op is sre.LITERAL:
        return ord(char) == argument
    if op is sre.RANGE:
        return argument[0] <= ord(char) <= argument[1]
    kinds = {
        sre.CATEGORY_DIGIT: char.isdigit(), sre.CATEGORY_SPACE: char.isspace(),
        sre.CATEGORY_WORD: char.isalnum() or char == "_",
    }  # fmt: skip
    opposites = {sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT, sre.CATEGORY_NOT_SPACE: sre.CATEGORY_SPACE,
                 sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD}  # fmt: skip
    return not kinds[opposites[argument]] if argument in opposites else kinds[argument]


def find_text_functions(modules: Iterable[ModuleType]) -> Iterator[tuple[str, Callable[..., object], int]]:
    """Yield the public functions that need texts and nothing else, and how many they need."""
    for module in modules:
        for name, value in vars(module).items():
            inner: object = inspect.unwrap(value) if callable(value) else None
            if name.startswith("_") or not isinstance(inner, FunctionType) or inner.__module__ != module.__name__:
                continue
            if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
                continue
            if inspect.signature(inner).return_annotation in {None, "None"}:
                continue
            needed = [
                one for one in inspect.signature(inner).parameters.values()
                if one.default is one.empty and one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD}
            ]  # fmt: skip
            if needed and all(one.annotation in {str, "str"} and one.kind is not one.KEYWORD_ONLY for one in needed):
                yield f"{module.__name__}.{name}", value, len(needed)


def _is_fast(work: Callable[[str], object], text: str) -> bool:
    return any(_seconds(work, text) < GLANCE_S for _ in range(ATTEMPTS))


def describe_growth(work: Callable[[str], object], texts: Iterable[tuple[str, str, str]]) -> str:
    """Return on which text the processor time of some work grows too fast; empty where it grows on none."""
    slow = (text for text in texts if not _is_fast(work, _text_of(text, FIRST_CHARS)))
    for start, unit, end in islice(slow, MAX_MEASURED):

        def is_slow_at_half(size: int, before: float, parts: tuple[str, str, str] = (start, unit, end)) -> bool:
            # A machine that stands still for a second is not a slow pattern.
            return _seconds(work, _text_of(parts, size // 2)) >= MAX_GROWTH**0.5 * before

        before = _seconds(work, _text_of((start, unit, end), SIZES[0] // 4))
        for size in SIZES:
            after = _seconds(work, _text_of((start, unit, end), size))
            attempts = ATTEMPTS
            while after >= max(FLOOR_S, MAX_GROWTH * before):
                attempts -= 1
                if not attempts or (after >= CERTAIN_S and before < FLOOR_S and is_slow_at_half(size, before)):
                    text = f"{start + unit + unit + end!r:.100}"
                    return f"on {text}: {before:.3f} s for {size // 4:,} characters, {after:.3f} s for {size:,}"
                before = _seconds(work, _text_of((start, unit, end), size // 4))
                after = _seconds(work, _text_of((start, unit, end), size))
            if after >= FLOOR_S:
                break
            before = after
    return ""


def _text_of(parts: tuple[str, str, str], size: int) -> str:
    start, unit, end = parts
    return start + unit * (size // len(unit)) + end


def _seconds(work: Callable[[str], object], text: str) -> float:
    started = process_time()
    work(text)
    return process_time() - started


def slow_patterns(patterns: Iterable[FoundPattern]) -> Iterator[str]:
    """Yield each pattern whose time grows faster than the text."""
    for where, pattern, is_anchored in patterns:
        if pattern is UNREADABLE:
            yield f"{where} uses a pattern that cannot be read from the code"
            continue

        def work(text: str, pattern: re.Pattern[str] = pattern, *, is_anchored: bool = is_anchored) -> object:
            return (pattern.match(text), pattern.fullmatch(text)) if is_anchored else pattern.sub("", text)

        if growth := describe_growth(work, texts_for(pattern)):
            yield f"{where} {pattern.pattern[:80]!r} {growth}"


def slow_functions(functions: Iterable[tuple[str, Callable[..., object], int]]) -> Iterator[str]:
    """Yield each text function whose time grows faster than its text."""
    for where, function, needed in functions:
        for at in range(needed):

            def work(text: str, function: Callable[..., object] = function, at: int = at, needed: int = needed) -> None:
                if clear := getattr(function, "cache_clear", None):
                    clear()
                # A function that refuses the text has read it.
                with suppress(Exception):
                    result = function(*(text if number == at else "a1" for number in range(needed)))
                    if isinstance(result, Iterator):
                        deque(cast("Iterator[object]", result), maxlen=0)

            # A function that is slow on two characters does more than read text; the ones it calls are tried too.
            texts = [("", unit, ENDS[0]) for unit in UNITS] if _is_fast(work, "a1") else []
            if growth := describe_growth(work, texts):
                yield f"{where} {growth}"


def _refuse_effects(event: str, _: object) -> None:
    """Let no function that is tried open, start or reach anything."""
    if event.partition(".")[0] in {"open", "socket", "subprocess", "os", "shutil", "sqlite3", "tempfile"}:
        raise PermissionError(event)


def _refuse_toml(*_: object, **__: object) -> Any:
    raise ValueError


_REPEATED_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{[\d,]+\})\+")


def wrong_patterns(patterns: Iterable[FoundPattern]) -> Iterator[str]:
    """Yield patterns with `(…)*+`, which Python before 3.11.5 matches too far; `(?>(…)*)` is right everywhere."""
    for one in patterns:
        if _REPEATED_GROUP.search(one.pattern.pattern):
            yield f"{one.where} repeats a group possessively: {one.pattern.pattern[:80]}"


def main(package: str) -> None:
    """Print everything in a package that is not linear, or not the same in each version of Python."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    warnings.simplefilter("ignore")
    # What is imported stays until the end: looking through it for garbage takes a fifth of the time until here.
    gc.disable()
    modules = import_modules(package)
    found = find_patterns(modules)
    gc.freeze()
    gc.enable()
    patterns = [one for one in found if not one.pattern.pattern.startswith(tuple(BOUNDED))]
    functions = [*find_text_functions(modules)]
    sys.addaudithook(_refuse_effects)
    # The parser of the standard library takes the square of a dotted key. Only files of the user's own reach it.
    tomllib.loads = _refuse_toml
    output = sys.stdout
    # Functions that are tried may print.
    sys.stdout = sys.stderr = StringIO()
    for line in chain(wrong_patterns(found), slow_patterns(patterns), slow_functions(functions)):
        print(line, file=output, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
