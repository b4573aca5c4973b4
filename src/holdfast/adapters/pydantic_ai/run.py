"""One run of an agent, governed: what is said is recorded, and every request is what the session makes of it.

The run's own history is left alone. What a fold leaves out is left out of the request, and is in the history.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from pydantic_ai import RetryModelRequest, UserPromptNode
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, AgentToolset, CombinedToolset

from holdfast.adapters.pydantic_ai.conversation import AgentConversation, AgentRequestOptions, SessionPool
from holdfast.adapters.pydantic_ai.processors import has_dangling_calls, patch_dangling_tool_calls
from holdfast.adapters.pydantic_ai.tools import MIN_RECALL_BUDGET, RecallToolset, compaction_toolset, without_recall
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.history.events import Usage
from holdfast.core.planning.situation import Budget
from holdfast.errors import CannotFitError, EmptyConversationError, HoldfastError, ModelOverflowError
from holdfast.models.pydantic_ai import usage_from_response
from holdfast.session.request import Request
from holdfast.session.session import Session
from holdfast.session.tools import ModelTool

if TYPE_CHECKING:
    from pydantic_ai.capabilities.abstract import WrapRunHandler
    from pydantic_ai.run import AgentRunResult

_ACTIVE_CONFIGS: ContextVar[tuple[object, ...]] = ContextVar("holdfast_governors", default=())
"""Whose runs this code is inside of."""
CURRENT_CONVERSATION: ContextVar[AgentConversation | None] = ContextVar("holdfast_conversation", default=None)
"""The conversation of the run that this code is inside of."""
UNBILLED_PROVIDERS = frozenset({"function", "test"})
"""Models that make up what they cost."""


class RunConfig(Protocol):
    """What runs share."""

    budget: int | Budget | None
    model: str | None
    recall: bool
    recall_from: Sequence[str]
    compact_context: bool
    last_request: Request | None
    last_usage: Usage | None
    conversations: SessionPool

    def run_started(self, session: Session) -> None:
        """Hear that a run takes part in a session."""
        ...


def is_inside_run_of(config: object) -> bool:
    """Return whether this is called from within a run that somebody governs."""
    return any(one is config for one in _ACTIVE_CONFIGS.get())


class GovernedRun(AbstractCapability[Any]):
    """Governs one run."""

    id = "holdfast"

    def __init__(self, config: RunConfig, session_id: str, *, is_nested: bool) -> None:
        self._config = config
        self._session_id = session_id
        self._is_nested = is_nested
        self._conversation: AgentConversation | None = None
        self._messages: Sequence[ModelMessage] = ()
        """The run's own history, as it grows."""
        self._last_messages: Sequence[ModelMessage] = ()
        """What was to be said with the last request."""
        self._is_governed = False
        """Whether the request that is being made is ours."""
        self._retry_request: Request | None = None
        """What to send instead of what was refused."""

    # The run.

    async def wrap_run(self, ctx: RunContext[Any], *, handler: "WrapRunHandler") -> "AgentRunResult[Any]":
        """Open the session, and record what the run leaves, however it ends."""
        del ctx
        self._conversation = conversation = await self._open_conversation()
        if not self._is_nested:
            self._config.run_started(conversation.session)
        conversation.active_runs += 1
        token = _ACTIVE_CONFIGS.set((*_ACTIVE_CONFIGS.get(), self._config))
        sending = CURRENT_CONVERSATION.set(conversation)
        try:
            result = await handler()
            await conversation.sync(result.all_messages())
        except BaseException as error:
            # What was said before it was stopped counts, however many times it is told to stop.
            with anyio.CancelScope(shield=True):
                await self._record_unfinished(conversation, error)
            raise
        finally:
            conversation.active_runs -= 1
            _ACTIVE_CONFIGS.reset(token)
            CURRENT_CONVERSATION.reset(sending)
        return result

    async def _open_conversation(self) -> AgentConversation:
        return await self._config.conversations.conversation(self._session_id)

    async def _record_unfinished(self, conversation: AgentConversation, error: BaseException) -> None:
        """Record what a run that did not come to its end has said; why it did not is what its caller hears."""
        try:
            if self._messages:
                await conversation.sync(self._messages)
            if has_dangling_calls(self._messages):
                await conversation.session.interrupt(scope=conversation.scope)
        except HoldfastError as problem:
            error.add_note(f"Holdfast could not record what was said last: {problem}")

    def get_toolset(self) -> AgentToolset[Any] | None:
        """Return the tools that come with a governed run: recall, unless it was left out, and what was asked for."""
        found: list[AbstractToolset[Any]] = []
        if self._config.recall:
            found.append(RecallToolset(self._recall_tool))
        if self._config.compact_context:
            found.append(compaction_toolset(self._compact_tool))
        return CombinedToolset(found) if found else None

    def _recall_tool(self) -> ModelTool | None:
        conversation = self._conversation
        if conversation is None:
            return None
        return conversation.session.recall_tool(scope=conversation.scope, earlier=self._config.recall_from)

    def _compact_tool(self) -> ModelTool | None:
        conversation = self._conversation
        return None if conversation is None else conversation.session.compact_tool(scope=conversation.scope)

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        """Let a run without a history go on from what stands in its session."""
        if not isinstance(node, UserPromptNode):
            self._messages = ctx.messages
        elif not ctx.messages and self._conversation is not None:
            past = await self._conversation.past_messages()
            # Calls that wait for somebody's word are answered with the results that come with it.
            is_new = node.user_prompt is not None and node.deferred_tool_results is None
            ctx.messages[:] = patch_dangling_tool_calls(past) if is_new else past
        return node  # pyright: ignore[reportUnknownVariableType] - whatever it was

    # Its requests.

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Return the request as the session makes it, for the model that is going to answer it."""
        messages = request_context.messages
        conversation, self._is_governed = self._conversation, False
        if conversation is None or not messages or not isinstance(messages[-1], ModelRequest):
            # The provider has paused in the middle of an answer and wants exactly this back.
            return request_context
        request, self._retry_request = self._retry_request, None
        if request is None:
            try:
                request = await self._prepare(
                    conversation, request_context, self._request_options(ctx, request_context)
                )
            except EmptyConversationError:
                return request_context
        self._last_messages, self._is_governed = messages, True
        if not self._is_nested:
            self._config.last_request = request
        parameters = request_context.model_request_parameters
        if self._config.recall and not conversation.has_recall:
            parameters = replace(parameters, function_tools=without_recall(parameters.function_tools))
        return replace(
            request_context, messages=conversation.outgoing_messages(request), model_request_parameters=parameters
        )

    async def _prepare(
        self, conversation: AgentConversation, request_context: ModelRequestContext, options: AgentRequestOptions
    ) -> Request:
        """Return the next request; with the recall tool from the first one on that leaves something out."""
        request = await conversation.prepare(request_context, options)
        is_small = request.receipt.budget.tokens < MIN_RECALL_BUDGET
        is_asked = options.has_recall or bool(self._config.recall_from)
        is_worth_it = not is_small and (
            is_asked or conversation.session.has_omissions(request, scope=conversation.scope)
        )
        if options.recall_tool is None or options.has_recall == is_worth_it:
            return request
        return await conversation.prepare(request_context, replace(options, has_recall=is_worth_it))

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Send less where the provider says that it was too much; raise anything else as it is."""
        del ctx, request_context
        if self._conversation is None or not self._is_governed:
            raise error
        problem = None
        try:
            self._retry_request = await self._conversation.session.retry(error, scope=self._conversation.scope)
        except HoldfastError as caught:
            problem = caught
        if problem is None:
            raise RetryModelRequest from error
        if isinstance(problem, CannotFitError | ModelOverflowError):
            error.add_note(f"Holdfast could not make the request small enough: {problem}")
        raise error

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Record what the model said."""
        if self._conversation is None or not self._is_governed or response.state != "complete":
            return response
        usage = usage_from_response(response)
        is_billed = request_context.model.system not in UNBILLED_PROVIDERS
        # pydantic-ai does the same right after this.
        response.run_id = response.run_id or ctx.run_id
        response.conversation_id = response.conversation_id or ctx.conversation_id
        response.model_id = response.model_id or request_context.model_id or request_context.model.model_id
        self._conversation.request_context = request_context
        await self._conversation.record_response(self._last_messages, response, usage if is_billed else None)
        if not self._is_nested:
            self._config.last_usage = usage
        return response

    def _request_options(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> AgentRequestOptions:
        parameters, model = request_context.model_request_parameters, request_context.model
        shown = [tool for tool in parameters.function_tools if _is_visible(tool, ctx.discovered_tool_names)]
        # Somebody may have taken it away from this step.
        recall = next((_tool_json(tool) for tool in shown if tool.name == RECALL_TOOL and self._config.recall), None)
        others = without_recall(shown) if self._config.recall else shown
        session = self._conversation.session if self._conversation else None
        budget, settings = self._config.budget, request_context.model_settings or {}
        if budget is None and model.context_window is not None:
            budget = Budget.resolve(provider_window=model.context_window, max_output=settings.get("max_tokens"))
        return AgentRequestOptions(
            budget=budget,
            model=self._config.model or (session.model if session else None) or model.model_id,
            system=InstructionPart.join(parameters.instruction_parts or ()),
            tools=[_tool_json(tool) for tool in (*others, *parameters.output_tools)],
            recall_tool=recall,
            has_recall=recall is not None and self._conversation is not None and self._conversation.has_recall,
        )


def _is_visible(tool: ToolDefinition, discovered: set[str]) -> bool:
    return not tool.defer_loading or tool.name in discovered


def _tool_json(tool: ToolDefinition) -> Mapping[str, object]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters_json_schema}
