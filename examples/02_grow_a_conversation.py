"""Prepare each request of a growing conversation: only the first one takes time."""

from holdfast import Request, govern
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.sessions import generate_session

messages = generate_session(2_000)
request: Request | None = None
rewritten = 0

for turn in range(20):
    before = request
    request = govern(messages, budget=16_000, model="gpt-5", previous=before)
    if before is not None and request.messages[: len(before.messages)] != before.messages:
        rewritten += 1
    messages = [*messages, assistant_message(f"That was step {turn}."), user_message(f"Go on with step {turn + 1}.")]

print(f"20 requests, {rewritten} of them with a rewritten prefix: a provider's prompt cache serves the rest")
