"""Promises that were broken once, each under the symptom it showed."""

import json
from typing import Any

import pytest

from holdfast import (
    Budget,
    Calibration,
    CannotFitError,
    MalformedInputError,
    SettingsError,
    classify,
    govern,
    validate,
)
from holdfast.core.conversation.tokens import request_tokens
from holdfast.core.planning.policy import FitSettings
from holdfast.counters.vocabularies import counter_for
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.sessions import generate_session
from holdfast.wire.formats import format_named


def use(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "run", "input": {}, **fields}


def result(call_id: str, text: str = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def model(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def anthropic(messages: list[Any], **settings: Any) -> Any:
    given: dict[str, Any] = {"budget": 16_000, "format": "anthropic", "model": "gpt-5", **settings}
    return govern(messages, **given)


def test_a_long_first_result_after_the_only_reasoning_does_not_make_a_loop_unsendable() -> None:
    thinking = {"type": "thinking", "thinking": "plan", "signature": "s"}
    messages: list[Any] = [
        user({"type": "text", "text": "go"}),
        model(thinking, use("a")),
        user(result("a", "word " * 12_000)),
    ]
    for step in range(60):
        messages += [model(use(f"b{step}")), user(result(f"b{step}", "word " * 300))]

    request = anthropic(messages, model="claude-sonnet-4-5")

    assert request.messages[2]["content"][0] is thinking
    assert 2 in request.receipt.clipped


def test_learning_from_every_answer_does_not_make_the_factor_swing() -> None:
    calibration = Calibration()
    factors: list[float] = []
    for _ in range(6):
        request = govern([user_message("word " * 200)], budget=16_000, model="gpt-5", calibration=calibration)
        calibration = calibration.learn(counted=request.tokens.counted, reported=310)
        factors.append(calibration.factor)

    assert factors == [1.5] * 6


def test_one_report_that_is_far_off_does_not_undo_what_fifty_have_taught() -> None:
    assert Calibration(1.3, 50).learn(counted=100, reported=390) == Calibration(1.4, 51)


@pytest.mark.parametrize(
    ("messages", "settings", "text"),
    [
        (
            [user_message("a"), assistant_message("b"), user_message("c")],
            {"budget": Budget(1_000, turns=1), "pins": [0]},
            "2 turns cannot be made to fit 1",
        ),
        ([assistant_message("word " * 55)], {"budget": 64}, "89 tokens cannot be made to fit 64"),
        (
            [user_message("a"), tool_call_message("x"), tool_result_message("x")],
            {"budget": Budget(1_000, messages=2)},
            "3 messages cannot be made to fit 2",
        ),
    ],
)  # fmt: skip
def test_the_numbers_of_a_refusal_are_those_of_the_limit_that_is_broken(
    messages: Any, settings: Any, text: str
) -> None:
    with pytest.raises(CannotFitError, match=text) as refusal:
        govern(messages, model="gpt-5", **settings)

    assert refusal.value.needed > refusal.value.limit
    assert sum(refusal.value.breakdown.values()) == refusal.value.needed


def test_a_late_result_stays_with_its_pinned_call() -> None:
    messages = [
        user_message("go"),
        tool_call_message("a"),
        user_message("wait"),
        tool_result_message("a", "the result"),
        *generate_session(300)[1:],
    ]

    request = govern(messages, budget=4_000, model="gpt-5", pins=[1])

    assert tool_result_message("a", "the result") in request.messages


def test_the_newest_message_is_not_lost_when_it_is_a_late_result() -> None:
    session = generate_session(300)
    messages = [
        *session[:-1],
        tool_call_message("late"),
        *generate_session(200, seed=2)[1:],
        tool_result_message("late", "here it is"),
    ]

    request = govern(messages, budget=8_000, model="gpt-5")

    assert tool_result_message("late", "here it is") in request.messages


def test_an_id_that_anthropic_refuses_is_replaced_on_both_sides() -> None:
    request = anthropic([user({"type": "text", "text": "x"}), model(use("weird id!")), user(result("weird id!"))])

    assert validate(request.messages, "anthropic") == []
    assert request.messages[1]["content"][0]["id"] == request.messages[2]["content"][0]["tool_use_id"]


@pytest.mark.parametrize(
    ("messages", "provider"),
    [
        ([{"role": ["x"]}], "openai"),
        ([{"role": ["x"]}], "gemini"),
        ([{"role": "assistant", "content": "x", "tool_calls": 5}], "mistral"),
        ([{"role": "user", "content": [{"toolUse": None}]}], "bedrock"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": []}]}], "anthropic"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{"id": []}]}], "openai"),
    ],
)
def test_validation_of_garbage_finds_violations_and_does_not_crash(messages: Any, provider: str) -> None:
    assert validate(messages, provider)


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": None}, {"policy": {}}, {"pins": 3}, {"model": 5}, {"calibration": 1.2}, {"counter": len},
        {"previous": "x"}, {"format": []}, {"budget": 10**13}, {"system": "x"},
    ],
)  # fmt: skip
def test_settings_of_the_wrong_kind_are_refused_by_name(settings: dict[str, Any]) -> None:
    (name,) = settings
    given: dict[str, Any] = {"budget": 1_000, **settings}

    with pytest.raises(SettingsError) as refusal:
        govern([user_message("hi")], **given)

    assert refusal.value.setting == name


@pytest.mark.parametrize(
    "fields",
    [
        {"step_share": "0.5"},
        {"step_share": 1e-9},
        {"clip_zone_steps": 1.5},
        {"clip_zone_steps": 10**13},
        {"max_media": 0},
    ],
)
def test_a_policy_that_cannot_work_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"policy.fit.{next(iter(fields))}"):
        FitSettings(**fields)


@pytest.mark.parametrize("factor", [0, -2, float("nan"), "x", 100])
def test_a_calibration_that_cannot_be_is_refused(factor: Any) -> None:
    with pytest.raises(SettingsError, match=r"calibration\.factor"):
        Calibration(factor)


@pytest.mark.parametrize("model_name", ["ollama/phi3", "ollama/command-r", "foo1", "turbo1", "llama-4-maverick"])
def test_another_familys_vocabulary_is_not_called_the_models_own(model_name: str) -> None:
    assert counter_for(model_name).provenance == "estimated"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens for claude-3", 8_192),
        ("max_tokens is too large: 64000. This model supports at most 16384 completion tokens", 16_384),
    ],
)
def test_an_output_cap_names_the_most_that_is_allowed(text: str, limit: int) -> None:
    refusal = classify(text, status=400)

    assert refusal is not None
    assert (refusal.kind, refusal.limit) == ("output_cap", limit)


def test_text_made_to_fool_a_sample_is_counted_whole() -> None:
    text = ("a" * 50_000 + "🎉🏽" * 25_000) * 20

    with pytest.raises(CannotFitError):
        govern([user_message(text)], budget=500_000, model="gpt-5")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "name": "word " * 10_000},
        {"role": "user", "content": "x", "unheard_of": ["word " * 10_000]},
        {"role": "user", "content": [{"type": "text", "text": "hi", "z": "word " * 10_000}]},
    ],
)
def test_whatever_is_sent_is_counted(message: Any) -> None:
    with pytest.raises(CannotFitError):
        govern([message], budget=1_000, model="gpt-5")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "hi", "citations": [{"cited_text": "word " * 10_000}]},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "word " * 10_000}]}},
        {"type": "document", "source": {"type": "base64", "data": "AAAA"}, "context": "word " * 10_000},
    ],
)
def test_whatever_is_sent_in_a_block_is_counted(block: Any) -> None:
    with pytest.raises(CannotFitError):
        anthropic([user(block)], budget=5_000)


def test_tool_results_are_no_turns() -> None:
    text = {"type": "text", "text": "x"}
    messages: list[Any] = [user(text), model(text), user(text), model(text), user(text)]
    for step in range(20):
        messages += [model(use(f"t{step}")), user(result(f"t{step}"))]

    assert len(anthropic(messages, budget=Budget(16_000, turns=2)).messages) > 40


@pytest.mark.parametrize(
    "messages",
    [
        [user_message("x"), tool_call_message("a"), {"role": "tool", "tool_call_id": "a", "content": None}],
        [user_message("x"), {"role": "user", "content": None, "tool_calls": tool_call_message("a")["tool_calls"]}],
        [user_message("x"), {"role": "assistant", "content": "y", "tool_calls": []}, user_message("z")],
        [user_message("x"), tool_call_message("a\ud800b"), tool_result_message("a\ud800b")],
        [user_message("x"), tool_call_message("a"), tool_result_message("a", "y" * 1_100_000)],
    ],
)
def test_what_openai_refuses_is_repaired(messages: Any) -> None:
    request = govern(messages, budget=1_000_000, model="gpt-5", interrupted=True)

    assert validate(request.messages, "openai") == []
    assert all(message.get("tool_calls") != [] for message in request.messages)
    json.dumps(request.messages, ensure_ascii=False, allow_nan=False).encode()


def test_reasoning_without_a_signature_and_misplaced_tool_blocks_are_left_out_with_a_line() -> None:
    text = {"type": "text", "text": "x"}
    messages = [user(text, use("u")), model({"type": "thinking", "thinking": "hm"}, text, result("r")), user(text)]

    request = anthropic(messages)

    assert request.messages == [user(text), model(text), user(text)]
    assert [repair.description for repair in request.receipt.repairs] == [
        "left out a tool_use in a message of the user",
        "left out reasoning without a signature",
        "left out a tool_result in a message of the assistant",
    ]


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("-inf")])
def test_what_utf8_or_json_cannot_carry_is_repaired_wherever_it_stands(value: Any) -> None:
    messages = [
        {"role": "user", "content": [{"type": "zz", "z": [{"deep": value}]}], "name": value},
        {"role": "assistant", "content": "x", "refusal": {"a": value}, "reasoning_details": [value]},
        user_message("go"),
    ]

    request = govern(messages, budget=16_000, model="gpt-5")

    json.dumps(request.messages, ensure_ascii=False, allow_nan=False).encode()
    assert {repair.position for repair in request.receipt.repairs} == {0, 1}


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), {1: 2}, pytest.param(10**5_000, id="long number")])
def test_what_json_cannot_express_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(MalformedInputError, match=r"messages\[1\]\.extra\[0\]"):
        govern([user_message("x"), {"role": "user", "content": "y", "extra": [value]}], budget=1_000)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(MalformedInputError, match="nested deeper than 100 levels"):
        govern([{"role": "user", "content": "y", "extra": loop}], budget=1_000)
    with pytest.raises(MalformedInputError, match=r"tools.*nested deeper"):
        govern([user_message("x")], budget=1_000, tools=[{"extra": loop}])


def test_removed_cache_marks_are_accounted_for_and_no_more_are_removed_than_needed() -> None:
    marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}

    request = anthropic([user(marked, marked), model({"type": "text", "text": "y"}), user(marked, marked, marked)])

    blocks = (*request.messages[0]["content"], *request.messages[2]["content"])
    assert ["cache_control" in block for block in blocks] == [False, True, True, True, True]
    assert request.receipt.kept == (1, 2)
    assert [(repair.position, repair.description) for repair in request.receipt.repairs] == [
        (0, "removed a cache mark: there were too many")
    ]


@pytest.mark.parametrize(
    "messages",
    [
        [
            user_message("x"),
            tool_call_message("a"),
            tool_result_message("a"),
            tool_call_message("a"),
            tool_result_message("a"),
            user_message("y"),
        ],
        [
            user_message("x"),
            tool_call_message("a"),
            user_message("y"),
            tool_result_message("a"),
            assistant_message(""),
            user_message("z"),
        ],
    ],
)
def test_every_position_is_accounted_for(messages: list[Any]) -> None:
    receipt = govern(messages, budget=16_000, model="gpt-5").receipt

    told = {*receipt.kept, *receipt.clipped, *receipt.elided, *(repair.position for repair in receipt.repairs)}
    told |= {position for span in (*receipt.compacted, *receipt.dropped) for position in span}
    assert told >= set(range(len(messages)))


def test_results_that_were_gathered_are_accounted_for() -> None:
    text = {"type": "text", "text": "x"}

    receipt = anthropic(
        [user(text), model(use("a"), use("b")), user(result("a")), user(result("b")), user(text)]
    ).receipt

    assert {repair.position for repair in receipt.repairs} >= {2, 3}


def test_an_equal_list_that_is_written_differently_is_not_taken_for_the_same() -> None:
    def history(value: Any) -> list[Any]:
        return [user({"type": "text", "text": "x"}), model(use("a", input=value)), user(result("a"))]

    before = anthropic(history({"k": "v", "j": [1]}))
    after = anthropic(history({"j": [True], "k": "v"}), previous=before)

    assert after.messages[1]["content"][0]["input"] == {"j": [True], "k": "v"}
    assert list(after.messages[1]["content"][0]["input"]) == ["j", "k"]


def test_an_equal_list_that_costs_more_is_counted_anew() -> None:
    def history(value: object) -> list[Any]:
        return [{"role": "user", "content": [{"type": "zz", "a": [value] * 50}]}]

    before = govern(history(1), budget=16_000, model="gpt-5")
    after = govern(history(1.0), budget=16_000, model="gpt-5", previous=before)

    assert after.tokens == govern(history(1.0), budget=16_000, model="gpt-5").tokens != before.tokens


@pytest.mark.parametrize(
    "arguments",
    [
        json.dumps({"a": "\ud800" + "x y z " * 2_000}),
        '{"a":' * 90 + '"' + "x y " * 3_000 + '"' + "}" * 90,
        "[" * 600 + "x " * 3_000,
    ],
)
def test_squeezing_arguments_of_any_shape_gives_a_request(arguments: str) -> None:
    call: Any = tool_call_message("a")
    call["tool_calls"][0]["function"]["arguments"] = arguments

    request = govern([user_message("x"), call, tool_result_message("a")], budget=1_500, model="gpt-5")

    json.dumps(request.messages, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    "body",
    [
        "maximum context length is " + "9" * 5_000 + " tokens",
        "[" * 900 + "]" * 900,
        {(1, 2): 3},
        {"error": {"error": {}}},
    ],
)
def test_classification_of_garbage_does_not_crash(body: Any) -> None:
    classify(body, status=400)
    loop: dict[str, Any] = {"message": "prompt is too long"}
    loop["error"] = loop
    assert classify(loop, status=400) is not None


def test_the_digest_does_not_call_a_turn_open_that_goes_on_after_it() -> None:
    steps = [
        message
        for step in range(40)
        for message in (tool_call_message(f"c{step}"), tool_result_message(f"c{step}", "word " * 40))
    ]
    messages = [user_message("the only task"), *steps, assistant_message("done"), user_message("and now?")]

    request = govern(messages, budget=2_000, model="gpt-5")

    (compacted,) = request.receipt.compacted
    assert compacted.stop < len(steps)
    assert "“the only task”" in str(request.messages[0]["content"])
    assert "not answered yet" not in str(request.messages[0]["content"])


def test_a_retry_from_the_same_request_knows_how_long_the_longest_text_is() -> None:
    settings: dict[str, Any] = {"budget": 10**7, "interrupted": True, "model": "gpt-5"}
    base = [user_message("a"), tool_call_message("a")]
    first = govern(base, **settings)
    grown = [*base, tool_result_message("a", "w " * 600_000), user_message("x")]

    once, again = (govern(grown, **settings, previous=first).messages for _ in range(2))

    assert len(str(once[2]["content"])) == len(str(again[2]["content"])) <= 1_048_576


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}])
def test_what_follows_a_bad_key_is_looked_at(value: Any) -> None:
    with pytest.raises(MalformedInputError):
        govern([{"role": "user", "content": "q", "x": {"\ud800": value}}], budget=1_000)


NAMELESS = {"id": "", "type": "custom", "custom": {"name": "", "input": "x"}, "function": None}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "reasoning_details": [{"t": 1}]},
        {"role": "assistant", "content": " ", "reasoning_details": [{"t": 1}]},
        {"role": "assistant", "tool_calls": [NAMELESS]},
    ],
)
def test_odd_assistant_messages_are_repaired(message: Any) -> None:
    request = govern(
        [user_message("q"), message, tool_result_message(""), user_message("z")], budget=1_000, model="gpt-5"
    )

    assert validate(request.messages, "openai") == []


def test_a_custom_call_keeps_its_shape_when_it_is_renamed() -> None:
    call = {"id": "", "type": "custom", "custom": {"name": "f", "input": "x"}}

    request = govern(
        [user_message("q"), {"role": "assistant", "tool_calls": [call]}, tool_result_message(""), user_message("z")],
        budget=1_000,
    )

    assert request.messages[1]["tool_calls"] == [
        {"id": "call_1_0", "type": "custom", "custom": {"name": "f", "input": "x"}}
    ]


TEXT = {"type": "text", "text": "x"}
MCP_USE = {"type": "mcp_tool_use", "id": "m", "name": "x", "input": {}}
EMPTY_SEARCH = {"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": ""}]}


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, TEXT],
        [MCP_USE, {"type": "mcp_tool_result", "tool_use_id": "m", "content": []}],
        [{"type": "document", "source": {"type": []}}],
        [EMPTY_SEARCH, TEXT],
    ],
)
def test_odd_anthropic_blocks_are_repaired_or_left_alone(blocks: list[Any]) -> None:
    text = {"type": "text", "text": "x"}

    request = anthropic([user(text), model(*blocks), user(text)])

    assert validate(request.messages, "anthropic") == []


def test_an_id_of_a_server_tool_that_is_no_text_is_refused_by_its_place() -> None:
    block = {"type": "server_tool_use", "id": [], "name": "w", "input": {}}

    with pytest.raises(MalformedInputError, match=r"messages\[0\]\.content\[0\]\.id: must be a string, not a list"):
        anthropic([model(block)])


WORDS = "w " * 5_000
FUNCTION: dict[str, Any] = {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "q", "tool_call_id": WORDS},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": FUNCTION, "extra_content": {"signature": WORDS}}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {**FUNCTION, "parsed_arguments": WORDS}}]},
        {**tool_call_message("a"), "weight": WORDS},
    ],
)
def test_fields_in_unlikely_places_are_counted(message: Any) -> None:
    with pytest.raises(CannotFitError):
        govern(
            [user_message("q"), message, tool_result_message("a")],
            budget=1_000,
            model="gpt-5",
            pins=[1],
            interrupted=True,
        )


def test_a_field_on_a_tool_message_is_counted() -> None:
    odd = {**tool_result_message("a"), "reasoning_content": WORDS}

    with pytest.raises(CannotFitError):
        govern([user_message("q"), tool_call_message("a"), odd], budget=1_000, model="gpt-5")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "x", "data": WORDS},
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "note": WORDS}},
    ],
)
def test_fields_on_unlikely_blocks_are_counted(block: Any) -> None:
    with pytest.raises(CannotFitError):
        anthropic([user(block)], budget=1_000)


def test_a_pinned_result_stays_however_far_its_call_is() -> None:
    middle = [message for number in range(700) for message in (user_message(f"u {number}"), assistant_message("v"))]
    messages = [
        user_message("q"),
        tool_call_message("b"),
        *middle,
        tool_result_message("b", "late result"),
        user_message("now"),
    ]

    request = govern(messages, budget=600, model="gpt-5", pins=[len(messages) - 2])

    assert tool_result_message("b", "late result") in request.messages


def test_a_pinned_output_too_long_for_the_provider_is_refused_and_not_cut() -> None:
    messages = [user_message("a"), tool_call_message("a"), tool_result_message("a", "w " * 600_000), user_message("z")]

    with pytest.raises(
        CannotFitError, match="1,200,000 characters cannot be made to fit 1,048,576: the pinned messages"
    ):
        govern(messages, budget=10**7, model="gpt-5", pins=[2])


def test_a_text_over_the_providers_limit_is_no_reason_to_raise_the_budget() -> None:
    with pytest.raises(CannotFitError) as too_long:
        govern([user_message("w " * 600_000)], budget=10**7, model="gpt-5")

    assert str(too_long.value) == (
        "1,200,000 characters cannot be made to fit 1,048,576: the newest prompt cannot shrink any further "
        "(the newest prompt 1,200,000); make the newest prompt smaller"
    )


@pytest.mark.parametrize(
    "earlier", [[user_message("w " * 600_000)], [user_message("a"), assistant_message("w " * 600_000)]]
)
def test_an_earlier_text_over_the_providers_limit_leaves_the_view_and_does_not_end_the_conversation(
    earlier: list[dict[str, Any]],
) -> None:
    messages = [*earlier, user_message("and now?")]

    request = govern(messages, budget=10**7, model="gpt-5")

    assert validate(request.messages, "openai") == []
    assert request.messages[-1] == user_message("and now?")
    assert max(len(message["content"]) for message in request.messages) < 1_000


def test_siblings_of_one_request_do_not_lend_each_other_what_only_looks_equal() -> None:
    base: list[Any] = [user({"type": "text", "text": "q"})]
    before = anthropic(base)

    def grown(value: object) -> list[Any]:
        return [*base, model(use("bad id!", input={"a": value})), user(result("bad id!"))]

    anthropic(grown(1), previous=before)
    sibling = anthropic(grown(True), previous=before)  # noqa: FBT003

    assert sibling.messages[1]["content"][0]["input"]["a"] is True


def test_results_that_are_gathered_are_counted_with_the_images_they_bring() -> None:
    call = {"functionCall": {"name": "run", "args": {"path": "src/a.py"}}}
    image = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
    messages: list[dict[str, Any]] = [
        {"role": "model", "parts": [{"functionCall": {"id": "id_a", **call["functionCall"]}}, call]},
        {"role": "user", "parts": [{"functionResponse": {"name": "run", "response": {"output": ""}}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "run", "response": {"output": ""}, "parts": [image]}}],
        },
    ]

    request = govern(messages, budget=4_000, format="gemini-2", model="gpt-5", interrupted=True)

    again = [format_named("gemini-2").decode(message, index) for index, message in enumerate(request.messages)]
    assert request.tokens.total == request_tokens(again, counter_for("gpt-5"))
