"""Whatever people, models and tools wrote is text on a page: nothing of it becomes an element, a link or a script."""

import asyncio
import json
from collections.abc import AsyncGenerator
from copy import deepcopy

import pytest

from holdfast import Session
from holdfast.apps.viewer.export import export_page
from holdfast.apps.viewer.pages import Pages
from holdfast.apps.viewer.session_index import SessionIndexes
from holdfast.core.history import events as log
from holdfast.stores.base import session_value_key
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_result_message, user_message
from tests.viewer.visiting import Browser, PageOutline, visiting

SCRIPT = "<script>document.title='PWNED'</script>"
HOSTILE = (
    f"{SCRIPT}<img src=x onerror=\"document.title='PWNED'\">\"'><svg onload=alert(1)></textarea></pre></template>"
    "</style></details>{{7*7}}{% raw %}[x](javascript:alert(1)) javascript:alert(1) \x1b]0;PWNED\x07 \u202egnp.exe "
    "&amp;lt;"
)
SESSION = 'evil"><script>alert(1)</script>/~%2F?x=1#y'
PATHS = [
    "",
    "?from=0&request=1",
    "/messages/0",
    "/messages/1",
    "/messages/2",
    "/requests/1",
    "/requests/2",
    "/changes/1",
]


async def record_hostile_session(store: MemoryStore) -> None:
    """Record a session in which every field that somebody can write is hostile."""
    async with Session.open(SESSION, store=store, model="gpt-5") as session:
        for turn in range(6):
            await session.record([user_message(f"question {turn} {HOSTILE}")])
            tool = {"type": "function", "function": {"name": HOSTILE, "description": HOSTILE, "parameters": {}}}
            await session.prepare(1_200, system=HOSTILE, tools=[tool])
            function = {"name": HOSTILE, "arguments": json.dumps({"path": HOSTILE})}
            call = {"id": f"c{turn}{HOSTILE}", "type": "function", "function": function}
            await session.record([{"role": "assistant", "content": HOSTILE, "tool_calls": [call]}])
            await session.record([tool_result_message(f"c{turn}{HOSTILE}", f"{HOSTILE} " * 3)])
            await session.prepare(1_200, system=HOSTILE, tools=[tool])
            await session.record([assistant_message(HOSTILE)])
        await session.record_state(log.AgentChanged(name=HOSTILE, summary=HOSTILE))
        await session.switch_model(HOSTILE)
    await store.rename(SESSION, HOSTILE.replace("\n", " "))
    await store.put_value(session_value_key(SESSION, "client"), {"client": HOSTILE, "model": HOSTILE})


@pytest.fixture(scope="module")
def recorded_hostile() -> MemoryStore:
    store = MemoryStore()
    asyncio.run(record_hostile_session(store))
    return store


@pytest.fixture
async def hostile_store(recorded_hostile: MemoryStore) -> AsyncGenerator[MemoryStore]:
    """A copy of a store in which every field that somebody can write is hostile."""
    store = deepcopy(recorded_hostile)
    yield store
    await store.close()


def check_page(text: str) -> None:
    """Assert that a page has only elements and addresses of ours."""
    outline = PageOutline(text)
    assert SCRIPT not in text
    assert outline.handlers == []
    assert outline.styles == []
    assert not {"object", "iframe", "embed", "base"} & set(outline.tags)
    assert [src for src in outline.scripts if src is None or not src.startswith("/static/")] == []
    assert [link for link in outline.links if not link.startswith(("/", "?", "#"))] == []
    assert outline.tags.count("img") <= 1
    assert "49" not in outline.tags
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("path", PATHS)
async def test_hostile_text_in_every_field_stays_text(path: str, hostile_store: MemoryStore) -> None:
    async with visiting(hostile_store, may_change=True) as browser:
        [address] = [one for one in PageOutline(await browser.page("/")).links if one.startswith("/s/")]
        page = await browser.page(f"{address}{path}")

    check_page(page)
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("query", [HOSTILE, SCRIPT, '"><b>', "question"])
async def test_a_search_for_markup_shows_it_as_text(query: str, hostile_store: MemoryStore) -> None:
    async with visiting(hostile_store) as browser:
        answer = await browser.client.get("/", params={"q": query})

    check_page(answer.text)


@pytest.mark.parametrize("path", [f"/{SCRIPT}", f"/s/{SCRIPT}", f"/s/report?from={SCRIPT}", f"/?after={SCRIPT}"])
async def test_an_address_with_markup_is_told_as_text(path: str, browser: Browser) -> None:
    check_page((await browser.get(path)).text)


async def test_the_preview_of_a_compaction_keeps_hostile_text_inside_its_text_area(hostile_store: MemoryStore) -> None:
    async with visiting(hostile_store, may_change=True) as browser:
        [address] = [one for one in PageOutline(await browser.page("/")).links if one.startswith("/s/")]
        page = await browser.page(f"{address}/compact")

    check_page(page)


async def test_an_export_needs_nothing_and_runs_nothing(hostile_store: MemoryStore) -> None:
    indexes = SessionIndexes(hostile_store)
    text = await export_page(Pages(indexes), SESSION, now_ms=0)

    outline = PageOutline(text)
    assert outline.scripts == outline.handlers == outline.styles == []
    assert [link for link in outline.links if not link.startswith("#")] == []
    assert not {"img", "link", "iframe", "object", "form"} & set(outline.tags)
    assert all(f"question {turn}" in text for turn in range(6))
    assert "default-src 'none'" in text
    await indexes.close()


async def test_an_export_has_no_keys_unless_they_are_asked_for(store: MemoryStore) -> None:
    secret = "sk-ant-api03-" + "Ab1" * 20
    async with Session.open("report", store=store) as session:
        await session.record([user_message(f"my key is {secret}")])
    indexes = SessionIndexes(store)
    redacted = await export_page(Pages(indexes), "report", now_ms=0)
    whole = await export_page(Pages(indexes), "report", now_ms=0, is_redacted=False)

    assert secret not in redacted
    assert "[redacted]" in redacted
    assert secret in whole
    await indexes.close()
