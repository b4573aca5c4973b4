"""A conversation of pydantic-ai in a session, and what pydantic-ai reads from its messages besides their text.

pydantic-ai derives its current state from the messages that it sends: which tools the model knows, which capabilities
are loaded, which instructions have changed. When a summary replaces messages, their state parts move to the summary. A
capability that the model has loaded by a call brings instructions, so that exchange is pinned and stays whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequestPart, TextPart
from pydantic_ai.models import ModelRequestContext

from holdfast.adapters.framework_conversation import FrameworkConversation, FrameworkRequest
from holdfast.adapters.pydantic_ai.messages import (
    SESSION_FORMAT,
    carry_state_parts,
    changed_system_text,
    dump_messages,
    join_system_text,
    loads_capability,
    session_elements,
    split_joined_requests,
    state_parts_of,
    summary_as_prompt,
    validate_messages,
)
from holdfast.adapters.pydantic_ai.tools import without_recall
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

    def elements(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Return messages as `session_elements` does; it reads only the first one and those that are new.

        A known message that was edited, so that it would be split now, is split once the comparison has found that.
        """
        first = session_elements(messages[:1])
        same = 1 + common_length(messages[1:], self.known[len(first) :])
        return [*first, *messages[1:same], *session_elements(messages[same:])]

    async def past_messages(self) -> list[ModelMessage]:
        """Return the messages of the conversation, including compacted ones."""
        return join_system_text(await self.load())

    async def sync(self, messages: Sequence[ModelMessage]) -> None:
        """Record the changes of a list, so that the session holds exactly this list."""
        async with self._lock:
            self._asked = None
            await self._sync(self.elements(messages))

    async def record_response(
        self, messages: Sequence[ModelMessage], usage: object, asked: Sequence[ModelMessage] | None = None
    ) -> None:
        """Record the response to a request, after what others have recorded meanwhile was compared with the list."""
        if self._known_state != self._recorded_state():
            self._asked = None
        await super().record_response(messages, usage, asked)

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
        recorded = [native for _, native in await self.session.numbered_messages()]
        split = split_joined_requests(messages, recorded)
        if len(split) == len(messages):
            await super()._resync(messages)
        else:
            await super()._sync(split)

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
