"""What the log of another program holds, in one form for all programs.

A reader turns a log into `LoggedItem`s, in the order in which things happened. The log may be damaged, still being
written, huge, or newer than this code. So files are read line by line, a line that cannot be read is counted and
skipped, and a kind of line that is not known is counted by its name. A reader never writes to the files it reads.
"""

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, TypeAlias

from holdfast.core.conversation.json_values import parse_json
from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.visibility import SEES_NOTHING
from holdfast.errors import MalformedInputError
from holdfast.stores.files import real_path
from holdfast.wire.formats import format_named
from holdfast.wire.json_reader import is_list, is_mapping

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is skipped and counted as damaged."""
MAX_UNKNOWN_KINDS, MAX_KIND_CHARS = 20, 40
MAX_SESSION_TITLE_CHARS = 80
LAST_TIME_MS = 253_402_300_799_999
"""The end of the year 9999; stores keep times in 64 bits."""
SETTLED_MS = 60_000
"""A log that has not changed for this long has no answer that is still being written."""
PEEKED_LINES = 200
"""How many lines of a log are read for the list of sessions."""

_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape for half of a character; most lines have none, and need no second look."""

CLIENT = "the client"
"""Who wrote the summary of a compaction that a program made by itself."""
JsonFields: TypeAlias = Mapping[str, object]
NOTHING: JsonFields = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSession:
    """A session that a program has left on this machine."""

    program: str
    id: str
    """The program's own id."""
    path: Path
    """The file of its log, or the database that holds it."""
    files: tuple[Path, ...]
    """Every file that belongs to it, with those of its sub-agents."""
    title: str = ""
    folder: str = ""
    """The folder that the program worked in."""
    model: str = ""
    modified_ms: int = 0
    size: int = 0
    """In bytes."""

    @property
    def session_id(self) -> str:
        """The id of the session in a store."""
        return f"{self.program}-{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedItem:
    """Something that happened, as an event whose positions are filled in when it is imported."""

    time_ms: int
    event: log.Event
    key: str = ""
    """The name by which later items refer to this message."""
    kept: frozenset[str] = frozenset()
    """For a compaction, the keys of the messages that it left unchanged."""
    kept_from: str = ""
    """For a compaction, the key of the first of the newest messages, which it left unchanged."""
    rewind_to: str = ""
    """For a rewind, the key of the first message that it hides."""
    may_grow: bool = False
    """Whether this is an answer at the end of the log that the program may still be writing."""

    @property
    def scope(self) -> str:
        """The scope of the agent that this is about."""
        return scope_of(self.event)


@dataclass(slots=True)
class ReadReport:
    """What a reader met in a log besides the conversation."""

    lines: int = 0
    damaged: Counter[str] = field(default_factory=Counter[str])
    """The number of lines that could not be read, by reason."""
    unknown: Counter[str] = field(default_factory=Counter[str])
    """The number of lines of a kind that this version does not know, by kind."""
    versions: set[str] = field(default_factory=set[str])
    """The versions of the program, or of its format, that wrote the log."""
    is_unfinished: bool = False
    """Whether the last line is not complete, as in a log that is being written."""
    outside: list[str] = field(default_factory=list[str])
    """Links to folders, and links that lead out of the folder; they were not followed."""
    unreadable: list[str] = field(default_factory=list[str])
    """Files and folders that could not be opened."""

    @property
    def search_problems(self) -> list[str]:
        """What a search for sessions could not read, or did not follow."""
        links = (f"{link} is a link that leads elsewhere" for link in self.outside)
        return [f"not read: {problem}" for problem in (*self.unreadable, *links)]

    def note_unknown(self, kind: object) -> None:
        """Count a line whose kind is not known."""
        name = printable(kind if isinstance(kind, str) and kind else "no type")[:MAX_KIND_CHARS]
        self.unknown[name if name in self.unknown or len(self.unknown) < MAX_UNKNOWN_KINDS else "others"] += 1

    def note_unreadable(self, path: Path | str, error: OSError) -> None:
        """Remember a file or folder that could not be opened."""
        self.unreadable.append(f"{path}: {error.strerror or error}")

    def note_version(self, version: object) -> None:
        """Remember a version that the log names."""
        if isinstance(version, str | int) and len(self.versions) < MAX_UNKNOWN_KINDS:
            self.versions.add(printable(str(version))[:MAX_KIND_CHARS])


@dataclass(frozen=True, slots=True)
class SourceProgram:
    """A program whose sessions can be imported."""

    name: str
    title: str
    """Its name for people."""
    format: str
    """The format of the messages that are read from its log."""
    folders: Callable[[Mapping[str, str], Path], list[Path]]
    """Where it keeps its sessions, by the environment and the home folder of the user."""
    find: Callable[[Path, ReadReport], Iterator[FoundSession]]
    """Yield the sessions below a folder, or that of a file."""
    read: Callable[[FoundSession, ReadReport], Iterator[LoggedItem]]


def read_json_lines(path: Path, report: ReadReport, *, max_lines: int | None = None) -> Iterator[JsonFields]:
    """Yield the objects of a file of JSON lines, one at a time; the rest of a file that grows meanwhile is not read."""
    with open_regular_file(path) as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0 and (max_lines is None or max_lines > 0):
            line = file.readline(min(left, MAX_LINE_BYTES))
            left -= len(line)
            max_lines = None if max_lines is None else max_lines - 1
            if not line:
                return
            if left > 0 and len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                left -= _skip_line(file, left)
                report.damaged["longer than 64 MiB"] += 1
                continue
            content = line.strip(b"\x00 \t\r\n")
            if not content:
                continue
            report.lines += 1
            try:
                value: object = parse_text(content)
            except (ValueError, RecursionError):
                if line.endswith(b"\n"):
                    report.damaged["not JSON"] += 1
                else:
                    report.is_unfinished = True
                continue
            if is_mapping(value):
                yield value
            else:
                report.damaged["not a JSON object"] += 1


def parse_text(content: str | bytes) -> object:
    """Return the value of a JSON text, which may begin with a byte order mark; raises `ValueError` or `RecursionError`.

    Half a character, which a program leaves where it cuts a text, is replaced: no counter and no provider takes it.
    """
    text = content if isinstance(content, str) else content.decode("utf-8-sig", "replace")
    return parse_json(text) if _HALF_CHARACTER.search(text) else json.loads(text)


def first_lines(path: Path, report: ReadReport) -> list[JsonFields]:
    """Return the first objects of a file; none, and note it, if the file cannot be opened."""
    try:
        return list(read_json_lines(path, ReadReport(), max_lines=PEEKED_LINES))
    except OSError as error:
        report.note_unreadable(path, error)
        return []


def first_of_type(lines: list[JsonFields], kind: str) -> JsonFields:
    """Return the first of some lines that has a type, or an empty object: the line itself may be damaged."""
    return next((line for line in lines if line.get("type") == kind), NOTHING)


def _skip_line(file: BinaryIO, left: int) -> int:
    """Read to the end of a line, at most `left` bytes, and return how many bytes that were."""
    skipped = 0
    while skipped < left:
        chunk = file.readline(min(left - skipped, 2**20))
        skipped += len(chunk)
        if not chunk or chunk.endswith(b"\n"):
            break
    return skipped


def open_regular_file(path: Path) -> BinaryIO:
    """Open a file for reading; raises `OSError` for anything else, such as a pipe, which may never end."""
    # Not every platform has every flag; a pipe opened without O_NONBLOCK would wait for a writer.
    optional: list[int] = [getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")]
    number = os.open(path, os.O_RDONLY | sum(optional))
    file = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def files_below(root: Path, pattern: str, report: ReadReport) -> list[Path]:
    """Return the files below a folder whose name matches, sorted; links that lead out of the folder are left out."""
    base = real_path(root)
    found: list[Path] = []

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            report.note_unreadable(error.filename, error)

    for folder, folders, names in os.walk(root, onerror=note):
        folders.sort()
        # Not `is_symlink` of a path, which raises where a folder may be listed and not searched.
        report.outside += [path for name in folders if os.path.islink(path := os.path.join(folder, name))]  # noqa: PTH114, PTH118
        for name in sorted(names):
            path = Path(folder, name)
            if not Path(name).match(pattern):
                continue
            try:
                is_outside = path.is_symlink() and not real_path(path).is_relative_to(base)
                is_file = path.is_file()
            except OSError as error:
                note(error)
                continue
            if is_outside:
                report.outside.append(str(path))
            elif is_file:
                found.append(path)
    return found


def text_beside(path: Path, max_bytes: int) -> str:
    """Return the beginning of a small file beside a log; empty if it is a link, or cannot be read."""
    try:
        if path.is_symlink():
            return ""
        with open_regular_file(path) as file:
            return file.read(max_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def file_stats(paths: Iterable[Path]) -> list[os.stat_result]:
    """Return what the system says about files; nothing about one that has gone since it was found."""
    stats: list[os.stat_result] = []
    for path in paths:
        with suppress(OSError):
            stats.append(path.stat())
    return stats


def with_file_facts(found: FoundSession) -> FoundSession:
    """Return a session with the size and the last change of its files, without those that have gone meanwhile."""
    stats = file_stats(found.files)
    changed = max((int(one.st_mtime * 1000) for one in stats), default=0)
    return replace(found, size=sum(one.st_size for one in stats), modified_ms=found.modified_ms or changed)


def scope_of(event: log.Event) -> str:
    """Return the scope of the agent that an event is about."""
    scope = getattr(event, "scope", log.MAIN)
    return scope if isinstance(scope, str) else log.MAIN


def agent_started(scope: str, agent: str, time_ms: int, *, task: str, parent: str = log.MAIN) -> LoggedItem:
    """Return the start of a sub-agent: it sees nothing of its parent, which gets its answer as the result of a call."""
    started = log.DelegationStarted(
        scope=scope,
        agent=agent,
        parent=parent,
        task=task,
        visibility=SEES_NOTHING.to_json(),
        main_visibility="nothing",
        is_attributed=True,
    )
    return LoggedItem(time_ms=time_ms, event=started)


def agent_finished(scope: str, answer: str, time_ms: int) -> LoggedItem:
    """Return the end of a sub-agent; one that has not answered may go on."""
    event = log.DelegationFinished(scope=scope, answer=answer, state="answered" if answer else "silent")
    return LoggedItem(time_ms=time_ms, event=event, may_grow=not answer)


def delegated(items: Iterable[LoggedItem], scope: str, agent: str, parent: str = log.MAIN) -> Iterator[LoggedItem]:
    """Yield what a sub-agent did, between its start and its end; its first prompt is its task."""
    answer, last, opening = "", None, list[LoggedItem]()
    is_started = False
    for item in items:
        last = item
        answer = answer if (said := answer_in(item.event)) is None else said
        opening.append(item)
        task = "" if is_started else prompt_in(item.event)
        if task:
            yield agent_started(scope, agent, opening[0].time_ms, task=task, parent=parent)
            is_started = True
        if is_started:
            yield from opening
            opening = []
    if last is not None:
        if not is_started:
            yield agent_started(scope, agent, opening[0].time_ms, task="", parent=parent)
            yield from opening
        yield agent_finished(scope, answer, last.time_ms)


def prompt_in(event: log.Event) -> str:
    """Return what was said to an agent; nothing for another event, or for a note of the program."""
    message = _decoded(event)
    is_note = isinstance(event, log.MessageAppended) and event.trust is not None
    return message.text if message is not None and message.role == "user" and not is_note else ""


def answer_in(event: log.Event) -> str | None:
    """Return the text of an answer, and nothing for another message; None for an event that is no message."""
    message = _decoded(event)
    if message is None:
        return None
    return message.text if message.role == "assistant" and not message.calls else ""


def _decoded(event: log.Event) -> Message | None:
    if not isinstance(event, log.MessageAppended):
        return None
    try:
        return format_named(event.format).decode(event.native, 0)
    except MalformedInputError:
        return None


def own_compaction(
    texts: tuple[str, ...],
    *,
    program: str,
    scope: str = log.MAIN,
    tokens_before: object = None,
    tokens_after: object = None,
    usage: log.Usage | None = None,
) -> log.CompactionCompleted:
    """Return a compaction that a program made by itself: its texts replace what was said before."""
    before, after = count_of(tokens_before), count_of(tokens_after)
    return log.CompactionCompleted(
        success=True,
        trigger="client",
        replacement=texts,
        summary=log.Summary(texts[0], by_model=CLIENT, usage=usage),
        pre_compaction_tokens=before,
        post_compaction_tokens=after,
        tokens_removed=max(0, before - after) if after else 0,
        reason=f"{program} compacted its conversation by itself",
        ends_run=False,
        scope=scope,
    )


def object_at(value: object, *names: str) -> JsonFields:
    """Return the object at a path of names, or an empty one."""
    for name in names:
        value = value.get(name) if is_mapping(value) else None
    return value if is_mapping(value) else NOTHING


def text_at(value: object, *names: str) -> str:
    """Return the text at a path of names, or an empty one."""
    found = object_at(value, *names[:-1]).get(names[-1])
    return found if isinstance(found, str) else ""


def list_at(value: object, *names: str) -> list[object]:
    """Return the list at a path of names, or an empty one."""
    found = object_at(value, *names[:-1]).get(names[-1])
    return list(found) if is_list(found) else []


def count_of(value: object) -> int:
    """Return a count, or 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12 else 0


def time_in(value: object, otherwise: int) -> int:
    """Return a time in milliseconds from a date as text, or from milliseconds; `otherwise` if it is neither."""
    if isinstance(value, str):
        try:
            value = int(datetime.fromisoformat(value).timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            return otherwise
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LAST_TIME_MS:
        return value
    return otherwise


def hash_of(*texts: str) -> bytes:
    """Return a hash of texts, which takes less memory than they do."""
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def title_of(text: str) -> str:
    """Return the first line of a text as the title of a session."""
    line = next((line for line in map(str.strip, text[:2_000].splitlines()) if line), "")
    return " ".join(printable(line).split())[:MAX_SESSION_TITLE_CHARS]


def printable(text: str) -> str:
    """Return a text in which nothing can control a terminal; half a character, which was replaced, is left out too."""
    return "".join(char if char.isprintable() and char != "\ufffd" else " " for char in text)
