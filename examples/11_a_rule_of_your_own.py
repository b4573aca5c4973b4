"""Decide yourself when to compact and what remains, and add a stage to every request.

The rule compacts everything before the newest exchange after a number of prompts, and leaves a line for each of the
user's prompts. The stage tells the model the date right before it answers; the log does not hold it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from holdfast import Policy, Session
from holdfast.compaction import (
    CompactionRule,
    CompactSpan,
    Plan,
    PlanInput,
    RequestProcessors,
    Summary,
    compact_all_step,
    without_open_exchange,
)

PROMPTS = ["Fix the parser.", "Add a test for tabs.", "Now document it.", "And the changelog?", "Who reviews it?"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTitles(CompactionRule):
    """Compacts after a number of prompts."""

    RULE: ClassVar[str] = "keep-titles"

    max_prompts: int = 3

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the compaction of all that is answered, once there are too many prompts in view."""
        prompts = [entry for entry in plan_input.entries if entry.message.is_prompt]
        step = compact_all_step(plan_input)
        older = without_open_exchange(step, plan_input) if step and len(prompts) > self.max_prompts else None
        if older is None:
            return Plan()
        by_rule = replace(older, by="digest", trigger="threshold")
        return Plan(now=(by_rule,), reasons=(f"{len(prompts)} prompts are more than {self.max_prompts}",))

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return one line for each prompt of the span."""
        del summary
        entries = plan_input.projection.context.entries_between(step.span.start, step.span.stop)
        asked = [f"- {entry.message.text[:60]}" for entry in entries if entry.message.is_prompt]
        return ("\n".join(["[The user asked before:]", *asked]),)


def add_date(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return the request with a note for the model, before the newest message."""
    return [*messages[:-1], {"role": "system", "content": "Today is Monday."}, messages[-1]]


async def main() -> None:
    """Talk until the rule acts, and show what is sent."""
    policy = Policy(name="titles", compaction=KeepTitles(max_prompts=3), offload=None, emergency=None)
    stages = RequestProcessors(immediate_prompt=(add_date,))
    async with Session.open("work", store="memory://", policy=policy, processors=stages, model="gpt-5") as session:
        for prompt in PROMPTS:
            await session.record([{"role": "user", "content": prompt}])
            request = await session.prepare(16_000)
            print([message["content"] for message in request.messages])
            await session.record([{"role": "assistant", "content": "Done. " + "It works as described. " * 20}])
        for receipt in await session.receipts():
            print(receipt)


if __name__ == "__main__":
    asyncio.run(main())
