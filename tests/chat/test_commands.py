"""The slash commands."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast import Session
from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.compact import _describe_compaction
from holdfast.apps.chat.commands.context import _describe_cost
from holdfast.apps.chat.dispatch import SLASH_COMMANDS, is_immediate, run_slash_command
from holdfast.apps.chat.events import MAX_LISTED_FACTS, ChatEvent, ChatNotice, CommandTable
from holdfast.apps.chat.loop import run_chat_loop
from holdfast.apps.chat.terminal_screen import TerminalScreen
from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import (
    MAIN,
    CompactionCompleted,
    OutputsOffloaded,
    Rewound,
    Summary,
    TurnsReducedToText,
)
from holdfast.core.planning.context_report import CostForecast
from holdfast.core.planning.steps import CompactSpan
from holdfast.session.compaction.checkpoints import NO_CHECKPOINTS
from holdfast.session.compaction.compactor import SummaryDraft
from holdfast.stores.base import MS_PER_DAY
from holdfast.stores.jsonl import load_file
from holdfast.stores.memory import MemoryStore
from holdfast.stores.retention import delete_expired_sessions
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, add_turns, open_chat, reply_to, user_part

MAX_SUMMARY_CHARS = 62
"""As many fit into a line of 80 columns beside the longest name."""
NAMED = [
    "help",
    "compact",
    "preview",
    "recompact",
    "restore",
    "undo",
    "redo",
    "clear",
    "new",
    "history",
    "memory",
    "board",
    "subconscious",
    "context",
    "config",
    "model",
    "preset",
    "sessions",
    "resume",
    "rewind",
    "fork",
    "session",
    "pin",
    "receipts",
    "recall",
    "show",
    "export",
    "quit",
]


def test_every_command_is_there_and_says_what_it_does() -> None:
    there = {command.name: command.summary for command in SLASH_COMMANDS}

    assert {name for name in NAMED if there.get(name)} == set(NAMED)


async def test_an_unknown_command_suggests_the_nearest(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    assert (
        await reply_to(chat, screen, "/compcat") == "/compcat: is not a command; did you mean /compact or /recompact?"
    )
    assert await reply_to(chat, screen, "/xyzzy") == "/xyzzy: is not a command; /help lists all"
    assert await reply_to(chat, screen, "/re") == (
        "/re: is not a command; did you mean "
        "/recall or /receipts or /recompact or /redo or /restore or /resume or /retry or /rewind?"
    )
    assert (await reply_to(chat, screen, "/his")).startswith("0 turns")


@pytest.mark.parametrize("command", ["agents", "rewind", "fork", "pin"])
@pytest.mark.parametrize("number", ["9" * 5_000, "-1", "x"], ids=["huge", "negative", "none"])
async def test_a_number_that_means_nothing_is_refused_in_a_line(tmp_path: Path, command: str, number: str) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 1)

    answer = await reply_to(chat, screen, f"/{command} {number}")

    assert answer.startswith(f"/{command}: ")
    assert answer.endswith("lists them")
    assert len(answer) < 200


class FaultyScreen(RecordingScreen):
    """A screen that cannot show tables."""

    def show(self, event: ChatEvent) -> None:
        if isinstance(event, CommandTable):
            raise TypeError("no screen for\na table")
        super().show(event)


async def test_a_command_with_a_fault_is_told_in_a_line_and_the_conversation_goes_on(tmp_path: Path) -> None:
    chat, _ = await open_chat(tmp_path)
    chat.screen = screen = FaultyScreen()

    is_done = [await run_slash_command(chat, line) for line in ("/help", "/board add Use tabs")]

    assert is_done == [False, True]
    first, second = (event for event in screen.events if isinstance(event, ChatNotice))
    what = "that failed (TypeError: no screen for a table), which is a bug in Holdfast; the conversation continues"
    assert first == ChatNotice(what, "error")
    assert second.text.endswith("Use tabs")


async def test_what_is_typed_is_answered_also_after_something_went_wrong_before_it(tmp_path: Path) -> None:
    chat, _ = await open_chat(tmp_path)

    async def greeting() -> None:
        raise RuntimeError("nobody is at home")

    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        chat.screen = terminal = TerminalScreen(tmp_path / "prompts", has_color=False)
        keys.send_text("/board add Use tabs\r/quit\r")
        async with asyncio.timeout(60):
            await run_chat_loop(chat, terminal, None, greeting)

    (board,) = (tmp_path / "boards").glob("*.md")
    assert "Use tabs" in board.read_text()


async def test_help_is_the_docstring(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    every = await reply_to(chat, screen, "/help")
    assert "/compact | Replace older messages by a summary now." in every
    assert [command.name for command in SLASH_COMMANDS if len(command.summary) > MAX_SUMMARY_CHARS] == []
    assert await reply_to(chat, screen, "/help undo") == (
        "**/undo**\n\nUndo the last change of context.\n\n"
        "That is a compaction, a clear or a rewind. If you have continued after a rewind or a /retry, the messages"
        " since then\nleave the context, so that it holds one course of the conversation."
    )
    assert (await reply_to(chat, screen, "/help ctx")).splitlines()[0] == "**/context [clear]** (also /ctx)"


@pytest.mark.parametrize("line", ["/new fix the parser", "/undo 3", "/retry in other words", "/clear all", "/quit now"])
async def test_a_command_that_takes_no_arguments_is_not_run_with_some(tmp_path: Path, line: str) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 1)
    session, (name, _, arguments) = chat.session.id, line.partition(" ")

    reply = await reply_to(chat, screen, line)

    assert reply == f"{name}: takes no arguments, and was not run with {arguments!r}"
    assert (chat.session.id, len(await chat.session.visible_messages()), chat.is_over) == (session, 2, False)


@pytest.mark.parametrize("line", ["/plan\n- read\n- write", "/plan\t- read\n- write", "/PLAN  - read\n- write"])
async def test_the_arguments_of_a_command_may_begin_on_the_next_line(tmp_path: Path, line: str) -> None:
    chat, screen = await open_chat(tmp_path)

    await reply_to(chat, screen, line)

    assert is_immediate(line)
    assert chat.session.history.session_state.plan == "- read\n- write"


async def test_a_command_with_nothing_to_do_says_so_and_changes_nothing(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    lines = (
        "/clear",
        "/preview",
        "/restore #1",
        "/skill",
        "/policy nope",
        "/resume nope",
        "/resume",
        "/undo",
        "/title",
    )
    lines += ("/retry", "/session all", "/context all", "/unpin 0", "/todo", "/attach clear", f"/plan {'x' * 8_001}")

    replies = [await reply_to(chat, screen, line) for line in lines]

    assert replies == [
        "the context is empty already",
        "nothing to compact: there are no messages",
        "/restore: nothing is compacted now, so all messages are in the context",
        "/skill: takes the name of a skill; /skills lists them",
        "/policy: 'nope' is neither a file nor a preset: default, co-cli, inkeep, copilot, cowagent",
        "/resume: no conversation is about 'nope'; /sessions lists them",
        "there is no other conversation",
        "there is nothing to undo",
        "/title: takes the new title",
        "/retry: there is no prompt to send again",
        "/session: takes nothing or `checkpoints`, not 'all'",
        "/context: takes nothing or `clear`, not 'all'",
        "/unpin: takes the number of a message; /rewind lists them",
        "there are no tasks; /todo add TASK adds one",
        "nothing is attached to the next prompt",
        "/plan: takes at most 8,000 characters",
    ]
    assert await chat.session.events() == []


async def test_a_command_says_what_there_is_now(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 1)
    (tmp_path / "notes.txt").write_text("one\ntwo\n")
    lines = ("/session", "/unpin 0", "/todo add tests", "/todo clear", "/attach notes.txt", "/attach clear", "/attach")

    replies = [await reply_to(chat, screen, line) for line in lines]

    assert replies == [
        f"{chat.session.id}: 2 messages, preset default",
        "/unpin: message 0 is not pinned",
        "N | STATE | TASK\n1 | open | tests",
        "there are no tasks; /todo add TASK adds one",
        "FILE | SIZE | PART OF\nnotes.txt | 2 lines, 8 characters | the next prompt",
        "nothing is attached to the next prompt",
        "nothing is attached; /attach FILE attaches a file to the next prompt",
    ]


@pytest.mark.parametrize(
    ("change", "described"),
    [
        (OutputsOffloaded(line=2, max_chars=100), "the shortening of old tool outputs"),
        (TurnsReducedToText(line=2), "the reduction of old turns to their text"),
        (Rewound(to=0), "the rewind to before message 0"),
    ],
)
async def test_undo_and_redo_say_which_change_they_revert_and_apply(
    tmp_path: Path, change: OutputsOffloaded | TurnsReducedToText | Rewound, described: str
) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 2)
    await chat.session._log.append(change)

    replies = [await reply_to(chat, screen, line) for line in ("/undo", "/redo")]

    assert replies == [f"undone: {described}; /redo applies it again", f"applied again: {described}"]


async def test_the_policy_is_a_preset_or_a_file_of_rules(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("")
    chat, screen = await open_chat(tmp_path)

    replies = [
        await reply_to(chat, screen, line) for line in ("/policy co-cli", "/policy", "/policy own.toml", "/policy")
    ]

    presets = "there are: default, co-cli, inkeep, copilot, cowagent, or a file of your own"
    assert replies == [
        "switched to the policy co-cli",
        f"co-cli; {presets}",
        "switched to the policy own.toml",
        f"custom, changed by {tmp_path / 'own.toml'}; {presets}",
    ]


async def test_config_switches_the_model_as_the_command_for_it_does(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    served.listed_models = ["served", "smaller"]
    chat, screen = await open_chat(tmp_path, "no", flags={"model": served.model})
    settings_file, url = tmp_path / "holdfast.toml", served.model.removesuffix("#served")
    await add_turns(chat, 40, words=150)

    listed = await reply_to(chat, screen, "/model")
    refused = await reply_to(chat, screen, "/config model openai:gpt-4 --save")
    assert not settings_file.exists()
    switched = await reply_to(chat, screen, "/config model smaller --save")
    await chat.close()

    assert listed.endswith("\nits endpoint also has: smaller; /model NAME switches")
    assert refused == f"not switched; the model is still {served.model}"
    assert switched == f"switched to {url}#smaller\nmodel = {url}#smaller, saved in {settings_file}"
    assert settings_file.read_text() == f'model = "{url}#smaller"\n'


async def test_config_says_that_a_setting_has_no_effect_on_the_rules_in_force(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"preset": "copilot"})

    reply = await reply_to(chat, screen, "/config compression_threshold 0.5")

    assert reply == (
        "compression_threshold = 0.5\nchanged in this session: compression_threshold has no effect with preset copilot"
    )


@pytest.mark.seed("A-8", "A-37")
async def test_clear_empties_the_context_and_undo_brings_it_back(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 2)

    assert await reply_to(chat, screen, "/clear") == "the context is empty; /undo restores it"
    assert await reply_to(chat, screen, "/history") == "0 turns, 0 messages; 4 are in the log"
    assert await reply_to(chat, screen, "/undo") == "undone: the clear; /redo applies it again"
    assert await reply_to(chat, screen, "/history") == "2 turns, 4 messages; 4 are in the log"
    assert await reply_to(chat, screen, "/redo") == "applied again: the clear"
    assert await reply_to(chat, screen, "/redo") == "there is nothing to redo"


@pytest.mark.seed("C-34")
async def test_the_meter_counts_anew_when_a_command_changes_the_context(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await add_turns(chat, 12)
    shown: list[int] = []
    for command in ("/compact", "/undo", "/clear"):
        await reply_to(chat, screen, command)
        shown.append(chat.status.tokens or 0)

    compacted, whole, cleared = shown
    assert 0 < compacted < whole
    assert cleared == (await chat.session.context_breakdown(budget=chat.budget)).total < compacted


@pytest.mark.seed("C-51", "C-57")
async def test_compact_says_what_it_is_doing_and_that_there_is_nothing_to_compact_is_no_error(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    await reply_to(chat, screen, "/compact")

    assert screen.busy_texts == ["Compacting conversation history", ""]
    assert screen.events == [ChatNotice("nothing to compact: there are no messages")]


@pytest.mark.seed("D-21")
async def test_context_clear_clears_the_context(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 2)

    await reply_to(chat, screen, "/context clear")

    assert await chat.session.visible_messages() == []


@pytest.mark.seed("A-38")
async def test_history_counts_turns_as_the_preset_does(tmp_path: Path) -> None:
    call = {"part_kind": "tool-call", "tool_name": "look", "args": "{}", "tool_call_id": "c1"}
    back = {"part_kind": "tool-return", "tool_name": "look", "content": "seen", "tool_call_id": "c1"}
    loop = [{"kind": "response", "parts": [call]}, {"kind": "request", "parts": [back]}]
    counts: list[str] = []

    for preset in ("default", "co-cli"):
        chat, screen = await open_chat(tmp_path, flags={"preset": preset})
        await add_turns(chat, 1)
        await chat.session.record(loop, format="pydantic-ai")
        counts.append(await reply_to(chat, screen, "/history"))

    assert counts == ["1 turn, 4 messages; 4 are in the log", "2 turns, 4 messages; 4 are in the log"]


@pytest.mark.seed("D-20")
async def test_context_shows_counts_roles_characters_and_the_next_compaction(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"max_context_tokens": "4000"})
    await add_turns(chat, 3)

    shown = await reply_to(chat, screen, "/context")

    assert "PART | TOKENS | SHARE" in shown
    assert "6 messages (3 assistant, 3 user), 900 characters" in shown
    assert "next compaction at " in shown
    assert "turns at this pace" in shown


async def test_context_says_that_a_compaction_comes_with_the_next_turn(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"summarization_model": "gpt-5", "max_context_tokens": "700"})
    await add_turns(chat, 5)

    shown = await reply_to(chat, screen, "/context")

    assert "next compaction at 560 tokens; there are 483, likely within the next turn" in shown


@pytest.mark.parametrize(
    ("forecast", "expected"),
    [
        (CostForecast(tokens_before=900, tokens_after=90), "it will cost: up to 90 tokens sent as new"),
        (
            CostForecast(tokens_before=900, tokens_after=90, rewrite_dollars=0.02),
            "it will cost up to $0.02: up to 90 tokens sent as new ($0.02)",
        ),
        (
            CostForecast(
                tokens_before=9_000,
                tokens_after=90,
                read_tokens=8_000,
                is_cached=True,
                written_tokens=70,
                summary_dollars=0.001,
                rewrite_dollars=0.02,
            ),
            "it will cost up to $0.02: 8,000 tokens read from the cache and up to 70 written for the summary ($0.001), "
            "up to 90 tokens sent as new ($0.02)",
        ),
        (
            CostForecast(
                tokens_before=9_000, tokens_after=90, read_tokens=8_000, written_tokens=70, rewrite_dollars=0.02
            ),
            "it will cost: 8,000 tokens read and up to 70 written for the summary, up to 90 tokens sent as new ($0.02)",
        ),
    ],
)
def test_the_cost_of_the_next_compaction_is_told_as_far_as_prices_are_known(
    forecast: CostForecast, expected: str
) -> None:
    assert _describe_cost(forecast) == expected


@pytest.mark.parametrize(
    ("after", "told"),
    [(40, "60 freed"), (100, "0 freed"), (1_500, "1,400 more, as the summary is longer")],
)
def test_a_compaction_tells_whether_the_request_became_shorter(after: int, told: str) -> None:
    event = CompactionCompleted(
        success=True,
        span=Span(stop=2),
        replacement=("They greeted each other.",),
        pre_compaction_tokens=100,
        post_compaction_tokens=after,
    )

    assert _describe_compaction(event) == f"2 messages replaced by 1: 100 → {after:,} tokens ({told}), by rule"


async def test_a_conversation_without_a_question_has_nothing_to_compact(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"preset": "copilot"})
    await add_turns(chat, 12)

    assert await reply_to(chat, screen, "/compact") == "nothing to compact yet: no request was sent so far"


@pytest.mark.seed("C-4")
async def test_compact_says_how_many_messages_and_tokens_went(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await add_turns(chat, 12)

    preview = await reply_to(chat, screen, "/preview")
    done = await reply_to(chat, screen, "/compact the tides")
    receipts = await reply_to(chat, screen, "/receipts")

    assert "messages would be replaced by 1" in preview
    assert "messages replaced by 1" in done
    assert "freed), by rule" in done
    assert screen.busy_texts == ["Compacting conversation history", ""]
    assert "undo with /undo" in receipts


async def test_a_preview_lists_the_facts_that_would_not_be_in_view_any_more(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"max_context_tokens": "1000", "summarization_model": "none"})
    for number in range(100):
        words = f"We decided to use module_{number}_with_a_long_name_that_nobody_says_again."
        await chat.session.record([{"kind": "request", "parts": [user_part(words)]}], format="pydantic-ai")

    preview, draft = await reply_to(chat, screen, "/preview"), await reply_to(chat, screen, "/preview draft")
    wrong = await reply_to(chat, screen, "/preview all")

    would = await chat.session.preview(budget=chat.budget)
    assert "\n\nNo longer in view; /show displays each:\n- " in preview
    assert all(f"\n- {fact}" in preview for fact in would.summary.left_out[:MAX_LISTED_FACTS])
    assert preview.endswith(f"\n- and {len(would.summary.left_out) - MAX_LISTED_FACTS} more")
    assert draft == preview, "nobody is there to write one"
    assert "takes nothing or `draft`" in wrong


async def test_a_person_who_is_to_approve_a_summary_sees_what_it_loses(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, "yes", "no")
    step = CompactSpan(span=Span(start=0, stop=9, count=9), by="summary")
    lossy = Summary("All went well.", put_back=("Decided: “tides first” [#3]",), left_out=("lunar_table [#4]",))
    approve = chat._callbacks().approve
    assert approve is not None

    asked = [approve(SummaryDraft(step, one, 900)) for one in (lossy, Summary("All is here."))]
    answers = [await one for one in asked if isinstance(one, Awaitable)]

    assert answers == [True, False]
    assert screen.events == [
        ChatNotice(
            "Lost by the summary, and restored:\n- Decided: “tides first” [#3]\n\n"
            "No longer in view; /show displays each:\n- lunar_table [#4]"
        )
    ]


async def test_context_says_that_an_agent_repeats_itself_and_that_no_compaction_is_due(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await chat.session.record([asked("Make the tests pass.")], format="pydantic-ai")
    await run_checks(chat, 12)
    await reply_to(chat, screen, "/compact")
    await run_checks(chat, 12)

    repeated = await reply_to(chat, screen, "/context")
    (tmp_path / "rules.toml").write_text("compaction = false")
    await reply_to(chat, screen, "/policy rules.toml")
    without = await reply_to(chat, screen, "/context")

    assert "\n- the agent made no progress since the last compaction: 12 calls returned the same results" in repeated
    assert "next compaction" not in without
    assert "it will cost" not in without


async def run_checks(chat: Chat, checks: int) -> None:
    """Record how an agent runs checks, each with the same result as ever."""
    start = len(chat.session)
    for number in range(checks):
        name = {"tool_name": "check", "tool_call_id": f"c{start + number}"}
        call = {"part_kind": "tool-call", "args": {"part": number}, **name}
        back = {"part_kind": "tool-return", "content": f"part {number}: " + "word " * 300, **name}
        native = [{"kind": "response", "parts": [call]}, {"kind": "request", "parts": [back]}]
        await chat.session.record(native, format="pydantic-ai")


async def test_an_empty_context_is_told_without_roles(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    shown = await reply_to(chat, screen, "/context")

    assert "- 0 messages, 0 characters\n" in shown


async def test_one_number_of_messages_is_told_wherever_a_compaction_is_told_of(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await add_turns(chat, 12)

    preview, context = await reply_to(chat, screen, "/preview"), await reply_to(chat, screen, "/context")
    done, receipts = await reply_to(chat, screen, "/compact"), await reply_to(chat, screen, "/receipts")

    (compaction,) = chat.session.history.version.state_of(MAIN).compactions
    many, freed = compaction.span.message_count, compaction.tokens_removed
    assert f"Summary of {many} earlier messages" in compaction.replacement[0]
    assert preview.startswith(f"{many} messages would be replaced by 1: ")
    assert done.startswith(f"{many} messages replaced by 1: ")
    assert f"messages  {many} replaced by 1, {len(compaction.span.kept)} kept whole" in receipts
    assert f"tokens; a compaction would free {freed:,}\n" in context
    assert f"({freed:,} freed)" in preview


async def test_the_next_compaction_is_told_in_the_tokens_that_the_context_is_told_in(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"summarization_model": "gpt-5", "max_context_tokens": "6144"})
    await add_turns(chat, 1, words=4)

    context, preview = await reply_to(chat, screen, "/context"), await reply_to(chat, screen, "/preview")

    held = (await chat.session.context_breakdown(budget=chat.budget)).total
    assert f"- {held:,} ± 6 % of 6,144 tokens; nothing to compact yet\n" in context
    assert f" tokens; there are {held:,}, in about " in context
    assert re.search(r"\n- it will cost up to \$[\d.]+: [\d,]+ tokens read", context)
    assert preview.startswith("nothing to compact")


async def test_a_compaction_is_made_anew_and_messages_of_it_are_brought_back(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await add_turns(chat, 12)
    none = await reply_to(chat, screen, "/recompact")
    await reply_to(chat, screen, "/compact")

    again = await reply_to(chat, screen, "/recompact the tides")
    back = await reply_to(chat, screen, "/restore #2-#4, #3")

    assert none == "nothing to compact: of 24 messages none can be compacted"
    assert "messages replaced by 1" in again
    assert back == "3 messages restored; /undo reverts it"
    assert {2, 3, 4} <= {entry.position for entry in await chat.session.visible_messages()}
    undone = await reply_to(chat, screen, "/undo")
    assert undone == "undone: the restoring of messages; /redo applies it again"
    assert 3 not in {entry.position for entry in await chat.session.visible_messages()}
    assert "such as #12" in await reply_to(chat, screen, "/restore tides")
    assert "give positions between 0 and " in await reply_to(chat, screen, "/restore #23-#99999999999")


async def test_compact_on_nothing_says_so(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    assert "nothing" in await reply_to(chat, screen, "/compact")
    assert await reply_to(chat, screen, "/receipts") == "nothing has been compacted yet"


async def test_rewind_lists_prompts_and_goes_back_to_one(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    assert await reply_to(chat, screen, "/rewind") == "there are no messages yet"
    await add_turns(chat, 3)

    listed = await reply_to(chat, screen, "/rewind")
    assert [line.split(" why")[0] for line in listed.splitlines()] == [
        "MESSAGE | PROMPT", "0 | question 0", "2 | question 1", "4 | question 2",
    ]  # fmt: skip
    assert "is not the number of a prompt" in await reply_to(chat, screen, "/rewind 1")
    assert await reply_to(chat, screen, "/rewind 2") == "back before message 2; /undo reverts it"
    assert len(await chat.session.visible_messages()) == 2


async def test_a_fork_goes_on_in_a_copy_and_resume_goes_back(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 2)
    first = chat.session.id

    assert (await reply_to(chat, screen, "/fork 2")).endswith(f"/resume {first} returns to the original")
    assert chat.session.id != first
    assert len(await chat.session.visible_messages()) == 2
    resumed = (await reply_to(chat, screen, f"/resume {first}")).splitlines()
    assert resumed[0].startswith(f"{first}: 4 messages; the last prompt was “question 1 why")
    assert resumed[1].startswith("answer 1 so")
    assert "/sessions lists them" in await reply_to(chat, screen, "/resume nothing")


async def test_a_title_is_refused_with_the_reason_while_nothing_is_stored(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    replies = [await reply_to(chat, screen, "/title The boats")]
    await reply_to(chat, screen, "/plan sail")
    replies.append(await reply_to(chat, screen, "/title The boats"))

    assert replies == [
        "/title: there are no messages yet; send a prompt first",
        "this conversation is now called 'The boats'",
    ]


async def test_a_fork_has_the_title_of_its_original(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 1)
    await reply_to(chat, screen, "/title The boats")

    await reply_to(chat, screen, "/fork")

    assert [info.name for info in await chat.store.sessions(limit=5)] == ["The boats", "The boats"]


@pytest.mark.seed("A-44")
async def test_new_begins_another_conversation_and_sessions_lists_them(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    assert await reply_to(chat, screen, "/sessions") == "there are no saved conversations yet"
    await add_turns(chat, 1)
    first = chat.session.id

    assert await reply_to(chat, screen, "/new") == f"a new conversation; /resume {first} returns to the old one"
    assert chat.session.id != first
    assert f" | {first} | now | " in await reply_to(chat, screen, "/sessions")
    assert (await reply_to(chat, screen, "/resume")).startswith(f"{first}: 2 messages; the last prompt was “question 0")


@pytest.mark.seed("C-43")
async def test_session_checkpoints_says_when_there_are_none(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    assert await reply_to(chat, screen, "/session checkpoints") == NO_CHECKPOINTS


@pytest.mark.seed("C-43", "C-45")
async def test_session_checkpoints_lists_the_summaries_of_this_conversation(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await add_turns(chat, 12)
    await reply_to(chat, screen, "/compact")
    await add_turns(chat, 12)
    await reply_to(chat, screen, "/compact")

    both = await reply_to(chat, screen, "/session checkpoints")
    await reply_to(chat, screen, "/undo")
    one = await reply_to(chat, screen, "/session checkpoints")
    await reply_to(chat, screen, "/new")
    none = await reply_to(chat, screen, "/session checkpoints")

    names = ["001-checkpoint-1.md", "002-checkpoint-2.md"]
    rows = [f"| {number} | Checkpoint {number} | {name} |" for number, name in enumerate(names, start=1)]
    assert [row for row in rows if row in both] == rows
    assert [row for row in rows if row in one] == rows[:1]
    assert none == NO_CHECKPOINTS


async def test_pins_stay_whole(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 2)

    assert await reply_to(chat, screen, "/pin") == "message 2 stays whole"
    assert await reply_to(chat, screen, "/pin 0") == "message 0 stays whole"
    assert chat.session.history.session_state.pins == {0, 2}
    assert await reply_to(chat, screen, "/unpin 2") == "message 2 is no longer pinned"
    assert "takes the number of a message" in await reply_to(chat, screen, "/pin x")


@pytest.mark.seed("D-4", "D-7", "D-22")
async def test_config_changes_a_setting_at_once_and_says_where_values_come_from(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"preset": "cowagent"})

    assert "max_context_tokens | 50,000 | preset cowagent" in await reply_to(
        chat, screen, "/config agent_max_context_tokens"
    )
    assert (await reply_to(chat, screen, "/config agent_max_context_tokens 80000")).startswith(
        "max_context_tokens = 80,000"
    )
    assert (await reply_to(chat, screen, "/config agent_max_context_turns 30")).startswith("max_context_turns = 30")
    compaction = chat.session.policy.compaction
    assert (getattr(compaction, "max_tokens", 0), getattr(compaction, "max_turns", 0)) == (80_000, 30)
    assert "changed in this session" in await reply_to(chat, screen, "/config max_context_turns")
    assert await reply_to(chat, screen, "/config max_steps many") == (
        "max_steps: must be a whole number from 1 to 1,000,000, or 0 for none, not 'many'"
    )


async def test_config_saves_no_empty_value_for_a_setting_whose_value_is_left_out(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    (tmp_path / "system.md").write_text("Be brief.")
    set_ = await reply_to(chat, screen, f"/config system {tmp_path / 'system.md'}")

    refused = await reply_to(chat, screen, "/config system --save")
    kept = chat.settings.system
    await chat.close()

    assert set_ == f"system = {tmp_path / 'system.md'}"
    assert refused == "--save: needs a value to save: /config system VALUE --save"
    assert (kept, (tmp_path / "holdfast.toml").exists()) == (tmp_path / "system.md", False)


async def test_config_keeps_a_setting_on_request(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    shown = await reply_to(chat, screen, "/config max_steps 7 --save")

    assert shown.startswith("max_steps = 7, saved in ")
    assert (tmp_path / "holdfast.toml").read_text() == "max_steps = 7\n"


@pytest.mark.seed("C-52")
async def test_a_smaller_model_is_asked_about_and_the_conversation_compacted_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    chat, screen = await open_chat(tmp_path, "no", "yes", flags={"summarization_model": "none"})
    await add_turns(chat, 40, words=150)

    unknown = await reply_to(chat, screen, "/model nobody:knows")
    refused = await reply_to(chat, screen, "/model openai:gpt-4")
    switched = await reply_to(chat, screen, "/model openai:gpt-4")

    assert unknown.startswith("nobody:knows: ")
    assert refused == "not switched; the model is still gpt-5"
    assert screen.asked[0].endswith("Compact first, and switch?")
    assert switched.startswith("switched to openai:gpt-4\nConversation Compacted: ")
    assert (await chat.session.context_breakdown(budget=chat.budget)).total < chat.budget.tokens


async def test_the_meter_shows_the_context_against_the_limit_after_a_turn_a_command_and_a_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    chat, screen = await open_chat(tmp_path, "yes", flags={"summarization_model": "none"})
    await add_turns(chat, 40, words=150)

    for command in ("/context", "/model openai:gpt-4", "/preset cowagent", "/undo"):
        await reply_to(chat, screen, command)
        contents = await chat.session.context_breakdown()
        assert (chat.status.tokens, chat.status.budget) == (contents.total, contents.budget)

    assert chat.status.budget == 6_144


async def test_context_shows_the_presets_own_limit(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"preset": "cowagent", "summarization_model": "none"})
    await add_turns(chat, 2, words=10)

    assert " of 50,000 tokens; " in await reply_to(chat, screen, "/context")
    assert chat.status.budget == 50_000


async def test_a_preset_takes_effect_at_once(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    assert await reply_to(chat, screen, "/preset") == "default; there are: default, co-cli, inkeep, copilot, cowagent"
    assert (await reply_to(chat, screen, "/preset co-cli")).startswith("switched to preset co-cli")
    assert chat.session.policy.name == "co-cli"
    assert "is not known" in await reply_to(chat, screen, "/preset nope")


async def test_an_exported_log_has_the_title_and_says_which_messages_the_store_has_lost(tmp_path: Path) -> None:
    store = MemoryStore()
    chat, screen = await open_chat(tmp_path, store=store)
    await chat.session.record([{"kind": "request", "parts": [user_part("salt " * 20_000)]}], format="pydantic-ai")
    await reply_to(chat, screen, "/title Tides")
    store._blobs.clear()

    said = await reply_to(chat, screen, f"/export {tmp_path}/talk.jsonl")
    lost = [at async for at in _positions_of_messages(store, chat.session.id)]
    header = load_file(tmp_path / "talk.jsonl")

    assert said == (
        f"wrote {tmp_path}/talk.jsonl\nrecord {lost[0]}: the store has lost this message; the export has a notice in "
        "its place"
    )
    assert (header.session, header.conversations[0].name) == (chat.session.id, "Tides")


async def _positions_of_messages(store: MemoryStore, session: str) -> AsyncGenerator[int]:
    for stored in await store.read(session):
        if stored.record["type"] == "message.appended":
            yield stored.position


async def test_a_title_of_invisible_characters_replaces_no_title(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 1)
    await reply_to(chat, screen, "/title Tides")

    said = await reply_to(chat, screen, "/title \u200b\u2060")

    assert said == "/title: takes the new title"
    assert [info.name for info in await chat.store.sessions()] == ["Tides"]


async def test_export_writes_markdown_or_a_log_and_overwrites_nothing(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 1)

    assert await reply_to(chat, screen, f"/export {tmp_path}/talk.md") == f"wrote {tmp_path}/talk.md"
    assert (tmp_path / "talk.md").read_text().startswith("**user**\n\nquestion 0 why")
    assert "already exists" in await reply_to(chat, screen, f"/export {tmp_path}/talk.md")
    assert await reply_to(chat, screen, "/export ~nobody-has-this-name/talk.md") == (
        "/export: cannot write '~nobody-has-this-name/talk.md': Could not determine home directory."
    )
    assert await reply_to(chat, screen, f"/export {tmp_path}/talk.jsonl") == f"wrote {tmp_path}/talk.jsonl"
    assert "holdfast.export" in (tmp_path / "talk.jsonl").read_text().splitlines()[0]
    assert (await reply_to(chat, screen, "/export")).startswith("**user**")
    assert await reply_to(chat, screen, f"/export {tmp_path}/talk.pdf") == (
        "/export: writes FILE.md, FILE.txt or FILE.jsonl, not '.pdf'"
    )
    assert not (tmp_path / "talk.pdf").exists()


async def test_quit_leaves(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    await reply_to(chat, screen, "/q")

    assert chat.is_over


async def test_a_session_of_another_format_is_continued_as_a_copy(tmp_path: Path) -> None:
    store = MemoryStore()
    chat, screen = await open_chat(tmp_path, store=store)
    async with Session.open("other", store=store) as other:
        await other.record([{"role": "user", "content": "hello"}])

    shown = await reply_to(chat, screen, "/resume other")

    assert shown == (
        "other holds openai-chat messages; the chat continues its copy other-chat\n"
        "other-chat: 1 message; the last prompt was “hello”"
    )
    assert len(chat.session) == 1


async def test_show_compares_two_readings_of_a_file(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    for number, text in enumerate(
        ["one\ntwo\n", "one\n2\n", "one\n2\n", "x\n" * 9_000, "tide and moon and sea and salt\n" * 3_999]
    ):
        call = {
            "part_kind": "tool-call",
            "tool_name": "read_file",
            "args": {"path": "a.py"},
            "tool_call_id": f"c{number}",
        }
        back = {"part_kind": "tool-return", "tool_name": "read_file", "content": text, "tool_call_id": f"c{number}"}
        native = [{"kind": "response", "parts": [call]}, {"kind": "request", "parts": [back]}]
        await chat.session.record(native, format="pydantic-ai")

    both, before = await reply_to(chat, screen, "/show diff #1 #3"), await reply_to(chat, screen, "/show diff #3")
    same, none = await reply_to(chat, screen, "/show diff #5"), await reply_to(chat, screen, "/show diff b.py")
    long, alone = await reply_to(chat, screen, "/show diff #5 #9"), await reply_to(chat, screen, "/show diff")

    assert both == before
    assert re.fullmatch(
        r"\*\*what changed in a\.py from #1 \([^)]*\) to #3 \([^)]*\), .*\.\*\*\n\n(?s:```diff.*)", both
    )
    assert "\n one\n-two\n+2\n```" in both
    assert re.fullmatch(r"\*\*nothing changed in a\.py from #3 .* to #5 .*\.\*\*", same)
    assert "b.py was not read twice here" in none
    assert re.search(r"[\d,]+ more lines are not shown", long)
    assert alone == "/show diff: takes two references such as #12 #40, or one, or a file"


async def test_recall_finds_what_was_said_long_ago_and_show_expands_it(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 12)
    await chat.session.record([asked("The key lies under the ``` flower pot.")], format="pydantic-ai")
    await add_turns(chat, 12)

    found = await reply_to(chat, screen, "/recall where is the flower pot?")

    assert found.startswith("**#24 · user · ")
    assert "\n\n````text\nThe key lies under the ``` flower pot.\n````\n" in found
    assert found.endswith("/show #N shows a whole message")
    assert (await reply_to(chat, screen, "/show #24")).endswith(
        "````text\nThe key lies under the ``` flower pot.\n````"
    )
    assert await reply_to(chat, screen, "/recall #24") == await reply_to(chat, screen, "/show 24")


async def test_recall_shows_what_was_found_and_its_answer_and_not_all_around_it(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    talk = [("Where is the spare key?", "Under the pot."), ("What is for lunch?", "Soup."), ("And then?", "Bread.")]
    for prompt, answer in talk:
        reply = {"kind": "response", "parts": [{"part_kind": "text", "content": answer}]}
        await chat.session.record([asked(prompt), reply], format="pydantic-ai")

    found = await reply_to(chat, screen, "/recall spare key")

    assert re.findall(r"\*\*#(\d) · (\w+)", found) == [("0", "user"), ("1", "assistant")]


async def test_what_comes_from_memory_is_shown_and_counted_as_nobodys_word(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await chat.session.add_memory_note("Keep the key under the pot.", format="pydantic-ai")
    await add_turns(chat, 1)

    shown = [await reply_to(chat, screen, line) for line in ("/show #0", "/recall key", "/context", "/export")]

    assert [text.startswith("**#0 · memory · ") for text in shown[:2]] == [True, True]
    assert "3 messages (1 assistant, 1 memory, 1 user)" in shown[2]
    assert shown[3].startswith("**memory**\n\nKeep the key")


async def test_recall_finds_a_word_that_the_index_does_not_hold_because_its_text_is_very_long(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    text = " ".join(f"word{number}" for number in range(90_000))
    await chat.session.record([asked("hello"), asked(text)], format="pydantic-ai")

    found = await reply_to(chat, screen, "/recall word89999")

    head, _, rest = found.partition("**\n\n```text\n")
    excerpt, _, notes = rest.partition("\n```\n")
    assert re.fullmatch(r"\*\*#1 · user · [-\d]+ [:\d]+ · characters \d+-888889 of 888889", head)
    assert excerpt.endswith("word89998 word89999")
    assert notes.endswith("\n/show #N shows a whole message")


async def test_show_says_which_lines_there_are_what_is_missing_and_how_to_go_on(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    lines = "".join(f"line {number} of the tide table\n" for number in range(1, 9_001))
    await chat.session.record([asked("one\ntwo\nthree"), asked(lines)], format="pydantic-ai")

    some, long = await reply_to(chat, screen, "/show #0:L2-L3 #9"), await reply_to(chat, screen, "/show #1")

    assert re.sub(r"\d{4}-.*\d:\d\d", "TIME", some) == (
        "**#0 · user · TIME · lines 2-3 of 3 · characters 4-13 of 13**\n\n```text\ntwo\nthree\n```\n"
        "there is no message #9 here"
    )
    assert re.fullmatch(r"there is more: /show #1:\d+-", long.splitlines()[-1])


async def test_recall_and_show_say_what_they_cannot_find(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await add_turns(chat, 1)

    assert await reply_to(chat, screen, "/recall xylophone") == "nothing was found"
    assert (
        await reply_to(chat, screen, "/recall") == "/recall: takes words to search for, or references such as #12-#20"
    )
    assert await reply_to(chat, screen, "/show") == "/show: takes a reference, such as #12 or #12-#20"
    assert await reply_to(chat, screen, "/show #99") == (
        "there is no message #99 here; give a ref that stands in view, or search"
    )
    assert "is no reference" in await reply_to(chat, screen, "/show (what?)")


@pytest.mark.seed("D-24")
async def test_what_was_cleared_is_not_found_any_more(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    await chat.session.record([asked("The key lies under the flower pot.")], format="pydantic-ai")
    await reply_to(chat, screen, "/clear")

    assert await reply_to(chat, screen, "/recall flower pot") == (
        "nothing was found since the clear; /memory search finds notes of earlier messages"
    )
    assert (await reply_to(chat, screen, "/show #0")).startswith("there is no message #0 here")


def asked(text: str) -> dict[str, object]:
    return {"kind": "request", "parts": [user_part(text)]}


async def test_the_files_of_a_session_whose_retention_is_over_go_with_it(tmp_path: Path) -> None:
    store, long_ago = MemoryStore(), 1_600_000_000_000
    async with Session.open("old", store=store, policy="cowagent", clock=lambda: long_ago) as old:
        await old.record([{"role": "user", "content": "one"}])
    await delete_expired_sessions(store, now_ms=long_ago + 40 * MS_PER_DAY, keep="")
    attachments = tmp_path / "attachments" / "old"
    attachments.mkdir(parents=True)
    (attachments / "paste-1.txt").write_text("words")

    _, screen = await open_chat(tmp_path, store=store, flags={"preset": "cowagent"})

    assert (await store.sessions(prefix="old"), attachments.exists()) == ([], False)
    assert f"deleted old, which its settings keep for a limited time, {attachments}" in screen.since(0)
