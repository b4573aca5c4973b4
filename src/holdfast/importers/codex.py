"""The sessions of Codex: `~/.codex/sessions/YEAR/MONTH/DAY/rollout-TIME-ID.jsonl`, learned from version 0.166.0.

A line holds an item of the Responses API as it was sent or received, or what the program noted besides. What a
response cost follows its items. A sub-agent has a file of its own that names its parent; the file of a fork names the
session that it continues, and how many of its lines. A compaction holds the list that replaces the conversation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import chain
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.importers.source import (
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
    first_of_type,
    hash_of,
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
from holdfast.wire.responses import COMPACTION_ITEM_TYPES

_NAME, _TITLE = "codex", "Codex"
_FORMAT = "openai-responses-stateless"
_IGNORED_KINDS = frozenset({"event_msg", "world_state"})
_ANSWER_ITEMS = frozenset({
    "reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call",
    "image_generation_call",
})  # fmt: skip
_OUTPUT_ITEMS = frozenset({
    "function_call_output", "custom_tool_call_output", "local_shell_call_output", "tool_search_output",
})  # fmt: skip
_CLIENT_ITEMS = frozenset({"message", "additional_tools"})
"""What the client sends besides outputs: messages, and tools as an item of the developer's in place of the field."""
_BARE_KINDS = _ANSWER_ITEMS | _OUTPUT_ITEMS | {"message"}
"""Items that the first versions wrote as lines of their own."""
_PROGRAM_TEXTS = ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md instructions")
"""How user messages begin that older versions wrote by themselves, without saying so."""
_ENCRYPTED_TEXT = "[Codex compacted what was said before; only its provider can read the summary.]"
"""What stands for a summary that the provider wrote: it has no text, and follows as an encrypted item."""
_STAMP_CHARS = len("rollout-2026-03-02T10-00-00-")
"""How much of a file's name comes before the id of its session."""
_PRIVATE_PREFIX = "internal_"
"""How the names of fields begin that the program keeps for itself."""


def _find_sessions(root: Path, report: ReadReport) -> Iterator[FoundSession]:
    """Yield the sessions below a folder, or that of a file, each with the files of its sub-agents."""
    everything = files_below(_sessions_folder(root), "rollout-*.jsonl", report)
    metas = {path: meta for path in everything if (meta := _meta(path, report))}
    children: dict[str, list[Path]] = {}
    by_id: dict[str, Path] = {}
    for path, meta in metas.items():
        by_id[text_at(meta, "id")] = path
        if parent := _parent_thread(meta):
            children.setdefault(parent, []).append(path)
    for path, meta in metas.items():
        if _parent_thread(meta) or (root.is_file() and path.resolve() != root.resolve()):
            continue
        title, model = _peek(path, report)
        found = FoundSession(
            program=_NAME,
            id=text_at(meta, "id"),
            path=path,
            files=(path, *_descendants(text_at(meta, "id"), children, metas), *_forked_from(meta, by_id, metas)),
            title=title,
            folder=printable(text_at(meta, "cwd")),
            model=printable(model),
        )
        yield with_file_facts(found)


def _sessions_folder(root: Path) -> Path:
    """Return the folder in which the files of a session's sub-agents are: they may be of another day."""
    if root.is_dir():
        return root
    return next((one for one in root.parents if one.name in {"sessions", "archived_sessions"}), root.parent)


def _meta(path: Path, report: ReadReport) -> JsonFields:
    """Return a file's description of its session; only the id in the name of the file if that line is damaged."""
    lines = first_lines(path, report)
    meta = object_at(first_of_type(lines, "session_meta"), "payload")
    if text_at(meta, "id") or not lines:
        return meta
    # The first versions wrote the description, and items of the Responses API, without saying what each line is.
    bare = lines[0] if text_at(lines[0], "id") and "type" not in lines[0] else NOTHING
    return {"id": path.stem[_STAMP_CHARS:], **bare}


def _parent_thread(meta: JsonFields) -> str:
    """Return the session whose sub-agent this is, or nothing."""
    spawned = object_at(meta, "source", "subagent", "thread_spawn")
    return text_at(meta, "parent_thread_id") or text_at(spawned, "parent_thread_id")


def _descendants(thread: str, children: Mapping[str, list[Path]], metas: Mapping[Path, JsonFields]) -> list[Path]:
    found: list[Path] = []
    waiting, seen = [thread], {thread}
    while waiting:
        for path in children.get(waiting.pop(), []):
            found.append(path)
            if (own := text_at(metas[path], "id")) not in seen:
                seen.add(own)
                waiting.append(own)
    return found


def _forked_from(meta: JsonFields, by_id: Mapping[str, Path], metas: Mapping[Path, JsonFields]) -> list[Path]:
    """Return the files whose lines a fork continues without repeating them."""
    found: list[Path] = []
    while is_mapping(meta) and "forked_from_ordinal_exclusive" in meta and len(found) < PEEKED_LINES:
        path = by_id.get(text_at(meta, "forked_from_id"))
        if path is None or path in found:
            break
        found.append(path)
        meta = metas[path]
    return found


def _peek(path: Path, report: ReadReport) -> tuple[str, str]:
    """Return the title and the model of a session for the list of sessions."""
    title, model = "", ""
    for line in first_lines(path, report):
        is_bare = text_at(line, "type") in _BARE_KINDS
        payload = line if is_bare else object_at(line, "payload")
        model = model or (text_at(payload, "model") if line.get("type") == "turn_context" else "")
        is_item = is_bare or line.get("type") == "response_item"
        if not title and is_item and payload.get("role") == "user":
            title = "" if _is_by_program(payload) else title_of(_text_of(payload))
        if title and model:
            break
    return title, model


def _read_session(found: FoundSession, report: ReadReport) -> Iterator[LoggedItem]:
    """Yield what happened in a session; the sub-agents' items are placed by their time."""
    metas = {path: _meta(path, report) for path in found.files}
    agents = [path for path in found.files if _parent_thread(metas[path]) and path != found.path]
    scopes = {text_at(metas[path], "id"): _scope(metas[path]) for path in agents}
    paths = {text_at(meta, "id"): path for path, meta in metas.items()}
    sources = [_main_items(found.path, metas, paths, report)]
    sources += [_agent_items(path, metas[path], scopes, report) for path in agents]
    return iter(merge(*sources, key=lambda item: item.time_ms))


def _main_items(
    path: Path, metas: Mapping[Path, JsonFields], paths: Mapping[str, Path], report: ReadReport
) -> Iterator[LoggedItem]:
    """Yield the items of a session; a fork begins with the lines of the session that it continues."""
    lineage: list[tuple[Path, int | None]] = [(path, None)]
    while (stop := metas[lineage[0][0]].get("forked_from_ordinal_exclusive")) is not None:
        before = paths.get(text_at(metas[lineage[0][0]], "forked_from_id"))
        if before is None or any(before == one for one, _ in lineage):
            break
        lineage.insert(0, (before, count_of(stop)))
    reader = _Reader(report)
    for one, stop in lineage:
        yield from reader.items(one, stop)
        if stop is not None:
            yield from reader.finish()
            event = log.Forked(parent=f"{_NAME}-{text_at(metas[one], 'id')}", at=0)
            yield LoggedItem(time_ms=reader.time_ms, event=event)
    yield from reader.finish(is_end=True)


def _scope(meta: JsonFields) -> str:
    return f"{_agent_name(meta)}:{text_at(meta, 'id')}"


def _agent_name(meta: JsonFields) -> str:
    spawned = object_at(meta, "source", "subagent", "thread_spawn")
    name = text_at(spawned, "agent_role") or text_at(meta, "agent_nickname") or text_at(spawned, "agent_nickname")
    return printable(name) or "agent"


def _agent_items(path: Path, meta: JsonFields, scopes: Mapping[str, str], report: ReadReport) -> Iterator[LoggedItem]:
    """Yield what a sub-agent did, between its start and its end."""
    reader = _Reader(report, _scope(meta))
    items = chain(reader.items(path, None), reader.finish(is_end=True))
    return delegated(items, reader.scope, _agent_name(meta), scopes.get(_parent_thread(meta), log.MAIN))


@dataclass(slots=True)
class _Reader:
    """Reads the lines of one agent."""

    report: ReadReport
    scope: str = log.MAIN
    time_ms: int = 1
    step: list[LoggedItem] = field(default_factory=list[LoggedItem])
    """The items of a response, and the outputs of its calls, until it is known what the response cost."""
    has_outputs: bool = False
    answer: LoggedItem | None = None
    """The last answer, until it is known that it is no summary for a compaction."""
    model: str = ""
    system: str = ""
    keys: dict[bytes, list[str]] = field(default_factory=dict[bytes, list[str]])
    """By a hash of role and text, the keys of the messages that say it, in order."""
    ids: set[str] = field(default_factory=set[str])
    """The keys of all messages."""
    prompts: list[str] = field(default_factory=list[str])
    """The keys of what the user said, as far as it is in force, in order."""
    count: int = 0
    has_begun: bool = False

    def items(self, path: Path, stop: int | None) -> Iterator[LoggedItem]:
        """Yield what the lines of a file say, before the line with the ordinal `stop` if there is one."""
        for number, line in enumerate(read_json_lines(path, self.report)):
            ordinal = line.get("ordinal", number)
            if stop is not None and isinstance(ordinal, int) and ordinal >= stop:
                return
            self.time_ms = time_in(line.get("timestamp"), self.time_ms)
            is_bare = text_at(line, "type") in _BARE_KINDS
            if is_bare or (line.get("type") is None and not self.has_begun):
                yield from self._item(line) if is_bare else self._instructions(line)
            else:
                yield from self._line(text_at(line, "type"), object_at(line, "payload"))
            self.has_begun = True

    def _line(self, kind: str, payload: JsonFields) -> Iterator[LoggedItem]:
        match kind:
            case "session_meta":
                self.report.note_version(payload.get("cli_version"))
                yield from self._instructions(payload)
            case "turn_context":
                yield from self._switched(text_at(payload, "model"))
            case "response_item":
                yield from self._item(payload)
            case "token_usage_record":
                yield from self._billed(object_at(payload, "usage"))
            case "event_msg" if payload.get("type") == "task_complete":
                yield from self.finish()
            case "event_msg" if payload.get("type") == "thread_rolled_back":
                yield from self._rolled_back(count_of(payload.get("num_turns")))
            case "event_msg" if payload.get("type") == "token_count":
                yield from self._billed(object_at(payload, "info", "last_token_usage"))
            case "compacted":
                yield from self._compaction(payload)
            case _ if kind not in _IGNORED_KINDS:
                self.report.note_unknown(kind)
            case _:
                pass

    def _rolled_back(self, turns: int) -> Iterator[LoggedItem]:
        """Yield that the user has taken back the last turns; each begins with a prompt."""
        yield from self.finish()
        if turns and self.prompts:
            prompt = self.prompts[-turns:][0]
            del self.prompts[-turns:]
            yield LoggedItem(time_ms=self.time_ms, event=log.Rewound(to=0), rewind_to=prompt)

    def _switched(self, model: str) -> Iterator[LoggedItem]:
        if model and model != self.model:
            self.model = model
            if self.scope == log.MAIN:
                yield LoggedItem(time_ms=self.time_ms, event=log.ModelSwitched(model=model))

    def _instructions(self, meta: JsonFields) -> Iterator[LoggedItem]:
        text = text_at(meta, "base_instructions", "text") or text_at(meta, "instructions")
        if text and text != self.system:
            self.system = text
            yield LoggedItem(time_ms=self.time_ms, event=log.SystemChanged(text=text, scope=self.scope))

    def _item(self, payload: JsonFields) -> Iterator[LoggedItem]:
        kind = text_at(payload, "type")
        is_answer = kind in _ANSWER_ITEMS or (kind == "message" and payload.get("role") == "assistant")
        if not (is_answer or kind in _OUTPUT_ITEMS or kind in _CLIENT_ITEMS):
            self.report.note_unknown(kind)
            return
        native = {name: value for name, value in payload.items() if not name.startswith(_PRIVATE_PREFIX)}
        self.count += 1
        key = text_at(native, "id") or str(self.count)
        if kind == "message":
            self.keys.setdefault(_content_hash(native), []).append(key)
            self.ids.add(key)
        trust = "memory" if _is_by_program(payload) else None
        if kind == "message" and payload.get("role") == "user" and trust is None:
            self.prompts.append(key)
        event = log.MessageAppended(format=_FORMAT, native=native, scope=self.scope, trust=trust)
        item = LoggedItem(time_ms=self.time_ms, event=event, key=key)
        if kind in _OUTPUT_ITEMS and self.step:
            self.has_outputs = True
            self.step.append(item)
            return
        if not is_answer or self.has_outputs or not self.step:
            yield from self.finish()
        if is_answer:
            self.step.append(item)
        else:
            yield item

    def _billed(self, usage: JsonFields) -> Iterator[LoggedItem]:
        """Yield the items of a response, the last of them with what the response cost."""
        cached, written = count_of(usage.get("cached_input_tokens")), count_of(usage.get("cache_write_input_tokens"))
        billed = log.Usage(
            input_tokens=max(0, count_of(usage.get("input_tokens")) - cached - written),
            output_tokens=count_of(usage.get("output_tokens")),
            cache_read_tokens=cached,
            cache_write_tokens=written,
        )
        answers = [number for number, item in enumerate(self.step) if not _is_output(item)]
        if usage and answers:
            last = self.step[answers[-1]]
            if isinstance(last.event, log.MessageAppended):
                self.step[answers[-1]] = replace(last, event=replace(last.event, usage=billed))
        yield from self.flush()

    def flush(self) -> Iterator[LoggedItem]:
        """Yield the items of the response; an answer of one message waits for what follows it."""
        step, self.step, self.has_outputs = self.step, [], False
        if len(step) == 1 and self.answer is None and not _is_output(step[0]):
            self.answer = step[0]
        else:
            yield from step

    def finish(self, *, is_end: bool = False) -> Iterator[LoggedItem]:
        """Yield everything that waits; at the end of the log, the turn may go on."""
        waiting = list(self.flush())
        answer, self.answer = self.answer, None
        if answer is not None:
            waiting.insert(0, answer)
        yield from (replace(item, may_grow=is_end) for item in waiting)

    def _compaction(self, payload: JsonFields) -> Iterator[LoggedItem]:
        text = text_at(payload, "message")
        yield from self.flush()
        answer = self.answer.event if self.answer else None
        if isinstance(answer, log.MessageAppended) and (said := _text_of(answer.native)) and text.endswith(said):
            self.answer = None
            summary = log.SideCallRecorded(purpose="summary", answer=said, model=self.model or None, usage=answer.usage)
            yield LoggedItem(time_ms=self.time_ms, event=summary)
        yield from self.finish()
        listed = [object_at(one) for one in list_at(payload, "replacement_history")]
        kept = self._kept(listed)
        self.prompts = [key for key in self.prompts if key in kept]
        event = own_compaction((text or _ENCRYPTED_TEXT,), program=_TITLE, scope=self.scope)
        yield LoggedItem(time_ms=self.time_ms, event=event, kept=frozenset(kept))
        for native in listed:
            if text_at(native, "type") in COMPACTION_ITEM_TYPES and text_at(native, "encrypted_content"):
                self.count += 1
                said = log.MessageAppended(format=_FORMAT, native=native, scope=self.scope)
                yield LoggedItem(time_ms=self.time_ms, event=said, key=str(self.count))

    def _kept(self, listed: list[JsonFields]) -> set[str]:
        """Return the keys of the messages that a new list holds, by their ids, else by what they say.

        Of several that say the same, the newest are kept.
        """
        kept = {own for one in listed if (own := text_at(one, "id")) in self.ids}
        left: dict[bytes, list[str]] = {}
        for one in reversed(listed):
            if text_at(one, "id") not in self.ids:
                said = _content_hash(one)
                keys = left.get(said)
                if keys is None:
                    keys = left[said] = [key for key in self.keys.get(said, []) if key not in kept]
                if keys:
                    kept.add(keys.pop())
        return kept


def _is_output(item: LoggedItem) -> bool:
    return isinstance(item.event, log.MessageAppended) and text_at(item.event.native, "type") in _OUTPUT_ITEMS


def _is_by_program(payload: JsonFields) -> bool:
    """Return whether the program wrote a message with the user's role by itself."""
    if payload.get("type") != "message" or payload.get("role") != "user":
        return False
    about = object_at(payload, "internal_chat_message_metadata_passthrough")
    authors = [text_at(one, "provenance", "type") for one in list_at(about, "content_item_metadata")]
    if any(authors):
        return "user" not in authors
    return _text_of(payload).lstrip().startswith(_PROGRAM_TEXTS)


def _content_hash(native: JsonFields) -> bytes:
    return hash_of(text_at(native, "role"), _text_of(native))


def _text_of(native: Mapping[str, object]) -> str:
    content = native.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(text for block in list_at(native, "content") if (text := text_at(block, "text")))


def _folders(environment: Mapping[str, str], home: Path) -> list[Path]:
    own = Path(environment.get("CODEX_HOME") or home / ".codex")
    return [own / "sessions", own / "archived_sessions"]


CODEX_CLI = SourceProgram(_NAME, _TITLE, _FORMAT, _folders, _find_sessions, _read_session)
