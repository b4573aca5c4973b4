"""What a project may set before the user trusts it.

A folder may come from an attacker. Its settings could run programs, send conversations elsewhere, spend money, or
remove the user's constraints from the context, and no check of values finds every way to do so. So a setting of an
untrusted project is ignored unless the declaration of that setting says that it is harmless. The user trusts a folder
once, with the setting `trust`, which no project can set.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from holdfast.apps.settings.paths import display_path
from holdfast.stores.files import real_path

Untrusted: TypeAlias = Literal["refused", "lower", "any"]
"""What an untrusted project may do with a setting: nothing, lower a limit, or give it any value."""

_PLAIN = re.compile(r"[\w@%+=:./~-]+")


def refusal(rule: Untrusted, value: object, present: object) -> str | None:
    """Return why an untrusted project may not give a setting this value; None if it may.

    `present` is the value without the project. As a limit, both None and 0 mean that there is none.
    """
    if rule == "any":
        return None
    if rule != "lower":
        return "an untrusted project may not set it"
    most = present if isinstance(present, int) and present else math.inf
    is_lower = isinstance(value, int) and 0 < value <= most
    return None if is_lower else "an untrusted project may only lower it"


def is_trusted(folder: Path, trusted: Sequence[Path]) -> bool:
    """Return whether the user trusts a folder or one of its parents."""
    here = folder.resolve()
    return any(here.is_relative_to(one) for one in _real_folders(trusted))


def _real_folders(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield where folders are, without those that are links to each other."""
    for folder in folders:
        with suppress(OSError):
            yield real_path(folder)


def trust_command(folder: Path) -> str:
    """Return the command that trusts exactly this folder, with special characters in its name escaped."""
    text = display_path(folder)
    # A comma would separate two folders, and a shell would interpret other characters.
    word = f"+{text}" if _PLAIN.fullmatch(text) else shlex.quote(f"+{json.dumps([text])}")
    return f"holdfast config trust {word} --user"
