"""The sessions of pi: `~/.pi/agent/sessions/FOLDER/TIME_ID.jsonl`, learned from version 0.74.2 and its description.

The first line describes the session and names the version of the format. Each other line is an entry with its own id
and that of the entry before it: an entry that follows an earlier one begins a branch. A compaction names the first
entry that it keeps.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.importers.source import (
    FoundSession,
    JsonFields,
    LoggedItem,
    ReadReport,
    SourceProgram,
    count_of,
    files_below,
    first_lines,
    first_of_type,
    list_at,
    object_at,
    own_compaction,
    printable,
    read_json_lines,
    text_at,
    time_in,
    title_of,
    with_file_facts,
)
from holdfast.wire.json_reader import is_mapping

_NAME, _TITLE = "pi", "pi"
_FORMAT = "openai-chat"
_IGNORED_KINDS = frozenset({"thinking_level_change", "custom", "label", "session_info", "session"})


def _find_sessions(root: Path, report: ReadReport) -> Iterator[FoundSession]:
    """Yield the sessions below a folder, or that of a file."""
    for path in [root] if root.is_file() else files_below(root, "*.jsonl", report):
        lines = first_lines(path, report)
        first = first_of_type(lines, "session")
        name = text_at(first, "id") or path.stem.partition("_")[2]
        if not name or not (first or first_of_type(lines, "message")):
            continue
        title, named, model = "", "", ""
        for line in lines:
            named = text_at(line, "name") if line.get("type") == "session_info" else named
            model = model or text_at(line, "modelId") or text_at(line, "message", "model")
            if not title and text_at(line, "message", "role") == "user":
                title = title_of(_text(object_at(line, "message").get("content")))
        found = FoundSession(
            program=_NAME,
            id=name,
            path=path,
            files=(path,),
            title=title_of(named) or title,
            folder=printable(text_at(first, "cwd")),
            model=printable(model),
        )
        yield with_file_facts(found)


def _read_session(found: FoundSession, report: ReadReport) -> Iterator[LoggedItem]:
    """Yield what happened in a session."""
    return _Reader(found.path, report).items()


@dataclass(slots=True)
class _Reader:
    """Reads the entries of a session."""

    path: Path
    report: ReadReport
    time_ms: int = 1
    newest: str = ""
    """The id of the last entry."""
    parent_of: dict[str, str] = field(default_factory=dict[str, str])
    messages: set[str] = field(default_factory=set[str])
    """The ids of the entries that are messages."""
    in_force: dict[str, None] = field(default_factory=dict[str, None])
    """The ids of the messages of the branch in force, in order."""
    model: str = ""
    count: int = 0

    def items(self) -> Iterator[LoggedItem]:
        """Yield what the entries of the file say."""
        for line in read_json_lines(self.path, self.report):
            self.time_ms = time_in(line.get("timestamp"), self.time_ms)
            kind = line.get("type")
            if kind == "session":
                self.report.note_version(line.get("version"))
                yield from self._forked(line)
                continue
            self.count += 1
            key = text_at(line, "id") or f"line-{self.count}"
            # The first version of the format has no ids: its entries follow one another.
            parent = text_at(line, "parentId") if "parentId" in line else self.newest
            yield from self._branch(parent)
            self.parent_of[key], self.newest = parent, key
            yield from self._entry(line, key)

    def _forked(self, line: JsonFields) -> Iterator[LoggedItem]:
        """Yield that the session continues another one, whose id its file's name has after the time."""
        parent = Path(text_at(line, "parentSession")).stem.rpartition("_")[2]
        if parent:
            yield LoggedItem(time_ms=self.time_ms, event=log.Forked(parent=f"{_NAME}-{parent}", at=0))

    def _branch(self, parent: str) -> Iterator[LoggedItem]:
        """Yield a rewind, and again the messages of an earlier branch, if an entry does not follow the last one."""
        if parent == self.newest or (parent and parent not in self.parent_of):
            return
        again: list[str] = []
        seen: set[str] = set()
        while parent and parent not in self.in_force and parent not in seen:
            seen.add(parent)
            if parent in self.messages:
                again.append(parent)
            parent = self.parent_of.get(parent, "")
        keys = list(self.in_force)
        at = keys.index(parent) + 1 if parent in self.in_force else 0
        if at < len(keys):
            yield LoggedItem(time_ms=self.time_ms, event=log.Rewound(to=0), rewind_to=keys[at])
        self.in_force = dict.fromkeys(keys[:at])
        if again:
            yield from self._say_again(set(again))

    def _say_again(self, entries: set[str]) -> Iterator[LoggedItem]:
        """Yield the messages of an earlier branch to which the user has returned; the file is read again for them."""
        for line in read_json_lines(self.path, ReadReport()):
            if not entries:
                return
            if (key := text_at(line, "id")) in entries:
                entries.remove(key)
                yield from self._entry(line, key)

    def _entry(self, line: JsonFields, key: str) -> Iterator[LoggedItem]:
        match text_at(line, "type"):
            case "message":
                yield from self._message(object_at(line, "message"), key)
            case "custom_message":
                yield self._said(key, {"role": "user", "content": _user_content(line.get("content"))}, is_note=True)
            case "branch_summary" if text := text_at(line, "summary"):
                yield self._said(key, {"role": "user", "content": text}, is_note=True)
            case "compaction" if text := text_at(line, "summary"):
                event = own_compaction((text,), program=_TITLE, tokens_before=line.get("tokensBefore"))
                first = self._first_message_from(text_at(line, "firstKeptEntryId"))
                yield LoggedItem(time_ms=self.time_ms, event=event, kept_from=first)
            case "model_change" if (model := text_at(line, "modelId")) and model != self.model:
                self.model = model
                yield LoggedItem(time_ms=self.time_ms, event=log.ModelSwitched(model=model))
            case kind if kind not in _IGNORED_KINDS | {"branch_summary", "compaction", "model_change"}:
                self.report.note_unknown(kind)
            case _:
                pass

    def _first_message_from(self, entry: str) -> str:
        """Return the id of the first message in force that is an entry or comes after it; nothing if none does."""
        if entry in self.in_force or entry not in self.parent_of:
            return entry if entry in self.in_force else ""
        later = set(list(self.parent_of)[list(self.parent_of).index(entry) :])
        return next((key for key in self.in_force if key in later), "")

    def _message(self, message: JsonFields, key: str) -> Iterator[LoggedItem]:
        content = message.get("content")
        match message.get("role"):
            case "user":
                yield self._said(key, {"role": "user", "content": _user_content(content)})
            case "assistant":
                native = _answer(list_at(message, "content"))
                if native is not None:
                    yield self._said(key, native, usage=_usage(message.get("usage")))
            case "toolResult":
                native = {"role": "tool", "tool_call_id": text_at(message, "toolCallId"), "content": _text(content)}
                yield self._said(key, native)
            case "bashExecution" if message.get("excludeFromContext") is not True:
                text = f"Ran `{text_at(message, 'command')}`\n{text_at(message, 'output')}"
                yield self._said(key, {"role": "user", "content": text}, is_note=True)
            case "bashExecution":
                pass
            case "custom" | "hookMessage":
                yield self._said(key, {"role": "user", "content": _user_content(content)}, is_note=True)
            case role:
                self.report.note_unknown(f"message of {role}")

    def _said(
        self, key: str, native: JsonFields, *, usage: log.Usage | None = None, is_note: bool = False
    ) -> LoggedItem:
        event = log.MessageAppended(format=_FORMAT, native=native, usage=usage, trust="memory" if is_note else None)
        self.messages.add(key)
        self.in_force[key] = None
        return LoggedItem(time_ms=self.time_ms, event=event, key=key)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(text for block in list_at({"content": content}, "content") if (text := text_at(block, "text")))


def _user_content(content: object) -> object:
    """Return content in OpenAI's form: plain text, or blocks if there is an image."""
    blocks = [object_at(one) for one in list_at({"content": content}, "content")]
    if not any(one.get("type") == "image" for one in blocks):
        return _text(content)
    return [_block(one) for one in blocks]


def _block(block: JsonFields) -> JsonFields:
    if block.get("type") != "image":
        return {"type": "text", "text": text_at(block, "text")}
    url = f"data:{text_at(block, 'mimeType')};base64,{text_at(block, 'data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _answer(blocks: list[object]) -> JsonFields | None:
    """Return an answer in OpenAI's form; None for one without content, as a stopped answer is."""
    calls = [
        {
            "id": text_at(block, "id"),
            "type": "function",
            "function": {
                "name": text_at(block, "name"),
                "arguments": json.dumps(object_at(block, "arguments"), ensure_ascii=False),
            },
        }
        for block in blocks
        if object_at(block).get("type") == "toolCall"
    ]
    thinking = "\n".join(text for block in blocks if (text := text_at(block, "thinking")))
    text = _text(blocks)
    if not (calls or thinking or text):
        return None
    native: dict[str, object] = {"role": "assistant", "content": text or None}
    if thinking:
        native["reasoning_content"] = thinking
    if calls:
        native["tool_calls"] = calls
    return native


def _usage(value: object) -> log.Usage | None:
    if not is_mapping(value):
        return None
    return log.Usage(
        input_tokens=count_of(value.get("input")),
        output_tokens=count_of(value.get("output")),
        cache_read_tokens=count_of(value.get("cacheRead")),
        cache_write_tokens=count_of(value.get("cacheWrite")),
    )


def _folders(environment: Mapping[str, str], home: Path) -> list[Path]:
    own = environment.get("PI_CODING_AGENT_DIR")
    return [(Path(own) if own else home / ".pi/agent") / "sessions"]


PI = SourceProgram(_NAME, _TITLE, _FORMAT, _folders, _find_sessions, _read_session)
