"""An agent's session can be replayed with a model's summaries, and the least cost of a hit share is computed."""

from typing import Any

import pytest

from benchmarks.memory.agents import least_cost, measure_summarized
from holdfast.apps.lab.replay import ReplayTurn
from holdfast.core.planning.situation import PROVIDER_PRICES
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


def test_a_policy_with_a_hit_share_of_98_percent_reads_49_cached_tokens_for_each_new_one() -> None:
    first, last = (ReplayTurn(sent, 0, is_extension=True, output_tokens=10, gap_seconds=0) for sent in (1_000, 3_000))

    cost = least_cost([first, last], PROVIDER_PRICES["anthropic"], hit_share=0.98)

    assert cost == pytest.approx(1.25 * 3_000 + 0.1 * 49 * 3_000 + 5 * 20)
