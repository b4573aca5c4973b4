"""A share of the long run: an agent at work for a few hundred turns, resumed from disk on the way."""

from pathlib import Path

from benchmarks.endurance import EnduranceResult, SimulatedAgent, Stretch, report_lines


async def test_an_agent_goes_on_and_on_without_a_wrong_request_or_a_lost_fact(tmp_path: Path) -> None:
    found = await SimulatedAgent(tmp_path / "agent.db", budget=4_000).run(300, 600, stretch=100)

    assert (found.invalid, found.oversized, found.differing) == (0, 0, 0)
    assert (found.turns, found.resumed, found.requests) == (300, 3, 300 * 2 + 3 * 2 + 1)
    assert (found.facts, found.in_view + found.recalled, found.is_sound) == (6, 6, True)
    assert [stretch.turns for stretch in found.stretches] == [100, 100, 100]
    assert found.growth()["log"] < 1.5


def test_a_report_says_what_has_grown_and_what_was_lost() -> None:
    first, last = Stretch(10, 1.0, 1_000, 5_000), Stretch(10, 2.0, 1_000, 5_000)

    written = list(
        report_lines(EnduranceResult(turns=20, requests=40, facts=3, in_view=1, recalled=1, stretches=[first, last]))
    )

    assert written == [
        "20 turns, 40 requests",
        "invalid 0, oversized 0: yes",
        "resumed 0 times, 0 with another request: yes",
        "facts 3: 1 in view, 1 after one recall: NO",
        "time, last stretch compared with the first: ×2.00: NO",
        "log, last stretch compared with the first: ×1.00: yes",
        "memory, last stretch compared with the first: ×1.00: yes",
    ]
