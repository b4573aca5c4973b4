"""After a provider's refusal the next request is smaller, another one, and nothing is lost."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast import Budget, EmptyConversationError, Session, validate
from holdfast.core.history import events as log
from holdfast.core.history.context import CONTEXT_CHANGES
from holdfast.core.planning.rules.cowagent import EMERGENCY_REASON
from holdfast.errors import HoldfastError, ModelBusyError, ModelOverflowError, ModelRefusedError
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel
from holdfast.wire.request import Request

TOLD = "This model's maximum context length is 4096 tokens. However, your messages resulted in 9000 tokens."
OVERFLOW = {"error": {"code": "context_length_exceeded", "message": TOLD}}
SILENT = {"error": {"message": "prompt is too long", "type": "invalid_request_error"}}


async def talked(store: Store, policy: str = "default", turns: int = 20, **more: Any) -> Session:
    session: Session = await Session.open("c1", store=store, policy=policy, model="gpt-5", **more)
    for number in range(turns):
        work = [tool_call_message(f"c{number}"), tool_result_message(f"c{number}", "output " * 300)]
        await session.record(
            [user_message(f"question {number} " + "word " * 60), *work, assistant_message("word " * 60)]
        )
    await session.record([user_message("the newest question")])
    return session


async def retried(session: Session, refusal: Any) -> Request | None:
    """Return the next request after a refusal, or None at the end of the ladder."""
    try:
        return await session.retry(refusal, status=400)
    except HoldfastError:
        return None


@pytest.mark.seed("C-36")
@pytest.mark.seed("C-37")
@pytest.mark.seed("C-38")
@pytest.mark.parametrize("policy", ["default", "copilot", "cowagent", "co-cli", "inkeep"])
@pytest.mark.parametrize("refusal", [OVERFLOW, SILENT])
async def test_each_refusal_gets_a_smaller_request_until_the_end_of_the_ladder(policy: str, refusal: Any) -> None:
    session = await talked(MemoryStore(), policy)
    request = await session.prepare(100_000)
    sizes, hashes = [request.tokens.total], {request.hash}

    while (smaller := await retried(session, refusal)) is not None:
        assert validate(smaller.messages, "openai") == []
        assert "the newest question" in str(smaller.messages[-1]["content"])
        assert smaller.hash not in hashes, "never the same request twice"
        sizes.append(smaller.tokens.total)
        hashes.add(smaller.hash)

    assert sizes == sorted(sizes, reverse=True)
    assert 3 <= len(sizes) <= 7
    assert sizes[-1] < sizes[0] / 4
    assert (await session.messages_at(0, 1))[0] == user_message("question 0 " + "word " * 60)


@pytest.mark.seed("C-20", "C-36", "C-38", "C-54")
@pytest.mark.parametrize(("refusal", "status"), [(SILENT, 400), ("", 413)], ids=["its words", "413"])
async def test_copilot_compacts_after_a_refusal_and_only_then_prunes(refusal: Any, status: int) -> None:
    model = ScriptedModel(["They measured."])
    session = await talked(MemoryStore(), "copilot", compaction=CompactionOptions(automatic=model))
    whole = await session.prepare(100_000)

    compacted = await session.retry(refusal, status=status)
    pruned = await session.retry(refusal, status=status)

    done = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]
    assert [(event.trigger, event.summary.by_model, event.success) for event in done] == [
        ("context_limit_retry", "scripted", True)
    ]
    assert "<summary>\nThey measured.\n</summary>" in str(compacted.messages[0]["content"])
    assert whole.tokens.total > compacted.tokens.total > pruned.tokens.total
    assert len(model.prompts) == 1


def shape(messages: Sequence[Mapping[str, object]]) -> list[tuple[object, int]]:
    """Return the role of each message and the length of its text."""
    return [(message["role"], len(str(message["content"] or ""))) for message in messages]


@pytest.mark.seed("D-15")
@pytest.mark.parametrize("model", ["gpt-5", "claude-sonnet-4-5", "some-model"])
@pytest.mark.parametrize("turns", [3, 7])
async def test_cowagent_first_cuts_to_ten_thousand_characters_in_five_turns_and_the_cut_stays(
    model: str, turns: int
) -> None:
    long, short = "x" * 12_000, "y" * 9_000
    session: Session = await Session.open("c1", policy="cowagent", model=model)
    for number in range(turns):
        work = [tool_call_message(f"c{number}"), tool_result_message(f"c{number}", long if number % 2 else short)]
        await session.record([user_message(long), *work, assistant_message("done")])
    await session.record([user_message(long), tool_call_message("now"), tool_result_message("now", long)])
    whole = await session.prepare(40_000)

    smaller = await session.retry(SILENT, status=400)
    await session.record([assistant_message("at last"), user_message("and on")])
    later = await session.prepare(40_000)

    clipped, old = [], range(max(0, turns - 4), turns)
    for number in old:
        size = 10_000 if number % 2 else 9_000
        clipped += [("user", 10_000), ("assistant", 0), ("tool", size), ("assistant", 4)]
    assert len(whole.messages) == 4 * turns + 3, "everything fits before the refusal"
    assert about(shape(smaller.messages)) == about([*clipped, ("user", 12_000), ("assistant", 0), ("tool", 10_000)])
    assert later.messages[: len(smaller.messages)] == smaller.messages
    assert shape(later.messages)[-2:] == [("assistant", 7), ("user", 6)]
    kinds = [type(event) for event in await session.events()]
    assert log.TurnsReducedToText not in kinds, "no tool chain was dropped"
    assert kinds.count(log.CompactionCompleted) == (1 if turns > 4 else 0)
    assert (await session.messages_at(0))[0] == user_message(long)
    receipts = [str(receipt) for receipt in await session.receipts()]
    where = f"tool outputs before #{4 * turns + 3} and prompts before #{4 * turns} shortened to 10,000 characters"
    assert receipts[-1].startswith(where)


def about(shapes: Sequence[tuple[object, int]]) -> list[tuple[object, int]]:
    """Return shapes in hundreds of characters: the notice of a cut takes fewer than a hundred."""
    return [(role, round(size, -2)) for role, size in shapes]


@pytest.mark.seed("C-37")
@pytest.mark.parametrize(("refusal", "tenths"), [(OVERFLOW, [9, 7]), (SILENT, [7, 4])])
async def test_copilot_leaves_more_room_only_after_a_refusal_that_names_no_lower_limit(
    refusal: Any, tenths: list[int]
) -> None:
    session = await Session.open("c1", store=MemoryStore(), policy="copilot", model="gpt-5")
    talk = [made("word " * 30) for _ in range(120) for made in (user_message, assistant_message)]
    await session.record([*talk, user_message("the newest question")])
    await session.prepare(100_000)

    for _ in tenths:
        await session.retry(refusal, status=400)

    cut = [event for event in await session.events() if isinstance(event, log.RequestTruncated)]
    assert [int(10 * event.post_truncation_tokens / event.token_limit) for event in cut] == tenths


@pytest.mark.seed("C-37")
async def test_two_refusals_without_a_number_take_off_copilots_buffer_once_and_never_more_than_its_maximum() -> None:
    session = await Session.open("c1", store=MemoryStore(), policy="copilot", model="gpt-5")
    talk = [made("word " * 100) for _ in range(40) for made in (user_message, assistant_message)]
    await session.record([*talk, user_message("the newest question")])
    whole = await session.prepare(10_000)

    retries = [await session.retry(SILENT, status=400) for _ in range(2)]

    cut = [event for event in await session.events() if isinstance(event, log.RequestTruncated)]
    assert [event.token_limit for event in cut] == [whole.tokens.total] * 2
    assert [len(request.messages) for request in (whole, *retries)] == [81, 57, 38]


@pytest.mark.seed("D-15")
async def test_an_emergency_clips_a_result_of_several_texts_as_a_whole_and_later_requests_keep_it() -> None:
    session = await Session.open("c1", store=MemoryStore(), policy="cowagent", model="gpt-5")
    pages = [{"type": "text", "text": letter * 6_000} for letter in "abc"]
    talk = [
        user_message("go"),
        tool_call_message("c"),
        {**tool_result_message("c"), "content": pages},
        assistant_message("done"),
    ]
    await session.record([*talk, user_message("and now?")])
    await session.prepare(100_000)

    smaller = await session.retry(SILENT, status=400)
    more = [assistant_message("this"), user_message("good")]
    await session.record(more)
    later = await session.prepare(100_000)

    notice = "\n[… 8,048 characters cut …]\n"
    texts = "a" * 6_000, "b" * 634 + notice, "c" * 3_318
    clipped = {**tool_result_message("c"), "content": [{"type": "text", "text": text} for text in texts]}
    assert smaller.messages == [*talk[:2], clipped, talk[3], user_message("and now?")]
    assert later.messages == [*smaller.messages, *more]
    assert [proof.is_same for proof in rebuilt_requests(await session.events())] == [True] * 3


@pytest.mark.seed("D-15")
async def test_an_emergency_clips_a_prompt_of_several_texts_as_a_whole_and_later_requests_keep_it() -> None:
    session = await Session.open("c1", store=MemoryStore(), policy="cowagent", model="gpt-5")
    pages = [{"type": "text", "text": letter * 6_000} for letter in "abc"]
    await session.record([{"role": "user", "content": pages}, assistant_message("ok"), user_message("now")])
    await session.prepare(100_000)

    retry = await session.retry(SILENT, status=400)
    await session.record([assistant_message("done"), user_message("and now?")])
    later = await session.prepare(100_000)

    notice = "\n[… 8,048 characters cut …]\n"
    cut = [
        {"type": "text", "text": "a" * 6_000},
        {"type": "text", "text": "b" * 634 + notice},
        {"type": "text", "text": "c" * 3_318},
    ]
    assert [request.messages[0]["content"] for request in (retry, later)] == [cut, cut]
    assert await session.messages_at(0, 1) == [{"role": "user", "content": pages}]


@pytest.mark.seed("D-15")
async def test_an_emergency_that_clips_nothing_is_undone_by_one_undo() -> None:
    async with Session.open("c1", store=MemoryStore(), policy="cowagent", model="gpt-5") as session:
        talk = [made(f"{made.__name__} {turn}") for turn in range(6) for made in (user_message, assistant_message)]
        await session.record([*talk, user_message("now")])
        await session.prepare(100_000)

        smaller = await session.retry(SILENT, status=400)
        changes = [event for event in await session.events() if isinstance(event, CONTEXT_CHANGES)]
        undone = await session.undo()
        whole = await session.prepare(100_000)

    assert smaller.messages == [*talk[4:], user_message("now")]
    assert [(event.KIND, getattr(event, "reason", "")) for event in changes] == [
        ("session.compaction_complete", EMERGENCY_REASON)
    ]
    assert (undone, whole.messages) == (True, [*talk, user_message("now")])


@pytest.mark.seed("D-15")
async def test_the_last_rung_empties_the_context_but_never_the_log() -> None:
    session = await talked(MemoryStore(), "cowagent")
    await session.prepare(100_000)

    trimmed = await session.retry(SILENT, status=400)
    cleared = await session.retry(SILENT, status=400)

    assert max(len(str(message["content"])) for message in trimmed.messages) < 10_200
    assert cleared.messages == [user_message("the newest question")]
    assert len(session) == 81
    (compaction,) = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)][-1:]
    assert (compaction.trigger, compaction.replacement) == ("context_limit_retry", ())


async def test_what_a_provider_says_of_its_limit_is_known_to_the_next_session() -> None:
    store = MemoryStore()
    session = await talked(store)
    await session.prepare()
    await session.retry(OVERFLOW, status=400)

    other = await Session.open("c2", store=store, model="gpt-5")
    await other.record([user_message(f"word {number} " * 40) for number in range(60)])
    request = await other.prepare()

    assert request.receipt.budget.source == "provider"
    assert request.tokens.total <= request.receipt.budget.tokens <= 4096


async def test_a_refusal_that_is_no_overflow_is_raised_as_what_it_is() -> None:
    session = await talked(MemoryStore())
    await session.prepare(100_000)

    with pytest.raises(ModelBusyError):
        await session.retry({"error": {"message": "Rate limit reached, 4000 tokens per min"}}, status=429)
    with pytest.raises(ModelRefusedError):
        await session.retry({"error": {"message": "internal error"}}, status=500)

    class TooLongError(Exception):
        status_code = 413

    smaller = await session.retry(TooLongError("request entity too large"))
    assert smaller.tokens.total < 60_000


async def test_an_answer_brings_the_ladder_back_to_its_foot() -> None:
    session = await talked(MemoryStore())
    await session.prepare(100_000)
    await session.retry(SILENT, status=400)
    await session.record([assistant_message("at last"), user_message("and on")])
    await session.prepare(100_000)

    rungs = [await retried(session, SILENT) for _ in range(9)]

    assert rungs[0] is not None
    assert rungs[-1] is None
    with pytest.raises(ModelOverflowError):
        await session.retry(SILENT, status=400)


async def test_a_server_that_cuts_prompts_without_a_word_gets_what_it_can_read_and_not_ever_more() -> None:
    session, window = await Session.open("c1", model="gpt-5"), 2_000
    sent: list[int] = []
    for number in range(40):
        await session.record([user_message(f"question {number} " + "word " * 150)])
        request = await session.prepare()
        sent.append(request.tokens.counted)
        bill = {"input_tokens": min(request.tokens.counted, window)}
        await session.record([assistant_message("word " * 150)], usage=bill)

    first_cut = next(number for number, tokens in enumerate(sent) if tokens > window)
    assert [tokens for tokens in sent[first_cut + 4 :] if tokens > window] == []


async def test_a_bill_that_is_far_lower_again_and_again_is_believed_where_it_grows_with_what_is_sent() -> None:
    session = await Session.open("c1", model="some-model")
    for number in range(10):
        await session.record([user_message(f"question {number} " + "word " * 400)])
        request = await session.prepare(100_000)
        share = 1 if number == 0 else 0.7
        await session.record(
            [assistant_message("word " * 400)], usage={"input_tokens": int(request.tokens.counted * share)}
        )

    await session.record([user_message("and now?")])
    request = await session.prepare(100_000)
    assert request.tokens.total < request.tokens.counted * 0.8


async def limited(session: Session, limit: int) -> None:
    """Send a request, and have it refused because of a limit."""
    await session.record([user_message("word " * 100)])
    await session.prepare()
    await session.retry(f"prompt is too long: {limit + 1} tokens > {limit} maximum", status=400)


async def next_budget(store: Store, budget: int | Budget | None = None, **options: Any) -> Budget:
    """Return the budget of the next session's request."""
    async with Session.open("next", store=store, model="gpt-5", **options) as session:
        await session.record([user_message(f"word {number} " * 40) for number in range(60)])
        request = await session.prepare(budget)
    await store.delete("next")
    return request.receipt.budget


@pytest.mark.parametrize("budget", [40_000, Budget(40_000)])
async def test_a_learned_limit_does_not_lower_a_budget_that_the_user_names(budget: int | Budget) -> None:
    store = MemoryStore()
    await limited(await talked(store), 4_096)

    assert await next_budget(store, budget) == Budget(40_000, source="user")
    assert await next_budget(store) == Budget(3_072, source="provider")
    assert await next_budget(store, Budget(40_000, source="table")) == Budget(3_072, source="provider")


async def test_a_request_above_a_learned_limit_says_so_on_its_receipt() -> None:
    store = MemoryStore()
    await limited(await talked(store), 4_096)

    session = await Session.open("next", store=store, model="gpt-5")
    await session.record([user_message("word " * 100)])

    told = "the provider has reported a limit of 4,096 tokens, below the budget"
    assert (await session.prepare(40_000)).receipt.reasons == (told,)
    assert (await session.prepare(4_000)).receipt.reasons == ()


async def test_a_number_that_cannot_be_a_window_is_not_learned() -> None:
    store = MemoryStore()
    before = await next_budget(store)

    await limited(await talked(store), 600)

    assert await next_budget(store) == before


async def test_a_learned_limit_belongs_to_one_endpoint() -> None:
    store = MemoryStore()
    before = await next_budget(store)

    await limited(await talked(store, endpoint="https://here.example/v1"), 4_096)

    assert await next_budget(store) == before
    assert await next_budget(store, endpoint="https://there.example/v1") == before
    assert await next_budget(store, endpoint="https://here.example/v1/") == Budget(3_072, source="provider")


@pytest.mark.parametrize("hours", [25, -25])
async def test_a_learned_limit_expires_after_a_day(hours: int) -> None:
    store, start, hour = MemoryStore(), 1_700_000_000_000, 3_600_000
    before = await next_budget(store)

    await limited(await talked(store, clock=lambda: start), 4_096)

    assert await next_budget(store, clock=lambda: start + 23 * hour) == Budget(3_072, source="provider")
    assert await next_budget(store, clock=lambda: start + hours * hour) == before


async def test_a_limit_that_was_stored_without_its_time_has_expired() -> None:
    store = MemoryStore()
    before = await next_budget(store)

    await store.put_value("limit:gpt-5", {"tokens": 4_096})

    assert await next_budget(store) == before


async def test_a_learned_limit_is_forgotten_when_a_larger_request_is_accepted() -> None:
    store = MemoryStore()
    before = await next_budget(store)
    session = await talked(store)
    await limited(session, 4_096)
    await session.record([user_message("word " * 6_000)])

    request = await session.prepare(40_000)
    await session.record([assistant_message("so")], usage={"prompt_tokens": request.tokens.counted})

    assert request.tokens.counted > 4_096
    assert await next_budget(store) == before


async def test_a_larger_request_of_another_open_session_refutes_a_limit_for_all() -> None:
    store, minutes = MemoryStore(), [0]

    def clock() -> int:
        return 1_700_000_000_000 + minutes[0] * 60_000

    before = await next_budget(store, clock=clock)
    large = await Session.open("large", store=store, model="gpt-5", clock=clock)
    small = await talked(store, clock=clock)
    await large.record([user_message("word " * 6_000)])
    request = await large.prepare(40_000)
    await large.record([assistant_message("so")], usage={"prompt_tokens": request.tokens.counted})
    await limited(small, 4_096)
    assert await next_budget(store, clock=clock) == Budget(3_072, source="provider")

    minutes[0] += 2
    await large.record([user_message("and?")])
    request = await large.prepare()
    await large.record([assistant_message("so")], usage={"prompt_tokens": request.tokens.counted})

    assert request.receipt.budget == before
    assert await next_budget(store, clock=clock) == before
    minutes[0] += 2
    assert (await small.prepare()).receipt.budget == before


async def test_a_limit_below_what_was_accepted_is_not_learned() -> None:
    store = MemoryStore()
    before = await next_budget(store)
    session = await talked(store)
    request = await session.prepare(40_000)
    await session.record([assistant_message("so")], usage={"prompt_tokens": request.tokens.counted})

    await limited(session, 4_096)

    assert await next_budget(store) == before


async def test_room_for_the_answer_in_a_refused_size_is_no_sign_of_another_vocabulary() -> None:
    store = MemoryStore()
    session = await Session.open("c1", store=store, model="some-model")
    await session.record([user_message("word " * 100) for _ in range(90)])
    request = await session.prepare(40_000)
    size = request.tokens.counted
    text = (
        f"This model's maximum context length is 16384 tokens. However, you requested {size + 10_000} tokens "
        f"({size} in the messages, 10000 in the completion)."
    )

    smaller = await session.retry(text, status=400)

    assert smaller.tokens.total == smaller.tokens.counted


async def test_an_exception_that_is_no_overflow_is_raised_itself() -> None:
    session = await talked(MemoryStore())
    await session.prepare(100_000)
    mistake = ValueError("a mistake in the caller's code")

    with pytest.raises(ValueError, match="a mistake") as raised:
        await session.retry(mistake)

    assert raised.value is mistake


async def test_an_exception_that_says_overflow_only_in_its_text_gets_a_smaller_request() -> None:
    session = await talked(MemoryStore())
    request = await session.prepare(100_000)

    smaller = await session.retry(RuntimeError("prompt is too long: 208310 tokens > 200000 maximum"))

    assert smaller.tokens.total < request.tokens.total


async def test_a_refusal_before_any_request_is_raised() -> None:
    session: Session = await Session.open("c1", model="gpt-5")

    with pytest.raises(ModelOverflowError):
        await session.retry(OVERFLOW, status=400)


@pytest.mark.parametrize("policy", ["default", "copilot", "cowagent", "co-cli", "inkeep"])
@pytest.mark.parametrize("has_summarizer", [False, True])
async def test_a_refusal_after_the_context_was_cleared_says_that_nothing_is_left(
    policy: str, *, has_summarizer: bool
) -> None:
    session = await talked(MemoryStore(), policy, summarizer=ScriptedModel([]) if has_summarizer else None)
    await session.prepare(100_000)
    await session.clear()

    with pytest.raises(EmptyConversationError):
        await session.retry(OVERFLOW, status=400)


async def test_an_interruption_that_is_passed_as_a_refusal_is_raised_itself() -> None:
    session = await talked(MemoryStore(), turns=2)
    await session.prepare(100_000)
    stopped = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt) as raised:
        await session.retry(stopped)

    assert raised.value is stopped


async def test_the_same_request_prepared_again_does_not_begin_the_ladder_anew() -> None:
    session = await talked(MemoryStore())
    await session.prepare(100_000)
    count = 0
    while await retried(session, SILENT) is not None:
        count += 1

    await session.prepare(100_000)

    assert count >= 2
    assert await retried(session, SILENT) is None
