"""Hypothesis strategies for lists of Responses items, broken and valid.

Needs the `hypothesis` package.
"""

from hypothesis import strategies as st

from holdfast.testing.chat import JsonMessage, system_message, user_message
from holdfast.testing.responses import (
    compaction_item,
    function_call_item,
    function_output_item,
    output_message_item,
    reasoning_item,
)
from holdfast.testing.strategies.chat import CALL_ARGUMENTS, MESSAGE_TEXTS, PLAIN_TEXTS, PROSE

RESPONSES_CALL_IDS = st.sampled_from(["call_a", "call_b", "call_c", "", "x" * 80, "weird id!"])
CUSTOM_CALL_IDS = st.sampled_from(["custom_a", "custom_b"])
SCREENSHOT: JsonMessage = {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0KGgo="}
RESPONSES_TEXT_BLOCKS = MESSAGE_TEXTS.map(lambda text: {"type": "input_text", "text": text, "x_mark": 1})
RESPONSES_IMAGE_BLOCKS: st.SearchStrategy[JsonMessage] = st.just(
    {"type": "input_image", "image_url": "https://example.org/a.png"}
)
RESPONSES_BLOCKS = st.lists(st.one_of(RESPONSES_TEXT_BLOCKS, RESPONSES_IMAGE_BLOCKS), max_size=3)


def _raw_function_call(call_id: str, item_id: str | None, arguments: str) -> JsonMessage:
    return {"type": "function_call", "id": item_id, "call_id": call_id, "name": "read_file", "arguments": arguments}


def _custom_call(call_id: str) -> JsonMessage:
    return {"type": "custom_tool_call", "call_id": call_id, "name": "sh", "input": "ls -la src/a.py"}


def _custom_output(call_id: str, text: str) -> JsonMessage:
    return {"type": "custom_tool_call_output", "call_id": call_id, "output": text}


def _message(role: str, content: object) -> JsonMessage:
    return {"role": role, "content": content}


BUILT_IN_ITEMS: list[JsonMessage] = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1", "container_id": "c", "outputs": []},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "look", "arguments": "{}", "output": "seen"},
    {"type": "item_reference", "id": "msg_9"},
    {"type": "computer_call", "id": "cu_1", "call_id": "screen", "action": {"type": "screenshot"}},
    {"type": "computer_call_output", "call_id": "screen", "output": SCREENSHOT},
    {"type": "shell_call", "call_id": "shell", "action": {"commands": ["ls"]}},
    {"type": "shell_call_output", "call_id": "shell", "output": [{"stdout": "a\n" * 300, "stderr": "", "outcome": {}}]},
    {"type": "hologram", "rays": 3},
]
RESPONSES_ITEMS: st.SearchStrategy[JsonMessage] = st.one_of(
    st.builds(_message, st.just("user"), st.one_of(MESSAGE_TEXTS, RESPONSES_BLOCKS)),
    st.builds(_message, st.just("assistant"), MESSAGE_TEXTS),
    st.builds(output_message_item, PLAIN_TEXTS, st.sampled_from(["msg_1", "odd"])),
    st.builds(_message, st.sampled_from(["system", "developer"]), st.sampled_from(["Be brief.", ""])),
    st.builds(
        _raw_function_call, RESPONSES_CALL_IDS, st.sampled_from([None, "fc_1", "odd"]), st.sampled_from(CALL_ARGUMENTS)
    ),
    st.builds(function_output_item, RESPONSES_CALL_IDS, st.one_of(MESSAGE_TEXTS, RESPONSES_BLOCKS, st.none())),
    st.builds(_custom_call, CUSTOM_CALL_IDS),
    st.builds(_custom_output, CUSTOM_CALL_IDS, PLAIN_TEXTS),
    st.builds(reasoning_item, st.just("rs_1"), encrypted=st.sampled_from([None, "gAAAAA"])),
    st.builds(compaction_item, st.just("gAAAAB" * 10)),
    st.sampled_from(BUILT_IN_ITEMS),
)


def responses_histories(max_size: int = 25) -> st.SearchStrategy[list[JsonMessage]]:
    """Return a strategy for lists of items with defects of every kind."""
    return st.lists(RESPONSES_ITEMS, max_size=max_size)


@st.composite
def valid_responses_histories(draw: st.DrawFn, max_turns: int = 5) -> list[JsonMessage]:
    """Draw a list of items without defects, ending with a prompt or with outputs."""
    items: list[JsonMessage] = [system_message("Be brief.")] if draw(st.booleans()) else []
    turns = draw(st.integers(1, max_turns))
    for turn in range(turns):
        items.append(user_message(f"prompt {turn} " + draw(PROSE)))
        for step in range(draw(st.integers(0, 3))):
            ids = [f"c{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            for call_id in ids:
                items += [reasoning_item(f"rs_{call_id}")] if draw(st.booleans()) else []
                items += [output_message_item("Looking.", f"msg_{call_id}")] if draw(st.booleans()) else []
                items.append(function_call_item(call_id))
            items += [function_output_item(call_id, draw(PROSE)) for call_id in draw(st.permutations(ids))]
        if turn < turns - 1:
            items.append(output_message_item(f"answer {turn} " + draw(PROSE), f"msg_{turn}"))
    return items
