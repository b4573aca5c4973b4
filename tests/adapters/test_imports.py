"""Programs that do not use the adapter do not import pydantic-ai."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["holdfast", "holdfast.apps.cli.main", "holdfast.session.session", "holdfast.adapters"]
)
def test_nothing_else_loads_pydantic_ai(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'pydantic', 'pydantic_ai', 'anyio'}} & set(sys.modules)))"

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"
