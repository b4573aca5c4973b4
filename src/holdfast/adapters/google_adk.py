"""Holdfast for Google's Agent Development Kit: a plugin. Needs the extra `google-adk`.

`App(name=…, root_agent=agent, plugins=[HoldfastPlugin(store="sqlite:///chats.db")])`. The id of ADK's session names the
session of Holdfast. The plugin changes requests only: ADK's own events stay whole. Sessions run on Holdfast's
background loop, so a runner may be used with and without async, from any thread.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from holdfast.adapters.framework_conversation import CURRENT_CALL, FrameworkConversation, FrameworkRequest, SubAgentCall
from holdfast.adapters.session_pool import SessionOptions, SessionPool, check_budget
from holdfast.core.conversation.json_values import copied_json
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget
from holdfast.core.recall.query import RECALL_DESCRIPTION, RECALL_PARAMETERS
from holdfast.errors import SettingsError, imports_of_extra
from holdfast.models.base import Summarizer
from holdfast.session.background_loop import BACKGROUND_LOOP
from holdfast.session.blocking import BlockingSession
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.wire.request import Request

with imports_of_extra("google-adk", "the adapter for Google ADK"):
    from google.adk.agents import BaseAgent, LlmAgent
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins import BasePlugin
    from google.adk.tools import BaseTool, ToolContext
    from google.genai import types
    from pydantic import BaseModel, TypeAdapter


class GeminiContents:
    """ADK's contents as Gemini's JSON."""

    format = "gemini"

    def contents(self, messages: Sequence[types.Content]) -> list[Any]:
        """Return what `encode` reads of the contents: the role and the size of each, and the fields of its parts."""
        found: list[Any] = []
        for message in messages:
            fields = message.__dict__
            parts = fields["parts"] or ()
            found.append(fields["role"])
            found.append(len(parts))
            for part in parts:
                fields = part.__dict__
                if (said := fields["text"]) is not None:
                    found.append(said)
                elif (call := fields["function_call"]) is not None and not call.__dict__["partial_args"]:
                    found.append(call.__dict__)
                elif (result := fields["function_response"]) is not None and not result.__dict__["parts"]:
                    found.append(result.__dict__)
                else:
                    found.append(_fields(fields))
                    continue
                found.append(fields["thought"])
                found.append(fields["thought_signature"])
        return found

    def encode(self, message: types.Content) -> Mapping[str, Any]:
        """Return a content as JSON."""
        return message.model_dump(mode="json", by_alias=True, exclude_none=True)

    def decode(self, native: Mapping[str, Any], original: types.Content | None = None) -> types.Content:
        """Return JSON as a content."""
        del original
        return types.Content.model_validate(copied_json(native))

    def text(self, message: types.Content) -> str:
        """Return the text of a content."""
        return "".join(part.text for part in message.parts or () if part.text and not part.thought)

    def own_summary(self, messages: Sequence[types.Content]) -> str | None:
        """Return None: ADK does not mark the summaries of its own compaction."""
        del messages


def _fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a part that are set, with those of the objects in it, such as a function call."""
    return {
        name: _fields(value.__dict__) if isinstance(value, BaseModel) else value
        for name, value in fields.items()
        if value is not None
    }


CONTENTS = GeminiContents()


class HoldfastPlugin(BasePlugin):
    """Keeps the conversations of a runner in sessions and every model call within its budget."""

    def __init__(
        self,
        *,
        name: str = "holdfast",
        store: str | Store | None = None,
        policy: str | Policy | None = None,
        budget: int | Budget | None = None,
        model: str | None = None,
        summarizer: str | Summarizer | None = None,
        compaction: CompactionOptions | None = None,
        recall: bool = True,
    ) -> None:
        """`store`, `policy`, `summarizer` and `compaction` are those of `Session.open`; the store is in memory if None.

        `budget` is the largest input in tokens; by default it is that of the table of models. `model` is the name in
        that table if it differs from the request's. `recall` adds a tool with which the model reads contents that have
        left its view, to the requests that need it.
        """
        super().__init__(name)
        options = SessionOptions(store=store, policy=policy, summarizer=summarizer, compaction=compaction)
        self._pool = SessionPool(
            options, partial(FrameworkConversation[types.Content], codec=CONTENTS), format=CONTENTS.format
        )
        self._budget = check_budget(budget)
        self._model = model
        self._recall_tool = _RecallTool() if recall else None
        self._first_agents: dict[str, str] = {}
        """By session, the agent whose conversation it is."""
        self._first_agents_inside: WeakKeyDictionary[SubAgentCall[Any], dict[str, str]] = WeakKeyDictionary()
        """The same for the sessions inside a tool call, of which `AgentTool` makes one for each."""
        self._owners: dict[str, tuple[str, str]] = {}
        """By session, the app and the user whose it is."""
        self._calls: dict[tuple[str, str | None], _RunningCall] = {}
        """The tool calls that are running, by their runs and ids: some models count their calls from zero."""

    # For programs.

    def session(self, session_id: str) -> BlockingSession:
        """Return the session of a conversation: its methods wait, and any thread may call them."""
        return BlockingSession(BACKGROUND_LOOP.run(self._session(session_id)))

    def last_request(self, session_id: str) -> Request | None:
        """Return the newest request of a conversation, with its receipt; None if there is none in this process."""
        return next((one.last_request for one in self._pool.conversations if one.session.id == session_id), None)

    async def close(self) -> None:
        """Close the store and the sessions that this plugin has opened. All contents are already durable."""
        await BACKGROUND_LOOP.await_result(self._pool.close())

    # For ADK: model calls.

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """Replace the contents of a request by those that the session prepares."""
        self._check_owner(callback_context)
        name, agent = callback_context.session.id, self._own_agent(callback_context)
        if not llm_request.contents:
            return
        fitted, has_recall = await BACKGROUND_LOOP.await_result(self._prepare(name, agent, llm_request))
        if has_recall and self._recall_tool is not None:
            llm_request.append_tools([self._recall_tool])
        llm_request.contents = fitted

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """Record a whole response."""
        content = llm_response.content
        if llm_response.partial or content is None or not content.parts:
            return
        # ADK adds ids to the calls of this object, once it is recorded, and removes them from the next request.
        said = content if content.role else content.model_copy(update={"role": "model"})
        billed = llm_response.usage_metadata
        usage = billed.model_dump(mode="json", by_alias=True, exclude_none=True) if billed is not None else None
        name, agent = callback_context.session.id, self._own_agent(callback_context)
        await BACKGROUND_LOOP.await_result(self._record(name, agent, said, usage))

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Ask again with less if the provider rejected the request as too long; any other error stays as it is."""
        name, agent = callback_context.session.id, self._own_agent(callback_context)
        running = _running_agent(callback_context)
        while isinstance(running, LlmAgent):
            smaller = await BACKGROUND_LOOP.await_result(self._shrink(name, agent, error))
            if smaller is None:
                return None
            llm_request.contents = smaller
            try:
                responses = [one async for one in running.canonical_model.generate_content_async(llm_request)]
            except Exception as again:  # noqa: BLE001 - if it is no overflow, the first error is raised
                error = again
                continue
            # ADK passes it on to `after_model_callback`; if there is none, it raises the first error.
            return responses[-1] if responses else None
        return None

    # For ADK: tool calls, inside which other agents run.

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        """Let an agent that runs inside the tool work in a delegation of the same session."""
        del tool_args
        agent = self._own_agent(tool_context)
        find_parent = partial(self._conversation, CURRENT_CALL.get(), tool_context.session.id, agent)
        call = SubAgentCall(find_parent, CONTENTS, tool.name)
        key = tool_context.invocation_id, tool_context.function_call_id
        end, task = partial(self._end_unfinished_call, key), asyncio.current_task()
        self._calls[key] = _RunningCall(call, CURRENT_CALL.set(call), task, end)
        if task is not None:
            task.add_done_callback(end)

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: dict[str, Any]
    ) -> None:
        """End the delegation with the answer of its agent."""
        del tool, tool_args, result
        await self._end_call(tool_context, None)

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> None:
        """End the delegation with the error of its agent."""
        del tool, tool_args
        await self._end_call(tool_context, error)

    async def _end_call(self, tool_context: ToolContext, error: Exception | None) -> None:
        running = self._calls.pop((tool_context.invocation_id, tool_context.function_call_id), None)
        if running is None:
            return
        CURRENT_CALL.reset(running.token)
        if running.task is not None:
            running.task.remove_done_callback(running.end)
        # After a cancellation, the background loop may just have begun a delegation that is not known here yet.
        if running.call.is_delegated or error is not None:
            await BACKGROUND_LOOP.await_completion(running.call.end(error))

    def _end_unfinished_call(self, key: tuple[str, str | None], task: "asyncio.Task[Any]") -> None:
        """End a call after its task: ADK calls no callback of this plugin if another plugin replaces the result.

        Neither does it if the task is cancelled in the callback of another plugin.
        """
        running = self._calls.pop(key, None)
        if running is not None:
            # Waits without an await: at the end of a program the loop runs no more than this.
            BACKGROUND_LOOP.run(running.call.end(asyncio.CancelledError() if task.cancelled() else task.exception()))

    def _check_owner(self, context: CallbackContext) -> None:
        """Raise a `SettingsError` if the session has the id of another user's: ADK keeps such sessions apart."""
        if CURRENT_CALL.get() is not None:
            return  # its conversation is that of the call, whatever its id
        session = context.session
        owner = session.app_name, session.user_id
        if self._owners.setdefault(session.id, owner) != owner:
            problem = (
                f"two users have a session {session.id!r}, and one session of Holdfast would hold both; use ids that "
                "are unique for all users, as those are that ADK makes where create_session gets none"
            )
            raise SettingsError("session_id", problem)

    def _own_agent(self, context: CallbackContext) -> str | None:
        """Return the agent that runs, if it is not the one with which the conversation begins; else None.

        The tree of agents tells which one that is: in a new process, ADK continues with the agent that answered last.
        The agents of a workflow are in no tree; there the first that calls a model counts.
        """
        running = _running_agent(context)
        if running is None:
            return None
        first = running.root_agent
        while not isinstance(first, LlmAgent) and first.sub_agents:
            first = first.sub_agents[0]
        outer = CURRENT_CALL.get()
        known = self._first_agents if outer is None else self._first_agents_inside.setdefault(outer, {})
        is_first = known.setdefault(context.session.id, first.name) == running.name
        return None if is_first else running.name

    # On the background loop.

    async def _session(self, session_id: str) -> Session:
        return (await self._pool.conversation(session_id)).session

    async def _conversation(
        self, outer: SubAgentCall[Any] | None, session_id: str, agent: str | None, task: str = ""
    ) -> FrameworkConversation[types.Content]:
        """Return the conversation of an agent: inside a tool call, or of a session.

        Each agent of a session has its own list, in which ADK rewrites what other agents said: an agent to which the
        conversation was transferred has a session of its own, named after both.
        """
        if outer is not None:
            return await outer.conversation((session_id, agent), task, agent)
        return await self._pool.conversation(session_id if agent is None else f"{session_id}.{agent}")

    async def _prepare(
        self, session_id: str, agent: str | None, request: LlmRequest
    ) -> tuple[list[types.Content], bool]:
        outer, task = CURRENT_CALL.get(), ""
        if outer is not None:
            prompts = (CONTENTS.text(content) for content in request.contents if content.role == "user")
            task = next(filter(None, prompts), "")
        conversation = await self._conversation(outer, session_id, agent, task)
        options = FrameworkRequest(
            budget=self._budget,
            model=self._model or request.model,
            system=_system_text(request),
            tools=_declarations(request),
            # A tool of the agent's own with that name is not ours.
            can_recall=self._recall_tool is not None and RECALL_TOOL not in request.tools_dict,
        )
        fitted = await conversation.prepare(request.contents, options)
        return fitted, options.can_recall and conversation.has_recall

    async def _record(self, session_id: str, agent: str | None, said: types.Content, usage: object) -> None:
        await (await self._conversation(CURRENT_CALL.get(), session_id, agent)).record_response([said], usage)

    async def _shrink(self, session_id: str, agent: str | None, error: Exception) -> list[types.Content] | None:
        """Return a smaller version of the last request; None if the error is no overflow, or nothing helps."""
        try:
            return await (await self._conversation(CURRENT_CALL.get(), session_id, agent)).retry(error)
        except Exception as problem:
            if problem is not error:
                raise
        return None


class _RunningCall(NamedTuple):
    """A tool call that is running."""

    call: SubAgentCall[types.Content]
    token: Token[Any]
    task: "asyncio.Task[Any] | None"
    end: Callable[["asyncio.Task[Any]"], None]
    """What ends the call after its task, if nothing has ended it before."""


class _RecallTool(BaseTool):
    """The tool with which a model reads contents that have left its view."""

    def __init__(self) -> None:
        super().__init__(name=RECALL_TOOL, description=RECALL_DESCRIPTION)

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=dict(RECALL_PARAMETERS)
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, str]:
        """Return the answer of recall."""
        del tool_context
        call = CURRENT_CALL.get()
        if call is None:
            return {"result": "[Recall: this tool works only in an app with HoldfastPlugin.]"}
        return {"result": await BACKGROUND_LOOP.await_result(call.recall(args))}


def _running_agent(context: CallbackContext) -> BaseAgent | None:
    return getattr(context, "_invocation_context").agent  # noqa: B009 - ADK tells it nowhere else


def _declarations(request: LlmRequest) -> list[Mapping[str, object]]:
    """Return the definitions of a request's functions, and that of its output."""
    tools = cast("list[Any]", request.config.tools or ())
    declared = [one for tool in tools for one in getattr(tool, "function_declarations", None) or ()]
    return [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in declared] + _output_form(request)


def _output_form(request: LlmRequest) -> list[Mapping[str, object]]:
    """Return the schema of a request's response, if it has one, as the definition of a function."""
    schema: Any = request.config.response_schema or request.config.response_json_schema
    if schema is None:
        return []
    if isinstance(schema, types.Schema):
        schema = schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    return [{"name": "output", "parameters": schema if isinstance(schema, dict) else _json_schema(schema)}]


@lru_cache(maxsize=64)
def _json_schema(kind: Any) -> Mapping[str, object]:
    return TypeAdapter[Any](kind).json_schema()


def _system_text(request: LlmRequest) -> str | None:
    given: Any = request.config.system_instruction
    if given is None:
        return None
    listed: Any = given.parts or [] if isinstance(given, types.Content) else given
    parts = cast("list[Any]", listed if isinstance(listed, list) else [listed])
    return "\n".join(text for part in parts if (text := part if isinstance(part, str) else getattr(part, "text", "")))
