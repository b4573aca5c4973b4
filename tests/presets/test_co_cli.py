"""co-cli's document, played: sixty turns with tools, no budget, request by request."""

import pytest

from holdfast import Session
from holdfast.core.history import events as log
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.testing.chat import JsonMessage, assistant_message, user_message
from holdfast.testing.models import ScriptedModel
from tests.presets.play import Play, kinds, made_turn

MODELS = ["gemini-2.5-flash", "ollama/mistral-7B-Instruct-v0.2"]
LIMIT, TAIL, TRIM = 40, 20, 2_000


class CoCli:
    """The seed's history: a list that each request rewrites, oldest outputs first, then the window."""

    def __init__(self) -> None:
        self.history: list[JsonMessage] = []
        self.dropped: list[int] = []
        """How many messages each summary replaced."""

    def request(self) -> list[JsonMessage]:
        if len(self.history) > LIMIT:
            answers = (
                at for at, message in enumerate(self.history) if message["role"] == "assistant" and message["content"]
            )
            head, tail = next(answers) + 1, len(self.history) - TAIL
            self.dropped.append(tail - head)
            marker = f"[Summary of {tail - head} earlier messages]\nSummary {len(self.dropped)}."
            self.history = [*self.history[:head], user_message(marker), *self.history[tail:]]
        return [*map(self._trimmed, self.history[:-2]), *self.history[-2:]]

    @staticmethod
    def _trimmed(message: JsonMessage) -> JsonMessage:
        text = str(message["content"])
        if message["role"] != "tool" or len(text) <= TRIM:
            return message
        return {**message, "content": f"{text[:TRIM]}\n[…truncated, {len(text)} chars total]"}


def answers_are_counted(requests: int) -> list[str]:
    return [f"Summary {number + 1}." for number in range(requests)]


@pytest.mark.seed("A-2", "A-10", "A-11", "A-15", "A-17", "A-18", "A-20", "A-21", "A-22", "A-30")
@pytest.mark.parametrize("model", MODELS)
async def test_sixty_turns_are_sent_as_the_two_processors_leave_them(model: str) -> None:
    cheap, primary = ScriptedModel(answers_are_counted(20), name="cheap"), ScriptedModel(["All of it."], name="primary")
    how = CompactionOptions(automatic=cheap, manual=primary)
    async with Session.open("c1", model=model, policy="co-cli", compaction=how) as session:
        play, seed = Play(session), CoCli()
        for number in range(60):
            # A result of exactly the limit stays whole; every third one is longer.
            turn = made_turn(number, chars=6_000 if number % 3 == 0 else TRIM, steps=1 + (number % 2))
            await play.record(turn.prompt)
            seed.history.append(turn.prompt)
            assert (await play.ask()).messages == seed.request(), f"turn {number}"
            for step in turn.steps:
                await play.record(*step)
                seed.history += step
                assert (await play.ask()).messages == seed.request(), f"turn {number}"
            await play.record(turn.answer)
            seed.history.append(turn.answer)
        timeline = await play.timeline()

        compacted = await session.compact()
        left = [(entry.message.role, entry.message.text) for entry in await session.visible_messages()]

    changed = [happened for happened in timeline if kinds(happened) != ["session.usage_info", "request.prepared"]]
    assert [kinds(happened) for happened in changed] == [
        [
            "session.compaction_start",
            "session.summary_written",
            "session.compaction_complete",
            "session.usage_info",
            "request.prepared",
        ]
    ] * len(seed.dropped)
    done = [event for happened in changed for event in happened if isinstance(event, log.CompactionCompleted)]
    assert [(event.trigger, event.success, event.span.count, event.summary.by_model) for event in done] == [
        ("threshold", True, count, "cheap") for count in seed.dropped
    ]
    assert len(seed.dropped) > 5
    assert (compacted.trigger, compacted.summary.by_model) == ("manual", "primary")
    assert left == [
        ("user", "[Compacted conversation summary]\nAll of it."),
        ("assistant", "Understood. I have the conversation context."),
    ]
    assert [prompt.prefix for prompt in (*cheap.prompts, *primary.prompts)] == [None] * (len(seed.dropped) + 1)


@pytest.mark.seed("A-23", "A-40")
async def test_without_a_summary_the_static_marker_takes_its_place_and_compact_changes_nothing() -> None:
    refusing = ScriptedModel([])
    async with Session.open("c1", model=MODELS[0], policy="co-cli", summarizer=refusing) as session:
        play = Play(session)
        for number in range(14):
            await play.take(made_turn(number, chars=100))
        sent = play.requests[-1].messages

    assert sent[4]["content"] == "[Earlier conversation trimmed — 17 messages removed to stay within context budget]"
    assert assistant_message("Answer 0: src/module_0.py is as it should be.") == sent[3]
