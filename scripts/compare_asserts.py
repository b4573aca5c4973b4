"""Checks that tests assert what they asserted before: the same values, counts and order.

    python -m scripts.compare_asserts COMMIT

Compares every `assert` and `pytest.raises` of each test with the one of the same name in an earlier commit. A name may
differ, and so may a sentence, but not a number, a constant, the number of items, an operator, or the digits inside a
text. It lists tests that exist in one version only, and fails if an assertion differs or a test is gone.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def shape(node: ast.AST) -> object:
    """Return an expression without its names and words: what may not change in an assertion."""
    match node:
        case ast.Constant(value=str() | bytes() as text):
            return re.findall(r"\d+", repr(text))
        case ast.Constant(value=value):
            return repr(value)
        case ast.Name() | ast.Attribute():
            return "name"
        case ast.Await(value=value) | ast.Starred(value=value):
            return shape(value)
        case ast.keyword(value=value):
            return shape(value)
        case ast.JoinedStr(values=values):
            return ["text", *(shape(value) for value in values if isinstance(value, ast.FormattedValue))]
        case ast.Call(func=function, args=args, keywords=keywords):
            return ["call", shape(function), *map(shape, args), *map(shape, keywords)]
        case _:
            fields = [value for name, value in ast.iter_fields(node) if name not in {"ctx", "type_comment"}]
            return [type(node).__name__, *(_shape_of_field(value) for value in fields)]


def _shape_of_field(value: object) -> object:
    if isinstance(value, ast.AST):
        return shape(value)
    if isinstance(value, list):
        return [_shape_of_field(item) for item in value]
    return "name" if isinstance(value, str) else repr(value)


def assertions(test: ast.AST) -> list[tuple[str, object]]:
    """Return what a test asserts, as text and as shape, in order."""
    found: list[tuple[int, str, object]] = []
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            found.append((node.lineno, ast.unparse(node), shape(node.test)))
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                text = ast.unparse(item.context_expr)
                if "raises(" in text:
                    found.append((node.lineno, text, shape(item.context_expr)))
    return [(text, form) for _, text, form in sorted(found, key=lambda one: one[0])]


def tests_of(files: Iterator[tuple[str, str]]) -> dict[str, list[list[tuple[str, object]]]]:
    """Return the assertions of every test by its name; several files may have a test of the same name."""
    found: dict[str, list[list[tuple[str, object]]]] = {}
    for _, text in files:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.setdefault(node.name, []).append(assertions(node))
    return found


def files_at(commit: str) -> Iterator[tuple[str, str]]:
    """Yield the test files of a commit with their texts."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", commit, "tests"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for path in listed.stdout.splitlines():
        if path.endswith(".py"):
            shown = subprocess.run(
                ["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True, check=True
            )
            yield path, shown.stdout


def files_now() -> Iterator[tuple[str, str]]:
    """Yield the test files of the working tree with their texts."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def differences(
    before: dict[str, list[list[tuple[str, object]]]], after: dict[str, list[list[tuple[str, object]]]]
) -> Iterator[str]:
    """Yield what is asserted differently, test by test."""
    for name in sorted(before.keys() & after.keys()):
        left = [list(one) for one in after[name]]
        for old in before[name]:
            forms = [form for _, form in old]
            match = next((new for new in left if [form for _, form in new] == forms), None)
            if match is not None:
                left.remove(match)
                continue
            if not left:
                yield f"{name}: one test of this name is gone"
                continue
            yield from (f"{name}:\n{lines}" for lines in _unlike(old, left.pop(0)))


def _unlike(old: list[tuple[str, object]], new: list[tuple[str, object]]) -> Iterator[str]:
    """Yield the assertions of a test that have no counterpart."""
    known = [form for _, form in new]
    for text, form in old:
        if form in known:
            known.remove(form)
        else:
            yield f"  - {text}"
    known = [form for _, form in old]
    for text, form in new:
        if form in known:
            known.remove(form)
        else:
            yield f"  + {text}"


def main(arguments: list[str]) -> int:
    """Print what differs, and return 1 if anything does."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    before, after = tests_of(files_at(arguments[0])), tests_of(files_now())
    found = list(differences(before, after))
    print("\n".join(found))
    gone, added = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    for title, names in (("gone", gone), ("new", added)):
        print(f"{len(names)} tests {title}" + "".join(f"\n  {name}" for name in names))
    print(f"{len(before.keys() & after.keys())} tests compared, {len(found)} differences")
    return 1 if found or gone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
