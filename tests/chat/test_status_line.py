"""The status line: how full the context is."""

import asyncio
from pathlib import Path

import pytest

from holdfast.apps.chat.chat import Activity, Chat, ChatStatus
from holdfast.apps.chat.terminal_screen import render_activity, render_status_line
from holdfast.apps.settings.sources import load_settings
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, add_turns, open_chat, reply_to

STATUS = ChatStatus(model="gpt-5", budget=100_000, tokens=12_345, provenance="calibrated", cost=0.0421, compactions=2)


def test_the_meter_says_tokens_share_model_folds_provenance_and_cost() -> None:
    assert (
        render_status_line(STATUS, width=100)
        == "≈12,345/100,000 tokens (12%) · gpt-5 · 2 compactions · calibrated · $0.0421"
    )


@pytest.mark.seed("C-51")
def test_the_meter_says_that_history_is_being_compacted() -> None:
    status = ChatStatus(model="gpt-5", budget=1_000, is_compacting=True)

    assert render_status_line(status, width=100).startswith("Compacting conversation history · 0/1,000 tokens (0%)")


@pytest.mark.parametrize(
    ("width", "shown"),
    [(30, "≈12,345/100,000 tokens (12%)"), (21, "≈12,345/100,000 (12%)"), (20, "12% full · gpt-5"), (4, "12%")],
)
def test_a_narrow_meter_still_says_how_full_it_is(width: int, shown: str) -> None:
    assert render_status_line(STATUS, width=width) == shown


@pytest.mark.parametrize("width", range(80))
def test_the_meter_fits_any_width(width: int) -> None:
    assert len(render_status_line(STATUS, queued=3, width=width)) <= width
    assert len(render_activity(Activity("starting the embedded model", 0.0), 3_723.0, width)) <= width


async def test_the_meter_shows_what_will_be_sent_next_and_context_says_the_same_number(
    tmp_path: Path, served: Served
) -> None:
    screen = RecordingScreen()
    environ = {"HOLDFAST_HOME": str(tmp_path)}
    settings = load_settings(flags={"model": served.model, "budget": "4000"}, cwd=tmp_path, environ=environ)
    chat = Chat(settings, screen, folder=tmp_path, store=MemoryStore())
    await chat.open_conversation()
    shown: list[tuple[int, int]] = []
    for number in range(3):
        await chat.take_turn(f"question {number} " + "why " * 100)
        shown.append((chat.status.tokens, chat.status.budget))

    context = await reply_to(chat, screen, "/context")
    report = await chat.session.context_breakdown(budget=chat.budget)
    await chat.close()

    assert shown[-1] == (report.total, report.budget)
    assert shown == sorted(shown)
    assert f"- {report.total:,} ± " in context


async def test_the_status_can_be_drawn_at_every_moment_while_conversations_are_changed(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, store=SqliteStore(tmp_path / "chats.db"))
    await add_turns(chat, 1)
    first = chat.session.id
    for command in ("/new", f"/resume {first}", "/fork"):
        running = asyncio.create_task(reply_to(chat, screen, command))
        while not running.done():
            assert chat.status.model == "gpt-5"
            await asyncio.sleep(0)
        assert "failed" not in await running
    await chat.close()
    assert chat.status.model == "gpt-5"
