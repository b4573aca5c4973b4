"""Inkeep's document, played: sixty turns with tools on two models, no budget, event by event."""

import re
from itertools import repeat

import pytest

from holdfast import Session
from holdfast.core.history import events as log
from holdfast.counters.models import find_model
from holdfast.testing.models import ScriptedModel
from tests.presets.play import Play, kinds, made_output, made_turn

MODELS = ["claude-sonnet-4-5", "gpt-5"]
COMPRESSED = [
    "session.compaction_start",
    "session.summary_written",
    "session.compaction_complete",
    "session.usage_info",
    "request.prepared",
]
SUMMARY = "[Summary of the conversation so far, for reference.]\nThe modules are sound."


@pytest.mark.seed("B-4", "B-5", "B-8", "B-9", "B-10", "B-14", "B-16", "B-22")
@pytest.mark.parametrize("model", MODELS)
async def test_sixty_turns_are_compressed_whole_at_half_of_the_window_and_lose_nothing_before(model: str) -> None:
    known = find_model(model)
    assert known is not None
    writer = ScriptedModel(repeat("The modules are sound."), window=1_000_000)
    async with Session.open("c1", model=model, policy="inkeep", summarizer=writer) as session:
        play, limits = Play(session, window=known.max_input_tokens), list[int]()
        kept: list[object] = []
        compressions = 0
        for number in range(60):
            # Every sixth result is large enough for an artifact.
            turn = made_turn(number, chars=16_000 if number % 6 == 0 else 4_000, steps=2)
            await play.record(turn.prompt)
            report = await session.context_breakdown()
            assert report.threshold is not None
            is_due = report.threshold.fill >= 1
            first = await play.ask()
            if is_due:
                compressions += 1
                limits.append(report.threshold.limit)
                summary, *rest = first.messages
                assert rest == [turn.prompt], "everything before the prompt is replaced"
                lines = str(summary["content"]).split("\n\n")
                assert lines[0] == SUMMARY
                kept = [summary, turn.prompt]
            else:
                kept.append(turn.prompt)
                assert first.messages == kept, "nothing is dropped before a compression"
            for step in turn.steps:
                await play.record(*step)
                kept += step
                assert (await play.ask()).messages == kept
            await play.record(turn.answer)
            kept.append(turn.answer)
        timeline = await play.timeline()
        references = re.findall(r"\(id: (\S+)\)", str(kept[0]))
        artifact = await session.artifact(references[-1])

    compacted = [happened for happened in timeline if len(happened) > 2]
    assert compressions == len(compacted) >= 1
    assert [kinds(happened) for happened in compacted] == [COMPRESSED] * len(compacted)
    for happened in compacted:
        started, _, done, usage, _ = happened
        assert isinstance(started, log.CompactionStarted)
        assert isinstance(done, log.CompactionCompleted)
        assert isinstance(usage, log.UsageMeasured)
        assert (done.trigger, done.success, done.summary.by_model) == ("threshold", True, "scripted")
        assert usage.current_tokens < 0.1 * usage.token_limit
    assert max(limits) <= 0.5 * known.max_input_tokens
    assert references
    assert artifact == made_output(int(re.findall(r"module_(\d+)", artifact)[0]), int(artifact.split()[3]), 16_000)


@pytest.mark.seed("B-2", "B-6", "B-7", "B-12")
@pytest.mark.parametrize("model", MODELS)
async def test_without_a_summarizer_the_newest_fifty_messages_within_eight_thousand_tokens_are_sent(model: str) -> None:
    async with Session.open("c1", model=model, policy="inkeep") as session:
        play, turns = Play(session), [made_turn(number, chars=200, steps=2) for number in range(60)]
        for turn in turns:
            await play.take(turn)

    said = [message for turn in turns[:-1] for message in turn.messages]
    first = play.requests[-3]
    marker, *rest = first.messages
    kept = len(first.messages) - 2
    assert str(marker["content"]).startswith("[Previous conversation history truncated - ")
    assert rest == [*said[len(said) - kept :], turns[-1].prompt]
    assert kept == 49, "fifty messages with the prompt"


@pytest.mark.seed("B-5", "B-9", "B-15")
@pytest.mark.parametrize("model", MODELS)
async def test_results_of_a_long_run_are_compressed_while_it_goes_on_and_the_task_and_all_before_it_stay(
    model: str,
) -> None:
    known = find_model(model)
    assert known is not None
    writer = ScriptedModel(repeat("The modules are sound."), window=1_000_000)
    async with Session.open("c1", model=model, policy="inkeep", summarizer=writer) as session:
        play = Play(session, window=known.max_input_tokens)
        before = made_turn(0, chars=4_000)
        await play.take(before)
        task = made_turn(1, chars=24_000, steps=50)
        await play.record(task.prompt)
        context: list[object] = [*before.messages, task.prompt]
        fixed, cycles = list(context), 0
        for step in task.steps:
            await play.record(*step)
            context += step
            request = await play.ask()
            if request.messages != context:
                cycles += 1
                *kept, summary, call, result = request.messages
                assert kept == fixed
                assert str(summary["content"]).startswith(SUMMARY)
                assert f"[Compression {cycles} of this run. " in str(summary["content"])
                assert (call, result) == step
                context = [*fixed, summary, *step]
        timeline = await play.timeline()

    compacted = [happened for happened in timeline if len(happened) > 2]
    assert len(compacted) == cycles >= 1
    assert [kinds(happened) for happened in compacted] == [COMPRESSED] * cycles
    full = [usage for happened in timeline for usage in happened if isinstance(usage, log.UsageMeasured)]
    assert max(usage.current_tokens / usage.token_limit for usage in full) < 0.83
    assert max(usage.current_tokens / usage.token_limit for usage in full) > 0.78
