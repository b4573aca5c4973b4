"""The sessions of opencode: the database `~/.local/share/opencode/opencode.db`, learned from version 1.18.18.

A session has messages, and a message has parts: texts, reasoning, and calls together with their results. A sub-agent
is a session with a parent. A compaction is a user message with a part of that kind, which names the first message that
it keeps, and the answer with the summary. The database is opened for reading only.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from heapq import merge
from pathlib import Path
from urllib.parse import quote

from holdfast.core.history import events as log
from holdfast.errors import StoreUnavailableError
from holdfast.importers.source import (
    FoundSession,
    JsonFields,
    LoggedItem,
    ReadReport,
    SourceProgram,
    count_of,
    delegated,
    object_at,
    own_compaction,
    printable,
    text_at,
    time_in,
    title_of,
)
from holdfast.wire.json_reader import is_mapping

_NAME, _TITLE = "opencode", "opencode"
_FORMAT = "openai-chat"
_DATABASE = "opencode.db"
_IGNORED_PARTS = frozenset({"step-finish", "snapshot", "patch", "agent", "subtask", "retry", "compaction"})
_BUSY_SECONDS = 5.0


def _find_sessions(root: Path, report: ReadReport) -> Iterator[FoundSession]:
    """Yield the sessions of a database; sub-agents belong to the session that started them."""
    del report  # There are no lines to count before a session is read.
    path = root if root.is_file() else root / _DATABASE
    if not path.is_file():
        return
    with closing(_open(path)) as database:
        rows = database.execute("SELECT id, parent_id, directory, title, time_updated FROM session").fetchall()
        sessions = {str(row[0]): row for row in rows}
        sizes = dict(database.execute("SELECT session_id, sum(length(data)) FROM part GROUP BY session_id").fetchall())
        models = _models(database)
    parents = {session: str(row[1]) for session, row in sessions.items() if row[1] in sessions}
    for session, (_, _, folder, title, _) in sessions.items():
        if session in parents:
            continue
        everyone = [session, *_descendants(session, parents)]
        yield FoundSession(
            program=_NAME,
            id=session,
            path=path,
            files=(path,),
            title=title_of(str(title or "")),
            folder=printable(str(folder or "")),
            model=models.get(session, ""),
            modified_ms=max(time_in(sessions[one][4], 0) for one in everyone),
            size=sum(count_of(sizes.get(one)) for one in everyone),
        )


def _models(database: sqlite3.Connection) -> dict[str, str]:
    """Return the model of each session's last answer."""
    model = "json_extract(data, '$.modelID')"
    query = f"SELECT session_id, {model} FROM message WHERE json_valid(data) ORDER BY time_created"  # noqa: S608 - ours
    return {str(session): printable(model) for session, model in database.execute(query) if isinstance(model, str)}


def _descendants(session: str, parents: Mapping[str, str]) -> list[str]:
    """Return the sub-agents of a session, and theirs, each after its parent."""
    found = [session]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one and child not in found]
    return found[1:]


def _open(path: Path) -> sqlite3.Connection:
    """Open a database for reading only, and leave no file beside it."""
    path = path.resolve()
    log_of_writes = path.with_name(f"{path.name}-wal")
    # Without a log of writes nobody has it open, and SQLite need not make files with which processes share it.
    is_at_rest = not log_of_writes.exists() or not log_of_writes.stat().st_size
    mode = "immutable=1" if is_at_rest else "mode=ro"
    try:
        database = sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, timeout=_BUSY_SECONDS)
        database.execute("SELECT 1 FROM session LIMIT 1")
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), f"it cannot be read as a database of {_TITLE}: {error}") from error
    return database


def _read_session(found: FoundSession, report: ReadReport) -> Iterator[LoggedItem]:
    """Yield what happened in a session; the sub-agents' items are placed by their time."""
    with closing(_open(found.path)) as database:
        # One transaction sees one state, even while the program writes.
        database.execute("BEGIN")
        rows = database.execute("SELECT id, parent_id, agent, version, revert FROM session").fetchall()
        sessions = {str(row[0]): row for row in rows}
        own = sessions.get(found.id)
        if own is None:
            return
        report.note_version(own[3])
        below = _descendants(found.id, {key: str(row[1]) for key, row in sessions.items() if row[1]})
        scopes = {found.id: log.MAIN} | {one: f"{_agent(sessions[one])}:{one}" for one in below}
        sources = [_Reader(report).items(database, found.id, own[4])]
        for one in below:
            items = _Reader(report, scopes[one]).items(database, one, None)
            sources.append(delegated(items, scopes[one], _agent(sessions[one]), scopes[str(sessions[one][1])]))
        yield from merge(*sources, key=lambda item: item.time_ms)


def _agent(row: tuple[object, ...]) -> str:
    return printable(str(row[2] or "")) or "agent"


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

    def items(self, database: sqlite3.Connection, session: str, revert: object) -> Iterator[LoggedItem]:
        """Yield what the messages of a session say."""
        query = "SELECT id, time_created, data FROM message WHERE session_id = ? ORDER BY time_created, id"
        waiting: list[LoggedItem] = []
        for message_id, created, data in database.execute(query, (session,)):
            yield from waiting
            message = self._parse(data)
            if message is None:
                waiting = []
                continue
            rows = database.execute("SELECT data FROM part WHERE message_id = ? ORDER BY id", (message_id,))
            parts = [part for (row,) in rows if (part := self._parse(row)) is not None]
            time_ms = self.time_ms = time_in(created, self.time_ms)
            is_open = message.get("role") == "assistant" and object_at(message, "time").get("completed") is None
            waiting = [
                replace(item, may_grow=is_open) for item in self._message(str(message_id), message, parts, time_ms)
            ]
            if waiting:
                self.keys.setdefault(str(message_id), waiting[0].key)
        yield from waiting
        yield from self._reverted(revert)

    def _parse(self, data: object) -> JsonFields | None:
        """Return the object in a row; None, and count it as damaged, if it holds none."""
        self.report.lines += 1
        try:
            value: object = json.loads(data) if isinstance(data, str | bytes) else None
        except (ValueError, RecursionError):
            value = None
        if is_mapping(value):
            return value
        self.report.damaged["not JSON"] += 1
        return None

    def _reverted(self, revert: object) -> Iterator[LoggedItem]:
        """Yield a rewind if the user has taken back the end of the session."""
        value = self._parse(revert) if isinstance(revert, str) else None
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
            if part.get("type") == "step-start" and steps[-1]:
                steps.append([])
            elif part.get("type") in {"text", "reasoning", "tool"}:
                steps[-1].append(part)
            elif part.get("type") not in _IGNORED_PARTS | {"step-start", "file"}:
                self.report.note_unknown(part.get("type"))
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
            if state.get("status") in {"completed", "error"}:
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
