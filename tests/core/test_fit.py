"""How a list that is too long is made to fit, one measure at a time."""

import json
from typing import Any

import pytest

from holdfast import Budget, CannotFitError, EmptyConversationError, PendingToolCallsError, Request, govern, read_policy
from holdfast.core.planning.receipt import position_count
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.sessions import generate_session

LONG = "line of output\n" * 2_000


def send(messages: list[Any], budget: int | Budget, **settings: Any) -> Request:
    return govern(messages, budget=budget, model="gpt-5", **settings)


def contents(request: Request) -> list[Any]:
    return [message.get("content") for message in request.messages]


def test_what_fits_goes_out_untouched() -> None:
    messages = [system_message("be"), user_message("hi"), assistant_message("hello"), user_message("how are you?")]

    request = send(messages, 1_000)

    assert request.messages == messages
    assert all(one is other for one, other in zip(request.messages, messages, strict=True))
    assert request.receipt.is_unchanged
    assert request.receipt.kept == (0, 1, 2, 3)
    assert request.receipt.reasons == ()


def test_old_tool_output_is_clipped_to_head_and_tail_before_anything_is_compacted() -> None:
    output = "BEGIN " + LONG + " END"
    messages = [
        user_message("read"),
        tool_call_message("a"),
        tool_result_message("a", output),
        assistant_message("read it"),
        user_message("thanks, and now?"),
    ]

    request = send(messages, 4_000)

    clipped = contents(request)[2]
    assert clipped.startswith("BEGIN line of output")
    assert clipped.endswith("line of output\n END")
    assert "characters cut …]" in clipped
    assert len(clipped) < 1_200
    assert request.receipt.clipped == (2,)
    assert request.receipt.compacted == ()
    assert request.messages[:2] == messages[:2]
    assert request.messages[-1] is messages[-1]


def test_media_of_old_turns_are_elided_and_those_of_the_newest_prompt_stay() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    picture = {"role": "user", "content": [{"type": "text", "text": "look"}, image]}
    messages = [picture, assistant_message("a cat"), picture, assistant_message("a dog"), picture]

    request = send(messages, 2_500)

    assert request.messages[0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "text", "text": "[image elided]"},
    ]
    assert request.messages[-1] is picture
    assert request.receipt.elided == (0, 2)


def test_more_images_in_the_newest_prompt_than_the_provider_takes_are_refused_by_their_number() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "u"}}
    pictures: list[Any] = [{"role": "user", "content": [image] * 101}]

    with pytest.raises(CannotFitError) as refused:
        send(pictures, 1_000_000, format="anthropic")

    assert (refused.value.part, refused.value.unit) == ("the newest prompt", "images")
    assert (refused.value.needed, refused.value.limit) == (101, 100)


def test_images_beyond_what_providers_take_are_elided_in_batches() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: list[Any] = []
    for number in range(23):
        messages += [
            {"role": "user", "content": [{"type": "text", "text": str(number)}, image]},
            assistant_message("seen"),
        ]

    request = send([*messages, user_message("done")], 1_000_000)

    assert request.receipt.elided == tuple(range(0, 20, 2))
    assert send([*messages[:-2], user_message("done")], 1_000_000).receipt.elided == request.receipt.elided


def test_a_receipt_names_no_limit_of_images_where_the_newest_prompt_keeps_all_of_them() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    messages = [user_message("hi"), assistant_message("hello"), {"role": "user", "content": [image] * 25}]

    request = send(messages, 1_000_000)

    assert request.messages == messages
    assert (request.receipt.elided, request.receipt.reasons) == ((), ())


def test_the_oldest_part_is_compacted_into_a_digest() -> None:
    messages = generate_session(400)

    request = send(messages, 6_000)

    assert contents(request)[0] == messages[0]["content"]
    assert contents(request)[1].startswith("[Summary of ")
    assert request.messages[-1] is messages[-1]
    (compacted,) = request.receipt.compacted
    assert compacted.start == 1
    assert f"[Summary of {len(compacted):,} earlier messages" in contents(request)[1]
    assert sorted(request.receipt.kept + request.receipt.clipped) == [0, *range(compacted.stop, len(messages))]
    assert 6_000 * 0.6 < request.tokens.total <= 6_000


class CharacterCounter:
    """Counts characters, as the counter of a user may."""

    name, provenance = "characters", "estimated"

    def count(self, text: str) -> int:
        return len(text)


def test_a_digest_that_a_counter_finds_no_room_for_is_left_out_and_no_empty_message_is_sent() -> None:
    messages = [
        said for number in range(9) for said in (user_message(f"question {number}"), assistant_message("a" * 99))
    ]

    request = send([*messages, user_message("and now?")], 1_000, counter=CharacterCounter())

    notice = "[The conversation before this point is not available.]"
    assert contents(request) == [notice, *(message["content"] for message in messages[13:]), "and now?"]
    assert (request.receipt.compacted, request.receipt.dropped) == ((), (range(13),))
    assert request.receipt.reasons[-1] == "13 messages were dropped: there was no room for a digest of them"


def test_a_tool_loop_that_alone_is_too_long_is_compacted_after_its_prompt() -> None:
    messages = generate_session(3, loop_steps=120)
    prompt = next(message for message in reversed(messages) if message["role"] == "user")

    request = send(messages, 4_000)

    assert [message["role"] for message in request.messages[:3]] == ["system", "user", "user"]
    assert contents(request)[1].startswith("[Summary of ")
    assert request.messages[2] is prompt
    assert request.messages[-1] is messages[-1]


def test_pins_stay_whole_with_their_exchange() -> None:
    messages = generate_session(300)
    pinned = next(index for index, message in enumerate(messages) if message["role"] == "tool" and index > 20)

    request = send(messages, 4_000, pins=[pinned, -1])

    assert messages[pinned] in request.messages
    assert any(
        call["id"] == messages[pinned]["tool_call_id"]
        for message in request.messages
        for call in message.get("tool_calls", [])
    )
    assert pinned in request.receipt.kept


def test_the_newest_output_is_squeezed_when_nothing_else_is_left() -> None:
    messages = [
        system_message("be"),
        user_message("read it all"),
        tool_call_message("a"),
        tool_result_message("a", LONG),
    ]

    request = send(messages, 2_000)

    assert contents(request)[:2] == ["be", "read it all"]
    assert len(contents(request)[3]) > 2_000
    assert request.receipt.clipped == (3,)
    assert "the last exchange alone is too long" in request.receipt.reasons[-1]


def test_arguments_of_the_last_call_are_squeezed_and_stay_json() -> None:
    messages = [
        user_message("write"),
        tool_call_message("a", name="write", arguments={"path": "a.txt", "text": LONG}),
        tool_result_message("a"),
    ]

    request = send(messages, 1_000)

    arguments = request.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert '"path":"a.txt"' in arguments
    assert "characters cut …]" in arguments
    assert request.messages[1]["tool_calls"][0]["id"] == "a"


@pytest.mark.parametrize(
    ("messages", "settings", "part"),
    [
        ([system_message("rule " * 2_000), user_message("hi")], {}, "the system text"),
        ([user_message("hi " * 2_000)], {}, "the newest prompt"),
        ([user_message("hi")], {"tools": [{"name": "x" * 9_000}]}, "the tool definitions"),
        (
            [user_message("keep " * 2_000), assistant_message("ok"), user_message("hi")],
            {"pins": [0]},
            "the pinned messages",
        ),
    ],
)
def test_what_cannot_shrink_is_named(messages: list[Any], settings: dict[str, Any], part: str) -> None:
    with pytest.raises(CannotFitError) as refusal:
        send(messages, 1_000, **settings)

    assert refusal.value.part == part
    assert refusal.value.limit == 1_000
    assert refusal.value.needed > 1_000
    assert refusal.value.breakdown[part] > 900
    assert f"{part} cannot shrink any further" in str(refusal.value)
    assert f"raise the budget or make {part} smaller" in str(refusal.value)


def test_a_limit_on_messages_is_kept() -> None:
    messages = generate_session(300)

    request = send(messages, Budget(100_000, messages=12))

    assert len(request.messages) <= 12
    assert request.messages[-1] is messages[-1]


def test_a_limit_on_turns_is_kept() -> None:
    messages = generate_session(300)

    request = send(messages, Budget(100_000, turns=4))

    prompts = [message for message in request.messages[2:] if message["role"] == "user"]
    assert 1 <= len(prompts) <= 4


def test_a_limit_on_bytes_is_kept() -> None:
    messages = generate_session(300)

    request = send(messages, Budget(100_000, bytes=30_000))

    assert sum(len(json.dumps(message)) for message in request.messages) <= 30_000
    assert len(request.messages) > 4


@pytest.mark.parametrize(("limit", "sent"), [(300, 3), (1_000, 11), (3_000, 24), (8_000, 61)])
def test_a_digest_leaves_most_of_a_limit_on_bytes_to_the_newest_messages(limit: int, sent: int) -> None:
    turns = [(user_message(f"q{n} " + "w " * 30), assistant_message(f"a{n} " + "w " * 30)) for n in range(30)]
    messages = [*(message for turn in turns for message in turn), user_message("now")]

    request = send(messages, Budget(100_000, bytes=limit))

    assert len(request.messages) == sent


@pytest.mark.parametrize(
    ("budget", "unit"), [(Budget(1_000, messages=1), "messages"), (Budget(1_000, bytes=20), "bytes")]
)
def test_a_limit_that_cannot_be_kept_is_named_with_its_unit(budget: Budget, unit: str) -> None:
    with pytest.raises(CannotFitError) as refusal:
        send([system_message("be"), user_message("hello there")], budget)

    assert refusal.value.unit == unit


def test_a_call_that_may_still_be_running_is_no_request_yet() -> None:
    with pytest.raises(PendingToolCallsError) as pending:
        send([user_message("go"), tool_call_message("a", "b"), tool_result_message("a")], 1_000)

    assert pending.value.call_ids == ("b",)
    assert "interrupted=True" in str(pending.value)
    assert (
        contents(send([user_message("go"), tool_call_message("a")], 1_000, interrupted=True))[-1]
        == "Interrupted by user."
    )


@pytest.mark.parametrize("messages", [[], [system_message("be")], [assistant_message(""), system_message("be")]])
def test_a_list_without_anything_to_answer_is_refused(messages: list[Any]) -> None:
    with pytest.raises(EmptyConversationError, match="append a user message"):
        send(messages, 1_000)


def test_the_reasoning_of_the_open_turn_stays_when_its_later_steps_have_none() -> None:
    thinking = {"type": "thinking", "thinking": "first I read", "signature": "c2ln"}
    messages: list[Any] = [{"role": "user", "content": "go"}]
    for step in range(60):
        use = {"type": "tool_use", "id": f"t{step}", "name": "run", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{step}", "content": "some output " * 60}
        messages.append({"role": "assistant", "content": [thinking, use] if step == 0 else [use]})
        messages.append({"role": "user", "content": [result]})

    request = send(messages, 4_000, format="anthropic")

    assert request.messages[0]["content"].startswith("[Summary of ")
    assert request.messages[1] is messages[0]
    assert request.messages[2] is messages[1]
    assert request.messages[3] is messages[2]
    assert request.messages[-1] is messages[-1]
    assert position_count(request.receipt.compacted) > 70


def test_tool_results_beside_the_newest_prompt_can_be_squeezed_and_its_words_cannot() -> None:
    messages: list[Any] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "run", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": LONG},
                {"type": "text", "text": "and mind the gap"},
            ],
        },
    ]

    request = send(messages, 1_000, format="anthropic")

    assert request.messages[-1]["content"][1] is messages[-1]["content"][1]
    assert len(request.messages[-1]["content"][0]["content"]) < len(LONG)


def test_excess_cache_marks_go_oldest_first() -> None:
    def marked(text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}

    messages = [marked(str(number)) for number in range(6)]

    request = send(messages, 1_000, format="anthropic", tools=[{"name": "x", "cache_control": {"type": "ephemeral"}}])

    assert ["cache_control" in message["content"][0] for message in request.messages] == [False] * 3 + [True] * 3


def test_a_policy_can_be_given_by_value() -> None:
    messages = generate_session(200)

    plain = send(messages, 6_000)
    spare = send(messages, 6_000, policy=read_policy("fit.digest_share = 0.005"))

    assert spare.receipt.dropped
    assert spare.receipt.compacted == ()
    assert plain.receipt.compacted


def test_an_edit_in_place_of_what_would_be_sent_is_noticed() -> None:
    messages = [user_message("hi"), assistant_message("hello"), user_message("more")]
    before = send(messages, 1_000)
    messages[2]["content"] = "more " * 300

    after = send(messages, 1_000, previous=before)

    assert after.tokens.total == send(messages, 1_000).tokens.total > 300


def test_a_different_list_is_not_taken_for_a_continuation() -> None:
    before = send([user_message("hi"), assistant_message("hello"), user_message("more")], 1_000)

    after = send(
        [
            user_message("HI"),
            assistant_message("hello"),
            user_message("more"),
            assistant_message("x"),
            user_message("y"),
        ],
        1_000,
        previous=before,
    )

    assert contents(after) == ["HI", "hello", "more", "x", "y"]


def test_two_continuations_of_one_request_do_not_disturb_each_other() -> None:
    base = [user_message("hi"), assistant_message("hello")]
    before = send([*base, user_message("a")], 1_000)

    one = send([*base, user_message("a"), assistant_message("1"), user_message("one")], 1_000, previous=before)
    two = send([*base, user_message("a"), assistant_message("2"), user_message("two")], 1_000, previous=before)

    assert contents(one) == ["hi", "hello", "a", "1", "one"]
    assert contents(two) == ["hi", "hello", "a", "2", "two"]
    assert contents(send([*base, user_message("a"), assistant_message("1")], 1_000, previous=before))[:4] == [
        "hi",
        "hello",
        "a",
        "1",
    ]


def test_the_newest_prompt_stays_if_its_client_sends_a_reminder_as_a_message_after_it() -> None:
    prompt = [user_message("Find all callers."), user_message("<system-reminder>Be brief.</system-reminder>")]
    steps = [
        one for n in range(40) for one in (tool_call_message(f"c{n}"), tool_result_message(f"c{n}", f"line {n} " * 60))
    ]

    request = send([user_message("old"), assistant_message("yes"), *prompt, *steps], 2_000)

    assert [message for message in request.messages if message in prompt] == prompt
    assert request.messages[-1] == steps[-1]


def test_a_prompt_and_its_reminder_that_do_not_fit_together_leave_the_newest_of_them() -> None:
    reminder = user_message("<system-reminder>" + "be brief " * 500 + "</system-reminder>")

    request = send([user_message("paste " * 1_500), reminder], 2_000)

    assert request.messages[-1] == reminder
