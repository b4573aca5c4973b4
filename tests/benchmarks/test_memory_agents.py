"""An agent's session can be replayed with summaries that a model writes, and what it invents is counted."""

from typing import Any

from benchmarks.memory.agents import measure_summarized
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.endpoint import ReceivedRequest, ResponsePiece, ScriptedEndpoint, text_stream

SUMMARY = "The agent reads parse_config_0 and the files after it [#2]; it also changed made_up_helper."


def recorded_session() -> dict[str, Any]:
    """Return a session whose outputs do not fit in 50,000 tokens, and that goes back to its first function."""
    messages = [user_message("Read every function.")]
    for number in range(60):
        name = f"parse_config_{number if number < 59 else 0}"
        output = " ".join(f"{name} line {line}" for line in range(220))
        call = tool_call_message(f"call_{number}", name="read", arguments={"function": name})
        messages += [call, tool_result_message(f"call_{number}", output)]
    return {"id": "reader", "messages": [*messages, assistant_message("Done.")]}


async def test_a_models_summaries_of_an_agents_work_are_counted_and_what_it_invents_is_told() -> None:
    def reply(_: ReceivedRequest) -> list[ResponsePiece]:
        return text_stream(SUMMARY)

    async with ScriptedEndpoint(reply) as server:
        figures = await measure_summarized(recorded_session(), f"{server.url}#m")

    assert len(server.requests) == figures["by model"][0] == figures["put back"][1] == 1
    assert figures["rejected"] == (0, figures["by model"][1])
    assert figures["invented"][0] == 1
    assert figures["far"] == (1.0, 1.0)
    assert figures["over"][0] == 0
