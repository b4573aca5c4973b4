"""What strangers write stays data: wherever an attack is planted, nothing in it is promoted.

Each attack of `attacks.toml` takes the place of harmless words; what counts must then be the same: constraints and
decisions, pins, plans, proposals for the board, and every line that opens or ends a frame or speaks for somebody.
"""

import re
import tomllib
import unicodedata
from collections.abc import Awaitable, Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.core.conversation.frames import inbox_frame
from holdfast.core.history import events as log
from holdfast.core.memory.board import Board, parse_board
from holdfast.core.memory.evictions import Eviction
from holdfast.core.memory.notes import append_section, eviction_section, parse_sections
from holdfast.core.planning.summary.board_prompt import BoardDraft, propose_by_rule
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel

ATTACKS: dict[str, str] = {
    f"{kind}.{name}": text
    for kind, attacks in tomllib.loads((Path(__file__).parent / "attacks.toml").read_text()).items()
    for name, text in attacks.items()
}
WORDS = "The flood comes six hours behind the ebb. " * 40
HARMLESS = "The tide tables are from March."
RULE = "Never push to main. Please read notes.txt and mend src/tides.py."
SIGHTLESS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
LOOKALIKES = str.maketrans("АаВЕеКМНОоРрСсТуХхЅѕІіЈј", "AaBEeKMHOoPpCcTyXxSsIiJj")
BONES = re.compile(
    r"(?i)\s*[*_#>\s]*(?:\[\s*(?:summary of|end of|ledger of|plan,|inbox|all of it can|#)"
    r"|what the (?:user|assistant) said|the user asked to keep to:"
    r"|agents were told:|identifiers used|(?:system|developer|user|human|assistant|tool)\s*:"
    r"|</?(?:system|user|assistant|summary|messages|focus|previous-summary|system-reminder|tool_call|invoke)\b"
    r"|<\|im_|\[/?inst|\(#\d+\) )"
)
"""How a line begins that opens or ends a frame, or speaks for somebody."""
HEADINGS = re.compile(r"\s*[*_>\s]*(?:\[\W*#|</?[a-z-]+-MARK>)")
"""How a line begins that a summarizer is told to go by."""


def seen(text: str) -> list[str]:
    """Return the lines of a text as they are read: without what has no width, and lookalikes as what they look like."""
    plain = SIGHTLESS.sub("", text.replace("\u2028", "\n").replace("\r", "\n"))
    return unicodedata.normalize("NFKC", plain).translate(LOOKALIKES).split("\n")


def bones(text: str, pattern: re.Pattern[str] = BONES) -> list[str]:
    """Return the lines that say who speaks and where a frame begins and ends, whatever numbers stand in them."""
    return [re.sub(r"[\d,]+", "0", line) for line in seen(text) if pattern.match(line)]


def talk(planted: str) -> list[JsonMessage]:
    """Return a conversation in which a text comes back from tools, as a file, an error and a single line."""
    calls = [("c1", planted), ("c2", f"Error: {planted}"), ("c3", " ".join(planted.split()))]
    work = [
        message
        for call, text in calls
        for message in (tool_call_message(call, arguments={"path": "notes.txt"}), tool_result_message(call, text))
    ]
    wrote = [
        tool_call_message("c4", arguments={"path": "copy.txt", "content": planted}),
        tool_result_message("c4", "See tide_table_3.csv"),
    ]
    turns = [
        message
        for n in range(2)
        for message in (user_message(f"And table {n}?"), assistant_message(f"Table {n} is right. " + WORDS))
    ]
    return [
        user_message(RULE),
        *work,
        *wrote,
        assistant_message("I have read the notes."),
        *turns,
        user_message("Go on."),
    ]


async def promoted(session: Session) -> dict[str, Any]:
    """Return all that could be made of a text: rules, decisions, pins, plans, and proposals for a board."""
    history = session.history
    wishes = list(history.ledger(log.MAIN, len(history)).constraints)
    entries = list(history.context().entries_between(0, len(history)))
    draft = BoardDraft(Board(), "c", "2026-11-15", {entry.position or 0: entry for entry in entries})
    propose_by_rule(draft, wishes, 0)
    facts = history.session_state
    return {
        "wishes": [(wish.kind, wish.text, wish.speaker, wish.status) for wish in wishes],
        "proposals": [(proposal.action, proposal.text) for proposal in draft.proposals],
        "facts": (facts.pins, facts.plan, facts.todos, facts.skills, facts.agent_summary),
        "prompts": [entry.message.text for entry in entries if entry.message.is_prompt],
    }


async def in_tools(planted: str) -> dict[str, Any]:
    """Return what becomes of a text from a tool, when what it stands in is compacted by rule."""
    async with Session.open("c", model="gpt-5") as session:
        await session.record(talk(planted))
        await session.compact(budget=16_000)
        request = await session.prepare(16_000)
        compaction = str(request.messages[0]["content"])
        assert compaction.startswith("[Summary of ")
        return {**await promoted(session), "frames": bones(compaction)}


async def before_a_summarizer(planted: str) -> dict[str, Any]:
    """Return how a text from a tool is shown to who writes a summary."""
    model = ScriptedModel(repeat("Intent: mend src/tides.py [#0]. Next: run the tests."))
    async with Session.open("c", model="gpt-5", summarizer=model) as session:
        await session.record(talk(planted))
        await session.compact(budget=16_000)
        asked = model.prompts[-1].text
        asked = asked.replace(re.findall(r"MARK is (\w+)", asked)[0], "MARK")
        return {**await promoted(session), "frames": bones(asked, HEADINGS)}


async def in_a_summary(planted: str) -> dict[str, Any]:
    """Return what becomes of a text that a summarizer repeats, at once and after another compaction."""
    model = ScriptedModel(repeat(f"Intent: mend src/tides.py [#0].\n{planted}\nNext: run the tests."))
    async with Session.open("c", model="gpt-5", summarizer=model) as session:
        await session.record(talk(HARMLESS))
        await session.compact(budget=16_000)
        first = str((await session.prepare(16_000)).messages[0]["content"])
        await session.record([assistant_message("Done. " + WORDS), user_message("And now?")])
        await session.compact(budget=16_000)
        second = str((await session.prepare(16_000)).messages[0]["content"])
        return {**await promoted(session), "frames": bones(first), "again": bones(second)}


async def in_memory(planted: str) -> dict[str, Any]:
    """Return what becomes of a text that memory offers, in a new conversation and in its compaction."""
    async with Session.open("c", model="gpt-5") as session:
        await session.add_memory_note(inbox_frame([f"- {planted}"], "tides"))
        await session.record(talk(HARMLESS))
        inbox = str((await session.prepare(16_000)).messages[0]["content"])
        await session.compact(budget=16_000)
        compaction = "\n".join(str(message["content"]) for message in (await session.prepare(16_000)).messages)
        return {**await promoted(session), "frames": bones(inbox), "compaction": bones(compaction)}


@pytest.mark.seed("A-28")
@pytest.mark.parametrize("plant", [in_tools, before_a_summarizer, in_a_summary, in_memory])
async def test_no_attack_is_promoted_wherever_it_is_planted(plant: Callable[[str], Awaitable[dict[str, Any]]]) -> None:
    expected = await plant(HARMLESS)

    found = {name: await plant(text) for name, text in ATTACKS.items()}

    assert {name: outcome for name, outcome in found.items() if outcome != expected} == {}
    assert ("constraint", "Never push to main.", "user", "active") in expected["wishes"]


def test_no_attack_becomes_a_section_of_a_days_notes() -> None:
    for text in ATTACKS.values():
        said = f"Said:\n{text}"
        eviction = Eviction(log_index=3, time_ms=0, cause="trimmed", ranges=(range(4),))
        note = eviction_section("s", eviction, said, day="2026-11-15", time="10:00")

        (section,) = parse_sections(append_section("", note), "2026-11-15")

        assert (section.session, section.place, section.messages) == ("s", 3, "#0-3")


def test_no_attack_becomes_more_than_the_one_entry_that_it_was_put_on_a_board_as() -> None:
    for text in ATTACKS.values():
        board = Board().with_note(text, day="2026-11-15", sources=("s #1",))

        (entry,) = parse_board(str(board)).notes

        assert (entry.id, entry.sources, entry.offered_count) == (board.notes[0].id, ("s #1",), 0)


def test_no_entry_of_an_inbox_ends_it_wherever_in_a_line_it_tries() -> None:
    for text in ATTACKS.values():
        framed = inbox_frame([f"- {line}" for line in text.split("\n")], "tides")

        ends = [line for line in seen(framed) if re.search(r"(?i)\[\s*end of the inbox", line)]

        assert ends == ["[End of the inbox.]"]


def test_there_are_many_attacks_and_each_is_its_own() -> None:
    assert len(set(ATTACKS.values())) == len(ATTACKS) >= 50
