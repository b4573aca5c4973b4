"""The status line: how full the context is."""

import asyncio
import re
from pathlib import Path

import pytest

from holdfast.apps.chat.chat import Activity, Chat, ChatStatus
from holdfast.apps.chat.events import Consent, ConversationCompacted
from holdfast.apps.chat.main import terminal_background
from holdfast.apps.chat.terminal_screen import render_activity, render_status_line
from holdfast.apps.settings.sources import load_settings
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.history.events import UsageMeasured
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.endpoint import text_stream
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, add_turns, open_chat, reply_to

STATUS = ChatStatus(model="gpt-5", budget=100_000, tokens=12_345, provenance="calibrated", cost=0.0421, compactions=2)


def test_the_meter_says_tokens_share_model_compactions_provenance_and_cost() -> None:
    assert (
        render_status_line(STATUS, width=100)
        == "≈12,345/100,000 tokens (12%) · gpt-5 · 2 compactions · calibrated · $0.0421"
    )


@pytest.mark.seed("C-51")
def test_the_meter_says_that_history_is_being_compacted() -> None:
    status = ChatStatus(model="gpt-5", budget=1_000, tokens=0, is_compacting=True)

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
        shown.append((chat.status.tokens or 0, chat.status.budget))

    context = await reply_to(chat, screen, "/context")
    report = await chat.session.context_breakdown(budget=chat.budget)
    await chat.close()

    assert shown[-1] == (report.total, report.capacity) == (report.total, 4_000)
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


async def served_chat(folder: Path, served: Served, *answers: Consent, **flags: str) -> tuple[Chat, RecordingScreen]:
    """Return a chat with the served model as a terminal starts it: with its libraries loaded."""
    screen = RecordingScreen(*answers)
    environ = {"HOLDFAST_HOME": str(folder)}
    settings = load_settings(flags={"model": served.model, **flags}, cwd=folder, environ=environ)
    chat = Chat(settings, screen, folder=folder, store=MemoryStore())
    await chat.open_conversation()
    assert (chat.status.tokens, chat.status.provenance) == (None, "estimated")
    await chat.warm_up()
    return chat, screen


def test_the_meter_shows_no_number_before_it_has_counted() -> None:
    status = ChatStatus(model="gpt-5", budget=8_000)

    assert render_status_line(status, width=100) == "…/8,000 tokens · gpt-5"


async def measured(chat: Chat) -> UsageMeasured:
    """Return the size of the last request as the log has it."""
    return [event for event in await chat.session.events() if isinstance(event, UsageMeasured)][-1]


def compaction_numbers(text: str) -> list[tuple[int, int]]:
    """Return what a text says about the tokens before and after each compaction."""
    found = re.findall(r"([\d,]+) → ([\d,]+)", text)
    return [(int(before.replace(",", "")), int(after.replace(",", ""))) for before, after in found]


async def test_before_the_first_request_the_meter_counts_its_system_text_and_its_tools(
    tmp_path: Path, served: Served
) -> None:
    chat, _ = await served_chat(tmp_path, served, budget="8000")
    before = chat.status.tokens
    await chat.take_turn("hello")
    sent = (await measured(chat)).tokens
    await chat.close()

    assert sent.tool_definitions_tokens > 500
    assert before == sent.system_tokens + sent.tool_definitions_tokens + REPLY_OVERHEAD


async def test_the_limit_of_the_meter_is_the_budget_before_and_after_the_provider_reports_how_it_counts(
    tmp_path: Path, served: Served
) -> None:
    chat, screen = await served_chat(tmp_path, served, budget="8000")
    limits, provenance = [chat.status.budget], [chat.status.provenance]
    for _ in range(3):
        served.script.append(text_stream("yes", input_tokens=1_300))
        await chat.take_turn("hello")
        limits.append(chat.status.budget)
        provenance.append(chat.status.provenance)
    context = await reply_to(chat, screen, "/context")
    await chat.close()

    assert limits == [8_000] * 4
    assert provenance == ["estimated", *["calibrated"] * 3]
    assert "of 8,000 tokens; " in context
    assert "a request holds up to 7,600: 400 stay free, because counts may be wrong" in context


async def test_the_meter_the_notice_the_reply_and_the_receipt_of_a_compaction_say_the_same_numbers(
    tmp_path: Path, served: Served
) -> None:
    chat, screen = await served_chat(tmp_path, served, budget="8000", summarization_model="none")
    for number in range(6):
        served.script.append(text_stream("yes " * 200, input_tokens=1_300 + 300 * number))
        await chat.take_turn(f"question {number}")
    before = chat.status.tokens

    said = await reply_to(chat, screen, "/compact")
    after = chat.status.tokens
    receipt = await reply_to(chat, screen, "/receipts")
    context = await reply_to(chat, screen, "/context")
    await chat.close()

    shown = [event for event in screen.events if isinstance(event, ConversationCompacted)]
    assert chat.status.provenance == "calibrated"
    assert [(event.tokens_before, event.tokens_after) for event in shown] == [(before, after)]
    assert compaction_numbers(said)[0] == compaction_numbers(receipt)[0] == (before, after)
    assert f"- {after:,} ± " in context


async def test_the_notice_of_a_compaction_in_a_turn_says_the_size_of_the_request_that_was_sent(
    tmp_path: Path, served: Served
) -> None:
    chat, screen = await served_chat(tmp_path, served, budget="8000", summarization_model="none")
    compacted: list[ConversationCompacted] = []
    sent: list[int] = []
    # With the first compaction requests begin to carry the recall tool; its notice counts that too.
    while len(compacted) < 2:
        served.script.append(text_stream("so it is " * 150, input_tokens=0))
        await chat.take_turn("why " * 400)
        compacted = [event for event in screen.events if isinstance(event, ConversationCompacted)]
        if len(compacted) > len(sent):
            sent.append((await measured(chat)).current_tokens)
    await chat.close()

    assert [event.tokens_after for event in compacted] == sent
    assert [event.tokens_after < event.tokens_before for event in compacted] == [True, True]


async def test_after_a_switch_to_a_smaller_model_the_meter_says_what_the_next_request_does(
    tmp_path: Path, served: Served
) -> None:
    url = served.model.removesuffix("#served")
    chat, screen = await served_chat(tmp_path, served, "yes", "yes", summarization_model="none")
    served.answer = lambda _: "so it is " * 300
    for number in range(8):
        await chat.take_turn(f"question {number} " + "why " * 500)

    await reply_to(chat, screen, f"/model {url}#gpt-4")
    small = chat.status
    await chat.take_turn("and now?")
    sent = await measured(chat)
    await chat.close()

    assert (small.budget, small.is_shortened_next) == (6_144, False)
    assert small.tokens is not None
    assert small.tokens <= 6_144
    assert sent.current_tokens <= sent.token_limit == 6_144


async def test_a_context_that_no_request_can_hold_is_said_to_be_shortened(tmp_path: Path, served: Served) -> None:
    url = served.model.removesuffix("#served")
    chat, screen = await served_chat(tmp_path, served, "yes", summarization_model="none")
    await chat.take_turn("why " * 7_000)

    said = await reply_to(chat, screen, f"/model {url}#gpt-4")
    over = chat.status
    await chat.take_turn("and now?")
    sent = await measured(chat)
    await chat.close()

    assert "the next request is shortened to 6,144 tokens" in said
    assert "the next request is shortened" in render_status_line(over, width=100)
    assert over.tokens is not None
    assert over.tokens > over.budget == sent.token_limit >= sent.current_tokens


@pytest.mark.parametrize(
    ("theme", "colors", "background"),
    [("light", "15;0", "light"), ("dark", "0;15", "dark"), ("auto", "0;15", "light"), ("auto", "15;0", "dark")],
)
def test_the_settings_say_whether_the_terminal_is_dark_else_the_terminal_does(
    theme: str, colors: str, background: str
) -> None:
    assert terminal_background(theme, {"COLORFGBG": colors}) == background
