"""An agent that a durable engine executes again records nothing twice, on whatever event loop it runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability

from holdfast import Session
from holdfast.adapters.pydantic_ai import Holdfast
from holdfast.apps.jobs import JobsConnection
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.testing.agents import ScriptedAgentModel, tool_call_response


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[None]:
    DBOS(
        config={
            "name": "durable-tests",
            "system_database_url": f"sqlite:///{tmp_path / 'engine.db'}",
            "db_engine_kwargs": {"connect_args": {"factory": JobsConnection}},
            "log_level": "ERROR",
        }
    )
    yield
    DBOS.destroy()


@pytest.mark.usefixtures("engine")
async def test_a_workflow_that_is_executed_again_from_a_step_continues_the_same_conversation(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    model = ScriptedAgentModel([tool_call_response("look", "call_1"), "done", "done again"])
    holdfast = Holdfast(store=url)
    agent = Agent(model, name="reader", capabilities=[holdfast, DBOSDurability()])

    @agent.tool_plain
    def look() -> str:
        """Look."""
        return "a tide table"

    @DBOS.workflow()
    async def ask(prompt: str) -> str:
        return (await agent.run(prompt, conversation_id="c")).output

    DBOS.launch()
    with SetWorkflowID("first"):
        assert await ask("when?") == "done"
    steps = [step["function_name"] for step in await DBOS.list_workflow_steps_async("first")]
    assert steps == ["reader__capability__holdfast.past_messages", "reader__model.request", "reader__model.request"]

    # The engine executes it again on a loop of its own: the first two steps from its records, the last one anew.
    again = await DBOS.fork_workflow_async("first", 3)
    assert await again.get_result() == "done again"
    await holdfast.close()

    async with Session.open("c", store=url) as session:
        kinds = [[part["part_kind"] for part in message["parts"]] for message in await session.messages()]  # pyright: ignore[reportGeneralTypeIssues]
        assert kinds == [["user-prompt"], ["tool-call"], ["tool-return"], ["text"]]
        assert "done again" in str((await session.messages())[-1])
        assert all(proof.is_same for proof in rebuilt_requests(await session.events()))
    assert len(model.requests) == 3
