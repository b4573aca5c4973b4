"""Make a session of a thousand messages fit 16,000 tokens, and see what that took."""

from holdfast import govern
from holdfast.testing.sessions import generate_session

messages = generate_session(1_000)

request = govern(messages, budget=16_000, model="gpt-5")

print(request.receipt)
print()
print("The digest that stands for what was folded begins:")
print(str(request.messages[1]["content"])[:400] + " …")
