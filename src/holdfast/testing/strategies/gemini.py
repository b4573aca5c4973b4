"""Hypothesis strategies for lists of Gemini contents, broken and valid.

Needs the `hypothesis` package.
"""

from hypothesis import strategies as st

from holdfast.testing.chat import JsonMessage
from holdfast.testing.gemini import function_call_part, function_response_part, model_turn, text_part, user_turn
from holdfast.testing.strategies.chat import MESSAGE_TEXTS, PLAIN_TEXTS, PROSE, lists_as

GEMINI_TOOL_NAMES = st.sampled_from(["run", "look"])
GEMINI_CALL_IDS = st.sampled_from([None, "id_a", "id_b", "weird id!"])
GEMINI_IMAGE: JsonMessage = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
EMPTY_RESPONSE: JsonMessage = {}
ERROR_RESPONSE: JsonMessage = {"error": "it failed"}


def _lines(count: int) -> JsonMessage:
    return {"lines": ["line of output"] * count, "count": count}


GEMINI_RESPONSES = st.one_of(
    PLAIN_TEXTS, st.sampled_from([None, EMPTY_RESPONSE, ERROR_RESPONSE]), st.integers(1, 300).map(_lines)
)


def _with_image(part: JsonMessage) -> JsonMessage:
    function = part["functionResponse"]
    return {"functionResponse": {**function, "parts": [GEMINI_IMAGE]}} if isinstance(function, dict) else part


GEMINI_RESPONSE_PARTS = st.builds(function_response_part, GEMINI_TOOL_NAMES, GEMINI_CALL_IDS, GEMINI_RESPONSES)
OTHER_USER_PARTS: list[JsonMessage] = [
    GEMINI_IMAGE,
    {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.org/a.pdf"}},
    {"function_response": {"name": "run", "response": {"output": "snake"}}, "text": None},
]
OTHER_MODEL_PARTS: list[JsonMessage] = [
    {"text": "hm", "thought": True},
    {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
    {"text": "", "thoughtSignature": "c2ln"},
    {"text": "so", "thoughtSignature": "c2ln" * 20},
    {"executableCode": {"language": "PYTHON", "code": "1 + 1"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}, "thoughtSignature": "c2ln"},
    {},
]
GEMINI_USER_PARTS = st.one_of(MESSAGE_TEXTS.map(text_part), st.sampled_from(OTHER_USER_PARTS))
GEMINI_MODEL_PARTS = st.one_of(PLAIN_TEXTS.map(text_part), st.sampled_from(OTHER_MODEL_PARTS))
GEMINI_CALL_PARTS = st.builds(
    function_call_part, GEMINI_TOOL_NAMES, GEMINI_CALL_IDS, st.sampled_from([None, "c2ln" * 10])
)
GEMINI_CONTENTS: st.SearchStrategy[JsonMessage] = st.one_of(
    lists_as(user_turn, GEMINI_USER_PARTS),
    lists_as(user_turn, GEMINI_RESPONSE_PARTS, min_size=1),
    lists_as(user_turn, st.one_of(GEMINI_RESPONSE_PARTS, GEMINI_RESPONSE_PARTS.map(_with_image), GEMINI_USER_PARTS)),
    lists_as(model_turn, GEMINI_MODEL_PARTS),
    lists_as(model_turn, GEMINI_CALL_PARTS, min_size=1),
    lists_as(model_turn, st.one_of(GEMINI_MODEL_PARTS, GEMINI_CALL_PARTS, GEMINI_RESPONSE_PARTS), max_size=4),
    MESSAGE_TEXTS.map(lambda text: {"parts": [{"text": text}]}),
)


def gemini_histories(max_size: int = 20) -> st.SearchStrategy[list[JsonMessage]]:
    """Return a strategy for lists of contents with defects of every kind."""
    return st.lists(GEMINI_CONTENTS, max_size=max_size)


@st.composite
def valid_gemini_histories(draw: st.DrawFn, max_turns: int = 5) -> list[JsonMessage]:
    """Draw a list of contents without defects, with ids or without, ending with a prompt or with responses."""
    has_ids = draw(st.booleans())
    contents: list[JsonMessage] = []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        contents.append(user_turn(text_part(f"prompt {turn} " + draw(PROSE))))
        for step in range(draw(st.integers(0, 3))):
            names = draw(st.lists(GEMINI_TOOL_NAMES, min_size=1, max_size=3))
            ids = [f"c{turn}_{step}_{number}" if has_ids else None for number in range(len(names))]
            signatures = ["c2ln", *[None] * len(names)]
            calls = [function_call_part(*call) for call in zip(names, ids, signatures, strict=False)]
            thought: list[JsonMessage] = [{"text": "hm", "thought": True}] if draw(st.booleans()) else []
            contents.append(model_turn(*thought, *calls))
            responses = [function_response_part(*call, draw(PROSE)) for call in zip(names, ids, strict=True)]
            contents.append(user_turn(*responses))
        if turn < turns - 1:
            contents.append(model_turn({"text": f"answer {turn} " + draw(PROSE), "thoughtSignature": "c2ln"}))
    return contents
