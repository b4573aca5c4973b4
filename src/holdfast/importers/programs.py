"""The programs whose sessions can be imported, and where each keeps them."""

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import SettingsError
from holdfast.importers.claude_code import CLAUDE_CODE
from holdfast.importers.codex import CODEX_CLI
from holdfast.importers.copilot import COPILOT_CLI
from holdfast.importers.gemini import GEMINI_CLI
from holdfast.importers.opencode import OPENCODE
from holdfast.importers.pi import PI
from holdfast.importers.source import FoundSession, ReadReport, SourceProgram
from holdfast.stores.files import is_missing

SOURCE_PROGRAMS = {program.name: program for program in (CLAUDE_CODE, CODEX_CLI, COPILOT_CLI, GEMINI_CLI, OPENCODE, PI)}


def program_named(name: str) -> SourceProgram:
    """Return a program by its name."""
    program = SOURCE_PROGRAMS.get(name)
    if program is None:
        raise SettingsError("--from", f"{name!r:.60} is not known; choose one of: {', '.join(SOURCE_PROGRAMS)}")
    return program


def session_folders(program: SourceProgram) -> list[Path]:
    """Return the folders in which a program keeps its sessions for this user."""
    try:
        home = Path.home()
    except RuntimeError as error:
        raise SettingsError("HOME", "is not set, and this user has no home folder; give a folder as PATH") from error
    return program.folders(os.environ, home)


def find_sessions(program: SourceProgram, path: Path | None, report: ReadReport) -> list[FoundSession]:
    """Return the sessions that a program has left in its usual folders, or at a path, newest first."""
    if path is not None and is_missing(path):
        raise SettingsError("PATH", f"there is no file or folder {str(path)!r}")
    roots = [path] if path is not None else [one for one in session_folders(program) if not is_missing(one)]
    # Of several copies of a session, such as in a folder that was copied, the one that was changed last is the session.
    everything = sorted((one for root in roots for one in _readable(program, root, report)), key=_last_change)
    found = {one.id: one for one in everything}
    return sorted(found.values(), key=lambda one: (-one.modified_ms, one.id))


def _last_change(found: FoundSession) -> tuple[int, int, str]:
    return found.modified_ms, found.size, str(found.path)


def _readable(program: SourceProgram, root: Path, report: ReadReport) -> Iterator[FoundSession]:
    try:
        yield from program.find(root, report)
    except OSError as error:
        raise SettingsError("PATH", f"{root}: {error.strerror or error}") from error


def describe_absence(program: SourceProgram, path: Path | None) -> str:
    """Say that there are no sessions of a program, and where they were looked for."""
    places = [path] if path is not None else session_folders(program)
    elsewhere = "" if path is not None else "; if they are elsewhere, give that folder as PATH"
    return f"there are no sessions of {program.title} in {' or '.join(map(str, places))}{elsewhere}"
