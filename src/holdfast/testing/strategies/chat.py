"""Hypothesis strategies for OpenAI and Anthropic histories, with every defect that providers refuse and without.

Needs the `hypothesis` package.
"""

from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)

T = TypeVar("T")

PROSE = st.integers(1, 200).map(lambda count: "word " * count)
CHAT_CALL_IDS = ("call_a", "call_b", "call_c", "toolu_01", "x" * 40, "", "weird id!")
MESSAGE_TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "\n\t", "yes", "no", "Always answer in French.", "日本語のテキスト", "🎉" * 5, "a\ud800b"]
    ),
    st.text(max_size=60),
    st.integers(1, 400).map(lambda count: "lorem ipsum dolor " * count),
    st.integers(1, 40).map(lambda count: "Traceback: error at line 3\n" * count),
)
CALL_ARGUMENTS = ('{"path": "src/a.py"}', "{}", "", "not json", '{"text": "' + "y" * 900 + '"}')


def _call(call_id: str, name: str, arguments: str) -> JsonMessage:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


CHAT_CALLS = st.builds(
    _call,
    st.sampled_from(CHAT_CALL_IDS),
    st.sampled_from(["read_file", "run", "search.web"]),
    st.sampled_from(CALL_ARGUMENTS),
)
CHAT_IMAGE_BLOCK: JsonMessage = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CHAT_TEXT_BLOCKS = MESSAGE_TEXTS.map(lambda text: {"type": "text", "text": text, "x_mark": 1})
CHAT_BLOCKS = st.lists(st.one_of(CHAT_TEXT_BLOCKS, st.just(CHAT_IMAGE_BLOCK)), max_size=3)


def _message(role: str, **fields: st.SearchStrategy[T]) -> st.SearchStrategy[JsonMessage]:
    return st.fixed_dictionaries({"role": st.just(role), **fields}).map(dict[str, object])


def lists_as(
    build: Callable[..., JsonMessage], items: st.SearchStrategy[JsonMessage], *, min_size: int = 0, max_size: int = 3
) -> st.SearchStrategy[JsonMessage]:
    """Return a strategy for messages, each built from a list of items."""
    return st.lists(items, min_size=min_size, max_size=max_size).map(lambda drawn: build(*drawn))


CHAT_MESSAGES: st.SearchStrategy[JsonMessage] = st.one_of(
    _message("user", content=st.one_of(MESSAGE_TEXTS, CHAT_BLOCKS)),
    _message("assistant", content=st.one_of(MESSAGE_TEXTS, st.none())),
    _message(
        "assistant",
        content=st.one_of(MESSAGE_TEXTS, st.none()),
        tool_calls=st.lists(CHAT_CALLS, min_size=1, max_size=3),
    ),
    _message(
        "assistant",
        content=MESSAGE_TEXTS,
        reasoning_content=MESSAGE_TEXTS,
        refusal=st.sampled_from([None, "I will not."]),
    ),
    _message("tool", tool_call_id=st.sampled_from(CHAT_CALL_IDS), content=st.one_of(MESSAGE_TEXTS, CHAT_BLOCKS)),
    _message("tool", tool_call_id=st.sampled_from(CHAT_CALL_IDS), content=MESSAGE_TEXTS, name=st.just("read_file")),
    _message("system", content=st.sampled_from(["Be brief.", "Never lie.", ""])),
    _message("developer", content=st.just("Use tools.")),
)


def chat_histories(max_size: int = 30) -> st.SearchStrategy[list[JsonMessage]]:
    """Return a strategy for OpenAI chat lists with defects of every kind."""
    return st.lists(CHAT_MESSAGES, max_size=max_size)


@st.composite
def valid_chat_histories(draw: st.DrawFn, max_turns: int = 6) -> list[JsonMessage]:
    """Draw a chat list without defects, ending with a prompt or with tool results."""
    messages: list[JsonMessage] = [system_message("Be brief.")] if draw(st.booleans()) else []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        messages.append(user_message(f"prompt {turn} " + draw(PROSE)))
        for step in range(draw(st.integers(0, 4))):
            ids = [f"c{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            messages.append(tool_call_message(*ids))
            messages += [tool_result_message(call_id, draw(PROSE)) for call_id in ids]
        if turn < turns - 1:
            messages.append(assistant_message(f"answer {turn} " + draw(PROSE)))
    return messages


TOOL_USE_IDS = st.sampled_from(["toolu_a", "toolu_b", "toolu_c"])
CACHE_MARK = {"type": "ephemeral"}
PLAIN_TEXTS = st.sampled_from(["", " ", "fine", "more words " * 40, "日本語"])


def _text_block(text: str, *, is_marked: bool) -> JsonMessage:
    return {"type": "text", "text": text, **({"cache_control": CACHE_MARK} if is_marked else {})}


def _tool_use(call_id: str) -> JsonMessage:
    return {"type": "tool_use", "id": call_id, "name": "run", "input": {"n": 1, "deep": {"a": None}}}


ANTHROPIC_TEXT = st.builds(_text_block, PLAIN_TEXTS, is_marked=st.booleans())
ANTHROPIC_IMAGE_SOURCE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
ANTHROPIC_IMAGE: JsonMessage = {"type": "image", "source": ANTHROPIC_IMAGE_SOURCE}
THINKING_BLOCK: JsonMessage = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REDACTED_THINKING_BLOCK: JsonMessage = {"type": "redacted_thinking", "data": "b3BhcXVl"}
ANTHROPIC_RESULT: st.SearchStrategy[JsonMessage] = st.fixed_dictionaries(
    {
        "type": st.just("tool_result"),
        "tool_use_id": TOOL_USE_IDS,
        "content": st.one_of(PLAIN_TEXTS, st.lists(st.one_of(ANTHROPIC_TEXT, st.just(ANTHROPIC_IMAGE)), max_size=2)),
    }
).map(dict[str, object])
ANTHROPIC_ASSISTANT_BLOCKS = st.one_of(
    ANTHROPIC_TEXT, st.just(THINKING_BLOCK), st.just(REDACTED_THINKING_BLOCK), TOOL_USE_IDS.map(_tool_use)
)
SERVER_BLOCKS: list[JsonMessage] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
]


def _after_server_tools(blocks: list[JsonMessage]) -> list[JsonMessage]:
    return [*SERVER_BLOCKS, *blocks]


ANTHROPIC_MESSAGES: st.SearchStrategy[JsonMessage] = st.one_of(
    _message("user", content=PLAIN_TEXTS),
    _message(
        "user", content=st.lists(st.one_of(ANTHROPIC_RESULT, ANTHROPIC_TEXT, st.just(ANTHROPIC_IMAGE)), max_size=4)
    ),
    _message("assistant", content=PLAIN_TEXTS),
    _message("assistant", content=st.lists(ANTHROPIC_ASSISTANT_BLOCKS, max_size=4)),
    _message("assistant", content=st.lists(ANTHROPIC_ASSISTANT_BLOCKS, max_size=2).map(_after_server_tools)),
)


def anthropic_histories(max_size: int = 20) -> st.SearchStrategy[list[JsonMessage]]:
    """Return a strategy for Anthropic lists with defects of every kind."""
    return st.lists(ANTHROPIC_MESSAGES, max_size=max_size)


@st.composite
def thinking_histories(draw: st.DrawFn, max_turns: int = 6) -> list[JsonMessage]:
    """Draw an Anthropic list without defects in which the model thinks, ending with a prompt or with tool results."""
    messages: list[JsonMessage] = []
    thoughts = st.lists(st.sampled_from([THINKING_BLOCK, REDACTED_THINKING_BLOCK]), max_size=2)
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        messages.append(user_message(f"prompt {turn} " + draw(PROSE)))
        for step in range(draw(st.integers(0, 4))):
            ids = [f"toolu_{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            messages.append({"role": "assistant", "content": [*draw(thoughts), *map(_tool_use, ids)]})
            results = [{"type": "tool_result", "tool_use_id": call_id, "content": draw(PROSE)} for call_id in ids]
            messages.append({"role": "user", "content": results})
        if turn < turns - 1:
            text = _text_block(f"answer {turn} " + draw(PROSE), is_marked=draw(st.booleans()))
            messages.append({"role": "assistant", "content": [*draw(thoughts), text]})
    return messages
