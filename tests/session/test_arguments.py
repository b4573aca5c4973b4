"""A wrong argument raises an error that names it and says which values are accepted."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

import pytest

from holdfast import HoldfastError, MalformedInputError, Session, SettingsError
from holdfast.models.retry import RetryLimits
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.compaction.hooks import Hooks
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import ScriptedModel

Call = Callable[[Session, Any], Coroutine[Any, Any, Any]]
TALK = [
    user_message("one"),
    assistant_message("1"),
    user_message("two " * 200),
    assistant_message("2 " * 200),
    user_message("three"),
]
WRONG: list[Any] = [
    None, True, 1, -1, 10**30, 1.5, float("nan"), "x", "", b"x", [], [1], {}, {"a": 1}, object(), (), {1},
    "\ud800", "a\0b",
]  # fmt: skip
CALLS: dict[str, Call] = {
    "recall": lambda session, value: session.messages_at(value),
    "recall to": lambda session, value: session.messages_at(0, value),
    "fork": lambda session, value: session.fork(value),
    "fork at": lambda session, value: session.fork(at=value),
    "prepare": lambda session, value: session.prepare(value),
    "prepare for a model": lambda session, value: session.prepare(16_000, model=value),
    "prepare with system text": lambda session, value: session.prepare(16_000, system=value),
    "prepare with tools": lambda session, value: session.prepare(16_000, tools=value),
    "prepare with a tool": lambda session, value: session.prepare(16_000, tools=[value]),
    "prepare for a scope": lambda session, value: session.prepare(16_000, scope=value),
    "shown": lambda session, value: session.visible_messages(value),
    "relieve": lambda session, value: session.compact_if_memory_above(value),
    "compact with a focus": lambda session, value: session.compact(focus=value),
    "compact by a trigger": lambda session, value: session.compact(trigger=value),
    "compact to a budget": lambda session, value: session.compact(budget=value),
    "compact a scope": lambda session, value: session.compact(scope=value),
    "recompact": lambda session, value: session.recompact(focus=value),
    "bring back": lambda session, value: session.restore_messages(value),
    "bring one back": lambda session, value: session.restore_messages([value]),
    "preview": lambda session, value: session.preview(focus=value, budget=value),
    "contents": lambda session, value: session.context_breakdown(budget=value),
    "switch the model": lambda session, value: session.switch_model(value),
    "note": lambda session, value: session.record_state(value),
    "rename": lambda session, value: session.rename(value),
    "rewind": lambda session, value: session.rewind(to=value),
    "pin": lambda session, value: session.pin(value),
    "record": lambda session, value: session.record(value),
    "record one": lambda session, value: session.record([value]),
    "record for a scope": lambda session, value: session.record([user_message("x")], scope=value),
    "record with a bill": lambda session, value: session.record([user_message("x")], usage=value),
    "record in a format": lambda session, value: session.record([user_message("x")], format=value),
    "sync": lambda session, value: session.sync(value),
    "retry": lambda session, value: session.retry("x", status=value),
    "retry for a scope": lambda session, value: session.retry("x", scope=value),
    "follow": lambda session, value: session.set_policy(value),
    "follow with options": lambda session, value: session.set_policy("default", compaction=value),
    "apply": lambda session, value: session.apply_preview(value),
    "recall from earlier sessions": lambda session, value: session.recall("one", earlier=value),
    "recall from an earlier session": lambda session, value: session.recall("one", earlier=[value]),
    "compact with texts": lambda session, value: session.compact_with(value, span=range(4)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_is_answered_or_refused_by_one_of_our_errors(call: Call) -> None:
    for value in WRONG:
        session = await Session.open("g", store=MemoryStore(), model="gpt-5")
        await session.record(TALK)
        await session.prepare(16_000)
        with suppress(HoldfastError):
            await call(session, value)
        assert (await session.messages_at(0, 5), session.damage) == (TALK, [])


SAID: list[tuple[str, Call, Any, str]] = [
    ("recall", CALLS["recall"], "3", "messages_at.start: must be the position of a message, a whole number, not '3'"),
    ("stop", CALLS["recall to"], 1.5, "messages_at.stop: must be the position of a message, a whole number, not 1.5"),
    ("at", CALLS["fork at"], "x", "fork.at: must be the position of a message, a whole number, not 'x'"),
    ("tools", CALLS["prepare with tools"], 5, "tools: must be a list of objects, not 5"),
    ("a tool", CALLS["prepare with a tool"], "read", "tools[0]: must be an object, not 'read'"),
    ("NaN", CALLS["prepare with a tool"], {"a": float("nan")}, "tools: contains lone surrogates, NaN or infinity; "
     "remove them first"),
    ("scope", CALLS["prepare for a scope"], [], "scope: must be the name of an agent's scope, such as 'main', not []"),
    ("shown", CALLS["shown"], None, "scope: must be the name of an agent's scope, such as 'main', not None"),
    ("bytes", CALLS["relieve"], "1 GB", "limit_bytes: must be a whole number from 0 on, not '1 GB'"),
    ("focus", CALLS["compact with a focus"], 5, "focus: must be text, not 5"),
    ("model", CALLS["prepare for a model"], 5, "model: must be the name of a model, not 5"),
    ("options", CALLS["follow with options"], "x", "compaction: must be a CompactionOptions, not 'x'"),
    ("preview", CALLS["apply"], None, "preview: must be what `preview` has returned, not None"),
    ("one session", CALLS["recall from earlier sessions"], "trip", "earlier: must be a list of texts, not 'trip'"),
    ("one text", CALLS["compact with texts"], "A summary.", "texts: must be a list of texts, not 'A summary.'"),
    ("status", CALLS["retry"], "400", "status: must be a whole number from 0 on, not '400'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "value", "told"), [case[1:] for case in SAID], ids=[case[0] for case in SAID])
async def test_the_error_names_what_is_wrong_and_what_would_do(call: Call, value: object, told: str) -> None:
    session = await Session.open("g", model="gpt-5")
    await session.record(TALK)

    with pytest.raises((MalformedInputError, SettingsError)) as refused:
        await call(session, value)

    assert str(refused.value) == told


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"store": 5}, "store: must be the URL of a store, or a store, not 5"),
        ({"model": 5}, "model: must be the name of a model, not 5"),
        ({"summarizer": 5}, "summarizer: must be the name of a model, or a holdfast.compaction.Summarizer, not 5"),
        ({"compaction": "x"}, "compaction: must be a CompactionOptions, not 'x'"),
        ({"clock": 5}, "clock: must be a function that returns milliseconds, not 5"),
        ({"delete_files": "x"}, "delete_files: must be a function of a session's id, not 'x'"),
    ],
)
def test_a_session_is_not_opened_with_what_cannot_work(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Session.open("g", **settings)

    assert str(refused.value) == named


@pytest.mark.parametrize("name", ["", None, 5, "a\0b", "\ud800"])
async def test_an_id_that_not_every_store_can_write_down_is_refused_by_name(name: Any) -> None:
    session = await Session.open("g")

    for attempt in (lambda: Session.open(name), lambda: session.open_sibling(name)):
        with pytest.raises(SettingsError, match=r"^session: "):
            attempt()


@pytest.mark.parametrize("make_tool", [Session.recall_tool, Session.compact_tool])
async def test_a_tool_for_a_wrong_scope_is_refused_where_it_is_made(make_tool: Callable[..., object]) -> None:
    session = await Session.open("g")

    with pytest.raises(SettingsError) as refused:
        make_tool(session, scope="")

    assert str(refused.value) == "scope: must be the name of an agent's scope, such as 'main', not ''"


def test_a_writer_that_cannot_write_is_refused_where_it_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^compaction\.manual: "):
        CompactionOptions(manual=object())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("has", "problem"),
    [
        ({"window": None}, "needs a `name` that is text, not None"),
        ({"name": "mine"}, "needs a `window`: a number of tokens, or None for that of the table of models"),
        (
            {"name": "mine", "window": "8k"},
            "needs a `window`: a number of tokens, or None for that of the table of models, not '8k'",
        ),
    ],
)
def test_a_writer_without_its_name_or_window_is_refused_before_it_is_asked(has: dict[str, Any], problem: str) -> None:
    writer: Any = type("Writer", (), {"write": print, **has})()

    with pytest.raises(SettingsError) as refused:
        Session.open("g", summarizer=writer)

    assert str(refused.value) == f"summarizer: {problem}"


def test_a_class_of_writers_is_no_writer() -> None:
    with pytest.raises(SettingsError, match=r"^summarizer: must be the name of a model, or a "):
        Session.open("g", summarizer=cast("Any", ScriptedModel))


def test_a_folder_is_no_memory_and_says_what_is() -> None:
    with pytest.raises(SettingsError) as raised:
        CompactionOptions(memory=cast("Any", "/somewhere"))

    assert str(raised.value) == "compaction.memory: must be a DailyMemory(folder), not '/somewhere'"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"checkpoints": "/somewhere"}, "checkpoints: must be Checkpoints(folder), not '/somewhere'"),
        ({"hooks": [print]}, "hooks: must be a Hooks, not [<built-in function print>]"),
        ({"telemetry": True}, "telemetry: must be a Telemetry, not True"),
        ({"retry_limits": 3}, "retry_limits: must be a RetryLimits, not 3"),
        ({"prices": "gpt-5"}, "prices: must be a holdfast.compaction.Prices, not 'gpt-5'"),
        ({"approve": True}, "approve: must be a function, not True"),
    ],
)
def test_an_option_of_another_kind_is_refused_before_a_compaction_needs_it(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        CompactionOptions(**options)

    assert str(refused.value) == f"compaction.{problem}"


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"timeout_seconds": "10"}, "timeout_seconds: must be a number above 0, not '10'"),
        ({"deadline_seconds": 0}, "deadline_seconds: must be a number above 0, not 0"),
        ({"attempts": 0}, "attempts: must be a whole number from 1 on, not 0"),
    ],
)
def test_limits_that_leave_no_call_are_refused(limits: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        RetryLimits(**limits)

    assert str(refused.value) == f"retry_limits.{problem}"


def test_one_hook_without_a_tuple_is_refused() -> None:
    with pytest.raises(SettingsError) as refused:
        Hooks(post_compact=cast("Any", print))

    assert str(refused.value) == (
        "hooks.post_compact: must be a tuple of hooks such as (hook,), not <built-in function print>"
    )
