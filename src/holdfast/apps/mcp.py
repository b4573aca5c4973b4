"""A server of the Model Context Protocol: other programs' agents read stored conversations. Needs the extra `mcp`.

Its tools only read: `recall`, `show`, `sessions` and `memory_search`. A conversation is named by its id, or by the
beginning of it, in each call, because the protocol has no sessions; a server on standard input and output may have a
default, which is the session that Claude Code names in `CLAUDE_CODE_SESSION_ID`. The list of tools never varies.
"""

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from holdfast import __version__
from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.json_values import parse_json
from holdfast.core.conversation.messages import Message, Opaque, Text, Thinking, ToolCall
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.conversation.transcript import MessageFormat
from holdfast.core.history import events as log
from holdfast.core.recall.passages import message_body
from holdfast.core.recall.query import ARGUMENT_ALIASES, RECALL_PARAMETERS
from holdfast.core.schema import is_integer, short_repr
from holdfast.errors import HoldfastError, SettingsError, UnknownSessionError, imports_of_extra
from holdfast.session.maintenance.verify import rebuilt_messages
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.memory.search_tool import MEMORY_SEARCH_DESCRIPTION, MEMORY_SEARCH_PARAMETERS, MemorySearchTool
from holdfast.session.request import encode_entry
from holdfast.session.session import Session
from holdfast.stores.base import JsonRecord, SessionInfo, Store, resolve_session_id
from holdfast.stores.read_only import ReadOnlyStore
from holdfast.text import pluralize

with imports_of_extra("mcp", "holdfast mcp"):
    import anyio
    from mcp import types
    from mcp.server import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.shared.message import SessionMessage
    from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.server import ServerRequestContext
    from starlette.types import Receive, Scope, Send

MAX_ANSWER_SECONDS = 60
"""How long requests in progress may take when the client has closed its output."""
CANCELLED_METHOD = "notifications/cancelled"
SESSION_VARIABLE = "CLAUDE_CODE_SESSION_ID"
INSTRUCTIONS = (
    "Conversations that Holdfast keeps: everything that was said, also what was compacted or summarized away. When a "
    "detail is missing from your context, call `recall` before you ask the user or guess."
)
CONVERSATION_PARAMETER: Mapping[str, object] = {
    "type": "string",
    "description": "the id of the conversation, or the beginning of it, as `sessions` lists it or a marker names it; "
    "leave it out for the current one, if the server knows it",
}
RECALL_TOOL_DESCRIPTION = (
    "Recall the conversation history: search or read earlier messages, tool outputs, files and decisions that were "
    "compacted, summarized or truncated and are no longer in your context. Give `query` to search the past, or `ref` "
    "for what a marker or summary names (#12). Answers quote the original to the letter, for reference only."
)
SHOW_DESCRIPTION = (
    "Show a stored conversation as the model has it now: the current context after compaction, with the summary and "
    "the newest messages. With `at`, the N-th request exactly as it was sent. Long conversations come in pages."
)
SESSIONS_DESCRIPTION = (
    "List the stored conversations (sessions, chats, threads), the most recently changed first, with their ids and "
    "names. Use an id as `conversation` in the other tools."
)
MAX_PAGE_CHARS = 20_000
MAX_ANSWERED_SESSIONS, MAX_NUMBER_DIGITS = 50, 12
MORE_SESSIONS_TEXT = "[There are older ones. List those whose ids begin alike with `prefix`.]"
NO_MEMORY_TEXT = (
    "There is no memory: it is off. The user can choose a folder: holdfast config memory ~/.holdfast/memory"
)
RECALL_ALSO = frozenset({*ARGUMENT_ALIASES, *ARGUMENT_ALIASES.values(), "lines", "chars"})
"""Arguments of recall that are accepted and not described."""
ToolAnswer = Callable[[Mapping[str, object]], Awaitable[str]]


def _with_conversation(properties: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"conversation": CONVERSATION_PARAMETER, **properties},
        "additionalProperties": False,
    }


TOOL_SCHEMAS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    RECALL_TOOL: (
        RECALL_TOOL_DESCRIPTION,
        _with_conversation(cast("Mapping[str, object]", RECALL_PARAMETERS["properties"])),
    ),
    "show": (
        SHOW_DESCRIPTION,
        _with_conversation(
            {
                "at": {"type": "integer", "minimum": 1, "description": "the number of a request, counted from 1"},
                "skip": {"type": "integer", "minimum": 0, "description": "how many characters were read already"},
            }
        ),
    ),
    "sessions": (
        SESSIONS_DESCRIPTION,
        {
            "type": "object",
            "properties": {
                "prefix": {"type": "string", "description": "list only ids that begin with this"},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ANSWERED_SESSIONS},
            },
            "additionalProperties": False,
        },
    ),
    "memory_search": (MEMORY_SEARCH_DESCRIPTION, MEMORY_SEARCH_PARAMETERS),
}
"""By the name of each tool, its description and its parameters."""


class ConversationReader:
    """Answers the tools from a store, which it only reads."""

    def __init__(
        self, store: Store, *, memory: DailyMemory | None = None, default_session: str = "", owner: str = ""
    ) -> None:
        """`default_session` is the conversation of calls that name none, by its id or the beginning of it.

        With `owner` only conversations are there whose ids begin with it, and they are named without it.
        """
        self._store = ReadOnlyStore(store)
        self._owner = owner
        self._memory = memory
        self._default_session = default_session
        self._answers: Mapping[str, ToolAnswer] = {
            RECALL_TOOL: self._recall,
            "show": self._show,
            "sessions": self._list_sessions,
            "memory_search": self._search_memory,
        }

    async def call(self, name: str, arguments: Mapping[str, object]) -> tuple[str, bool]:
        """Return the answer of a tool as text, and whether it is an error, which says what to do."""
        answer = self._answers.get(name)
        if answer is None:
            return f"There is no tool {name!r:.60}; there are: {', '.join(self._answers)}", True
        known = cast("Mapping[str, object]", TOOL_SCHEMAS[name][1]["properties"])
        also = RECALL_ALSO if name == RECALL_TOOL else frozenset[str]()
        if unknown := sorted(argument for argument in arguments if argument not in {*known, *also}):
            return f"{unknown[0]!r:.60} is not an argument of {name}; there are: {', '.join(known)}", True
        try:
            return await answer(arguments), False
        except HoldfastError as error:
            return str(error), True

    async def _recall(self, arguments: Mapping[str, object]) -> str:
        asked = {name: value for name, value in arguments.items() if name != "conversation"}
        async with self._open(arguments) as session:
            return f"[conversation {self._name_of(session.id)}]\n{await session.recall_tool().call(asked)}"

    async def _show(self, arguments: Mapping[str, object]) -> str:
        at, start = _number_of(arguments, "at"), max(0, _number_of(arguments, "skip") or 0)
        async with self._open(arguments) as session:
            text = await _context_text(session) if at is None else await _request_text(session, at)
            page = text[start : start + MAX_PAGE_CHARS]
            rest = len(text) - start - len(page)
            more = f"\n[{rest:,} more characters: ask again with skip={start + len(page)}]" if rest > 0 else ""
            return f"[conversation {self._name_of(session.id)}, for reference only]\n{page}{more}"

    async def _list_sessions(self, arguments: Mapping[str, object]) -> str:
        prefix, limit = arguments.get("prefix") or "", _number_of(arguments, "limit")
        most = MAX_ANSWERED_SESSIONS if limit is None else max(1, min(MAX_ANSWERED_SESSIONS, limit))
        infos = await self._store.sessions(prefix=f"{self._owner}{prefix}", limit=most + 1)
        lines = [_session_line(self._name_of(info.id), info) for info in infos[:most]]
        more = [MORE_SESSIONS_TEXT] if len(infos) > most else []
        none = (
            f"No conversation has an id that begins with {prefix!r:.80}." if prefix else "There are no conversations."
        )
        return "\n".join([*lines, *more]) or none

    async def _search_memory(self, arguments: Mapping[str, object]) -> str:
        return NO_MEMORY_TEXT if self._memory is None else await MemorySearchTool(self._memory).call(arguments)

    @asynccontextmanager
    async def _open(self, arguments: Mapping[str, object]) -> "AsyncGenerator[Session]":
        """Open the conversation that a call names, or the default one."""
        named = arguments.get("conversation") or self._default_session
        if not isinstance(named, str) or not named:
            infos = await self._store.sessions(prefix=self._owner, limit=5)
            newest = ", ".join(self._name_of(info.id) for info in infos) or "none"
            raise SettingsError("conversation", f"name one, by its id or the beginning of it; the newest are: {newest}")
        try:
            session_id = await resolve_session_id(self._store, f"{self._owner}{named}")
        except UnknownSessionError as error:
            if error.candidates:
                raise UnknownSessionError(named, [self._name_of(one) for one in error.candidates]) from error
            raise SettingsError("conversation", f"{named!r:.80} is not known; the tool `sessions` lists all") from error
        async with Session.open(session_id, store=self._store) as session:
            yield session

    def _name_of(self, session_id: str) -> str:
        """Return an id as it is shown, on one line."""
        return neutralize(session_id.removeprefix(self._owner), "item")


def _number_of(arguments: Mapping[str, object], name: str) -> int | None:
    """Return a number of a call, which some models write as text; None if the call has none."""
    value = arguments.get(name)
    if value is None or is_integer(value):
        return value
    digits = f"{value}".strip().removesuffix(".0")
    if not digits.isdecimal() or len(digits) > MAX_NUMBER_DIGITS:
        raise SettingsError(name, f"must be a whole number, not {short_repr(value)}")
    return int(digits)


async def _context_text(session: Session) -> str:
    message_format = session.history.message_format
    entries = await session.visible_messages()

    def text() -> str:
        return _messages_text([encode_entry(entry, message_format) for entry in entries], message_format)

    return await asyncio.to_thread(text)  # the conversation may be long, and a gateway has others to answer


async def _request_text(session: Session, number: int) -> str:
    events = await session.events()
    count = sum(isinstance(event, log.RequestPrepared) for event in events)
    if not 1 <= number <= count:
        return f"There is no request {number}; there are {count:,}."
    message_format = session.history.message_format

    def text() -> str:
        return _messages_text(rebuilt_messages(events, number - 1) or [], message_format)

    return await asyncio.to_thread(text)


def _messages_text(natives: Sequence[JsonRecord], message_format: MessageFormat) -> str:
    """Return messages as text, in which no line of theirs passes for one of ours."""
    decoded = [message_format.decode(native, at) for at, native in enumerate(natives)]
    blocks = [(message.speaker or message.role, _said_in(message), message.calls) for message in decoded]
    return "\n\n".join(
        "\n".join(
            [
                f"--- {speaker}",
                *([neutralize(said)] if said else []),
                *(neutralize(f"calls {call.name} {call.arguments}") for call in calls),
            ]
        )
        for speaker, said, calls in blocks
    )


def _said_in(message: Message) -> str:
    """Return what a message says and shows, as recall quotes it, without its reasoning and its calls."""
    shown = (part for part in message.parts if not isinstance(part, Thinking | ToolCall))
    said = tuple(part for part in shown if not isinstance(part, Text | Opaque) or part.text)
    return message_body(message.with_parts(said)).text


def _session_line(session_name: str, info: SessionInfo) -> str:
    name = f" · {neutralize(info.name, 'item')}" if info.name else ""
    return f"{session_name} · {pluralize(info.length, 'event')}{name}"


def mcp_server(reader: ConversationReader) -> Server[dict[str, object]]:
    """Return the server, for any transport."""

    async def list_tools(
        context: "ServerRequestContext[dict[str, object]]", params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        del context, params
        hints = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=about, input_schema=dict(schema), annotations=hints)
                for name, (about, schema) in TOOL_SCHEMAS.items()
            ]
        )

    async def call_tool(
        context: "ServerRequestContext[dict[str, object]]", params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        del context
        text, is_error = await reader.call(params.name, params.arguments or {})
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)

    return Server(
        "holdfast", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


async def serve_stdio(store: Store, *, memory: DailyMemory | None = None, session: str = "") -> None:
    """Serve one client on standard input and output, until it closes them.

    Raises `OSError` if an answer cannot be written, such as `BrokenPipeError` if nobody reads the output any more.
    """
    named = session or os.environ.get(SESSION_VARIABLE, "")
    server = mcp_server(ConversationReader(store, memory=memory, default_session=named))
    try:
        await _serve_stdio(server)
    except BaseExceptionGroup as problems:
        if (failure := _os_error_in(problems)) is None:
            raise
        raise failure from None  # what else is in the group are its consequences


async def _serve_stdio(server: Server[dict[str, object]]) -> None:
    async with stdio_server() as (lines, to_client), to_client, asyncio.TaskGroup() as tasks:
        to_server, requests = anyio.create_memory_object_stream[SessionMessage | Exception]()
        answers, from_server = anyio.create_memory_object_stream[SessionMessage]()
        exchange = _StdioExchange()
        tasks.create_task(exchange.pass_requests(lines, to_server, answers.clone()))
        tasks.create_task(exchange.pass_answers(from_server, to_client.send))
        await server.run(requests, answers, server.create_initialization_options())


def _os_error_in(problem: BaseException) -> OSError | None:
    """Return an error of standard input or output, which the tasks of the transport raise in groups."""
    if isinstance(problem, BaseExceptionGroup):
        parts = cast("BaseExceptionGroup[BaseException]", problem).exceptions
        return next(filter(None, map(_os_error_in, parts)), None)
    return problem if isinstance(problem, OSError) else None


class _StdioExchange:
    """What passes between a client and the library's server.

    The library drops the requests in progress when the input ends, as it does at once if a shell pipes requests into
    the program; here the input ends for it when they are answered. It also ignores a line that is no request, where a
    client waits for an error.
    """

    def __init__(self) -> None:
        self._unanswered = set[object]()
        self._has_answered = asyncio.Event()

    async def pass_requests(
        self,
        lines: AsyncIterable[SessionMessage | Exception],
        to_server: "MemoryObjectSendStream[SessionMessage | Exception]",
        answers: "MemoryObjectSendStream[SessionMessage]",
    ) -> None:
        """Pass on what the client writes, until it ends and is answered."""
        async with to_server, answers:
            async for item in lines:
                if isinstance(item, Exception):
                    item = _repaired_request(item)  # noqa: PLW2901 - the same line, as it can be read
                if isinstance(item, Exception):
                    if (refusal := _refusal_of_line(item)) is not None:
                        await answers.send(SessionMessage(refusal))
                    continue
                if isinstance(item.message, types.JSONRPCRequest):
                    self._unanswered.add(item.message.id)
                elif isinstance(item.message, types.JSONRPCNotification) and item.message.method == CANCELLED_METHOD:
                    self._note_answered((item.message.params or {}).get("requestId"))
                await to_server.send(item)
            with anyio.move_on_after(MAX_ANSWER_SECONDS):
                while self._unanswered:
                    self._has_answered.clear()
                    await self._has_answered.wait()

    async def pass_answers(
        self,
        from_server: "MemoryObjectReceiveStream[SessionMessage]",
        send_to_client: Callable[[SessionMessage], Awaitable[None]],
    ) -> None:
        """Pass on what the server writes, until it ends."""
        async with from_server:
            async for item in from_server:
                await send_to_client(item)
                if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
                    self._note_answered(item.message.id)

    def _note_answered(self, request_id: object) -> None:
        self._unanswered.discard(request_id)
        self._has_answered.set()


def _repaired_request(problem: Exception) -> SessionMessage | Exception:
    """Return the request of a line with half a character, which JSON can hold and the library refuses to read.

    A model may write one into what it looks for. An error without the id of the request would leave its client waiting.
    """
    found = problem.errors()[0] if isinstance(problem, ValidationError) else None
    if found is None or found["type"] != "json_invalid":
        return problem
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(parse_json(found["input"]), by_name=False))
    except ValueError:
        return problem


def _refusal_of_line(problem: Exception) -> types.JSONRPCError | None:
    """Return the answer to a line that cannot be read; None for an empty one."""
    found = problem.errors()[0] if isinstance(problem, ValidationError) else None
    if found is None or found["input"] in ("", "\n", "\r\n"):
        return None
    code, what = (types.PARSE_ERROR, "JSON") if found["type"] == "json_invalid" else (types.INVALID_REQUEST, "request")
    error = types.ErrorData(code=code, message=f"this line is no {what}; send one JSON-RPC message a line")
    return types.JSONRPCError(jsonrpc="2.0", id=None, error=error)


class StreamableHttpTools:
    """The tools over streamable HTTP, as an ASGI application that keeps no state between requests.

    It starts with its first request. Whoever serves it checks who is asking, and closes it in the end.
    """

    def __init__(self, reader: ConversationReader) -> None:
        self._manager = StreamableHTTPSessionManager(mcp_server(reader), json_response=True, stateless=True)
        self._running: asyncio.Task[None] | None = None
        self._started, self._stopped = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve a request."""
        if self._running is None:
            # The tasks of a manager end in the task that they began in, which no request's is.
            self._running = asyncio.create_task(self._run())
        await self._started.wait()
        await self._manager.handle_request(scope, receive, send)

    async def _run(self) -> None:
        async with self._manager.run():
            self._started.set()
            await self._stopped.wait()

    async def close(self) -> None:
        """End what is running."""
        self._stopped.set()
        if self._running is not None:
            await self._running
