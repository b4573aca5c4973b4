"""Holdfast for LangChain 1.x, LangGraph and deepagents: a middleware. Needs the extra `langchain`.

`create_agent(model, tools, middleware=[HoldfastMiddleware(store="sqlite:///chats.db")], checkpointer=…)`. The thread id
names the session. The middleware changes requests only: the graph's state stays whole. Sessions run on Holdfast's
background loop, so an agent may be invoked with and without async, from any thread.
"""

import asyncio
import inspect
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import copy
from functools import partial
from types import UnionType
from typing import Any, cast
from weakref import ref

from holdfast.adapters.framework_conversation import (
    CURRENT_CALL,
    FrameworkConversation,
    FrameworkRequest,
    SubAgentCall,
    without_cached,
)
from holdfast.adapters.session_pool import SessionOptions, SessionPool, check_budget
from holdfast.core.conversation.json_values import copied_json
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.history.events import Usage
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget
from holdfast.core.recall.query import RECALL_DESCRIPTION, RECALL_PARAMETERS
from holdfast.errors import SettingsError, imports_of_extra
from holdfast.models.base import Summarizer
from holdfast.session.background_loop import BACKGROUND_LOOP
from holdfast.session.blocking import BlockingSession
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.stores.base import Store, check_session_id
from holdfast.wire.request import Request

with imports_of_extra("langchain", "the adapter for LangChain"):
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import ToolCallRequest
    from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
    from langchain_core.exceptions import ContextOverflowError
    from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolCall, ToolMessage
    from langchain_core.tools import BaseTool, StructuredTool
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.config import get_config
    from langgraph.errors import GraphBubbleUp
    from langgraph.types import Command
    from langsmith.utils import tracing_is_enabled  # pyright: ignore[reportUnknownVariableType]

TOOL_CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call"})
"""Content blocks that repeat the calls of `AIMessage.tool_calls`."""
OWN_SUMMARY_SOURCE = "summarization"
"""How LangChain and deepagents mark the summaries that they write themselves."""
MAX_PAUSED_CALLS = 256
"""How many tool calls with agents may wait for a person; if there are more, the oldest begins a new delegation."""
OVERFLOW_BODY = {"error": {"code": "context_length_exceeded", "message": "context length exceeded"}}
AsyncHook = Callable[[Any, Callable[[Any], Awaitable[Any]]], Coroutine[Any, Any, Any]]


_ROLES: dict[type[BaseMessage], str] = {}
"""The role of each class of messages that was seen."""


def _role(kind: type[BaseMessage]) -> str:
    """Return the role of a class of messages; a message and the chunk it was streamed as have the same."""
    roles = {ToolMessage: "tool", SystemMessage: "system", AIMessage: "assistant"}
    role = _ROLES[kind] = next((role for base, role in roles.items() if issubclass(kind, base)), "user")
    return role


class LangChainMessages:
    """LangChain's messages as OpenAI chat messages."""

    format = "openai-chat"

    def contents(self, messages: Sequence[BaseMessage]) -> list[Any]:
        """Return what `encode` reads of the messages."""
        found: list[Any] = []
        roles = _ROLES  # a plain dict and `found.append`, for which Python 3.11 has instructions of their own
        for message in messages:
            try:
                role = roles[type(message)]
            except KeyError:
                role = _role(type(message))
            fields = message.__dict__
            found.append(role)
            found.append(fields["content"])
            if role == "assistant":
                found.append(fields["tool_calls"] or None)
                found.append(fields["invalid_tool_calls"] or None)
            elif role == "tool":
                found.append(fields["tool_call_id"])
        return found

    def encode(self, message: BaseMessage) -> Mapping[str, Any]:
        """Return a message as JSON."""
        kind, content = type(message), _content_json(message.content)
        role = _ROLES.get(kind) or _role(kind)
        if isinstance(message, ToolMessage):
            return {"role": role, "tool_call_id": message.tool_call_id, "content": content}
        if not isinstance(message, AIMessage):
            return {"role": role, "content": content}
        calls = [
            {
                "id": call["id"] or "",
                "type": "function",
                "function": {"name": call["name"] or "", "arguments": _arguments_text(call["args"])},
            }
            for call in (*message.tool_calls, *message.invalid_tool_calls)
        ]
        return {"role": role, "content": content, **({"tool_calls": calls} if calls else {})}

    def decode(self, native: Mapping[str, Any], original: BaseMessage | None = None) -> BaseMessage:
        """Return an OpenAI chat message as an object, with the other fields of the one that it was made of."""
        role = native["role"]
        made = self._decode(role, native)
        if original is None or role != (_ROLES.get(type(original)) or _role(type(original))):
            return made
        changed: dict[str, Any] = {"content": made.content}
        if isinstance(made, ToolMessage):
            changed["tool_call_id"] = made.tool_call_id
        elif isinstance(made, AIMessage) and isinstance(original, AIMessage):
            changed |= _changed_calls(made, native.get("tool_calls") or (), original)
        return original.model_copy(update=changed)

    def _decode(self, role: str, native: Mapping[str, Any]) -> BaseMessage:
        content = copied_json(native.get("content") or "")
        if role == "tool":
            return ToolMessage(content=content, tool_call_id=native["tool_call_id"])
        if role in {"system", "developer"}:
            return SystemMessage(content=content)
        if role != "assistant":
            return HumanMessage(content=content)
        calls = [
            ToolCall(id=call["id"], name=call["function"]["name"], args=_arguments(call["function"]["arguments"]))
            for call in native.get("tool_calls") or ()
        ]
        return AIMessage(content=content, tool_calls=calls)

    def text(self, message: BaseMessage) -> str:
        """Return the text of a message."""
        return str(message.text)

    def own_summary(self, messages: Sequence[BaseMessage]) -> str | None:
        """Return the summary of LangChain's or deepagents' own summarizer at the beginning of a list."""
        first = next((one for one in messages if not isinstance(one, SystemMessage)), None)
        is_summary = first is not None and first.additional_kwargs.get("lc_source") == OWN_SUMMARY_SOURCE
        return str(first.text) if first is not None and is_summary else None


MESSAGES = LangChainMessages()


class HoldfastMiddleware(AgentMiddleware[Any, Any, Any]):
    """Keeps the conversations of an agent in sessions and every model call within its budget.

    Put it last, next to the model, so that it sees what the other middleware has changed.
    """

    def __init__(
        self,
        *,
        session: str | None = None,
        store: str | Store | None = None,
        policy: str | Policy | None = None,
        budget: int | Budget | None = None,
        model: str | None = None,
        summarizer: str | Summarizer | None = None,
        compaction: CompactionOptions | None = None,
        recall: bool = True,
    ) -> None:
        """`session` is the id of the one conversation of all runs; by default the thread id names it.

        `store`, `policy`, `summarizer` and `compaction` are those of `Session.open`; by default the store is in memory.
        `budget` is the largest input in tokens; by default it is that of the model's profile, or of the table of
        models. `model` is the name in that table if it differs from the model's own. `recall` adds a tool with which
        the model reads messages that have left its view.
        """
        super().__init__()
        options = SessionOptions(store=store, policy=policy, summarizer=summarizer, compaction=compaction)
        self._pool = SessionPool(
            options, partial(FrameworkConversation[BaseMessage], codec=MESSAGES), format=MESSAGES.format
        )
        self._session_id = check_session_id(session) if session is not None else None
        self._budget = check_budget(budget)
        self._model = model
        self._paused: dict[tuple[str | None, str | None], SubAgentCall[BaseMessage]] = {}
        """The tool calls whose agents wait for a person, by thread and id."""
        self._known_definitions: dict[int, tuple[ref[Any], Sequence[Mapping[str, object]]]] = {}
        """The definitions of tools and of structured outputs, by the ids of these, as long as they exist.

        Programs make some for each run.
        """
        self._recall_tool = _recall_tool() if recall else None
        self.tools: Sequence[BaseTool] = [self._recall_tool] if self._recall_tool else []

    # For programs.

    def session(self, thread_id: str | None = None) -> BlockingSession:
        """Return the session of a thread: its methods wait, and any thread may call them."""
        return BlockingSession(BACKGROUND_LOOP.run(self._conversation(None, thread_id)).session)

    def last_request(self, thread_id: str | None = None) -> Request | None:
        """Return the newest request of a thread, with its receipt; None if there is none in this process."""
        named = self._session(thread_id)
        return next((one.last_request for one in self._pool.conversations if one.session.id == named), None)

    def close(self) -> None:
        """Close the store and the sessions that this middleware has opened. All messages are already durable."""
        BACKGROUND_LOOP.run(self._pool.close())

    async def aclose(self) -> None:
        """Close as `close` does, in async code."""
        await BACKGROUND_LOOP.await_result(self._pool.close())

    # For LangChain: model calls.

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Send the request that the session prepares, record the response, and send less after an overflow."""
        call = _ModelCall(request)
        try:
            BACKGROUND_LOOP.run(self._begin(call, self._thread_id()))
            while True:
                try:
                    response = handler(call.request)
                except Exception as error:  # noqa: BLE001 - raised again unless it is an overflow
                    BACKGROUND_LOOP.run(call.shrink(error))
                    continue
                BACKGROUND_LOOP.run(call.record(response))
                return response
        finally:
            BACKGROUND_LOOP.call_soon(call.end)

    @property
    def awrap_model_call(self) -> AsyncHook:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same as `wrap_model_call`, in async code."""
        return _plain_unless_traced(self._await_model_call)

    async def _await_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        call = _ModelCall(request)
        try:
            await BACKGROUND_LOOP.await_result(self._begin(call, self._thread_id()))
            while True:
                try:
                    response = await handler(call.request)
                except Exception as error:  # noqa: BLE001 - raised again unless it is an overflow
                    await BACKGROUND_LOOP.await_result(call.shrink(error))
                    continue
                await BACKGROUND_LOOP.await_result(call.record(response))
                return response
        finally:
            BACKGROUND_LOOP.call_soon(call.end)

    async def _begin(self, call: "_ModelCall", thread_id: str | None) -> None:
        outer, request = CURRENT_CALL.get(), call.request
        if outer is None:
            await self._end_passed_over(thread_id, request.messages)
        conversation = await self._conversation(outer, thread_id, request.messages, is_request=True)
        await call.prepare(conversation, self._options(request), self._recall_tool)

    def _options(self, request: ModelRequest[Any]) -> FrameworkRequest:
        name = self._model or getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
        budget, profile = self._budget, cast("Mapping[str, Any]", getattr(request.model, "profile", None) or {})
        if budget is None and (window := profile.get("max_input_tokens")):
            budget = Budget.resolve(provider_window=window)
        others = [tool for tool in request.tools if tool is not self._recall_tool]
        # A tool of the agent's own with that name is not ours.
        is_recall_ours = all(_tool_name(tool) != RECALL_TOOL for tool in others)
        system, output = request.system_message, cast("object", request.response_format)
        definitions = [one for tool in others for one in self._definitions(tool, _tool_definitions)]
        if output is not None:
            definitions += self._definitions(output, _output_definitions)
        return FrameworkRequest(
            budget=budget,
            model=name if isinstance(name, str) else None,
            system=str(system.text) if system is not None else None,
            tools=definitions,
            can_recall=is_recall_ours and len(others) < len(request.tools),
        )

    def _definitions(
        self, sent: object, define: Callable[[Any], Sequence[Mapping[str, object]]]
    ) -> Sequence[Mapping[str, object]]:
        """Return the definitions that a tool or a structured output adds to a request."""
        if isinstance(sent, dict | UnionType):
            return define(sent)  # there is no weak reference to it
        known = self._known_definitions.get(id(sent))
        if known is None:
            forget = partial(self._known_definitions.pop, id(sent))
            known = self._known_definitions[id(sent)] = ref(sent, forget), define(sent)
        return known[1]

    # For LangChain: tool calls, inside which sub-agents run.

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Run a tool; an agent that runs inside it works in a delegation of the same session."""
        call = self._tool_call(request)
        token = CURRENT_CALL.set(call)
        try:
            result = handler(request)
        except BaseException as error:
            self._end_or_pause(request, call, error)
            raise
        finally:
            CURRENT_CALL.reset(token)
        if call.is_delegated:
            BACKGROUND_LOOP.run(call.end())
        return result

    @property
    def awrap_tool_call(self) -> AsyncHook:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same as `wrap_tool_call`, in async code."""
        return _plain_unless_traced(self._await_tool_call)

    async def _await_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        call = self._tool_call(request)
        token = CURRENT_CALL.set(call)
        try:
            result = await handler(request)
        except BaseException as error:
            self._end_or_pause(request, call, error)
            raise
        finally:
            CURRENT_CALL.reset(token)
        if call.is_delegated:
            await BACKGROUND_LOOP.await_completion(call.end())
        return result

    def _end_or_pause(self, request: ToolCallRequest, call: SubAgentCall[BaseMessage], error: BaseException) -> None:
        """End the delegations of a call that has failed; those of an interrupted one continue when it is resumed."""
        if isinstance(error, GraphBubbleUp):
            if not call.is_delegated:
                return
            self._paused[self._thread_id(), request.tool_call["id"]] = call
            if len(self._paused) <= MAX_PAUSED_CALLS:
                return
            call = self._paused.pop(next(iter(self._paused)))
        # Waits without an await, which a cancellation would end. After one, the background loop may just have begun a
        # delegation that is not known here yet.
        BACKGROUND_LOOP.run(call.end(error))

    async def _end_passed_over(self, thread_id: str | None, messages: Sequence[BaseMessage]) -> None:
        """End the delegations of interrupted calls in the main agent's list: it asks again, so nobody resumes them."""
        paused = {call_id for thread, call_id in list(self._paused) if thread == thread_id}
        if not paused:
            return
        made = {call["id"] for one in messages if isinstance(one, AIMessage) for call in one.tool_calls}
        for call_id in paused & made:
            if (call := self._paused.pop((thread_id, call_id), None)) is not None:
                await call.end(asyncio.CancelledError())

    def _tool_call(self, request: ToolCallRequest) -> SubAgentCall[BaseMessage]:
        paused = self._paused.pop((self._thread_id(), request.tool_call["id"]), None)
        if paused is not None:
            return paused
        messages = cast("Mapping[str, Any]", request.state).get("messages", ())
        find_parent = partial(self._conversation, CURRENT_CALL.get(), self._thread_id(), messages)
        name = request.tool_call["args"].get("subagent_type") or request.tool_call["name"]
        return SubAgentCall(find_parent, MESSAGES, str(name))

    async def _conversation(
        self,
        outer: SubAgentCall[BaseMessage] | None,
        thread_id: str | None,
        messages: Sequence[BaseMessage] = (),
        *,
        is_request: bool = False,
    ) -> FrameworkConversation[BaseMessage]:
        """Return the conversation of a thread, or of the agent inside a tool call that has these messages."""
        if outer is None:
            return await self._pool.conversation(self._session(thread_id))
        prompts = (one for one in reversed(messages) if isinstance(one, HumanMessage))
        task = next(map(MESSAGES.text, prompts), "")
        return await outer.conversation(outer.key_of(messages, is_request=is_request), task)

    # Sessions.

    def _session(self, thread_id: str | None) -> str:
        named = self._session_id or ("" if thread_id is None else str(thread_id))
        if named:
            return named
        problem = 'pass config={"configurable": {"thread_id": "…"}} to the agent, or session= to HoldfastMiddleware'
        raise SettingsError("thread_id", problem)

    def _thread_id(self) -> str | None:
        try:
            return cast("Mapping[str, Any]", get_config().get("configurable") or {}).get("thread_id")
        except RuntimeError:  # outside of a graph
            return None


class _ModelCall:
    """One model call: the request to send, and its response."""

    _conversation: FrameworkConversation[BaseMessage]

    def __init__(self, request: ModelRequest[Any]) -> None:
        self._original = request
        self.request = request
        self._has_begun = False

    async def prepare(
        self,
        conversation: FrameworkConversation[BaseMessage],
        options: FrameworkRequest,
        recall_tool: BaseTool | None,
    ) -> None:
        """Prepare the request; it offers the tool for recall only if messages have left the view."""
        self._conversation, self._has_begun = conversation, True
        conversation.active_runs += 1
        messages = await conversation.prepare(self._original.messages, options)
        tools = self._original.tools
        if not (options.can_recall and conversation.has_recall):
            tools = [tool for tool in tools if tool is not recall_tool]
        self.request = _request_with(self._original, messages=messages, tools=tools)

    async def shrink(self, error: Exception) -> None:
        """Prepare a smaller request if the provider rejected this one as too long; else raise the error."""
        refusal = OVERFLOW_BODY if isinstance(error, ContextOverflowError) else None
        messages = await self._conversation.retry(error, refusal)
        self.request = _request_with(self.request, messages=messages)

    async def record(self, response: ModelResponse[Any]) -> None:
        """Record the response."""
        answer = next((one for one in reversed(response.result) if isinstance(one, AIMessage)), None)
        usage = _usage(answer) if answer else None
        await self._conversation.record_response(response.result, usage, self._original.messages)

    def end(self) -> None:
        """End the call, with or without a response, even if it was cancelled before it had a conversation."""
        if self._has_begun:
            self._conversation.give_up(self._original.messages)
            self._conversation.active_runs -= 1


def _request_with(request: ModelRequest[Any], **fields: object) -> ModelRequest[Any]:
    """Return a request with other fields.

    `override` warns of each field that it sets, and turns warnings off meanwhile: for all threads, and this is another
    one than that of the agent.
    """
    changed = copy(request)
    changed.__dict__.update(fields)
    return changed


def _plain_unless_traced(hook: AsyncHook) -> AsyncHook:
    """Return an async hook as a plain function that returns its coroutine, unless LangSmith traces.

    When LangChain makes an agent, it wraps a coroutine function so that every call visits a thread before and after it,
    traced or not. A plain function is called at once; but its span would end before its coroutine begins.
    """

    def plain(request: object, handler: Callable[[Any], Awaitable[Any]]) -> Coroutine[Any, Any, Any]:
        return hook(request, handler)

    # The wrapper asks for the signature in every call.
    setattr(plain, "__signature__", inspect.signature(plain))  # noqa: B010 - a function does not declare it
    return hook if tracing_is_enabled() else plain


def _recall_tool() -> BaseTool:
    async def answer(call: SubAgentCall[Any] | None, arguments: Mapping[str, object]) -> str:
        if call is None:
            return "[Recall: this tool works only in an agent with HoldfastMiddleware.]"
        return await call.recall(arguments)

    async def recall(**arguments: object) -> str:
        return await BACKGROUND_LOOP.await_result(answer(CURRENT_CALL.get(), arguments))

    def recall_blocking(**arguments: object) -> str:
        return BACKGROUND_LOOP.run(answer(CURRENT_CALL.get(), arguments))

    return StructuredTool.from_function(
        recall_blocking,
        recall,
        name=RECALL_TOOL,
        description=RECALL_DESCRIPTION,
        args_schema=dict(RECALL_PARAMETERS),
    )


def _tool_definitions(tool: BaseTool | dict[str, Any]) -> Sequence[Mapping[str, object]]:
    return [tool if isinstance(tool, dict) else convert_to_openai_tool(tool)]


def _output_definitions(output: object) -> Sequence[Mapping[str, object]]:
    """Return the definitions of a structured output, which a request has as tools or as the form of its response."""
    if isinstance(output, ProviderStrategy):
        specs = [cast("ProviderStrategy[Any]", output).schema_spec]
    elif isinstance(output, ToolStrategy):
        specs = cast("ToolStrategy[Any]", output).schema_specs
    else:
        schema = cast("AutoStrategy[Any]", output).schema if isinstance(output, AutoStrategy) else output
        specs = ToolStrategy[Any](cast("Any", schema)).schema_specs
    return [{"name": one.name, "description": one.description, "parameters": one.json_schema} for one in specs]


def _tool_name(tool: BaseTool | dict[str, Any]) -> str | None:
    if isinstance(tool, dict):
        return tool.get("name") or tool.get("function", {}).get("name")
    return tool.name


def _content_json(content: str | list[str | dict[Any, Any]]) -> str | list[Mapping[str, Any]]:
    if isinstance(content, str):
        return content
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else _block_json(block) for block in content]
    return [block for block in blocks if f"{block.get('type')}" not in TOOL_CALL_BLOCKS] or ""


def _block_json(block: dict[Any, Any]) -> dict[str, Any]:
    """Return a block as JSON: some models of LangChain take a file as bytes, or as the same bytes in base64."""
    return {
        name: b64encode(value).decode() if isinstance(value, bytes) else copied_json(value)
        for name, value in block.items()
    }


def _changed_calls(made: AIMessage, natives: Sequence[Mapping[str, Any]], original: AIMessage) -> dict[str, Any]:
    """Return the fields of a message that hold its calls, as a request has them; those with invalid JSON are last."""
    count, invalid = len(original.tool_calls), original.invalid_tool_calls
    if len(natives) != count + len(invalid):
        count, invalid = len(natives), []
    texts = [(native["id"], native["function"]["arguments"]) for native in natives[count:]]
    pairs = zip(invalid, texts, strict=True)
    # Some models of LangChain also keep the calls as the provider sent them.
    extra = {name: value for name, value in original.additional_kwargs.items() if name != "tool_calls"}
    return {
        "tool_calls": made.tool_calls[:count],
        "invalid_tool_calls": [{**call, "id": call_id, "args": text} for call, (call_id, text) in pairs],
        "additional_kwargs": extra,
    }


def _arguments_text(arguments: object) -> str:
    # LangChain lets a program put any object into the arguments of a call.
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=repr)


def _arguments(text: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _usage(answer: AIMessage) -> Usage | None:
    """Return what the provider billed; LangChain counts cached tokens as input too."""
    billed = answer.usage_metadata
    if billed is None:
        return None
    details = billed.get("input_token_details") or {}
    return without_cached(
        Usage(
            input_tokens=billed["input_tokens"],
            output_tokens=billed["output_tokens"],
            cache_read_tokens=details.get("cache_read") or 0,
            cache_write_tokens=details.get("cache_creation") or 0,
        )
    )
