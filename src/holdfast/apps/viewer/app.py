"""The viewer as an ASGI application: routes, and what every answer has in common.

    app = Starlette(routes=[Mount("/ui", viewer_app(store, access=ViewerAccess()))])

Every page exists as HTML and, with `?format=json`, as the value it was made from. Reading is all that a reader may do,
unless the program was started with `--allow-changes`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from time import monotonic
from typing import TypeAlias
from urllib.parse import parse_qs, urlencode

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.apps.serving import AccessDeniedError, check_source, error_status, query_number, read_own_body
from holdfast.apps.viewer.access import Reader, SignInError, ViewerAccess, is_own_form
from holdfast.apps.viewer.changes import SessionEditor, StoreEditor, apply_change, preview_compaction
from holdfast.apps.viewer.export import export_page
from holdfast.apps.viewer.pages import MESSAGES_PER_PAGE, Pages, UnknownPageError
from holdfast.apps.viewer.policy_comparison import (
    COMPARABLE_POLICIES,
    DEFAULT_COMPARED,
    DEFAULT_REPLAY_BUDGET,
    PolicyReplays,
)
from holdfast.apps.viewer.rendering import (
    SessionLinks,
    as_json,
    format_age,
    plot_columns,
    render,
    session_of_slug,
    session_slug,
    static_file,
)
from holdfast.apps.viewer.session_index import SessionIndexes
from holdfast.errors import HoldfastError, MalformedInputError, StoreUnavailableError
from holdfast.models.http_endpoint import is_loopback
from holdfast.session.log.event_log import now_ms
from holdfast.stores.base import Store
from holdfast.stores.read_only import ReadOnlyStore

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Without any referrer, browsers would send the forms of these pages as if they came from nowhere.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
NEWS_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
NEWS_SECONDS, QUIET_SECONDS = 0.5, 15.0
"""How often a stream asks the store for changes, and after which silence it shows that it is alive."""
STATIC_SECONDS = 31_536_000
_Handler: TypeAlias = Callable[[Request, "_Visit"], Awaitable[Response]]


def viewer_app(
    store: Store,
    *,
    access: ViewerAccess,
    editor: SessionEditor | None = None,
    is_own_host: Callable[[str], bool] = is_loopback,
    unnamed_model: str | None = None,
) -> Starlette:
    """Return the pages of a store as an application. Call `app.state.close()` at the end.

    Pages that are open hold a stream that tells of changes; `app.state.stop_streams()` ends these, before a server
    waits for its exchanges to end.

    `editor` carries out the changes of readers who may make some. `is_own_host` says by which names browsers reach the
    pages. `unnamed_model` is the model of sessions whose log names none, for their cost.
    """
    viewer = _Viewer(store, access, editor or StoreEditor(store), is_own_host, unnamed_model)
    session = "/s/{slug}"
    pages: list[tuple[str, _Handler]] = [
        ("/", viewer.sessions),
        ("/live", viewer.live),
        (session, viewer.session),
        (f"{session}/live", viewer.live),
        (f"{session}/plot", viewer.plot),
        (f"{session}/messages/{{number:short}}", viewer.message),
        (f"{session}/requests/{{number:short}}", viewer.request),
        (f"{session}/requests/{{number:short}}/body", viewer.body),
        (f"{session}/changes/{{number:short}}", viewer.change),
        (f"{session}/compact", viewer.preview),
        (f"{session}/compare", viewer.compare),
        (f"{session}/export", viewer.export),
    ]
    routes = [
        Route("/static/{name}", viewer.static, methods=["GET"]),
        Route("/favicon.ico", viewer.static, methods=["GET"]),
        Route("/sign-in", viewer.sign_in, methods=["POST"]),
        *(Route(path, viewer.page(handler), methods=["GET"]) for path, handler in pages),
        Route(f"{session}/do/{{action}}", viewer.page(viewer.do), methods=["POST"]),
        Route("/{path:path}", viewer.page(viewer.unknown), methods=["GET"]),
    ]
    app = Starlette(routes=routes)
    app.state.close = viewer.close
    app.state.stop_streams = viewer.is_stopping.set
    return app


class _Visit:
    """One request of a reader."""

    def __init__(self, request: Request, reader: Reader, pages: Pages) -> None:
        self.query: QueryParams = request.query_params
        self.base: str = request.scope.get("root_path", "")
        self.url = f"{self.base}{request.scope['path'].removeprefix(self.base)}"
        self.reader = reader
        self.pages = pages
        slug: str | None = request.path_params.get("slug")
        self.session = "" if slug is None else session_of_slug(slug)
        """The session that the address names, as its reader calls it."""
        self.session_id = f"{pages.prefix}{self.session}"
        self.is_json = self.query.get("format") == "json"

    def number(self, name: str) -> int | None:
        """Return a number of the query; raises `MalformedInputError` for anything else."""
        return query_number(self.query, name)

    def link(self, **changed: object) -> str:
        """Return the address of this page with other parameters; None removes one."""
        named = {key: value for key, value in self.query.items() if key not in {"format", "live"}} | changed
        text = urlencode({key: str(value) for key, value in named.items() if value is not None})
        return f"{self.url}?{text}" if text else self.url


class _Viewer:
    """The handlers of the pages."""

    def __init__(
        self,
        store: Store,
        access: ViewerAccess,
        editor: SessionEditor,
        is_own_host: Callable[[str], bool],
        unnamed_model: str | None,
    ) -> None:
        self._access = access
        self._editor = editor
        self._is_own_host = is_own_host
        self._indexes = SessionIndexes(ReadOnlyStore(store))
        self._replays = PolicyReplays(ReadOnlyStore(store))
        self._unnamed_model = unnamed_model
        self.is_stopping = asyncio.Event()

    async def close(self) -> None:
        """End the streams, and stop reading logs."""
        self.is_stopping.set()
        await self._indexes.close()
        await self._replays.close()

    # What every answer has in common.

    def page(self, handler: _Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that lets only readers see a page, and that tells errors on a page of their own."""

        async def endpoint(request: Request) -> Response:
            base = request.scope.get("root_path", "")
            try:
                check_source(request.headers, self._is_own_host, name="this viewer")
                if token := request.query_params.get("token"):
                    return self._signed_in(request, base, token)
                reader = self._access.reader_of(request.cookies.get(self._access.cookie))
                pages = Pages(self._indexes, prefix=reader.prefix, unnamed_model=self._unnamed_model)
                return await handler(request, _Visit(request, reader, pages))
            except UnknownPageError as error:
                return self._problem(request, 404, str(error))
            except SignInError as error:
                return self._problem(request, error.status, str(error), is_sign_in=True)
            except (AccessDeniedError, HoldfastError, ValueError) as error:
                return self._problem(request, error_status(error), str(error))

        return endpoint

    def _signed_in(self, request: Request, base: str, token: str) -> Response:
        """Return the cookie of a reader for a token, and lead on to the page without it."""
        secret = self._access.sign_in(token, request.cookies.get(self._access.cookie))
        rest = urlencode([(key, value) for key, value in request.query_params.multi_items() if key != "token"])
        path = f"{base}{request.scope['path'].removeprefix(base)}"
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303, SECURITY_HEADERS)
        self._set_cookie(answer, secret, base)
        return answer

    def _set_cookie(self, answer: Response, secret: str, base: str) -> None:
        # The pages may be mounted anywhere, and in a program that is mounted itself.
        answer.set_cookie(self._access.cookie, secret, path=base or "/", httponly=True, samesite="strict")

    async def sign_in(self, request: Request) -> Response:
        """Sign in with a token typed into a form."""
        base = request.scope.get("root_path", "")
        try:
            check_source(request.headers, self._is_own_host, name="this viewer")
            form = await form_of(request)
            secret = self._access.sign_in(form.get("token", ""))
        except AccessDeniedError as error:
            return self._problem(request, error.status, str(error), is_sign_in=isinstance(error, SignInError))
        answer = RedirectResponse(f"{base}/", 303, SECURITY_HEADERS)
        self._set_cookie(answer, secret, base)
        return answer

    def _problem(self, request: Request, status: int, text: str, *, is_sign_in: bool = False) -> Response:
        if request.query_params.get("format") == "json":
            return json_response({"error": text}, status)
        base = request.scope.get("root_path", "")
        named = {"base": base, "status": status, "problem": text, "is_sign_in": is_sign_in, "reader": None}
        return html_response(render("problem.html", **named), status)

    def _answer(self, visit: _Visit, template: str, value: object, live: str, **more: object) -> Response:
        """Return a page as HTML or as JSON; nothing if a page that updates itself has not changed."""
        if visit.is_json:
            return json_response(as_json(value))
        if visit.query.get("live") == live:
            return Response(status_code=204, headers=SECURITY_HEADERS | {"cache-control": "no-store"})
        links = SessionLinks(visit.base, visit.session)
        named = {
            "base": visit.base,
            "visit": visit,
            "page": value,
            "reader": visit.reader,
            "live": live,
            "links": links,
        }
        return html_response(render(template, **named, **more))

    # The pages.

    async def static(self, request: Request) -> Response:
        """Return a static file; these hold nothing of anybody's. Browsers ask for the icon of pages without HTML."""
        found = static_file(request.path_params.get("name", "mark.svg"))
        if found is None:
            return Response("there is no such file", 404, SECURITY_HEADERS)
        headers = SECURITY_HEADERS | {"cache-control": f"public, max-age={STATIC_SECONDS}, immutable"}
        return Response(found[0], headers=headers, media_type=found[1])

    async def unknown(self, request: Request, _visit: _Visit) -> Response:
        """Tell that there is no such page."""
        return self._problem(request, 404, f"there is no page {request.scope['path']!r:.80}")

    async def sessions(self, _request: Request, visit: _Visit) -> Response:
        """List the sessions, or what a search found."""
        page = await visit.pages.sessions(query=visit.query.get("q", "")[:500], after=visit.query.get("after"))
        now = now_ms()
        ages = {one.id: format_age(one.updated_ms, now) for one in page.sessions}
        newest = max((one.updated_ms for one in page.sessions), default=0)
        live = f"{newest}-{sum(one.read_records for one in page.sessions)}"
        return self._answer(visit, "sessions.html", page, live, ages=ages, prefix=visit.pages.prefix)

    async def session(self, _request: Request, visit: _Visit) -> Response:
        """Show one session."""
        page = await visit.pages.session(
            visit.session_id,
            first=visit.number("from"),
            at_request=visit.number("request"),
            scope=visit.query.get("scope", ""),
        )
        plot = await visit.pages.plot(visit.session_id)
        live = f"{page.facts.records}-{page.facts.read_records}"
        pages = _page_links(visit, page.first, page.stop, page.message_count)
        return self._answer(visit, "session.html", page, live, plot=plot, pages=pages)

    async def live(self, _request: Request, visit: _Visit) -> Response:
        """Tell a page that is open, as server-sent events, whenever something has changed that it shows."""
        if visit.session:
            await visit.pages.facts(visit.session_id)  # raises if there is no such session
        headers = SECURITY_HEADERS | NEWS_HEADERS
        return StreamingResponse(self._news(visit), headers=headers, media_type="text/event-stream")

    async def _news(self, visit: _Visit) -> AsyncGenerator[bytes]:
        """Yield an event for each change since the state that the page has, until the reader leaves.

        Any process may write to the store, so the store is asked.
        """
        state, quiet_since = visit.query.get("state", ""), monotonic()
        while not self.is_stopping.is_set():
            now = state
            with suppress(StoreUnavailableError):  # it may be back soon
                now = await (visit.pages.session_state(visit.session_id) if visit.session else visit.pages.list_state())
            if now != state:
                state, quiet_since = now, monotonic()
                yield f"data: {state}\n\n".encode()
            elif monotonic() - quiet_since > QUIET_SECONDS:
                quiet_since = monotonic()
                yield b": nothing new\n\n"
            with suppress(TimeoutError):
                async with asyncio.timeout(NEWS_SECONDS):
                    await self.is_stopping.wait()

    async def plot(self, _request: Request, visit: _Visit) -> Response:
        """Return the columns of the plot."""
        plot = await visit.pages.plot(visit.session_id, wait_seconds=None)
        return json_response({**asdict(plot), "columns": plot_columns(plot)} if plot else {})

    async def message(self, request: Request, visit: _Visit) -> Response:
        """Show one message in full."""
        page = await visit.pages.message(visit.session_id, int(request.path_params["number"]))
        native = json.dumps(page.native, ensure_ascii=False, indent=2)
        return self._answer(visit, "message.html", page, "", native=native)

    async def request(self, request: Request, visit: _Visit) -> Response:
        """Show one request as it was sent."""
        page = await visit.pages.request(
            visit.session_id,
            int(request.path_params["number"]),
            first=visit.number("from") or 0,
            with_native=visit.is_json,
        )
        tools = json.dumps(page.tools, ensure_ascii=False, indent=2) if page.tools else ""
        pages = _page_links(visit, page.first, page.first + len(page.messages), page.message_count)
        return self._answer(visit, "request.html", page, "", tools=tools, pages=pages)

    async def body(self, request: Request, visit: _Visit) -> Response:
        """Return the bytes of a request as they were sent."""
        number = int(request.path_params["number"])
        body = await visit.pages.body(visit.session_id, number)
        if not (body.is_same or body.is_scrubbed):
            problem = "the log was changed: its bytes do not have the hash that was recorded when they were sent"
            raise MalformedInputError(f"request {number}", problem)
        headers = {"cache-control": "no-store", "x-holdfast-sha256": body.sha256}
        headers |= {"x-holdfast-scrubbed": "1"} if body.is_scrubbed else {}
        return Response(body.content, headers=SECURITY_HEADERS | headers, media_type="application/json")

    async def change(self, request: Request, visit: _Visit) -> Response:
        """Show one change of context."""
        page = await visit.pages.change(visit.session_id, int(request.path_params["number"]))
        return self._answer(visit, "change.html", page, "")

    async def compare(self, _request: Request, visit: _Visit) -> Response:
        """Show the session under two policies, turn by turn."""
        facts = await visit.pages.facts(visit.session_id)
        names = [visit.query.get(name) or usual for name, usual in zip(("one", "other"), DEFAULT_COMPARED, strict=True)]
        budget = visit.number("budget") or facts.budget or DEFAULT_REPLAY_BUDGET
        compared = await self._replays.compare(visit.session_id, names, budget, facts.model or None)
        page = {
            "facts": facts,
            "names": names,
            "known": COMPARABLE_POLICIES,
            "budget": budget,
            "comparison": compared,
            "first": visit.number("from") or 0,
        }
        return self._answer(visit, "compare.html", page, "")

    async def export(self, _request: Request, visit: _Visit) -> Response:
        """Return the session as one file, with keys and passwords removed."""
        text = await export_page(visit.pages, visit.session_id, now_ms=now_ms())
        answer = html_response(text)
        answer.headers["content-disposition"] = f'attachment; filename="{session_slug(visit.session)[:80]}.html"'
        return answer

    # Changes.

    async def preview(self, _request: Request, visit: _Visit) -> Response:
        """Show what a compaction would do, to be edited."""
        self._check_may_change(visit)
        budget = await visit.pages.last_budget(visit.session_id)
        async with self._editor.session(visit.session_id) as session:
            preview = await preview_compaction(session, budget)
        page = {**asdict(preview), "facts": await visit.pages.facts(visit.session_id)}
        return self._answer(visit, "compact.html", page, "")

    async def do(self, request: Request, visit: _Visit) -> Response:
        """Carry out a change, and lead back to the session."""
        self._check_may_change(visit)
        form, action = await form_of(request), str(request.path_params["action"])
        if not is_own_form(visit.reader, form.get("csrf")):
            raise AccessDeniedError(403, "this form is too old, or it was made by another page; open the page again")
        if action == "delete":
            await visit.pages.check_exists(visit.session_id)
            await self._editor.delete(visit.session_id)
            await self._indexes.forget(visit.session_id)
            return RedirectResponse(f"{visit.base}/", 303, SECURITY_HEADERS)
        budget = await visit.pages.last_budget(visit.session_id)
        async with self._editor.session(visit.session_id) as session:
            shown = await apply_change(session, action, form, budget)
        links = SessionLinks(visit.base, shown.removeprefix(visit.pages.prefix))
        return RedirectResponse(links.session, 303, SECURITY_HEADERS)

    def _check_may_change(self, visit: _Visit) -> None:
        if not visit.reader.may_change:
            raise AccessDeniedError(403, "these pages are for reading only; start the viewer with --allow-changes")


def _page_links(visit: _Visit, first: int, stop: int, count: int) -> Mapping[str, str | None]:
    """Return the addresses of the pages around one page of a list."""
    before = None if first <= 0 else visit.link(**{"from": max(0, first - MESSAGES_PER_PAGE)})
    after = None if stop >= count else visit.link(**{"from": stop})
    last = max(0, (count - 1) // MESSAGES_PER_PAGE * MESSAGES_PER_PAGE)
    return {
        "first": visit.link(**{"from": 0}) if before else None,
        "previous": before,
        "next": after,
        "last": visit.link(**{"from": last}) if after else None,
        "json": f"{visit.link()}{'&' if '?' in visit.link() else '?'}format=json",
    }


def html_response(text: str, status: int = 200) -> Response:
    """Return a page that nobody else may store or embed."""
    headers = SECURITY_HEADERS | {"cache-control": "no-store"}
    return Response(text.encode(errors="replace"), status, headers, media_type="text/html; charset=utf-8")


def json_response(value: object, status: int = 200) -> Response:
    """Return a value as JSON."""
    headers = SECURITY_HEADERS | {"cache-control": "no-store"}
    return Response(json.dumps(value, indent=1).encode(), status, headers, media_type="application/json")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a posted form; raises `AccessDeniedError` for one that is too large."""
    fields = parse_qs((await read_own_body(request)).decode(errors="replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}
