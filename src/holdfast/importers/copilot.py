"""The sessions of the Copilot CLI: `~/.copilot/session-state/ID/events.jsonl`, learned from version 1.0.102.

A line is an event with its data; the events of a sub-agent carry its id. The program describes all of them in a schema
of its own. A compaction replaces what was said before its start; what is said while the summary is written stays.
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
    agent_finished,
    agent_started,
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
    text_beside,
    time_in,
    title_of,
    with_file_facts,
)

_NAME, _TITLE = "copilot", "Copilot CLI"
_FORMAT = "openai-chat"
_EVENTS_FILE = "events.jsonl"
_IGNORED_KINDS = frozenset({"abort", "audio", "blob", "image", "prompt_cache_break", "system.notification"})
_IGNORED_GROUPS = (
    "agent.", "assistant.", "auto_mode_switch.", "capabilities.", "command.", "commands.", "elicitation.",
    "exit_plan_mode.", "external_tool.", "hook.", "human_response.", "mcp.", "mcp_app.", "model.", "pending_messages.",
    "permission.", "sampling.", "sandbox.", "session_limits_exhausted.", "skill.", "subagent.", "tool.",
    "tool_search.", "ui.", "user_input.", "workflow.",
)  # fmt: skip
"""How the names of events begin that are no part of the conversation, unless they are read here."""


def _find_sessions(root: Path, report: ReadReport) -> Iterator[FoundSession]:
    """Yield the sessions below a folder, or that of a file."""
    for path in [root] if root.is_file() else files_below(root, "*.jsonl", report):
        lines = first_lines(path, report)
        first = first_of_type(lines, "session.start")
        if not first and (path.name != _EVENTS_FILE or not lines):
            continue
        title, model = _named(path), text_at(first, "data", "selectedModel")
        for line in lines:
            if line.get("type") == "user.message" and not title:
                title = title_of(text_at(line, "data", "content"))
            model = model or (text_at(line, "data", "model") if line.get("type") == "assistant.message" else "")
        name = path.parent.name if path.name == _EVENTS_FILE else path.stem
        yield with_file_facts(
            FoundSession(
                program=_NAME,
                id=text_at(first, "data", "sessionId") or name,
                path=path,
                files=(path,),
                title=title,
                folder=printable(text_at(first, "data", "context", "cwd")),
                model=printable(model),
            )
        )


def _named(path: Path) -> str:
    """Return the name of a session in the file beside its events."""
    if path.name != _EVENTS_FILE:
        return ""
    lines = text_beside(path.with_name("workspace.yaml"), 10_000).splitlines()
    named = next((line.removeprefix("name:").strip() for line in lines if line.startswith("name:")), "")
    return title_of(named.strip("\"'"))


def _read_session(found: FoundSession, report: ReadReport) -> Iterator[LoggedItem]:
    """Yield what happened in a session."""
    return _Reader(report).items(found.path)


@dataclass(slots=True)
class _Reader:
    """Reads the events of a session."""

    report: ReadReport
    time_ms: int = 1
    scopes: dict[str, str] = field(default_factory=dict[str, str])
    """By the id of a sub-agent, its scope."""
    usage: dict[str, log.Usage] = field(default_factory=dict[str, log.Usage])
    """By the id of a call of the model, what it cost."""
    answers: dict[str, str] = field(default_factory=dict[str, str])
    """By scope, the last answer."""
    system: dict[str, str] = field(default_factory=dict[str, str])
    said: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """By scope, the keys of the messages since its last compaction started."""
    is_compacting: set[str] = field(default_factory=set[str])
    model: str = ""

    def items(self, path: Path) -> Iterator[LoggedItem]:
        """Yield what the events of a file say."""
        for line in read_json_lines(path, self.report):
            self.time_ms = time_in(line.get("timestamp"), self.time_ms)
            yield from self._event(line, object_at(line, "data"))

    def _event(self, line: JsonFields, data: JsonFields) -> Iterator[LoggedItem]:
        kind, key = line.get("type"), text_at(line, "id")
        scope = self.scopes.get(text_at(line, "agentId"), log.MAIN)
        match kind:
            case "user.message":
                text = text_at(data, "transformedContent") or text_at(data, "content")
                yield self._said(scope, key, {"role": "user", "content": text})
            case "assistant.message":
                yield from self._answer(data, scope, key)
            case "tool.execution_complete" if call := text_at(data, "toolCallId"):
                content = text_at(data, "result", "content") or text_at(data, "error", "message")
                yield self._said(scope, key, {"role": "tool", "tool_call_id": call, "content": content})
            case "system.message":
                yield from self._system(text_at(data, "content"), scope)
            case "subagent.started" | "subagent.completed" | "subagent.failed":
                yield from self._agent(str(kind), text_at(line, "agentId"), data)
            case str() if kind.startswith("session."):
                yield from self._session_event(kind, data, scope)
            case str() if kind in _IGNORED_KINDS or kind.startswith(_IGNORED_GROUPS):
                pass
            case _:
                self.report.note_unknown(kind)

    def _session_event(self, kind: str, data: JsonFields, scope: str) -> Iterator[LoggedItem]:
        match kind:
            case "session.start":
                self.report.note_version(data.get("copilotVersion"))
                yield from self._switched(text_at(data, "selectedModel"), log.MAIN)
            case "session.model_change":
                yield from self._switched(text_at(data, "newModel"), scope)
            case "session.usage_record":
                self._billed(object_at(data, "usage"))
            case "session.compaction_start":
                self.is_compacting.add(scope)
                self.said[scope] = set()
            case "session.compaction_complete":
                yield from self._compaction(data, scope)
            case _:
                pass

    def _switched(self, model: str, scope: str) -> Iterator[LoggedItem]:
        if model and scope == log.MAIN and model != self.model:
            self.model = model
            yield LoggedItem(time_ms=self.time_ms, event=log.ModelSwitched(model=model))

    def _system(self, text: str, scope: str) -> Iterator[LoggedItem]:
        if text and self.system.get(scope) != text:
            self.system[scope] = text
            yield LoggedItem(time_ms=self.time_ms, event=log.SystemChanged(text=text, scope=scope))

    def _said(self, scope: str, key: str, native: JsonFields, usage: log.Usage | None = None) -> LoggedItem:
        self.said.setdefault(scope, set()).add(key)
        event = log.MessageAppended(format=_FORMAT, native=native, scope=scope, usage=usage)
        return LoggedItem(time_ms=self.time_ms, event=event, key=key)

    def _answer(self, data: JsonFields, scope: str, key: str) -> Iterator[LoggedItem]:
        text, calls = text_at(data, "content"), [object_at(one) for one in list_at(data, "toolRequests")]
        reasoning = text_at(data, "reasoningText")
        if not (text or calls or reasoning):
            return
        native: dict[str, object] = {"role": "assistant", "content": text or None}
        if reasoning:
            native["reasoning_content"] = reasoning
        if calls:
            native["tool_calls"] = [_call(one) for one in calls]
        self.answers[scope] = "" if calls else text
        yield self._said(scope, key, native, self.usage.pop(text_at(data, "apiCallId"), None))

    def _billed(self, usage: JsonFields) -> None:
        cached, written = count_of(usage.get("cacheReadTokens")), count_of(usage.get("cacheWriteTokens"))
        self.usage[text_at(usage, "apiCallId")] = log.Usage(
            input_tokens=max(0, count_of(usage.get("inputTokens")) - cached - written),
            output_tokens=count_of(usage.get("outputTokens")),
            cache_read_tokens=cached,
            cache_write_tokens=written,
        )

    def _agent(self, kind: str, agent_id: str, data: JsonFields) -> Iterator[LoggedItem]:
        if kind == "subagent.started" and agent_id and agent_id not in self.scopes:
            agent = printable(text_at(data, "agentName")) or "agent"
            scope = self.scopes[agent_id] = f"{agent}:{agent_id}"
            parent = self.scopes.get(text_at(data, "parentId"), log.MAIN)
            yield agent_started(scope, agent, self.time_ms, task=text_at(data, "agentDescription"), parent=parent)
        elif kind != "subagent.started" and (scope := self.scopes.get(agent_id)):
            yield agent_finished(scope, self.answers.get(scope, ""), self.time_ms)

    def _compaction(self, data: JsonFields, scope: str) -> Iterator[LoggedItem]:
        kept = frozenset(self.said.get(scope, ())) if scope in self.is_compacting else frozenset[str]()
        self.is_compacting.discard(scope)
        text = text_at(data, "summaryContent")
        if data.get("success") is not True or not text:
            return
        used = object_at(data, "compactionTokensUsed")
        usage = log.Usage(
            input_tokens=count_of(used.get("inputTokens")), output_tokens=count_of(used.get("outputTokens"))
        )
        event = own_compaction(
            (text,),
            program=_TITLE,
            scope=scope,
            tokens_before=data.get("preCompactionTokens"),
            tokens_after=data.get("postCompactionTokens"),
            usage=usage if used else None,
        )
        yield LoggedItem(time_ms=self.time_ms, event=event, kept=kept)


def _call(request: JsonFields) -> JsonFields:
    arguments = request.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    function = {"name": text_at(request, "name"), "arguments": text}
    return {"id": text_at(request, "toolCallId"), "type": "function", "function": function}


def _folders(environment: Mapping[str, str], home: Path) -> list[Path]:
    own = environment.get("COPILOT_HOME")
    return [(Path(own) if own else home / ".copilot") / "session-state"]


COPILOT_CLI = SourceProgram(_NAME, _TITLE, _FORMAT, _folders, _find_sessions, _read_session)
