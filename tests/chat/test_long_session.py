"""A working session whose tool outputs are many times larger than the window."""

from pathlib import Path

from benchmarks.chat import run_session


async def test_a_long_session_of_tool_calls_is_never_refused_and_each_fact_is_one_recall_away(tmp_path: Path) -> None:
    figures = await run_session(tmp_path, calls=40, window=8_000)

    assert (figures.refused, figures.invalid, figures.facts_found) == (0, 0, 40)
    assert figures.requests == 44
    assert figures.compactions > 0
