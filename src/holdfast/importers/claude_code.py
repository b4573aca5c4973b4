"""The sessions of Claude Code: `~/.claude/projects/FOLDER/ID.jsonl`, learned from runs of version 2.1.325.

A line is an entry with the `uuid` of the entry before it. An answer is written block by block, one line each with the
same message id, and the result of a first call may come before the line of a second one. Sub-agents have files of
their own; in older versions their entries are in the main file, marked as a side chain. A compaction is a boundary,
followed by a user entry with the summary.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.importers.source import (
    FoundSession,
    JsonFields,
    LoggedItem,
    ReadReport,
    SourceProgram,
    agent_finished,
    agent_started,
    answer_in,
    count_of,
    delegated,
    files_below,
    first_lines,
    hash_of,
    list_at,
    object_at,
    own_compaction,
    parse_text,
    printable,
    read_json_lines,
    text_at,
    time_in,
    title_of,
    with_file_facts,
)
from holdfast.wire.json_reader import is_list, is_mapping

_NAME, _TITLE = "claude-code", "Claude Code"
_FORMAT = "anthropic-messages"
_IGNORED_KINDS = frozenset({
    "agent-color", "agent-name", "agent-setting", "ai-title", "api-request", "api-request-blob",
    "artifact-autoreact-ledger", "atis-latch", "bridge-session", "content-replacement", "cost-state", "custom-title",
    "file-history-delta", "file-history-snapshot", "frame-link", "history-suppression", "last-prompt", "mode",
    "permission-mode", "pr-link", "progress", "queue-operation", "repl-mode", "resume-head-vouch", "summary", "tag",
    "tools-used", "worktree-state",
})  # fmt: skip
"""Kinds of lines that are no part of the conversation."""
_STATUS_ATTACHMENTS = frozenset({
    "agent_listing_delta", "date", "deferred_tools_delta", "environment", "model", "prompt_snapshot",
    "remote_session_change", "session_context", "skill_listing", "todo_reminder", "total_tokens_reminder",
})  # fmt: skip
"""Attachments that the program repeats by itself; the others hold what it read, or what the user said meanwhile."""
_FINAL_STOP_REASONS = frozenset({"end_turn", "stop_sequence", "max_tokens", "refusal"})
_PROGRAM_TEXTS = ("<local-command-", "<task-notification>", "<system-reminder>", "<bash-stdout>", "<bash-stderr>")
"""How user messages begin that the program wrote by itself, without saying so."""
_SYNTHETIC_MODEL = "<synthetic>"
"""The model of messages that the program itself shows in the model's place, such as errors."""


def _find_sessions(root: Path, report: ReadReport) -> Iterator[FoundSession]:
    """Yield the sessions below a folder, or that of a file."""
    paths = [root] if root.is_file() else files_below(root, "*.jsonl", report)
    agents: dict[str, list[Path]] = {}
    for path in paths if root.is_dir() else sorted(root.parent.glob("agent-*.jsonl")):
        if path.name.startswith("agent-") and path.parent.name != "subagents":
            named = (text_at(line, "sessionId") for line in first_lines(path, report))
            agents.setdefault(next(filter(None, named), ""), []).append(path)
    for path in paths:
        if path.name.startswith("agent-") or "subagents" in path.parts:
            continue
        own = path.with_suffix("") / "subagents"
        # Not its methods, which raise where a folder may be listed and not searched.
        below = files_below(own, "agent-*.jsonl", report) if os.path.isdir(own) and not os.path.islink(own) else []  # noqa: PTH112, PTH114
        found = _peek(path, (path, *below, *agents.get(path.stem, [])), report)
        if found is not None:
            yield with_file_facts(found)


def _peek(path: Path, files: tuple[Path, ...], report: ReadReport) -> FoundSession | None:
    """Return what the list of sessions shows of a log; None if it holds no conversation."""
    title, named, folder, model, is_session = "", "", "", "", False
    for line in first_lines(path, report):
        is_session = is_session or isinstance(line.get("sessionId"), str)
        named = text_at(line, "customTitle") or text_at(line, "aiTitle") or text_at(line, "summary") or named
        folder = folder or text_at(line, "cwd")
        if line.get("type") == "user" and not title and _is_prompt(line):
            said = _plain_text(object_at(line, "message").get("content"))
            title = "" if said.startswith("<") else title_of(said)
        model = model or (text_at(line, "message", "model") if line.get("type") == "assistant" else "")
    if not is_session:
        return None
    title = title_of(named) or title
    return FoundSession(
        program=_NAME,
        id=path.stem,
        path=path,
        files=files,
        title=title,
        folder=printable(folder),
        model=printable(model),
    )


def _read_session(found: FoundSession, report: ReadReport) -> Iterator[LoggedItem]:
    """Yield what happened in a session; the sub-agents' items are placed by their time."""
    sources = [_Reader(report).items(found.path)]
    sources += [_agent_items(path, report) for path in found.files if path != found.path]
    return iter(merge(*sources, key=lambda item: item.time_ms))


def _agent_items(path: Path, report: ReadReport) -> Iterator[LoggedItem]:
    """Yield what a sub-agent did, between its start and its end."""
    about: object = {}
    meta = path.with_suffix(".meta.json")
    if meta.is_file():
        try:
            about = parse_text(meta.read_bytes())
        except (OSError, ValueError, RecursionError):
            report.damaged["the description of a sub-agent"] += 1
    agent = printable(text_at(about, "agentType")) or "agent"
    scope = f"{agent}:{path.stem.removeprefix('agent-')}"
    return delegated(_Reader(report, scope).items(path), scope, agent)


@dataclass(slots=True)
class _Step:
    """An answer whose blocks are being collected, and the results of its calls."""

    id: str
    key: str
    time_ms: int
    blocks: list[object]
    usage: log.Usage | None
    stop_reason: str
    results: list[LoggedItem] = field(default_factory=list[LoggedItem])


@dataclass(slots=True)
class _Reader:
    """Reads the entries of one agent."""

    report: ReadReport
    scope: str = log.MAIN
    step: _Step | None = None
    spoken: dict[str, None] = field(default_factory=dict[str, None])
    """The keys of the prompts and answers in force, in order, and that of the summary before them."""
    compacted: list[dict[str, None]] = field(default_factory=list[dict[str, None]])
    """What was in force before each of the compactions in force: the user may go back to it."""
    newest: str = ""
    message_of: dict[str, str | None] = field(default_factory=lambda: {"": ""})
    """By the uuid of an entry, the key of the prompt or answer that it is, or that comes before it.

    It is empty where nothing comes before, and None where that is not known, as after a damaged line or a compaction.
    """
    answer_of: dict[str, str] = field(default_factory=dict[str, str])
    """By the uuid of an entry that is a block of an answer, the key of the answer."""
    time_ms: int = 1
    boundary: JsonFields = field(default_factory=dict[str, object])
    shape: bytes = b""
    """A hash of the system text and the tools."""
    side_chains: "dict[str, _SideChain]" = field(default_factory=dict[str, "_SideChain"])
    """By the uuid of an entry, the sub-agent in the main file that it belongs to."""
    open_chains: "list[_SideChain]" = field(default_factory=list["_SideChain"])

    def items(self, path: Path) -> Iterator[LoggedItem]:
        """Yield what the entries of a file say."""
        for line in read_json_lines(path, self.report):
            self.time_ms = time_in(line.get("timestamp"), self.time_ms)
            self.report.note_version(line.get("version"))
            if line.get("isSidechain") is True and self.scope == log.MAIN:
                yield from self._side_chain_item(line)
            else:
                yield from self.entry(line)
        yield from self.flush(is_end=True)
        for chain in self.open_chains:
            yield from chain.watched(chain.reader.flush(is_end=True))
            yield agent_finished(chain.reader.scope, chain.answer, chain.reader.time_ms)

    def entry(self, line: JsonFields) -> Iterator[LoggedItem]:
        """Yield what one entry says."""
        kind, uuid, parent = text_at(line, "type"), text_at(line, "uuid"), text_at(line, "parentUuid")
        if uuid:
            self.message_of[uuid] = self.message_of.get(parent)
        match kind:
            case "assistant":
                yield from self._answer(line, uuid)
            case "user" if line.get("isCompactSummary") is True:
                yield from self._compaction(line)
            case "user":
                yield from self._user(line, uuid, parent)
            case "attachment":
                yield from self._attachment(line, uuid)
            case "system":
                if line.get("subtype") == "compact_boundary":
                    self.boundary = line
                    self.message_of[uuid] = None
            case "api-request-shape":
                yield from self._request_shape(line)
            case _ if kind not in _IGNORED_KINDS:
                self.report.note_unknown(kind)
            case _:
                pass

    def _answer(self, line: JsonFields, uuid: str) -> Iterator[LoggedItem]:
        message = object_at(line, "message")
        blocks = list_at(message, "content")
        if message.get("model") == _SYNTHETIC_MODEL or line.get("isApiErrorMessage") is True or not blocks:
            return
        message_id = text_at(message, "id") or uuid
        if self.step is None or self.step.id != message_id:
            yield from self.flush()
            self.step = _Step(message_id, uuid, self.time_ms, [], None, "")
            self._speak(uuid)
        self.message_of[uuid] = self.answer_of[uuid] = self.step.key
        self.step.blocks += blocks
        self.step.usage = _usage(message.get("usage")) or self.step.usage
        self.step.stop_reason = text_at(message, "stop_reason")

    def _user(self, line: JsonFields, uuid: str, parent: str) -> Iterator[LoggedItem]:
        content = object_at(line, "message").get("content")
        if not (isinstance(content, str) or is_list(content)):
            self.report.damaged["a message without content"] += 1
            return
        is_by_program = line.get("isMeta") is True or _plain_text(content).startswith(_PROGRAM_TEXTS)
        item = self._said(content, uuid, is_by_program=is_by_program)
        if not _is_prompt(line):
            if self.step is not None and _has_results(content):
                self.step.results.append(item)
            else:
                yield from self.flush()
                yield item
            return
        yield from self.flush()
        if uuid not in self.spoken or parent:  # a log that repeats its first entry, as after a resume, begins no branch
            yield from self._branch(self.message_of.get(parent))
        self._speak(uuid)
        self.message_of[uuid] = uuid
        yield item

    def _speak(self, key: str) -> None:
        # A log that repeats an entry, as after a resume, goes on from the repeated one.
        self.spoken.pop(key, None)
        self.spoken[key] = None
        self.newest = key

    def _branch(self, before: str | None) -> Iterator[LoggedItem]:
        """Yield a rewind if a prompt does not follow the newest prompt or answer, but an earlier one, or none."""
        if before is None or before == self.newest:
            return
        in_force = [*self.compacted, self.spoken]
        numbers = range(len(in_force))
        number = next((one for one in reversed(numbers) if before in in_force[one]), None) if before else 0
        if number is None:
            return
        keys = list(in_force[number])
        at = keys.index(before) + 1 if before else 0
        if at == len(keys):
            return  # only a compaction followed, which no position in the log takes back
        self.spoken, self.compacted = dict.fromkeys(keys[:at]), in_force[:number]
        yield LoggedItem(time_ms=self.time_ms, event=log.Rewound(to=0), rewind_to=keys[at])

    def _attachment(self, line: JsonFields, uuid: str) -> Iterator[LoggedItem]:
        about = object_at(line, "attachment")
        kind = text_at(about, "type")
        if kind in _STATUS_ATTACHMENTS:
            return
        if kind == "queued_command" and (prompt := about.get("prompt")):
            yield from self.flush()
            yield self._said(prompt if is_list(prompt) else str(prompt), uuid)
            return
        texts = [text for one in list_at(line, "rendered") if (text := _plain_text(object_at(one).get("content")))]
        if texts:
            yield from self.flush()
            yield self._said([{"type": "text", "text": text} for text in texts], uuid, is_by_program=True)

    def _compaction(self, line: JsonFields) -> Iterator[LoggedItem]:
        yield from self.flush()
        meta = object_at(self.boundary, "compactMetadata")
        event = own_compaction(
            (_plain_text(object_at(line, "message").get("content")),),
            program=_TITLE,
            scope=self.scope,
            tokens_before=meta.get("preTokens"),
            tokens_after=meta.get("postTokens"),
        )
        uuids = list_at(meta, "preservedMessages", "uuids")
        kept = frozenset(self.answer_of.get(one, one) for one in uuids if isinstance(one, str))
        # The summary has a place too: the user may go back to right after it.
        uuid = text_at(line, "uuid")
        self.compacted.append(self.spoken)
        self.spoken = {uuid: None} | {key: None for key in self.spoken if key in kept}
        self.newest = next(reversed(self.spoken))
        self.message_of[uuid], self.message_of[""] = self.newest, None
        yield LoggedItem(time_ms=self.time_ms, event=event, kept=kept)

    def _request_shape(self, line: JsonFields) -> Iterator[LoggedItem]:
        """Yield the system text and the tools of the next requests, where they have changed."""
        shape = object_at(line, "shape")
        known = hash_of(json.dumps(shape, sort_keys=True))
        if known == self.shape:
            return
        self.shape = known
        system = "\n\n".join(text_at(block, "text") for block in list_at(shape, "system"))
        tools = tuple(tool for tool in list_at(shape, "tools") if is_mapping(tool))
        yield LoggedItem(time_ms=self.time_ms, event=log.SystemChanged(text=system, scope=self.scope))
        yield LoggedItem(time_ms=self.time_ms, event=log.ToolsChanged(tools=tools, scope=self.scope))

    def _said(self, content: object, key: str, *, is_by_program: bool = False) -> LoggedItem:
        native = {"role": "user", "content": content}
        trust = "memory" if is_by_program else None
        event = log.MessageAppended(format=_FORMAT, native=native, scope=self.scope, trust=trust)
        return LoggedItem(time_ms=self.time_ms, event=event, key=key)

    def flush(self, *, is_end: bool = False) -> Iterator[LoggedItem]:
        """Yield the answer whose blocks were collected, then the results of its calls."""
        step, self.step = self.step, None
        if step is None:
            return
        native = {"role": "assistant", "content": step.blocks}
        event = log.MessageAppended(format=_FORMAT, native=native, scope=self.scope, usage=step.usage)
        may_grow = is_end and step.stop_reason not in _FINAL_STOP_REASONS
        yield LoggedItem(time_ms=step.time_ms, event=event, key=step.key, may_grow=may_grow)
        yield from (replace(one, may_grow=may_grow) for one in step.results)

    def _side_chain_item(self, line: JsonFields) -> Iterator[LoggedItem]:
        """Yield what an entry of a sub-agent says that is in the main file."""
        uuid, parent = text_at(line, "uuid"), text_at(line, "parentUuid")
        chain = self.side_chains.get(parent)
        if chain is None:
            scope = f"agent:{(text_at(line, 'agentId') or uuid)[:36]}"
            chain = _SideChain(_Reader(self.report, scope))
            self.open_chains.append(chain)
            task = _plain_text(object_at(line, "message").get("content"))
            yield agent_started(scope, "agent", self.time_ms, task=task)
        self.side_chains[uuid] = chain
        chain.reader.time_ms = self.time_ms
        yield from chain.watched(chain.reader.entry(line))


@dataclass(slots=True)
class _SideChain:
    """A sub-agent in the main file."""

    reader: _Reader
    answer: str = ""

    def watched(self, items: Iterator[LoggedItem]) -> Iterator[LoggedItem]:
        """Yield items, and remember the last answer."""
        for item in items:
            said = answer_in(item.event)
            self.answer = self.answer if said is None else said
            yield item


def _is_prompt(line: JsonFields) -> bool:
    """Return whether a user entry is something that the user said, and no result of a call or note of the program."""
    content = object_at(line, "message").get("content")
    return line.get("isMeta") is not True and line.get("isCompactSummary") is not True and not _has_results(content)


def _has_results(content: object) -> bool:
    return is_list(content) and any(object_at(block).get("type") == "tool_result" for block in content)


def _plain_text(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = list_at({"of": content}, "of")
    return "\n".join(text for block in blocks if (text := text_at(block, "text")))


def _usage(value: object) -> log.Usage | None:
    if not is_mapping(value):
        return None
    return log.Usage(
        input_tokens=count_of(value.get("input_tokens")),
        output_tokens=count_of(value.get("output_tokens")),
        cache_read_tokens=count_of(value.get("cache_read_input_tokens")),
        cache_write_tokens=count_of(value.get("cache_creation_input_tokens")),
    )


def _folders(environment: Mapping[str, str], home: Path) -> list[Path]:
    own = environment.get("CLAUDE_CONFIG_DIR")
    places = [Path(own)] if own else [home / ".claude", home / ".config/claude"]
    return [place / "projects" for place in places]


CLAUDE_CODE = SourceProgram(_NAME, _TITLE, _FORMAT, _folders, _find_sessions, _read_session)
