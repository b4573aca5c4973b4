"""Holdfast for the Claude Agent SDK: hooks that record, and the recall tool. Needs the extra `claude-agent-sdk`.

`ClaudeSDKClient(kept.options(ClaudeAgentOptions(…)))`, with `kept = HoldfastHooks(store="sqlite:///chats.db")`. The SDK
runs Claude Code, which calls the model by itself: hooks see prompts, tool calls and answers, and can record them; they
cannot change a request. The id of Claude's session names ours. A gateway changes requests: pass its address.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from holdfast.adapters.session_pool import MAX_OPEN_SESSIONS
from holdfast.core.conversation.json_values import dump_json
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.history.visibility import SEES_NOTHING
from holdfast.core.planning.policy import Policy, policy_named
from holdfast.core.recall.query import RECALL_DESCRIPTION, RECALL_PARAMETERS
from holdfast.errors import HoldfastError, MalformedInputError, SettingsError, imports_of_extra
from holdfast.session.background_loop import BACKGROUND_LOOP
from holdfast.session.blocking import BlockingSession
from holdfast.session.delegation import Delegate, DelegateContext
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.open import open_store

with imports_of_extra("claude-agent-sdk", "the adapter for the Claude Agent SDK"):
    from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, create_sdk_mcp_server, tool
    from claude_agent_sdk.types import HookContext, HookEvent, HookInput, McpServerConfig, SyncHookJSONOutput

SDK_FORMAT = "anthropic-messages"
RECORDED_HOOKS: tuple[HookEvent, ...] = (
    "UserPromptSubmit",
    "PostToolUse",
    "PostToolUseFailure",
    "Stop",
    "SubagentStart",
    "SubagentStop",
)
"""The hooks at which something is said that belongs in the log."""
CALL_FIELDS = ("tool_use_id", "tool_name", "tool_input")
HOOK_FIELDS: Mapping[str, tuple[str, ...]] = {
    "UserPromptSubmit": ("prompt",),
    "PreToolUse": CALL_FIELDS,
    "PostToolUse": (*CALL_FIELDS, "tool_response"),
    "PostToolUseFailure": (*CALL_FIELDS, "error"),
    "SubagentStart": ("agent_id",),
    "SubagentStop": ("agent_id",),
}
"""What each hook tells that is needed; another version of Claude Code may leave it out."""
MCP_SERVER_NAME = "holdfast"
RECALL_NAME = f"mcp__{MCP_SERVER_NAME}__{RECALL_TOOL}"
"""What Claude Code calls the recall tool."""
UNNAMED_SUB_AGENT = "sub-agent"
UNKNOWN_CONVERSATION = "[Recall: several conversations may have asked this. Ask again in other words.]"


class HoldfastHooks:
    """Records the conversations of an agent in sessions, and gives its model the recall tool."""

    def __init__(
        self, *, store: str | Store = "memory://", policy: str | Policy = "default", gateway: str | None = None
    ) -> None:
        """`store` and `policy` are those of `Session.open`.

        `gateway` is the address of a gateway that governs the requests, such as `http://127.0.0.1:8787`: Claude Code
        then calls the model through it.
        """
        self._store = open_store(store)
        self._owns_store = isinstance(store, str)
        self._policy = policy_named(policy)
        self._gateway = gateway
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """The open sessions, the least recently used first."""
        self._in_use: Counter[str] = Counter()
        """By session, how many hooks and sub-agents need it open."""
        self._sub_agents: dict[str, tuple[DelegateContext, Delegate]] = {}
        """The sub-agents that are running, by Claude's ids."""
        self._opening = asyncio.Lock()
        """Held on the background loop: hooks run at the same time, and a session or a sub-agent begins once."""
        self._recalls: dict[str, tuple[str, Mapping[str, object]]] = {}
        """The calls of the recall tool that are about to run, by their ids: the session and the arguments.

        The server of the tool gets the arguments only, and all conversations share it.
        """

    # For programs.

    def options(self, options: ClaudeAgentOptions | None = None) -> ClaudeAgentOptions:
        """Return the SDK's options with the hooks, the recall tool, and the gateway if there is one."""
        options = options or ClaudeAgentOptions()
        if not isinstance(options.mcp_servers, dict):
            raise SettingsError("mcp_servers", "must be a dictionary, so that the recall tool can be added to it")
        own = {name: [HookMatcher(hooks=[self._on_hook])] for name in RECORDED_HOOKS}
        own["PreToolUse"] = [HookMatcher(matcher=RECALL_NAME, hooks=[self._on_hook])]
        hooks = {**own, **{name: [*matchers, *own.get(name, [])] for name, matchers in (options.hooks or {}).items()}}
        servers: dict[str, McpServerConfig] = {**options.mcp_servers, MCP_SERVER_NAME: self._mcp_server()}
        environment = {**options.env, **({"ANTHROPIC_BASE_URL": self._gateway} if self._gateway else {})}
        allowed = [*options.allowed_tools, RECALL_NAME]
        return replace(options, hooks=hooks, mcp_servers=servers, env=environment, allowed_tools=allowed)

    def session(self, session_id: str) -> BlockingSession:
        """Return the session of a conversation, by Claude's session id, for synchronous code."""
        return BlockingSession(BACKGROUND_LOOP.run(self._session(session_id)))

    async def close(self) -> None:
        """Close the sessions, and the store if it was named by a URL. All messages are already durable."""
        await BACKGROUND_LOOP.await_result(self._close())

    # For the SDK.

    async def _on_hook(self, given: HookInput, tool_use_id: str | None, context: HookContext) -> SyncHookJSONOutput:
        """Record what a hook tells. A problem is reported to the user, and the agent goes on."""
        del tool_use_id, context
        try:
            await BACKGROUND_LOOP.await_result(self._record(cast("Mapping[str, Any]", given)))
        except HoldfastError as error:
            return {"systemMessage": f"Holdfast could not record this: {error}"}
        return {}

    def _mcp_server(self) -> McpServerConfig:
        @tool(RECALL_TOOL, RECALL_DESCRIPTION, dict(RECALL_PARAMETERS))
        async def recall(arguments: dict[str, Any]) -> dict[str, Any]:
            text = await BACKGROUND_LOOP.await_result(self._recall(arguments))
            return {"content": [{"type": "text", "text": text}]}

        return create_sdk_mcp_server(MCP_SERVER_NAME, tools=[recall])

    # On the background loop.

    async def _session(self, session_id: str) -> Session:
        async with self._opening:
            known = self._sessions.get(session_id)
            if known is None:
                known = await Session.open(session_id, store=self._store, policy=self._policy)
                self._sessions[session_id] = known
            self._sessions.move_to_end(session_id)
            return known

    @asynccontextmanager
    async def _using(self, session_id: str) -> "AsyncGenerator[Session]":
        """Open a session that stays open until it was used; if too many are open then, close idle ones."""
        self._in_use[session_id] += 1
        try:
            yield await self._session(session_id)
        finally:
            self._release(session_id)
            async with self._opening:
                idle = [one for one in self._sessions if not self._in_use[one]]
                for one in idle[: max(0, len(self._sessions) - MAX_OPEN_SESSIONS)]:
                    await self._sessions.pop(one).close()

    def _release(self, session_id: str) -> None:
        self._in_use[session_id] -= 1
        if not self._in_use[session_id]:
            del self._in_use[session_id]

    async def _close(self) -> None:
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()
        if self._owns_store:
            await self._store.close()

    async def _recall(self, arguments: Mapping[str, object]) -> str:
        asking = {session_id for session_id, asked in self._recalls.values() if asked == arguments}
        # A hook of the user may have changed the arguments; a single conversation is known nevertheless.
        candidates = asking or {*self._sessions}
        if not candidates:
            return "[Recall: nothing was said yet.]"
        if len(candidates) > 1:
            return UNKNOWN_CONVERSATION
        async with self._using(candidates.pop()) as session:
            return await session.recall_tool().call(arguments)

    def _note_recalls(self, given: Mapping[str, Any]) -> None:
        """Keep which conversation calls the recall tool until the call has ended; a refused one ends with its turn."""
        event, session_id, call_id = given["hook_event_name"], given["session_id"], given.get("tool_use_id", "")
        if event == "PreToolUse":
            self._recalls[call_id] = session_id, given["tool_input"]
        elif event in {"UserPromptSubmit", "Stop"}:
            self._recalls = {at: one for at, one in self._recalls.items() if one[0] != session_id}
        else:
            self._recalls.pop(call_id, None)

    async def _record(self, given: Mapping[str, Any]) -> None:
        _check_fields(given)
        self._note_recalls(given)
        async with self._using(given["session_id"]) as session:
            await self._record_in(session, given)

    async def _record_in(self, session: Session, given: Mapping[str, Any]) -> None:
        event = given["hook_event_name"]
        if event == "PreToolUse":
            return
        if event == "SubagentStart":
            await self._sub_agent(session, given)
            return
        if event == "SubagentStop":
            await self._end_sub_agent(session, given)
            return
        messages = _messages_of(given)
        if messages:
            delegate = await self._sub_agent(session, given) if given.get("agent_id") else None
            await (delegate or session).record(messages, format=SDK_FORMAT)

    async def _sub_agent(self, session: Session, given: Mapping[str, Any]) -> Delegate:
        """Return the delegation of a sub-agent; start one if there is none.

        There is none when it starts, when it goes on after it has stopped, and when it started in another process.
        """
        async with self._opening:
            _, delegate = self._sub_agents.get(given["agent_id"], (None, None))
            if delegate is None:
                context = session.delegate(
                    given.get("agent_type") or UNNAMED_SUB_AGENT,
                    sees=SEES_NOTHING,
                    main_sees=self._policy.main_sees_sub_agents,
                    adds_task_message=False,
                )
                delegate = await context.__aenter__()
                self._in_use[session.id] += 1
                self._sub_agents[given["agent_id"]] = context, delegate
            return delegate

    async def _end_sub_agent(self, session: Session, given: Mapping[str, Any]) -> None:
        answer = given.get("last_assistant_message")
        if given["agent_id"] not in self._sub_agents and not (answer and given.get("agent_type")):
            # Claude Code also stops agents of its own, which have no type and were never started.
            return
        delegate = await self._sub_agent(session, given)
        context, _ = self._sub_agents.pop(given["agent_id"])
        try:
            if answer:
                await delegate.answer(answer)
        finally:
            self._release(session.id)
            await context.__aexit__(None, None, None)


def _check_fields(given: Mapping[str, Any]) -> None:
    """Raise a `MalformedInputError` if a hook does not tell what is needed."""
    event = given.get("hook_event_name")
    for name in ("hook_event_name", "session_id", *HOOK_FIELDS.get(f"{event}", ())):
        if name not in given:
            raise MalformedInputError(f"hook {event}", f"has no {name!r}; this version of Claude Code is not known")


def _messages_of(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a hook tells, as messages."""
    event = given["hook_event_name"]
    if event == "UserPromptSubmit":
        return [{"role": "user", "content": given["prompt"]}] if given["prompt"] else []
    if event == "Stop":
        answer = given.get("last_assistant_message")
        return [{"role": "assistant", "content": answer}] if answer else []
    call = {"type": "tool_use", "id": given["tool_use_id"], "name": given["tool_name"], "input": given["tool_input"]}
    is_error = event == "PostToolUseFailure"
    output: object = given["error"] if is_error else given["tool_response"]
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": given["tool_use_id"],
        "content": output if isinstance(output, str) else dump_json(output),
        **({"is_error": True} if is_error else {}),
    }
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
