"""The sessions of the Gemini CLI: `~/.gemini/tmp/PROJECT/chats/session-TIME-ID.jsonl`, learned from version 0.61.0.

The first line describes the session; a message may be written again with the calls that it made. A line with `$set`
replaces fields: with `messages` the whole list, as after a compaction, which puts a summary and an assent before the
messages that it keeps and gives those new ids. A resumed session may have a second file with the same id. The files of
sub-agents are in a folder with the name of the session. Older versions wrote one JSON document instead of lines.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.importers.source import (
    MAX_LINE_BYTES,
    NOTHING,
    PEEKED_LINES,
    FoundSession,
    JsonFields,
    LoggedItem,
    ReadReport,
    SourceProgram,
    count_of,
    delegated,
    files_below,
    first_lines,
    hash_of,
    list_at,
    object_at,
    open_regular_file,
    own_compaction,
    parse_text,
    printable,
    read_json_lines,
    text_at,
    text_beside,
    time_in,
    title_of,
    with_file_facts,
)
from holdfast.wire.json_reader import is_list, is_mapping

_NAME, _TITLE = "gemini", "Gemini CLI"
_FORMAT = "gemini-2"
_CHATS_FOLDER = "chats"
_PROGRAM_TEXTS = ("<session_context>", "<hook_context>")
"""How user messages begin that the program wrote by itself."""
_SHOWN_KINDS = frozenset({"info", "error", "warning"})
"""Messages that the program showed to the user only."""


def _find_sessions(root: Path, report: ReadReport) -> Iterator[FoundSession]:
    """Yield the sessions below a folder, or that of a file, each with its other files and those of sub-agents."""
    folder = root.parent if root.is_file() else root
    paths = [one for pattern in ("*.jsonl", "session-*.json") for one in files_below(folder, pattern, report)]
    groups: dict[str, list[tuple[str, Path, JsonFields]]] = {}
    agents: dict[str, list[Path]] = {}
    for path in paths:
        header = _header(path, report)
        session = text_at(header, "sessionId")
        if header.get("kind") == "subagent":
            agents.setdefault(path.parent.name, []).append(path)
        elif session and _CHATS_FOLDER in path.parts and (root.is_dir() or root.name == path.name):
            groups.setdefault(session, []).append((text_at(header, "startTime"), path, header))
    for session, group in groups.items():
        own = [path for _, path, _ in sorted(group, key=lambda one: one[:2])]
        title, model = _peek(own[0], report)
        found = FoundSession(
            program=_NAME,
            id=session,
            path=own[0],
            files=(*own, *agents.get(session, [])),
            title=title,
            folder=_project_folder(own[0]),
            model=printable(model),
        )
        yield with_file_facts(found)


def _header(path: Path, report: ReadReport) -> JsonFields:
    """Return the description of a session; what its place says if that line is damaged."""
    lines = _first_lines(path, report, max_lines=1)
    header = next((line for line in lines if text_at(line, "sessionId")), NOTHING)
    if header or not lines:
        return header
    is_agent = path.parent.parent.name == _CHATS_FOLDER
    later = (text_at(line, "$set", "sessionId") for line in lines)
    return {"sessionId": next(filter(None, later), path.stem), "kind": "subagent" if is_agent else "main"}


def _project_folder(path: Path) -> str:
    """Return the folder that a session worked in, which the program keeps beside its chats."""
    return printable(text_beside(path.parent.parent / ".project_root", 4_000).strip())


def _peek(path: Path, report: ReadReport) -> tuple[str, str]:
    """Return the title and the model of a session for the list of sessions."""
    title, summary, model = "", "", ""
    for line in _first_lines(path, report, max_lines=PEEKED_LINES):
        summary = text_at(line, "summary") or text_at(line, "$set", "summary") or summary
        model = model or text_at(line, "model")
        if not title and line.get("type") == "user":
            said = _text_of(line.get("content"))
            title = "" if said.startswith(_PROGRAM_TEXTS) else title_of(said)
    return title_of(summary) or title, model


def _first_lines(path: Path, report: ReadReport, *, max_lines: int) -> list[JsonFields]:
    """Return the first lines of a file, at most so many of an older version; none if it cannot be opened."""
    if path.suffix != ".json":
        return first_lines(path, report)
    try:
        return list(_lines(path, ReadReport(), max_lines=max_lines))
    except OSError as error:
        report.note_unreadable(path, error)
        return []


def _lines(path: Path, report: ReadReport, *, max_lines: int | None = None) -> Iterator[JsonFields]:
    """Yield the lines of a file; the document of an older version as a description and one line for each message."""
    if path.suffix != ".json":
        yield from read_json_lines(path, report, max_lines=max_lines)
        return
    with open_regular_file(path) as file:
        content = file.read(MAX_LINE_BYTES + 1)
    try:
        whole: object = parse_text(content) if len(content) <= MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        whole = None
    if not is_mapping(whole):
        report.damaged["not a JSON document"] += 1
        return
    report.lines += 1
    yield {name: value for name, value in whole.items() if name != "messages"}
    yield from [object_at(one) for one in list_at(whole, "messages")][: None if max_lines is None else max_lines - 1]


def _read_session(found: FoundSession, report: ReadReport) -> Iterator[LoggedItem]:
    """Yield what happened in a session; the sub-agents' items are placed by their time."""
    headers = {path: _header(path, report) for path in found.files}
    agents = [path for path in found.files if headers[path].get("kind") == "subagent"]
    own = [path for path in found.files if path not in agents]
    names = _agent_names(own) if agents else {}
    sources = [_Reader(report).items(own)]
    for path in agents:
        own_id = text_at(headers[path], "sessionId")
        # The scope has no name in it: the name is known only once the call of the parent is on record.
        scope = f"agent:{own_id}"
        sources.append(delegated(_Reader(report, scope).items([path]), scope, names.get(own_id, "agent")))
    return iter(merge(*sources, key=lambda item: item.time_ms))


def _agent_names(paths: list[Path]) -> dict[str, str]:
    """Return the names of sub-agents by their ids, which the calls that started them have."""
    calls = (call for path in paths for line in _lines(path, ReadReport()) for call in list_at(line, "toolCalls"))
    return {
        text_at(call, "agentId"): printable(text_at(call, "args", "agent_name")) or "agent"
        for call in calls
        if text_at(call, "agentId")
    }


@dataclass(slots=True)
class _Reader:
    """Reads the files of one agent."""

    report: ReadReport
    scope: str = log.MAIN
    time_ms: int = 1
    waiting: JsonFields | None = None
    """The last message of the model, which may be written again with its calls."""
    listed: dict[str, None] = field(default_factory=dict[str, None])
    """The keys of the messages in the program's list, in order."""
    said: dict[bytes, list[str]] = field(default_factory=dict[bytes, list[str]])
    """By a hash of role and content, the keys of the messages that say it, in order."""
    known: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])
    """The ids of the calls whose results are known."""
    model: str = ""

    def items(self, paths: list[Path]) -> Iterator[LoggedItem]:
        """Yield what the lines of files say."""
        for path in paths:
            self.listed = {}
            for line in _lines(path, self.report):
                yield from self._line(line)
            yield from self._flush(is_end=True)

    def _line(self, line: JsonFields) -> Iterator[LoggedItem]:
        update = object_at(line, "$set")
        if text_at(line, "$rewindTo"):
            yield from self._flush()
            yield from self._rewind(text_at(line, "$rewindTo"))
        elif is_list(update.get("messages")):
            yield from self._flush()
            yield from self._replace_list([object_at(one) for one in list_at(update, "messages")])
        elif text_at(line, "id") and isinstance(line.get("type"), str):
            self.time_ms = time_in(line.get("timestamp"), self.time_ms)
            if self.waiting is not None and self.waiting.get("id") != line.get("id"):
                yield from self._flush()
            if line.get("type") == "gemini":
                self.waiting = line
            else:
                yield from self._message(line)
        elif not update and not text_at(line, "sessionId"):
            self.report.note_unknown(next(iter(line), "") if line else "")
        else:
            self.report.note_version(line.get("version"))

    def _flush(self, *, is_end: bool = False) -> Iterator[LoggedItem]:
        """Yield the last message of the model; at the end of the log, one that is only thoughts will go on."""
        line, self.waiting = self.waiting, None
        if line is not None:
            may_grow = is_end and not _text_of(line.get("content")) and not list_at(line, "toolCalls")
            yield from (replace(item, may_grow=may_grow) for item in self._message(line))

    def _message(self, line: JsonFields) -> Iterator[LoggedItem]:
        """Yield a message, and the results of its calls."""
        kind, time_ms = text_at(line, "type"), time_in(line.get("timestamp"), self.time_ms)
        if kind == "gemini":
            yield from self._model_message(line, time_ms)
        elif kind == "user":
            parts = [one for one in _parts(line.get("content")) if self._is_new_result(one)]
            if parts:
                is_note = _text_of(parts).startswith(_PROGRAM_TEXTS)
                yield from self._say(f"user:{text_at(line, 'id')}", "user", parts, time_ms, is_note=is_note)
        elif kind not in _SHOWN_KINDS:
            self.report.note_unknown(kind)

    def _model_message(self, line: JsonFields, time_ms: int) -> Iterator[LoggedItem]:
        if self.scope == log.MAIN and (model := text_at(line, "model")) and model != self.model:
            self.model = model
            yield LoggedItem(time_ms=time_ms, event=log.ModelSwitched(model=model))
        parts: list[JsonFields] = [
            {"text": f"{text_at(one, 'subject')}\n{text_at(one, 'description')}".strip(), "thought": True}
            for one in list_at(line, "thoughts")
        ]
        parts += _parts(line.get("content"))
        calls = [object_at(one) for one in list_at(line, "toolCalls")]
        if not any("functionCall" in part for part in parts):
            parts += [_call(one) for one in calls]
        if not parts:
            return
        yield from self._say(f"gemini:{text_at(line, 'id')}", "model", parts, time_ms, usage=_usage(line.get("tokens")))
        results = [part for one in calls for part in _parts(one.get("result")) if self._is_new_result(part)]
        if results:
            yield from self._say(f"results:{text_at(line, 'id')}", "user", results, time_ms)

    def _is_new_result(self, part: JsonFields) -> bool:
        """Return whether a part is no result, or one that is not known; the program writes each result twice."""
        response = part.get("functionResponse")
        call = text_at(response, "id")
        if not is_mapping(response) or not call:
            return True
        is_new = call not in self.answered
        self.answered.add(call)
        return is_new

    def _say(
        self,
        key: str,
        role: str,
        parts: list[JsonFields],
        time_ms: int,
        *,
        usage: log.Usage | None = None,
        is_note: bool = False,
    ) -> Iterator[LoggedItem]:
        self.listed[key] = None
        if key in self.known:
            return
        self.known.add(key)
        native = {"role": role, "parts": parts}
        self.said.setdefault(_content_hash(role, parts), []).append(key)
        trust = "memory" if is_note else None
        event = log.MessageAppended(format=_FORMAT, native=native, scope=self.scope, usage=usage, trust=trust)
        yield LoggedItem(time_ms=time_ms, event=event, key=key)

    def _rewind(self, message_id: str) -> Iterator[LoggedItem]:
        keys = list(self.listed)
        at = next((number for number, key in enumerate(keys) if key.partition(":")[2] == message_id), None)
        if at is not None:
            self.listed = dict.fromkeys(keys[:at])
            yield LoggedItem(time_ms=self.time_ms, event=log.Rewound(to=0), rewind_to=keys[at])

    def _replace_list(self, messages: list[JsonFields]) -> Iterator[LoggedItem]:
        """Yield what a new list says: a compaction if it leaves out messages and has a text that nobody said before."""
        kept, new = list[str](), list[JsonFields]()
        left: dict[bytes, list[str]] = {}
        for message in reversed(messages):  # of several that say the same, the newest are kept
            key = self._known_key(message, left)
            if key is not None:
                kept.append(key)
            elif text_at(message, "type") not in _SHOWN_KINDS:
                new.append(message)
        kept.reverse()
        new.reverse()
        has_dropped = not self.listed.keys() <= set(kept)
        if has_dropped and new:
            texts = tuple(text for one in new if (text := _text_of(one.get("content"))))
            if texts:
                event = own_compaction(texts, program=_TITLE, scope=self.scope)
                yield LoggedItem(time_ms=self.time_ms, event=event, kept=frozenset(kept))
            summary = [f"{one.get('type')}:{text_at(one, 'id')}" for one in new]
            self.known.update(summary)
            self.listed = dict.fromkeys([*summary, *kept])
            return
        for message in new:
            yield from self._message(message)

    def _known_key(self, message: JsonFields, left: dict[bytes, list[str]]) -> str | None:
        """Return the key of a message of a list that was said before, by its id or by its content.

        `left` has, by content, the keys that no later message of the list has.
        """
        kind, own = message.get("type"), text_at(message, "id")
        for prefix in ("gemini:",) if kind == "gemini" else ("user:", "results:"):
            if f"{prefix}{own}" in self.known:
                return f"{prefix}{own}"
        parts = _parts(message.get("content"))
        results = [text_at(part, "functionResponse", "id") for part in parts if "functionResponse" in part]
        if results and all(one in self.answered for one in results):
            return f"results:{own}"
        said = _content_hash("model" if kind == "gemini" else "user", parts)
        keys = left.get(said)
        if keys is None:
            keys = left[said] = [*self.said.get(said, [])]
        return keys.pop() if len(keys) > 1 else next(iter(keys), None)


def _call(call: JsonFields) -> JsonFields:
    return {"functionCall": {"id": call.get("id"), "name": call.get("name"), "args": object_at(call, "args")}}


def _content_hash(role: str, parts: list[JsonFields]) -> bytes:
    return hash_of(role, json.dumps(parts, sort_keys=True))


def _parts(content: object) -> list[JsonFields]:
    """Return content as parts; empty texts are left out."""
    if isinstance(content, str):
        return [{"text": content}] if content else []
    parts = list_at({"of": content}, "of")
    found = [{"text": part} if isinstance(part, str) else object_at(part) for part in parts]
    return [part for part in found if part and part.get("text") != ""]


def _text_of(content: object) -> str:
    return "\n".join(text for part in _parts(content) if (text := text_at(part, "text")) and not part.get("thought"))


def _usage(value: object) -> log.Usage | None:
    if not is_mapping(value):
        return None
    cached = count_of(value.get("cached"))
    return log.Usage(
        input_tokens=max(0, count_of(value.get("input")) - cached),
        output_tokens=count_of(value.get("output")) + count_of(value.get("thoughts")),
        cache_read_tokens=cached,
    )


def _folders(environment: Mapping[str, str], home: Path) -> list[Path]:
    own = environment.get("GEMINI_CLI_HOME")
    return [(Path(own) if own else home) / ".gemini/tmp"]


GEMINI_CLI = SourceProgram(_NAME, _TITLE, _FORMAT, _folders, _find_sessions, _read_session)
