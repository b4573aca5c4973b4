"""Hypothesis strategies for histories as they really are: with every defect providers refuse.

Needs the `hypothesis` package.
"""

from typing import TypeVar

from hypothesis import strategies as st

from holdfast.testing.chat import Json, answered, called, returned, said, told

T = TypeVar("T")

CALL_IDS = ("call_a", "call_b", "call_c", "toolu_01", "x" * 40, "", "weird id!")
TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "\n\t", "yes", "no", "Always answer in French.", "日本語のテキスト", "🎉" * 5, "a\ud800b"]
    ),
    st.text(max_size=60),
    st.integers(1, 400).map(lambda count: "lorem ipsum dolor " * count),
    st.integers(1, 40).map(lambda count: "Traceback: error at line 3\n" * count),
)
ARGUMENTS = ('{"path": "src/a.py"}', "{}", "", "not json", '{"text": "' + "y" * 900 + '"}')


def _call(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = st.builds(
    _call, st.sampled_from(CALL_IDS), st.sampled_from(["read_file", "run", "search.web"]), st.sampled_from(ARGUMENTS)
)
IMAGE_BLOCK: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TEXT_BLOCKS = TEXTS.map(lambda text: {"type": "text", "text": text, "x_mark": 1})
BLOCKS = st.lists(st.one_of(TEXT_BLOCKS, st.just(IMAGE_BLOCK)), max_size=3)


def _message(role: str, **fields: st.SearchStrategy[T]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({"role": st.just(role), **fields}).map(dict[str, object])


CHAT_MESSAGES: st.SearchStrategy[Json] = st.one_of(
    _message("user", content=st.one_of(TEXTS, BLOCKS)),
    _message("assistant", content=st.one_of(TEXTS, st.none())),
    _message("assistant", content=st.one_of(TEXTS, st.none()), tool_calls=st.lists(CALLS, min_size=1, max_size=3)),
    _message("assistant", content=TEXTS, reasoning_content=TEXTS, refusal=st.sampled_from([None, "I will not."])),
    _message("tool", tool_call_id=st.sampled_from(CALL_IDS), content=st.one_of(TEXTS, BLOCKS)),
    _message("tool", tool_call_id=st.sampled_from(CALL_IDS), content=TEXTS, name=st.just("read_file")),
    _message("system", content=st.sampled_from(["Be brief.", "Never lie.", ""])),
    _message("developer", content=st.just("Use tools.")),
)


def chat_histories(max_size: int = 30) -> st.SearchStrategy[list[Json]]:
    """Return a strategy for OpenAI chat lists with defects of every kind."""
    return st.lists(CHAT_MESSAGES, max_size=max_size)


@st.composite
def sound_chat_histories(draw: st.DrawFn, max_turns: int = 6) -> list[Json]:
    """Draw a chat list without a defect, ending with a prompt or with tool results."""
    words = st.integers(1, 200).map(lambda count: "word " * count)
    messages: list[Json] = [told("Be brief.")] if draw(st.booleans()) else []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        messages.append(said(f"prompt {turn} " + draw(words)))
        for step in range(draw(st.integers(0, 4))):
            ids = [f"c{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            messages.append(called(*ids))
            messages += [returned(call_id, draw(words)) for call_id in ids]
        if turn < turns - 1:
            messages.append(answered(f"answer {turn} " + draw(words)))
    return messages


TOOL_USE_IDS = st.sampled_from(["toolu_a", "toolu_b", "toolu_c"])
CACHE_MARK = {"type": "ephemeral"}
PLAIN_TEXTS = st.sampled_from(["", " ", "fine", "more words " * 40, "日本語"])


def _text_block(text: str, *, is_marked: bool) -> Json:
    return {"type": "text", "text": text, **({"cache_control": CACHE_MARK} if is_marked else {})}


def _tool_use(call_id: str) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "run", "input": {"n": 1, "deep": {"a": None}}}


ANTHROPIC_TEXT = st.builds(_text_block, PLAIN_TEXTS, is_marked=st.booleans())
PICTURE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
ANTHROPIC_IMAGE: Json = {"type": "image", "source": PICTURE}
THINKING: Json = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REDACTED: Json = {"type": "redacted_thinking", "data": "b3BhcXVl"}
ANTHROPIC_RESULT: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {
        "type": st.just("tool_result"),
        "tool_use_id": TOOL_USE_IDS,
        "content": st.one_of(PLAIN_TEXTS, st.lists(st.one_of(ANTHROPIC_TEXT, st.just(ANTHROPIC_IMAGE)), max_size=2)),
    }
).map(dict[str, object])
ANTHROPIC_SAID = st.one_of(ANTHROPIC_TEXT, st.just(THINKING), st.just(REDACTED), TOOL_USE_IDS.map(_tool_use))
SERVER_BLOCKS: list[Json] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
]


def _after_server_tools(blocks: list[Json]) -> list[Json]:
    return [*SERVER_BLOCKS, *blocks]


ANTHROPIC_MESSAGES: st.SearchStrategy[Json] = st.one_of(
    _message("user", content=PLAIN_TEXTS),
    _message(
        "user", content=st.lists(st.one_of(ANTHROPIC_RESULT, ANTHROPIC_TEXT, st.just(ANTHROPIC_IMAGE)), max_size=4)
    ),
    _message("assistant", content=PLAIN_TEXTS),
    _message("assistant", content=st.lists(ANTHROPIC_SAID, max_size=4)),
    _message("assistant", content=st.lists(ANTHROPIC_SAID, max_size=2).map(_after_server_tools)),
)


def anthropic_histories(max_size: int = 20) -> st.SearchStrategy[list[Json]]:
    """Return a strategy for Anthropic lists with defects of every kind."""
    return st.lists(ANTHROPIC_MESSAGES, max_size=max_size)
