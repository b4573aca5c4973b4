"""A session keeps what was said, sends what fits, and gives everything back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import HoldfastError, MalformedInputError, SettingsError, validate
from holdfast.core.history import events as log
from holdfast.errors import NothingToCompactError, SessionClosedError
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.request import rebuild_messages
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.sessions import generate_session
from holdfast.wire.formats import format_named
from tests.support import RecordedHistory, appended, open_session

TALK = [user_message("one"), assistant_message("1"), user_message("two"), assistant_message("2"), user_message("three")]


async def test_what_was_recorded_is_there_for_whoever_opens_the_session_next(store: Store) -> None:
    first = await open_session(store)
    assert await first.record(TALK) == range(5)
    request = await first.prepare(16_000)

    again = await open_session(store)

    assert request.messages == TALK
    assert (await again.prepare(16_000)).hash == request.hash
    assert again.damage == []


async def test_two_sessions_on_one_log_take_turns_and_lose_nothing(store: Store) -> None:
    one, other = await open_session(store), await open_session(store)

    assert await one.record([user_message("a")]) == range(1)
    assert await other.record([assistant_message("b")]) == range(1, 2)
    assert await one.record([user_message("c")]) == range(2, 3)

    assert (await other.prepare(16_000)).messages == [user_message("a"), assistant_message("b"), user_message("c")]


async def test_a_long_session_stays_within_its_budget_and_every_request_can_be_proved(store: Store) -> None:
    session = await open_session(store)
    for message in generate_session(240):
        await session.record([message])
        if message["role"] == "user":
            request = await session.prepare(6_000, system="Be brief.", tools=[{"name": "read_file"}])
            assert validate(request.messages, "openai-chat") == []
            assert request.tokens.total <= 6_000

    again = await open_session(store)
    proofs = list(rebuilt_requests(await again.events()))

    assert len(proofs) > 10
    assert all(proof.is_same for proof in proofs)
    assert any(isinstance(event, log.CompactionCompleted) for event in await again.events())


@pytest.mark.seed("C-34", "C-48")
async def test_every_request_leaves_the_meter_and_its_proof_in_the_log(store: Store) -> None:
    session = await open_session(store)
    await session.record(TALK)
    await session.prepare(16_000)

    kinds = [event.KIND for event in (await session.events())[5:]]

    assert kinds == ["session.usage_info", "request.prepared"]


@pytest.mark.seed("C-25", "C-32", "C-33", "C-34", "C-35")
async def test_a_truncation_is_in_the_log_only_where_something_was_left_out_and_takes_nothing_from_it(
    store: Store,
) -> None:
    session = await open_session(store, policy="copilot")
    talk = [one for n in range(20) for one in (user_message(f"q{n} " + "word " * 50), assistant_message("word " * 50))]
    await session.record([*talk, user_message("now")])

    whole = await session.prepare(16_000)
    shorter = await session.prepare(2_000)

    told = [event for event in await session.events() if isinstance(event, log.UsageMeasured | log.RequestTruncated)]
    assert [event.KIND for event in told] == ["session.usage_info", "session.usage_info", "session.truncation"]
    cut = told[-1]
    assert isinstance(cut, log.RequestTruncated)
    assert cut.messages_removed == len(whole.messages) - len(shorter.messages) > 0
    again = await open_session(store, policy="copilot")
    assert (await again.prepare(16_000)).messages == whole.messages


async def test_a_change_of_system_text_or_tools_is_recorded_once(store: Store) -> None:
    session = await open_session(store)
    await session.record(TALK)
    for _ in range(2):
        await session.prepare(16_000, system="Be brief.", tools=[{"name": "run"}])
    await session.prepare(16_000, system="Be long.", tools=[{"name": "run"}])

    changes = [event for event in await session.events() if isinstance(event, log.SystemChanged | log.ToolsChanged)]

    assert changes == [
        log.SystemChanged(text="Be brief."),
        log.ToolsChanged(tools=({"name": "run"},)),
        log.SystemChanged(text="Be long."),
    ]


@pytest.mark.parametrize(
    ("system", "tools"),
    [
        (None, None), ("", []), (None, []), ("Be brief.", None), ([{"type": "text", "text": "Be brief."}], None),
        ({"parts": [{"text": "x"}]}, ({"name": "run"},)),
    ],
)  # fmt: skip
async def test_a_request_is_proved_however_its_system_text_and_tools_were_given(
    store: Store, system: object, tools: Any
) -> None:
    session = await open_session(store)
    await session.record(TALK)
    request = await session.prepare(16_000, system=system, tools=tools)

    proofs = list(rebuilt_requests(await (await open_session(store)).events()))

    assert [proof.is_same for proof in proofs] == [True]
    assert (request.system, request.tools) == (system, tools)


async def test_a_message_that_had_to_be_repaired_is_proved_and_recognized(store: Store) -> None:
    talk = [user_message("half a pair: \ud800"), assistant_message("1"), user_message("two")]
    session = await open_session(store)
    await session.sync(talk)
    await session.prepare(16_000)

    assert await session.sync(talk) == range(3, 3)
    await session.prepare(16_000)
    assert [proof.is_same for proof in rebuilt_requests(await (await open_session(store)).events())] == [True, True]


async def test_a_changed_message_is_no_longer_what_was_sent(store: Store) -> None:
    session = await open_session(store)
    await session.record(TALK)
    await session.prepare(16_000)
    events = list(await session.events())
    events[0] = log.MessageAppended(format="openai-chat", native=user_message("forged"))

    assert [proof.is_same for proof in rebuilt_requests(events)] == [False]


async def test_a_session_knows_what_its_model_costs_and_compacts_when_the_cache_has_expired(store: Store) -> None:
    now = 1_700_000_000_000
    session = Session(
        "c1",
        store=store,
        policy="default",
        model="claude-sonnet-4-5",
        compaction=CompactionOptions(),
        clock=lambda: now,
    )
    await session.record(
        [one for _ in range(20) for one in (user_message("word " * 150), assistant_message("word " * 150))][:-1]
    )

    warm = [await session.prepare(13_000) for _ in range(2)][-1]
    now += 301_000
    cold = await session.prepare(13_000)

    assert len(warm.messages) == 39
    assert len(cold.messages) < 10
    assert "the prompt cache has expired" in cold.receipt.reasons[0]


async def test_a_list_that_is_sent_again_changes_nothing_and_one_that_grew_brings_what_is_new(store: Store) -> None:
    session = await open_session(store)

    assert await session.sync(TALK) == range(5)
    assert await session.sync(TALK) == range(5, 5)
    assert await session.sync([*TALK, assistant_message("3"), user_message("four")]) == range(5, 7)
    assert len(session) == 7


async def test_a_list_that_differs_takes_back_what_it_does_not_have(store: Store) -> None:
    session = await open_session(store)
    await session.sync(TALK)

    await session.sync([*TALK[:3], assistant_message("two!")])

    assert (await session.prepare(16_000)).messages[:4] == [*TALK[:3], assistant_message("two!")]
    assert len(session) == 6
    await session.undo()
    assert [entry.position for entry in session.history.context().visible_entries()] == [0, 1, 2, 3, 4, 5]


async def test_a_client_that_goes_on_from_what_was_sent_is_understood(store: Store) -> None:
    session = await open_session(store)
    await session.record(generate_session(240))
    request = await session.prepare(6_000)
    reply, more = assistant_message("Understood."), user_message("Go on.")
    await session.record([reply])
    before = len(session)

    positions = await session.sync([*request.messages, reply, more])

    assert positions == range(before, before + 1)
    assert session.history.entries[-1].message.text == "Go on."


async def test_what_a_format_keeps_beside_a_message_does_not_make_it_another(store: Store) -> None:
    session = await open_session(store)
    call = {"part_kind": "tool-call", "tool_name": "look", "tool_call_id": "a", "args": {"n": 1}}
    asked = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "one", "timestamp": "2025-01-01"}]}
    answer = {"kind": "response", "parts": [call], "usage": {"input_tokens": 5}, "run_id": "r1"}
    await session.sync([asked, answer], format="pydantic-ai")
    bare = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "one"}], "run_id": "r2"}
    spelled = {"kind": "response", "parts": [{**call, "args": '{"n":1}', "id": "fc_1"}]}
    other = {"kind": "response", "parts": [{**call, "args": {"n": 2}}]}

    assert await session.sync([bare, spelled], format="pydantic-ai") == range(2, 2)
    assert await session.sync([bare, other], format="pydantic-ai") == range(2, 3)
    assert await session.messages() == [asked, other]


async def test_a_request_with_system_text_before_it_is_recorded_as_two(store: Store) -> None:
    session = await open_session(store)
    told, asked = {"part_kind": "system-prompt", "content": "Be brief."}, {"part_kind": "user-prompt", "content": "hi"}

    positions = await session.record([{"kind": "request", "parts": [told, asked]}], format="pydantic-ai")
    request = await session.prepare(16_000)

    assert positions == range(2)
    assert request.messages == [{"kind": "request", "parts": [told]}, {"kind": "request", "parts": [asked]}]
    assert request.positions == (0, 1)


async def test_the_messages_that_stand_are_those_a_client_would_hold(store: Store) -> None:
    session = await open_session(store)
    talk = generate_session(120)
    await session.record(talk)
    await session.prepare(6_000)
    compacted = await session.messages()
    await session.rewind(to=100)
    rewound = await session.messages()
    await session.clear()
    await session.record([user_message("anew")])

    assert compacted == talk
    assert rewound == talk[:100]
    assert await session.messages() == [user_message("anew")]


async def test_another_session_beside_one_is_kept_in_the_same_way(store: Store) -> None:
    session = await open_session(store)
    await session.record([user_message("here")])

    async with session.open_sibling("other") as other:
        await other.record([user_message("there")])

        assert (other.id, other.policy, other.store) == ("other", session.policy, session.store)
        assert await other.messages() == [user_message("there")]
    assert await session.messages() == [user_message("here")]


async def test_clear_rewind_undo_and_redo_change_what_is_shown_and_delete_nothing(store: Store) -> None:
    session = await open_session(store)
    await session.record(TALK)

    await session.rewind(to=2)
    await session.record([user_message("other")])
    assert (await session.prepare(16_000)).messages == [
        user_message("one"),
        assistant_message("1"),
        user_message("other"),
    ]
    assert await session.undo()
    assert await session.redo()
    assert not await session.redo()
    await session.clear()
    await session.record([user_message("anew")])
    assert (await session.prepare(16_000)).messages == [user_message("anew")]
    assert len(session) == 7


async def test_undo_with_nothing_to_undo_says_so(store: Store) -> None:
    assert not await (await open_session(store)).undo()


async def test_a_fork_has_the_past_and_a_future_of_its_own(store: Store) -> None:
    session = await open_session(store)
    await session.record(TALK)

    other = await session.fork("c2", at=3)
    await other.record([assistant_message("another way")])

    assert [entry.message.text for entry in other.history.entries] == ["one", "1", "two", "another way"]
    assert other.history.session_state.forked_from == log.Forked(parent="c1", at=3)
    assert len(session) == 5
    assert [hit.session for hit in await store.search("two", session="c2")] == ["c2"]
    with pytest.raises(SettingsError, match="'c2' already exists"):
        await session.fork("c2")
    with pytest.raises(MalformedInputError):
        await session.fork("c3", at=99)


async def test_a_fork_has_the_times_of_its_parent(store: Store) -> None:
    clock = SimulatedClock(1_000)
    session = await open_session(store, clock=clock.time_ms)
    for message in (user_message("one"), assistant_message("1")):
        await session.record([message])
        await clock.advance(1)
    await session.prepare(8_000)
    await clock.advance(1)

    fork = await session.fork("c2")

    parent, copied = [[stored.time_ms for stored in await store.read(name)] for name in ("c1", "c2")]
    assert (parent[:2], set(parent[2:])) == ([1_000, 2_000], {3_000})
    assert (copied, fork._log.last_request_ms) == ([*parent, 4_000], 3_000)


class ClearedWhileForked(MemoryStore):
    """Has another writer clear a session before its log is read for a fork."""

    other: Session | None = None

    async def length(self, session: str) -> int:
        if session == "c2" and (other := self.other):
            self.other = None
            await other.clear()
        return await super().length(session)


async def test_a_fork_has_nothing_that_others_have_written_since_its_parent_was_read() -> None:
    store = ClearedWhileForked()
    session = await open_session(store)
    await session.record(TALK)
    store.other = await open_session(store)

    fork = await session.fork("c2")

    assert (await fork.messages(), await session.messages()) == (TALK, [])


async def test_a_compaction_by_hand_makes_a_digest_and_can_be_undone(store: Store) -> None:
    session = await open_session(store)
    await session.record([*generate_session(200), user_message("now")])
    whole = len((await session.prepare(200_000)).messages)

    event = await session.compact(budget=200_000)

    assert event.success
    assert len((await session.prepare(200_000)).messages) < whole / 2
    await session.undo()
    assert len((await session.prepare(200_000)).messages) == whole


@pytest.mark.parametrize("name", ["default", "co-cli", "inkeep", "cowagent"])
async def test_a_preset_that_does_not_insist_is_compacted_by_hand_without_a_model(store: Store, name: str) -> None:
    session = await open_session(store, policy=name)
    await session.record(
        [one for n in range(30) for one in (user_message(f"q{n} " + "word " * 50), assistant_message("word " * 50))]
    )

    event = await session.compact(budget=16_000)

    assert (event.success, event.error, event.trigger) == (True, None, "manual")
    assert len(session.history.context().visible_entries()) < 20


@pytest.mark.seed("C-57")
async def test_there_is_nothing_to_compact_in_an_empty_session(store: Store) -> None:
    with pytest.raises(NothingToCompactError):
        await (await open_session(store)).compact()


async def test_what_was_compacted_is_recalled_byte_for_byte_and_nothing_before_a_clear(store: Store) -> None:
    session = await open_session(store)
    messages = generate_session(240)
    await session.record(messages)
    await session.prepare(6_000)

    assert await session.messages_at(3, 30) == messages[3:30]
    await session.clear()
    await session.record([user_message("anew")])
    with pytest.raises(MalformedInputError, match=r"there are messages \d+ to \d+"):
        await session.messages_at(3)


async def test_a_huge_message_is_kept_once_and_comes_back_whole(store: Store) -> None:
    huge = tool_result_message("x", "data " * 200_000)
    session = await open_session(store)
    await session.record([user_message("go"), tool_call_message("x"), huge])
    await (await open_session(store, "c2")).record([user_message("go"), tool_call_message("x"), huge])

    again = await open_session(store)

    assert await again.messages_at(2) == [huge]
    assert (await again.prepare(16_000)).tokens.total <= 16_000


async def test_bills_correct_the_counting_for_the_next_session_too(store: Store) -> None:
    session = await open_session(store)
    await session.record([user_message("word " * 400)])
    request = await session.prepare(16_000)
    await session.record(
        [assistant_message("ok")], usage={"input_tokens": request.tokens.counted * 2, "output_tokens": 3}
    )
    await session.record([user_message("more")])

    assert (await session.prepare(16_000)).tokens.provenance == "calibrated"
    other = await open_session(store, "c2")
    await other.record([user_message("word")])
    assert (await other.prepare(16_000)).tokens.provenance == "calibrated"


@pytest.mark.parametrize(
    ("method", "values", "settings", "kind"),
    [
        ("record", [[{"role": "robot"}]], {}, MalformedInputError),
        ("record", [["hello"]], {}, MalformedInputError),
        ("record", [[user_message("x")]], {"format": "anthropic-messages"}, SettingsError),
        ("record", [[user_message("x")]], {"usage": {"input_tokens": "many"}}, SettingsError),
        ("rewind", [], {"to": 99}, MalformedInputError),
        ("pin", [99], {}, MalformedInputError),
        ("recall", [99], {}, MalformedInputError),
        ("prepare", [3], {}, SettingsError),
    ],
)
async def test_what_cannot_be_done_is_refused_and_leaves_no_trace(
    store: Store, method: str, values: list[Any], settings: dict[str, Any], kind: type[HoldfastError]
) -> None:
    session = await open_session(store)
    await session.record(TALK)

    with pytest.raises(kind):
        await getattr(session, method)(*values, **settings)

    assert await store.length("c1") == 5


@pytest.mark.parametrize("url", ["", "chats.db", "sqlite://", "mysql://x", "sqlite:///"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="store:"):
        Session.open("c1", store=url)


MOVES = st.sampled_from(
    ["say", "answer", "sync", "prepare", "compact", "clear", "rewind", "undo", "redo", "fork", "open"]
)


async def moved(session: Session, move: str, number: int) -> Session:
    """Do one thing to a session, and return the one to go on with."""
    standing = [
        session.history.entries.native(entry.position or 0)
        for entry in session.history.context().entries_between(0, len(session))
    ]
    work = [tool_call_message(f"c{number}"), tool_result_message(f"c{number}", "out " * 60), assistant_message("ok")]
    actions: dict[str, Callable[[], Any]] = {
        "say": lambda: session.record([user_message(f"question {number} " + "word " * 60)]),
        "answer": lambda: session.record(work),
        "sync": lambda: session.sync([*standing[:-1], user_message(f"instead {number}")]),
        "prepare": lambda: session.prepare(1_000),
        "compact": lambda: session.compact(budget=1_000),
        "clear": session.clear,
        "rewind": lambda: session.rewind(to=max(0, len(session) - 2)),
        "undo": session.undo,
        "redo": session.redo,
        "fork": lambda: session.fork(f"fork{number}"),
        "open": lambda: open_session(session.store, session.id),
    }
    result = await actions[move]()
    return result if isinstance(result, Session) else session


@pytest.mark.seed("D-16")
@pytest.mark.seed("D-17")
@pytest.mark.seed("D-18")
async def test_cowagent_goes_on_after_a_restart_with_the_words_of_its_last_three_turns(store: Store) -> None:
    session = await open_session(store, policy="cowagent")
    for number in range(5):
        await session.record(
            [
                user_message(f"q{number}"),
                tool_call_message(f"c{number}"),
                tool_result_message(f"c{number}", "x"),
                assistant_message("ok"),
            ]
        )

    again = await open_session(store, policy="cowagent")
    once_more = await open_session(store, policy="cowagent")

    await again.record([user_message("q5")])
    words = [
        user_message("q2"),
        assistant_message("ok"),
        user_message("q3"),
        assistant_message("ok"),
        user_message("q4"),
        assistant_message("ok"),
        user_message("q5"),
    ]
    assert (await again.prepare(16_000)).messages == words
    assert [event.KIND for event in (await once_more.events())[20:22]] == [
        log.CompactionCompleted.KIND, log.TurnsReducedToText.KIND,
    ]  # fmt: skip
    assert (await once_more.prepare(16_000)).messages == words
    assert await once_more.messages_at(0, 20) == await session.messages_at(0, 20)


@given(st.lists(MOVES, max_size=14))
async def test_live_stored_and_replayed_are_one(moves: list[str]) -> None:
    session: Session = await open_session(MemoryStore())
    for number, move in enumerate(moves):
        try:
            session = await moved(session, move, number)
        except HoldfastError:
            continue
        stored: Session = await open_session(session.store, session.id)
        assert await stored.events() == await session.events()
        assert stored.history.context().visible_entries() == session.history.context().visible_entries()
        assert all(proof.is_same for proof in rebuilt_requests(await stored.events()))


async def test_a_session_that_was_closed_is_not_used_any_more_and_says_so() -> None:
    store = MemoryStore()
    session = await Session.open("gone", store=store)
    await session.record([user_message("one"), assistant_message("1")])
    await session.close()

    for attempt in (
        session.record([user_message("two")]),
        session.sync([user_message("one")]),
        session.prepare(16_000),
        session.compact(),
        session.preview(),
        session.messages_at(0),
        session.visible_messages(),
        session.messages(),
        session.events(),
        session.receipts(),
        session.clear(),
        session.undo(),
        session.fork(),
        session.rename("two"),
        session.refresh(),
    ):
        with pytest.raises(SessionClosedError, match="session 'gone' was closed: open it again"):
            await attempt
    await session.close()
    assert await session.cancel_compaction() is False
    again = await Session.open("gone", store=store)
    assert await again.messages_at(0, 2) == [user_message("one"), assistant_message("1")]


async def test_who_waits_for_a_turn_when_a_session_is_closed_does_not_get_it() -> None:
    store = MemoryStore()
    session = await Session.open("gone", store=store)
    async with session._log.lock:
        closing = asyncio.create_task(session.close())
        recording = asyncio.create_task(session.record([user_message("late")]))
        await asyncio.sleep(0)

    await closing
    with pytest.raises(SessionClosedError):
        await recording
    assert await store.length("gone") == 0


async def test_a_client_that_moves_its_cache_mark_sends_the_same_conversation() -> None:
    def marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a list whose last message is marked for the cache, as clients send it."""
        *earlier, last = messages
        block = {"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}
        return [*earlier, {**last, "content": [block]}]

    talk = [{"role": role, "content": f"{role} {number}"} for number in range(3) for role in ("user", "assistant")]
    async with Session.open("c1") as session:
        new = [await session.sync(marked(talk[:count]), format="anthropic-messages") for count in (1, 3, 3, 5)]
        rewinds = [event for event in await session.events() if isinstance(event, log.Rewound)]

    assert new == [range(1), range(1, 3), range(3, 3), range(3, 5)]
    assert rewinds == []


async def test_a_session_without_messages_is_true() -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        assert (bool(session), len(session)) == (True, 0)


def test_a_piece_of_a_recorded_request_that_is_no_range_holds_no_message() -> None:
    said, made = user_message("a"), assistant_message("made for the request")
    past = RecordedHistory.replay([appended(said), appended(assistant_message("b"))], format_named)
    view = ({"from": 0, "to": 1}, {"from": 1}, {"to": 2}, {"from": "0", "to": "2"}, {"message": made}, {})

    rebuilt = rebuild_messages(log.RequestPrepared(view=view, payload_hash="", policy="default", engine="1"), past)

    assert rebuilt == [(0, said), (None, made)]
