"""Fit a session of a thousand messages into 16,000 tokens, and show the receipt."""

from holdfast import govern
from holdfast.testing.sessions import generate_session

messages = generate_session(1_000)

request = govern(messages, budget=16_000, model="gpt-5")

print(request.receipt)
print()
print("The digest that replaces the oldest messages begins:")
print(str(request.messages[1]["content"])[:400] + " …")
