"""Thinking that is bound to the request it was said in: which models do so, what is sent, what `validate` says."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast import HoldfastError, Violation, govern, validate
from holdfast.counters.models import binds_thinking
from holdfast.testing.chat import JsonMessage, user_message
from holdfast.testing.strategies.chat import anthropic_histories, thinking_histories
from holdfast.wire.thinking import prefix_hash

BINDING = "claude-opus-5-5"
REASON = (
    "the thinking of {} was removed: the model accepts thinking only after exactly what it followed, and that has "
    "changed"
)


@pytest.mark.parametrize(
    ("model", "is_bound"),
    [
        ("claude-fable-5-1", True),
        ("claude-fable-5-2", True),
        ("claude-opus-5-5", True),
        ("claude-sonnet-5-5", True),
        ("claude-haiku-5-5", True),
        ("us.anthropic.claude-sonnet-5-5", True),
        ("anthropic:claude-opus-5.5", True),
        ("claude-opus-6", True),
        ("claude-aurora-1", True),
        ("claude-opus-latest", True),
        (None, True),
        ("claude-opus-5", False),
        ("claude-fable-5", False),
        ("claude-sonnet-4-5-20250929", False),
        ("anthropic.claude-opus-4-20250514-v1:0", False),
        ("claude-opus-4.6", False),
        ("claude-3-5-sonnet-20241022", False),
        ("anthropic.claude-v2:1", False),
        ("claude-instant-1.2", False),
        ("gpt-5", False),
        ("glm-5", False),
    ],
)
def test_newer_and_unknown_claude_models_bind_their_thinking(model: str | None, *, is_bound: bool) -> None:
    assert binds_thinking(model, "anthropic-messages") is is_bound


def test_outside_anthropics_format_only_a_named_model_binds_its_thinking() -> None:
    bound = {
        name: (binds_thinking(None, name), binds_thinking(BINDING, name)) for name in ("pydantic-ai", "openai-chat")
    }

    assert bound == {"pydantic-ai": (False, True), "openai-chat": (False, False)}


def said(number: int) -> list[dict[str, Any]]:
    """Return a turn: a prompt, thinking with a call, its result, and redacted thinking with an answer."""
    call = f"toolu_{number}"
    return [
        user_message(f"prompt {number}"),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": f"signed {number}"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": call, "name": "run", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": "word " * 40}]},
        {
            "role": "assistant",
            "content": [{"type": "redacted_thinking", "data": f"sealed {number}"}, {"type": "text", "text": "Done."}],
        },
    ]


def conversation(turns: int) -> list[dict[str, Any]]:
    return [*(message for number in range(turns) for message in said(number)), user_message("and now?")]


def prefixes(messages: list[dict[str, Any]], **extras: object) -> dict[str, set[str]]:
    """Return in which request each thinking block was said, if every answer followed the list before it."""
    found: dict[str, set[str]] = {}
    for index, message in enumerate(messages):
        for block in message["content"] if isinstance(message["content"], list) else []:
            if block["type"] in {"thinking", "redacted_thinking"}:
                name = block.get("signature") or block["data"]
                found.setdefault(name, set()).add(prefix_hash(messages[:index], **extras))
    return found


def test_all_thinking_after_a_rewritten_prefix_goes_and_text_and_calls_stay() -> None:
    messages = conversation(90)

    request = govern(messages, budget=4_000, format="anthropic", model=BINDING)

    first = request.receipt.compacted[-1].stop
    kept = [
        {**message, "content": [block for block in message["content"] if "thinking" not in block["type"]]}
        if message["role"] == "assistant"
        else message
        for message in messages[first:]
    ]
    assert request.messages[1:] == kept
    assert request.receipt.without_thinking == tuple(
        index for index in range(first, len(messages)) if messages[index]["role"] == "assistant"
    )
    assert request.receipt.reasons[-1] == REASON.format(f"{len(request.receipt.without_thinking)} messages")
    assert (request.receipt.clipped, request.receipt.repairs) == ((), ())


def test_thinking_stays_where_nothing_before_it_has_changed() -> None:
    messages = conversation(3)

    request = govern(messages, budget=100_000, format="anthropic", model=BINDING)

    assert request.messages == messages
    assert request.receipt.is_unchanged


def test_thinking_before_a_clipped_output_stays_and_thinking_after_it_goes() -> None:
    messages = conversation(2)
    messages[2]["content"][0]["content"] = "word " * 8_000

    request = govern(messages, budget=6_000, format="anthropic", model=BINDING)

    assert request.receipt.clipped == (2,)
    assert request.receipt.without_thinking == (3, 5, 7)
    assert request.messages[1] == messages[1]
    assert validate(request.messages, "anthropic", thinking_prefixes=prefixes(messages)) == []


def test_an_older_model_keeps_its_thinking_after_a_rewritten_prefix() -> None:
    messages = conversation(30)

    request = govern(messages, budget=4_000, format="anthropic", model="claude-opus-4-6")

    assert request.messages[-4:] == messages[-4:]
    assert request.receipt.without_thinking == ()


def test_validate_names_thinking_that_was_said_in_another_request() -> None:
    messages = conversation(2)
    known = prefixes(messages, system="Be brief.")
    changed = [user_message("something else"), *messages[1:]]

    assert validate(messages, "anthropic", system="Be brief.", thinking_prefixes=known) == []
    assert validate(changed, "anthropic", system="Be brief.") == []
    assert validate(changed, "anthropic", system="Be brief.", thinking_prefixes=known) == [
        Violation("thinking-prefix", f"messages[{index}].content[0]", "thinking is bound to a different conversation")
        for index in (1, 3, 5, 7)
    ]
    assert len(validate(messages, "anthropic", system="Be long.", thinking_prefixes=known)) == 4


def test_moved_cache_marks_do_not_change_what_thinking_is_bound_to() -> None:
    messages = conversation(1)
    mark = {"cache_control": {"type": "ephemeral"}}
    marked = [{**messages[0], "content": [{"type": "text", "text": "prompt 0", **mark}]}, *messages[1:]]
    unmarked = [{**messages[0], "content": [{"type": "text", "text": "prompt 0"}]}, *messages[1:]]

    known = prefixes(marked, system=[{"type": "text", "text": "Be brief.", **mark}])

    system = [{"type": "text", "text": "Be brief."}]
    assert validate(unmarked, "anthropic", system=system, thinking_prefixes=known) == []


BUDGETS = st.sampled_from([300, 900, 2_500, 8_000, 100_000])


@given(st.one_of(thinking_histories(), anthropic_histories()), BUDGETS, st.booleans())
def test_no_thinking_follows_a_changed_prefix_whatever_is_governed(
    messages: list[JsonMessage],
    budget: int,
    interrupted: bool,  # noqa: FBT001
) -> None:
    given_list: list[Any] = _with_unique_signatures(messages)
    try:
        request = govern(given_list, budget=budget, format="anthropic", model=BINDING, interrupted=interrupted)
    except HoldfastError:
        assume(False)  # noqa: FBT003
        raise

    assert validate(request.messages, "anthropic", thinking_prefixes=prefixes(given_list)) == []
    for position in request.receipt.without_thinking:
        assert any(_is_thinking(block) for block in given_list[position]["content"])


def _with_unique_signatures(messages: list[JsonMessage]) -> list[JsonMessage]:
    """Return messages in which each thinking block has a signature of its own, as a provider makes them."""
    return [
        {**message, "content": [_signed(block, f"{index}.{number}") for number, block in enumerate(content)]}
        if isinstance(content := message["content"], list)
        else message
        for index, message in enumerate(messages)
    ]


def _signed(block: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not _is_thinking(block):
        return block
    return {**block, "signature" if block["type"] == "thinking" else "data": name}


def _is_thinking(block: Mapping[str, Any]) -> bool:
    return block["type"] in {"thinking", "redacted_thinking"}
