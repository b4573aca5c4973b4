"""Take a conversation from one provider to another, and see what did not fit through."""

import json

from holdfast import convert, validate
from holdfast.testing.chat import called, returned, said, told

messages = [
    told("Be brief."),
    said("What is in src/a.py?"),
    {**called("call_1"), "reasoning_content": "I should read it."},
    returned("call_1", "print('hello')"),
]

converted = convert(messages, source="openai-chat", target="anthropic-messages")

print(json.dumps(converted.messages, indent=1))
print("system:", converted.system)
print("notes:", *converted.notes)
print("violations:", validate(converted.messages, "anthropic-messages", system=converted.system))
