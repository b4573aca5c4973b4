"""The pages show what was said, what the model was sent, and why."""

import asyncio
import json
import re
from collections.abc import MutableMapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast import Session
from holdfast.apps.viewer import app as viewer_module
from holdfast.apps.viewer import session_index
from holdfast.apps.viewer.access import ViewerAccess
from holdfast.apps.viewer.app import viewer_app
from holdfast.apps.viewer.pages import context_plot
from holdfast.apps.viewer.rendering import plot_picture, round_up, rounded_dollars, session_of_slug, session_slug
from holdfast.apps.viewer.session_index import SessionIndex
from holdfast.core.conversation.json_values import dump_json, is_utf8
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.codec import to_record
from holdfast.errors import StoreUnavailableError
from holdfast.session.log import event_log
from holdfast.session.maintenance.scrub import TOMBSTONE, scrub
from holdfast.stores.base import StoredRecord, session_value_key
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import tool_result_message, user_message
from tests.viewer.visiting import Browser, PageOutline, record_conversation, visiting


async def test_the_list_says_of_each_session_what_it_is(store: MemoryStore) -> None:
    await record_conversation(store, "other/named", turns=1)
    await store.rename("other/named", "A name of its own")
    async with visiting(store, unnamed_model="gpt-5") as browser:
        page = await browser.json("/")

    named, report = sorted(page["sessions"], key=lambda one: one["id"])
    assert (named["id"], named["title"]) == ("other/named", "A name of its own")
    assert report["title"] == "question 0: why does parser_0 fail on tabs?"
    assert (report["messages"], report["requests"], report["model"]) == (48, 24, "gpt-5")
    assert report["compactions"] > 0
    assert report["dollars"] == pytest.approx(12 * (400 * 1.25 + 20 * 10) / 1e6)
    assert 0 < report["tokens"] <= report["budget"] == 900
    assert page["next"] is None


async def test_a_session_is_shown_by_its_name_beside_many_newer_ones_whose_ids_begin_like_its_own(
    store: MemoryStore,
) -> None:
    await record_conversation(store, "s", turns=1)
    await store.rename("s", "A name of its own")
    (oldest,) = [info for info in await store.sessions() if info.id == "s"]
    for number in range(60):
        await store.append(f"s{number}", [], after=0, time_ms=oldest.updated_ms + 1 + number)
    async with visiting(store) as browser:
        page = await browser.json("/s/s")

    assert page["facts"]["title"] == "A name of its own"


async def test_a_search_finds_everything_that_was_said_with_its_place(browser: Browser) -> None:
    page = await browser.json("/?q=parser_7")

    assert page["query"] == "parser_7"
    hit = next(one for one in page["hits"] if one["speaker"] == "user")
    assert (hit["session"], hit["position"]) == ("report", 28)
    assert "parser_7" in hit["excerpt"]
    assert "/s/report?from=28#m-28" in await browser.page("/?q=parser_7")


async def test_the_transcript_is_beside_what_the_model_is_sent(browser: Browser, store: MemoryStore) -> None:
    page = await browser.json("/s/report")
    async with Session.open("report", store=store) as session:
        sent = {entry.position for entry in await session.visible_messages()} - {None}
        natives = await session.messages_at(0, len(session))

    rows = [row for row in page["rows"] if row["message"]]
    assert [row["message"]["position"] for row in rows] == list(range(len(natives)))
    assert {row["message"]["position"] for row in rows if row["sent"]["kind"] in {"same", "shortened"}} == sent
    replaced = [row for row in rows if row["sent"]["kind"] == "compacted"]
    assert {row["message"]["position"] for row in replaced} == set(range(len(natives))) - sent
    lines = {row["message"]["position"]: row["sent"]["lines"] for row in replaced if row["sent"]["lines"]}
    assert lines
    assert all(f"#{position}" in line for position, found in lines.items() for line in found)


async def test_a_request_can_be_chosen_to_compare_the_transcript_with(browser: Browser) -> None:
    first = await browser.json("/s/report?request=1")

    kinds = {row["message"]["position"]: row["sent"]["kind"] for row in first["rows"] if row["message"]}
    assert kinds == {0: "same", **dict.fromkeys(range(1, 48), "later")}


async def test_every_request_is_exactly_what_was_sent(browser: Browser) -> None:
    sent: list[list[object]] = []
    kept = MemoryStore()
    async with Session.open("live", store=kept, model="gpt-5") as session:
        for turn in range(8):
            await session.record([user_message(f"question {turn} " * 30)])
            sent.append((await session.prepare(700)).messages)
    async with visiting(kept) as other:
        pages = [await other.json(f"/s/live/requests/{number}") for number in range(1, 9)]

    assert [page["native"] for page in pages] == sent
    assert all(page["is_same"] and page["is_chained"] for page in pages)
    whole = [await browser.json(f"/s/report/requests/{number}") for number in range(1, 25)]
    assert all(page["is_same"] and page["is_chained"] for page in whole)


async def test_a_request_whose_log_was_changed_has_no_tick(browser: Browser, store: MemoryStore) -> None:
    forged = to_record(log.MessageAppended(format="openai-chat", native=user_message("forged")))
    length = await store.length("report")
    await store.rewrite("report", {0: forged}, tombstone=to_record(log.TurnInterrupted()), after=length, time_ms=1)

    page = await browser.json("/s/report/requests/1")

    assert page["is_same"] is False
    assert "is not what was sent" in await browser.page("/s/report/requests/1")


async def record_bodies(store: MemoryStore, count: int) -> list[bytes]:
    """Record requests with the bytes that a client sent, which has its own way of writing JSON."""
    messages: list[dict[str, object]] = []
    bodies: list[bytes] = []
    async with Session.open("sent", store=store, model="gpt-5") as session:
        for number in range(count):
            messages.append(user_message(f"question {number}: where is sk-hidden-key-1 used, für Jürgen?"))
            await session.sync(list(messages))
            bodies.append(json.dumps({"stream": True, "messages": messages, "model": "gpt-5"}, indent=1).encode())
            await session.prepare(10**6, encode_body=lambda _, body=bodies[-1]: body)
    return bodies


async def test_the_bytes_of_a_request_are_shown_as_they_were_sent() -> None:
    store = MemoryStore()
    bodies = await record_bodies(store, 70)
    async with visiting(store) as browser:
        raw = [await browser.get(f"/s/sent/requests/{number}/body") for number in (1, 2, 64, 65, 66, 70)]
        page = await browser.json("/s/sent/requests/70")
        shown = await browser.page("/s/sent/requests/70")

    sent = [bodies[number - 1] for number in (1, 2, 64, 65, 66, 70)]
    assert [one.content for one in raw] == sent
    assert [one.headers["x-holdfast-sha256"] for one in raw] == [sha256(one).hexdigest() for one in sent]
    assert page["body"] == {
        "size": len(bodies[-1]),
        "sha256": sha256(bodies[-1]).hexdigest(),
        "is_same": True,
        "is_scrubbed": False,
        "text": bodies[-1].decode(),
        "hidden_bytes": 0,
    }
    assert f"Its {len(bodies[-1]):,} bytes are on record" in shown


async def test_bytes_that_were_scrubbed_have_no_tick() -> None:
    store = MemoryStore()
    [body] = await record_bodies(store, 1)
    await scrub(store, "sent", "sk-hidden-key-1", time_ms=1)
    async with visiting(store) as browser:
        raw, shown = await browser.get("/s/sent/requests/1/body"), await browser.page("/s/sent/requests/1")

    assert raw.content == body.replace(b"sk-hidden-key-1", TOMBSTONE.encode())
    assert raw.headers["x-holdfast-scrubbed"] == "1"
    assert "A secret was scrubbed from the log" in shown


async def test_bytes_that_were_changed_have_no_tick_and_are_not_passed_off_as_sent() -> None:
    store = MemoryStore()
    await record_bodies(store, 1)
    records = await store.read("sent", start=0, limit=100)
    [sent] = [one for one in records if one.record["type"] == log.RequestPrepared.KIND]
    forged = json.loads(json.dumps(sent.record).replace("question 0", "answer 0"))
    tombstone = to_record(log.TurnInterrupted())
    await store.rewrite("sent", {sent.position: forged}, tombstone=tombstone, after=len(records), time_ms=1)
    async with visiting(store) as browser:
        raw, shown = await browser.get("/s/sent/requests/1/body"), await browser.page("/s/sent/requests/1")

    assert raw.status_code == 400
    assert "do not have the hash that was recorded" in raw.text
    assert "do not have the SHA-256 that was recorded" in shown


async def test_a_request_whose_bytes_nobody_handed_over_says_so(browser: Browser) -> None:
    page, raw = await browser.json("/s/report/requests/2"), await browser.get("/s/report/requests/2/body")

    assert (page["body"], page["body_problem"], raw.status_code) == (None, "", 404)
    assert "did not hand over its bytes" in await browser.page("/s/report/requests/2")


async def test_a_change_says_what_it_saved_and_what_it_cost(store: MemoryStore) -> None:
    async with visiting(store, unnamed_model="gpt-5") as browser:
        before = await browser.json("/s/report")
        async with Session.open("report", store=store, model="gpt-5") as session:
            await session.undo()
            await session.record([user_message("one more")])
            await session.prepare(900, system="You are careful.")
        after = await browser.json("/s/report")

    changes = before["changes"]
    for change in changes:
        requests = 24 - change["request_before"]
        tokens = (change["tokens_before"] - change["tokens_after"]) * requests
        saved = change["savings"]
        assert (saved["tokens"], saved["requests"]) == (tokens, requests)
        assert saved["dollars"] == pytest.approx(tokens * 0.125 / 1e6)
        assert 0 < saved["cost"] < 0.01
    assert before["savings"] == {
        "tokens": sum(change["savings"]["tokens"] for change in changes),
        "requests": changes[0]["savings"]["requests"],
        "dollars": pytest.approx(sum(change["savings"]["dollars"] for change in changes)),
        "cost": pytest.approx(sum(change["savings"]["cost"] for change in changes)),
    }
    first, last = after["changes"][0], after["changes"][len(changes) - 1]
    assert first["savings"]["requests"] == changes[0]["savings"]["requests"] + 1
    assert last["is_undone"] is True
    assert last["savings"]["requests"] == changes[-1]["savings"]["requests"], "it is not in force any more"


async def test_a_request_that_extends_the_one_before_keeps_the_cache(browser: Browser) -> None:
    page = await browser.json("/s/report/requests/2")

    assert page["cache"]["is_prefix"] is True
    assert (page["cache"]["previous"], page["cache"]["same_messages"], page["cache"]["lost_tokens"]) == (1, 1, 0)
    assert [(row["kind"], row["count"]) for row in page["diff"]] == [("same", 1), ("added", 2)]


async def test_the_first_byte_that_breaks_the_cache_is_found_with_its_cost(store: MemoryStore) -> None:
    async with visiting(store, unnamed_model="gpt-5") as browser:
        change = (await browser.json("/s/report/changes/1"))["change"]
        page = await browser.json(f"/s/report/requests/{change['request_after']}")
        before = await browser.json(f"/s/report/requests/{page['cache']['previous']}")

    cache = page["cache"]
    texts = [as_sent(one) for one in (before, page)]
    first = next(at for at, (one, other) in enumerate(zip(*texts, strict=False)) if one != other)
    assert (cache["is_prefix"], cache["byte"]) == (False, len(texts[1][:first].encode()))
    assert texts[0][first:].startswith(cache["was"][:20])
    assert texts[1][first:].startswith(cache["now"][:20])
    assert 0 < cache["lost_tokens"] <= before["tokens"]
    assert 0 < cache["rewritten_tokens"] < page["tokens"]
    assert cache["dollars"] == pytest.approx(cache["rewritten_tokens"] * 1.25 / 1e6)
    assert "a compaction since the last request" in cache["reason"]


def as_sent(page: dict[str, Any]) -> str:
    """Return a request in the encoding in which its bytes are counted."""
    head = dump_json([page["system"] or "", page["tools"] or []])
    return head + "".join(f"{dump_json(message)}," for message in page["native"])


async def test_a_changed_system_text_or_tool_breaks_the_cache_before_the_first_message() -> None:
    store, tool = MemoryStore(), {"type": "function", "function": {"name": "look", "parameters": {}}}
    async with Session.open("s", store=store, model="gpt-5") as session:
        await session.record([user_message("hello")])
        await session.prepare(9_000, system="Be brief.")
        await session.prepare(9_000, system="Be kind.")
        await session.prepare(9_000, system="Be kind.", tools=[tool])

    async with visiting(store) as browser:
        pages = [await browser.json(f"/s/s/requests/{number}") for number in (2, 3)]

    breaks = [page["cache"] for page in pages]
    assert [(one["place"], one["same_messages"], one["is_prefix"]) for one in breaks] == [
        ("the system text", 0, False),
        ("the tools", 0, False),
    ]
    assert [one["byte"] for one in breaks] == [len('["Be '), len('["Be kind.",[')]
    assert [(one["was"], one["now"][:8]) for one in breaks] == [('brief.",[]]', 'kind.",['), ("]]", '{"type":')]


async def test_each_line_of_a_summary_opens_its_sources(browser: Browser) -> None:
    page = await browser.json("/s/report/changes/1")

    change, lines = page["change"], [line for part in page["replacement"] for line in part]
    assert change["tokens_before"] > change["tokens_after"] > 0
    assert (change["kind"], change["is_undone"]) == ("session.compaction_complete", False)
    named = [line for line in lines if line["sources"]]
    assert named
    for line in named:
        for at in line["sources"]:
            assert f"#{at}" in line["text"]
            assert page["sources"][str(at)]["position"] == at


async def test_a_receipt_of_a_request_tells_what_became_of_every_message(browser: Browser) -> None:
    page = await browser.json("/s/report/requests/24")

    receipt = dict(page["receipt"])
    assert receipt["budget"] == "900 tokens (user)"
    assert receipt["policy"].startswith("default:")
    assert "compacted" in receipt


async def test_the_plot_has_a_point_for_each_request_and_its_drops(browser: Browser) -> None:
    plot = json.loads(await browser.page("/s/report/plot"))

    assert plot["requests"] == list(range(1, 25))
    totals = [sum(sizes) for sizes in zip(*plot["parts"].values(), strict=True)]
    requests = [await browser.json(f"/s/report/requests/{number}") for number in (1, 12, 24)]
    assert [totals[0], totals[11], totals[23]] == [request["tokens"] for request in requests]
    for request, _ in plot["drops"]:
        assert totals[request - 1] < totals[request - 2]


async def test_the_picture_of_the_plot_has_steps_and_named_axes(store: MemoryStore) -> None:
    index = SessionIndex(store, "report")
    await index.refresh()
    plot = context_plot(index)

    picture = str(plot_picture(plot))

    user = re.search(r'class="part-user" points="([^"]*)"', picture)
    assert user
    corners = [tuple(map(float, point.split(","))) for point in user[1].split(" ")][: 2 * len(plot.requests)]
    assert all(one[1] == other[1] for one, other in zip(corners[::2], corners[1::2], strict=True)), "each step is level"
    assert all(one[0] == other[0] for one, other in zip(corners[1:-1:2], corners[2::2], strict=True)), (
        "and drops are not"
    )
    assert re.findall(r"<span[^>]*>([^<]*)</span>", picture) == ["tokens", "1k", "500", "0", "1", "request", "24"]


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(None, "–"), (0, "$0.00"), (1.5, "$1.50"), (0.0123, "$0.01"), (0.001283, "$0.0013")],
)
def test_an_amount_below_a_cent_has_two_digits_that_say_something(amount: float | None, shown: str) -> None:
    assert rounded_dollars(amount) == shown


@pytest.mark.parametrize(("value", "end"), [(1, 1), (7, 8), (900, 1_000), (5_371, 6_000), (128_000, 160_000)])
def test_an_axis_ends_at_a_number_that_reads_well(value: int, end: int) -> None:
    assert round_up(value) == end


async def test_a_long_plot_keeps_its_highest_and_its_lowest_points(store: MemoryStore) -> None:
    index = SessionIndex(store, "report")
    await index.refresh()

    whole, thinned = context_plot(index), context_plot(index, max_points=8)

    totals, few = ([sum(sizes) for sizes in zip(*one.parts.values(), strict=True)] for one in (whole, thinned))
    assert (whole.total, thinned.total, len(totals)) == (24, 24, 24)
    assert len(few) <= 8
    assert (max(few), min(few)) == (max(totals), min(totals))


async def test_a_message_with_numbers_that_json_has_not_is_json_for_programs(store: MemoryStore) -> None:
    async with Session.open("odd", store=store) as session:
        await session.record([user_message("x") | {"score": float("inf")}], format="openai-chat")
    async with visiting(store) as browser:
        page = await browser.get("/s/odd/messages/0?format=json")

    assert orjson.loads(page.content)["native"] == {"role": "user", "content": "x", "score": None}


async def test_a_message_is_shown_in_full_with_its_json(browser: Browser) -> None:
    page = await browser.json("/s/report/messages/2")

    assert page["native"] == tool_result_message("c0", "line of parser_0\n" * 12)
    assert page["message"]["parts"][0]["text"] == "line of parser_0\n" * 12


async def test_a_page_of_a_live_session_is_sent_again_only_when_something_was_said(
    browser: Browser, store: MemoryStore
) -> None:
    [address] = [one for one in PageOutline(await browser.page("/s/report")).links if "live=" in one]

    same = await browser.get(address)
    async with Session.open("report", store=store) as session:
        await session.record([user_message("one more thing")])
    changed = await browser.get(address)

    assert (same.status_code, same.text) == (204, "")
    assert "one more thing" in changed.text


async def test_an_open_page_is_told_when_something_has_changed(store: MemoryStore) -> None:
    access, news = ViewerAccess(), asyncio.Queue[bytes]()
    app = viewer_app(store, access=access)
    cookie = f"{access.cookie}={access.sign_in(access.new_token())}"

    async def send(message: MutableMapping[str, Any]) -> None:
        if message.get("body"):
            news.put_nowait(message["body"])

    async def follow(path: str, state: str) -> None:
        headers = [(b"host", b"127.0.0.1"), (b"cookie", cookie.encode())]
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "query_string": state.encode()}
        await app(scope, asyncio.Event().wait, send)  # pyright: ignore[reportArgumentType]

    length = await store.length("report")
    streams = [
        asyncio.create_task(follow("/s/report/live", f"state={length}-{length}")),
        asyncio.create_task(follow("/live", "state=0-0")),
    ]
    listed = await news.get()
    async with Session.open("report", store=store) as session:
        await session.record([user_message("one more thing")])
    newest, longer, told = (await store.sessions(limit=1))[0].updated_ms, await store.length("report"), set[bytes]()
    # The second number is how far the page's index has read, which may change by itself before the other page is told.
    of_session = {f"data: {longer}-{read}\n\n".encode() for read in (length, longer)}
    async with asyncio.timeout(60):
        while not (told & of_session and any(one.startswith(f"data: {newest}-".encode()) for one in told)):
            told.add(await news.get())
    app.state.stop_streams()
    async with asyncio.timeout(60):
        await asyncio.gather(*streams)
    await app.state.close()

    assert listed.startswith(b"data: ")
    assert longer > length


async def test_an_open_page_is_told_of_changes_when_its_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(MemoryStore):
        is_away, was_missed = False, asyncio.Event()

        async def length(self, session: str) -> int:
            if self.is_away:
                self.was_missed.set()
                raise StoreUnavailableError("postgresql", "the server cannot be reached")
            return await super().length(session)

    monkeypatch.setattr(viewer_module, "NEWS_SECONDS", 0.01)
    store, news = Away(), asyncio.Queue[bytes]()
    async with Session.open("s", store=store) as session:
        await session.record([user_message("one")])
    access = ViewerAccess()
    app = viewer_app(store, access=access)
    cookie = f"{access.cookie}={access.sign_in(access.new_token())}"

    async def send(message: MutableMapping[str, Any]) -> None:
        if message.get("body"):
            news.put_nowait(message["body"])

    headers = [(b"host", b"127.0.0.1"), (b"cookie", cookie.encode())]
    scope = {"type": "http", "method": "GET", "path": "/s/s/live", "headers": headers, "query_string": b""}
    stream = asyncio.create_task(app(scope, asyncio.Event().wait, send))  # pyright: ignore[reportArgumentType]
    first = await news.get()
    store.is_away = True
    waiting = asyncio.create_task(store.was_missed.wait())
    await asyncio.wait({stream, waiting}, return_when=asyncio.FIRST_COMPLETED)
    store.is_away = False
    async with Session.open("s", store=store) as session:
        await session.record([user_message("two")])
    async with asyncio.timeout(60):
        second = await news.get()
        app.state.stop_streams()
        await stream
    await app.state.close()

    assert [one.partition(b"-")[0] for one in (first, second)] == [b"data: 1", b"data: 2"]


async def test_an_undone_compaction_is_told_as_undone(browser: Browser, store: MemoryStore) -> None:
    before = await browser.json("/s/report")
    async with Session.open("report", store=store) as session:
        await session.undo()
    after = await browser.json("/s/report")

    assert [change["is_undone"] for change in before["changes"]] == [False] * len(before["changes"])
    assert [change["is_undone"] for change in after["changes"]][-1] is True
    assert any(row["note"] == "the last change of context is undone" for row in after["rows"])


async def test_two_policies_are_compared_turn_by_turn(browser: Browser) -> None:
    path = "/s/report/compare?one=default&other=full&budget=4000"
    while (page := await browser.json(path))["comparison"] is None:
        pass

    ours, full = page["comparison"]["totals"]
    turns = page["comparison"]["turns"]
    assert (ours["policy"], full["policy"], page["comparison"]["budget"]) == ("default", "full", 4_000)
    assert [turn["number"] for turn in turns] == list(range(1, 25))
    assert full["sent_tokens"] == sum(turn["sent_tokens"][1] for turn in turns)
    assert full["compactions"] == 0
    assert "Turn by turn" in await browser.page(path)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/s/unknown", 404),
        ("/s/report/requests/99", 404),
        ("/s/report/requests/0", 404),
        ("/s/report/changes/99", 404),
        ("/s/report/messages/9999", 404),
        ("/s/report/compare?one=/etc/passwd.toml", 400),
        ("/s/report/compare?budget=1", 400),
        ("/s/report?from=abc", 400),
        ("/s/report?from=-1", 400),
        ("/?after=nonsense", 400),
        ("/s/~ZZ", 400),
        ("/nothing/here", 404),
    ],
)
async def test_a_wrong_address_is_told_as_a_page_and_as_json(path: str, status: int, browser: Browser) -> None:
    page, value = await browser.get(path), await browser.get(f"{path}{'&' if '?' in path else '?'}format=json")

    assert (page.status_code, value.status_code) == (status, status)
    assert set(json.loads(value.text)) == {"error"}


@settings(max_examples=60)
@given(st.text(min_size=1))
def test_a_session_id_is_one_segment_of_a_path(session: str) -> None:
    assume(is_utf8(session))

    slug = session_slug(session)

    assert session_of_slug(slug) == session
    assert slug.isascii()
    assert not set(slug) & set("/?#%& ")


async def test_a_scrubbed_secret_leaves_the_pages_too(browser: Browser, store: MemoryStore) -> None:
    assert "parser_3" in await browser.page("/s/report/messages/12")

    await scrub(store, "report", "parser_3", time_ms=5)

    pages = [await browser.page(path) for path in ("/s/report/messages/12", "/s/report", "/s/report/requests/7")]
    assert not any("parser_3" in page for page in pages)


@pytest.mark.parametrize("is_open_before", [True, False], ids=["open before", "opened later"])
async def test_a_long_log_with_a_scrub_is_read_to_its_end(store: MemoryStore, *, is_open_before: bool) -> None:
    async with Session.open("long", store=store) as session:
        await session.record([user_message(f"sk-hidden-key-1 in message {number}") for number in range(300)])
    index = SessionIndex(store, "long")
    if is_open_before:
        await index.refresh()
    for time_ms, secret in enumerate(("sk-hidden-key-1", "in message"), start=1):
        await scrub(store, "long", secret, time_ms=time_ms)

    async with asyncio.timeout(60):
        await index.refresh()
    async with index.lock:
        loaded = await index.load([0, 299])

    assert (index.is_complete, index.message_count) == (True, 300)
    assert [one.message.text for one in loaded.values()] == [
        f"{TOMBSTONE} {TOMBSTONE} 0",
        f"{TOMBSTONE} {TOMBSTONE} 299",
    ]
    assert [mark.kind for mark in index.marks] == [log.SessionScrubbed.KIND, log.SessionScrubbed.KIND]
    await index.close()


async def test_a_log_that_is_being_read_shows_its_messages_at_once(tmp_path: Path) -> None:
    kept = SqliteStore(tmp_path / "long.db")
    async with Session.open("long", store=kept) as session:
        await session.record([user_message(f"message {number}") for number in range(2_400)])
    index = SessionIndex(kept, "long")

    await index.refresh(wait_seconds=0)
    known = index.message_count, index.is_complete
    async with index.lock:
        loaded = await index.load([2_399])
    await index.refresh()

    assert known == (2_400, False)
    assert loaded[2_399].message.text == "message 2399"
    assert (index.message_count, index.is_complete) == (2_400, True)
    await index.close()
    await kept.close()


@pytest.mark.parametrize("kind", ["messages", "requests", "changes"])
async def test_a_number_that_no_log_has_is_no_page(browser: Browser, kind: str) -> None:
    assert (await browser.get(f"/s/report/{kind}/{'9' * 5_000}")).status_code == 404


@pytest.mark.parametrize("time_ms", [10**17, -(10**17)])
async def test_a_session_of_a_machine_whose_clock_was_far_off_is_shown(store: MemoryStore, time_ms: int) -> None:
    await store.append("adrift", [to_record(said("hello"))], after=0, time_ms=time_ms)

    async with visiting(store) as browser:
        pages = [await browser.page(path) for path in ("/", "/s/adrift", "/s/adrift/messages/0", "/s/adrift/export")]

    assert ["adrift" in page for page in pages] == [True] * 4


async def test_a_long_list_goes_on_on_its_next_page(store: MemoryStore) -> None:
    for number in range(60):
        await store.append(f"s{number:02}", [to_record(said("hello"))], after=0, time_ms=number)

    async with visiting(store) as browser:
        first = await browser.json("/")
        second = await browser.json(f"/?after={first['next']}")
        wrong = await browser.get("/?after=99999999999999999999:s01&format=json")

    listed = [one["id"] for page in (first, second) for one in page["sessions"]]
    assert listed == ["report", *(f"s{number:02}" for number in reversed(range(60)))]
    assert (second["next"], wrong.status_code) == (None, 400)


@pytest.mark.parametrize("count", [1, 200])
async def test_a_session_that_was_deleted_and_begun_again_is_read_anew(
    count: int, browser: Browser, store: MemoryStore
) -> None:
    before = await browser.json("/s/report?from=0")
    await store.delete("report")
    async with Session.open("report", store=store) as session:
        await session.record([user_message(f"a new beginning {number}") for number in range(count)])
    after = await browser.json("/s/report?from=0")

    shown = [row["message"]["parts"][0]["text"] for row in after["rows"] if row["message"]]
    assert (before["message_count"], after["message_count"]) == (48, count)
    assert shown == [f"a new beginning {number}" for number in range(len(shown))]


def said(text: str, usage: log.Usage | None = None) -> log.MessageAppended:
    role = "assistant" if usage else "user"
    return log.MessageAppended(format="openai-chat", native={"role": role, "content": text}, usage=usage)


async def test_changes_of_every_kind_are_told_where_no_request_is_on_record() -> None:
    store, usage = MemoryStore(), log.Usage(input_tokens=1_000, output_tokens=10)
    events: list[log.Event] = [
        log.ModelSwitched(model="gpt-5"),
        said("one"),
        said("first answer", usage),
        log.ChangeUndone(),
        log.CompactionCompleted(success=False, error="the model failed"),
        log.CompactionCompleted(
            success=True,
            span=Span(stop=2),
            replacement=("A summary.",),
            pre_compaction_tokens=1_000,
            post_compaction_tokens=100,
            summary=log.Summary(text="A summary.", dollars=0.25),
        ),
        said("two"),
        said("second answer", log.Usage(output_tokens=10)),
        log.SideCallRecorded(purpose="title", answer="Two", model="gpt-5", usage=usage),
        said("two again"),
        said("third answer", usage),
        log.Rewound(to=4),
        log.ContextCleared(),
        said("three"),
        said("fourth answer", usage),
    ]
    await store.append("s", [to_record(event) for event in events], after=0, time_ms=1)

    async with visiting(store) as browser:
        page = await browser.json("/s/s")

    saved = [(one["kind"], one["savings"] and one["savings"]["tokens"]) for one in page["changes"]]
    assert saved == [
        ("session.compaction_complete", None),
        ("session.compaction_complete", 900),
        ("session.rewound", None),
        ("session.context_cleared", None),
    ]
    sent = [row["sent"]["kind"] for row in page["rows"] if row["message"]]
    assert sent == ["cleared"] * 4 + ["rewound"] * 2 + ["same"] * 2
    assert page["billed"]["input_tokens"] == 4_000
    assert page["facts"]["dollars"] == pytest.approx(0.25 + 4_000 * 1.25 / 1e6 + 50 * 10 / 1e6)


async def test_only_the_sessions_and_messages_looked_at_last_stay_in_memory(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_index, "MAX_INDEXES", 1)
    monkeypatch.setattr(session_index, "MAX_LOADED_MESSAGES", 3)
    await record_conversation(store, "other", turns=2)

    async with visiting(store) as browser:
        shown = [await browser.json(path) for path in ("/s/report", "/s/other", "/s/report")]
        found = [await browser.page(f"/s/report/messages/{number}") for number in (0, 47)]

    assert shown[0] == shown[2]
    assert ["question 0" in found[0], "answer 11" in found[1]] == [True, True]


class SlowStore(MemoryStore):
    """A store that reads the log of one session, from some record on, only once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.slow_from, self.reached, self.goes_on = "", 0, asyncio.Event(), asyncio.Event()

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        if session == self.slow and start >= self.slow_from:
            self.reached.set()
            await self.goes_on.wait()
        return await super().read(session, start=start, limit=limit)


@pytest.fixture
async def slow_store() -> SlowStore:
    """A slow store with two sessions."""
    store = SlowStore()
    for name in ("long", "other"):
        async with Session.open(name, store=store) as session:
            await session.record([user_message(f"hello from {name}")])
    store.slow = "long"
    return store


async def test_a_page_that_waits_for_a_long_log_is_answered_though_others_are_looked_at(
    slow_store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_index, "MAX_INDEXES", 1)

    async with visiting(slow_store) as browser:
        waiting = asyncio.create_task(browser.get("/s/long"))
        await slow_store.reached.wait()
        other = await browser.get("/s/other")
        slow_store.goes_on.set()
        long = await waiting

    assert (other.status_code, long.status_code) == (200, 200)
    assert "hello from long" in long.text


async def test_a_session_that_is_begun_again_while_its_log_is_read_is_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_index, "RECORDS_PER_STEP", 2)
    store = SlowStore()

    async def begin(word: str) -> None:
        async with Session.open("s", store=store) as session:
            await session.record([user_message(f"{word} {number}") for number in range(6)])

    await begin("old")
    store.slow, store.slow_from = "s", 2
    index = SessionIndex(store, "s")
    first = asyncio.create_task(index.refresh())
    await store.reached.wait()  # the next step holds the lock of the index
    store.slow = ""
    await store.delete("s")
    await begin("new")
    page = asyncio.create_task(index.lock.acquire())
    second = asyncio.create_task(index.refresh())
    await others_go_on()
    store.goes_on.set()
    await page
    await others_go_on()
    index.lock.release()
    await asyncio.gather(first, second)
    async with index.lock:
        loaded = await index.load(range(6))
    await index.close()

    assert [loaded[at].message.text for at in sorted(loaded)] == [f"new {number}" for number in range(6)]


async def test_nothing_is_left_of_a_session_that_was_deleted_and_begun_again_while_its_long_log_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_index, "RECORDS_PER_STEP", 2)
    monkeypatch.setattr(session_index, "SNAPSHOT_MIN_RECORDS", 2)
    monkeypatch.setattr(event_log, "SNAPSHOT_AT_CLOSE", 1)
    store = SlowStore()

    async def begin(client: str, count: int) -> None:
        async with Session.open("s", store=store) as session:
            await session.record([user_message(f"{client} {number}") for number in range(count)])
        await store.put_value(session_value_key("s", "client"), {"client": client, "model": f"{client}-model"})

    await begin("old", 6)
    store.slow, store.slow_from = "s", 2
    index = SessionIndex(store, "s")
    first = asyncio.create_task(index.refresh())
    await store.reached.wait()
    known_of_old = index.message_count, index.client, index.client_model
    before, store.slow = store.goes_on, ""
    await store.delete("s")
    await begin("new", 4)
    store.slow, store.slow_from, store.reached, store.goes_on = "s", 0, asyncio.Event(), asyncio.Event()
    second = asyncio.create_task(index.refresh())
    await others_go_on()
    before.set()
    await store.reached.wait()
    await others_go_on()
    known_of_new = index.message_count, index.client, index.client_model
    store.goes_on.set()
    await asyncio.gather(first, second)
    await index.close()

    assert known_of_old == (6, "old", "old-model")
    assert known_of_new == (0, "new", "new-model")
    assert index.message_count == 4


async def others_go_on() -> None:
    """Let other tasks go on until they wait for something."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_session_can_be_deleted_while_its_long_log_is_read(slow_store: SlowStore) -> None:
    async with visiting(slow_store, may_change=True) as browser:
        token = re.findall(r'name="csrf" value="([^"]+)"', await browser.page("/s/other"))[0]
        waiting = asyncio.create_task(browser.get("/s/long"))
        await slow_store.reached.wait()
        deleted = await browser.client.post("/s/long/do/delete", data={"csrf": token})
        again = await browser.client.post("/s/long/do/delete", data={"csrf": token})
        long = await waiting

    assert (deleted.status_code, again.status_code, long.status_code) == (200, 404, 404)
    assert await slow_store.length("long") == 0


async def test_a_file_of_the_pages_is_kept_by_browsers_and_others_are_not_there(browser: Browser) -> None:
    style, icon, secret = [await browser.get(path) for path in ("/static/viewer.css", "/favicon.ico", "/static/x.py")]

    assert (style.status_code, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
    assert "immutable" in style.headers["cache-control"]
    assert (secret.status_code, secret.text) == (404, "there is no such file")


async def test_messages_of_which_only_the_text_is_sent_and_the_lines_of_a_summary_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_index, "SNAPSHOT_MIN_RECORDS", 1)
    store = MemoryStore()
    lines = "\n".join(f"Line {number} of a summary [#0]." for number in range(9))
    events: list[log.Event] = [
        said("one"),
        said("two", log.Usage(output_tokens=1)),
        log.CompactionCompleted(success=True, span=Span(stop=2), replacement=(lines,)),
        said("three"),
        said("four", log.Usage(output_tokens=1)),
        log.TurnsReducedToText(line=4),
        said("five"),
    ]
    await store.append("s", [to_record(event) for event in events], after=0, time_ms=1)

    async with visiting(store) as browser:
        rows = [row for row in (await browser.json("/s/s"))["rows"] if row["message"]]

    assert [row["sent"]["kind"] for row in rows] == ["compacted", "compacted", "text_only", "text_only", "same"]
    assert rows[0]["sent"]["lines"] == [f"Line {number} of a summary [#0]." for number in range(6)]


@pytest.mark.parametrize(("session", "slug"), [(".", "~2E"), ("..", "~2E~2E"), ("...", "..."), (".a", ".a")])
def test_the_address_of_a_session_is_one_that_a_browser_does_not_shorten(session: str, slug: str) -> None:
    address = f"http://h/s/{session_slug(session)}/requests/1"

    assert urljoin(address, address) == urljoin("http://h/", f"/s/{slug}/requests/1") == address
    assert session_of_slug(session_slug(session)) == session
