"""A browser for the tests of the viewer: it signs in, keeps its cookie, and reads pages as HTML or as JSON."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import httpx

from holdfast import Session
from holdfast.apps.viewer.access import ViewerAccess
from holdfast.apps.viewer.app import viewer_app
from holdfast.stores.base import Store
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

ADDRESS = "http://127.0.0.1:8788"


class Browser:
    """A client that has signed in."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    async def page(self, path: str) -> str:
        """Return a page that is there."""
        answer = await self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def json(self, path: str) -> Any:
        """Return a page as JSON."""
        return json.loads(await self.page(f"{path}{'&' if '?' in path else '?'}format=json"))


@asynccontextmanager
async def visiting(store: Store, **options: Any) -> AsyncGenerator[Browser]:
    """Serve the pages of a store, and sign in."""
    access = options.pop("access", None) or ViewerAccess(may_change=options.pop("may_change", False))
    app = viewer_app(store, access=access, **options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ADDRESS, follow_redirects=True) as client:
        await client.get("/", params={"token": access.new_token()})
        try:
            yield Browser(client)
        finally:
            await app.state.close()


async def record_conversation(store: Store, session_id: str = "report", *, turns: int = 12, budget: int = 900) -> None:
    """Record a conversation that has outgrown its budget, with a request for each answer."""
    async with Session.open(session_id, store=store, model="gpt-5") as session:
        for turn in range(turns):
            await session.record([user_message(f"question {turn}: why does parser_{turn} fail on tabs?")])
            await session.prepare(budget, system="You are careful.")
            call = tool_call_message(f"c{turn}", arguments={"path": f"src/parser_{turn}.py"})
            await session.record([call, tool_result_message(f"c{turn}", f"line of parser_{turn}\n" * 12)])
            await session.prepare(budget, system="You are careful.")
            await session.record(
                [assistant_message(f"answer {turn}: it expects spaces.")],
                usage={"prompt_tokens": 400, "completion_tokens": 20, "total_tokens": 420},
            )


class PageOutline(HTMLParser):
    """The elements of a page that a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str | None] = []
        self.styles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append(f"{tag} {name}")
            if name in {"href", "src", "action", "hx-get"} and value is not None:
                self.links.append(value)
            if name == "style":
                self.styles.append(str(value))
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))
