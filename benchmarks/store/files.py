"""Generated messages, and the files that store them."""

import json
from collections.abc import Mapping
from pathlib import Path

MODEL = "gpt-5"
BUDGET = 16_000


def message_bytes(message: Mapping[str, object]) -> bytes:
    """Return a message as it would be sent."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite store."""
    return f"sqlite:///{path.absolute()}"


def database_bytes(database: Path) -> int:
    """Return the size of a database with its additional files."""
    return sum(path.stat().st_size for path in database.parent.glob(f"{database.name}*"))
