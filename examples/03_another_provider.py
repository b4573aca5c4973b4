"""Convert a conversation from one provider to another, and list what the target cannot carry."""

import json

from holdfast import convert, validate
from holdfast.testing.chat import system_message, tool_call_message, tool_result_message, user_message

messages = [
    system_message("Be brief."),
    user_message("What is in src/a.py?"),
    {**tool_call_message("call_1"), "reasoning_content": "I should read it."},
    tool_result_message("call_1", "print('hello')"),
]

converted = convert(messages, source="openai-chat", target="anthropic-messages")

print(json.dumps(converted.messages, indent=1))
print("system:", converted.system)
print("notes:", *converted.notes)
print("violations:", validate(converted.messages, "anthropic-messages", system=converted.system))
