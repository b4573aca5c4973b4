"""Tools with which a model lists, reads and searches the files of one folder, and nothing outside of it.

Paths are resolved before they are used, so neither `..` nor a link leads outside. Every answer has a limited size and
says what it omits and how to ask for it. Errors are returned as text, so that the model can continue.
"""

import fnmatch
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

MAX_READ_LINES = 400
MAX_READ_LINE_CHARS = 2_000
MAX_LISTED_FILES = 300
MAX_FILE_HITS = 60
MAX_COMPLETED_FILES = 50
MAX_WALKED_FILES = 20_000
"""How many files a completion looks at."""
MAX_FILE_BYTES = 10_000_000
MAX_SEARCHED_CHARS = 200_000_000
"""The most that a search looks through."""
PROBE_BYTES = 4_096
SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache",
                     ".ruff_cache", ".pytest_cache", ".hypothesis", ".tox"})  # fmt: skip
"""Generated folders: listed by name, never searched."""


SECRET_FILES = (".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_rsa*", "id_dsa*",
                "id_ecdsa*", "id_ed25519*", ".netrc", ".pgpass", ".npmrc", ".pypirc", ".git-credentials",
                ".htpasswd", "*.token")  # fmt: skip
"""Files that usually hold secrets: the model gets them only if the user attaches them."""
HARMLESS_FILES = ("*.example", "*.sample", "*.template", "*.pub")


class ToolRefusal(str):
    """What a tool says if it did not do what it was asked to do."""

    __slots__ = ()


class FileTools:
    """The file tools for one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.attachments: dict[str, str] = {}
        """The attachments of the conversation by name; they are read like files."""

    def list_files(self, path: str = ".", pattern: str = "*") -> str:
        """List files and folders.

        Args:
            path: The folder, relative to the working folder.
            pattern: Only names that match, such as *.py; with ** in it, or a slash, the whole tree is searched.
        """
        found = self._resolve(path)
        if isinstance(found, str):
            return found
        if not found.is_dir():
            return ToolRefusal(f"{path} is a file; use read_file")
        is_deep = "**" in pattern or "/" in pattern
        names = self._list_tree(found, pattern) if is_deep else self._list_folder(found, pattern)
        listed: list[str] = []
        for name in names:
            if len(listed) == MAX_LISTED_FILES:
                listed.append(f"… more than {MAX_LISTED_FILES}: ask for a folder below, or with a narrower pattern")
                break
            listed.append(name)
        return "\n".join(listed) or f"nothing in {path} matches {pattern}"

    def read_file(self, path: str, start_line: int = 1, lines: int = MAX_READ_LINES) -> str:
        """Read a text file, or some lines of it.

        Args:
            path: The file, relative to the working folder.
            start_line: The first line, counted from 1.
            lines: How many lines at most.
        """
        text = self.attachments.get(path)
        if text is None:
            found = self._resolve(path)
            if isinstance(found, str):
                return found
            if found.is_dir():
                return ToolRefusal(f"{path} is a folder; use list_files")
            if may_hold_secrets(found.name):
                return ToolRefusal(f"{path} may hold secrets; only the user can attach it, with /attach {path}")
            text = _read_text(found)
        if text is None:
            return ToolRefusal(f"{path} is not a text file, or larger than {MAX_FILE_BYTES:,} bytes")
        every = text.splitlines()
        first, count = max(1, start_line), max(1, min(lines, MAX_READ_LINES))
        chosen = [_shorten_line(line) for line in every[first - 1 : first - 1 + count]]
        if not chosen:
            return ToolRefusal(f"{path} has {len(every):,} lines")
        last = first + len(chosen) - 1
        more = f"\n[lines {first}–{last} of {len(every):,}]" if first > 1 or last < len(every) else ""
        return "\n".join(chosen) + more

    def search_files(self, text: str, path: str = ".", pattern: str = "*") -> str:
        """Search files for a text, to the letter, upper and lower case alike.

        Args:
            text: What to look for; it is no pattern.
            path: Where to look, relative to the working folder.
            pattern: Only files whose names match, such as *.py.
        """
        found = self._resolve(path)
        if isinstance(found, str):
            return found
        if not text.strip():
            return ToolRefusal("say what to look for")
        hits: list[str] = []
        room = MAX_SEARCHED_CHARS
        for file in _files(found) if found.is_dir() else iter([found]):
            if fnmatch.fnmatch(file.name, pattern) and (content := self._searchable_text(file)) is not None:
                room -= len(content)
                if room < 0:
                    omitted = f"… more than {MAX_SEARCHED_CHARS:,} characters: look in a folder below, or in fewer"
                    return "\n".join([*(hits or [f"{text!r} was not found so far"]), omitted])
                hits += self._hits(file, content, text.casefold())
            if len(hits) > MAX_FILE_HITS:
                return "\n".join([*hits[:MAX_FILE_HITS], f"… more than {MAX_FILE_HITS}: look for something rarer"])
        return "\n".join(hits) or f"{text!r} is in no file of {path}"

    def complete_path(self, beginning: str) -> list[str]:
        """Return names of files and folders that continue a path; a word without a slash matches anywhere in a name."""
        folder, slash, name = beginning.rpartition("/")
        place = self._resolve(folder or ".")
        if isinstance(place, str) or not place.is_dir():
            return []
        inside = (one for one in self._list_folder(place, "*") if Path(one).name not in SKIPPED_FOLDERS)
        near = [one for one in inside if Path(one).name.lower().startswith(name.lower())]
        if slash or not name:
            return near[:MAX_COMPLETED_FILES]
        deep = (self._relative_name(path) for path in islice(_files(self.root), MAX_WALKED_FILES))
        found = (one for one in deep if name.lower() in Path(one).name.lower() and one not in near)
        return [*near, *islice(found, MAX_COMPLETED_FILES)][:MAX_COMPLETED_FILES]

    def resolve_inside(self, path: str) -> Path | ToolRefusal:
        """Return a path inside the folder, whether something is there or not."""
        try:
            found = (self.root / path).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            return ToolRefusal(f"{path!r:.200} cannot be read: {error}")
        if not found.is_relative_to(self.root):
            return ToolRefusal(f"{path} is outside the working folder; only what is inside can be read or changed")
        return found

    def _resolve(self, path: str) -> Path | ToolRefusal:
        """Return a path inside the folder that can be read, or a text that says why there is none."""
        found = self.resolve_inside(path)
        if isinstance(found, str):
            return found
        try:
            if not found.exists():
                near = ", ".join(sorted(self._list_folder(self.root, f"*{Path(path).name[:3]}*"))[:5])
                return ToolRefusal(f"there is no {path}" + (f"; there is: {near}" if near else ""))
            if not os.access(found, os.R_OK):
                return ToolRefusal(f"{path} may not be read")
        except (OSError, ValueError) as error:
            return ToolRefusal(f"{path!r:.200} cannot be read: {error}")
        return found

    def _relative_name(self, path: Path) -> str:
        return str(path.relative_to(self.root)) + ("/" if path.is_dir() else "")

    def _list_folder(self, folder: Path, pattern: str) -> Iterator[str]:
        try:
            inside = sorted(folder.iterdir())
        except OSError:
            return
        yield from (self._relative_name(path) for path in inside if fnmatch.fnmatch(path.name, pattern))

    def _list_tree(self, folder: Path, pattern: str) -> Iterator[str]:
        flat = pattern.replace("**/", "*")
        for path in _files(folder):
            if fnmatch.fnmatch(str(path.relative_to(folder)), flat):
                yield self._relative_name(path)

    def _searchable_text(self, file: Path) -> str | None:
        is_hidden = may_hold_secrets(file.name) or not file.resolve().is_relative_to(self.root)
        return None if is_hidden else _read_text(file)

    def _hits(self, file: Path, content: str, text: str) -> list[str]:
        if text not in content.casefold():
            return []
        lines = enumerate(content.splitlines(), start=1)
        name = self._relative_name(file)
        return [f"{name}:{number}: {line.strip()[:200]}" for number, line in lines if text in line.casefold()]


def may_hold_secrets(name: str) -> bool:
    """Return whether a file usually holds secrets, by its name."""
    low = name.lower()
    is_secret = any(fnmatch.fnmatchcase(low, one) for one in SECRET_FILES)
    return is_secret and not any(fnmatch.fnmatchcase(low, one) for one in HARMLESS_FILES)


def _files(folder: Path) -> Iterator[Path]:
    """Yield files below a folder in a stable order."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        yield from (path for name in sorted(names) if os.access(path := Path(place, name), os.F_OK))


def _read_text(path: Path) -> str | None:
    """Return a file as text, with invalid bytes replaced; None if it is not text."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    return None if b"\0" in data[:PROBE_BYTES] else data.decode("utf-8", errors="replace")


def _shorten_line(line: str) -> str:
    if len(line) <= MAX_READ_LINE_CHARS:
        return line
    return f"{line[:MAX_READ_LINE_CHARS]} … [{len(line) - MAX_READ_LINE_CHARS:,} more characters in this line]"
