"""Whatever users and models do, requests are valid and fit, and the session holds the messages of the run."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ToolReturnPart

from holdfast import HoldfastError, validate
from holdfast.adapters.pydantic_ai import Holdfast, native_messages
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session
from holdfast.testing.agents import ScriptedAgentModel
from holdfast.testing.strategies.pydantic_ai import valid_pydantic_ai_histories
from holdfast.wire.pydantic_ai import canonical_form

BUDGET = 1_200
DEEDS = st.sampled_from(["talk", "loop", "loop", "fail", "stop", "rewind", "clear", "undo", "redo", "compact", "pass"])


class Actor:
    """An agent and its model, told what to do with each prompt."""

    def __init__(self, governed: Holdfast) -> None:
        self.deed, self.count = "talk", 0
        self.model = ScriptedAgentModel(self._reply)
        self.agent = Agent(self.model, capabilities=[governed], system_prompt="Be brief.")
        self.agent.tool_plain(self.look)
        self.waits = asyncio.Event()

    async def look(self, n: int) -> str:
        """Look something up."""
        if self.deed == "stop":
            self.waits.set()
            await asyncio.Event().wait()
        return "line of output " * 20 * n

    def _reply(self, messages: list[ModelMessage]) -> Any:
        self.count += 1
        if self.deed == "fail" and self.count % 2:
            return OSError("the network is gone")
        returned = sum(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
        if self.deed == "talk" or (returned and self.count % 3):
            return "word " * 40
        return ModelResponse(
            parts=[
                TextPart("Looking."),
                *(ToolCallPart("look", {"n": n + 1}, f"c{self.count}_{n}") for n in range(self.count % 3 + 1)),
            ]
        )

    async def do(self, deed: str, session: Session, passed: Sequence[ModelMessage]) -> Sequence[ModelMessage] | None:
        """Do one thing, and return the history it leaves, if it is a run that went to its end."""
        self.deed = deed
        if deed in {"talk", "loop", "fail", "pass"}:
            history = list(passed) if deed == "pass" else None
            return (await self.agent.run(f"prompt {self.count}", message_history=history)).all_messages()
        if deed == "stop":
            await self._stopped()
        elif deed == "rewind":
            await session.rewind(to=len(session) // 2)
        else:
            await getattr(session, deed)()
        return None

    async def _stopped(self) -> None:
        self.waits.clear()
        run = asyncio.create_task(self.agent.run(f"prompt {self.count}"))
        waiting = asyncio.create_task(self.waits.wait())
        await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
        run.cancel()
        waiting.cancel()
        await asyncio.gather(run, waiting, return_exceptions=True)


def joined(natives: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return what messages say, with consecutive requests as one: pydantic-ai joins them when a run goes on.

    System text comes first: results of calls that were interrupted stand before it in a run, and after it in a session.
    """
    said = [
        (kind, [part for native in group for part in canonical_form(native)["parts"]])
        for kind, group in groupby(natives, key=itemgetter("kind"))
    ]
    return [(kind, sorted(parts, key=lambda part: part["part_kind"] != "system-prompt")) for kind, parts in said]


async def played(deeds: list[str], passed: Sequence[ModelMessage]) -> None:
    async with Session.open("c1") as session:
        actor = Actor(Holdfast(session=session, budget=BUDGET))
        for deed in deeds:
            try:
                history = await actor.do(deed, session, passed)
            except (HoldfastError, OSError):
                continue
            if history is not None:
                assert joined(await session.messages()) == joined(native_messages(history))
        for request in actor.model.requests:
            assert validate(native_messages(request), "pydantic-ai") == []
        proofs = rebuilt_requests(await session.events())
        assert all(proof.is_same for proof in proofs)


@example(["stop", "clear", "talk", "undo", "talk"], [])
@settings(max_examples=25)
@given(st.lists(DEEDS, min_size=1, max_size=12), valid_pydantic_ai_histories())
def test_whatever_happens_requests_are_valid_and_the_session_holds_what_the_run_holds(
    deeds: list[str], passed: list[Any]
) -> None:
    asyncio.run(played(deeds, ModelMessagesTypeAdapter.validate_python(passed)))
