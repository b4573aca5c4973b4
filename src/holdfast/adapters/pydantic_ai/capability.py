"""Holdfast as a pydantic-ai capability, which gives any agent conversations of unlimited length.

A session records every run and prepares every request of the run, also in the middle of a tool loop. The run's own
history stays whole: a compaction shortens only the request. The state of a run is stored in its `GovernedRun`, so many
runs may be active at once.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import anyio
from pydantic_ai import CallToolsNode, DeferredToolRequests, ModelRequestNode, RetryModelRequest, UserPromptNode
from pydantic_ai.capabilities import AbstractCapability, durable_operation
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailedError, ToolRetryError
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, AgentToolset

from holdfast.adapters.framework_conversation import FrameworkRequest
from holdfast.adapters.pydantic_ai.conversation import AgentConversation
from holdfast.adapters.pydantic_ai.messages import SESSION_FORMAT, call_results
from holdfast.adapters.pydantic_ai.processors import dangling_calls, patch_dangling_tool_calls
from holdfast.adapters.pydantic_ai.tools import (
    RecallToolset,
    compaction_toolset,
    tool_json,
    with_recall,
    without_recall,
)
from holdfast.adapters.session_pool import SessionOptions, SessionPool, check_budget
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.history.events import Usage
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget
from holdfast.errors import HoldfastError, SettingsError
from holdfast.models.base import Summarizer
from holdfast.models.pydantic_ai import usage_from_response
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.session import Session
from holdfast.stores.base import Store, check_session_id
from holdfast.wire.request import Request

if TYPE_CHECKING:
    from pydantic_ai.capabilities.abstract import WrapRunHandler, WrapToolExecuteHandler
    from pydantic_ai.run import AgentRunResult

_ACTIVE_CAPABILITIES: ContextVar[tuple["Holdfast", ...]] = ContextVar("holdfast_governors", default=())
"""The capabilities whose runs are active in this context."""
CURRENT_CONVERSATION: ContextVar[AgentConversation | None] = ContextVar("holdfast_conversation", default=None)
"""The conversation of the run that is active in this context."""
UNBILLED_PROVIDERS = frozenset({"function", "test"})
"""Providers of test models, whose usage is invented."""


class Holdfast(AbstractCapability[Any]):
    """Keeps an agent's conversations in sessions: `Agent(model, capabilities=[Holdfast()])`.

    A run's `conversation_id` names its session, and a run without `message_history=` continues the session's context.
    """

    id = "holdfast"  # an agent needs only one; the capability of a run replaces that of its agent

    def __init__(
        self,
        *,
        session: Session | str | None = None,
        store: str | Store | None = None,
        policy: str | Policy | None = None,
        budget: int | Budget | None = None,
        model: str | None = None,
        summarizer: str | Summarizer | None = None,
        compaction: CompactionOptions | None = None,
        recall: bool = True,
        recall_from: Sequence[str] = (),
        compact_context: bool = False,
    ) -> None:
        """`session` is the one conversation of all runs, by its id or already open.

        `store`, `policy`, `summarizer` and `compaction` are those of `Session.open`; by default the store is in memory
        and the policy is `default`. `budget` is the largest input in tokens; by default it is that of the model, or of
        the table of models. `model` is the name in that table if it differs from the model's own. `recall` adds a tool
        with which the model reads compacted or shortened messages; `recall_from` are the ids of earlier sessions that
        the tool may search too. `compact_context` adds a tool with which the model requests a compaction.
        """
        if not isinstance(session, Session | str | None):
            remedy = "pass its id, or open it: `async with holdfast.Session.open(…) as session`"
            raise SettingsError("session", f"{type(session).__name__} is not an open async session; {remedy}")
        opened = session if isinstance(session, Session) else None
        options = SessionOptions(store=store, policy=policy, summarizer=summarizer, compaction=compaction)
        self.pool = SessionPool(options, AgentConversation, format=SESSION_FORMAT, session=opened)
        named = session.id if isinstance(session, Session) else session
        self._fixed_session_id = check_session_id(named) if named is not None else None
        self.session = opened
        """The session of the newest run; before any run, the session that was passed in or opened last."""
        self.budget = check_budget(budget)
        self.model = model
        self.recall = recall
        self.recall_from = recall_from
        self.compact_context = compact_context
        self.last_conversation: AgentConversation | None = None
        """The conversation of the newest request; those of nested runs do not count."""
        self.last_usage: Usage | None = None
        """The usage of the newest response, as the provider reports it."""

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        """Return the last of several capabilities: only one session records a conversation."""
        return capabilities[-1]

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Return None: sessions and stores cannot be serialized."""
        return None

    # For programs.

    @property
    def last_request(self) -> Request | None:
        """The newest request; requests of nested runs do not count."""
        return self.last_conversation.last_request if self.last_conversation else None

    @property
    def sessions(self) -> Mapping[str, Session]:
        """All sessions that are open, by id."""
        return {one.session.id: one.session for one in self.pool.conversations}

    async def open(self, conversation_id: str | None = None) -> Session:
        """Return the session of a conversation; None means the one that was passed as `session=`."""
        session_id = conversation_id or self._fixed_session_id
        if session_id is None:
            raise SettingsError("conversation_id", "is needed, because no session= was passed to Holdfast")
        self.session = (await self.pool.conversation(session_id)).session
        return self.session

    async def close(self) -> None:
        """Close the store and the sessions that this capability has opened. All messages are already durable."""
        await self.pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # For pydantic-ai.

    @durable_operation(name="past_messages")
    async def past_messages(self, ctx: RunContext[Any], session_id: str) -> list[ModelMessage]:
        """Return the messages of a conversation before a run.

        An engine for durable workflows runs this as one step, so that a run that is executed again begins with the same
        messages as the first time; what it has recorded since is then recognized, and not recorded twice.
        """
        del ctx
        return await (await self.pool.conversation(session_id)).past_messages()

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Return the capability of one run."""
        own = ctx.conversation_id or ctx.run_id or "run"
        is_nested = any(one is self for one in _ACTIVE_CAPABILITIES.get())
        session_id = own if is_nested else self._fixed_session_id or own
        busy_ids = [one.session.id for one in self.pool.conversations if one.active_runs]
        if is_nested and session_id in (self._fixed_session_id, *busy_ids):
            # A conversation in the middle of a tool call cannot continue.
            session_id = f"{session_id}.{ctx.run_id}"
        return GovernedRun(self, session_id, is_nested=is_nested)


class GovernedRun(AbstractCapability[Any]):
    """One run, whose messages the session records and whose requests it prepares.

    The conversation is that of `session_id`, or of `delegation` if there is one.
    """

    id = "holdfast"

    def __init__(
        self, holdfast: Holdfast, session_id: str, delegation: AgentConversation | None = None, *, is_nested: bool
    ) -> None:
        self._holdfast = holdfast
        self.pool = holdfast.pool
        """The conversations: a durable engine calls `Holdfast.past_messages` on the capability of the run."""
        self._session_id = session_id
        self._delegation = delegation
        self._is_nested = is_nested
        self._conversation: AgentConversation | None = None
        self._messages: Sequence[ModelMessage] = ()
        """The run's own history, which grows with the run."""
        self._last_messages: Sequence[ModelMessage] = ()
        """The messages that the last request was prepared from, as the session records them."""
        self._is_prepared = False
        """Whether the session has prepared the current request."""
        self._retry_messages: list[ModelMessage] | None = None
        """What to send after the provider has rejected a request as too long."""
        self._tool_results: dict[str, Any] = {}
        """What the calls of the newest response have returned, by their ids; of a failed one, the part that says so."""
        self._deferred_calls: set[str] = set()
        """The ids of its calls whose tools have left the result to a person or to another program."""
        self._output_tools: frozenset[str] = frozenset()
        """The names of the tools by which the model gives its output."""
        self._is_output_streamed = False
        """Whether `run_stream` has ended the run with its newest response."""

    # The run.

    async def wrap_run(self, ctx: RunContext[Any], *, handler: "WrapRunHandler") -> "AgentRunResult[Any]":
        """Open the session, and record the messages of the run even if the run fails or is cancelled."""
        conversation = self._delegation or await self._holdfast.pool.conversation(self._session_id)
        self._conversation = conversation
        if not self._is_nested:
            self._holdfast.session = conversation.session
        conversation.active_runs += 1
        active = _ACTIVE_CAPABILITIES.set((*_ACTIVE_CAPABILITIES.get(), self._holdfast))
        current = CURRENT_CONVERSATION.set(conversation)
        try:
            result = await handler()
            messages = result.all_messages()
            waiting = self._deferred_calls | _waiting_calls(result.output)
            calls = [call for call in dangling_calls(messages) if call.tool_call_id not in waiting]
            if self._is_output_streamed and calls:
                parts = call_results(calls, self._tool_results, self._output_tools)
                last = ModelRequest(parts, run_id=ctx.run_id, conversation_id=ctx.conversation_id)
                messages = [*messages, last]
            await conversation.sync(messages)
            await conversation.restore_others(ctx.run_id or "")
        except BaseException as error:
            # The messages before a cancellation are recorded, even if the run is cancelled again meanwhile.
            with anyio.CancelScope(shield=True):
                await self._record_unfinished(conversation, error, ctx.run_id or "")
            raise
        finally:
            conversation.end_run(ctx.run_id or "")
            conversation.active_runs -= 1
            _ACTIVE_CAPABILITIES.reset(active)
            CURRENT_CONVERSATION.reset(current)
        return result

    async def _record_unfinished(self, conversation: AgentConversation, error: BaseException, run_id: str) -> None:
        """Record the messages of a failed run; if that fails too, add a note to the error of the run.

        Calls that had ended before have their results: pydantic-ai would add them with those of the others.
        """
        messages = self._messages
        ended = [call for call in dangling_calls(messages) if call.tool_call_id in self._tool_results]
        if ended:
            parts = call_results(ended, self._tool_results, self._output_tools)
            results = [part for part in parts if isinstance(part, ToolReturnPart)]
            last = messages[-1]
            messages = [*messages, ModelRequest(results, run_id=last.run_id, conversation_id=last.conversation_id)]
        try:
            if messages:
                await conversation.sync(messages)
            if dangling_calls(messages):
                await conversation.agent.interrupt()
            await conversation.restore_others(run_id)
        except HoldfastError as problem:
            error.add_note(f"Holdfast could not record the last messages: {problem}")

    def get_toolset(self) -> AgentToolset[Any] | None:
        """Return the tool `compact_context` if it is on."""
        if not self._holdfast.compact_context:
            return None
        return compaction_toolset(lambda: self._conversation and self._conversation.agent.compact_tool())

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        """Return the tools of the run with recall, unless it is off."""
        if not self._holdfast.recall:
            return None
        earlier = self._holdfast.recall_from
        recall = RecallToolset(lambda: self._conversation and self._conversation.agent.recall_tool(earlier=earlier))
        return with_recall(toolset, recall)

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        """Pass the context of the session to a run without a history, so that the run continues it."""
        if not isinstance(node, UserPromptNode):
            self._messages = ctx.messages
            self._is_output_streamed = not isinstance(node, ModelRequestNode | CallToolsNode)
        elif not ctx.messages and self._conversation is not None:
            if self._delegation is None:
                await self._conversation.begin_run(ctx.run_id or "")
                past = await self._holdfast.past_messages(ctx, self._session_id)
            else:
                past = await self._conversation.past_messages()
            # Deferred calls are answered by the results that come with the prompt.
            is_new = node.user_prompt is not None and node.deferred_tool_results is None
            ctx.messages[:] = patch_dangling_tool_calls(past) if is_new else past
        return node  # pyright: ignore[reportUnknownVariableType] - passed through

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: "WrapToolExecuteHandler",
    ) -> Any:
        """Keep the result of a call: `run_stream` adds those after its output only to the messages that it returns."""
        del ctx, tool_def
        try:
            result = await handler(args)
        except ToolRetryError as error:
            self._tool_results[call.tool_call_id] = error.tool_retry
            raise
        except (ApprovalRequired, CallDeferred):
            self._deferred_calls.add(call.tool_call_id)
            raise
        except ToolFailedError as error:
            self._tool_results[call.tool_call_id] = error.tool_failed
            raise
        self._tool_results[call.tool_call_id] = result
        return result

    # Its requests.

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Return the request as the session prepares it, for the model that will answer it."""
        messages = request_context.messages
        self._tool_results, self._deferred_calls = {}, set()
        self._output_tools = frozenset(tool.name for tool in request_context.model_request_parameters.output_tools)
        conversation, self._is_prepared = self._conversation, False
        if conversation is None or not messages or not isinstance(messages[-1], ModelRequest):
            # The provider has paused in the middle of a response and needs exactly these messages back.
            return request_context
        messages, sent, self._retry_messages = conversation.elements(messages), self._retry_messages, None
        if sent is None:
            conversation.request_context = request_context
            sent = await conversation.prepare(messages, self._request_options(ctx, request_context))
        self._last_messages, self._is_prepared = messages, True
        if not self._is_nested:
            self._holdfast.last_conversation = conversation
        parameters = request_context.model_request_parameters
        if self._holdfast.recall and not conversation.has_recall:
            parameters = replace(parameters, function_tools=without_recall(parameters.function_tools))
        return replace(request_context, messages=sent, model_request_parameters=parameters)

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Send a smaller request if the provider rejected this one as too long; raise any other error unchanged."""
        del ctx, request_context
        if self._conversation is None or not self._is_prepared:
            raise error
        self._retry_messages = await self._conversation.retry(error)
        raise RetryModelRequest from error

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Record the response."""
        if self._conversation is None or not self._is_prepared or response.state != "complete":
            return response
        usage = usage_from_response(response)
        is_billed = request_context.model.system not in UNBILLED_PROVIDERS
        # pydantic-ai does the same right after this.
        response.run_id = response.run_id or ctx.run_id
        response.conversation_id = response.conversation_id or ctx.conversation_id
        response.model_id = response.model_id or request_context.model_id or request_context.model.model_id
        self._conversation.request_context = request_context
        await self._conversation.record_response([response], usage if is_billed else None, self._last_messages)
        if not self._is_nested:
            self._holdfast.last_usage = usage
        return response

    def _request_options(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> FrameworkRequest:
        parameters, model = request_context.model_request_parameters, request_context.model
        visible = [
            tool
            for tool in parameters.function_tools
            if not tool.defer_loading or tool.name in ctx.discovered_tool_names
        ]
        # Another capability may have removed it from this step.
        can_recall = self._holdfast.recall and any(tool.name == RECALL_TOOL for tool in visible)
        others = without_recall(visible) if self._holdfast.recall else visible
        # A sub-agent has a model of its own.
        session = self._conversation.session if self._conversation and not self._delegation else None
        budget, settings = self._holdfast.budget, request_context.model_settings or {}
        if budget is None and model.context_window is not None:
            budget = Budget.resolve(provider_window=model.context_window, max_output=settings.get("max_tokens"))
        return FrameworkRequest(
            budget=budget,
            model=self._holdfast.model or (session.model if session else None) or model.model_id,
            endpoint=model.base_url,
            system=InstructionPart.join(parameters.instruction_parts or ()),
            tools=[*map(tool_json, (*others, *parameters.output_tools)), *_output_form(parameters)],
            can_recall=can_recall,
            recalls_earlier=bool(self._holdfast.recall_from),
        )


def _output_form(parameters: ModelRequestParameters) -> list[Mapping[str, object]]:
    """Return the form of the output that a request has in place of output tools, as requests of a session record it."""
    form = parameters.output_object
    if form is None or parameters.output_mode not in {"native", "prompted"}:
        return []
    return [{"name": form.name or "output", "description": form.description, "parameters": form.json_schema}]


def _waiting_calls(output: object) -> set[str]:
    """Return the ids of the calls that a run has left to a person or to another program."""
    if not isinstance(output, DeferredToolRequests):
        return set()
    return {call.tool_call_id for call in (*output.approvals, *output.calls)}
