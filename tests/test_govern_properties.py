"""Whatever comes in: what goes out is valid, fits, and keeps what must be kept."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast import Counter, HoldfastError, Request, convert, counter_for, govern, validate
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.repair import repair_entries
from holdfast.core.conversation.tokens import request_tokens
from holdfast.testing.sessions import generate_session
from holdfast.testing.strategies.chat import chat_histories, valid_chat_histories
from holdfast.testing.strategies.every_format import HISTORIES_BY_FORMAT
from holdfast.testing.strategies.gemini import valid_gemini_histories
from holdfast.testing.strategies.pydantic_ai import valid_pydantic_ai_histories
from holdfast.testing.strategies.responses import responses_histories, valid_responses_histories
from holdfast.wire.formats import format_named

PROVIDERS = (
    "openai-chat",
    "openai-responses",
    "openai-responses-stateless",
    "anthropic-messages",
    "gemini",
    "gemini-2",
    "mistral",
    "bedrock",
    "pydantic-ai",
)
SOUND_HISTORIES = {
    "openai-chat": valid_chat_histories(),
    "openai-responses": valid_responses_histories(),
    "openai-responses-stateless": valid_responses_histories(),
    "gemini": valid_gemini_histories(),
    "gemini-2": valid_gemini_histories(),
    "pydantic-ai": valid_pydantic_ai_histories(),
}
TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {}}}}]
BUDGETS = st.sampled_from([300, 600, 1_500, 4_000, 100_000])


def governed(messages: Sequence[Mapping[str, Any]], source: str, budget: int, **settings: Any) -> Request | None:
    """Return the request, or None where there is a typed error."""
    try:
        return govern(messages, budget=budget, format=source, model="gpt-5", **settings)
    except HoldfastError:
        return None


def broken_rules(request: Request, source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    own = validate(request.messages, source, system=request.system, tools=request.tools)
    for provider in PROVIDERS:
        sent = convert(request.messages, source=source, target=provider)
        foreign = validate(sent.messages, provider, system=sent.system, tools=TOOLS)
        found[provider] = [str(violation) for violation in foreign]
    found[source] = [str(violation) for violation in own]
    return found


def own_tokens(request: Request, source: str) -> int:
    reader = format_named(source)
    decoded = [reader.decode(native, index) for index, native in enumerate(request.messages)]
    return request_tokens(decoded, counter_for("gpt-5"))


def assert_counted(request: Request, source: str, budget: int) -> None:
    """The count is exact, or above where a repair removed a block but not what was counted with it."""
    own = own_tokens(request, source)
    assert own <= request.tokens.total <= budget
    assert request.receipt.repairs or own == request.tokens.total


@pytest.mark.parametrize("source", HISTORIES_BY_FORMAT)
@given(data=st.data(), budget=BUDGETS)
def test_a_request_is_valid_everywhere_and_within_budget_or_there_is_a_typed_error(
    source: str, data: st.DataObject, budget: int
) -> None:
    messages = data.draw(HISTORIES_BY_FORMAT[source])
    request = governed(messages, source, budget, interrupted=True)
    assume(request is not None)
    assert request is not None

    assert broken_rules(request, source) == {provider: [] for provider in PROVIDERS}
    assert_counted(request, source, budget)


@given(chat_histories(), BUDGETS)
def test_system_text_and_the_newest_prompt_survive_to_the_character(
    messages: list[dict[str, object]], budget: int
) -> None:
    request = governed(messages, "openai-chat", budget, interrupted=True)
    assume(request is not None)
    assert request is not None
    systems = [message for message in messages if message["role"] in {"system", "developer"} and message["content"]]
    prompts = [message for message in messages if message["role"] == "user" and says_something(message["content"])]

    sent = [json.dumps(message) for message in request.messages]
    for message in systems:
        assert json.dumps(message) in sent
    for text in texts_of(prompts[-1]["content"]) if prompts else []:
        assert any(text in texts_of(message.get("content")) for message in request.messages)


def texts_of(content: Any) -> list[str]:
    """Return the texts that can be sent at all."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    texts = [block["text"] for block in blocks if block["type"] == "text" and block["text"].strip()]
    return [text for text in texts if "\ud800" not in text]


def says_something(content: Any) -> bool:
    return (
        bool(content.strip())
        if isinstance(content, str)
        else any(block["type"] != "text" or block["text"].strip() for block in content)
    )


@pytest.mark.parametrize("source", HISTORIES_BY_FORMAT)
@given(data=st.data(), interrupted=st.booleans())
def test_repairing_twice_is_repairing_once(source: str, data: st.DataObject, interrupted: bool) -> None:  # noqa: FBT001
    reader = format_named(source)
    entries = [
        Entry(reader.decode(native, index), index)
        for index, native in enumerate(data.draw(HISTORIES_BY_FORMAT[source]))
    ]

    once = repair_entries(entries, is_interrupted=interrupted, batching=reader.batching)
    twice = repair_entries(once.entries, is_interrupted=interrupted, batching=reader.batching)

    assert twice.entries == once.entries
    assert twice.repairs == []
    assert twice.pending == once.pending


@pytest.mark.parametrize("source", SOUND_HISTORIES)
@given(data=st.data())
def test_repairing_touches_nothing_that_was_fine(source: str, data: st.DataObject) -> None:
    messages = data.draw(SOUND_HISTORIES[source])
    request = govern(messages, budget=1_000_000, model="gpt-5", format=source)

    assert all(sent is given_message for sent, given_message in zip(request.messages, messages, strict=True))
    assert request.receipt.repairs == ()
    assert request.receipt.is_unchanged


@pytest.mark.parametrize("source", SOUND_HISTORIES)
@given(data=st.data(), budget=st.sampled_from([400, 900, 2_500]))
def test_what_is_sent_unchanged_of_a_sound_history_is_the_same_object(
    source: str, data: st.DataObject, budget: int
) -> None:
    messages = data.draw(SOUND_HISTORIES[source])
    request = governed(messages, source, budget)
    assume(request is not None)
    assert request is not None

    sent = {id(message) for message in request.messages}
    assert all(id(messages[position]) in sent for position in request.receipt.kept)
    assert validate(request.messages, source) == []


@pytest.mark.parametrize("source", HISTORIES_BY_FORMAT)
@given(data=st.data())
def test_decoding_and_encoding_gives_back_the_same_object(source: str, data: st.DataObject) -> None:
    reader = format_named(source)

    for index, native in enumerate(data.draw(HISTORIES_BY_FORMAT[source])):
        message = reader.decode(native, index)
        assert message.repair_notes or reader.encode(message) is native


@pytest.mark.parametrize("source", HISTORIES_BY_FORMAT)
@given(data=st.data())
def test_rewriting_every_part_as_it_was_gives_back_an_equal_value(source: str, data: st.DataObject) -> None:
    reader = format_named(source)

    for index, native in enumerate(data.draw(HISTORIES_BY_FORMAT[source])):
        message = reader.decode(native, index)
        rewritten = reader.encode(message.with_parts((*message.parts,)))
        assert message.repair_notes or json.dumps(rewritten) == json.dumps(native)


@pytest.mark.parametrize("source", HISTORIES_BY_FORMAT)
@given(data=st.data(), budget=BUDGETS)
def test_the_same_input_gives_the_same_bytes(source: str, data: st.DataObject, budget: int) -> None:
    messages = data.draw(HISTORIES_BY_FORMAT[source])
    first = governed(messages, source, budget, interrupted=True)
    second = governed(json.loads(json.dumps(messages)), source, budget, interrupted=True)

    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert json.dumps(first.messages) == json.dumps(second.messages)
        assert str(first.receipt) == str(second.receipt)


@pytest.mark.parametrize("source", HISTORIES_BY_FORMAT)
@given(data=st.data(), budget=BUDGETS)
def test_the_previous_request_saves_work_and_changes_nothing(source: str, data: st.DataObject, budget: int) -> None:
    messages = data.draw(HISTORIES_BY_FORMAT[source])
    previous = governed(messages, source, budget, interrupted=True)
    for addition in data.draw(st.lists(HISTORIES_BY_FORMAT[source], max_size=3)):
        messages = [*messages, *addition[:4]]
        continued = governed(messages, source, budget, interrupted=True, previous=previous)
        fresh = governed(messages, source, budget, interrupted=True)

        assert (continued is None) == (fresh is None)
        if continued is not None and fresh is not None:
            assert json.dumps(continued.messages) == json.dumps(fresh.messages)
            assert continued.receipt == fresh.receipt
        previous = continued or previous


@pytest.mark.parametrize("source", ["openai-chat", "openai-responses", "gemini", "pydantic-ai"])
@pytest.mark.parametrize("loop_steps", [0, 60])
@pytest.mark.parametrize("budget", [4_000, 16_000])
def test_a_growing_list_keeps_its_prefix_until_a_line_moves(source: str, budget: int, loop_steps: int) -> None:
    session = convert(generate_session(400, loop_steps=loop_steps), source="openai-chat", target=source).messages
    length = len(session) - 150 if not loop_steps else len(session) - 100
    moves = 0
    before = None
    for end in range(length, len(session) + 1):
        request = governed(session[:end], source, budget, previous=before)
        if request is None or request.receipt.repairs:
            continue
        if before is not None:
            lines = (before.receipt.compacted, before.receipt.clipped)
            if (request.receipt.compacted, request.receipt.clipped) == lines:
                assert request.messages[: len(before.messages)] == before.messages
            else:
                moves += 1
        before = request

    weight = sum(len(json.dumps(message)) for message in session[length:])
    step = budget * 0.75 * 3 / 4
    assert 0 < moves <= weight / step + 2


@pytest.mark.parametrize("source", SOUND_HISTORIES)
@given(data=st.data(), budget=st.sampled_from([400, 900, 2_500]))
def test_pinned_messages_survive_as_the_same_objects(source: str, data: st.DataObject, budget: int) -> None:
    messages = data.draw(SOUND_HISTORIES[source])
    pins = data.draw(st.sets(st.integers(0, len(messages) - 1), max_size=3))
    request = governed(messages, source, budget, pins=pins)
    assume(request is not None)
    assert request is not None

    sent = {id(message) for message in request.messages}
    assert all(id(messages[pin]) in sent for pin in pins)
    assert pins <= set(request.receipt.kept)


@given(responses_histories(), BUDGETS)
def test_a_compaction_survives_as_the_same_object(messages: list[dict[str, object]], budget: int) -> None:
    request = governed(messages, "openai-responses", budget, interrupted=True)
    assume(request is not None)
    assert request is not None

    sent = {id(message) for message in request.messages}
    assert all(id(message) in sent for message in messages if message.get("type") == "compaction")


class OwnCounter:
    """Counts as the model's own vocabulary does, but nothing else is known about it."""

    def __init__(self, counter: Counter) -> None:
        self.name, self.provenance, self.count = counter.name, counter.provenance, counter.count


@pytest.mark.parametrize("source", HISTORIES_BY_FORMAT)
@given(data=st.data(), budget=BUDGETS, model=st.sampled_from(["gpt-5", "claude-sonnet-4-5", "unknown"]))
def test_a_list_far_below_its_budget_is_governed_as_if_it_had_been_counted_first(
    source: str, data: st.DataObject, budget: int, model: str
) -> None:
    messages = data.draw(HISTORIES_BY_FORMAT[source])
    extras: dict[str, Any] = {} if source in {"openai-chat", "pydantic-ai"} else {"system": "Be brief."}
    settings = {"budget": budget, "format": source, "model": model, "interrupted": True, "tools": TOOLS, **extras}

    def outcome(**how: Any) -> object:
        try:
            request = govern(messages, **settings, **how)
        except HoldfastError as error:
            return type(error), str(error)
        return request.messages, request.receipt, repr(request.receipt)

    assert outcome() == outcome(counter=OwnCounter(counter_for(model)))
