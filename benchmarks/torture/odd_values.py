"""JSON that no honest client sends: half characters, NUL, deep nesting, huge numbers, enormous and empty texts.

A case holds names such as `@deep` in place of what would be long or has no value in Python; `json_bytes` writes out
what they stand for.
"""

import json

from hypothesis import strategies as st

RAW_TOKENS = {
    "@deep": "[" * 900 + "]" * 900,
    "@deeper": '{"a":' * 20_000 + "0" + "}" * 20_000,
    "@digits": "9" * 5_000,
    "@huge": "1e999",
    "@wide": str(2**64 + 1),
    "@tiny": "1e-400",
    "@nan": "NaN",
    "@half": r'"\ud800 half"',
    "@long": json.dumps("many words " * 20_000),
    "@twice": r'{"role":"user","role":"assistant","content":"a","content":"b"}',
}
"""What is written in place of each name. Not all of it is JSON; whoever sends that may be refused."""
NOT_JSON = frozenset({"@nan"})
ODD_VALUES = st.one_of(
    st.sampled_from(sorted(RAW_TOKENS)),
    st.sampled_from(
        [None, True, 0, -1, 1.5, 10**30, "", " ", "\ud800", "\udc00\ud800", "\0", "\x1b[2J", "\u2028", "\ufeff"]
    ),
    st.sampled_from([[], {}, [[]], [None], {"type": "text"}, {"type": "text", "text": None}, ["x"], {"": ""}]),
    st.text(max_size=6),
)
ODD_NAMES = st.one_of(
    st.sampled_from(
        ["x_unknown", "", "\0", "\ud800", "messages", "metadata", "system", "tools", "model", "store", "input",
         "stream", "n", "generationConfig", "tool_choice", "thinking", "previous_response_id", "conversation",
         "prompt_cache_key", "instructions", "contents", "cache_control"]
    ),
    st.text(max_size=4),
)  # fmt: skip
ODD_MEMBERS = st.dictionaries(ODD_NAMES, ODD_VALUES, max_size=2)


def json_bytes(value: object) -> bytes:
    """Return a value as JSON, in which every name of `RAW_TOKENS` is written out."""
    text = json.dumps(value)
    for name, raw in RAW_TOKENS.items():
        text = text.replace(f'"{name}"', raw)
    return text.encode()
