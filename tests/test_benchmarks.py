"""Benchmarks are programs: what they stand on is there."""

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "benchmarks").rglob("*.py")
    if not {"workers", "arms"} & set(path.parts)  # they run where other packages are installed
)


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_can_be_loaded(name: str) -> None:
    import_module(name)
