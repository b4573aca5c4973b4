"""What `holdfast` promises is there, documented, typed, and light to import."""

import ast
import importlib.metadata
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from typing import get_args, get_type_hints

import pytest

import holdfast
from holdfast import compaction, storage
from holdfast.distribution import DISTRIBUTION_NAME

FACADES = ("blocking", "compaction", "delegation", "gateway", "jobs", "lab", "memory", "recall", "settings", "storage")
STANDARD = (
    "import sys; before = set(sys.modules); from holdfast import *; "
    "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}; "
    "print(sorted(loaded - set(sys.stdlib_module_names) - {'holdfast'}))"
)


def test_the_root_has_at_most_thirty_names() -> None:
    assert len(holdfast.__all__) <= 30
    assert sorted(holdfast.__all__) == list(holdfast.__all__)


def test_a_name_of_the_root_is_imported_from_where_a_type_checker_finds_it() -> None:
    (for_checkers,) = (node for node in ast.parse(inspect.getsource(holdfast)).body if isinstance(node, ast.If))
    imports = [node for node in for_checkers.body if isinstance(node, ast.ImportFrom)]

    assert {alias.name: node.module for node in imports for alias in node.names} == {
        name: f"holdfast.{module}" for name, module in holdfast._MODULE_OF_NAME.items()
    }
    assert sorted(holdfast._MODULE_OF_NAME) == holdfast.__all__


def test_importing_the_root_loads_nothing_of_the_package_until_a_name_is_used() -> None:
    program = (
        "import sys, holdfast; first = sorted(name for name in sys.modules if name.startswith('holdfast')); "
        "holdfast.HoldfastError; print(first, 'holdfast.errors' in sys.modules, 'holdfast.session' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "['holdfast'] True False\n"


def test_an_unknown_name_of_the_root_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Sesion'"):
        _ = holdfast.Sesion


@pytest.mark.parametrize("name", holdfast.__all__)
def test_each_public_name_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(holdfast, name))


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if inspect.isfunction(getattr(holdfast, name))])
def test_each_public_function_is_typed(name: str) -> None:
    function = getattr(holdfast, name)
    hints = get_type_hints(function)

    assert set(inspect.signature(function).parameters) | {"return"} == set(hints)


@pytest.mark.parametrize("name", FACADES)
def test_a_facade_is_a_documented_list_of_names_without_code_of_its_own(name: str) -> None:
    facade = importlib.import_module(f"holdfast.{name}")
    docstring, *statements = ast.parse(inspect.getsource(facade)).body
    exported = [getattr(facade, each) for each in facade.__all__]

    assert isinstance(docstring, ast.Expr)
    assert {type(statement) for statement in statements} == {ast.ImportFrom, ast.Assign}
    assert [each for each in exported if (inspect.isclass(each) or inspect.isfunction(each)) and not each.__doc__] == []


def classes_in(hint: object) -> Iterator[type]:
    """Yield the classes of the package that a type names."""
    if isinstance(hint, type) and hint.__module__.startswith("holdfast."):
        yield hint
    for part in get_args(hint):
        yield from classes_in(part)


def test_what_a_store_and_a_summarizer_of_ones_own_get_and_return_can_be_imported_and_so_can_every_event() -> None:
    methods = [*vars(storage.Store).values(), *vars(compaction.Summarizer).values(), compaction.ModelReply]
    hints = [hint for method in methods if callable(method) for hint in get_type_hints(method).values()]
    public = [getattr(facade, name) for facade in (compaction, storage) for name in facade.__all__]

    named = {one for hint in [*hints, storage.Event] for one in classes_in(hint)}

    assert {storage.SearchHit, compaction.Usage, storage.PlanChanged} <= named
    assert {one.__name__ for one in named if one not in public} == set()


def test_no_public_name_of_the_root_is_the_name_of_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(holdfast.__path__)}

    assert modules & {*holdfast.__all__} == set(), "the module would take the place of the name once it is imported"


def test_each_error_is_a_holdfast_error() -> None:
    errors = [getattr(holdfast, name) for name in holdfast.__all__ if name.endswith("Error")]

    assert errors
    assert all(issubclass(error, holdfast.HoldfastError) for error in errors)


def test_import_loads_no_third_party_package() -> None:
    answer = subprocess.run([sys.executable, "-c", STANDARD], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"


def test_the_package_names_the_version_that_is_installed() -> None:
    assert holdfast.__version__ == importlib.metadata.version(DISTRIBUTION_NAME)
