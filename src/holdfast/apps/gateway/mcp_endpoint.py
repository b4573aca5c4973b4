"""The tools of `holdfast mcp` on the gateway's port, at `/mcp`: agents of any program read the recorded conversations.

A caller needs the token of the control API, or a key that may use it, and sees its own namespace only. The protocol's
packages are an extra, and are loaded with the first request.
"""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from holdfast.apps.gateway.access import Access
from holdfast.apps.gateway.recording.identity import session_id_for
from holdfast.apps.gateway.relay import headers_of
from holdfast.apps.serving import AccessDeniedError, read_own_body, received_again
from holdfast.core.conversation.json_values import parse_json
from holdfast.errors import MissingExtraError
from holdfast.session.memory.daily import DailyMemory
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.apps.mcp import StreamableHttpTools

MCP_PATH = "/mcp"
HALF_CHARACTER = rb"\ud"
"""How the escape of one begins; two make a whole character."""
NOT_HERE = "there is nothing here; this server needs its token, Authorization: Bearer TOKEN, and no login"
"""For clients that look for a login: their token must never be forwarded to a provider."""


class McpEndpoint:
    """Serves the tools to callers with a token."""

    def __init__(self, store: Store, access: Access, memory: DailyMemory | None) -> None:
        """`memory` is that of whoever runs the gateway; callers with a key do not see it."""
        self._store, self._access, self._memory = store, access, memory
        self._tools: dict[str, StreamableHttpTools] = {}
        """By namespace."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes, with those at which clients look for a login."""
        login = [MCP_PATH + "/{path:path}", "/.well-known/{path:path}", "/register"]
        return [Route(MCP_PATH, self), *(Route(path, _refusal(HTTPStatus.NOT_FOUND, NOT_HERE)) for path in login)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of the protocol."""
        try:
            caller = self._access.check_control(headers_of(scope))
            # Without state there is nothing that a stream would bring, and no session to end: only POST is served.
            answer = await self._tools_of(caller.namespace) if scope["method"] == "POST" else ONLY_POST
            # The library reads bodies of any size, and logs a traceback if their client leaves.
            receive = received_again(_readable(await read_own_body(Request(scope, receive))), receive)
        except AccessDeniedError as error:
            answer = _refusal(error.status, str(error))
        except MissingExtraError as error:
            answer = _refusal(HTTPStatus.NOT_IMPLEMENTED, str(error))
        await answer(scope, receive, send)

    async def _tools_of(self, namespace: str) -> "StreamableHttpTools":
        if namespace not in self._tools:
            # The packages take seconds to load, in which streams must go on.
            make_tools = await asyncio.to_thread(_import_tools)
            if namespace not in self._tools:  # else another request was faster
                memory = None if namespace else self._memory
                self._tools[namespace] = make_tools(self._store, memory, session_id_for(namespace, ""))
        return self._tools[namespace]

    async def close(self) -> None:
        """End what is running."""
        for tools in self._tools.values():
            await tools.close()


def _import_tools() -> "Callable[[Store, DailyMemory | None, str], StreamableHttpTools]":
    from holdfast.apps.mcp import ConversationReader, StreamableHttpTools  # noqa: PLC0415 - an optional extra

    def make_tools(store: Store, memory: DailyMemory | None, owner: str) -> StreamableHttpTools:
        return StreamableHttpTools(ConversationReader(store, memory=memory, owner=owner))

    return make_tools


def _readable(body: bytes) -> bytes:
    """Return a body without half characters: a model may write one, and the library refuses to read it."""
    if HALF_CHARACTER not in body.lower():
        return body
    try:
        return json.dumps(parse_json(body.decode())).encode()
    except ValueError:
        return body


def _refusal(status: int, text: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {"allow": "POST"}
    return Response(json.dumps({"error": text}), status, headers, media_type="application/json")


ONLY_POST = _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "this server answers POST only")
