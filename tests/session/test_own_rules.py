"""A user's own rule takes part like any of ours, and requests suit the providers' own types."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from anthropic.types import MessageParam
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam

from holdfast import Policy, Session, SettingsError, govern, validate
from holdfast.compaction import CompactionRule, CompactSpan, Plan, PlanInput, Summary, compact_all_step
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(CompactionRule):
    RULE: ClassVar[str] = "forget"

    max_messages: int = 6

    def propose(self, plan_input: PlanInput) -> Plan:
        step = compact_all_step(plan_input)
        if step is None or len(plan_input.entries) <= self.max_messages:
            return Plan()
        return Plan(now=(replace(step, by="marker", trigger="threshold"),), reasons=("too many messages",))

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        del plan_input, summary
        return (f"[{step.span.message_count} messages were here]",)


async def test_a_rule_of_ones_own_decides_is_on_the_receipt_and_can_be_undone_and_replayed() -> None:
    store, policy = MemoryStore(), Policy(name="own", compaction=Forget(), offload=None)
    async with Session.open("s", store=store, policy=policy) as session:
        for number in range(4):
            await session.record([user_message(f"question {number} " + "word " * 20)])
            await session.record([assistant_message("an answer " * 20)])
        await session.record([user_message("and now?")])

        request = await session.prepare(16_000)

        assert request.messages == [user_message("[8 messages were here]"), user_message("and now?")]
        [receipt] = await session.receipts()
        assert "too many messages" in str(receipt)
        assert "question 0" in str(await session.recall('"question 0"'))
        assert all(proof.is_same for proof in rebuilt_requests(await session.events()))
        assert await session.undo()
        report = await session.context_breakdown(budget=16_000)
        assert report is not None
        assert len(await session.visible_messages()) == 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CutWithinACharacter(Forget):
    RULE: ClassVar[str] = "cut"

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        del plan_input, step, summary
        return ("they laughed \ud83d",)


async def test_half_a_character_in_the_text_of_a_rule_is_replaced() -> None:
    policy = Policy(name="own", compaction=CutWithinACharacter(), offload=None)
    async with Session.open("s", policy=policy) as session:
        for number in range(4):
            await session.record(
                [user_message(f"question {number} " + "word " * 20), assistant_message("an answer " * 20)]
            )
        await session.record([user_message("and now?")])

        request = await session.prepare(16_000)

        assert request.messages == [user_message("they laughed \ufffd"), user_message("and now?")]
        assert all(proof.is_same for proof in rebuilt_requests(await session.events()))


def test_a_rule_must_be_a_dataclass_because_its_settings_identify_the_policy() -> None:
    class Plain(CompactionRule):
        RULE: ClassVar[str] = "plain"

    with pytest.raises(SettingsError, match=r"policy.compaction: Plain must be a dataclass"):
        Policy(compaction=Plain())
    with pytest.raises(SettingsError, match=r"policy.compaction: must be"):
        Policy(compaction="forget")  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Careless(Forget):
    RULE: ClassVar[str] = "careless"

    has_plan: bool = True

    def propose(self, plan_input: PlanInput) -> Plan:
        return Forget.propose(self, plan_input) if self.has_plan else None  # pyright: ignore[reportReturnType]

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        del plan_input, step, summary
        return "no comma"  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (Careless(has_plan=False), "policy: propose of Careless must return a Plan, not None"),
        (
            Careless(),
            "policy.compaction: replacement_texts of Careless must return a tuple of texts, not 'no comma'",
        ),
    ],
)
async def test_a_rule_that_returns_something_else_is_named_with_what_it_must_return(
    rule: CompactionRule, problem: str
) -> None:
    async with Session.open("s", policy=Policy(name="own", compaction=rule, offload=None)) as session:
        for _ in range(4):
            await session.record([user_message("a question"), assistant_message("an answer")])
        await session.record([user_message("and now?")])

        with pytest.raises(SettingsError) as refused:
            await session.prepare(16_000)

    assert str(refused.value) == problem


async def test_the_format_of_a_session_is_named_once() -> None:
    async with Session.open("s") as session:
        await session.record([{"role": "user", "content": [{"type": "text", "text": "one"}]}], format="anthropic")
        await session.record([{"role": "assistant", "content": "two"}])
        await session.add_memory_note("a note")
        await session.attach("file", "text")
        await session.sync([*await session.messages(), {"role": "user", "content": "three"}])
        forked = await session.fork("t")
        await forked.record([{"role": "user", "content": "four"}])

        for one in (session, forked):
            assert one.history.format == "anthropic-messages"
        assert validate((await session.prepare(16_000)).messages, "anthropic-messages") == []


def test_the_providers_own_types_accept_the_messages_of_a_request() -> None:
    request = govern([user_message("hello")], budget=16_000)

    chat: Iterable[ChatCompletionMessageParam] = request.messages
    messages: Iterable[MessageParam] = request.messages
    items: list[ResponseInputItemParam] = request.messages

    assert chat is messages is items
