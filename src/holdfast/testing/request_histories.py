"""Hypothesis strategies for histories of pydantic-ai, broken and whole.

Needs the `hypothesis` package.
"""

from hypothesis import strategies as st

from holdfast.testing.chat import Json
from holdfast.testing.histories import PLAIN_TEXTS, TEXTS
from holdfast.testing.requests import answer, call, prompt, request, response, result, told

IDS = st.sampled_from(["call_a", "call_b", "pyd_ai_01", "", "weird id!"])
NAMES = st.sampled_from(["run", "look"])
PICTURE: Json = {"url": "https://example.org/a.png", "kind": "image-url", "media_type": "image/png"}
BYTES: Json = {"data": "iVBORw0KGgo=", "media_type": "image/png", "kind": "binary"}
ITEMS: list[object] = [
    "see",
    "",
    {"content": "noted", "metadata": {"a": 1}, "kind": "text-content"},
    PICTURE,
    BYTES,
    {"kind": "cache-point", "ttl": "5m"},
    {"file_id": "f1", "provider_name": "openai", "kind": "uploaded-file", "media_type": "application/pdf"},
]
CONTENTS: list[object] = [
    None, {}, {"lines": ["a line"] * 60}, ["a", "b"], 7, True, ["a", PICTURE], BYTES, "x" * 3_000,
]  # fmt: skip
ARGUMENTS: list[object] = [None, "", "{}", "not json", '{"path": "a.py"}', {"path": "a.py"}, {"text": "y" * 900}]
SAID_BESIDES: list[Json] = [
    {"content": "n must be a number", "tool_name": "run", "tool_call_id": "call_a", "part_kind": "retry-prompt"},
    {"content": "say more", "part_kind": "retry-prompt"},
    {"content": "no", "retry": {"cause": "model_retry"}, "part_kind": "retry-feedback"},
    {"content": "What happened so far.", "part_kind": "compaction"},
    {"tools_added": ["look"], "tool_call_id": None, "part_kind": "tool-availability-delta"},
    {"speaker": "user", "transcript": "hello", "audio": None, "part_kind": "speech"},
    {"content": "Now only.", "scope": "request", "part_kind": "system-prompt"},
    answer("out of place"),
]
ANSWERED_BESIDES: list[Json] = [
    {"content": "hm", "signature": "c2ln", "provider_name": "p", "part_kind": "thinking"},
    {"content": "", "part_kind": "thinking"},
    {"tool_name": "web", "args": {"q": 1}, "tool_call_id": "n1", "part_kind": "builtin-tool-call"},
    {"tool_name": "web", "content": {"r": 1}, "tool_call_id": "n1", "part_kind": "builtin-tool-return"},
    {"content": BYTES, "part_kind": "file"},
    {"speaker": "assistant", "transcript": "hello", "audio": None, "part_kind": "speech"},
    prompt("out of place"),
]
PROMPTS = st.one_of(TEXTS.map(prompt), st.lists(st.sampled_from(ITEMS), max_size=4).map(prompt))
RESULTS = st.builds(result, IDS, st.one_of(PLAIN_TEXTS, st.sampled_from(CONTENTS)), NAMES)
CALLS = st.builds(call, IDS, NAMES, st.sampled_from(ARGUMENTS))
MESSAGES: st.SearchStrategy[Json] = st.one_of(
    PROMPTS.map(request),
    st.lists(RESULTS, min_size=1, max_size=3).map(lambda parts: request(*parts)),
    st.lists(st.one_of(RESULTS, PROMPTS, st.sampled_from(SAID_BESIDES)), max_size=4).map(lambda parts: request(*parts)),
    st.sampled_from(["Be brief.", "Never lie."]).map(lambda text: request(told(text))),
    st.lists(st.one_of(PLAIN_TEXTS.map(answer), st.sampled_from(ANSWERED_BESIDES)), max_size=3).map(
        lambda parts: response(*parts)
    ),
    st.lists(st.one_of(CALLS, PLAIN_TEXTS.map(answer)), min_size=1, max_size=3).map(lambda parts: response(*parts)),
)


def request_histories(max_size: int = 20) -> st.SearchStrategy[list[Json]]:
    """Return a strategy for histories with defects of every kind."""
    return st.lists(MESSAGES, max_size=max_size)


@st.composite
def sound_request_histories(draw: st.DrawFn, max_turns: int = 5) -> list[Json]:
    """Draw a history without a defect, ending with a prompt or with results."""
    prose = st.integers(1, 200).map(lambda count: "word " * count)
    messages: list[Json] = [request(told("Be brief."))] if draw(st.booleans()) else []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        messages.append(request(prompt(f"prompt {turn} " + draw(prose))))
        for step in range(draw(st.integers(0, 3))):
            ids = [f"c{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            thought: list[Json] = [{"content": "hm", "part_kind": "thinking"}] if draw(st.booleans()) else []
            messages.append(response(*thought, *(call(call_id, args={"n": 1}) for call_id in ids)))
            messages.append(request(*(result(call_id, draw(prose)) for call_id in ids)))
        if turn < turns - 1:
            messages.append(response(answer(f"answer {turn} " + draw(prose))))
    return messages
