"""Programs hear of every event as it happens, under the name that the log has for it."""

import asyncio
import logging
from itertools import repeat
from typing import Any, cast

import pytest

from holdfast import SettingsError, blocking
from holdfast.core.history import events as log
from holdfast.errors import SessionClosedError
from holdfast.session.session import Session
from holdfast.storage import event_name, event_record
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import ScriptedModel
from tests.support import open_session

TALK = [message for _ in range(30) for message in (user_message("word " * 200), assistant_message("ok"))]


async def test_an_iterator_returns_each_event_in_the_order_of_the_log_and_ends_with_the_session(store: Store) -> None:
    session = await open_session(store)
    await session.record([user_message("before")])
    events = session.subscribe()

    await session.record([user_message("one"), assistant_message("two")])
    await session.prepare(16_000)
    stored = (await session.events())[1:]
    await session.close()

    assert [event async for event in events] == stored
    assert [event_name(event) for event in stored] == ["message.appended"] * 2 + [
        "session.usage_info",
        "request.prepared",
    ]
    with pytest.raises(SessionClosedError):
        session.subscribe()


@pytest.mark.seed("C-48")
async def test_a_requested_compaction_is_announced_and_the_fill_level_follows_at_once() -> None:
    session = await open_session(MemoryStore(), summarizer=ScriptedModel(repeat("The words were said.")))
    await session.record([*TALK, user_message("go on")])
    events = session.subscribe("session.compaction_start", "session.compaction_complete", "session.usage_info")

    done = await session.compact(budget=16_000)
    await session.close()

    heard = [event async for event in events]
    assert [event_name(event) for event in heard] == [
        "session.compaction_start", "session.compaction_complete", "session.usage_info",
    ]  # fmt: skip
    assert heard[1] == done
    assert isinstance(heard[2], log.UsageMeasured)
    assert heard[2].current_tokens < done.pre_compaction_tokens
    assert event_record(done)["type"] == "session.compaction_complete"


async def test_a_compaction_by_rule_is_followed_by_the_fill_level_too() -> None:
    session = await open_session(MemoryStore())
    await session.record([*TALK, user_message("go on")])

    await session.compact(budget=16_000)

    kinds = [event_name(event) for event in await session.events()]
    assert kinds[-2:] == ["session.compaction_complete", "session.usage_info"]
    await session.close()


async def test_events_of_another_writer_arrive_once_and_the_past_does_not(store: Store) -> None:
    one, other = await open_session(store), await open_session(store)
    await one.record([user_message("past")])
    await other.refresh()
    heard: list[log.Event] = []
    other.on(heard.append)

    await one.record([user_message("news")])
    await other.refresh()
    await other.record([assistant_message("own")])
    await other.refresh()

    assert heard == (await other.events())[1:]


async def test_a_callback_hears_only_the_names_it_asked_for_until_it_is_ended(store: Store) -> None:
    session = await open_session(store)
    heard: list[str] = []

    def hear(event: log.Event) -> None:
        heard.append(event_name(event))

    end = session.on(hear, "session.rewound", "session.undone")

    await session.record([user_message("one"), user_message("two")])
    await session.rewind(to=1)
    await session.undo()
    end()
    end()
    await session.redo()

    assert heard == ["session.rewound", "session.undone"]


async def test_a_callback_that_raises_is_logged_and_harms_nobody(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    session, heard = await open_session(store), list[log.Event]()

    def fail(_: log.Event) -> None:
        raise ValueError("not today")

    session.on(fail)
    session.on(heard.append)
    with caplog.at_level(logging.ERROR, "holdfast"):
        assert await session.record([user_message("one")]) == range(1)

    assert len(heard) == 1
    assert [record.message for record in caplog.records] == ["A callback for message.appended failed"]


async def test_a_subscription_that_is_left_keeps_nothing_more(store: Store) -> None:
    session = await open_session(store)
    with session.subscribe() as events:
        await session.record([user_message("one")])
        waiting = asyncio.ensure_future(anext(events))
        await waiting
    await session.record([user_message("two")])

    assert [event async for event in events] == []
    assert session._log.publisher.subscriptions == set()


async def test_a_name_that_no_event_has_is_an_error_that_names_the_nearest(store: Store) -> None:
    session = await open_session(store)

    with pytest.raises(SettingsError, match=r"\['message.appended'\] is not .*; did you mean 'message.appended'"):
        session.subscribe(cast("Any", ["message.appended"]))
    with pytest.raises(SettingsError, match=r"'session.compaction_begin' is not the name of an event; did you mean"):
        session.subscribe("session.compaction_begin")
    with pytest.raises(SettingsError, match=r"known are: context\.outputs_offloaded, "):
        session.on(print, "zzz")
    with pytest.raises(SettingsError, match="callback: must be a function of an event, not 5"):
        session.on(5)


def test_synchronous_code_waits_for_events() -> None:
    with blocking.Session.open("s") as session:
        events, heard = session.subscribe("message.appended"), list[log.Event]()
        session.on(heard.append)
        session.record([user_message("one")])
        assert next(events) == session.events()[0] == heard[0]
    assert list(events) == []


def test_synchronous_code_leaves_a_subscription_before_the_session_is_closed() -> None:
    with blocking.Session.open("s") as session:
        with session.subscribe("message.appended") as events:
            session.record([user_message("one")])
        session.record([user_message("two")])
        assert list(events) == session.events()[:1]


async def test_a_forked_session_does_not_announce_what_it_copied() -> None:
    session: Session = await open_session(MemoryStore())
    await session.record([user_message("one")])
    forked, heard = await session.fork("t"), list[log.Event]()
    forked.on(heard.append)

    await forked.refresh()
    await forked.record([user_message("two")])

    assert [event_name(event) for event in heard] == ["message.appended"]
