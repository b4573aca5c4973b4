"""Whatever is done to a session, in whatever order and by whichever of two programs, all agree on how it stands.

A machine does things at random to sessions in one SQLite file, through two stores that are open at once, as two
programs have them. After each step the session that acted is held against one that is opened anew, and what can
be recalled against what was said. In the end both programs are closed, the shortcuts that a store may keep are
deleted, and every request has to be proved from the file alone, by the command that people use for it.
"""

import asyncio
import contextlib
import io
import json
import os
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from holdfast import CannotFitError, EmptyConversationError, MalformedInputError, PendingToolCallsError, Session
from holdfast.cli.main import main
from holdfast.core.history.history import History
from holdfast.errors import CompactionError, ModelAccessError, NotInMemoryError
from holdfast.stores.base import Snapshot
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.chat import Json, answered, called, returned, said

T = TypeVar("T")
EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "15"))
"""A short run; a long one of 300 takes some minutes."""
STEPS = 30
PROGRAMS = st.sampled_from([0, 1])
SHARE = st.floats(0, 1, width=16)
"""Where in a conversation something is done."""
WORDS = st.sampled_from([1, 30, 90, 400])
POLICIES = ["default", "co-cli", "inkeep", "copilot", "cowagent"]


async def recalled(session: Session) -> tuple[int, list[Mapping[str, object]]]:
    """Return everything that can be recalled, and from where on."""
    start = 0
    try:
        await session.recall(0, len(session))
    except MalformedInputError as error:
        start = int(re.findall(r"there are messages (\d+) to", str(error))[0])
    return start, await session.recall(start, len(session)) if start < len(session) else []


async def asked(session: Session, question: Callable[[History], T]) -> T:
    """Return what a history says; a session that took a shortcut reads what it misses."""
    while True:
        try:
            return question(session.history)
        except NotInMemoryError as missing:
            await session.fetch(missing.positions)


async def standing(session: Session) -> dict[str, Any]:
    """Return all that is to be the same, live, stored and replayed."""
    await session.catch_up()
    shown = await asked(session, lambda history: history.context().shown())
    history = session.history
    return {
        "messages": len(session),
        "shown": [(entry.position, entry.message, entry.message.native, entry.message.notes) for entry in shown],
        "recalled": await recalled(session),
        "facts": history.facts,
        "changes": (history.can_undo, history.can_redo),
        "damage": session.damage,
    }


class Programs(RuleBasedStateMachine):
    """Two programs, the sessions they have open, and what was said in each session."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "chats.db"
        for file in folder.iterdir():
            file.unlink()
        self.runner = asyncio.Runner()
        self.stores = [SqliteStore(self.path), SqliteStore(self.path)]
        self.open: list[dict[str, Session]] = [{}, {}]
        self.said: dict[str, list[Json]] = {"c0": []}
        self.sent: dict[str, list[Any]] = {"c0": []}
        self.pins: dict[str, frozenset[int]] = {"c0": frozenset()}
        self.number = 0
        self.policy = POLICIES[0]

    def do(self, action: Awaitable[T]) -> T:
        async def act() -> T:
            return await action

        return self.runner.run(act())

    def session(self, program: int, share: float) -> Session:
        """Return one of the sessions as a program has it; it stays open from then on."""
        name = sorted(self.said)[int(share * (len(self.said) - 1))]
        if name not in self.open[program]:
            self.open[program][name] = self.do(Session.open(name, store=self.stores[program], policy=self.policy))
        return self.open[program][name]

    def fresh(self, words: int) -> Json:
        self.number += 1
        return said(f"question {self.number} " + "word " * words)

    def agree(self, session: Session) -> None:
        """Hold a session against what was said in it, and against one that is opened anew."""
        live = self.do(standing(session))
        start, messages = live["recalled"]

        assert live["damage"] == []
        assert messages == self.said[session.id][start:]
        assert len(session) == len(self.said[session.id])
        assert live["facts"].pins == self.pins[session.id]
        assert self.do(self.stored(session.id)) == live

    async def stored(self, name: str) -> dict[str, Any]:
        return await standing(await Session.open(name, store=self.stores[0]))

    @initialize(policy=st.sampled_from(POLICIES), turns=st.sampled_from([1, 51]))
    def begin(self, policy: str, turns: int) -> None:
        self.policy = policy
        self.say(0, 0, turns, 30)

    @rule(program=PROGRAMS, where=SHARE, turns=st.integers(1, 5), words=WORDS)
    def say(self, program: int, where: float, turns: int, words: int) -> None:
        session = self.session(program, where)
        talk = [message for _ in range(turns) for message in (self.fresh(words), answered("word " * words))]
        self.record(session, talk[:-1])

    @rule(program=PROGRAMS, where=SHARE, words=WORDS, is_answered=st.booleans())
    def work(self, program: int, where: float, words: int, is_answered: bool) -> None:  # noqa: FBT001
        session = self.session(program, where)
        self.number += 1
        call = f"call{self.number}"
        done = [returned(call, "out " * words), answered(f"done {self.number}")] if is_answered else []
        self.record(session, [called(call), *done])
        if not is_answered:
            self.do(session.interrupt())
        self.agree(session)

    def record(self, session: Session, messages: list[Json]) -> None:
        before = len(self.said[session.id])

        positions = self.do(session.record(messages))

        self.said[session.id] += messages
        assert positions == range(before, len(self.said[session.id]))
        self.agree(session)

    @rule(program=PROGRAMS, where=SHARE, keep=SHARE, words=WORDS, is_sent=st.booleans())
    def sync(self, program: int, where: float, keep: float, words: int, is_sent: bool) -> None:  # noqa: FBT001
        session = self.session(program, where)
        said = self.do(asked(session, lambda history: list(history.context().between(0, len(history)))))
        known = [entry.message.native or {} for entry in said]
        if is_sent and self.sent[session.id]:
            known = self.sent[session.id][-1]["messages"]
        given = [*map(dict, known[: round(keep * len(known))]), self.fresh(words)]

        positions = self.do(session.sync(given))

        new = given[len(given) - len(positions) :]
        self.said[session.id] += new
        assert new[-1:] == given[-1:]
        assert self.do(session.sync(given)) == range(positions.stop, positions.stop)
        self.agree(session)

    @rule(
        program=PROGRAMS, where=SHARE, budget=st.sampled_from([500, 1_000, 4_000]), system=st.sampled_from(["", "Hi."])
    )
    def prepare(self, program: int, where: float, budget: int, system: str) -> None:
        session = self.session(program, where)
        with contextlib.suppress(EmptyConversationError, PendingToolCallsError, CannotFitError):
            request = self.do(session.prepare(budget, system=system))
            self.sent[session.id].append({"messages": request.messages, "system": system or None})
        self.agree(session)

    @rule(program=PROGRAMS, where=SHARE)
    def compact(self, program: int, where: float) -> None:
        session = self.session(program, where)
        with contextlib.suppress(CompactionError, ModelAccessError, CannotFitError):
            self.do(session.compact(budget=1_000))
        self.agree(session)

    @rule(program=PROGRAMS, where=SHARE)
    def clear(self, program: int, where: float) -> None:
        session = self.session(program, where)
        self.do(session.clear())
        now = self.do(standing(session))
        assert (now["shown"], now["recalled"]) == ([], (len(session), []))
        self.agree(session)

    @rule(program=PROGRAMS, where=SHARE, to=SHARE)
    def rewind(self, program: int, where: float, to: float) -> None:
        session = self.session(program, where)
        stop = round(to * len(session))
        self.do(session.rewind(to=stop))
        assert all(position is None or position < stop for position, *_ in self.do(standing(session))["shown"])
        self.agree(session)

    @rule(program=PROGRAMS, where=SHARE)
    def undo(self, program: int, where: float) -> None:
        session = self.session(program, where)
        self.do(session.catch_up())
        could, before = session.history.can_undo, self.do(standing(session))

        assert self.do(session.undo()) == could
        if could:
            assert self.do(session.redo())
            assert self.do(standing(session))["shown"] == before["shown"]
            assert self.do(session.undo())
        self.agree(session)

    @rule(program=PROGRAMS, where=SHARE)
    def redo(self, program: int, where: float) -> None:
        session = self.session(program, where)
        self.do(session.catch_up())
        could = session.history.can_redo

        assert self.do(session.redo()) == could
        self.agree(session)

    @rule(program=PROGRAMS, where=SHARE, position=SHARE)
    def pin(self, program: int, where: float, position: float) -> None:
        session = self.session(program, where)
        at = round(position * (len(session) - 1))
        if len(session):
            self.do(session.pin(at))
            self.pins[session.id] |= {at}
        self.agree(session)

    @rule(program=PROGRAMS, where=SHARE, position=SHARE)
    def unpin(self, program: int, where: float, position: float) -> None:
        session = self.session(program, where)
        if pinned := sorted(self.pins[session.id]):
            at = pinned[round(position * (len(pinned) - 1))]
            self.do(session.unpin(at))
            self.pins[session.id] -= {at}
        self.agree(session)

    @rule(program=PROGRAMS, where=SHARE)
    def fork(self, program: int, where: float) -> None:
        session, name = self.session(program, where), f"c{len(self.said)}"

        fork = self.do(session.fork(name))

        self.said[name], self.pins[name] = list(self.said[session.id]), self.pins[session.id]
        self.sent[name] = list(self.sent[session.id])
        self.open[program][name] = fork
        self.agree(fork)
        self.agree(session)
        assert self.do(standing(fork))["shown"] == self.do(standing(session))["shown"]

    @rule(program=PROGRAMS, where=SHARE, at=SHARE)
    def fork_from_the_past(self, program: int, where: float, at: float) -> None:
        session, name = self.session(program, where), f"c{len(self.said)}"
        stop = round(at * len(session))

        fork = self.do(session.fork(name, at=stop))

        self.said[name], self.pins[name] = self.said[session.id][:stop], fork.history.facts.pins
        self.sent[name] = self.sent[session.id][: len(self.proved(name))]
        self.open[program][name] = fork
        self.agree(fork)

    @rule(program=PROGRAMS)
    def close(self, program: int) -> None:
        """End a program: a long session leaves a shortcut, and is opened again when it is needed."""
        for session in self.open[program].values():
            self.do(session.close())
        self.open[program] = {}
        self.do(self.stores[program].close())

    @rule()
    def lose_the_shortcuts(self) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("DELETE FROM snapshots")

    @rule(where=SHARE, number=SHARE)
    def prove(self, where: float, number: float) -> None:
        """Rebuild every request of a session from the file alone, and look at one of them as it was sent."""
        name = sorted(self.said)[int(where * (len(self.said) - 1))]
        sent = self.sent[name]

        assert self.proved(name) == ["same"] * len(sent)
        if sent:
            at = round(number * (len(sent) - 1))
            shown = self.answer("show", name, "--at", str(at + 1))
            assert {"messages": shown["messages"], "system": shown["system"]} == sent[at]

    def proved(self, name: str) -> list[str]:
        return [request["state"] for request in self.answer("replay", name)["requests"]]

    def answer(self, *command: str) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main([*command, "--json", "--store", f"sqlite:///{self.path}"]) == 0
        return json.loads(out.getvalue())

    def teardown(self) -> None:
        live = {name: self.do(standing(session)) for name, session in self.open[0].items()}
        for program in (0, 1):
            self.close(program)
        by_shortcut = {name: self.do(self.stored(name)) for name in live}
        self.lose_the_shortcuts()
        by_log = {name: self.do(self.stored(name)) for name in live}
        self.close(0)
        self.runner.close()

        assert by_shortcut == live
        assert by_log == live
        for number in range(len(self.said)):
            self.prove(number / max(1, len(self.said) - 1), 1)


def test_live_stored_and_replayed_are_one(tmp_path: Path) -> None:
    class Here(Programs):
        def __init__(self) -> None:
            super().__init__(tmp_path)

    # The first failure is shown as it is found: to look for a smaller one takes minutes.
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    run = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, phases=phases, report_multiple_bugs=False)
    run_state_machine_as_test(Here, settings=run)


@pytest.mark.parametrize("length", [0, 5, 9, 10_000])
@pytest.mark.parametrize("content", [b"", b"no shortcut at all", b"{}", b"\x80\x04N."])
async def test_a_shortcut_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, length: int, content: bytes) -> None:
    store = SqliteStore(tmp_path / "chats.db")
    session = await Session.open("c0", store=store)
    await session.record([said("one"), answered("1"), said("two"), answered("2"), said("three")])
    await session.prepare(16_000, system="Be brief.")
    await session.rewind(to=3)

    await store.put_snapshot("c0", Snapshot(length, content))

    assert await standing(await Session.open("c0", store=store)) == await standing(session)
    await store.close()
