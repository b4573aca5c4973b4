"""`rem-agent` reads conversations that are over, changes none of them, and reads each once."""

import hashlib
import json
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.core.planning.summary.board_prompt import BOARD_TOOL, CONSOLIDATION_AGENT, BoardProposal
from holdfast.errors import DamagedStoreError, MalformedInputError, StoreUnavailableError
from holdfast.models.base import SummaryPrompt
from holdfast.session.memory import consolidation
from holdfast.session.memory.board_file import ContextBoard, Repository, board_key
from holdfast.session.memory.consolidation import (
    CONSOLIDATION_INTERACTION,
    SESSION_IDLE_MS,
    ConsolidationResult,
    ReadProgress,
    RemAgent,
)
from holdfast.stores.base import SessionInfo, Store, StoredRecord
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import FailingModel, ScriptedModel

WORK = Repository(Path("/work/report"), "main")
NOW = 1_800_000_000_000
RULE = "Always run the tests with make test."


def agent(folder: Path, store: Store, *, writer: ScriptedModel | FailingModel | None = None, now: int = 0) -> RemAgent:
    return RemAgent(
        store, ContextBoard(folder, WORK), summarizer=writer, clock=lambda: now or NOW + 2 * SESSION_IDLE_MS
    )


async def held(store: Store, name: str, *texts: str, board: str = WORK.key) -> None:
    """Let a conversation have been."""
    async with Session.open(name, store=store, clock=lambda: NOW) as session:
        await store.put_value(board_key(name), {"board": board})
        for text in texts:
            await session.record([user_message(text), assistant_message("Yes.")])


async def log_of(store: Store, session: str) -> tuple[int, str]:
    records = [[stored.time_ms, dict(stored.record)] for stored in await store.read(session)]
    return len(records), hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


@pytest.mark.seed("C-55")
@pytest.mark.parametrize("writes", [False, True], ids=["rule", "model"])
async def test_consolidation_proposes_for_the_board_and_never_changes_a_conversation(
    tmp_path: Path, *, writes: bool
) -> None:
    call = {"tool": BOARD_TOOL, "action": "add", "text": "Tests run with make test", "sources": [0]}
    store = SqliteStore(tmp_path / "chats.db")
    await held(store, "s1", RULE, "Go on, please.")
    before = await log_of(store, "s1")
    writer = ScriptedModel([json.dumps(call)])
    rem = agent(tmp_path, store, writer=writer if writes else None)

    done = await rem.run()
    untouched = rem.board.path.exists()
    board = await rem.apply(done)

    text = "Tests run with make test" if writes else RULE
    assert (CONSOLIDATION_AGENT, BOARD_TOOL) == ("rem-agent", "context_board")
    assert [prompt.interaction for prompt in writer.prompts] == ["memory-consolidation"] * writes
    assert done.proposals == (BoardProposal("add", text, sources=("s1 #0",)),)
    assert not untouched
    assert [(entry.text, entry.sources) for entry in board.notes] == [(text, ("s1 #0",))]
    assert await log_of(store, "s1") == before
    await store.close()


async def test_a_conversation_is_read_once_and_what_is_said_later_is_read_later(tmp_path: Path) -> None:
    store = MemoryStore()
    await held(store, "s1", RULE)
    rem = agent(tmp_path, store)
    first = await rem.run()
    await rem.apply(first)

    second = await rem.run()
    await held(store, "s1", "Never push to main without asking me.")
    third = await rem.run()

    assert (second.read_progress, second.proposals) == ({}, ())
    assert [(one.text, one.sources) for one in third.proposals] == [
        ("Never push to main without asking me.", ("s1 #2",))
    ]


async def test_what_was_only_shown_is_proposed_again(tmp_path: Path) -> None:
    store = MemoryStore()
    await held(store, "s1", RULE)

    first, again = await agent(tmp_path, store).run(), await agent(tmp_path, store).run()

    assert first.proposals == again.proposals != ()


@pytest.mark.seed("C-55")
async def test_only_conversations_about_this_work_that_are_over_are_read(tmp_path: Path) -> None:
    store = MemoryStore()
    await held(store, "other-branch", RULE, board=Repository(WORK.root, "other").key)
    await held(store, "current", RULE)
    async with Session.open("nowhere", store=store, clock=lambda: NOW) as session:
        await session.record([user_message(RULE), assistant_message("Yes.")])

    besides = await agent(tmp_path, store).run(exclude="current")
    too_soon = await agent(tmp_path, store, now=NOW + 1).run()
    ending = await agent(tmp_path, store, now=NOW + 1).run(only="current")

    assert (besides.read_progress, too_soon.read_progress) == ({}, {})
    assert [*ending.read_progress] == ["current"]


async def test_a_model_is_asked_as_rem_agent_and_not_shown_keys_nor_its_own_board_as_words(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Session.open("s1", store=store, clock=lambda: NOW) as session:
        await store.put_value(board_key("s1"), {"board": WORK.key})
        await session.add_memory_note("[Inbox]\n- offered to it")
        await session.record([user_message("The key is sk-abcdefghijklmnop1234."), assistant_message("Noted.")])
    writer = ScriptedModel(["none"])

    done = await agent(tmp_path, store, writer=writer).run()

    (ask,) = writer.prompts
    assert (done.proposals, ask.interaction) == ((), CONSOLIDATION_INTERACTION)
    assert CONSOLIDATION_AGENT in ask.system
    assert "abcdefghijklmnop" not in ask.text
    assert "offered to it" not in ask.text


async def test_a_model_that_fails_leaves_it_to_the_rule_and_says_so(tmp_path: Path) -> None:
    store = MemoryStore()
    await held(store, "s1", RULE)

    done = await agent(tmp_path, store, writer=FailingModel("unauthorized")).run()

    assert [one.text for one in done.proposals] == [RULE]
    assert done.notes[0].startswith("s1: the model failed, so a rule made the proposals: ")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I'm sorry, I can't help with that.",
        "There is nothing to say.",
        '{"action": "add", "text": "Tests run with make te',
        '<think>\n{"action": "add", "text": "Rejected", "sources": [0]}\nNo, that is wrong.\n</think>',
        '<think>\n{"action": "add", "text": "Rejected", "sources": [0]}',
    ],
)
async def test_an_answer_without_a_call_leaves_it_to_the_rule_and_says_so(tmp_path: Path, answer: str) -> None:
    store = MemoryStore()
    await held(store, "s1", RULE)

    done = await agent(tmp_path, store, writer=ScriptedModel([answer])).run()

    assert done.proposals == (BoardProposal("add", RULE, sources=("s1 #0",)),)
    assert done.notes == (
        "s1: the model failed, so a rule made the proposals: scripted: the answer holds no call of context_board; "
        "ask again, or choose another model",
    )


@pytest.mark.parametrize("answer", ["none", "**None.**", "[]", "```\nnone\n```", "<think>Add it?</think>\n\nnone"])
async def test_a_model_that_finds_nothing_worth_keeping_is_believed(tmp_path: Path, answer: str) -> None:
    store = MemoryStore()
    await held(store, "s1", RULE)

    done = await agent(tmp_path, store, writer=ScriptedModel([answer])).run()

    assert (done.proposals, done.notes, done.read_progress) == ((), (), {"s1": ReadProgress(2, 2)})


async def test_a_message_that_is_alone_is_read_once_another_one_follows(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Session.open("s1", store=store, clock=lambda: NOW) as session:
        await store.put_value(board_key("s1"), {"board": WORK.key})
        await session.record([user_message(RULE)])
        rem = agent(tmp_path, store)
        alone = await rem.run()
        await rem.record_progress(alone)
        again = await rem.run()
        await session.record([assistant_message("Yes.")])

    later = await rem.run()

    assert (alone.proposals, alone.read_progress) == ((), {"s1": ReadProgress(0, 1)})
    assert again.read_progress == {}
    assert later.proposals == (BoardProposal("add", RULE, sources=("s1 #0",)),)


async def test_what_a_model_makes_up_is_not_proposed_and_what_looks_like_a_key_is_taken_out(tmp_path: Path) -> None:
    def answer(ask: SummaryPrompt) -> str:
        del ask
        calls = [
            {"action": "add", "text": "Invented", "sources": [99]},
            {"action": "add", "text": "Log in with password=hunter2x9", "sources": [0]},
            {"action": "prune", "id": "ffff", "sources": [0]},
        ]
        return "\n".join(map(json.dumps, calls))

    store = MemoryStore()
    await held(store, "s1", RULE)

    done = await agent(tmp_path, store, writer=ScriptedModel([answer])).run()

    assert [one.text for one in done.proposals] == ["Log in with password=[redacted]"]


async def test_what_looks_like_a_key_reaches_no_board_by_rule_either(tmp_path: Path) -> None:
    store = MemoryStore()
    await held(store, "s1", "Always deploy with the token sk-live-abcdef0123456789abcdef, never by hand.")
    rem = agent(tmp_path, store)

    done = await rem.run()
    await rem.apply(done)
    again = await rem.run(only="s1")

    assert [one.text for one in done.proposals] == ["Always deploy with the token sk-[redacted], never by hand."]
    assert "abcdef0123456789" not in rem.board.path.read_text()
    assert again.proposals == ()


async def test_what_a_person_writes_while_it_is_proposed_stays_the_persons(tmp_path: Path) -> None:
    store = MemoryStore()
    await held(store, "s1", RULE)
    rem = agent(tmp_path, store)
    done = await rem.run()
    mine = await rem.board.add(RULE, day="2026-11-15")

    after = await rem.apply(done)
    pruned = await rem.apply(ConsolidationResult(proposals=(BoardProposal("prune", mine.text, mine.id, ("s1 #2",)),)))

    assert (after.notes, pruned.notes) == ((mine,), (mine,))


class DamagedStore(MemoryStore):
    """A store that cannot read some of its conversations."""

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        if session.startswith("damaged"):
            raise DamagedStoreError(session, "a page cannot be read")
        return await super().read(session, start=start, limit=limit)


async def test_conversations_that_cannot_be_read_take_no_place_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consolidation, "MAX_SESSIONS_PER_RUN", 2)
    store = DamagedStore()
    for number in range(3):
        await store.append(f"damaged-{number}", [{"type": "?"}], after=0, time_ms=NOW - 1)
        await store.put_value(board_key(f"damaged-{number}"), {"board": WORK.key})
    for number in range(3):
        await held(store, f"s{number}", RULE)

    done = await agent(tmp_path, store).run()

    assert (sorted(done.read_progress), done.remaining) == (["s0", "s1"], 1)
    assert sorted(note.partition(":")[0] for note in done.notes) == [
        f"damaged-{number} could not be read" for number in range(3)
    ]


class LeavingStore(MemoryStore):
    """A store of which some conversations cannot be reached, and after that perhaps nothing."""

    unreachable: frozenset[str] = frozenset()
    is_away_then = False
    tried: tuple[str, ...] = ()

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        self.tried += (session,)
        if session in self.unreachable:
            raise StoreUnavailableError("chats", "it is away")
        return await super().read(session, start=start, limit=limit)

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        if self.is_away_then and self.unreachable & {*self.tried}:
            raise StoreUnavailableError("chats", "it is away")
        return await super().sessions(prefix=prefix, before=before, limit=limit)


@pytest.mark.parametrize(
    ("is_away", "read", "tried", "remaining"),
    [(True, ["s0"], ["s0", "s1"], 3), (False, ["s0", "s2", "s3"], ["s0", "s1", "s2", "s3"], 0)],
)
async def test_a_store_that_goes_away_ends_the_run_and_a_conversation_that_cannot_be_reached_does_not(
    tmp_path: Path, *, is_away: bool, read: list[str], tried: list[str], remaining: int
) -> None:
    store = LeavingStore()
    for number in range(4):
        await held(store, f"s{number}", RULE)
    store.tried, store.unreachable, store.is_away_then = (), frozenset({"s1"}), is_away

    done = await agent(tmp_path, store).run()

    assert (sorted(done.read_progress), list(dict.fromkeys(store.tried)), done.remaining) == (read, tried, remaining)
    assert done.notes == ("s1 could not be read: chats: it is away",)


@pytest.mark.parametrize("entries", [["mine " * 60] * 40, ["mine"] * 60], ids=["tokens", "entries"])
async def test_no_model_is_asked_while_a_persons_entries_fill_the_board(tmp_path: Path, entries: list[str]) -> None:
    store, writer = (
        MemoryStore(),
        ScriptedModel(['{"tool": "context_board", "action": "add", "text": "A", "sources": [0]}']),
    )
    await held(store, "s1", RULE)
    rem = agent(tmp_path, store, writer=writer)
    content = "".join(f"- {number} {text}\n" for number, text in enumerate(entries))
    rem.board.path.write_text(content)

    with pytest.raises(MalformedInputError, match=r"board: is full: .*; prune an entry first"):
        await rem.run()

    assert (writer.prompts, rem.board.path.read_text()) == ([], content)
    rem.board.path.write_text("")
    assert [one.text for one in (await rem.run()).proposals] == ["A"]


async def test_a_conversation_that_was_deleted_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    store = MemoryStore()

    done = await agent(tmp_path, store).run(only="gone")

    assert (done.proposals, done.read_progress["gone"].messages) == ((), 0)


async def test_a_model_that_was_opened_by_name_is_closed_and_one_that_was_passed_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Writer(ScriptedModel):
        is_closed = False

        async def close(self) -> None:
            self.is_closed = True

    opened, passed = Writer([]), Writer([])

    def open_named(name: str) -> Writer:
        assert name == "some-model"
        return opened

    monkeypatch.setattr(consolidation, "open_summarizer", open_named)
    board = ContextBoard(tmp_path, WORK)

    for summarizer in ("some-model", passed):
        await RemAgent(MemoryStore(), board, summarizer=summarizer, clock=lambda: NOW).close()

    assert (opened.is_closed, passed.is_closed) == (True, False)
