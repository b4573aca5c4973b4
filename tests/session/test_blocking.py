"""Synchronous code uses sessions from any thread, and mistakes are reported at once."""

import asyncio
import concurrent.futures
import inspect
import os
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast import Budget, HoldfastError, SettingsError, blocking
from holdfast.compaction import CompactionOptions
from holdfast.errors import DelegationEndedError, SessionClosedError, WrongEventLoopError
from holdfast.session.background_loop import BACKGROUND_LOOP
from holdfast.session.delegation import Delegate
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import ScriptedModel

TALK = [user_message("one"), assistant_message("1"), user_message("two")]
ASYNC_ONLY = {"record_stream_signals"}
"""`watch` calls it."""


@pytest.mark.parametrize(
    ("waits", "wrapped"),
    [(blocking.Session, holdfast.Session), (blocking.Delegate, Delegate)],
    ids=["session", "child"],
)
def test_every_coroutine_method_of_a_conversation_has_a_documented_one_that_waits(waits: type, wrapped: type) -> None:
    public = [
        name
        for name, method in inspect.getmembers(wrapped)
        if (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)) and not name.startswith("_")
    ]

    assert len(public) > 10
    assert {name for name in public if not hasattr(waits, name)} - ASYNC_ONLY == (
        {"end"} if waits is blocking.Delegate else set()
    )
    assert [name for name in public if hasattr(waits, name) and not inspect.getdoc(getattr(waits, name))] == []


def test_a_script_records_prepares_and_reads_a_conversation(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    with blocking.Session.open("s", store=url, model="gpt-5") as session:
        assert session.record(TALK) == range(3)
        assert session.prepare(Budget(16_000)).messages == TALK
        assert (session.id, session.model, session.scope, len(session), bool(session)) == (
            "s",
            "gpt-5",
            "main",
            3,
            True,
        )
        forked = session.fork("t")
        assert forked.messages() == TALK
        forked.close()
        with session.open_sibling("u") as other:
            assert other.messages() == []
        assert [event.KIND for event in session.events()][:3] == ["message.appended"] * 3
        assert "two" in session.recall_tool().call({"query": "two"})
        assert session.policy.name == "default"
        assert session.damage == []

    with pytest.raises(SessionClosedError):
        session.messages()
    with blocking.Session.open("s", store=url) as again:
        assert again.messages() == TALK


def test_many_threads_share_one_session_and_lose_nothing() -> None:
    with blocking.Session.open("s") as session, concurrent.futures.ThreadPoolExecutor(8) as pool:
        recorded = [pool.submit(session.record, [user_message(str(number))]) for number in range(64)]

        assert sorted(future.result().start for future in recorded) == list(range(64))
        assert {str(message["content"]) for message in session.messages()} == {str(number) for number in range(64)}


def test_an_error_arrives_where_the_call_was_made() -> None:
    with blocking.Session.open("s") as session, pytest.raises(SettingsError, match="format"):
        session.record(TALK, format="no such format")


def test_a_blocking_call_from_a_callback_of_the_session_is_an_error_at_once() -> None:
    caught: list[HoldfastError] = []

    def progress(_: str) -> None:
        try:
            session.messages()
        except HoldfastError as error:
            caught.append(error)

    options = CompactionOptions(automatic=ScriptedModel(["short"] * 9), progress=progress)
    with blocking.Session.open("s", compaction=options) as session:
        session.record(
            [message for _ in range(30) for message in (user_message("word " * 200), assistant_message("ok"))]
        )
        session.preview(draft=True, budget=4_000)

    assert {type(error) for error in caught} == {WrongEventLoopError}
    problem = "would wait for itself for ever here, as in a callback; call it in another thread"
    assert {str(error) for error in caught} == {f"a blocking method {problem}"}


async def test_a_blocking_session_also_works_where_another_loop_is_running() -> None:
    session = blocking.Session.open("s")

    assert session.record(TALK) == range(3)
    with pytest.raises(WrongEventLoopError):
        await session.wrapped.messages()
    session.close()


def test_without_async_the_async_session_says_what_to_use_instead() -> None:
    with pytest.raises(SettingsError, match=r"open: use `async with Session.open\(…\)`, or holdfast.blocking.Session"):  # noqa: SIM117
        with holdfast.Session.open("s"):
            pass


def test_an_interrupted_call_is_cancelled() -> None:
    cancelled, started = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    future = BACKGROUND_LOOP.start(work())
    assert started.wait(60)
    future.cancel()

    assert cancelled.wait(60)


def test_a_delegate_answers_fails_or_runs_out_of_time() -> None:
    with blocking.Session.open("s") as session:
        session.record([user_message("go")])
        with session.delegate("reader", task="read it") as child:
            child.record([assistant_message("done")])
            assert child.answer("done").text == "done"
        with pytest.raises(ZeroDivisionError), session.delegate("reader", task="fail"):
            _ = 1 / 0
        slow = session.delegate("reader", task="wait", timeout_seconds=0.01)
        late = slow.__enter__()
        assert slow._ended is not None
        concurrent.futures.wait([slow._ended])
        with pytest.raises(DelegationEndedError):
            late.record([assistant_message("too late")])
        with pytest.raises(TimeoutError):
            slow.__exit__(None, None, None)
        with pytest.raises(SettingsError, match="agent"):
            session.delegate("")

        assert [one.state for one in session.delegations()] == ["answered", "failed", "timed_out"]


def test_a_stream_passes_through_and_its_signals_are_recorded() -> None:
    events: list[dict[str, object]] = [
        {"type": "message_start"},
        {"type": "compaction_delta"},
        {"type": "compaction_delta"},
    ]
    with blocking.Session.open("s") as session:
        assert list(session.watch(events)) == events
        assert [event.KIND for event in session.events()] == ["provider.compaction_signal"]


def test_after_a_fork_the_child_process_has_a_loop_of_its_own() -> None:
    BACKGROUND_LOOP.run(asyncio.sleep(0))
    child = os.fork()
    if child == 0:
        try:
            with blocking.Session.open("s") as session:
                os._exit(0 if session.record(TALK) == range(3) else 1)
        finally:
            os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_session_shows_its_id_and_its_length() -> None:
    with blocking.Session.open("chat") as session:
        session.record([user_message("hello")])

        shown = repr(session), repr(session.wrapped)

        assert shown == ("<BlockingSession id='chat' messages=1>", "<Session id='chat' messages=1>")
