"""Distinguish an overflow from a rate limit, and prepare a smaller request with the provider's limit."""

from holdfast import classify, govern
from holdfast.testing.sessions import generate_session

messages = generate_session(500)
refusal = classify("prompt is too long: 20831 tokens > 20000 maximum", status=400)

if refusal is not None and refusal.kind == "overflow" and refusal.limit:
    request = govern(messages, budget=refusal.limit, model="claude-sonnet-5-5")
    print(f"the limit is {refusal.limit:,}; the next request has {request.tokens}")

limited = classify("Rate limit reached on tokens per minute (TPM): Limit 12000, Requested 14137", status=413)
print(f"and that one is a {limited.kind if limited else None}: wait, do not shrink")
