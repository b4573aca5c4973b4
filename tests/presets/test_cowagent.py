"""CowAgent's document, played: sixty turns with tools on a 128k model, under its own 50,000 tokens."""

from dataclasses import dataclass, field

import pytest

from holdfast import Session, read_policy
from holdfast.core.conversation.shorten import clip_text
from holdfast.core.history import events as log
from holdfast.core.history.context import CONTEXT_CHANGES
from holdfast.errors import NothingToCompactError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage, assistant_message, user_message
from holdfast.testing.models import ScriptedModel
from tests.presets.play import Play, kinds, made_turn

MODEL = "gpt-4o"
MAX_TURNS, MAX_TOKENS, LONG_RESULT, FEW = 20, 50_000, 20_000, 5


@dataclass
class CowAgent:
    """The seed's context: whole turns, trimmed by half, with a summary in the first prompt from the next turn on."""

    turns: list[list[JsonMessage]] = field(default_factory=list[list[JsonMessage]])
    opening: str = ""
    """What stands before the first prompt."""
    trims: list[int] = field(default_factory=list[int])
    """How many turns each trim removed."""
    unsummarized: int = 0
    """The turns of the last trims that the summary in the background covers."""
    summaries: int = 0

    def begin_turn(self, prompt: JsonMessage) -> None:
        if self.unsummarized:
            self.summaries += 1
            head = f"[System: Previous conversation summary — {self.unsummarized} turns were compacted]"
            text = f"Summary {self.summaries}."
            self.opening = f"{head}\n\n{text}\n\nThe recent conversation continues below.\n\n---\n\n"
            self.unsummarized = 0
        self.turns.append([prompt])

    def trim_turns(self) -> bool:
        if len(self.turns) <= MAX_TURNS:
            return False
        self.trim_half()
        return True

    def trim_half(self) -> None:
        half = (len(self.turns) - 1) // 2
        self.turns = self.turns[half:]
        self.trims.append(half)
        self.unsummarized = sum(self.trims)
        self.opening = ""

    def request(self) -> list[JsonMessage]:
        old = [self._clipped(message) for turn in self.turns[:-1] for message in turn]
        first, *rest = [*old, *self.turns[-1]]
        return [{**first, "content": self.opening + str(first["content"])}, *rest]

    @staticmethod
    def _clipped(message: JsonMessage) -> JsonMessage:
        text = str(message["content"])
        return {**message, "content": clip_text(text, LONG_RESULT)} if message["role"] == "tool" else message


@pytest.mark.seed("D-1", "D-3", "D-5", "D-8", "D-9", "D-11", "D-12")
async def test_sixty_turns_are_trimmed_by_half_and_the_summary_comes_with_the_next_turn() -> None:
    model = ScriptedModel([f"Summary {number + 1}." for number in range(9)], window=200_000)
    async with Session.open("c1", model=MODEL, policy="cowagent", summarizer=model) as session:
        play, seed = Play(session), CowAgent()
        trims: list[str] = []
        for number in range(60):
            turn = made_turn(number, chars=21_000 if number % 30 == 7 else 3_000, steps=1 + number % 2)
            await play.record(turn.prompt)
            seed.begin_turn(turn.prompt)
            if seed.trim_turns():
                trims.append(f"turn {number}")
            assert (await play.ask()).messages == seed.request(), f"turn {number}"
            for step in turn.steps:
                await play.record(*step)
                seed.turns[-1] += step
                assert (await play.ask()).messages == seed.request(), f"turn {number}"
            await play.record(turn.answer)
            seed.turns[-1].append(turn.answer)
        timeline = await play.timeline()

    assert (trims, seed.trims) == (["turn 20", "turn 30", "turn 40", "turn 50"], [10, 10, 10, 10])
    told = {number: kinds(happened)[:-2] for number, happened in enumerate(timeline) if len(happened) > 2}
    done, begun, written = "session.compaction_complete", "session.compaction_start", "session.summary_written"
    # The trim at once, its summary in the background of the same turn, and its place in the first prompt a turn later.
    assert list(told.values()) == [[done, begun], [written], [done]] * 4
    starts = list(told)[::3]
    assert list(told) == [number + later for number in starts for later in range(3)]


@pytest.mark.seed("D-4", "D-14")
async def test_tokens_over_fifty_thousand_in_five_turns_or_more_cost_the_first_half_again() -> None:
    model = ScriptedModel([f"Summary {number + 1}." for number in range(20)], window=200_000)
    async with Session.open("c1", model=MODEL, policy="cowagent", summarizer=model) as session:
        play = Play(session)
        for number in range(60):
            await play.take(made_turn(number, chars=19_000, steps=1))
        done = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]

    sizes = [request.tokens.counted for request in play.requests]
    assert max(sizes) <= MAX_TOKENS < 128_000
    before, after = zip(
        *((event.pre_compaction_tokens, event.post_compaction_tokens) for event in done if not event.replacement),
        strict=True,
    )
    assert len(before) > 5
    assert min(before) > MAX_TOKENS - 1_000, "nothing is trimmed before the limit"
    assert all(less < 0.65 * more for more, less in zip(before, after, strict=True)), "half of the turns goes at once"


@pytest.mark.seed("D-4", "D-13")
async def test_tokens_over_fifty_thousand_in_fewer_than_five_turns_leave_only_words_of_the_complete_turns() -> None:
    async with Session.open("c1", model=MODEL, policy="cowagent", summarizer=ScriptedModel([])) as session:
        play = Play(session)
        turns = [made_turn(number, chars=19_000, steps=3) for number in range(3)]
        sent = [await play.take(turn) for turn in turns]
        timeline = await play.timeline()

    words = [message for turn in turns[:2] for message in (turn.prompt, turn.answer)]
    reduced = next(number for number, happened in enumerate(timeline) if "context.reduced_to_text" in kinds(happened))
    flat = [request for requests in sent for request in requests]
    assert [kinds(happened) for happened in timeline[:reduced]] == [
        ["session.usage_info", "request.prepared"]
    ] * reduced
    assert flat[reduced - 1].tokens.counted <= MAX_TOKENS
    assert flat[-1].messages == [*words, *turns[2].messages[:-1]]
    assert session.history.context().state.compactions == (), "fewer than five turns are never trimmed"


@pytest.mark.seed("D-13")
async def test_few_turns_that_are_text_already_are_not_reduced_again_and_undo_has_nothing_to_take_back() -> None:
    async with Session.open("c1", model=MODEL, policy="cowagent") as session:
        for number in range(3):
            await session.record([user_message(f"Prompt {number}: " + "word " * 16_000)])
            await session.prepare(100_000)
            await session.record([assistant_message(f"Answer {number}.")])
        await session.record([user_message("Prompt 3: " + "word " * 16_000)])
        request = await session.prepare(100_000)
        changes = [event for event in await session.events() if isinstance(event, CONTEXT_CHANGES)]
        undone = await session.undo()

    assert (changes, undone) == ([], False)
    assert not any("reduced to its text" in reason for reason in request.receipt.reasons)
    assert request.messages[-1]["content"].startswith("Prompt 3: ")


@pytest.mark.seed("D-16", "D-17", "D-18", "D-25")
@pytest.mark.parametrize(("max_turns", "restored"), [(20, 3), (30, 5), (40, 6), (6, 3), (35, 5)])
async def test_after_a_restart_the_words_of_a_sixth_of_the_turns_and_at_least_three_are_sent(
    max_turns: int, restored: int
) -> None:
    store = MemoryStore()
    policy = read_policy(f'base = "cowagent"\ncompaction.max_turns = {max_turns}')
    turns = [made_turn(number, chars=500, steps=2) for number in range(8)]
    async with Session.open("c1", store=store, model=MODEL, policy=policy) as session:
        play = Play(session)
        for turn in turns:
            await play.take(turn)

    async with Session.open("c1", store=store, model=MODEL, policy=policy) as session:
        await session.record([user_message("and now?")])
        request = await session.prepare()
        kept = await session.messages_at(0, len(session) - 1)

    words = [message for turn in turns[-restored:] for message in (turn.prompt, turn.answer)]
    assert request.messages == [*words, user_message("and now?")]
    assert kept == [message for turn in turns for message in turn.messages], "nothing that is stored goes"


@pytest.mark.seed("D-5", "D-9")
async def test_what_pins_keep_of_trimmed_turns_is_no_turn_so_later_turns_are_trimmed_and_summarized() -> None:
    model = ScriptedModel([f"Summary {number + 1}." for number in range(9)], window=200_000)
    prompts = [user_message(f"Prompt {number}.") for number in range(43)]
    async with Session.open("c1", model=MODEL, policy="cowagent", summarizer=model) as session:
        play, trims = Play(session), dict[int, list[str]]()
        for number, prompt in enumerate(prompts):
            await play.record(prompt)
            if number < 21:
                await session.pin(2 * number)
            trims[number] = [text for text in (await play.ask()).receipt.reasons if "turns were trimmed" in text]
            await play.record(assistant_message(f"Answer {number}."))
        done = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]

    half = "21 turns are more than 20: the oldest 10 turns were trimmed"
    assert trims == {number: [half] if number in {20, 30, 40} else [] for number in range(43)}
    assert [(event.success, event.span.stop, event.span.is_merged) for event in done if event.span] == [
        (True, stop, is_merged) for stop in (20, 40, 60) for is_merged in (False, True)
    ]
    head = "[System: Previous conversation summary — 30 turns were compacted]"
    opening = f"{head}\n\nSummary 3.\n\nThe recent conversation continues below.\n\n---\n\n"
    assert [message["content"] for message in play.requests[-1].messages] == [
        *(prompt["content"] for prompt in prompts[:21]),
        f"{opening}Prompt 30.",
        "Answer 30.",
        *(text for number in range(31, 42) for text in (f"Prompt {number}.", f"Answer {number}.")),
        "Prompt 42.",
    ]


async def test_a_compaction_by_hand_that_only_pinned_turns_could_give_is_refused() -> None:
    model = ScriptedModel([f"Summary {number + 1}." for number in range(9)], window=200_000)
    async with Session.open("c1", model=MODEL, policy="cowagent", summarizer=model) as session:
        for number in range(9):
            await session.record([user_message(f"Prompt {number}."), assistant_message(f"Answer {number}.")])
            if number < 6:
                await session.pin(2 * number)
        await session.prepare()
        done = await session.compact()

        with pytest.raises(NothingToCompactError):
            await session.compact()

    assert (done.success, done.span and done.span.count) == (True, 7)


@pytest.mark.seed("D-15")
async def test_an_emergency_counts_no_turn_of_which_only_pins_are_left() -> None:
    policy = read_policy('base = "cowagent"\ncompaction.max_turns = 4')
    async with Session.open("c1", model=MODEL, policy=policy) as session:
        for number in range(9):
            await session.record([user_message(f"Prompt {number}.")])
            if number < 7:
                await session.pin(2 * number)
            await session.prepare()
            await session.record([assistant_message("Good.")])
        await session.record([user_message("x" * 12_000), assistant_message("Good."), user_message("now?")])
        await session.prepare()
        before = len([event for event in await session.events() if isinstance(event, log.CompactionCompleted)])
        request = await session.retry("prompt is too long", status=400)
        done = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]

    texts = [message["content"] for message in request.messages]
    assert done[before:] == []
    assert texts == [
        *(f"Prompt {number}." for number in range(7)),
        *("Prompt 8.", "Good."),
        clip_text("x" * 12_000, 10_000),
        *("Good.", "now?"),
    ]
