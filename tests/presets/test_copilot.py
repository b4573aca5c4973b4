"""Copilot CLI's document, played: sixty turns with tools on two models with their prompt limits, event by event.

Then the same once more beside what Copilot CLI 1.0.102 was seen to do on a loopback endpoint with a limit of 40,000.
"""

from itertools import repeat
from pathlib import Path

import pytest

from holdfast import Budget, Session
from holdfast.core.history import events as log
from holdfast.core.planning.rules.copilot import CHECKPOINT_INTRO
from holdfast.models.openai_compatible import ChatSummarizer
from holdfast.session.compaction.checkpoints import Checkpoints
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.testing.chat import JsonMessage, user_message
from holdfast.testing.endpoint import ReceivedRequest, ResponsePiece, ScriptedEndpoint, http_response
from holdfast.testing.models import ScriptedModel
from tests.presets.play import SYSTEM, TOOLS, Play, kinds, made_turn

LIMITS = {"claude-sonnet-4.5": 128_000, "gpt-5.1": 128_000}
WRITTEN = "The modules are sound.\n<checkpoint_title>Modules checked</checkpoint_title>"
STARTED = ["session.compaction_start", "session.usage_info", "request.prepared"]
CONTINUED = ["session.usage_info", "request.prepared"]
APPLIED = ["session.summary_written", "session.compaction_complete", "session.usage_info", "request.prepared"]
WAITED = ["session.compaction_start", *APPLIED]


def prompt_limit(tokens: int) -> Budget:
    """Return the largest prompt that a provider names."""
    return Budget(tokens, source="provider")


def split(context: list[JsonMessage]) -> int:
    """Return where an open exchange at the end begins: a prompt, or a call with its result."""
    return len(context) - (1 if context[-1]["role"] == "user" else 2)


class Copilot:
    """The seed's context: it grows until a summary is ready, which replaces what came before its start."""

    def __init__(self) -> None:
        self.context: list[JsonMessage] = []
        self.started_at: int | None = None
        self.prompt: JsonMessage = {}
        """The prompt that was being answered at the start."""
        self.users: list[str] = []
        """The user's messages before the start."""

    def start(self) -> None:
        self.started_at = split(self.context)
        self.prompt = [message for message in self.context if message["role"] == "user"][-1]

    def apply(self, replacement: JsonMessage) -> None:
        assert self.started_at is not None
        later = self.context[self.started_at :]
        kept = [] if self.prompt in later else [self.prompt]
        self.context = [replacement, *kept, *later]
        self.started_at = None


@pytest.mark.seed("C-14", "C-15", "C-17", "C-18", "C-19", "C-21", "C-24", "C-34", "C-39", "C-41", "C-42", "C-47")
@pytest.mark.parametrize("model", LIMITS)
async def test_sixty_turns_start_a_summary_at_eighty_percent_and_apply_it_with_the_next_request(
    model: str, tmp_path: Path
) -> None:
    limit = LIMITS[model]
    writer = ScriptedModel(repeat(WRITTEN), window=1_000_000)
    how = CompactionOptions(automatic=writer, checkpoints=Checkpoints(tmp_path))
    async with Session.open("c1", model=model, policy="copilot", compaction=how) as session:
        play, seed = Play(session, prompt_limit(limit), window=limit), Copilot()
        prompts: list[str] = []
        for number in range(60):
            turn = made_turn(number, chars=8_000, steps=2)
            prompts.append(str(turn.prompt["content"]))
            for messages in ((turn.prompt,), *turn.steps):
                await play.record(*messages)
                seed.context += messages
                request = await play.ask()
                happened = (await play.timeline())[-1]
                usage = next(event for event in happened if isinstance(event, log.UsageMeasured))
                if seed.started_at is not None:
                    assert kinds(happened) == APPLIED
                    seed.apply(dict(request.messages[0]))
                    check_replacement(dict(request.messages[0]), prompts, seed.prompt)
                elif usage.current_tokens >= 0.8 * usage.token_limit:
                    assert kinds(happened) == STARTED, "the request goes on while the summary is written"
                    seed.start()
                else:
                    assert kinds(happened) == CONTINUED
                assert request.messages == seed.context, f"turn {number}: nothing is left out"
            await play.record(turn.answer)
            seed.context.append(turn.answer)
        events = await session.events()

    begun = [event for event in events if isinstance(event, log.CompactionStarted)]
    done = [event for event in events if isinstance(event, log.CompactionCompleted)]
    assert len(done) >= 2
    assert [(event.trigger, event.success, event.summary.text) for event in done] == [
        ("threshold", True, WRITTEN)
    ] * len(done)
    assert {event.trigger for event in begun} == {"threshold"}
    assert not any(isinstance(event, log.RequestTruncated) for event in events)
    names = [f"{number + 1:03}-modules-checked.md" for number in range(len(done))]
    assert [Path(event.checkpoint_path or "").name for event in done] == names
    assert (tmp_path / "workspace.yaml").read_text() == f"summary_count: {len(done)}\n"


def check_replacement(replacement: JsonMessage, prompts: list[str], answered: JsonMessage) -> None:
    """Check the message that replaces everything before the boundary."""
    text = str(replacement["content"])
    earlier = prompts[: prompts.index(str(answered["content"]))]
    shown = earlier if len(earlier) <= 20 else [*earlier[:4], *earlier[-16:]]
    assert text.startswith(f"{CHECKPOINT_INTRO}\n\n<user_messages>\n")
    assert [prompt for prompt in earlier if f"<user_message>\n{prompt}\n</user_message>" in text] == shown
    assert (f"... {len(earlier) - 20} messages omitted ..." in text) is (len(earlier) > 20)
    assert "<summary>\nThe modules are sound.\n" in text


@pytest.mark.seed("C-16")
@pytest.mark.parametrize("model", LIMITS)
async def test_a_request_that_jumps_over_ninety_five_percent_waits_for_its_summary(model: str) -> None:
    limit = LIMITS[model]
    writer = ScriptedModel(repeat(WRITTEN), window=1_000_000)
    async with Session.open("c1", model=model, policy="copilot", summarizer=writer) as session:
        play = Play(session, prompt_limit(limit), window=limit)
        for number in range(8):
            await play.take(made_turn(number, chars=30_000))
        newest = user_message("words " * 70_000)
        await play.record(newest)
        request = await play.ask()
        happened = (await play.timeline())[-1]

    assert kinds(happened) == WAITED
    assert str(request.messages[0]["content"]).startswith(CHECKPOINT_INTRO)
    assert request.messages[1:] == [newest]


# What Copilot CLI was seen to do: docs/maintainers/seeds.md lists where ours differs.


def summary_reply(_: ReceivedRequest) -> list[ResponsePiece]:
    message = {"role": "assistant", "content": WRITTEN}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 30_000, "completion_tokens": 40, "total_tokens": 30_040}
    return http_response(200, {"id": "r1", "object": "chat.completion", "choices": [choice], "usage": usage})


@pytest.mark.seed("C-11", "C-12", "C-13a", "C-14", "C-19", "C-46")
async def test_a_limit_of_forty_thousand_is_used_as_copilot_cli_was_seen_to_use_it(tmp_path: Path) -> None:
    async with ScriptedEndpoint(summary_reply) as endpoint:
        writer = ChatSummarizer(endpoint.url, "gpt-5.1", api_key="none", window=400_000)
        how = CompactionOptions(automatic=writer, checkpoints=Checkpoints(tmp_path))
        async with Session.open("c1", model="gpt-5.1", policy="copilot", compaction=how) as session:
            play = Play(session, prompt_limit(40_000), window=40_000)
            requests = [
                request for number in range(24) for request in await play.take(made_turn(number, chars=9_000, steps=1))
            ]
            timeline = await play.timeline()
        (first, second, *_) = endpoint.requests

    usages = [event for happened in timeline for event in happened if isinstance(event, log.UsageMeasured)]
    starts = [number for number, happened in enumerate(timeline) if kinds(happened) == STARTED]
    assert all(38_000 <= usage.token_limit <= 40_000 for usage in usages), "no room for an answer is subtracted"
    assert len(starts) >= 2
    for number in starts:
        threshold = 0.8 * usages[number].token_limit
        assert usages[number].current_tokens >= threshold > usages[number - 1].current_tokens
        begun = timeline[number][0]
        assert isinstance(begun, log.CompactionStarted)
        counted = begun.tokens.system_tokens + begun.tokens.conversation_tokens + begun.tokens.tool_definitions_tokens
        assert 0 <= usages[number].current_tokens - counted <= 3, "system text and tools count"
        assert begun.trigger == "threshold"
    started = requests[starts[0]]
    body = first.body
    assert first.headers["x-interaction-type"] == "conversation-compaction"
    assert (body["tools"], body["tool_choice"]) == (TOOLS, "none")
    assert body["messages"][0] == {"role": "system", "content": SYSTEM}  # pyright: ignore[reportIndexIssue]
    assert body["messages"][1:-1] == started.messages, "all of the conversation, the newest prompt included"  # pyright: ignore[reportIndexIssue]
    order = body["messages"][-1]  # pyright: ignore[reportIndexIssue]
    assert order["role"] == "user"
    assert "<checkpoint_title>" in str(order)
    assert second.headers["x-interaction-type"] == "conversation-compaction"
    after = requests[starts[0] + 1]
    assert str(after.messages[0]["content"]).startswith(CHECKPOINT_INTRO)
    assert (tmp_path / "checkpoints" / "index.md").read_text().splitlines()[2] == "| # | Title | File |"
