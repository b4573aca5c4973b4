"""The package is built as ARCHITECTURE.md draws it."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from holdfast.apps.settings.policies import POLICY_LINKS
from holdfast.apps.settings.schema import SETTING_DECLARATIONS

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "holdfast"
LAYERS = (
    {"__main__"},
    {"blocking", "compaction", "delegation", "gateway", "jobs", "lab", "memory", "recall", "settings", "storage"},
    {"apps.cli"},
    {"apps.chat", "apps.gateway"},
    {"apps.mcp", "apps.viewer"},
    {"apps.jobs", "apps.lab", "apps.serving"},
    {"apps.settings", "apps.threads", "apps.http_protocol"},
    {"adapters", "importers", "testing"},
    {"session", "bare_list"},
    {"stores", "models", "counters"},
    {"wire"},
    {"core.planning"},
    {"core.recall", "core.memory"},
    {"core.history"},
    {"core.ledger"},
    {"core.conversation"},
    {"core.schema"},
    {"errors"},
    {"redaction"},
    {"text", "dataclass", "distribution"},
)
"""From the top down: a package imports from the layers below its own, never from another package of the same layer."""
ENTRY_FILES = {"__init__", "__main__"}
"""Files that have to have their name: to import a package, and to run it."""
PURE = (["core"], ["wire"])
IMPURE_MODULES = {
    "asyncio", "datetime", "http", "io", "logging", "os", "pathlib", "random", "secrets", "shutil", "socket",
    "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return everything that a file consists of."""
    return [*ast.walk(tree_of(path))]


@cache
def imports_of(path: Path) -> list[str]:
    """Return every module a file imports, inside functions and for type checking too."""
    return [*_imports(path)]


def _imports(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            yield module
            for alias in node.names:
                if (SOURCE / Path(*module.split("."), f"{alias.name}.py")).exists():
                    yield f"{module}.{alias.name}"


def package_of(module: str) -> str | None:
    """Return the package of `LAYERS` that a module belongs to."""
    parts = module.split(".")[1:]
    if not parts:
        return None
    return ".".join(parts[:2]) if parts[0] in {"core", "apps"} and len(parts) > 1 else parts[0]


def layer_of(package: str) -> int:
    return next(number for number, packages in enumerate(LAYERS) if package in packages)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_downward_and_packages_of_one_layer_stay_apart(path: Path) -> None:
    package = package_of(name_of(path))
    if package in {None, "core", "apps"}:
        return

    assert package is not None
    for module in imports_of(path):
        other = package_of(module) if module.startswith("holdfast") else None
        if other in {None, package}:
            continue
        assert other is not None
        assert layer_of(other) > layer_of(package), f"{name_of(path)} imports {module}"


MAX_FLAT_FILES = 16
SHARED_NAMES = {
    "P",  # type variables have no meaning outside their module
    "T",
    # Each provider's validator states its rules apart: one that shared them would share their bugs.
    "calls_are_answered",
    "ids_are_unique",
    "images_are_few_enough",
    "nothing_is_empty",
    "roles_are_known",
    "strings_are_short_enough",
}


def defined_names(path: Path) -> Iterator[str]:
    """Yield the public names that a module defines at its top level."""
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


def test_a_public_name_means_one_thing_in_the_package() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for name in {*defined_names(path)} - SHARED_NAMES:
            modules[name].append(name_of(path))

    assert {name: where for name, where in modules.items() if len(where) > 1} == {}


def test_a_package_has_few_enough_files_to_be_read_at_a_glance() -> None:
    folders = {path.parent for path in MODULES}
    counts = {
        str(folder): len([path for path in folder.glob("*.py") if path.stem not in ENTRY_FILES]) for folder in folders
    }

    assert {folder: count for folder, count in counts.items() if count > MAX_FLAT_FILES} == {}


@pytest.mark.parametrize("path", [path for path in MODULES if name_of(path).split(".")[1:2] in PURE], ids=name_of)
def test_core_and_wire_are_pure(path: Path) -> None:
    modules = {module.split(".")[0] for module in imports_of(path)}
    calls = {node.func.id for node in nodes_of(path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    waits = [node for node in nodes_of(path) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]

    assert modules & IMPURE_MODULES == set()
    assert calls & IMPURE_CALLS == set()
    assert waits == []


def test_any_stays_at_the_edges() -> None:
    offenders = [
        name_of(path)
        for path in MODULES
        # A request holds provider JSON, which users index without casts.
        if package_of(name_of(path)) not in {"wire", "adapters", "bare_list"}
        and name_of(path) != "holdfast.session.request"
        and any(isinstance(node, ast.Name) and node.id == "Any" for node in nodes_of(path))
    ]

    assert offenders == []


def test_there_are_no_import_cycles() -> None:
    graph = {
        name_of(path): {module for module in imports_of(path) if module.startswith("holdfast.")} for path in MODULES
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail, module))
        if module in done:
            return
        for other in graph.get(module, ()):
            visit(other, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def drawing(heading: str) -> str:
    """Return the block of ARCHITECTURE.md under a heading."""
    page = (SOURCE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return page.partition(f"## {heading}\n")[2].split("```")[1]


def test_the_page_draws_these_layers() -> None:
    drawn = [{*line.replace("/", ".").split(" | ")} for line in drawing("The layers").strip().splitlines()]

    assert drawn == list(LAYERS)


def test_the_page_draws_every_package_and_every_module_of_the_root() -> None:
    words = {*re.findall(r"\w+", drawing("The tree"))}
    packages = {folder.name for path in MODULES for folder in path.parents if folder.is_relative_to(PACKAGE)}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - ENTRY_FILES

    assert packages | modules <= words
    assert {*re.findall(r"(\w+)/", drawing("The tree"))} - {"src"} == packages


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_idea_lives_in_it(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


def test_every_setting_and_every_field_of_a_policy_is_read_somewhere() -> None:
    nodes = [node for path in MODULES for node in nodes_of(path)]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    fields = {
        field.target.id
        for path in [PACKAGE / "core/planning/policy.py", *(PACKAGE / "core/planning/rules").glob("*.py")]
        for kind in tree_of(path).body
        if isinstance(kind, ast.ClassDef)
        for field in kind.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id != "RULE"
    }

    assert {*SETTING_DECLARATIONS} - read - {*POLICY_LINKS} == set()
    assert fields - read == set()
