"""Items of OpenAI's Responses, in few words."""

import json
from collections.abc import Mapping

from holdfast.testing.chat import Json


def function_call(call_id: str, name: str = "read_file", arguments: Mapping[str, object] | None = None) -> Json:
    """Return a call of a function."""
    words = json.dumps(arguments or {"path": "src/a.py"})
    return {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name, "arguments": words}


def function_output(call_id: str, output: object = "ok") -> Json:
    """Return the output of a function."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def reasoning(item_id: str = "rs_1", *, sealed: str | None = "gAAAAA", summary: str = "hm") -> Json:
    """Return reasoning, encrypted or not."""
    blocks = [{"type": "summary_text", "text": summary}]
    return {"type": "reasoning", "id": item_id, "summary": blocks, "encrypted_content": sealed}


def output_message(text: str, item_id: str = "msg_1") -> Json:
    """Return a message of the model's as a response has it."""
    block: Json = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": [block]}


def compaction(sealed: str = "gAAAAB") -> Json:
    """Return a compaction."""
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": sealed}
