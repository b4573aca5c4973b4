"""Lists as real clients send them: the same message written differently, their own compactions, and calls beside."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Session, SettingsError
from holdfast.core.history import events as log
from holdfast.session.sync import RecordedMessage, SyncDiff, sync_diff
from holdfast.stores.base import Store
from holdfast.testing.chat import assistant_message, system_message, user_message
from holdfast.wire.equivalence import essential_gemini_content, essential_message

CALL = {"id": "call_1", "type": "function", "function": {"name": "view", "arguments": '{"path":"a.txt"}'}}
SUMMARY = "The user had a.txt read.  It says hello,\nand the harbor light is green."


def changes(events: list[log.Event]) -> list[str]:
    return [event.KIND for event in events if isinstance(event, log.Rewound | log.CompactionCompleted)]


async def synced(store: Store, *lists: list[Any], format: str = "openai-chat") -> tuple[list[range], list[str]]:  # noqa: A002
    """Return the positions that each list added, and the changes of context."""
    async with Session.open("s", store=store) as session:
        added = [await session.sync(one, format=format) for one in lists]
        return added, changes(await session.events())


async def test_a_resumed_list_without_null_members_and_with_a_clients_own_keys_is_the_same(store: Store) -> None:
    asked = [system_message("be"), user_message("Read a.txt")]
    first = [
        *asked,
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "hello\n"},
    ]
    resumed = [
        *asked,
        {"role": "assistant", "content": "", "tool_calls": [CALL], "annotations": []},
        {"role": "tool", "tool_call_id": "call_1", "content": "hello\n", "__clientSource": {"kind": "tool"}},
        assistant_message("It says hello."),
        user_message("And again"),
    ]

    assert await synced(store, first, resumed) == ([range(4), range(4, 6)], [])


@pytest.mark.parametrize(
    ("given_list", "expected"),
    [
        ("abcde", SyncDiff(None, 4)),  # the records, and one message more
        ("Scde", SyncDiff(None, 3)),  # the last request, and one message more
        ("Sce", SyncDiff(3, 2)),  # the last request, but what followed it is another message
        ("Sx", SyncDiff(0, 0)),  # a list that only begins like the last request
        ("abx", SyncDiff(2, 2)),
        ("ab", SyncDiff(2, 2)),
        ("x", SyncDiff(0, 0)),
    ],
)
def test_a_list_continues_the_records_or_the_whole_last_request(given_list: str, expected: SyncDiff) -> None:
    recorded = [RecordedMessage(position, digest) for position, digest in enumerate("abcd")]
    sent = [("S", None), ("c", 2)]

    assert sync_diff(given_list, recorded, sent, length=4, sent_length=3) == expected


async def test_a_list_that_continues_the_last_request_keeps_results_that_the_request_has_joined(store: Store) -> None:
    calls = [{"type": "tool_use", "id": call_id, "name": "look", "input": {}} for call_id in ("a", "b")]
    results = [{"type": "tool_result", "tool_use_id": call_id, "content": f"of {call_id}"} for call_id in ("a", "b")]
    said = [
        user_message("Look at both."),
        {"role": "assistant", "content": calls},
        {"role": "user", "content": [results[0]]},
        {"role": "user", "content": [results[1]]},
    ]
    asked = [*said[:2], {"role": "user", "content": results}]
    answer, prompt = assistant_message("Both are fine."), user_message("Go on.")
    async with Session.open("s", store=store) as session:
        await session.record(said, format="anthropic-messages")
        first = await session.prepare(16_000)
        added = await session.sync([*first.messages, answer, prompt], format="anthropic-messages")

        assert (first.messages, added) == (asked, range(4, 6))
        assert await session.messages() == [*said, answer, prompt]
        assert (await session.prepare(16_000)).messages == [*asked, answer, prompt]


async def test_response_items_that_lost_their_ids_status_and_type_are_the_same(store: Store) -> None:
    answer = [{"type": "output_text", "text": "hello", "annotations": []}]
    call = {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"}
    first = [
        {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {**call, "id": "fc_1", "status": "completed"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "out"},
        {"type": "message", "id": "msg_2", "status": "completed", "role": "assistant", "content": answer},
    ]
    second = [
        {"role": "user", "content": "go"},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "out"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
        {"role": "user", "content": "more"},
    ]

    assert await synced(store, first, second, format="openai-responses") == ([range(4), range(4, 5)], [])


async def test_white_space_at_the_end_of_a_prompt_does_not_matter_and_is_kept_in_the_log(store: Store) -> None:
    async with Session.open("s", store=store) as session:
        await session.sync([user_message("Read a.txt \n")])
        added = await session.sync([user_message("Read a.txt"), assistant_message("yes")])

        assert added == range(1, 2)
        assert await session.messages() == [user_message("Read a.txt \n"), assistant_message("yes")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user_message("a"), user_message("b")),
        (assistant_message("a"), assistant_message("a ")),
        ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "assistant", "content": None}),
        ({"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "assistant", "content": ""}),
        ({"type": "item_reference", "id": "msg_1"}, {"type": "item_reference", "id": "msg_2"}),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "run", "input": {"a": None}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "run", "input": {}}]},
        ),
    ],
)
def test_messages_that_say_something_else_stay_different(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert essential_message(one) != essential_message(other)


def calling(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text or None, "tool_calls": [CALL]}


def showing(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image"}]}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MESSAGES = st.one_of(
    TEXTS.map(user_message),
    TEXTS.map(assistant_message),
    TEXTS.map(calling),
    TEXTS.map(showing),
)


@given(MESSAGES, st.sampled_from(["refusal", "audio", "name"]), st.booleans(), st.booleans())
def test_what_clients_add_or_leave_out_changes_no_message(
    message: dict[str, Any],
    member: str,
    has_mark: bool,  # noqa: FBT001
    is_block: bool,  # noqa: FBT001
) -> None:
    written = {**message, member: None, "__own": 1, "status": "completed", "id": "x", "annotations": []}
    if is_block and isinstance(text := message["content"], str):
        written["content"] = [{"type": "text", "text": text, **({"cache_control": {}} if has_mark else {})}]

    assert essential_message(written) == essential_message(message)


async def compacting(session: Session, *, compacted: str | None = None) -> list[dict[str, Any]]:
    """Sync a conversation, then the list of a client that has compacted it, and return that list."""
    talk = [system_message("be"), user_message("Read a.txt"), assistant_message("It says hello: tide 7731.")]
    await session.sync(talk)
    shorter = [system_message("be"), user_message(f"Continued from before.\n{SUMMARY}"), user_message("go on")]
    await session.sync(shorter, compacted=compacted)
    return shorter


async def test_a_clients_own_compaction_is_a_compaction_and_recall_reaches_what_was_before(store: Store) -> None:
    async with Session.open("s", store=store) as session:
        await session.record_side_call(f"<analysis>x</analysis>\n<summary>{SUMMARY}</summary>", purpose="summary")
        shorter = await compacting(session)
        request = await session.prepare(system="other")
        more = await session.sync([*shorter, assistant_message("done"), user_message("thanks")])
        (event,) = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]
        found = str(await session.recall("tide 7731"))
        (receipt,) = await session.receipts()
        listed = await session.messages()

    assert (event.trigger, event.span.start, event.span.stop, event.summary.by_model) == ("client", 1, 3, "the client")
    assert event.reason == "the client has compacted its list by itself"
    assert request.messages == shorter
    assert more == range(5, 7)
    assert listed == [*shorter, assistant_message("done"), user_message("thanks")]
    assert "tide 7731" in found
    assert str(receipt).splitlines()[0] == "compacted (client) #1–#2 by the client"
    assert (receipt.compacted, receipt.dropped) == (range(1, 3), ())


async def test_a_caller_can_say_that_the_client_has_compacted(store: Store) -> None:
    async with Session.open("s", store=store) as session:
        shorter = await compacting(session, compacted="short words")
        found = str(await session.recall("tide 7731"))
        kinds = changes(await session.events())
        request = await session.prepare()

    assert kinds == ["session.compaction_complete"]
    assert request.messages == shorter
    assert "tide 7731" in found


async def test_a_list_that_differs_without_a_summary_is_still_a_rewind(store: Store) -> None:
    async with Session.open("s", store=store) as session:
        await compacting(session)

        assert changes(await session.events()) == ["session.rewound"]


async def test_a_prompt_that_is_repeated_after_a_rewind_or_a_clear_is_recorded_and_sent_again(store: Store) -> None:
    before, again = [user_message("hello"), assistant_message("hi")], user_message("how are you?")
    async with Session.open("s", store=store) as session:
        await session.sync([*before, again])
        await session.prepare(16_000)
        await session.rewind(to=2)
        assert await session.sync([*before, again]) == range(3, 4)
        assert (await session.prepare(16_000)).messages == [*before, again]

        await session.clear()
        assert await session.sync([*before, again]) == range(4, 7)
        assert (await session.prepare(16_000)).messages == [*before, again]

        await session.sync([user_message("another")])
        assert await session.sync([*before, again]) == range(8, 11)
        assert await session.messages() == [*before, again]


async def test_our_own_compaction_may_follow_the_clients(store: Store) -> None:
    async with Session.open("s", store=store, model="gpt-5") as session:
        shorter = await compacting(session, compacted=SUMMARY)
        for number in range(20):
            shorter += [assistant_message(f"answer {number} " + "word " * 60), user_message(f"question {number}")]
            await session.sync(shorter)
        done = await session.compact(budget=1_000)
        request = await session.prepare(1_000)
        added = await session.sync([*shorter, assistant_message("end"), user_message("?")])
        kinds = changes(await session.events())

    assert done.success
    assert [message["role"] for message in request.messages].count("system") == 1
    assert len(added) == 2
    assert kinds == ["session.compaction_complete", "session.compaction_complete"]


async def test_a_rule_of_the_user_from_before_the_clients_compaction_is_in_our_next_digest(store: Store) -> None:
    async with Session.open("s", store=store, model="gpt-5") as session:
        talk = [user_message("Never push to the branch harbor-7731."), assistant_message("I will not.")]
        await session.sync(talk)
        shorter = [user_message("Continued from before."), user_message("go on")]
        await session.sync(shorter, compacted="They talked.")
        for number in range(20):
            shorter += [assistant_message(f"answer {number} " + "word " * 60), user_message(f"question {number}")]
        await session.sync(shorter)
        done = await session.compact(budget=1_000)

    assert "Never push to the branch harbor-7731." in "\n".join(done.replacement)


async def test_a_session_opened_again_still_knows_what_the_client_left_out(store: Store) -> None:
    async with Session.open("s", store=store) as session:
        shorter = await compacting(session, compacted=SUMMARY)
    async with Session.open("s", store=store) as session:
        added = await session.sync([*shorter, assistant_message("done")])

        assert added == range(5, 6)
        assert await session.messages() == [*shorter, assistant_message("done")]


async def test_a_side_call_is_recorded_beside_the_conversation_and_rewinds_nothing(store: Store) -> None:
    talk = [system_message("be"), user_message("Read a.txt")]
    async with Session.open("s", store=store) as session:
        await session.sync(talk)
        await session.record_side_call("Reading a file", purpose="title", model="small", usage={"input_tokens": 90})
        added = await session.sync([*talk, assistant_message("yes")])
        events = await session.events()

    assert added == range(2, 3)
    assert changes(events) == []
    assert [event for event in events if isinstance(event, log.SideCallRecorded)] == [
        log.SideCallRecorded(purpose="title", answer="Reading a file", model="small", usage=log.Usage(input_tokens=90))
    ]


async def test_a_side_call_of_an_unknown_purpose_is_refused_by_name(store: Store) -> None:
    async with Session.open("s", store=store) as session:
        with pytest.raises(SettingsError, match=r"purpose: 'joke' is not known; choose one of: summary, title, memory"):
            await session.record_side_call("ha", purpose="joke")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"type": "function_call", "call_id": "c", "name": "run", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "c", "name": "run", "arguments": '{"a":1}'},
        ),
        (
            {"role": "assistant", "content": "yes", "reasoning_content": "let me see"},
            {"role": "assistant", "content": "yes"},
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        ),
    ],
)
def test_spacing_of_arguments_and_left_out_thinking_make_no_other_message(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert essential_message(one) == essential_message(other)


def test_ids_signatures_thoughts_and_repeated_results_make_no_other_content_of_gemini() -> None:
    call = {"functionCall": {"name": "run", "args": {"a": 1}}}
    result = {"functionResponse": {"name": "run", "response": {"output": "x"}}}
    signed = {"functionCall": {"id": "c", "name": "run", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
    thought = {"text": "hm", "thought": True}

    for one, other in (
        ([call], [thought, signed]),
        ([result], [result, result]),
        ([{"text": "All done."}], [{"text": "All "}, {"text": "done."}]),
    ):
        assert essential_gemini_content({"role": "model", "parts": one}) == essential_gemini_content(
            {"role": "model", "parts": other}
        )
