"""A conversation of pydantic-ai in a session, and what pydantic-ai reads from its messages besides their text.

pydantic-ai derives its current state from the messages that it sends: which tools the model knows, which capabilities
are loaded, which instructions have changed. When a summary replaces messages, their state parts move to the summary. A
capability that the model has loaded by a call brings instructions, so that exchange is pinned and stays whole.

Of runs that overlap, each has a history without the others, so each takes out of the context what others have recorded
since it began. When it ends, its messages and those of the others are put one run after the other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestContext

from holdfast.adapters.framework_conversation import FrameworkConversation, FrameworkRequest
from holdfast.adapters.pydantic_ai.messages import (
    SESSION_FORMAT,
    carry_state_parts,
    changed_system_text,
    dump_messages,
    is_system_message,
    join_system_text,
    loads_capability,
    session_elements,
    split_joined_requests,
    state_parts_of,
    summary_as_prompt,
    validate_messages,
)
from holdfast.adapters.pydantic_ai.tools import without_recall
from holdfast.core.conversation.json_values import encode_canonical_json
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.models.base import CachedPrefix
from holdfast.models.pydantic_ai import AgentRequest, PydanticAiSummarizer
from holdfast.session.delegation import Delegate
from holdfast.session.request import common_length
from holdfast.session.session import Session
from holdfast.wire.request import Request


class PydanticAiMessages:
    """pydantic-ai's messages as the JSON of the format `pydantic-ai`, each as one element of a session."""

    format = SESSION_FORMAT

    def contents(self, messages: Sequence[ModelMessage]) -> list[Any]:
        """Return what a session compares of the messages: the kind of each, and the fields of its parts."""
        found: list[Any] = []
        for message in messages:
            found.append(message.kind)
            for part in message.parts:
                found.append(part.__dict__)  # noqa: PERF401 - three times as fast as `extend` for a part or two
        return found

    def encode(self, message: ModelMessage) -> Mapping[str, Any]:
        """Return a message as JSON."""
        return dump_messages([message])[0]

    def decode(self, native: Mapping[str, Any], original: ModelMessage | None = None) -> ModelMessage:
        """Return JSON as a message."""
        del original
        return validate_messages([native])[0]

    def text(self, message: ModelMessage) -> str:
        """Return the text of a response."""
        return "".join(part.content for part in message.parts if isinstance(part, TextPart))

    def own_summary(self, messages: Sequence[ModelMessage]) -> str | None:
        """Return None: pydantic-ai writes no summaries of its own."""
        del messages


ELEMENTS = PydanticAiMessages()


class _Beginning(NamedTuple):
    """The beginning of a run that continues the session."""

    position: int
    """How many messages the log had."""
    others: frozenset[str]
    """The runs that were active, whose messages are not in its history."""


class AgentConversation(FrameworkConversation[ModelMessage]):
    """The conversation of one agent of pydantic-ai. Its lists hold the elements that `session_elements` returns."""

    keeps_messages = True

    def __init__(self, session: Session, delegate: Delegate | None = None) -> None:
        super().__init__(session, ELEMENTS, delegate)
        self._state_parts: dict[int, list[ModelRequestPart]] = {}
        """The state parts of messages, by position."""
        self._capability_positions: list[int] = []
        """Where the messages are that load a capability, until they are pinned."""
        self._changed_system_texts: list[str] = []
        """System text that has changed since it was recorded: it is sent instead of the recorded one."""
        self.request_context: ModelRequestContext | None = None
        """The model, the settings and the tools of the newest request."""
        self._begun: dict[str, _Beginning] = {}
        """The beginnings of the active runs that continue the session."""
        self._taken_out: dict[bytes, tuple[int, Mapping[str, Any]]] = {}
        """What active runs have taken out of the context, with the newest position of each, by its JSON."""

    def elements(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Return messages as `session_elements` does; it reads only the first one and those that are new.

        A known message that was edited, so that it would be split now, is split once the comparison has found that.
        """
        first = session_elements(messages[:1])
        same = 1 + common_length(messages[1:], self.known[len(first) :])
        return [*first, *messages[1:same], *session_elements(messages[same:])]

    async def past_messages(self) -> list[ModelMessage]:
        """Return the messages of the conversation, including compacted ones, without those of runs that are active."""
        return join_system_text([one for one in await self.load() if one.run_id not in self._begun])

    async def sync(self, messages: Sequence[ModelMessage]) -> None:
        """Record the changes of a list, so that the session holds exactly this list."""
        async with self._lock:
            self._asked = None
            await self._in_one_write(partial(self._sync_elements, messages))

    async def begin_run(self, run_id: str) -> None:
        """Note that a run begins which continues the session, until `end_run`."""
        await self.session.refresh()
        self._begun[run_id] = _Beginning(len(self.session.history), frozenset(self._begun))

    async def restore_others(self, run_id: str) -> None:
        """Put what a run that ends has taken out of the context back into it: the messages of others since it began."""
        async with self._lock:
            if run_id in self._begun and self._taken_out:
                await self._in_one_write(partial(self._restore_others, run_id))

    async def _restore_others(self, run_id: str) -> None:
        await self.session.refresh()
        natives = [native for _, native in await self.session.numbered_messages()]
        context, begun = self.session.history.context(), self._begun[run_id]
        known, missing = set(map(encode_canonical_json, natives)), list[Mapping[str, Any]]()
        for key, (position, native) in self._taken_out.items():
            name = _run_of(native)
            start = context.state.cleared_at if name in begun.others else max(begun.position, context.state.cleared_at)
            if name != run_id and key not in known and position >= start and context.version.is_hidden(position):
                missing.append(native)
        if not missing:
            return
        newest: dict[str, list[ModelMessage]] = {name: [] for name in (run_id, *map(_run_of, missing))}
        before = list[ModelMessage]()
        for native in (*natives, *missing):
            newest.get(_run_of(native), before).append(ELEMENTS.decode(native))
        runs = [sorted(run, key=_time) for run in newest.values() if run]
        await self._sync(_one_after_the_other(before, sorted(runs, key=_time_of_first)))

    def end_run(self, run_id: str) -> None:
        """Note that a run has ended."""
        self._begun.pop(run_id, None)
        if not self._begun:
            self._taken_out = {}

    async def record_response(
        self, messages: Sequence[ModelMessage], usage: object, asked: Sequence[ModelMessage] | None = None
    ) -> None:
        """Record the response to a request, after what others have recorded meanwhile was compared with the list."""
        if self._known_state != self._recorded_state():
            self._asked = None
        await super().record_response(messages, usage, asked)

    async def _sync_elements(self, messages: Sequence[ModelMessage]) -> None:
        await self._sync(self.elements(messages))

    async def _prepare_with_recall(self, options: FrameworkRequest) -> Request:
        for summarizer in self.session.summarizers if self.agent is self._main else ():
            if isinstance(summarizer, PydanticAiSummarizer):
                summarizer.request_lookup = self._agent_request
        if self._changed_system_texts:
            options = replace(options, system="\n\n".join(filter(None, [options.system, *self._changed_system_texts])))
        return await super()._prepare_with_recall(options)

    def _set_session_model(self, options: FrameworkRequest) -> None:
        """Set only the address: a session without a model counts each request for the model of its agent."""
        if options.endpoint is not None:
            self.session.endpoint = options.endpoint

    def _agent_request(self, prefix: CachedPrefix) -> AgentRequest | None:
        """Return a request of this conversation as it is sent, so that a summarizer can reuse its cached prefix.

        Summarizers reuse only requests of the main agent: a sub-agent has another model, tools and settings.
        """
        context = self.request_context
        if context is None or prefix.scope != self.agent.scope or len(prefix.positions) != len(prefix.messages):
            return None
        parameters, settings = context.model_request_parameters, context.model_settings or {}
        if not any(tool.get("name") == RECALL_TOOL for tool in prefix.tools or ()):
            # The run has the recall tool from the beginning; requests offer it from the first marker on.
            parameters = replace(parameters, function_tools=without_recall(parameters.function_tools))
        messages = self._messages_of(list(prefix.messages), tuple(prefix.positions))
        return AgentRequest(context.model, messages, settings, parameters)

    def _messages_of(self, natives: list[Mapping[str, Any]], positions: tuple[int | None, ...]) -> list[ModelMessage]:
        messages = super()._messages_of(natives, positions)
        rule = self.session.policy.compaction
        for at in self._made if rule is None or rule.is_summary_prompt else ():
            messages[at] = summary_as_prompt(messages[at])
        if not self._state_parts:
            return messages
        sent, context = set(positions), self.session.history.context(self.agent.scope)
        omitted = [
            part
            for position, parts in self._state_parts.items()
            if position not in sent and position >= context.state.cleared_at and context.is_visible(position)
            for part in parts
        ]
        return carry_state_parts(messages, omitted)

    def _decode(self, natives: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
        return validate_messages(natives)

    async def _sync(self, messages: Sequence[ModelMessage]) -> None:
        await super()._sync(messages)
        while self._capability_positions:
            position = self._capability_positions.pop()
            if position not in self.session.history.session_state.pins:
                await self.session.pin(position)

    async def _record_unknown(self, messages: Sequence[ModelMessage]) -> None:
        await super()._record_unknown(session_elements(messages))

    async def _resync(self, messages: Sequence[ModelMessage]) -> None:
        messages = session_elements(messages)
        recorded = await self.session.numbered_messages()
        split = split_joined_requests(messages, [native for _, native in recorded])
        if len(split) != len(messages):
            await super()._sync(split)
            return
        await super()._resync(messages)
        is_hidden = self.session.history.version.is_hidden
        for position, native in recorded if self._begun else ():
            if is_hidden(position):
                self._taken_out[encode_canonical_json(native)] = position, native

    def _forget(self) -> None:
        super()._forget()
        self._state_parts, self._capability_positions, self._changed_system_texts = {}, [], []

    def _remember(
        self,
        messages: Sequence[ModelMessage],
        natives: Sequence[Mapping[str, Any] | None],
        positions: Sequence[int | None],
    ) -> None:
        super()._remember(messages, natives, positions)
        for message, native, position in zip(messages, natives, positions, strict=True):
            if native is None or position is None:
                continue
            if parts := state_parts_of(message):
                self._state_parts[position] = parts
            if loads_capability(message):
                self._capability_positions.append(position)
            if text := changed_system_text(message, native):
                self._changed_system_texts.append(text)


def _run_of(native: Mapping[str, Any]) -> str:
    """Return the id of the run that has recorded a message; one without a run is by itself."""
    return native.get("run_id") or encode_canonical_json(native).decode()


def _time(message: ModelMessage) -> float:
    return message.timestamp.timestamp() if message.timestamp is not None else 0.0


def _time_of_first(messages: Sequence[ModelMessage]) -> float:
    return _time(messages[0])


def _one_after_the_other(before: list[ModelMessage], runs: Sequence[list[ModelMessage]]) -> list[ModelMessage]:
    """Return messages, and after them those of runs that have overlapped as if each had begun after the one before.

    A run may have begun with system text, with a prompt of another one before its own, and with results that close the
    calls of another one. These are there already.
    """
    joined, said = list(before), dict[object, list[ModelRequestPart]]()
    answered = list(map(_answered_calls, runs))
    for message in before:
        _note_parts(said, message)
    for number, run in enumerate(runs):
        own = _calls(run)
        elsewhere = {one for other, ids in enumerate(answered) if other != number for one in ids} - own
        for message in run:
            if not isinstance(message, ModelRequest) or not message.parts:
                joined.append(message)
            elif not (joined and is_system_message(message)):
                new = [one for one in message.parts if one not in said.get(getattr(one, "timestamp", None), ())]
                parts = [one for one in new if not _is_result_of(one, elsewhere)]
                if parts:
                    joined.append(message if len(parts) == len(message.parts) else replace(message, parts=parts))
            _note_parts(said, message)
    return joined


def _note_parts(said: dict[object, list[ModelRequestPart]], message: ModelMessage) -> None:
    """Add the parts of a request to those that were said, by their times."""
    for part in message.parts if isinstance(message, ModelRequest) else ():
        said.setdefault(getattr(part, "timestamp", None), []).append(part)


def _calls(messages: Iterable[ModelMessage]) -> set[str]:
    return {part.tool_call_id for one in messages for part in one.parts if isinstance(part, ToolCallPart)}


def _answered_calls(messages: Sequence[ModelMessage]) -> set[str]:
    results = {part.tool_call_id for one in messages for part in one.parts if isinstance(part, ToolReturnPart)}
    return results & _calls(messages)


def _is_result_of(part: ModelRequestPart, call_ids: set[str]) -> bool:
    return isinstance(part, ToolReturnPart) and part.tool_call_id in call_ids
