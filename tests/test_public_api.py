"""What `holdfast` promises is there, documented, typed, and light to import."""

import ast
import importlib
import inspect
import subprocess
import sys
from typing import get_type_hints

import pytest

import holdfast

FACADES = ("compaction", "delegation", "lab", "memory", "recall", "settings", "storage")
STANDARD = (
    "import sys; before = set(sys.modules); import holdfast; "
    "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}; "
    "print(sorted(loaded - set(sys.stdlib_module_names) - {'holdfast'}))"
)


def test_the_root_has_at_most_thirty_names_and_no_code() -> None:
    source = inspect.getsource(holdfast)

    assert len(holdfast.__all__) <= 30
    assert sorted(holdfast.__all__) == list(holdfast.__all__)
    assert "def " not in source
    assert "class " not in source


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


def test_each_error_is_a_holdfast_error() -> None:
    errors = [getattr(holdfast, name) for name in holdfast.__all__ if name.endswith("Error")]

    assert errors
    assert all(issubclass(error, holdfast.HoldfastError) for error in errors)


def test_import_loads_no_third_party_package() -> None:
    answer = subprocess.run([sys.executable, "-c", STANDARD], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"
