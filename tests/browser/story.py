"""A conversation to look at: a coding agent that finds out why invoices are billed twice."""

import json
from collections.abc import Iterator

from holdfast import Request, Session
from holdfast.stores.base import Store
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message

SYSTEM = "You are a careful engineer. Run the tests before you answer. Never push to main."
START_MS = 1_767_100_000_000
STEPS = (
    ("Customers are billed twice when a payment is retried. Find out why.", "billing/retry.py", "retry_payment"),
    ("Does the webhook handler check for an existing invoice?", "billing/webhooks.py", "on_payment_failed"),
    ("Add an idempotency key to every charge. Keep the public API as it is.", "billing/charges.py", "create_charge"),
    ("What happens if two workers pick up the same event?", "billing/worker.py", "claim_event"),
    ("Use a database lock instead of the Redis one.", "billing/locks.py", "advisory_lock"),
    ("The migration must not lock the table for longer than a second.", "migrations/0042_charge_key.py", "upgrade"),
    ("Run the tests for the billing package and fix what fails.", "tests/billing/test_retry.py", "test_retries_once"),
    ("Now the refund path: is it safe as well?", "billing/refunds.py", "refund_charge"),
    ("Write down what changed for the people on call.", "docs/runbooks/billing.md", "Retries"),
    ("Check the currency rounding while you are there.", "billing/money.py", "round_half_even"),
    ("Why is the nightly reconciliation still off by two cents?", "billing/reconcile.py", "daily_totals"),
    ("Add a metric for duplicate charges that we refused.", "billing/metrics.py", "duplicate_refused"),
)


def story(turns: int) -> Iterator[list[JsonMessage]]:
    """Yield the messages of each turn: a prompt, a call with its result, and an answer."""
    for turn in range(turns):
        prompt, path, name = STEPS[turn % len(STEPS)]
        again = "" if turn < len(STEPS) else f" Round {turn // len(STEPS) + 1}: look at it again."
        call = f"call_{turn}"
        lines = [f"{number:4}  {line}" for number, line in enumerate(_source(name, turn), start=1 + turn * 7)]
        yield [
            user_message(f"{prompt}{again}"),
            tool_call_message(call, name="read_file", arguments={"path": path, "start": 1 + turn * 7}),
            tool_result_message(call, "\n".join(lines)),
            assistant_message(
                f"`{name}` in `{path}` is called once for each attempt, and nothing ties the attempts together. "
                f"I changed it so that the second attempt finds the first by its key, and added a test for it."
            ),
        ]


def _source(name: str, turn: int) -> list[str]:
    body = [
        f"def {name}(event: Event, *, attempt: int = 1) -> Result:",
        f'    """Handle one event; attempt {turn + 1} of the day."""',
        "    charge = find_charge(event.customer, event.amount)",
        "    if charge is None:",
        "        charge = gateway.charge(event.customer, event.amount, key=event.key)",
        "    with transaction() as open_transaction:",
        "        open_transaction.save(charge)",
        '        log.info("charged %s for %s", event.customer, event.amount)',
        "    return Result(charge.id, attempt)",
        "",
    ]
    return body * 4


async def tell_story(store: Store, session_id: str, *, turns: int, budget: int, name: str = "") -> None:
    """Record the story with a request before each answer."""
    time_ms = START_MS

    def clock() -> int:
        nonlocal time_ms
        time_ms += 1_700
        return time_ms

    async with Session.open(session_id, store=store, model="gpt-5", clock=clock) as session:
        read_file = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}
        for prompt, call, result, answer in story(turns):
            await session.record([prompt])
            first = await session.prepare(budget, system=SYSTEM, tools=[read_file], encode_body=_body)
            await session.record([call, result], usage=_usage(first.tokens.total, 40))
            second = await session.prepare(budget, system=SYSTEM, tools=[read_file], encode_body=_body)
            await session.record([answer], usage=_usage(second.tokens.total, 120))
    if name:
        await store.rename(session_id, name)


def _body(request: Request) -> bytes:
    """Return the bytes that a client sends for a request."""
    system = {"role": "system", "content": request.system}
    body = {"model": "gpt-5", "messages": [system, *request.messages], "tools": request.tools, "stream": True}
    return json.dumps(body).encode()


def _usage(tokens: int, output: int) -> dict[str, object]:
    cached = tokens * 3 // 4
    return {
        "prompt_tokens": tokens,
        "completion_tokens": output,
        "total_tokens": tokens + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
