"""Hypothesis strategies for lists of Gemini contents, broken and whole.

Needs the `hypothesis` package.
"""

from hypothesis import strategies as st

from holdfast.testing.chat import Json
from holdfast.testing.contents import call_part, model_turn, response_part, user_turn, words
from holdfast.testing.histories import PLAIN_TEXTS, TEXTS

NAMES = st.sampled_from(["run", "look"])
IDS = st.sampled_from([None, "id_a", "id_b", "weird id!"])
PICTURE: Json = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
NOTHING: Json = {}
FAILURE: Json = {"error": "it failed"}


def _lines(count: int) -> Json:
    return {"lines": ["line of output"] * count, "count": count}


RESPONSES = st.one_of(PLAIN_TEXTS, st.sampled_from([None, NOTHING, FAILURE]), st.integers(1, 300).map(_lines))


def _with_picture(part: Json) -> Json:
    function = part["functionResponse"]
    return {"functionResponse": {**function, "parts": [PICTURE]}} if isinstance(function, dict) else part


RESPONSE_PARTS = st.builds(response_part, NAMES, IDS, RESPONSES)
OTHER_SAID: list[Json] = [
    PICTURE,
    {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.org/a.pdf"}},
    {"function_response": {"name": "run", "response": {"output": "snake"}}, "text": None},
]
OTHER_ANSWERED: list[Json] = [
    {"text": "hm", "thought": True},
    {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
    {"text": "", "thoughtSignature": "c2ln"},
    {"text": "so", "thoughtSignature": "c2ln" * 20},
    {"executableCode": {"language": "PYTHON", "code": "1 + 1"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}, "thoughtSignature": "c2ln"},
    {},
]
SAID = st.one_of(TEXTS.map(words), st.sampled_from(OTHER_SAID))
ANSWERED = st.one_of(PLAIN_TEXTS.map(words), st.sampled_from(OTHER_ANSWERED))
CALL_PARTS = st.builds(call_part, NAMES, IDS, st.sampled_from([None, "c2ln" * 10]))
CONTENTS: st.SearchStrategy[Json] = st.one_of(
    st.lists(SAID, max_size=3).map(lambda parts: user_turn(*parts)),
    st.lists(RESPONSE_PARTS, min_size=1, max_size=3).map(lambda parts: user_turn(*parts)),
    st.lists(st.one_of(RESPONSE_PARTS, RESPONSE_PARTS.map(_with_picture), SAID), max_size=3).map(
        lambda parts: user_turn(*parts)
    ),
    st.lists(ANSWERED, max_size=3).map(lambda parts: model_turn(*parts)),
    st.lists(CALL_PARTS, min_size=1, max_size=3).map(lambda parts: model_turn(*parts)),
    st.lists(st.one_of(ANSWERED, CALL_PARTS, RESPONSE_PARTS), max_size=4).map(lambda parts: model_turn(*parts)),
    TEXTS.map(lambda text: {"parts": [{"text": text}]}),
)


def content_histories(max_size: int = 20) -> st.SearchStrategy[list[Json]]:
    """Return a strategy for lists of contents with defects of every kind."""
    return st.lists(CONTENTS, max_size=max_size)


@st.composite
def sound_content_histories(draw: st.DrawFn, max_turns: int = 5) -> list[Json]:
    """Draw a list of contents without a defect, with ids or without, ending with a prompt or with responses."""
    prose = st.integers(1, 200).map(lambda count: "word " * count)
    has_ids = draw(st.booleans())
    contents: list[Json] = []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        contents.append(user_turn(words(f"prompt {turn} " + draw(prose))))
        for step in range(draw(st.integers(0, 3))):
            names = draw(st.lists(NAMES, min_size=1, max_size=3))
            ids = [f"c{turn}_{step}_{number}" if has_ids else None for number in range(len(names))]
            signatures = ["c2ln", *[None] * len(names)]
            calls = [call_part(*call) for call in zip(names, ids, signatures, strict=False)]
            thought: list[Json] = [{"text": "hm", "thought": True}] if draw(st.booleans()) else []
            contents.append(model_turn(*thought, *calls))
            contents.append(
                user_turn(
                    *(response_part(name, call_id, draw(prose)) for name, call_id in zip(names, ids, strict=True))
                )
            )
        if turn < turns - 1:
            contents.append(model_turn({"text": f"answer {turn} " + draw(prose), "thoughtSignature": "c2ln"}))
    return contents
