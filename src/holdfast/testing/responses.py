"""Builders for OpenAI Responses items."""

import json
from collections.abc import Mapping

from holdfast.testing.chat import JsonMessage


def function_call_item(
    call_id: str, name: str = "read_file", arguments: Mapping[str, object] | None = None
) -> JsonMessage:
    """Return a call of a function."""
    text = json.dumps(arguments or {"path": "src/a.py"})
    return {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name, "arguments": text}


def function_output_item(call_id: str, output: object = "ok") -> JsonMessage:
    """Return the output of a function."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def reasoning_item(item_id: str = "rs_1", *, encrypted: str | None = "gAAAAA", summary: str = "hm") -> JsonMessage:
    """Return reasoning, encrypted or not."""
    blocks = [{"type": "summary_text", "text": summary}]
    return {"type": "reasoning", "id": item_id, "summary": blocks, "encrypted_content": encrypted}


def output_message_item(text: str, item_id: str = "msg_1") -> JsonMessage:
    """Return a message of the model in the form of a response."""
    block: JsonMessage = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": [block]}


def compaction_item(encrypted: str = "gAAAAB") -> JsonMessage:
    """Return a compaction."""
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": encrypted}
