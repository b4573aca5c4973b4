"""Holdfast for the OpenAI Agents SDK: a session and a filter of model inputs. Needs the extra `openai-agents`.

`Runner.run(agent, prompt, session=kept, run_config=kept.run_config())`, with `kept = HoldfastSession("chat")`. The
session keeps every item; the filter shortens what each model call gets. Both run on Holdfast's background loop, so
`run`, `run_sync` and `run_streamed` share a session, from any thread.
"""

import asyncio
import inspect
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast
from weakref import WeakMethod, WeakSet

from holdfast.adapters.framework_conversation import (
    RECALL_JSON,
    FrameworkConversation,
    FrameworkRequest,
    delegation_of_call,
)
from holdfast.adapters.session_pool import SessionOptions, SessionPool, check_budget
from holdfast.bare_list import govern
from holdfast.core.conversation.json_values import copied_json, encode_canonical_json
from holdfast.core.conversation.shorten import RECALL_TOOL, clip_text
from holdfast.core.history.events import MAIN, MessageAppended
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget
from holdfast.core.recall.query import RECALL_DESCRIPTION, RECALL_PARAMETERS
from holdfast.errors import CannotFitError, imports_of_extra
from holdfast.models.base import Summarizer
from holdfast.session.background_loop import BACKGROUND_LOOP
from holdfast.session.blocking import BlockingSession
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.delegation import DelegateContext
from holdfast.session.session import Session
from holdfast.stores.base import Store, check_session_id
from holdfast.wire.formats import canonical_message, format_named
from holdfast.wire.request import Request
from holdfast.wire.validate.provider import validate

with imports_of_extra("openai-agents", "the adapter for the OpenAI Agents SDK"):
    from agents import (
        Agent,
        AgentOutputSchema,
        AgentOutputSchemaBase,
        FunctionTool,
        Handoff,
        Model,
        ModelProvider,
        ModelResponse,
        RunConfig,
        RunContextWrapper,
        SessionSettings,
        TResponseInputItem,
    )
    from agents.items import TResponseStreamEvent
    from agents.memory.session_settings import coerce_session_settings
    from agents.run_config import CallModelData, CallModelInputFilter, ModelInputData
    from agents.tool_context import ToolContext

Item = dict[str, Any]
"""One item of the Responses API."""


class ResponsesItems:
    """Items of the Responses API, which the SDK passes as JSON."""

    format = "openai-responses"

    def contents(self, messages: Sequence[Item]) -> list[Any]:
        """Return the items themselves."""
        return list(messages)

    def encode(self, message: Item) -> Mapping[str, Any]:
        """Return a copy of the item."""
        return copied_json(message)

    def decode(self, native: Mapping[str, Any], original: Item | None = None) -> Item:
        """Return a copy of the item."""
        del original
        return dict(copied_json(native))

    def text(self, message: Item) -> str:
        """Return the text of an item."""
        decoded = format_named(self.format).decode(message, 0)
        return decoded.text or "\n".join(result.text for result in decoded.results)

    def own_summary(self, messages: Sequence[Item]) -> str | None:
        """Return None: the SDK's own compaction is encrypted."""
        del messages


ITEMS = ResponsesItems()
MIN_HISTORY_CHARS = 500
"""Nested handoff history is not made shorter than this."""
INPUT_ROLES = frozenset({"user", "system", "developer"})
"""The roles of the items with which a run begins."""
_LOGGER = logging.getLogger("holdfast")


class HoldfastSession:
    """A session of the Agents SDK over a Holdfast session, and the filter that keeps requests within the budget."""

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        *,
        store: str | Store | None = None,
        policy: str | Policy | None = None,
        budget: int | Budget | None = None,
        model: str | None = None,
        summarizer: str | Summarizer | None = None,
        compaction: CompactionOptions | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        """`store`, `policy`, `summarizer` and `compaction` are those of `Session.open`; the store is in memory if None.

        `budget` is the largest input in tokens; by default it is that of the table of models for `model`, or for the
        agent's model if that is a name. `session_settings` are those of the SDK's own sessions.
        """
        self.session_id = check_session_id(session_id)
        self.session_settings = coerce_session_settings(session_settings or {})
        options = SessionOptions(store=store, policy=policy, summarizer=summarizer, compaction=compaction)
        self._pool = SessionPool(options, partial(FrameworkConversation[Item], codec=ITEMS), format=ITEMS.format)
        self._budget = check_budget(budget)
        self._model = model
        self._sub_agents: list[_SubAgentRun] = []
        self._runs: WeakSet[_Run] = WeakSet()
        """The runs that have read the items and are not forgotten."""
        self._watched_tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        """The tasks that tell when they are cancelled."""
        self._last_run: _Run | None = None
        """The one that has read them last."""
        self._recorded_call_ids: dict[str, str] = {}
        """The ids of calls in the log, by those that `get_items` has given them because they were used before."""
        self._is_filter_checked = False
        """Whether the filter was called, or its absence was reported."""
        self._mcp_tools: tuple[Agent[Any], Sequence[Mapping[str, object]]] | None = None
        """The agent that has asked its model last, and the definitions of the tools of its MCP servers."""
        self.recall_tool = FunctionTool(
            name=RECALL_TOOL,
            description=RECALL_DESCRIPTION,
            params_json_schema=dict(RECALL_PARAMETERS),
            on_invoke_tool=self._recall,
            strict_json_schema=False,
        )
        """The tool with which the model reads items that have left its view: `Agent(tools=[kept.recall_tool])`."""

    # For programs.

    def run_config(self, config: RunConfig | None = None) -> RunConfig:
        """Return a run configuration with the filter; a filter that the given one has runs first.

        Models that are named, not passed as objects, also send a smaller request after an overflow.
        """
        config = config or RunConfig()
        provider = _RecoveringProvider(self, config.model_provider)
        model = config.model if isinstance(config.model, str | None) else self.recovering(config.model)
        inner = config.call_model_input_filter
        return replace(config, call_model_input_filter=self._filter_after(inner), model_provider=provider, model=model)

    def recovering(self, model: Model) -> Model:
        """Return a model that sends a smaller request after an overflow: `Agent(model=kept.recovering(model))`."""
        return _RecoveringModel(self, model)

    def session(self) -> BlockingSession:
        """Return the Holdfast session: its methods wait, and any thread may call them."""
        return BlockingSession(BACKGROUND_LOOP.run(self._conversation()).session)

    @property
    def last_request(self) -> Request | None:
        """The newest request, with its receipt."""
        return next((one.last_request for one in self._pool.conversations), None)

    async def close(self) -> None:
        """Close the store and the session. All items are already durable."""
        await BACKGROUND_LOOP.await_result(self._pool.close())

    # The SDK's session protocol.

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items of the conversation, compacted ones included; with a limit, the latest."""
        _ASKING.set(None)
        items, run = await BACKGROUND_LOOP.await_result(self._items())
        run.task = asyncio.current_task()
        _RUN.set(run)
        items = self._with_unique_call_ids(items)
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        return cast("list[TResponseInputItem]", items if limit is None else items[max(0, len(items) - limit) :])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Record items, except those that the filter has recorded before their model call."""
        if any(map(_is_of_model, cast("list[Item]", items))):
            # A turn has ended. In a stream the SDK adds the prompt once the filter was called: there it begins.
            _ASKING.set(None)
        await BACKGROUND_LOOP.await_result(self._add(self._with_recorded_call_ids(cast("list[Item]", items))))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the newest item back; the log keeps it, and `undo` restores it."""
        return cast("TResponseInputItem | None", await BACKGROUND_LOOP.await_result(self._pop()))

    async def clear_session(self) -> None:
        """Start the conversation over; the log keeps the items."""
        await BACKGROUND_LOOP.await_result(self._clear())

    # On the background loop.

    async def _conversation(self) -> "FrameworkConversation[Item]":
        return await self._pool.conversation(self.session_id)

    async def _items(self) -> "tuple[list[Item], _Run]":
        items = await (await self._conversation()).load()
        run = self._last_run = _Run(self, len(items))
        self._runs.add(run)
        return items, run

    async def _add(self, items: list[Item]) -> None:
        if self._last_run is not None and not self._is_filter_checked and any(map(_is_of_model, items)):
            self._is_filter_checked = True
            _LOGGER.warning(
                "Session %r runs without its filter, so no model call is kept within the budget: "
                "pass run_config=kept.run_config() to Runner.run, with the HoldfastSession as kept",
                self.session_id,
            )

        conversation, run = await self._conversation(), self._current_run()

        async def choose_new(before: list[Item]) -> list[Item]:
            filtered = [_said(item) for item in before[run.start :]] if run is not None else []
            for said in run.added if run is not None else ():
                if said in filtered:
                    filtered.remove(said)
            new = list[Item]()
            for item in items:
                said = _said(item)
                for each in self._runs:
                    each.added.append(said)
                if said in filtered:
                    filtered.remove(said)
                else:
                    new.append(item)
            if answered := _answered_elsewhere(new, before):
                new = _with_calls(new, await _recorded_calls(conversation.session, answered))
            await self._end_sub_agents(new, conversation, len(before))
            return new

        async with conversation.decision_lock:
            await conversation.add(choose_new)

    async def _pop(self) -> Item | None:
        conversation = await self._conversation()
        async with conversation.decision_lock:
            item = await conversation.take_last()
            said = _said(item) if item is not None else None
            for run in self._runs:
                if said in run.added:
                    run.added.remove(said)
        return item

    async def _clear(self) -> None:
        conversation = await self._conversation()
        async with conversation.decision_lock:
            await conversation.clear()
            for run in self._runs:
                run.start, run.added = 0, []

    def _with_unique_call_ids(self, items: list[Item]) -> list[Item]:
        """Return items in which no two calls have the same id: the SDK drops all but one of them.

        Some models count their calls from one in every turn. An output belongs to the nearest call before it.
        """
        used, newest, numbers = set[str](), dict[str, str](), Counter[str]()
        unique = list[Item]()
        for item in items:
            call_id: object = item.get("call_id")
            if not isinstance(call_id, str):
                unique.append(item)
                continue
            name = call_id
            if str(item.get("type")).endswith("_output"):
                name = newest.get(call_id, call_id)
            else:
                while name in used:
                    numbers[call_id] += 1
                    name = f"{call_id}_{numbers[call_id] + 1}"
                used.add(name)
                newest[call_id] = name
            if name != call_id:
                self._recorded_call_ids[name] = call_id
            unique.append(item if name == call_id else {**item, "call_id": name})
        return unique

    def _with_recorded_call_ids(self, items: list[Item]) -> list[Item]:
        """Return items with the ids of calls that the log has."""
        recorded = self._recorded_call_ids
        if not recorded:
            return items
        return [
            {**item, "call_id": recorded[item["call_id"]]} if item.get("call_id") in recorded else item
            for item in items
        ]

    def _current_run(self) -> "_Run | None":
        """Return the run inside which this code runs, or the last one if a program calls."""
        run = _RUN.get()
        return run if run is not None and run.kept is self else self._last_run

    async def _recall(self, context: ToolContext[Any], arguments: str) -> str:
        del context
        return await BACKGROUND_LOOP.await_result(self._answer_recall(arguments))

    async def _answer_recall(self, arguments: str) -> str:
        try:
            values: Any = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            values = {}
        given = cast("dict[str, object]", values) if isinstance(values, dict) else {}
        conversation, asking = await self._conversation(), _ASKING.get()
        own = asking.conversation if asking is not None else None
        if own is not None and own.session is conversation.session:
            conversation = own  # an agent as a tool reads what it may see, which is its own delegation
        return await conversation.agent.recall_tool().call(given)

    # Model calls.

    def _filter_after(self, inner: CallModelInputFilter | None) -> CallModelInputFilter:
        async def fit(data: CallModelData[Any]) -> ModelInputData:
            if inner is not None:
                found = inner(data)
                data = replace(data, model_data=await found if inspect.isawaitable(found) else found)
            given, task, caller = data.model_data, asyncio.current_task(), _ASKING.get()
            is_nested = caller is not None and (caller.is_nested or caller.task is not task)
            if caller is not None and not caller.is_nested and caller.agent is data.agent and self._last_run is None:
                is_nested = False  # without a session nothing tells that another run of the same agent has begun
            _ASKING.set(_Asking(task, data.agent, is_nested=is_nested))
            items = self._with_recorded_call_ids(cast("list[Item]", given.input))
            if is_nested and caller is not None:
                outer = self._current_run()
                self._watch(task, caller.task, outer.task if outer is not None else None)
            others = [*await self._mcp_definitions(data), *map(_handoff_definition, data.agent.handoffs)]
            others += _output_definitions(data.agent)
            asking = _Asking(task, data.agent, is_nested=is_nested)
            fitting = self._fit(items, given.instructions, asking, others, caller if is_nested else None)
            fitted, conversation = await BACKGROUND_LOOP.await_result(fitting)
            _ASKING.set(asking._replace(conversation=conversation))
            return ModelInputData(cast("list[TResponseInputItem]", fitted), given.instructions)

        return fit

    def _watch(self, *tasks: "asyncio.Task[Any] | None") -> None:
        """End the runs of agents as tools that belong to a task when it is cancelled.

        The SDK tells nobody of a cancellation, and a cancelled run adds no items.
        """
        method = WeakMethod(self._end_cancelled)

        def end(task: "asyncio.Task[Any]") -> None:
            end_cancelled = method()
            if end_cancelled is not None and task.cancelled():
                # Waits without an await: at the end of a program the loop runs no more than this.
                BACKGROUND_LOOP.run(end_cancelled(task))

        for task in tasks:
            if task is not None and task not in self._watched_tasks:
                self._watched_tasks.add(task)
                task.add_done_callback(end)

    async def _mcp_definitions(self, data: CallModelData[Any]) -> Sequence[Mapping[str, object]]:
        """Return the definitions of the tools of an agent's MCP servers, which are asked once while the agent runs."""
        agent = data.agent
        if not agent.mcp_servers:
            return ()
        if self._mcp_tools is None or self._mcp_tools[0] is not agent:
            found = await agent.get_mcp_tools(RunContextWrapper(data.context))
            self._mcp_tools = agent, [_definition(tool) for tool in found if isinstance(tool, FunctionTool)]
        return self._mcp_tools[1]

    async def _fit(
        self,
        items: list[Item],
        instructions: str | None,
        asking: "_Asking",
        definitions: Sequence[Mapping[str, object]],
        caller: "_Asking | None",
    ) -> "tuple[list[Item], FrameworkConversation[Item] | None]":
        """Return the items to send, and the conversation that has prepared them; None if none has.

        `caller` is the run that has asked before in the context of an agent as a tool: that of its caller, or its own.
        """
        self._is_filter_checked = True
        conversation, agent = await self._conversation(), asking.agent
        name = self._model or (agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", None))
        tools = [tool for tool in agent.tools if isinstance(tool, FunctionTool)]
        others = [_definition(tool) for tool in tools if not _is_recall(tool)]
        has_recall = len(others) < len(tools)
        others += definitions
        options = FrameworkRequest(
            budget=self._budget,
            model=name if isinstance(name, str) else None,
            system=instructions,
            tools=others,
            can_recall=has_recall,
            always_has_recall=has_recall,
        )
        async with conversation.decision_lock:
            # A run that waited for a person is resumed without reading the items, maybe in a new process.
            known = await conversation.load()
            is_longer = items[: len(known)] == known
            resumed = self._resumed_run(items) if caller is None and not is_longer else None
            begins_alike = not known or not items or _said(items[0]) == _said(known[0])
            is_main = resumed is None and (caller is None if self._last_run is not None else begins_alike)
            if resumed is not None:
                is_kept = True
            elif self._last_run is not None:
                is_kept = not (is_main and self._is_partial(items, known, agent, begins_alike=begins_alike))
            else:
                # A run without a session: its list begins anew, or the provider keeps the conversation.
                is_kept = caller is not None or begins_alike
            if is_main and is_kept:
                await self._end_sub_agents(items, conversation)
                await self._end_left_behind()
                if not is_longer:
                    for run in self._runs:
                        run.start = _length_of_read(known[: run.start], items)
                return await conversation.prepare(items, options), conversation
        if not is_kept:
            await self._end_sub_agents(items, conversation)
            if _leaves_calls_out(items):
                return items, None
            return await asyncio.to_thread(_fit_list, items, options, conversation.session.policy), None
        own = await self._sub_agent(items, conversation, asking, caller, resumed)
        return await own.prepare(items, options), own

    def _resumed_run(self, items: list[Item]) -> "_SubAgentRun | None":
        """Return the run of an agent as a tool that a list continues, which does not continue the conversation."""
        runs = (run for run in self._sub_agents[::-1] if len(items) > len(run.items))
        return next((run for run in runs if items[: len(run.items)] == run.items), None)

    def _is_partial(self, items: list[Item], known: list[Item], agent: Agent[Any], *, begins_alike: bool) -> bool:
        """Return whether a list leaves items of the conversation out that belong to it nevertheless.

        A limit or a callback leaves the beginning out, a filter of a handoff anything, another run what was added since
        this run began, a run that goes on with an approval what was said meanwhile. The SDK adds what is new to the
        session, so such a list is only made to fit.
        """
        run = self._current_run()
        is_handed_over = run is not None and run.is_handed_over_to(agent)
        if not begins_alike:
            return True
        if run is None or items[: len(known)] == known:
            return False
        # Counted, because people say the same more than once.
        left_out = Counter(map(_said_key, known)) - Counter(map(_said_key, items))
        if is_handed_over:
            return bool(left_out)
        newest = next((item for item in reversed(known[: run.start]) if "role" in item), None)
        if newest is not None and _said_key(newest) in left_out:
            return True
        # A run that is resumed after a handoff has what the filter has left of the list, and begins with the new agent.
        listed = {item.get("call_id") for item in items}
        if any(one.get("type") == "function_call_output" and one.get("call_id") not in listed for one in known):
            return True
        return any(_said_key(one) in left_out for one in known[run.start :])

    async def _sub_agent(
        self,
        items: list[Item],
        main: "FrameworkConversation[Item]",
        asking: "_Asking",
        caller: "_Asking | None",
        resumed: "_SubAgentRun | None",
    ) -> "FrameworkConversation[Item]":
        """Return the conversation of an agent that another one calls as a tool: the SDK passes the filter on to it.

        `resumed` is its run if that has waited for a person.
        """
        before = caller.conversation if caller is not None else None
        run = resumed or self._continued_run(items, before)
        if run is not None:
            run.items = list(items)  # before anything is awaited, so that no other run continues the same list
            run.asked_in(asking.task, caller, self._current_run())
            await self._end_sub_agents(items, run.conversation)
            return run.conversation
        if caller is not None and caller.task is asking.task:
            # An earlier run in the same task, such as in the function of a tool that runs several agents.
            before = next((run.parent for run in self._sub_agents if run.conversation is before), None)
        parent = before if before is not None and before.session is main.session else main
        task = ITEMS.text(items[0])
        context = delegation_of_call(parent, asking.agent.name, task)
        own = FrameworkConversation(main.session, ITEMS, await context.__aenter__())
        run = _SubAgentRun(task, context, own, parent, list(items))
        run.asked_in(asking.task, caller, self._current_run())
        self._sub_agents.append(run)
        return own

    def _continued_run(self, items: list[Item], before: "FrameworkConversation[Item] | None") -> "_SubAgentRun | None":
        """Return the run of an agent as a tool that a list continues; None if the list is the input of a new run.

        `before` is the conversation of its caller, or its own; None if that is not known.
        """
        if all(item.get("role") in INPUT_ROLES for item in items):
            return None
        runs = [run for run in self._sub_agents[::-1] if before is None or before in {run.parent, run.conversation}]
        exact = (run for run in runs if items[: len(run.items)] == run.items)
        edited = (run for run in runs if items[0] == run.items[0])
        return next(exact, None) or next(edited, None)

    async def _end_sub_agents(
        self, items: Sequence[Item], parent: "FrameworkConversation[Item]", start: int = 0
    ) -> None:
        """End the runs of agents that the agent of a conversation has called, if their answers are in items of it.

        `start` is how many items of the conversation are before these.
        """
        runs = [run for run in self._sub_agents[::-1] if run.parent is parent]
        if not runs:
            return
        calls = _answered_calls(items, start)
        ended_tasks = set[str]()
        for run in runs:
            answered = [one for one in calls if one.place >= run.start and _has_task(one.call, run.task)]
            if answered:
                calls.remove(answered[-1])
                await self._end_run(run, ITEMS.text(answered[-1].output))
                ended_tasks.add(run.task)
            elif run.task in ended_tasks:
                await self._end_run(run, None)  # it was cancelled: a later run has answered the same task
        if _leaves_calls_out(items):
            # The provider has the calls. The agent that made them asks its model again, so all of them have ended.
            answers = [ITEMS.text(item) for item in items if item.get("type") == "function_call_output"]
            for run in runs:
                if run in self._sub_agents:
                    await self._end_run(run, answers[0] if len(answers) == 1 else None)

    async def _end_left_behind(self) -> None:
        """End the runs of agents as tools inside runs that have ended without adding their answers."""
        now = self._current_run()
        for run in list(self._sub_agents):
            if run in self._sub_agents and run.outer is not None and run.outer.has_ended_before(now):
                await self._end_run(run, None)

    async def _end_cancelled(self, task: "asyncio.Task[Any]") -> None:
        """End the runs of agents as tools that belong to a task that was cancelled."""
        for run in [one for one in self._sub_agents if task in one.tasks]:
            if run in self._sub_agents:
                await self._end_run(run, None, asyncio.CancelledError())

    async def _end_run(self, run: "_SubAgentRun", answer: str | None, error: BaseException | None = None) -> None:
        """End a run, after those of the agents that its agent has called."""
        self._sub_agents.remove(run)
        for inner in [one for one in self._sub_agents if one.parent is run.conversation]:
            await self._end_run(inner, None, error)
        await asyncio.shield(run.end(answer, error))

    async def shrink(self, error: Exception) -> list[Item]:
        """Return a smaller version of the last request; raise the error if it is no overflow, or nothing helps."""
        asking = _ASKING.get()
        if asking is None or asking.conversation is None:
            raise error
        return await asking.conversation.retry(error)


class _Run:
    """A run that has read the items of the session."""

    def __init__(self, kept: HoldfastSession, start: int) -> None:
        self.kept = kept
        self.start = start
        """How many items the conversation had when the run began."""
        self.added: list[Mapping[str, Any]] = []
        """What the items said that were added since; the filter has recorded the others."""
        self.task: asyncio.Task[Any] | None = None
        """The task that runs it."""
        self._agent: Agent[Any] | None = None
        """The agent that has asked its model first."""
        self._is_handed_over = False

    def is_handed_over_to(self, agent: Agent[Any]) -> bool:
        """Return whether another agent than the first has asked its model, now that this one does."""
        self._agent = self._agent or agent
        self._is_handed_over = self._is_handed_over or self._agent is not agent
        return self._is_handed_over

    def has_ended_before(self, later: "_Run | None") -> bool:
        """Return whether it has ended now that another run asks its model; a run at the same time has not."""
        if later is None or later is self or self.task is None:
            return False
        return self.task.done() or self.task is later.task


_RUN: ContextVar[_Run | None] = ContextVar("holdfast_run", default=None)
"""The run that has read the items last in this context."""


class _Asking(NamedTuple):
    """A run that asks its model."""

    task: "asyncio.Task[Any] | None"
    agent: Agent[Any]
    is_nested: bool
    """Whether it is the run of an agent that another one calls as a tool."""
    conversation: "FrameworkConversation[Item] | None" = None
    """The conversation that has prepared its request, if one has."""


_ASKING: ContextVar[_Asking | None] = ContextVar("holdfast_asking", default=None)
"""The run that has asked its model last in this context: the SDK runs tools in tasks of their own, which inherit it."""


class _SubAgentRun:
    """The run of an agent that another one calls as a tool."""

    def __init__(
        self,
        task: str,
        context: DelegateContext,
        conversation: "FrameworkConversation[Item]",
        parent: "FrameworkConversation[Item]",
        items: list[Item],
    ) -> None:
        self.task = task
        self.conversation = conversation
        self.parent = parent
        """The conversation of the agent that calls it."""
        self.start = len(parent.known)
        """How many items that conversation had when the run began: its call and its answer come after them."""
        self.items = items
        """The list with which it has asked its model last."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Its tasks, and those inside which it runs: if one is cancelled, so is the run."""
        self.outer: _Run | None = None
        """The run with the session inside which it runs."""
        self._context = context

    def asked_in(self, task: "asyncio.Task[Any] | None", caller: "_Asking | None", outer: "_Run | None") -> None:
        """Note where it asks its model."""
        tasks = task, caller.task if caller is not None else None, outer.task if outer is not None else None
        self.tasks.update(one for one in tasks if one is not None)
        self.outer = outer

    async def end(self, answer: str | None, error: BaseException | None = None) -> None:
        """End the delegation with its answer, if it is known, or with an error."""
        if answer is not None:
            await self.conversation.answer(answer)
        await self._context.__aexit__(type(error) if error is not None else None, error, None)


class _RecoveringModel(Model):
    """Sends a smaller request after the provider has rejected one as too long."""

    def __init__(self, kept: HoldfastSession, model: Model) -> None:
        self._kept = kept
        self._inner = model
        self.model = getattr(model, "model", None)

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 - as the SDK says
        *args: Any,
        **kwargs: Any,
    ) -> ModelResponse:
        while True:
            try:
                return await self._inner.get_response(system_instructions, input, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - raised again unless it is an overflow
                input = await self._smaller(error)  # noqa: A001 - as the SDK says

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002 - as the SDK says
        *args: Any,
        **kwargs: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        while True:
            has_begun = False
            try:
                async for event in self._inner.stream_response(system_instructions, input, *args, **kwargs):
                    has_begun = True
                    yield event
            except Exception as error:
                if has_begun:
                    raise
                input = await self._smaller(error)  # noqa: A001 - as the SDK says
            else:
                return

    async def _smaller(self, error: Exception) -> list[TResponseInputItem]:
        return cast("list[TResponseInputItem]", await BACKGROUND_LOOP.await_result(self._kept.shrink(error)))

    def get_retry_advice(self, request: Any) -> Any:
        return self._inner.get_retry_advice(request)

    async def close(self) -> None:
        await self._inner.close()


class _RecoveringProvider(ModelProvider):
    """Looks models up by name, and makes them recover from overflows."""

    def __init__(self, kept: HoldfastSession, inner: ModelProvider) -> None:
        self._kept = kept
        self._inner = inner

    def get_model(self, model_name: str | None) -> Model:
        return self._kept.recovering(self._inner.get_model(model_name))

    async def aclose(self) -> None:
        await self._inner.aclose()


def _fit_list(items: list[Item], options: FrameworkRequest, policy: Policy) -> list[Item]:
    """Return items that fit the budget, without the session."""
    tools = [*options.tools, *([RECALL_JSON] if options.can_recall else [])]
    fitting, share = items, 1.0
    while True:
        try:
            request = govern(
                fitting,
                budget=options.budget,
                format=ITEMS.format,
                model=options.model,
                system=options.system,
                tools=tools or None,
                policy=policy,
            )
        except CannotFitError as error:
            share *= 0.9 * min(1.0, error.limit / error.needed)
            shorter = _with_short_histories(items, share, can_recall=options.can_recall)
            if shorter == fitting:
                raise
            fitting = shorter
        else:
            break
    sent = iter(request.messages)
    if all(item in sent for item in fitting) and not validate(fitting, ITEMS.format):
        return fitting  # nested handoff history is one message of the assistant, to which nothing needs to be added
    return [dict(item) for item in request.messages]


def _with_short_histories(items: Sequence[Item], share: float, *, can_recall: bool) -> list[Item]:
    """Return items with a share of each nested handoff history, from its beginning and its end.

    The SDK nests a whole conversation in one text, so what fits a conversation into a budget cannot shorten it.
    """
    handle = "with a query" if can_recall else ""
    shortened = list(items)
    for at, item in enumerate(items):
        text = item.get("content")
        if item.get("role") == "assistant" and isinstance(text, str):
            max_chars = max(MIN_HISTORY_CHARS, int(len(text) * share))
            shortened[at] = {**item, "content": clip_text(text, max_chars, handle)}
    return shortened


def _length_of_read(read: Sequence[Item], items: Sequence[Item]) -> int:
    """Return how many items of a list are among those that a run has read before; the others were said since.

    The SDK leaves a call without an output out of the list, such as one that waits for a person when the user goes on.
    """
    if items[: len(read)] == read:
        return len(read)
    places = dict[bytes, list[int]]()
    for place, item in enumerate(items):
        places.setdefault(_said_key(item), []).append(place)
    said = list(map(_said_key, read))
    last = next((at for at in range(len(said) - 1, -1, -1) if said[at] in places), None)
    if last is None:
        return 0
    found, count = places[said[last]], said[: last + 1].count(said[last])
    return found[min(count, len(found)) - 1] + 1


def _answered_elsewhere(new: Sequence[Item], before: Sequence[Item]) -> set[str]:
    """Return the ids of the calls that have outputs in new items and are neither in them nor in those before them."""
    outputs = {str(item["call_id"]) for item in new if _is_answer(item)}
    if not outputs:
        return outputs
    return outputs - {str(item.get("call_id")) for item in (*before, *new) if item.get("type") == "function_call"}


async def _recorded_calls(session: Session, call_ids: set[str]) -> dict[str, Item]:
    """Return calls of the main agent from the log, by their ids, the newest of each.

    A call that waits for a person is not in the list with which the user goes on, so that it is taken back; its output
    may come much later, and in another process.
    """
    own = (one for one in await session.events() if isinstance(one, MessageAppended) and one.scope == MAIN)
    calls = (dict(one.native) for one in own if one.native.get("type") == "function_call")
    return {str(call["call_id"]): call for call in calls if str(call.get("call_id")) in call_ids}


def _with_calls(new: Sequence[Item], calls: Mapping[str, Item]) -> list[Item]:
    """Return new items with these calls before their outputs."""
    left, completed = dict(calls), list[Item]()
    for item in new:
        call = left.pop(str(item.get("call_id")), None)
        completed += [item] if call is None else [copied_json(call), item]
    return completed


class _AnsweredCall(NamedTuple):
    """A call of a function, and its output."""

    place: int
    """Where the call is in the conversation."""
    call: Item
    output: Item


def _answered_calls(items: Sequence[Item], start: int) -> list[_AnsweredCall]:
    """Return the calls that have outputs, in the order of these: an output belongs to the nearest call before it."""
    calls, answered = dict[object, tuple[int, Item]](), list[_AnsweredCall]()
    for place, item in enumerate(items, start):
        if item.get("type") == "function_call":
            calls[item.get("call_id")] = place, item
        elif item.get("type") == "function_call_output" and item.get("call_id") in calls:
            answered.append(_AnsweredCall(*calls.pop(item.get("call_id")), item))
    return answered


def _has_task(call: Item, task: str) -> bool:
    """Return whether a call gives an agent this task: its arguments hold the task, or the task all its arguments."""
    arguments = str(call.get("arguments"))
    if json.dumps(task)[1:-1] in arguments:
        return True
    try:
        values: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    given = cast("dict[str, object]", values) if isinstance(values, dict) else {}
    return bool(given) and all(str(value) in task for value in given.values())


def _is_recall(tool: FunctionTool) -> bool:
    """Return whether a tool is ours; an agent may have one of its own with the same name."""
    return getattr(tool.on_invoke_tool, "__func__", None) is getattr(HoldfastSession, "_recall")  # noqa: B009 - private


def _definition(tool: FunctionTool) -> Mapping[str, object]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.params_json_schema}


def _handoff_definition(handoff: Agent[Any] | Handoff[Any, Any]) -> Mapping[str, object]:
    if isinstance(handoff, Handoff):
        name, description, parameters = handoff.tool_name, handoff.tool_description, handoff.input_json_schema
    else:
        name, description = Handoff.default_tool_name(handoff), Handoff.default_tool_description(handoff)
        parameters = {}
    return {"name": name, "description": description, "parameters": parameters}


def _output_definitions(agent: Agent[Any]) -> Sequence[Mapping[str, object]]:
    """Return the definition of an agent's structured output, which a request has as the form of its response."""
    output: Any = agent.output_type
    if output is None or output is str:
        return ()
    schema = output if isinstance(output, AgentOutputSchemaBase) else AgentOutputSchema(output)
    return () if schema.is_plain_text() else [{"name": "final_output", "parameters": schema.json_schema()}]


def _leaves_calls_out(items: Sequence[Item]) -> bool:
    """Return whether items hold the output of a call without the call: the provider keeps the conversation."""
    calls = {item.get("call_id") for item in items if item.get("type") == "function_call"}
    return any(_is_answer(item) and item["call_id"] not in calls for item in items)


def _is_answer(item: Item) -> bool:
    """Return whether an item is the output of a call; one without an id tells of an event."""
    return item.get("type") == "function_call_output" and item.get("call_id") is not None


def _is_of_model(item: Item) -> bool:
    return item.get("role") == "assistant" or item.get("type") == "function_call"


def _said(item: Item) -> Mapping[str, Any]:
    """Return what an item says, without the ids that the SDK adds or removes."""
    return canonical_message(ITEMS.format, item)


def _said_key(item: Item) -> bytes:
    """Return the same bytes for items that say the same."""
    return encode_canonical_json(_said(item))
