"""The slash commands."""

import asyncio
import re
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast import Session
from holdfast.apps.chat.commands.context import _describe_cost
from holdfast.apps.chat.dispatch import SLASH_COMMANDS, run_slash_command
from holdfast.apps.chat.events import MAX_LISTED_FACTS, ChatEvent, ChatNotice, CommandTable
from holdfast.apps.chat.loop import run_chat_loop
from holdfast.apps.chat.terminal_screen import TerminalScreen
from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import MAIN, Summary
from holdfast.core.planning.context_report import CostForecast
from holdfast.core.planning.steps import CompactSpan
from holdfast.session.compaction.checkpoints import NO_CHECKPOINTS
from holdfast.session.compaction.compactor import SummaryDraft
from holdfast.stores.memory import MemoryStore
from tests.chat.room import Room, entered, said, told, user_part

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
    chat, room = await entered(tmp_path)

    assert await told(chat, room, "/compcat") == "/compcat: is not a command; did you mean /compact or /recompact?"
    assert await told(chat, room, "/xyzzy") == "/xyzzy: is not a command; /help lists all"
    assert await told(chat, room, "/re") == (
        "/re: is not a command; did you mean "
        "/recall or /receipts or /recompact or /redo or /restore or /resume or /retry or /rewind?"
    )
    assert (await told(chat, room, "/his")).startswith("0 turns")


@pytest.mark.parametrize("command", ["agents", "rewind", "fork", "pin"])
@pytest.mark.parametrize("number", ["9" * 5_000, "-1", "x"], ids=["huge", "negative", "none"])
async def test_a_number_that_means_nothing_is_refused_in_a_line(tmp_path: Path, command: str, number: str) -> None:
    chat, room = await entered(tmp_path)
    await said(chat, 1)

    answer = await told(chat, room, f"/{command} {number}")

    assert answer.startswith(f"/{command}: ")
    assert answer.endswith("lists them")
    assert len(answer) < 200


class FaultyRoom(Room):
    """A screen that cannot show tables."""

    def show(self, event: ChatEvent) -> None:
        if isinstance(event, CommandTable):
            raise TypeError("no room for\na table")
        super().show(event)


async def test_a_command_with_a_fault_is_told_in_a_line_and_the_conversation_goes_on(tmp_path: Path) -> None:
    chat, _ = await entered(tmp_path)
    chat.screen = room = FaultyRoom()

    is_done = [await run_slash_command(chat, line) for line in ("/help", "/board add Use tabs")]

    assert is_done == [False, True]
    first, second = (happening for happening in room.happened if isinstance(happening, ChatNotice))
    what = "that failed (TypeError: no room for a table), which is a bug in Holdfast; the conversation continues"
    assert first == ChatNotice(what, "error")
    assert second.text.endswith("Use tabs")


async def test_what_is_typed_is_answered_also_after_something_went_wrong_before_it(tmp_path: Path) -> None:
    chat, _ = await entered(tmp_path)

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
    chat, room = await entered(tmp_path)

    every = await told(chat, room, "/help")
    assert "/compact [FOCUS] | Replace older messages by a summary now; FOCUS says what matters most in it." in every
    assert await told(chat, room, "/help undo") == (
        "**/undo **\n\nUndo the last change of context: a compaction, a clear, a rewind."
    )


@pytest.mark.seed("A-8", "A-37")
async def test_clear_empties_the_context_and_undo_brings_it_back(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    await said(chat, 2)

    assert await told(chat, room, "/clear") == "the context is empty; /undo restores it"
    assert await told(chat, room, "/history") == "0 turns, 0 messages; 4 are in the log"
    assert await told(chat, room, "/undo") == "undone; /redo applies it again"
    assert await told(chat, room, "/history") == "2 turns, 4 messages; 4 are in the log"
    assert await told(chat, room, "/redo") == "applied again"
    assert await told(chat, room, "/redo") == "there is nothing to redo"


@pytest.mark.seed("C-34")
async def test_the_meter_counts_anew_when_a_command_changes_the_context(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await said(chat, 12)
    shown: list[int] = []
    for command in ("/compact", "/undo", "/clear"):
        await told(chat, room, command)
        shown.append(chat.status.tokens)

    compacted, whole, cleared = shown
    assert 0 < compacted < whole
    assert cleared == (await chat.session.context_breakdown(budget=chat.budget)).total < compacted


@pytest.mark.seed("D-21")
async def test_context_clear_clears_the_context(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    await said(chat, 2)

    await told(chat, room, "/context clear")

    assert await chat.session.visible_messages() == []


@pytest.mark.seed("A-38")
async def test_history_counts_turns_as_the_preset_does(tmp_path: Path) -> None:
    call = {"part_kind": "tool-call", "tool_name": "look", "args": "{}", "tool_call_id": "c1"}
    back = {"part_kind": "tool-return", "tool_name": "look", "content": "seen", "tool_call_id": "c1"}
    loop = [{"kind": "response", "parts": [call]}, {"kind": "request", "parts": [back]}]
    counts: list[str] = []

    for preset in ("default", "co-cli"):
        chat, room = await entered(tmp_path, flags={"preset": preset})
        await said(chat, 1)
        await chat.session.record(loop, format="pydantic-ai")
        counts.append(await told(chat, room, "/history"))

    assert counts == ["1 turn, 4 messages; 4 are in the log", "2 turns, 4 messages; 4 are in the log"]


@pytest.mark.seed("D-20")
async def test_context_shows_counts_roles_characters_and_the_next_fold(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, flags={"max_context_tokens": "4000"})
    await said(chat, 3)

    shown = await told(chat, room, "/context")

    assert "PART | TOKENS | SHARE" in shown
    assert "6 messages (3 assistant, 3 user), 900 characters" in shown
    assert "next compaction at " in shown
    assert "turns at this pace" in shown


async def test_context_says_that_a_fold_comes_with_the_next_turn(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, flags={"max_context_tokens": "700"})
    await said(chat, 5)

    shown = await told(chat, room, "/context")

    assert "next compaction at 560 tokens; there are 483, likely within the next turn" in shown


@pytest.mark.parametrize(
    ("forecast", "told_of_it"),
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
def test_what_the_next_fold_will_cost_is_told_as_far_as_prices_are_known(
    forecast: CostForecast, told_of_it: str
) -> None:
    assert _describe_cost(forecast) == told_of_it


@pytest.mark.seed("C-4")
async def test_compact_says_how_many_messages_and_tokens_went(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await said(chat, 12)

    preview = await told(chat, room, "/preview")
    done = await told(chat, room, "/compact the tides")
    receipts = await told(chat, room, "/receipts")

    assert "messages would be compacted into 1" in preview
    assert "messages compacted into 1" in done
    assert "freed), by rule" in done
    assert room.was_busy == ["Compacting conversation history", ""]
    assert "undo with /undo" in receipts


async def test_a_preview_lists_the_facts_that_would_not_be_in_view_any_more(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, flags={"max_context_tokens": "2000", "summarization_model": "none"})
    for number in range(60):
        words = f"We decided to use module_{number}_with_a_long_name_that_nobody_says_again."
        await chat.session.record([{"kind": "request", "parts": [user_part(words)]}], format="pydantic-ai")

    preview, draft = await told(chat, room, "/preview"), await told(chat, room, "/preview draft")
    wrong = await told(chat, room, "/preview all")

    would = await chat.session.preview(budget=chat.budget)
    assert "\n\nNo longer in view; /show displays each:\n- " in preview
    assert all(f"\n- {fact}" in preview for fact in would.summary.left_out[:MAX_LISTED_FACTS])
    assert preview.endswith(f"\n- and {len(would.summary.left_out) - MAX_LISTED_FACTS} more")
    assert draft == preview, "nobody is there to write one"
    assert "takes nothing or `draft`" in wrong


async def test_a_person_who_is_to_approve_a_summary_sees_what_it_loses(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, "yes", "no")
    step = CompactSpan(span=Span(start=0, stop=9, count=9), by="summary")
    lossy = Summary("All went well.", put_back=("Decided: “tides first” [#3]",), left_out=("lunar_table [#4]",))
    approve = chat._callbacks().approve
    assert approve is not None

    answers = [
        await approve(SummaryDraft(step, lossy, 900)),
        await approve(SummaryDraft(step, Summary("All is here."), 900)),
    ]

    assert answers == [True, False]
    assert room.happened == [
        ChatNotice(
            "Lost by the summary, and restored:\n- Decided: “tides first” [#3]\n\n"
            "No longer in view; /show displays each:\n- lunar_table [#4]"
        )
    ]


async def test_an_empty_context_is_told_without_roles(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)

    shown = await told(chat, room, "/context")

    assert "- 0 messages, 0 characters\n" in shown


async def test_one_number_of_messages_is_told_wherever_a_compaction_is_told_of(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await said(chat, 12)

    preview, context = await told(chat, room, "/preview"), await told(chat, room, "/context")
    done, receipts = await told(chat, room, "/compact"), await told(chat, room, "/receipts")

    (fold,) = chat.session.history.version.state_of(MAIN).compactions
    many, freed = fold.span.message_count, fold.tokens_removed
    assert f"Summary of {many} earlier messages" in fold.replacement[0]
    assert preview.startswith(f"{many} messages would be compacted into 1: ")
    assert done.startswith(f"{many} messages compacted into 1: ")
    assert f"messages  {many} replaced by 1, {len(fold.span.kept)} kept whole" in receipts
    assert f"tokens; a compaction would free {freed:,}\n" in context
    assert f"({freed:,} freed)" in preview


async def test_the_next_fold_is_told_in_the_tokens_that_the_context_is_told_in(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, flags={"max_context_tokens": "6144"})
    await said(chat, 1, words=4)

    context, preview = await told(chat, room, "/context"), await told(chat, room, "/preview")

    held = (await chat.session.context_breakdown(budget=chat.budget)).total
    assert f"- {held:,} ± 6 % of 6,144 tokens; nothing to compact yet\n" in context
    assert f" tokens; there are {held:,}, in about " in context
    assert re.search(r"\n- it will cost up to \$[\d.]+: [\d,]+ tokens read", context)
    assert preview.startswith("nothing to compact")


async def test_a_compaction_is_made_anew_and_messages_of_it_are_brought_back(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, flags={"max_context_tokens": "4000", "summarization_model": "none"})
    await said(chat, 12)
    none = await told(chat, room, "/recompact")
    await told(chat, room, "/compact")

    again = await told(chat, room, "/recompact the tides")
    back = await told(chat, room, "/restore #2-#4")

    assert none == "nothing to compact: none of the 24 messages can be compacted"
    assert "messages compacted into 1" in again
    assert back == "3 messages restored; /undo reverts it"
    assert {2, 3, 4} <= {entry.position for entry in await chat.session.visible_messages()}
    await told(chat, room, "/undo")
    assert 3 not in {entry.position for entry in await chat.session.visible_messages()}
    assert "such as #12" in await told(chat, room, "/restore tides")
    assert "give positions between 0 and " in await told(chat, room, "/restore #23-#99999999999")


async def test_compact_on_nothing_says_so(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)

    assert "nothing" in await told(chat, room, "/compact")
    assert await told(chat, room, "/receipts") == "nothing has been compacted yet"


async def test_rewind_lists_prompts_and_goes_back_to_one(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    assert await told(chat, room, "/rewind") == "there are no messages yet"
    await said(chat, 3)

    listed = await told(chat, room, "/rewind")
    assert [line.split(" why")[0] for line in listed.splitlines()] == [
        "MESSAGE | PROMPT", "0 | question 0", "2 | question 1", "4 | question 2",
    ]  # fmt: skip
    assert "is not the number of a prompt" in await told(chat, room, "/rewind 1")
    assert await told(chat, room, "/rewind 2") == "back before message 2; /undo reverts it"
    assert len(await chat.session.visible_messages()) == 2


async def test_a_fork_goes_on_in_a_copy_and_resume_goes_back(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    await said(chat, 2)
    first = chat.session.id

    assert (await told(chat, room, "/fork 2")).endswith(f"/resume {first} returns to the original")
    assert chat.session.id != first
    assert len(await chat.session.visible_messages()) == 2
    assert await told(chat, room, f"/resume {first}") == f"{first}: 4 messages"
    assert "is not known" in await told(chat, room, "/resume nothing")


@pytest.mark.seed("A-44")
async def test_new_begins_another_conversation_and_sessions_lists_them(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    assert await told(chat, room, "/sessions") == "there are no saved conversations yet"
    await said(chat, 1)
    first = chat.session.id

    assert await told(chat, room, "/new") == f"a new conversation; /resume {first} returns to the old one"
    assert chat.session.id != first
    assert f" | {first} | now | " in await told(chat, room, "/sessions")
    assert await told(chat, room, "/resume") == f"{first}: 2 messages"


@pytest.mark.seed("C-43")
async def test_session_checkpoints_says_when_there_are_none(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)

    assert await told(chat, room, "/session checkpoints") == NO_CHECKPOINTS


async def test_pins_stay_whole(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    await said(chat, 2)

    assert await told(chat, room, "/pin") == "message 2 stays whole"
    assert await told(chat, room, "/pin 0") == "message 0 stays whole"
    assert chat.session.history.session_state.pins == {0, 2}
    assert await told(chat, room, "/unpin 2") == "message 2 is no longer pinned"
    assert "takes the number of a message" in await told(chat, room, "/pin x")


@pytest.mark.seed("D-4", "D-7", "D-22")
async def test_config_changes_a_setting_at_once_and_says_where_values_come_from(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path, flags={"preset": "cowagent"})

    assert "max_context_tokens | 50,000 | preset cowagent" in await told(chat, room, "/config agent_max_context_tokens")
    assert (await told(chat, room, "/config agent_max_context_tokens 80000")).startswith("max_context_tokens = 80,000")
    assert (await told(chat, room, "/config agent_max_context_turns 30")).startswith("max_context_turns = 30")
    fold = chat.session.policy.compaction
    assert (getattr(fold, "max_tokens", 0), getattr(fold, "max_turns", 0)) == (80_000, 30)
    assert "changed in this session" in await told(chat, room, "/config max_context_turns")
    assert await told(chat, room, "/config max_steps many") == (
        "max_steps: must be a whole number from 1 to 1,000,000, or 0 for none, not 'many'"
    )


async def test_config_keeps_a_setting_on_request(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)

    shown = await told(chat, room, "/config max_steps 7 --save")

    assert shown.startswith("max_steps = 7, saved in ")
    assert (tmp_path / "holdfast.toml").read_text() == "max_steps = 7\n"


@pytest.mark.seed("C-52")
async def test_a_smaller_model_is_asked_about_and_the_conversation_compacted_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    chat, room = await entered(tmp_path, "no", "yes", flags={"summarization_model": "none"})
    await said(chat, 40, words=150)

    unknown = await told(chat, room, "/model nobody:knows")
    refused = await told(chat, room, "/model openai:gpt-4")
    switched = await told(chat, room, "/model openai:gpt-4")

    assert unknown.startswith("nobody:knows: ")
    assert refused == "not switched; the model is still gpt-5"
    assert room.asked[0].endswith("Compact first, and switch?")
    assert switched == "switched to openai:gpt-4"
    assert (await chat.session.context_breakdown(budget=chat.budget)).total < chat.budget.tokens


async def test_a_preset_takes_effect_at_once(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)

    assert await told(chat, room, "/preset") == "default; there are: default, co-cli, inkeep, copilot, cowagent"
    assert (await told(chat, room, "/preset co-cli")).startswith("switched to preset co-cli")
    assert chat.session.policy.name == "co-cli"
    assert "is not known" in await told(chat, room, "/preset nope")


async def test_export_writes_markdown_or_a_log_and_overwrites_nothing(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    await said(chat, 1)

    assert await told(chat, room, f"/export {tmp_path}/talk.md") == f"wrote {tmp_path}/talk.md"
    assert (tmp_path / "talk.md").read_text().startswith("**user**\n\nquestion 0 why")
    assert "already exists" in await told(chat, room, f"/export {tmp_path}/talk.md")
    assert await told(chat, room, f"/export {tmp_path}/talk.jsonl") == f"wrote {tmp_path}/talk.jsonl"
    assert "holdfast.export" in (tmp_path / "talk.jsonl").read_text().splitlines()[0]
    assert (await told(chat, room, "/export")).startswith("**user**")


async def test_quit_leaves(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)

    await told(chat, room, "/q")

    assert chat.is_over


async def test_a_session_of_another_format_is_not_gone_on_with(tmp_path: Path) -> None:
    store = MemoryStore()
    chat, room = await entered(tmp_path, store=store)
    async with Session.open("other", store=store) as other:
        await other.record([{"role": "user", "content": "hello"}])

    shown = await told(chat, room, "/resume other")

    assert shown == "session: 'other' holds openai-chat messages; the chat can continue only its own sessions"
    assert len(chat.session) == 0


async def test_show_compares_two_readings_of_a_file(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
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

    both, before = await told(chat, room, "/show diff #1 #3"), await told(chat, room, "/show diff #3")
    same, none = await told(chat, room, "/show diff #5"), await told(chat, room, "/show diff b.py")
    long, alone = await told(chat, room, "/show diff #5 #9"), await told(chat, room, "/show diff")

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
    chat, room = await entered(tmp_path)
    await said(chat, 12)
    await chat.session.record([asked("The key lies under the ``` flower pot.")], format="pydantic-ai")
    await said(chat, 12)

    found = await told(chat, room, "/recall where is the flower pot?")

    assert found.startswith("**#24 · user · ")
    assert "\n\n````text\nThe key lies under the ``` flower pot.\n````\n" in found
    assert found.endswith("/show #N shows a whole message")
    assert (await told(chat, room, "/show #24")).endswith("````text\nThe key lies under the ``` flower pot.\n````")
    assert await told(chat, room, "/recall #24") == await told(chat, room, "/show 24")


async def test_recall_shows_what_was_found_and_its_answer_and_not_all_around_it(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    talk = [("Where is the spare key?", "Under the pot."), ("What is for lunch?", "Soup."), ("And then?", "Bread.")]
    for prompt, answer in talk:
        reply = {"kind": "response", "parts": [{"part_kind": "text", "content": answer}]}
        await chat.session.record([asked(prompt), reply], format="pydantic-ai")

    found = await told(chat, room, "/recall spare key")

    assert re.findall(r"\*\*#(\d) · (\w+)", found) == [("0", "user"), ("1", "assistant")]


async def test_what_comes_from_memory_is_shown_and_counted_as_nobodys_word(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    await chat.session.add_memory_note("Keep the key under the pot.", format="pydantic-ai")
    await said(chat, 1)

    shown = [await told(chat, room, line) for line in ("/show #0", "/recall key", "/context", "/export")]

    assert [text.startswith("**#0 · memory · ") for text in shown[:2]] == [True, True]
    assert "3 messages (1 assistant, 1 memory, 1 user)" in shown[2]
    assert shown[3].startswith("**memory**\n\nKeep the key")


async def test_recall_and_show_say_what_they_cannot_find(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    await said(chat, 1)

    assert await told(chat, room, "/recall xylophone") == "nothing was found"
    assert await told(chat, room, "/recall") == "/recall: takes words to search for, or references such as #12-#20"
    assert await told(chat, room, "/show") == "/show: takes a reference, such as #12 or #12-#20"
    assert await told(chat, room, "/show #99") == (
        "there is no message #99 here; give a ref that stands in view, or search"
    )
    assert "is no reference" in await told(chat, room, "/show (what?)")


@pytest.mark.seed("D-24")
async def test_what_was_cleared_is_not_found_any_more(tmp_path: Path) -> None:
    chat, room = await entered(tmp_path)
    await chat.session.record([asked("The key lies under the flower pot.")], format="pydantic-ai")
    await told(chat, room, "/clear")

    assert await told(chat, room, "/recall flower pot") == (
        "nothing was found since the clear; /memory search finds notes of earlier messages"
    )
    assert (await told(chat, room, "/show #0")).startswith("there is no message #0 here")


def asked(text: str) -> dict[str, object]:
    return {"kind": "request", "parts": [user_part(text)]}
