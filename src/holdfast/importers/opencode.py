"""The sessions of opencode: a database since version 1.2, files of JSON before.

The database is `~/.local/share/opencode/opencode.db`, learned from version 1.18.18; it is opened for reading only. The
files are `storage/session/PROJECT/ID.json`, `storage/message/SESSION/ID.json` and `storage/part/MESSAGE/ID.json` in the
same folder, learned from the program's own migration into the database, which leaves them there. The first versions
had such files for each project: `project/NAME/storage/session/info/ID.json`, `…/message/SESSION/ID.json` and
`…/part/SESSION/MESSAGE/ID.json`. All of them hold the same objects.

A session has messages, and a message has parts: texts, reasoning, and calls together with their results. A sub-agent
is a session with a parent. A compaction is a user message with a part of that kind, which names the first message that
it keeps, and the answer with the summary; earlier versions have that answer only.
"""

import json
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from heapq import merge
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from holdfast.core.history import events as log
from holdfast.errors import StoreUnavailableError
from holdfast.importers.source import (
    MAX_LINE_BYTES,
    NOTHING,
    FoundSession,
    JsonFields,
    LoggedItem,
    ReadReport,
    SourceProgram,
    count_of,
    delegated,
    file_stats,
    files_below,
    object_at,
    open_regular_file,
    own_compaction,
    parse_text,
    printable,
    text_at,
    time_in,
    title_of,
)
from holdfast.wire.json_reader import is_mapping

_NAME, _TITLE = "opencode", "opencode"
_FORMAT = "openai-chat"
_DATABASE, _STORAGE = "opencode.db", "storage"
_IGNORED_PARTS = frozenset({"step-finish", "snapshot", "patch", "agent", "subtask", "retry", "compaction"})
_BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """What a session says about itself."""

    path: Path
    """The database, or the file of the session."""
    parent: str = ""
    folder: str = ""
    title: str = ""
    agent: str = ""
    version: object = None
    revert: object = None
    """From which message on the user has taken back the end."""
    modified_ms: int = 0
    size: int = 0


class _Source(Protocol):
    """Where sessions are kept; both forms hold the same objects, as JSON."""

    def messages(self, session: str) -> Iterator[tuple[str, object, object]]:
        """Yield the id of each message of a session, its time and its object, in order."""
        ...

    def parts(self, session: str, message: str) -> Iterator[object]:
        """Yield the objects of a message's parts, in order."""
        ...

    def model(self, session: str) -> str:
        """Return the model of a session's last answer."""
        ...


class _Database:
    """Sessions in a database."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._database = database

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> "Generator[_Database]":
        """Open a database for reading only, and leave no file beside it."""
        whole = path.resolve()
        log_of_writes = whole.with_name(f"{whole.name}-wal")
        # Without a log of writes nobody has it open, and SQLite need not make files with which processes share it.
        is_at_rest = not log_of_writes.exists() or not log_of_writes.stat().st_size
        mode = "immutable=1" if is_at_rest else "mode=ro"
        try:
            database = sqlite3.connect(f"file:{quote(str(whole))}?{mode}", uri=True, timeout=_BUSY_SECONDS)
            with closing(database):
                # One transaction sees one state, even while the program writes.
                database.execute("BEGIN")
                database.execute("SELECT 1 FROM session LIMIT 1")
                yield cls(path, database)
        except sqlite3.Error as error:
            raise StoreUnavailableError(str(whole), f"it cannot be read as a database of {_TITLE}: {error}") from error

    def sessions(self) -> dict[str, _Session]:
        """Return what each session says about itself."""
        query = "SELECT session_id, sum(length(data)) FROM part GROUP BY session_id"
        sizes = dict(self._database.execute(query).fetchall())
        query = "SELECT id, parent_id, directory, title, agent, version, revert, time_updated FROM session"
        return {
            str(session): _Session(
                path=self._path,
                parent=str(parent or ""),
                folder=str(folder or ""),
                title=str(title or ""),
                agent=str(agent or ""),
                version=version,
                revert=revert,
                modified_ms=time_in(updated, 0),
                size=count_of(sizes.get(session)),
            )
            for session, parent, folder, title, agent, version, revert, updated in self._database.execute(query)
        }

    def messages(self, session: str) -> Iterator[tuple[str, object, object]]:
        """Yield the id of each message of a session, its time and its object, in order."""
        query = "SELECT id, time_created, data FROM message WHERE session_id = ? ORDER BY time_created, id"
        rows = self._database.execute(query, (session,))
        return ((str(message), created, data) for message, created, data in rows)

    def parts(self, session: str, message: str) -> Iterator[object]:
        """Yield the objects of a message's parts, in order."""
        del session
        query = "SELECT data FROM part WHERE message_id = ? ORDER BY id"
        return (data for (data,) in self._database.execute(query, (message,)))

    def model(self, session: str) -> str:
        """Return the model of a session's last answer."""
        query = (
            "SELECT json_extract(data, '$.modelID') AS model FROM message WHERE session_id = ? AND json_valid(data)"
            " AND model IS NOT NULL ORDER BY time_created DESC, id DESC LIMIT 1"
        )
        found = self._database.execute(query, (session,)).fetchone()
        return found[0] if found and isinstance(found[0], str) else ""


@dataclass(frozen=True, slots=True)
class _Folder:
    """Sessions in files, below a folder `storage` of all projects, or of one in the first versions."""

    root: Path
    is_first_layout: bool = False

    def sessions(self, report: ReadReport) -> dict[str, _Session]:
        """Return what each session says about itself, with the size and the last change of its files."""
        below = self.root / "session" / ("info" if self.is_first_layout else "")
        found: dict[str, _Session] = {}
        for path in files_below(below, "*.json", report):
            messages = self._message_files(path.stem, report)
            parts = [one for message in messages for one in self._part_files(path.stem, message.stem, report)]
            stats = file_stats((path, *messages, *parts))
            try:
                session = self.session(path)
            except OSError as error:
                report.note_unreadable(error.filename or path, error)
                continue
            found[path.stem] = replace(
                session,
                modified_ms=max((int(one.st_mtime * 1_000) for one in stats), default=0),
                size=sum(one.st_size for one in stats),
            )
        return found

    def session(self, path: Path) -> _Session:
        """Return what the file of a session says about it; its first message names its agent."""
        value, messages = _json_object(path), self._message_files(path.stem, ReadReport())
        first = _json_object(messages[0]) if messages else NOTHING
        return _Session(
            path=path,
            parent=text_at(value, "parentID"),
            folder=text_at(value, "directory"),
            title=text_at(value, "title"),
            agent=text_at(first, "agent") or text_at(first, "mode"),
            version=value.get("version"),
            revert=value.get("revert"),
        )

    def messages(self, session: str) -> Iterator[tuple[str, object, object]]:
        """Yield the id of each message of a session, its time and its object, in order."""
        found: list[tuple[str, object, object]] = []
        for path in self._message_files(session, ReadReport()):
            content = _content(path)
            found.append((path.stem, object_at(_parsed(content), "time").get("created"), content))
        return iter(sorted(found, key=lambda one: (time_in(one[1], 0), one[0])))

    def parts(self, session: str, message: str) -> Iterator[object]:
        """Yield the objects of a message's parts, in order."""
        return map(_content, self._part_files(session, message, ReadReport()))

    def model(self, session: str) -> str:
        """Return the model of a session's last answer."""
        for path in reversed(self._message_files(session, ReadReport())):
            with suppress(OSError):  # the import names what it cannot read
                if model := text_at(_json_object(path), "modelID"):
                    return model
        return ""

    def _message_files(self, session: str, report: ReadReport) -> list[Path]:
        above = self.root / "session" if self.is_first_layout else self.root
        return files_below(above / "message" / session, "*.json", report)

    def _part_files(self, session: str, message: str, report: ReadReport) -> list[Path]:
        first = self.root / "session" / "part" / session / message
        return files_below(first if self.is_first_layout else self.root / "part" / message, "*.json", report)


def _content(path: Path) -> bytes:
    with open_regular_file(path) as file:
        return file.read(MAX_LINE_BYTES)


def _parsed(data: object) -> JsonFields | None:
    """Return the object that a text holds; None if it holds none."""
    try:
        value: object = parse_text(data) if isinstance(data, str | bytes) else None
    except (ValueError, RecursionError):
        return None
    return value if is_mapping(value) else None


def _json_object(path: Path) -> JsonFields:
    return _parsed(_content(path)) or NOTHING


def _folder_of(path: Path) -> _Folder:
    """Return the folder of which a file describes a session."""
    return _Folder(path.parents[2], is_first_layout=path.parent.name == "info")


def _find_sessions(root: Path, report: ReadReport) -> Iterator[FoundSession]:
    """Yield the sessions of a database, and those in files that the database does not have; or that of a file."""
    if root.is_file() and root.suffix == ".json":
        folder = _folder_of(root)
        yield from (one for one in _found(folder, folder.sessions(report)) if one.path.resolve() == root.resolve())
        return
    path, known = root if root.is_file() else root / _DATABASE, set[str]()
    if path.is_file():
        with _Database.opened(path) as database:
            sessions = database.sessions()
            yield from _found(database, sessions)
            known.update(sessions)
    if root.is_file():
        return
    storage = root if (root / "session").is_dir() else root / _STORAGE
    first = (one for one in sorted(root.glob(f"project/*/{_STORAGE}")) if not one.is_symlink())
    for folder in (_Folder(storage), *(_Folder(one, is_first_layout=True) for one in first)):
        sessions = {session: one for session, one in folder.sessions(report).items() if session not in known}
        yield from _found(folder, sessions)
        known.update(sessions)


def _found(source: _Source, sessions: Mapping[str, _Session]) -> Iterator[FoundSession]:
    """Yield the sessions of a source; sub-agents belong to the session that started them."""
    children = _children(sessions)
    for session, one in sessions.items():
        if one.parent in sessions:
            continue
        everyone = [sessions[own] for own in (session, *_descendants(session, children))]
        yield FoundSession(
            program=_NAME,
            id=session,
            path=one.path,
            files=tuple(dict.fromkeys(own.path for own in everyone)),
            title=title_of(one.title),
            folder=printable(one.folder),
            model=printable(source.model(session)),
            modified_ms=max(own.modified_ms for own in everyone),
            size=sum(own.size for own in everyone),
        )


def _children(sessions: Mapping[str, _Session]) -> Mapping[str, list[str]]:
    """Return the sub-agents that each session has started."""
    children: dict[str, list[str]] = {}
    for session, one in sessions.items():
        children.setdefault(one.parent, []).append(session)
    return children


def _descendants(session: str, children: Mapping[str, list[str]]) -> list[str]:
    """Return the sub-agents of a session, and theirs, each after its parent."""
    found = {session: None}
    waiting = [session]
    for one in waiting:
        new = [child for child in children.get(one, ()) if child not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return waiting[1:]


def _read_session(found: FoundSession, report: ReadReport) -> Iterator[LoggedItem]:
    """Yield what happened in a session."""
    if found.path.suffix == ".json":
        folder = _folder_of(found.path)
        yield from _items_of(folder, {path.stem: folder.session(path) for path in found.files}, found.id, report)
        return
    with _Database.opened(found.path) as database:
        yield from _items_of(database, database.sessions(), found.id, report)


def _items_of(
    source: _Source, sessions: Mapping[str, _Session], session: str, report: ReadReport
) -> Iterator[LoggedItem]:
    """Yield what happened in a session; the sub-agents' items are placed by their time."""
    own = sessions.get(session)
    if own is None:
        return
    report.note_version(own.version)
    below = _descendants(session, _children(sessions))
    agents = {one: printable(sessions[one].agent) or "agent" for one in below}
    scopes = {session: log.MAIN} | {one: f"{agents[one]}:{one}" for one in below}
    by_agent = [_Reader(report).items(source, session, own.revert)]
    for one in below:
        items = _Reader(report, scopes[one]).items(source, one, None)
        by_agent.append(delegated(items, scopes[one], agents[one], scopes[sessions[one].parent]))
    yield from merge(*by_agent, key=lambda item: item.time_ms)


@dataclass(slots=True)
class _Reader:
    """Reads the messages of one agent."""

    report: ReadReport
    scope: str = log.MAIN
    model: str = ""
    compaction: JsonFields | None = None
    """The compaction whose summary comes next."""
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """By the id of a message, the key of its first item."""
    time_ms: int = 1

    def items(self, source: _Source, session: str, revert: object) -> Iterator[LoggedItem]:
        """Yield what the messages of a session say."""
        waiting: list[LoggedItem] = []
        for message_id, created, data in source.messages(session):
            yield from waiting
            message = self._parse(data)
            if message is None:
                waiting = []
                continue
            parts = [part for one in source.parts(session, message_id) if (part := self._parse(one)) is not None]
            time_ms = self.time_ms = time_in(created, self.time_ms)
            is_open = message.get("role") == "assistant" and object_at(message, "time").get("completed") is None
            waiting = [replace(item, may_grow=is_open) for item in self._message(message_id, message, parts, time_ms)]
            if waiting:
                self.keys.setdefault(message_id, waiting[0].key)
        yield from waiting
        yield from self._reverted(revert)

    def _parse(self, data: object) -> JsonFields | None:
        """Return the object of a message or part; None, and count it as damaged, if there is none."""
        self.report.lines += 1
        value = _parsed(data)
        if value is None:
            self.report.damaged["not JSON"] += 1
        return value

    def _reverted(self, revert: object) -> Iterator[LoggedItem]:
        """Yield a rewind if the user has taken back the end of the session."""
        value = self._parse(revert) if isinstance(revert, str) else revert
        key = self.keys.get(text_at(value, "messageID"))
        if key:
            yield LoggedItem(time_ms=self.time_ms, event=log.Rewound(to=0), rewind_to=key)

    def _message(
        self, message_id: str, message: JsonFields, parts: list[JsonFields], time_ms: int
    ) -> Iterator[LoggedItem]:
        compaction = next((part for part in parts if part.get("type") == "compaction"), None)
        if message.get("role") == "user":
            if compaction is not None:
                self.compaction = compaction
                return
            content, is_note = _user_content(parts)
            if content:
                yield self._said(message_id, {"role": "user", "content": content}, time_ms, is_note=is_note)
        elif message.get("role") == "assistant" and message.get("summary") is True:
            yield from self._summary(message, parts, time_ms)
        elif message.get("role") == "assistant":
            yield from self._answer(message_id, message, parts, time_ms)
        else:
            self.report.note_unknown(f"message of {message.get('role')}")

    def _summary(self, message: JsonFields, parts: list[JsonFields], time_ms: int) -> Iterator[LoggedItem]:
        text = _texts(parts, "text")
        first = self.keys.get(text_at(self.compaction, "tail_start_id"), "")
        self.compaction = None
        if text:
            event = own_compaction((text,), program=_TITLE, scope=self.scope, usage=_usage(message.get("tokens")))
            yield LoggedItem(time_ms=time_ms, event=event, kept_from=first)

    def _answer(
        self, message_id: str, message: JsonFields, parts: list[JsonFields], time_ms: int
    ) -> Iterator[LoggedItem]:
        """Yield an answer and the results of its calls; in older versions a message has several such steps."""
        model = text_at(message, "modelID")
        if model and model != self.model and self.scope == log.MAIN:
            self.model = model
            yield LoggedItem(time_ms=time_ms, event=log.ModelSwitched(model=model))
        steps: list[list[JsonFields]] = [[]]
        for part in parts:
            kind = text_at(part, "type")
            if kind == "step-start" and steps[-1]:
                steps.append([])
            elif kind in {"text", "reasoning", "tool"}:
                steps[-1].append(part)
            elif kind not in _IGNORED_PARTS | {"step-start", "file"}:
                self.report.note_unknown(kind)
        usage = _usage(message.get("tokens"))
        for number, step in enumerate(steps):
            is_last = number == len(steps) - 1
            key = f"{message_id}:{number}" if number else message_id
            yield from self._step(key, step, time_ms, usage if is_last else None)

    def _step(self, key: str, parts: list[JsonFields], time_ms: int, usage: log.Usage | None) -> Iterator[LoggedItem]:
        text, thinking = _texts(parts, "text"), _texts(parts, "reasoning")
        tools = [part for part in parts if part.get("type") == "tool" and text_at(part, "callID")]
        if not (text or thinking or tools):
            return
        native: dict[str, object] = {"role": "assistant", "content": text or None}
        if thinking:
            native["reasoning_content"] = thinking
        if tools:
            native["tool_calls"] = [_call(part) for part in tools]
        yield self._said(key, native, time_ms, usage=usage)
        for part in tools:
            state = object_at(part, "state")
            if text_at(state, "status") in {"completed", "error"}:
                content = text_at(state, "output") or text_at(state, "error")
                call = text_at(part, "callID")
                result = {"role": "tool", "tool_call_id": call, "content": content}
                yield self._said(f"{key}:{call}", result, time_ms)

    def _said(
        self, key: str, native: JsonFields, time_ms: int, *, usage: log.Usage | None = None, is_note: bool = False
    ) -> LoggedItem:
        trust = "memory" if is_note else None
        event = log.MessageAppended(format=_FORMAT, native=native, scope=self.scope, usage=usage, trust=trust)
        return LoggedItem(time_ms=time_ms, event=event, key=key)


def _texts(parts: list[JsonFields], kind: str) -> str:
    return "\n".join(text for part in parts if part.get("type") == kind and (text := text_at(part, "text")))


def _user_content(parts: list[JsonFields]) -> tuple[object, bool]:
    """Return what a user message says, and whether the program wrote all of it."""
    blocks: list[JsonFields] = []
    is_note = True
    for part in parts:
        if part.get("type") == "text" and part.get("ignored") is not True and (text := text_at(part, "text")):
            blocks.append({"type": "text", "text": text})
            is_note = is_note and part.get("synthetic") is True
        elif part.get("type") == "file":
            url, name = text_at(part, "url"), text_at(part, "filename")
            is_image = text_at(part, "mime").startswith("image/") and url.startswith("data:")
            image = {"type": "image_url", "image_url": {"url": url}}
            blocks.append(image if is_image else {"type": "text", "text": f"[file: {name}]"})
            is_note = False
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(str(block["text"]) for block in blocks), is_note
    return blocks, is_note


def _call(part: JsonFields) -> JsonFields:
    arguments = json.dumps(object_at(part, "state", "input"), ensure_ascii=False)
    function = {"name": text_at(part, "tool"), "arguments": arguments}
    return {"id": text_at(part, "callID"), "type": "function", "function": function}


def _usage(value: object) -> log.Usage | None:
    if not is_mapping(value):
        return None
    return log.Usage(
        input_tokens=count_of(value.get("input")),
        output_tokens=count_of(value.get("output")) + count_of(value.get("reasoning")),
        cache_read_tokens=count_of(object_at(value, "cache").get("read")),
        cache_write_tokens=count_of(object_at(value, "cache").get("write")),
    )


def _folders(environment: Mapping[str, str], home: Path) -> list[Path]:
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share")
    return [data / "opencode"]


OPENCODE = SourceProgram(_NAME, _TITLE, _FORMAT, _folders, _find_sessions, _read_session)
