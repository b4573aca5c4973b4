"""Clients and people decide how a conversation is governed: by header, by path and by the control API."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from holdfast.apps.gateway.access import Access
from holdfast.core.planning.policy import read_policy
from holdfast.testing.models import SAMPLE_SUMMARY, ScriptedModel
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import Seen, ask, running_gateway

TOKEN = "t0ken"
BUDGET = 2_000
LONG = "a word of the report and another " * 30
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": LONG}, "finish_reason": "stop"}]}
EARLY = read_policy("""
name = "early"
[models."gpt-early*".compaction]
soft_share = 0.34
hard_share = 0.34
cold_share = 0.34
""")


@pytest.fixture
async def upstream() -> AsyncGenerator[FaultyUpstream]:
    async with FaultyUpstream(FaultyAnswer(pieces=[json.dumps(ANSWER).encode()])) as double:
        yield double


@pytest.fixture
async def url(upstream: FaultyUpstream) -> AsyncGenerator[str]:
    access = Access(control_token=TOKEN)
    async with running_gateway(upstream.url, access=access, budget=BUDGET, policies={"early": EARLY}) as address:
        yield address


async def control(url: str, path: str, method: str = "POST", value: object = None) -> Any:
    body = b"" if value is None else json.dumps(value).encode()
    seen = await ask(url, method, f"/holdfast/v1/sessions/s/{path}", body, authorization=f"Bearer {TOKEN}")
    return json.loads(seen.body) if seen.status == 200 else seen.status


class Client:
    """A client that sends its whole list each time."""

    def __init__(self, url: str, session: str = "s") -> None:
        self.url, self.session, self.model = url, session, "gpt-5"
        self.messages: list[dict[str, str]] = []

    async def say(self, text: str, prefix: str = "", **headers: str) -> Seen:
        """Send a prompt, and take the answer into the list."""
        self.messages.append({"role": "user", "content": text})
        body = json.dumps({"model": self.model, "messages": self.messages}).encode()
        path = f"{prefix}/s/{self.session}/v1/chat/completions"
        seen = await ask(self.url, path=path, body=body, **headers)
        self.messages.append({"role": "assistant", "content": LONG})
        return seen


async def compacted_at(client: Client, count: int, prefix: str = "", **headers: str) -> list[int]:
    """Return which of some prompts were sent in another form than they came."""
    seen = [await client.say(f"question {number}", prefix, **headers) for number in range(count)]
    assert [one.status for one in seen] == [200] * count
    return [number for number, one in enumerate(seen) if one.header("x-holdfast-compacted") == "1"]


async def test_without_a_choice_a_conversation_over_its_budget_is_compacted(url: str) -> None:
    assert await compacted_at(Client(url), 10) != []


@pytest.mark.parametrize("way", ["header", "path", "control"])
async def test_a_policy_by_header_path_or_control_api_has_its_threshold_for_the_model(url: str, way: str) -> None:
    client = Client(url)
    await client.say("begin")
    if way == "control":
        assert await control(url, "settings", value={"policy": "early"}) == {
            "policy": "early",
            "compaction": "auto",
            "budget": None,
        }
    prefix, headers = "/p/early" if way == "path" else "", {"x_holdfast_policy": "early"} if way == "header" else {}
    client.model = "gpt-early-1"

    early = await compacted_at(client, 8, prefix, **headers)
    of_another_model = await compacted_at(Client(url, "other"), 12, prefix, **headers)

    assert early[0] + 1 < of_another_model[0]


async def test_a_policy_that_there_is_not_is_refused(url: str, upstream: FaultyUpstream) -> None:
    seen = await Client(url).say("hello", x_holdfast_policy="other")
    wrong = await Client(url).say("hello", x_holdfast_compaction="sometimes")
    large = await Client(url).say("hello", x_holdfast_budget=str(10**12 + 1))

    assert (seen.status, wrong.status, large.status, upstream.requests) == (400, 400, 400, [])
    assert "budget: must be at most 1,000,000,000,000" in json.loads(large.body)["error"]["message"]
    assert "none is called 'other'; there are default" in json.loads(seen.body)["error"]["message"]
    assert await control(url, "settings", "GET") == 404


async def test_off_leaves_every_request_as_it_came_until_somebody_says_now(url: str, upstream: FaultyUpstream) -> None:
    client = Client(url)

    assert await compacted_at(client, 10, x_holdfast_compaction="off") == []
    assert json.loads(upstream.requests[-1].body)["messages"] == client.messages[:-1]

    now = await client.say("and now", x_holdfast_compaction="now")
    sent = json.loads(upstream.requests[-1].body)["messages"]

    assert now.header("x-holdfast-compacted") == "1"
    assert len(sent) < len(client.messages) // 2
    assert sent[-1] == {"role": "user", "content": "and now"}


@pytest.mark.parametrize("mode", ["ask", "off"])
async def test_a_request_that_goes_over_its_budget_because_nobody_compacts_says_so(
    url: str, upstream: FaultyUpstream, mode: str
) -> None:
    client = Client(url)

    within = await client.say("question", x_holdfast_compaction=mode)
    over = await client.say("word " * 3_000, x_holdfast_compaction=mode)

    assert json.loads(upstream.requests[-1].body)["messages"] == client.messages[:-1]
    assert (within.header("x-holdfast-error"), over.header("x-holdfast-error")) == (
        None,
        f"over budget: 3,228 tokens are more than 2,000, and compaction is '{mode}'; compact the session, make the "
        "newest prompt smaller, or raise the budget",
    )


async def test_a_compaction_waits_for_its_approval(url: str, upstream: FaultyUpstream) -> None:
    client = Client(url)
    await client.say("begin")
    await control(url, "settings", value={"compaction": "ask"})

    seen = [await client.say(f"question {number}") for number in range(10)]
    due = await ask(url, "GET", "/holdfast/v1/sessions/s", authorization=f"Bearer {TOKEN}")
    preview = await control(url, "preview")
    before = json.loads(upstream.requests[-1].body)["messages"]
    done = await control(url, "compact", value={"preview": preview["id"]})
    again = await control(url, "compact", value={"preview": preview["id"]})
    await client.say("go on")
    after = json.loads(upstream.requests[-1].body)["messages"]

    assert {one.header("x-holdfast-compacted") for one in seen} == {None}
    assert seen[-1].header("x-holdfast-compaction") == "due"
    assert json.loads(due.body)["compaction_due"]
    assert before == client.messages[:-3]
    assert (done["summary"], again) == (preview["summary"], 404)
    assert after[0]["content"] == done["summary"][0]
    assert len(after) < len(before)


async def test_a_preview_that_is_out_of_date_is_not_applied(url: str) -> None:
    client = Client(url)
    await compacted_at(client, 6, x_holdfast_compaction="off")
    preview = await control(url, "preview")
    await control(url, "compact")

    assert await control(url, "compact", value={"preview": preview["id"]}) == 409


async def test_a_policy_that_is_chosen_for_a_session_leaves_the_gateways_own_summarizer(
    upstream: FaultyUpstream,
) -> None:
    model = ScriptedModel([SAMPLE_SUMMARY], name="author")
    access = Access(control_token=TOKEN)
    async with running_gateway(upstream.url, access=access, policies={"early": EARLY}, summarizer=model) as url:
        client = Client(url)
        for number in range(8):
            await client.say(f"question {number}?", x_holdfast_policy="early")
        done = await control(url, "compact")

    assert (done["success"], done["by"], len(model.prompts)) == (True, "author", 1)
