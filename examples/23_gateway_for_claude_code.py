"""A gateway in front of Claude Code, with a stand-in for the provider, so that this runs without a key.

With the real program, `holdfast wrap claude` does all of this. The client here does what Claude Code does: it sends its
whole list with every request and names its session. It needs the extra `gateway`.
"""

import asyncio
import json

import httpx

from holdfast.gateway import Access, close_gateway, gateway_app
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream

SESSION = "8f3a5c1e"
CONTROL = {"authorization": "Bearer example"}
REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5-5",
    "content": [{"type": "text", "text": "I read it. " + "It parses one line after the other. " * 30}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 100, "output_tokens": 200},
}


async def converse(client: httpx.AsyncClient) -> None:
    """Send twenty turns, each with everything before it."""
    messages: list[dict[str, object]] = []
    for turn in range(20):
        prompt = "Never touch billing/." if turn == 0 else f"Read src/part_{turn}.py."
        messages.append({"role": "user", "content": prompt})
        body = {"model": "claude-sonnet-5-5", "max_tokens": 500, "messages": messages}
        headers = {"x-claude-code-session-id": SESSION, "x-api-key": "sk-from-the-client"}
        answer = await client.post("/v1/messages", json=body, headers=headers)
        messages.append({"role": "assistant", "content": answer.json()["content"]})
        if answer.headers.get("x-holdfast-compacted"):
            size, budget = answer.headers["x-holdfast-tokens"], answer.headers["x-holdfast-budget"]
            print(f"turn {turn:2}: the client sent {len(messages) - 1} messages, the gateway {size} of {budget} tokens")


async def main() -> None:
    """Run the gateway in this process, talk through it, and ask its control API what it has."""
    answer = FaultyAnswer(pieces=[json.dumps(REPLY).encode()])
    async with FaultyUpstream(answer=answer) as provider:
        gateway = gateway_app(
            store="memory://",
            budget=4_000,
            upstreams={"anthropic": provider.url},
            access=Access(control_token="example"),  # noqa: S106 - of this example only
        )
        transport = httpx.ASGITransport(gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as client:
            await converse(client)
            sent = json.loads(provider.requests[-1].body)
            print(
                f"\nthe provider got {len(sent['messages'])} messages; the rule is in them: {'billing/' in str(sent)}"
            )

            session = f"/holdfast/v1/sessions/{SESSION}"
            stored = (await client.get(f"{session}/messages", headers=CONTROL)).json()
            print(f"on record: {len(stored['messages'])} messages")
            found = await client.post(f"{session}/recall", json={"query": "billing"}, headers=CONTROL)
            print("recall:", *found.json()["text"].splitlines()[1:3])
        await close_gateway(gateway)


if __name__ == "__main__":
    asyncio.run(main())
