"""The gateway as an ASGI application: its own few routes, and everything else forwarded.

It runs under `holdfast gateway`, and mounts in any ASGI program:

    app = Starlette(routes=[Mount("/llm", gateway_app(store="sqlite:///chats.db"))])
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.apps.gateway.access import Access
from holdfast.apps.gateway.control import control_routes
from holdfast.apps.gateway.mcp_endpoint import McpEndpoint
from holdfast.apps.gateway.provider_apis import destination_of, error_body
from holdfast.apps.gateway.recording.identity import session_id_for
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.apps.gateway.relay import Relay, RelaySettings, headers_of, raw_path_of
from holdfast.apps.gateway.telemetry.metrics import METRICS_TYPE, GatewayMetrics
from holdfast.apps.gateway.telemetry.tracing import ExchangeTracer
from holdfast.apps.gateway.upstream import PhaseTimeouts, UpstreamClient, Upstreams
from holdfast.apps.gateway.upstream_summarizer import Payment
from holdfast.apps.serving import AccessDeniedError
from holdfast.core.planning.policy import Policy
from holdfast.errors import HoldfastError, SettingsError, StoreUnavailableError
from holdfast.models.base import Summarizer
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.session import Session
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.apps.viewer.access import Reader

NO_WEBSOCKETS = "this gateway speaks HTTP only; send the request with POST"
UPGRADE_REQUIRED = 426
"""The status at which clients of the Responses API go over to HTTP at once."""
PROVIDER_PATHS = ("/v1/", "/v1beta/", "/s/", "/u/", "/p/")
"""How paths of providers begin. Nothing of the gateway's own begins like that."""
READY_KEY = "ready"
"""The key under which `/readyz` writes."""


def gateway_app(
    *,
    store: str | Store = "memory://",
    policy: str | Policy = "default",
    policies: Mapping[str, Policy] | None = None,
    budget: int | None = None,
    summarizer: str | Summarizer | None = None,
    payment: Payment = "digest",
    offers_recall: bool = False,
    memory: DailyMemory | None = None,
    delete_files: Callable[[str], object] | None = None,
    upstreams: Mapping[str, str] | None = None,
    access: Access | None = None,
    timeouts: PhaseTimeouts | None = None,
    settings: RelaySettings | None = None,
    tracer: ExchangeTracer | None = None,
) -> Starlette:
    """Return the gateway as an application.

    `policies` are policies of your own by name; requests may name them, and the presets. `budget` is the largest
    request in tokens; None means what the model accepts. `summarizer` writes summaries in the background, with its own
    key. Without one a compaction is a digest made by rule, unless `payment` lets the model of the conversation write
    summaries with a client's API key ("key"), or also with its subscription login ("login").
    `offers_recall` gives the model of every new conversation the recall tool, which else the header x-holdfast-recall
    does. `memory` has the notes that `memory_search` at `/mcp` reads. `delete_files` removes what belongs to a session
    outside the store, when it is deleted. `upstreams` are base URLs by name; the providers' public addresses are there
    without it. `access` says who may connect; by default programs of this machine. Where no lifespan runs, call
    `close_gateway(app)` at the end.
    """
    metrics = GatewayMetrics()
    client = UpstreamClient(timeouts or PhaseTimeouts())
    recorder = Recorder(
        store,
        policy=policy,
        policies=policies,
        budget=budget,
        summarizer=summarizer,
        payment=payment,
        offers_recall=offers_recall,
        delete_files=delete_files,
    )
    rules = access or Access()
    relay = Relay(
        recorder=recorder,
        upstreams=Upstreams(upstreams or {}),
        client=client,
        access=rules,
        metrics=metrics,
        settings=settings or RelaySettings(),
        tracer=tracer or ExchangeTracer(),
    )

    async def alive(_request: Request) -> Response:
        # By its name `holdfast wrap` tells it from other programs that have a /health.
        return JSONResponse({"status": "ok", "server": "holdfast"})

    async def ready(_request: Request) -> Response:
        doing = "read"
        try:
            await recorder.store.sessions(limit=1)
            # Only a write tells: a full disk still takes what changes nothing.
            doing = "written"
            await recorder.store.put_value(READY_KEY, {})
        except StoreUnavailableError as error:
            return JSONResponse({"status": f"the store cannot be {doing}: {error.problem}"}, 503)
        except HoldfastError:
            return JSONResponse({"status": f"the store cannot be {doing}"}, 503)
        return JSONResponse({"status": "ok"})

    async def show_metrics(_request: Request) -> Response:
        return Response(metrics.render(), media_type=METRICS_TYPE)

    pages = _Pages(recorder, rules)
    tools = McpEndpoint(recorder.store, rules, memory)
    probes = {"/health": alive, "/livez": alive, "/readyz": ready, "/metrics": show_metrics}
    routes = [
        Route("/", alive),
        *(Route(path, answer) for path, answer in probes.items()),
        *(Route(path, _OtherMethods()) for path in probes),
        *control_routes(recorder, rules),
        Route("/ui", _AddSlash()),
        Mount("/ui", pages),
        *tools.routes(),
        Route("/{path:path}", relay),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Entrance, access=rules, relay=relay)],
        exception_handlers={405: _refuse_method},
        lifespan=_lifespan,
    )
    app.state.close_gateway = [tools.close, pages.close, recorder.close, client.close]
    app.state.recorder = recorder
    app.state.stop_page_streams = pages.stop_streams
    return app


async def _refuse_method(request: Request, error: Exception) -> Response:
    """Return the answer to a method that a route of our own does not have, in the form of all its errors."""
    said = f"{request.scope['path']} does not take {request.method}; see /holdfast/v1/openapi.json"
    return JSONResponse({"error": said}, 405, error.headers if isinstance(error, HTTPException) else None)


class _OtherMethods:
    """Refuses what a path of our own does not take: the last route would forward it to the provider."""

    async def __call__(self, _scope: Scope, _receive: Receive, _send: Send) -> None:
        raise HTTPException(405, headers={"Allow": "GET, HEAD"})


class _AddSlash:
    """Leads to the same path with a slash at its end. Nothing may pass it on: the query may hold the control token."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode("latin-1")
        await RedirectResponse(f"{scope['path']}/{query and f'?{query}'}")(scope, receive, send)


class _Pages:
    """The viewer of a gateway's store. It is imported when somebody asks for a page: a start takes a tenth less."""

    def __init__(self, recorder: Recorder, access: Access) -> None:
        self._recorder, self._access = recorder, access
        self._app: Starlette | None = None
        self._is_stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            make_app = await asyncio.to_thread(_import_viewer)
            self._app = self._app or self._made_by(make_app)
        await self._app(scope, receive, send)

    def _made_by(self, make_app: Callable[..., Starlette]) -> Starlette:
        from holdfast.apps.viewer.access import ViewerAccess  # noqa: PLC0415 - as the class says

        app = make_app(
            self._recorder.store,
            access=ViewerAccess(identify=partial(_reader_of, self._access)),
            editor=RecorderEditor(self._recorder),
            is_own_host=self._access.is_own_host,
        )
        if self._is_stopping:
            app.state.stop_streams()
        return app

    def stop_streams(self) -> None:
        """End the streams of pages that are open; one that is opened from now on ends at once."""
        self._is_stopping = True
        if self._app is not None:
            self._app.state.stop_streams()

    async def close(self) -> None:
        """End what the pages have begun."""
        if self._app is not None:
            await self._app.state.close()


def _import_viewer() -> Callable[..., Starlette]:
    from holdfast.apps.viewer.app import viewer_app  # noqa: PLC0415 - as `_Pages` says
    from holdfast.apps.viewer.rendering import load_templates  # noqa: PLC0415 - as above

    load_templates()
    return viewer_app


class RecorderEditor:
    """Changes sessions that the gateway holds open."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @asynccontextmanager
    async def session(self, session_id: str) -> AsyncGenerator[Session]:
        """Hold a session open, with the policy that was chosen for it.

        The client's next list is then compared with what is left.
        """
        async with self._recorder.session(session_id) as opened, opened.lock:
            await self._recorder.governor.use_policy(opened, opened.choice)
            yield opened.session
            opened.agent_lists.clear()

    async def delete(self, session_id: str) -> None:
        """Delete a session with everything that belongs to it."""
        await self._recorder.sessions.delete(session_id)


def _reader_of(access: Access, token: str) -> "Reader | None":
    """Return who signs in to the pages with the token of the control API, or with a key that may use it."""
    from holdfast.apps.viewer.access import Reader  # noqa: PLC0415 - as `_Pages` says

    try:
        caller = access.check_control({"authorization": f"Bearer {token}"})
    except AccessDeniedError:
        return None
    is_valid = partial(access.may_still_control, caller)
    return Reader(session_id_for(caller.namespace, ""), may_change=True, is_valid=is_valid)


async def start_jobs(app: Starlette, *, per_minute: int | None = None) -> None:
    """Leave the summaries of a gateway to background jobs on DBOS, which all gateways on one store share.

    `per_minute` limits how many summaries all of them begin together. A summary that needs the key of a client is
    written here; if this process is killed, another gateway ends it in a digest. Call it before the first request, on
    the event loop that serves them. Needs the extra `dbos`, and a store on disk that is given as a URL.
    """
    from holdfast.apps.jobs import BackgroundJobs, RateLimit  # noqa: PLC0415 - an extra

    recorder: Recorder = app.state.recorder
    if recorder.store_url is None:
        raise SettingsError("jobs", "background jobs need the URL of a store on disk: postgresql://… or sqlite:///file")
    summarizer = recorder.governor.summarizer
    jobs = BackgroundJobs(
        recorder.store_url,
        recorder.session_for_job,
        model_key=summarizer if isinstance(summarizer, str) else summarizer.name if summarizer else "",
        rate_limit=RateLimit(per_minute, 60.0) if per_minute else None,
        delete_files=recorder.sessions.delete_files,
    )
    await jobs.start()
    recorder.governor.use_queues(jobs, jobs.here)
    app.state.close_gateway.insert(0, jobs.close)


def stop_live_streams(app: Starlette) -> None:
    """End the live streams of the control API and the pages, which would else last until their readers leave."""
    app.state.recorder.is_stopping = True
    app.state.stop_page_streams()


async def close_gateway(app: Starlette) -> None:
    """Close the connections and the store of a gateway."""
    for close in app.state.close_gateway:
        await close()


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncGenerator[None]:
    await app.state.recorder.warm_up()
    yield
    await close_gateway(app)


class _Entrance:
    """Refuses requests of web pages and WebSockets, on every route. A request to a provider needs no route."""

    def __init__(self, app: ASGIApp, access: Access, relay: Relay) -> None:
        self._app = app
        self._access = access
        self._relay = relay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            return await self._app(scope, receive, send)
        headers = headers_of(scope)
        try:
            self._access.check_source(headers)
        except AccessDeniedError as error:
            status, text = error.status, str(error)
        else:
            if scope["type"] == "http" and headers.get("upgrade", "").lower() != "websocket":
                is_for_provider = raw_path_of(scope).startswith(PROVIDER_PATHS)
                return await (self._relay if is_for_provider else self._app)(scope, receive, send)
            status, text = UPGRADE_REQUIRED, NO_WEBSOCKETS
        provider = destination_of(scope["path"], "", headers).provider
        await _refuse(scope, send, status, error_body(provider, status, text))


async def _refuse(scope: Scope, send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": NO_WEBSOCKETS})
            return
        kind = "websocket.http.response"
    else:
        kind = "http.response"
        if "upgrade" in headers_of(scope):  # what comes next may be no HTTP
            headers.append((b"connection", b"close"))
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
