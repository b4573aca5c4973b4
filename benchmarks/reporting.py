"""What the benchmarks have in common when they say what they found."""

import json
import sys
from pathlib import Path
from typing import Any


def save_figures(figures: Any, path: Path | None) -> None:
    """Write figures as JSON, where a file was asked for."""
    if path:
        path.write_text(json.dumps(figures, indent=1))


def print_progress(text: str) -> None:
    """Say what is going on, beside the figures."""
    print(text, file=sys.stderr, flush=True)


def verdict(*, is_met: bool) -> str:
    """Return how an aim stands."""
    return "yes" if is_met else "NO"
