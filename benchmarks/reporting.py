"""How the benchmarks report figures and progress."""

import json
import sys
from pathlib import Path
from typing import Any


def save_figures(figures: Any, path: Path | None) -> None:
    """Write figures as JSON if a file is given."""
    if path:
        path.write_text(json.dumps(figures, indent=1))


def print_progress(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def verdict(*, is_met: bool) -> str:
    """Return whether a target is met, as a word."""
    return "yes" if is_met else "NO"
