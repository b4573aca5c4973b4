"""Hypothesis strategies for pydantic-ai histories, broken and valid.

Needs the `hypothesis` package.
"""

from hypothesis import strategies as st

from holdfast.testing.chat import JsonMessage
from holdfast.testing.pydantic_ai import (
    request_message,
    response_message,
    system_prompt_part,
    text_reply_part,
    tool_call_part,
    tool_return_part,
    user_prompt_part,
)
from holdfast.testing.strategies.chat import MESSAGE_TEXTS, PLAIN_TEXTS, PROSE, lists_as

AGENT_CALL_IDS = st.sampled_from(["call_a", "call_b", "pyd_ai_01", "", "weird id!"])
AGENT_TOOL_NAMES = st.sampled_from(["run", "look"])
AGENT_IMAGE: JsonMessage = {"url": "https://example.org/a.png", "kind": "image-url", "media_type": "image/png"}
AGENT_BINARY: JsonMessage = {"data": "iVBORw0KGgo=", "media_type": "image/png", "kind": "binary"}
PROMPT_ITEMS: list[object] = [
    "see",
    "",
    {"content": "noted", "metadata": {"a": 1}, "kind": "text-content"},
    AGENT_IMAGE,
    AGENT_BINARY,
    {"kind": "cache-point", "ttl": "5m"},
    {"file_id": "f1", "provider_name": "openai", "kind": "uploaded-file", "media_type": "application/pdf"},
]
TOOL_RETURN_CONTENTS: list[object] = [
    None, {}, {"lines": ["a line"] * 60}, ["a", "b"], 7, True, ["a", AGENT_IMAGE], AGENT_BINARY, "x" * 3_000,
]  # fmt: skip
AGENT_CALL_ARGUMENTS: list[object] = [
    None, "", "{}", "not json", '{"path": "a.py"}', {"path": "a.py"}, {"text": "y" * 900},
]  # fmt: skip
OTHER_REQUEST_PARTS: list[JsonMessage] = [
    {"content": "n must be a number", "tool_name": "run", "tool_call_id": "call_a", "part_kind": "retry-prompt"},
    {"content": "say more", "part_kind": "retry-prompt"},
    {"content": "no", "retry": {"cause": "model_retry"}, "part_kind": "retry-feedback"},
    {"content": "What happened so far.", "part_kind": "compaction"},
    {"tools_added": ["look"], "tool_call_id": None, "part_kind": "tool-availability-delta"},
    {"speaker": "user", "transcript": "hello", "audio": None, "part_kind": "speech"},
    {"content": "Now only.", "scope": "request", "part_kind": "system-prompt"},
    text_reply_part("out of place"),
]
OTHER_RESPONSE_PARTS: list[JsonMessage] = [
    {"content": "hm", "signature": "c2ln", "provider_name": "p", "part_kind": "thinking"},
    {"content": "", "part_kind": "thinking"},
    {"tool_name": "web", "args": {"q": 1}, "tool_call_id": "n1", "part_kind": "builtin-tool-call"},
    {"tool_name": "web", "content": {"r": 1}, "tool_call_id": "n1", "part_kind": "builtin-tool-return"},
    {"content": AGENT_BINARY, "part_kind": "file"},
    {"speaker": "assistant", "transcript": "hello", "audio": None, "part_kind": "speech"},
    user_prompt_part("out of place"),
]
USER_PROMPT_PARTS = st.one_of(
    MESSAGE_TEXTS.map(user_prompt_part), st.lists(st.sampled_from(PROMPT_ITEMS), max_size=4).map(user_prompt_part)
)
TOOL_RETURN_PARTS = st.builds(
    tool_return_part, AGENT_CALL_IDS, st.one_of(PLAIN_TEXTS, st.sampled_from(TOOL_RETURN_CONTENTS)), AGENT_TOOL_NAMES
)
TOOL_CALL_PARTS = st.builds(tool_call_part, AGENT_CALL_IDS, AGENT_TOOL_NAMES, st.sampled_from(AGENT_CALL_ARGUMENTS))
AGENT_MESSAGES: st.SearchStrategy[JsonMessage] = st.one_of(
    USER_PROMPT_PARTS.map(request_message),
    lists_as(request_message, TOOL_RETURN_PARTS, min_size=1),
    lists_as(
        request_message,
        st.one_of(TOOL_RETURN_PARTS, USER_PROMPT_PARTS, st.sampled_from(OTHER_REQUEST_PARTS)),
        max_size=4,
    ),
    st.sampled_from(["Be brief.", "Never lie."]).map(lambda text: request_message(system_prompt_part(text))),
    lists_as(response_message, st.one_of(PLAIN_TEXTS.map(text_reply_part), st.sampled_from(OTHER_RESPONSE_PARTS))),
    lists_as(response_message, st.one_of(TOOL_CALL_PARTS, PLAIN_TEXTS.map(text_reply_part)), min_size=1),
)


def pydantic_ai_histories(max_size: int = 20) -> st.SearchStrategy[list[JsonMessage]]:
    """Return a strategy for histories with defects of every kind."""
    return st.lists(AGENT_MESSAGES, max_size=max_size)


@st.composite
def valid_pydantic_ai_histories(draw: st.DrawFn, max_turns: int = 5) -> list[JsonMessage]:
    """Draw a history without defects, ending with a prompt or with results."""
    messages: list[JsonMessage] = [request_message(system_prompt_part("Be brief."))] if draw(st.booleans()) else []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        messages.append(request_message(user_prompt_part(f"prompt {turn} " + draw(PROSE))))
        for step in range(draw(st.integers(0, 3))):
            ids = [f"c{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            thought: list[JsonMessage] = [{"content": "hm", "part_kind": "thinking"}] if draw(st.booleans()) else []
            messages.append(response_message(*thought, *(tool_call_part(call_id, args={"n": 1}) for call_id in ids)))
            messages.append(request_message(*(tool_return_part(call_id, draw(PROSE)) for call_id in ids)))
        if turn < turns - 1:
            messages.append(response_message(text_reply_part(f"answer {turn} " + draw(PROSE))))
    return messages
