"""What a project's settings may not do before the user trusts it.

A folder may come from anybody. Opening it must not start its programs, send what is said to its servers, read and
write outside of it, or delete what was said elsewhere; everything else it may settle. To trust it, the user says so
once: that is the setting `trust`, which no project can make.
"""

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from holdfast.app.agents import NamedAgent

NETWORK = ("http", "https", "postgresql", "postgres")


def why_trust(name: str, value: object, folder: Path) -> str | None:
    """Return what a setting of a project does that only a trusted one may; None where there is nothing to fear."""
    rule = _RULES.get(name)
    return rule(value, folder) if rule else None


def is_trusted(folder: Path, trusted: Sequence[Path]) -> bool:
    """Return whether a folder is one that the user trusts, or lies in one."""
    here = folder.resolve()
    return any(here.is_relative_to(one.resolve()) for one in trusted)


def _runs(value: object, folder: Path) -> str | None:
    del value, folder
    return "lets programs run"


def _sends(value: object, folder: Path) -> str | None:
    """Return where a model or a store would send what is said."""
    parts = urlsplit(str(value))
    if parts.scheme in NETWORK and not _is_here(parts.hostname):
        return f"sends conversations to {parts.hostname}"
    if parts.scheme == "memory":
        return "keeps nothing of a conversation"
    if parts.scheme == "sqlite":
        return _leaves(Path(unquote(parts.path)[1:]).expanduser(), folder)
    return None


def _asks(value: object, folder: Path) -> str | None:
    """Return where the model of an agent would send what it is shown."""
    agents = cast("Mapping[str, NamedAgent]", value).values()
    return next((why for agent in agents if agent.model and (why := _sends(agent.model, folder))), None)


def _is_here(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "127.0.0.1").is_loopback
    except ValueError:
        return host == "localhost"


def _leaves(value: object, folder: Path) -> str | None:
    if isinstance(value, Path) and not value.resolve().is_relative_to(folder.resolve()):
        return "names a place outside of the project"
    return None


def _deletes(value: object, folder: Path) -> str | None:
    del folder
    return f"deletes conversations after {value} days" if value is not None else None


def _trusts(value: object, folder: Path) -> str | None:
    del value, folder
    return "is the user's own business"


_RULES: Mapping[str, Callable[[object, Path], str | None]] = {
    "mcp": _runs,
    "agents": _asks,
    "hooks": _runs,
    "allow": _runs,
    "model": _sends,
    "summarization_model": _sends,
    "store": _sends,
    "system": _leaves,
    "policy": _leaves,
    "checkpoints": _leaves,
    "memory": _leaves,
    "boards": _leaves,
    "consolidate": _trusts,
    "retention_days": _deletes,
    "trust": _trusts,
}
