"""Writes src/holdfast/counters/models.json from the table that the litellm package ships (MIT licence).

The package is downloaded by name, without its dependencies, and only one JSON file of it is read:

    python scripts/build_model_table.py
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

SOURCE = "litellm/model_prices_and_context_window_backup.json"
TARGET = Path(__file__).parent.parent / "src/holdfast/counters/models.json"
PRICES = (
    "input_cost_per_token",
    "output_cost_per_token",
    "cache_read_input_token_cost",
    "cache_creation_input_token_cost",
)
MODES = {"chat", "responses", "completion"}


def download(folder: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the version of the package and its table."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "litellm"], check=True)
    wheel = next(folder.glob("litellm-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return wheel.name.split("-")[1], json.loads(archive.read(SOURCE))


def model_row(entry: dict[str, Any]) -> list[Any]:
    """Return the window, the longest answer and four prices per million tokens, without unknown values at the end."""
    prices = [entry.get(name) for name in PRICES]
    values = [
        entry["max_input_tokens"],
        entry.get("max_output_tokens"),
        *(None if price is None else round(price * 1e6, 4) for price in prices),
    ]
    while values[-1] is None:
        values.pop()
    return values


def is_wanted(entry: dict[str, Any]) -> bool:
    """Return whether an entry is a language model whose window is known."""
    window = entry.get("max_input_tokens")
    return entry.get("mode") in MODES and isinstance(window, int) and window > 0


def build_table(table: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the trimmed table, without a routed name whose bare name has the same values."""
    wanted = {name.lower(): model_row(entry) for name, entry in table.items() if is_wanted(entry)}
    return {
        name: values
        for name, values in sorted(wanted.items())
        if not ("/" in name and wanted.get(name.rsplit("/", 1)[-1]) == values)
    }


def main() -> None:
    """Write the table, one model per line."""
    with tempfile.TemporaryDirectory() as folder:
        version, table = download(Path(folder))
    models = build_table(table)
    lines = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(values, separators=(',', ':'))}" for name, values in models.items()
    )
    TARGET.write_text(f'{{"source":"litellm {version}, MIT","models":{{\n{lines}\n}}}}\n')
    print(f"{len(models)} models from litellm {version}, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
