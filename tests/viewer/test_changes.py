"""Where changes are allowed, a reader can make them, with a form that no other page can write."""

import re

import pytest

from holdfast import Session
from holdfast.apps.viewer.changes import StoreEditor
from holdfast.core.history import events as log
from holdfast.session.log.records import StoredLog
from holdfast.stores.memory import MemoryStore
from tests.viewer.visiting import Browser, visiting


async def post(browser: Browser, action: str, **fields: str) -> int:
    """Send the form of a change, and return the status."""
    found = re.search(r'name="csrf" value="([^"]+)"', await browser.page("/s/report"))
    assert found
    data = {"csrf": found[1]} | fields
    return (await browser.client.post(f"/s/report/do/{action}", data=data)).status_code


async def last_event(store: MemoryStore) -> log.Event:
    return (await StoredLog(store, "report").events())[-1]


@pytest.mark.parametrize(
    ("action", "fields", "event"),
    [
        ("undo", {"times": "1"}, log.ChangeUndone()),
        ("rewind", {"to": "40"}, log.Rewound),
        ("pin", {"position": "40"}, log.Pinned(position=40)),
    ],
)
async def test_a_change_is_an_event_of_the_log(
    action: str, fields: dict[str, str], event: log.Event | type[log.Event], store: MemoryStore
) -> None:
    async with visiting(store, may_change=True) as browser:
        status = await post(browser, action, **fields)

    last = await last_event(store)
    assert status == 200
    assert isinstance(last, event) if isinstance(event, type) else last == event


async def test_undo_and_redo_go_back_and_forth(store: MemoryStore) -> None:
    async with visiting(store, may_change=True) as browser:
        before = await browser.json("/s/report")
        await post(browser, "undo", times="1")
        between = await browser.json("/s/report")
        await post(browser, "redo")
        after = await browser.json("/s/report")

    kinds = [[row["sent"]["kind"] for row in page["rows"] if row["message"]] for page in (before, between, after)]
    assert kinds[0] == kinds[2] != kinds[1]
    assert (before["can_redo"], between["can_redo"]) == (False, True)


async def test_a_compaction_is_previewed_and_can_be_edited(store: MemoryStore) -> None:
    async with visiting(store, may_change=True) as browser:
        preview = await browser.json("/s/report/compact")
        length = await store.length("report")
        edited = [f"{text}\nAdded by hand." for text in preview["texts"]]
        fields = {f"text-{number}": text for number, text in enumerate(edited)}
        status = await post(browser, "compact", start=str(preview["start"]), stop=str(preview["stop"]), **fields)
        page = await browser.json("/s/report")

    assert status == 200
    assert await store.length("report") > length
    assert page["changes"][-1]["headline"].startswith("compacted (manual)")
    async with Session.open("report", store=store) as session:
        texts = [entry.message.text for entry in await session.visible_messages()]
    assert edited[0] in texts


async def test_a_preview_that_the_conversation_has_passed_changes_nothing(store: MemoryStore) -> None:
    async with visiting(store, may_change=True) as browser:
        length = await store.length("report")
        status = await post(browser, "compact", start="0", stop="3", **{"text-0": "forged"})

    assert status == 409
    assert await store.length("report") == length


async def test_a_fork_is_shown_as_a_session_of_its_own(store: MemoryStore) -> None:
    async with visiting(store, may_change=True) as browser:
        status = await post(browser, "fork", at="8")
        page = await browser.json("/")

    fork = next(one for one in page["sessions"] if one["id"] != "report")
    assert (status, fork["messages"]) == (200, 8)


async def test_a_deleted_session_is_gone(store: MemoryStore) -> None:
    async with visiting(store, may_change=True) as browser:
        await post(browser, "delete")
        page = await browser.json("/")

    assert page["sessions"] == []
    assert await store.length("report") == 0


@pytest.mark.parametrize("csrf", ["", "guessed"])
async def test_a_form_of_another_page_is_refused(csrf: str, store: MemoryStore) -> None:
    async with visiting(store, may_change=True) as browser:
        length = await store.length("report")
        answers = [
            await browser.client.post("/s/report/do/undo", data={"csrf": csrf, "times": "1"}),
            await browser.client.get("/s/report/do/undo"),
        ]
        token = re.search(r'name="csrf" value="([^"]+)"', await browser.page("/s/report"))
        assert token
        foreign = {"origin": "http://evil.example"}
        answers.append(await browser.client.post("/s/report/do/undo", data={"csrf": token[1]}, headers=foreign))

    assert [answer.status_code for answer in answers] == [403, 404, 403]
    assert await store.length("report") == length


async def test_a_reader_who_may_not_change_sees_no_forms(browser: Browser) -> None:
    pages = [await browser.page(path) for path in ("/s/report", "/s/report/changes/1")]

    assert not any("<form method" in page for page in pages)
    assert (await browser.get("/s/report/compact")).status_code == 403


@pytest.mark.parametrize(
    ("action", "fields"),
    [("rewind", {"to": "x"}), ("pin", {"position": "9999"}), ("shout", {}), ("rewind", {"to": "-1"}), ("compact", {})],
)
async def test_a_change_that_cannot_be_made_is_refused(action: str, fields: dict[str, str], store: MemoryStore) -> None:
    async with visiting(store, may_change=True) as browser:
        length = await store.length("report")
        status = await post(browser, action, **fields)

    assert status == 400
    assert await store.length("report") == length


async def test_more_is_undone_than_there_is_and_a_form_that_is_too_large_is_refused(store: MemoryStore) -> None:
    async with visiting(store, may_change=True) as browser:
        changes = (await browser.json("/s/report"))["changes"]
        undone = await post(browser, "undo", times="999")
        after = (await browser.json("/s/report"))["changes"]
        once = await post(browser, "undo")
        large = await post(browser, "undo", times="1" * (1 << 20))

    assert (undone, once, large) == (200, 200, 413)
    assert [change["is_undone"] for change in after] == [True] * len(changes)


async def test_a_session_that_nobody_looked_at_is_deleted_with_its_files(store: MemoryStore) -> None:
    deleted: list[str] = []
    editor = StoreEditor(store, delete_files=deleted.append)
    await store.append("other", [{"type": "x"}], after=0, time_ms=1)

    async with visiting(store, may_change=True, editor=editor) as browser:
        found = re.search(r'name="csrf" value="([^"]+)"', await browser.page("/s/report"))
        assert found
        answer = await browser.client.post("/s/other/do/delete", data={"csrf": found[1]})

    assert (answer.status_code, deleted, await store.length("other")) == (200, ["other"], 0)
