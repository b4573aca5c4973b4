"""Every change of context leaves a receipt: what it did, what it cost, why, and how to take it back."""

from typing import Any

import pytest

from holdfast import Session
from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record, to_record
from holdfast.core.planning.change_receipt import ChangeReceipt, change_receipts
from holdfast.counters.models import dollars_of
from holdfast.errors import MalformedInputError
from holdfast.models.base import ModelReply
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import FailingModel, ScriptedModel
from tests.support import SUMMARY, WORDS, record_turns

USAGE = log.Usage(input_tokens=1_000, output_tokens=100, cache_read_tokens=9_000)
NOW = 1_700_000_000_000


async def opened(**settings: Any) -> Session:
    session = await Session.open("r1", store=MemoryStore(), model="gpt-5", clock=lambda: NOW, **settings)
    await record_turns(session, 6)
    return session


@pytest.mark.seed("C-47")
async def test_a_compaction_keeps_what_the_provider_calls_the_call_that_wrote_its_summary() -> None:
    store = MemoryStore()
    answer = ModelReply(text=SUMMARY, model="gpt-5", usage=USAGE, request_id="chatcmpl-7")
    session = await Session.open("r1", store=store, model="gpt-5", summarizer=ScriptedModel([answer]))
    await record_turns(session, 6)

    compaction = await session.compact()

    again = await Session.open("r1", store=store)
    assert compaction.summary.request_id == "chatcmpl-7"
    assert [receipt.event for receipt in await again.receipts()] == [compaction]


async def test_the_receipt_of_a_compaction_tells_everything_and_reads_well() -> None:
    answer = ModelReply(text=SUMMARY, model="gpt-5", usage=USAGE)
    session = await opened(summarizer=ScriptedModel([answer]))
    await session.record([user_message("so?")])
    await session.prepare(16_000)
    await session.record([assistant_message("so.")])

    compaction = await session.compact()

    (receipt,) = await session.receipts()
    assert (receipt.event, receipt.at_ms, receipt.length) == (compaction, NOW, 14)
    assert (receipt.compacted, compaction.span.kept, receipt.dropped) == (range(12), (), ())
    assert (receipt.summary.by_model, receipt.summary.usage, receipt.summary.score) == (
        "gpt-5",
        USAGE,
        compaction.summary.score,
    )
    assert receipt.summary.dollars == pytest.approx((1_000 * 1.25 + 9_000 * 0.125 + 100 * 10) / 1e6)
    assert (receipt.tokens_before, receipt.effect.provenance) == (compaction.request_tokens[0], "counted")
    assert receipt.effect.prefix_lost == receipt.effect.tokens_before - 6, (
        "all that was sent; the last answer was never in it"
    )
    assert 0 < receipt.effect.rewritten < receipt.tokens_after
    assert receipt.effect.rewrite_dollars == pytest.approx(receipt.effect.rewritten * 1.25 / 1e6)
    assert str(receipt).splitlines() == [
        "compacted (manual) #0–#11 by gpt-5",
        f"tokens    {receipt.tokens_before:,} → {receipt.tokens_after:,} (counted)",
        "messages  12 replaced by 1, 0 kept whole; all stay in the log",
        f"cache     {receipt.effect.prefix_lost:,} tokens of the cached prefix lost, "
        f"{receipt.effect.rewritten:,} sent uncached",
        "facts     100% of the facts that must be kept",
        "spent     10,000 tokens in (9,000 from the cache), 100 out",
        f"cost      $0.003375 for the summary, ${receipt.effect.rewrite_dollars:.4g} for uncached input",
        f"took      {(receipt.summary.duration_ms or 0) / 1000:.1f} s",
        "undo with session.undo()",
    ]


async def test_the_reason_is_on_the_receipt_and_so_is_why_nothing_was_done() -> None:
    session = await opened()
    await session.record([user_message("so?")])
    await session.prepare(2_000)
    other = await opened(summarizer=FailingModel("refusing"))
    await other.record([user_message("so?")])
    await other.prepare(2_350)
    await other._compactor.wait()

    (made,), (failed,) = await session.receipts(), await other.receipts()

    assert " for messages (threshold 95%); compacting to about" in made.reason
    assert (made.summary.by_model, made.summary.usage, made.summary.dollars, made.summary.duration_ms) == (
        None,
        None,
        None,
        None,
    )
    assert str(failed) == f"not compacted (threshold): {failed.reason}"
    assert (failed.undo_steps, failed.is_undone, failed.compacted) == (0, False, range(0))


async def test_where_nothing_was_sent_no_cache_is_lost() -> None:
    session = await Session.open("r2", store=MemoryStore(), model="gpt-5", summarizer=ScriptedModel([SUMMARY]))
    await session.record([user_message(f"question {number}: {WORDS}") for number in range(6)])

    await session.compact()

    (receipt,) = await session.receipts()
    assert (receipt.effect.prefix_lost, receipt.effect.rewritten) == (0, 0)


async def test_a_cache_that_has_expired_is_not_lost_again() -> None:
    now = NOW
    session = await Session.open("r3", store=MemoryStore(), model="gpt-5", clock=lambda: now)
    for number in range(6):
        await session.record([user_message(f"question {number}: {WORDS}")])
        await session.prepare(16_000)
        await session.record([assistant_message(f"answer {number}: {WORDS}")])
    now += 3_600_000

    await session.compact()

    (receipt,) = await session.receipts()
    assert (receipt.effect.prefix_lost, receipt.effect.rewritten, receipt.effect.rewrite_dollars) == (0, 0, 0.0)


async def test_every_other_change_leaves_one_too() -> None:
    session = await opened()
    await session.rewind(to=8)
    await session.clear()

    rewound, cleared = await session.receipts()

    assert (rewound.dropped, rewound.tokens_after < rewound.tokens_before, rewound.effect.prefix_lost) == (
        (range(8, 12),),
        True,
        rewound.tokens_before - rewound.tokens_after - (rewound.tokens_before - rewound.tokens_after) // 4,
    )
    assert (cleared.dropped, cleared.tokens_before) == ((range(12),), rewound.tokens_after)
    assert (cleared.effect.tokens_after, cleared.tokens_after) == (0, REPLY_OVERHEAD)
    assert [(receipt.undo_steps, receipt.undo) for receipt in (rewound, cleared)] == [
        (2, "undo with session.undo(), 2 times"),
        (1, "undo with session.undo()"),
    ]
    assert str(cleared).splitlines()[0] == "context cleared"
    assert "dropped   #8–#11; all stay in the log" in str(rewound)


async def test_outputs_that_are_shown_as_previews_are_told_with_what_that_frees() -> None:
    session = await Session.open("r4", store=MemoryStore(), model="gpt-5")
    await session.record(
        [
            user_message("read"),
            tool_call_message("a"),
            tool_result_message("a", WORDS * 90),
            assistant_message("read"),
            user_message("so?"),
        ]
    )
    await session.prepare(16_000)

    (receipt,) = await session.receipts()

    assert str(receipt).splitlines()[0] == "tool outputs before #3 replaced by previews of 2,000 characters"
    assert (receipt.tokens_after < 1_000, receipt.tokens_before > 12_000) == (True, True)
    assert receipt.tokens_before - 1_000 < receipt.effect.prefix_lost < receipt.tokens_before
    assert "previews replace them from now on" in receipt.reason


def test_a_change_that_was_taken_back_says_so_and_the_steps_of_the_others_are_counted() -> None:
    compaction = log.CompactionCompleted(success=True, span=Span(stop=2), replacement=("x",))
    trimmed = log.CompactionCompleted(success=True, span=Span(stop=3, kept=(1,)))
    events = [compaction, log.Rewound(to=1), log.ChangeUndone(), trimmed, log.ContextCleared(), log.ChangeUndone()]

    found = change_receipts(events)

    assert [(receipt.event, receipt.undo_steps, receipt.is_undone) for receipt in found] == [
        (compaction, 2, False),
        (log.Rewound(to=1), 0, True),
        (trimmed, 1, False),
        (log.ContextCleared(), 0, True),
    ]
    assert (found[2].compacted, found[2].dropped) == (range(0), (range(1), range(2, 3)))
    assert str(ChangeReceipt(log.Rewound(to=1), is_undone=True)) == "rewound to before #1\nundone"
    assert str(ChangeReceipt(log.Rewound(to=1))) == "rewound to before #1", "whether it is in force is not known"


def test_what_a_change_does_is_read_again_and_a_wrong_one_is_named() -> None:
    effect = log.Effect(tokens_before=9, tokens_after=2, provenance="counted", prefix_lost=7, rewrite_dollars=0.5)
    event = log.Rewound(to=0, effect=effect)
    record = to_record(event)

    assert from_record(record) == event
    record["data"]["effect"]["rewriteDollars"] = "much"  # pyright: ignore[reportIndexIssue]
    with pytest.raises(MalformedInputError, match=r"session\.rewound\.effect\.rewriteDollars"):
        from_record(record)


@pytest.mark.parametrize(("model", "known"), [("gpt-5", True), ("openai:gpt-5-2025-08-07", True), ("nobody", False)])
def test_a_bill_is_reckoned_where_the_prices_are_known(model: str, *, known: bool) -> None:
    assert (dollars_of(USAGE, model) is not None) == known


async def test_the_receipt_of_a_request_that_was_compacted_counts_what_was_there_before_the_compaction() -> None:
    session = await Session.open("r1", store=MemoryStore(), model="gpt-5")
    await record_turns(session, 12)
    await session.record([user_message("so?")])
    whole = await session.prepare(16_000)

    request = await session.prepare(whole.tokens.total * 2 // 3)

    assert [event.KIND for event in await session.events()].count(log.CompactionCompleted.KIND) == 1
    assert request.receipt.tokens_before == whole.receipt.tokens_before == whole.tokens
    assert request.receipt.messages_before == whole.receipt.messages_before == 25
    assert request.tokens.total < whole.tokens.total
    assert [reason for reason in request.receipt.reasons if "digest replaces" in reason] == []


async def test_an_undone_compaction_is_not_made_again_as_long_as_the_messages_fit() -> None:
    session = await Session.open("r1", store=MemoryStore(), model="gpt-5")
    await record_turns(session, 12)
    await session.record([user_message("so?")])
    whole = await session.prepare(16_000)
    budget = int(whole.tokens.total * 1.05)

    compacted = await session.prepare(budget)
    await session.undo()
    undone = await session.prepare(budget)
    can_redo = session.history.can_redo
    too_small = await session.prepare(whole.tokens.total * 2 // 3)

    assert (compacted.tokens.total < whole.tokens.total, undone.messages == whole.messages, can_redo) == (True,) * 3
    assert undone.receipt.reasons == (
        "the last change was undone, so nothing is compacted as long as the messages fit",
    )
    assert too_small.tokens.total < whole.tokens.total
    assert [event.KIND for event in await session.events()].count(log.CompactionCompleted.KIND) == 2


@pytest.mark.parametrize(
    ("budget", "clipped", "elided"),
    [pytest.param(100_000, (), (), id="moved"), pytest.param(1_200, (2,), (2,), id="moved and shortened")],
)
async def test_an_output_that_a_repair_put_into_another_message_counts_as_shortened_only_if_it_is(
    budget: int, clipped: tuple[int, ...], elided: tuple[int, ...]
) -> None:
    session = await Session.open("r1", store=MemoryStore(), model="claude-sonnet-5")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
    first = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    second = {"type": "tool_result", "tool_use_id": "b", "content": [image, {"type": "text", "text": WORDS * 20}]}
    calls = [{"type": "tool_use", "id": name, "name": "look", "input": {}} for name in "ab"]
    answers = [{"role": "user", "content": [result]} for result in (first, second)]
    talk = [user_message("look"), {"role": "assistant", "content": calls}, *answers]
    await session.record(talk, format="anthropic-messages")

    receipt = (await session.prepare(budget)).receipt

    assert (receipt.clipped, receipt.elided, receipt.compacted) == (clipped, elided, ())
    assert [repair.position for repair in receipt.repairs] == [2, 3]
