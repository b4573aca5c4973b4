"""The control API: what is on record, for viewers, scripts and programs in other languages.

Every route needs the token, or a key with that right. A key sees the sessions of its own namespace only.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from time import monotonic
from typing import TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from holdfast.apps.gateway import control_schema as schema
from holdfast.apps.gateway.access import Access, Caller
from holdfast.apps.gateway.control_schema import Operation
from holdfast.apps.gateway.provider_apis import STREAM_TYPE
from holdfast.apps.gateway.recording.client_body import write_json, write_json_line
from holdfast.apps.gateway.recording.governing import GoverningChoice
from holdfast.apps.gateway.recording.identity import encoded_session_id, session_id_for
from holdfast.apps.gateway.recording.open_sessions import OpenSession
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.apps.serving import AccessDeniedError, error_status, page_cursor, query_number, read_own_body
from holdfast.core.history import events as log
from holdfast.core.recall.query import RecallQuery
from holdfast.counters.models import dollars_of
from holdfast.errors import (
    HoldfastError,
    MalformedInputError,
    NotInMemoryError,
    StoreUnavailableError,
    UnknownSessionError,
)
from holdfast.session.log.records import inline_blob
from holdfast.session.log.sent_body import sent_body
from holdfast.session.log.timestamps import utc_time
from holdfast.session.maintenance.transfer import export_records
from holdfast.session.session import Session
from holdfast.stores.base import SessionInfo, StoredRecord, session_info, session_value_key
from holdfast.stores.jsonl import export_lines
from holdfast.text import pluralize

DEFAULT_PAGE, MAX_PAGE = 100, 100_000
MAX_ID_CHARS = 15
EVENTS_AT_ONCE = 500
POLL_SECONDS, PING_SECONDS = 1.0, 15.0
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
MAX_TITLE_CHARS = 80
MAX_PREVIEWS = 8
_SESSION = "/sessions/{id:path}"
_Handler: TypeAlias = Callable[[Request, Caller], Awaitable[object]]
_HandlerT = TypeVar("_HandlerT", bound=Callable[["_ControlApi", Request, Caller], Awaitable[object]])


def control_routes(recorder: Recorder, access: Access) -> list[BaseRoute]:
    """Return the routes of the control API; what it does not know is refused, so that no token is ever forwarded."""
    api = _ControlApi(recorder)
    routes = [
        Route(operation.path, _endpoint(partial(handler, api), access), methods=[operation.method])
        for handler, operation in _OPERATIONS
    ]
    unknown = _UnknownPaths(access)
    other = [Route(path, unknown) for path in ("/holdfast", "/holdfast/{path:path}")]
    return [Mount("/holdfast/v1", Router(routes, default=unknown)), *other]


class _UnknownPaths:
    """Refuses what the control API does not know, by any method: else it would be forwarded, and its token with it."""

    def __init__(self, access: Access) -> None:
        self._answer = _endpoint(_unknown, access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)


async def _unknown(request: Request, _caller: Caller) -> object:
    raise AccessDeniedError(404, f"there is no {request.scope['path']}; see /holdfast/v1/openapi.json")


class DamagedRequestError(Exception):
    """Raised when the log no longer has the bytes of a request: somebody has changed it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the log was changed: the bytes of request {number} do not have the hash that was recorded")


def _endpoint(handler: _Handler, access: Access) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            caller = access.check_control(request.headers)
            answer = await handler(request, caller)
            return answer if isinstance(answer, Response) else _json(answer)
        except msgspec.MsgspecError as error:
            return _json({"error": str(error)}, 400)
        except DamagedRequestError as error:
            return _json({"error": str(error)}, 500)
        except (AccessDeniedError, HoldfastError, ValueError) as error:
            return _json({"error": str(error)}, error_status(error))

    return endpoint


def _json(value: object, status: int = 200) -> Response:
    return Response(write_json(value), status, media_type="application/json")


def _described_compaction(done: log.CompactionCompleted) -> dict[str, object]:
    """Return a compaction as JSON: what it replaces, by what, and what that costs."""
    before, after = done.request_tokens
    return {
        "success": done.success,
        "trigger": done.trigger,
        "start": done.span.start,
        "stop": done.span.stop,
        "kept": list(done.span.kept),
        "messages": done.span.message_count,
        "tokens_before": before,
        "tokens_after": after,
        "summary": list(done.replacement),
        "by": done.summary.by_model or "rule",
        "reason": done.error or done.reason,
    }


def _described_choice(choice: GoverningChoice) -> dict[str, object]:
    return {"policy": choice.policy, "compaction": choice.compaction or "auto", "budget": choice.budget}


def _unknown_request(number: int, count: int) -> AccessDeniedError:
    return AccessDeniedError(404, f"there is no request {number}; the session has {pluralize(count, 'request')}")


def _check_empty_body(body: bytes) -> None:
    """Raise for a body that is no JSON object; an operation without options takes none or an empty one."""
    msgspec.json.decode(body or b"{}", type=schema.EmptyBody)


_OPERATIONS: list[tuple[Callable[["_ControlApi", Request, Caller], Awaitable[object]], Operation]] = []
"""The handlers, in the order in which paths are compared: `_SESSION` itself is last, because an id may have slashes."""


def _serves(
    method: str,
    path: str,
    answer: type[object] | None = None,
    body: type[object] | None = None,
    *,
    is_body_needed: bool = False,
    query: tuple[str, ...] = (),
    media: tuple[str, ...] = (schema.JSON_TYPE,),
) -> Callable[[_HandlerT], _HandlerT]:
    """Serve an operation by the decorated handler, whose docstring describes it."""

    def register(handler: _HandlerT) -> _HandlerT:
        about = handler.__doc__ or ""
        _OPERATIONS.append((handler, Operation(method, path, about, answer, body, is_body_needed, query, media)))
        return handler

    return register


class _ControlApi:
    """The handlers; each returns what is sent as JSON."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @_serves("GET", "/openapi.json")
    async def describe(self, _request: Request, _caller: Caller) -> object:
        """This description."""
        return schema.openapi([operation for _, operation in _OPERATIONS])

    @_serves("GET", "/sessions", schema.SessionsAnswer, query=("limit", "after", "q"))
    async def sessions(self, request: Request, caller: Caller) -> object:
        """Sessions, the newest change first."""
        limit, words = _limit(request), request.query_params.get("q", "").lower()
        before = page_cursor(request.query_params.get("after"))
        prefix = session_id_for(caller.namespace, "")
        found: list[dict[str, object]] = []
        size = max(1, min(limit, 500))
        while page := await self._recorder.store.sessions(prefix=prefix, before=before, limit=size):
            for info in page:
                if len(found) >= limit:
                    return {"sessions": found, "next": None if before is None else f"{before[0]}:{before[1]}"}
                described = await self._described(info, caller)
                if words in f"{described['id']} {described['title']}".lower():
                    found.append(described)
                before = info.updated_ms, info.id
        return {"sessions": found, "next": None}

    @_serves("GET", f"{_SESSION}/messages", schema.MessagesAnswer, query=("limit", "after"))
    async def messages(self, request: Request, caller: Caller) -> object:
        """All that was said, in order, also what was compacted."""
        limit, after = _limit(request), _after(request)
        async with self._opened(request, caller) as session:
            first = max(after + 1, session.history.version.state_of(log.MAIN).cleared_at)
            stop = min(len(session), first + limit)
            natives = await session.messages_at(first, stop) if first < stop else []
            scopes = session.history.message_scopes
            found = [
                {"position": place, "scope": scopes[place], "message": native}
                for place, native in enumerate(natives, first)
            ]
            return {"messages": found, "next": stop - 1 if found and stop < len(session) else None}

    @_serves("GET", f"{_SESSION}/requests/{{number:short}}/receipt", schema.RequestReceiptAnswer)
    async def request_receipt(self, request: Request, caller: Caller) -> object:
        """What was done for one request."""
        number = int(request.path_params["number"])
        async with self._opened(request, caller) as session:
            events = [event for event in await session.events() if isinstance(event, log.RequestPrepared)]
        if not 1 <= number <= len(events):
            raise _unknown_request(number, len(events))
        receipt = asdict(events[number - 1])
        del receipt["body"]  # the request itself has it
        return {"number": number} | receipt

    @_serves("GET", f"{_SESSION}/requests/{{number:short}}")
    async def request(self, request: Request, caller: Caller) -> object:
        """The exact bytes of one request, as it was sent."""
        number = int(request.path_params["number"])
        async with self._opened(request, caller) as session:
            events = await session.events()
        count = sum(isinstance(event, log.RequestPrepared) for event in events)
        if not 1 <= number <= count:
            raise _unknown_request(number, count)
        body = sent_body(events, number - 1)
        if body is None:
            raise AccessDeniedError(404, f"the bytes of request {number} were not recorded; its receipt is there")
        if not (body.is_same or body.is_scrubbed):
            raise DamagedRequestError(number)
        headers = {"x-holdfast-sha256": body.sha256, **({"x-holdfast-scrubbed": "1"} if body.is_scrubbed else {})}
        return Response(body.content, media_type="application/json", headers=headers)

    @_serves("GET", f"{_SESSION}/requests", schema.RequestsAnswer)
    async def requests(self, request: Request, caller: Caller) -> object:
        """The requests that were prepared."""
        async with self._opened(request, caller) as session:
            events = [event for event in await session.events() if isinstance(event, log.RequestPrepared)]
        return {
            "requests": [
                {
                    "number": number,
                    "scope": event.scope,
                    "tokens": event.situation.get("tokens"),
                    "sha256": event.body_hash,
                    "hash": event.payload_hash,
                    "policy": event.policy,
                }
                for number, event in enumerate(events, start=1)
            ]
        }

    @_serves(
        "GET",
        f"{_SESSION}/events",
        schema.EventsAnswer,
        query=("limit", "after"),
        media=(schema.JSON_TYPE, STREAM_TYPE),
    )
    async def events(self, request: Request, caller: Caller) -> object:
        """The events of the log. With Accept: text/event-stream live, from Last-Event-ID."""
        limit, after = _limit(request), _after(request)
        session_id = await self._known(request, caller)
        if STREAM_TYPE in request.headers.get("accept", ""):
            last = request.headers.get("last-event-id", "")
            if last and not (last.isdecimal() and len(last) <= MAX_ID_CHARS):
                raise MalformedInputError("Last-Event-ID", f"must be the id of an event, not {last!r:.40}")
            stream = self._live_events(session_id, int(last) if last else after)
            return StreamingResponse(stream, media_type=STREAM_TYPE, headers=STREAM_HEADERS)
        found = await self._read_events(session_id, after, limit)
        more = found and found[-1].position + 1 < await self._recorder.store.length(session_id)
        return {"events": [asdict(one) for one in found], "next": found[-1].position if more else None}

    async def _read_events(self, session_id: str, after: int, limit: int) -> list[StoredRecord]:
        store = self._recorder.store
        records = await store.read(session_id, start=after + 1, limit=limit)
        return [replace(one, record=await inline_blob(store, one.record)) for one in records]

    async def _live_events(self, session_id: str, after: int) -> AsyncGenerator[bytes]:
        """Yield the events after a position as they are recorded, until the session is deleted or the gateway stops."""
        recorder, news, quiet_since = self._recorder, asyncio.Event(), monotonic()
        async with recorder.session(session_id) as opened:
            end_callback = opened.session.on(lambda _: news.set())
            try:
                while not recorder.is_stopping:
                    news.clear()
                    with suppress(StoreUnavailableError):  # it may be back soon, and what it has then is told
                        for one in await self._read_events(session_id, after, EVENTS_AT_ONCE):
                            after, quiet_since = one.position, monotonic()
                            kind = str(one.record.get("type", "")).replace("\n", " ")
                            data = write_json_line(asdict(one))
                            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (after, kind.encode(), data)
                            news.set()
                        if not news.is_set() and await recorder.store.length(session_id) <= after:
                            return  # it was deleted
                    if monotonic() - quiet_since > PING_SECONDS:
                        quiet_since = monotonic()
                        yield b": ping\n\n"
                    with suppress(TimeoutError):
                        # Other processes may write too, so the store is read now and then in any case.
                        async with asyncio.timeout(POLL_SECONDS):
                            await news.wait()
            finally:
                end_callback()

    @_serves("GET", f"{_SESSION}/receipts", schema.ReceiptsAnswer)
    async def receipts(self, request: Request, caller: Caller) -> object:
        """Every change of the context: what it did, why, and its cost."""
        async with self._opened(request, caller) as session:
            receipts = await session.receipts()
        return {"receipts": [{"at_ms": one.at_ms, "kind": one.event.KIND, "text": str(one)} for one in receipts]}

    @_serves("GET", f"{_SESSION}/export", media=(schema.LINES_TYPE,))
    async def export(self, request: Request, caller: Caller) -> object:
        """The archive that `holdfast import` reads, as JSON lines."""
        session_id, store = await self._known(request, caller), self._recorder.store
        info = await session_info(store, session_id)
        records = [record async for record in export_records(store, session_id)]
        lines = "".join(export_lines(session_id, info.name if info else "", records))
        return Response(lines, media_type="application/jsonl")

    @_serves("GET", f"{_SESSION}/settings", schema.SettingsAnswer)
    async def settings(self, request: Request, caller: Caller) -> object:
        """How the session is governed."""
        async with self._recorder.session(await self._known(request, caller)) as opened:
            return _described_choice(opened.choice)

    @_serves("POST", f"{_SESSION}/settings", schema.SettingsAnswer, GoverningChoice, is_body_needed=True)
    async def set_settings(self, request: Request, caller: Caller) -> object:
        """Govern it in another way."""
        asked = msgspec.json.decode(await read_own_body(request), type=GoverningChoice)
        async with self._recorder.session(await self._known(request, caller)) as opened, opened.lock:
            choice = asked.otherwise(opened.choice)
            await self._recorder.governor.choose(opened, choice)
            return _described_choice(choice)

    @_serves("POST", f"{_SESSION}/recall", schema.RecallAnswerBody, schema.RecallBody, is_body_needed=True)
    async def recall(self, request: Request, caller: Caller) -> object:
        """Exact excerpts of what was said."""
        asked = msgspec.json.decode(await read_own_body(request), type=schema.RecallBody)
        async with self._opened(request, caller) as session:
            answer = await session.recall(RecallQuery(query=asked.query, max_tokens=asked.tokens))
        references = [f"#{one.position}" for one in answer.excerpts]
        return {"text": str(answer), "references": references, "found": answer.found_count}

    @_serves("POST", f"{_SESSION}/preview", schema.PreviewAnswer, schema.PreviewBody)
    async def preview(self, request: Request, caller: Caller) -> object:
        """What a compaction would do; its id approves it."""
        asked = msgspec.json.decode(await read_own_body(request) or b"{}", type=schema.PreviewBody)
        async with self._recorder.session(await self._known(request, caller)) as opened:
            choice = await self._govern(opened)
            budget = asked.budget or choice.budget
            found = await opened.session.preview(focus=asked.focus, budget=budget, draft=asked.draft)
            number = secrets.token_hex(8)
            opened.previews[number] = found
            while len(opened.previews) > MAX_PREVIEWS:
                del opened.previews[next(iter(opened.previews))]
            return {"id": number} | _described_compaction(found)

    @_serves("POST", f"{_SESSION}/compact", schema.CompactionAnswer, schema.CompactBody)
    async def compact(self, request: Request, caller: Caller) -> object:
        """Compact now."""
        asked = msgspec.json.decode(await read_own_body(request) or b"{}", type=schema.CompactBody)
        async with self._recorder.session(await self._known(request, caller)) as opened:
            choice = await self._govern(opened)
            budget = asked.budget or choice.budget
            if asked.preview:
                approved = opened.previews.pop(asked.preview, None)
                if approved is None:
                    problem = f"there is no preview {asked.preview!r:.80}; make one: POST …/preview"
                    raise AccessDeniedError(404, f"{problem} (the last {MAX_PREVIEWS} of a session are kept)")
                done = await opened.session.apply_preview(approved, budget=budget)
            else:
                done = await opened.session.compact(focus=asked.focus, budget=budget)
            opened.compaction_due = ""
            return _described_compaction(done)

    @_serves("POST", f"{_SESSION}/undo", schema.UndoneAnswer)
    async def undo(self, request: Request, caller: Caller) -> object:
        """Undo the last change of the context."""
        _check_empty_body(await read_own_body(request))
        async with self._recorder.session(await self._known(request, caller)) as opened, opened.lock:
            undone = await opened.session.undo()
            opened.note_changed_view()
        return {"undone": undone}

    @_serves("POST", f"{_SESSION}/redo", schema.RedoneAnswer)
    async def redo(self, request: Request, caller: Caller) -> object:
        """Redo the change that was undone last."""
        _check_empty_body(await read_own_body(request))
        async with self._recorder.session(await self._known(request, caller)) as opened, opened.lock:
            redone = await opened.session.redo()
            opened.note_changed_view()
        return {"redone": redone}

    @_serves("POST", f"{_SESSION}/rewind", schema.RewoundAnswer, schema.RewindBody, is_body_needed=True)
    async def rewind(self, request: Request, caller: Caller) -> object:
        """Continue from before the message at a position."""
        asked = msgspec.json.decode(await read_own_body(request), type=schema.RewindBody)
        async with self._recorder.session(await self._known(request, caller)) as opened, opened.lock:
            await opened.session.rewind(to=asked.to)
            opened.agent_lists.clear()  # the client's next list is compared with what is left
        return {"rewound_to": asked.to}

    @_serves("POST", f"{_SESSION}/pin", schema.PinnedAnswer, schema.PinBody, is_body_needed=True)
    async def pin(self, request: Request, caller: Caller) -> object:
        """Keep a message whole in every request."""
        asked = msgspec.json.decode(await read_own_body(request), type=schema.PinBody)
        async with self._opened(request, caller) as session:
            await session.pin(asked.position)
        return {"pinned": asked.position}

    @_serves("POST", f"{_SESSION}/unpin", schema.UnpinnedAnswer, schema.PinBody, is_body_needed=True)
    async def unpin(self, request: Request, caller: Caller) -> object:
        """Allow a pinned message to be compacted again."""
        asked = msgspec.json.decode(await read_own_body(request), type=schema.PinBody)
        async with self._opened(request, caller) as session:
            await session.unpin(asked.position)
        return {"unpinned": asked.position}

    @_serves("POST", f"{_SESSION}/fork", schema.ForkedAnswer, schema.ForkBody)
    async def fork(self, request: Request, caller: Caller) -> object:
        """Copy the log into a new session."""
        asked = msgspec.json.decode(await read_own_body(request) or b"{}", type=schema.ForkBody)
        name = session_id_for(caller.namespace, asked.id) if asked.id else None
        async with self._opened(request, caller) as session:
            other = await session.fork(name, at=asked.at)
            await other.close()
        return {"id": other.id.removeprefix(session_id_for(caller.namespace, ""))}

    @_serves("GET", _SESSION, schema.SessionAnswer)
    async def session(self, request: Request, caller: Caller) -> object:
        """One session."""
        session_id = await self._known(request, caller)
        info = await session_info(self._recorder.store, session_id)
        if info is None:
            raise UnknownSessionError(session_id)
        return await self._described(info, caller)

    @_serves("DELETE", _SESSION, schema.DeletedAnswer)
    async def delete(self, request: Request, caller: Caller) -> object:
        """Delete a session with all that belongs to it."""
        return {"deleted": await self._recorder.sessions.delete(await self._known(request, caller))}

    async def _known(self, request: Request, caller: Caller) -> str:
        """Return the id of a session that exists and that this caller may see."""
        name = request.path_params["id"]
        namespace = caller.namespace
        # The id as it is listed, the client's own name, and that as it was encoded before.
        listed = f"{session_id_for(namespace, '')}{name}"
        for session_id in dict.fromkeys([listed, session_id_for(namespace, name), encoded_session_id(namespace, name)]):
            if await self._recorder.store.length(session_id):
                return session_id
        raise UnknownSessionError(name)

    async def _govern(self, opened: OpenSession) -> GoverningChoice:
        """Give a session the policy that was chosen for it, once no request is prepared by another one."""
        async with opened.lock:
            await self._recorder.governor.use_policy(opened, opened.choice)
            return opened.choice

    @asynccontextmanager
    async def _opened(self, request: Request, caller: Caller) -> AsyncGenerator[Session]:
        async with self._recorder.session(await self._known(request, caller)) as opened:
            yield opened.session

    async def _described(self, info: SessionInfo, caller: Caller) -> dict[str, object]:
        client = await self._recorder.store.get_value(session_value_key(info.id, "client")) or {}
        async with self._recorder.session(info.id) as opened:
            session = opened.session
            events = await session.events()
            usages = [
                (event.usage, event.model if isinstance(event, log.SideCallRecorded) else None)
                for event in events
                if isinstance(event, log.MessageAppended | log.SideCallRecorded) and event.usage is not None
            ]
            model = session.model
            latest = next((usage for usage, side in reversed(usages) if side is None), None)
            return {
                "id": info.id.removeprefix(session_id_for(caller.namespace, "")),
                "title": info.name or _title_of(session),
                "client": client.get("client", ""),
                "model": model,
                "messages": len(session),
                "tokens": latest.all_input_tokens + latest.output_tokens if latest else 0,
                "compactions": sum(isinstance(event, log.CompactionCompleted) and event.success for event in events),
                "cost": sum(dollars_of(usage, side or model or "") or 0.0 for usage, side in usages),
                "compaction_due": opened.compaction_due,
                "updated_at": utc_time(info.updated_ms).isoformat(),
            }


def _title_of(session: Session) -> str:
    """Return the beginning of the first prompt that is in memory."""
    for position in range(min(len(session), 4)):
        with suppress(NotInMemoryError):
            message = session.history.entries[position].message
            if message.role == "user" and message.text.strip():
                return " ".join(message.text.split())[:MAX_TITLE_CHARS]
    return ""


def _limit(request: Request) -> int:
    number = query_number(request.query_params, "limit")
    return DEFAULT_PAGE if number is None else min(number, MAX_PAGE)


def _after(request: Request) -> int:
    number = query_number(request.query_params, "after")
    return -1 if number is None else number
