"""Interleaved actions of two programs on the same sessions: both always agree on the state.

A case is a list of actions on sessions in one SQLite file, through two stores that are open at once, like those of two
programs. After each step the session that acted is compared with a newly opened one, and what can be recalled with what
was recorded. At the end both programs are closed, the snapshots are deleted, and every request must be rebuilt from the
file alone by `holdfast replay --verify`.
"""

import asyncio
import contextlib
import io
import json
import sqlite3
import tempfile
from collections.abc import Awaitable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st

from benchmarks.torture.observed import observed_state, query_history
from holdfast import CannotFitError, EmptyConversationError, PendingToolCallsError, Session
from holdfast.apps.cli.main import main
from holdfast.errors import CompactionError, ModelAccessError
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message

T = TypeVar("T")
STEPS = 30
POLICIES = ["default", "co-cli", "inkeep", "copilot", "cowagent"]
PROGRAM, SHARE, WORDS = st.sampled_from([0, 1]), st.floats(0, 1, width=16), st.sampled_from([1, 30, 90, 400])
"""The program that acts, the place in the conversation, and the length of a text."""
KINDS: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "say": {"turns": st.integers(1, 5), "words": WORDS},
    "work": {"words": WORDS, "is_answered": st.booleans()},
    "sync": {"keep": SHARE, "words": WORDS, "is_sent": st.booleans()},
    "prepare": {"budget": st.sampled_from([500, 1_000, 4_000]), "system": st.sampled_from(["", "Hi."])},
    "compact": {},
    "compact_ahead": {},
    "clear": {},
    "rewind": {"to": SHARE},
    "undo": {},
    "redo": {},
    "pin": {"position": SHARE},
    "unpin": {"position": SHARE},
    "fork": {},
    "fork_from_the_past": {"at": SHARE},
    "close": {},
    "lose_the_shortcuts": {},
    "prove": {"number": SHARE},
}
"""The actions and their arguments."""


def _step(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    place = {"close": {"program": PROGRAM}, "lose_the_shortcuts": {}, "prove": {"where": SHARE}}
    by = place.get(kind, {"program": PROGRAM, "where": SHARE})
    return st.fixed_dictionaries({"do": st.just(kind), **by, **KINDS[kind]})


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a beginning and actions of a few kinds, so that each kind is frequent in some cases."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=3, unique=True))
    step = st.one_of(*map(_step, kinds))
    steps = draw(st.one_of(st.lists(step, max_size=STEPS), st.lists(step, min_size=10, max_size=STEPS)))
    return {"policy": draw(st.sampled_from(POLICIES)), "turns": draw(st.sampled_from([1, 51])), "steps": steps}


STRATEGIES = (cases(),)


def check(case: Mapping[str, Any]) -> None:
    """Run the actions of a case."""
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder), case["policy"])
        try:
            programs.say(0, 0, case["turns"], 30)
            for step in case["steps"]:
                given = {name: value for name, value in step.items() if name != "do"}
                getattr(programs, step["do"])(**given)
            programs.end()
        finally:
            programs.leave()


class Programs:
    """Two programs, their open sessions, and the messages of each session."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.path = folder / "chats.db"
        self.runner = asyncio.Runner()
        self.stores = [SqliteStore(self.path), SqliteStore(self.path)]
        self.open: list[dict[str, Session]] = [{}, {}]
        self.said: dict[str, list[JsonMessage]] = {"c0": []}
        self.sent: dict[str, list[Any]] = {"c0": []}
        self.pins: dict[str, frozenset[int]] = {"c0": frozenset()}
        self.number = 0
        self.policy = policy

    def do(self, action: Awaitable[T]) -> T:
        async def act() -> T:
            return await action

        return self.runner.run(act())

    def session(self, program: int, share: float) -> Session:
        """Return a session of a program; it stays open from then on."""
        name = sorted(self.said)[int(share * (len(self.said) - 1))]
        if name not in self.open[program]:
            self.open[program][name] = self.do(Session.open(name, store=self.stores[program], policy=self.policy))
        return self.open[program][name]

    def new_message(self, words: int) -> JsonMessage:
        self.number += 1
        return user_message(f"question {self.number} " + "word " * words)

    def check_agreement(self, session: Session) -> None:
        """Compare a session with its messages and with a newly opened one."""
        live = self.do(observed_state(session))
        start, messages = live["recalled"]

        assert live["damage"] == []
        assert messages == self.said[session.id][start:]
        assert len(session) == len(self.said[session.id])
        assert live["facts"].pins == self.pins[session.id]
        assert self.do(self.stored(session.id)) == live

    async def stored(self, name: str) -> dict[str, Any]:
        return await observed_state(await Session.open(name, store=self.stores[0]))

    def say(self, program: int, where: float, turns: int, words: int) -> None:
        session = self.session(program, where)
        talk = [
            message for _ in range(turns) for message in (self.new_message(words), assistant_message("word " * words))
        ]
        self.record(session, talk[:-1])

    def work(self, program: int, where: float, words: int, is_answered: bool) -> None:  # noqa: FBT001
        session = self.session(program, where)
        self.number += 1
        call = f"call{self.number}"
        done = (
            [tool_result_message(call, "out " * words), assistant_message(f"done {self.number}")] if is_answered else []
        )
        self.record(session, [tool_call_message(call), *done])
        if not is_answered:
            self.do(session.interrupt())
        self.check_agreement(session)

    def record(self, session: Session, messages: list[JsonMessage]) -> None:
        before = len(self.said[session.id])

        positions = self.do(session.record(messages))

        self.said[session.id] += messages
        assert positions == range(before, len(self.said[session.id]))
        self.check_agreement(session)

    def sync(self, program: int, where: float, keep: float, words: int, is_sent: bool) -> None:  # noqa: FBT001
        session = self.session(program, where)
        said = self.do(query_history(session, lambda history: list(history.context().entries_between(0, len(history)))))
        known = [entry.message.native or {} for entry in said]
        if is_sent and self.sent[session.id]:
            known = self.sent[session.id][-1]["messages"]
        given = [*map(dict, known[: round(keep * len(known))]), self.new_message(words)]

        positions = self.do(session.sync(given))

        new = given[len(given) - len(positions) :]
        self.said[session.id] += new
        assert new[-1:] == given[-1:]
        assert self.do(session.sync(given)) == range(positions.stop, positions.stop)
        self.check_agreement(session)

    def prepare(self, program: int, where: float, budget: int, system: str) -> None:
        session = self.session(program, where)
        with contextlib.suppress(EmptyConversationError, PendingToolCallsError, CannotFitError):
            request = self.do(session.prepare(budget, system=system))
            self.sent[session.id].append({"messages": request.messages, "system": system or None})
        self.check_agreement(session)

    def compact(self, program: int, where: float) -> None:
        session = self.session(program, where)
        with contextlib.suppress(CompactionError, ModelAccessError, CannotFitError):
            self.do(session.compact(budget=1_000))
        self.check_agreement(session)

    def compact_ahead(self, program: int, where: float) -> None:
        session = self.session(program, where)
        before = len(self.do(session.receipts()))
        done = self.do(session.compact_ahead())
        # What another program has written since may be read, too, but nothing was compacted then.
        assert done <= (len(self.do(session.receipts())) > before)
        self.check_agreement(session)

    def clear(self, program: int, where: float) -> None:
        session = self.session(program, where)
        self.do(session.clear())
        now = self.do(observed_state(session))
        assert (now["shown"], now["recalled"]) == ([], (len(session), []))
        self.check_agreement(session)

    def rewind(self, program: int, where: float, to: float) -> None:
        session = self.session(program, where)
        stop = round(to * len(session))
        self.do(session.rewind(to=stop))
        assert all(position is None or position < stop for position, *_ in self.do(observed_state(session))["shown"])
        self.check_agreement(session)

    def undo(self, program: int, where: float) -> None:
        session = self.session(program, where)
        self.do(session.refresh())
        could, before = session.history.can_undo, self.do(observed_state(session))

        assert self.do(session.undo()) == could
        if could:
            assert self.do(session.redo())
            assert self.do(observed_state(session))["shown"] == before["shown"]
            assert self.do(session.undo())
        self.check_agreement(session)

    def redo(self, program: int, where: float) -> None:
        session = self.session(program, where)
        self.do(session.refresh())
        could = session.history.can_redo

        assert self.do(session.redo()) == could
        self.check_agreement(session)

    def pin(self, program: int, where: float, position: float) -> None:
        session = self.session(program, where)
        at = round(position * (len(session) - 1))
        if len(session):
            self.do(session.pin(at))
            self.pins[session.id] |= {at}
        self.check_agreement(session)

    def unpin(self, program: int, where: float, position: float) -> None:
        session = self.session(program, where)
        if pinned := sorted(self.pins[session.id]):
            at = pinned[round(position * (len(pinned) - 1))]
            self.do(session.unpin(at))
            self.pins[session.id] -= {at}
        self.check_agreement(session)

    def fork(self, program: int, where: float) -> None:
        session, name = self.session(program, where), f"c{len(self.said)}"

        fork = self.do(session.fork(name))

        self.said[name], self.pins[name] = list(self.said[session.id]), self.pins[session.id]
        self.sent[name] = list(self.sent[session.id])
        self.open[program][name] = fork
        self.check_agreement(fork)
        self.check_agreement(session)
        assert self.do(observed_state(fork))["shown"] == self.do(observed_state(session))["shown"]

    def fork_from_the_past(self, program: int, where: float, at: float) -> None:
        session, name = self.session(program, where), f"c{len(self.said)}"
        stop = round(at * len(session))

        fork = self.do(session.fork(name, at=stop))

        self.said[name], self.pins[name] = self.said[session.id][:stop], fork.history.session_state.pins
        self.sent[name] = self.sent[session.id][: len(self.proved(name))]
        self.open[program][name] = fork
        self.check_agreement(fork)

    def close(self, program: int) -> None:
        """Close a program: a long session saves a snapshot, and is opened again when it is needed."""
        for session in self.open[program].values():
            self.do(session.close())
        self.open[program] = {}
        self.do(self.stores[program].close())

    def lose_the_shortcuts(self) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("DELETE FROM snapshots")

    def prove(self, where: float, number: float) -> None:
        """Rebuild every request of a session from the file alone, and show one of them as it was sent."""
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

    def end(self) -> None:
        """Close both programs, and compare the file with their state, with and without snapshots."""
        live = {name: self.do(observed_state(session)) for name, session in self.open[0].items()}
        for program in (0, 1):
            self.close(program)
        by_shortcut = {name: self.do(self.stored(name)) for name in live}
        self.lose_the_shortcuts()
        by_log = {name: self.do(self.stored(name)) for name in live}
        self.close(0)

        assert by_shortcut == live
        assert by_log == live
        for number in range(len(self.said)):
            self.prove(number / max(1, len(self.said) - 1), 1)

    def leave(self) -> None:
        """Close the file in any case."""
        for store in self.stores:
            self.do(store.close())
        self.runner.close()
