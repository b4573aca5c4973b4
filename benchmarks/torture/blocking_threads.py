"""Threads that share sessions without an event loop: each call returns or raises an error of Holdfast, and none hangs.

Several threads act on the same sessions at once: they record, prepare, compact, take back, delegate, fail in the middle
of a delegation, and close a session while others use it. What was acknowledged is in the log, once; the log is whole,
and the session goes on afterwards.
"""

import concurrent.futures
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from benchmarks.torture.observed import differing_requests, messages_of
from holdfast import HoldfastError, validate
from holdfast.blocking import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message

STUCK_SECONDS = 60.0
BUDGET = 1_500
STEPS = [
    "record", "record", "record", "prepare", "compact", "undo", "redo", "rewind", "clear", "recall", "delegate", "fail",
    "close", "pin", "tool", "fork", "iterate",
]  # fmt: skip
CASES = st.fixed_dictionaries(
    {
        "is_on_disk": st.booleans(),
        "sessions": st.integers(1, 2),
        "threads": st.lists(st.lists(st.sampled_from(STEPS), min_size=1, max_size=6), min_size=2, max_size=4),
    }
)
STRATEGIES = (CASES,)


class _DelegateFailedError(Exception):
    """Raised inside a delegation, as a caller's code would."""


def check(case: Mapping[str, Any]) -> None:
    """Let threads act, and look at the logs."""
    with tempfile.TemporaryDirectory() as folder:
        _run_threads(case, f"sqlite:///{folder}/chats.db" if case["is_on_disk"] else MemoryStore())


def _run_threads(case: Mapping[str, Any], store: str | Store) -> None:
    names = [f"s{number}" for number in range(case["sessions"])]
    shared = {name: Session.open(name, store=store, model="gpt-5") for name in names}
    acknowledged: list[tuple[str, str]] = []
    together = threading.Barrier(len(case["threads"]))

    def run(number: int, steps: list[str]) -> None:
        together.wait()
        for at, step in enumerate(steps):
            name = names[(number + at) % len(names)]
            try:
                _take_step(step, shared[name], f"t{number}n{at}x", acknowledged)
            except HoldfastError:
                continue

    pool = concurrent.futures.ThreadPoolExecutor(len(case["threads"]))
    started = [pool.submit(run, number, steps) for number, steps in enumerate(case["threads"])]
    done, stuck = concurrent.futures.wait(started, timeout=STUCK_SECONDS)
    pool.shutdown(wait=False)
    assert not stuck, "a thread waits for ever"
    for one in done:
        one.result()
    for name, session in shared.items():
        session.close()
        with Session.open(name, store=store, model="gpt-5") as reopened:
            said = [str(message.get("content")) for message in messages_of(reopened.events())]
            words = [word for owner, word in acknowledged if owner == name]
            assert [said.count(word) for word in words] == [1] * len(words), "lost or doubled"
            assert reopened.damage == [], "damaged"
            assert differing_requests(reopened.events()) == [], "a request differs when it is rebuilt"
            reopened.record([user_message("And now?")])
            request = reopened.prepare(BUDGET)
            assert request.tokens.total <= BUDGET, "over budget"
            assert validate(request.messages, "openai-chat") == [], "not valid"


def _take_step(step: str, session: Session, word: str, acknowledged: list[tuple[str, str]]) -> None:
    match step:
        case "record":
            session.record([user_message(word), assistant_message("and so on " * 60)])
            acknowledged.append((session.id, word))
        case "prepare":
            request = session.prepare(BUDGET)
            assert request.tokens.total <= BUDGET, "over budget"
        case "compact":
            session.compact(budget=BUDGET)
        case "rewind":
            session.rewind(to=max(0, len(session) - 2))
        case "tool":
            assert isinstance(session.recall_tool().call({"query": word, "ref": ["#0"], "max_tokens": "many"}), str)
        case "recall" | "pin":
            getattr(session, step)(word if step == "recall" else 0)
        case "fork":
            session.fork().close()
        case "iterate":
            assert list(session.watch([{"type": "ping"}, {"type": "x"}])) == [{"type": "ping"}, {"type": "x"}]
        case "delegate" | "fail":
            _delegate(session, word, fails=step == "fail")
        case _:
            getattr(session, step)()


def _delegate(session: Session, word: str, *, fails: bool) -> None:
    try:
        with session.delegate("helper", task=f"look for {word}") as child:
            child.record([assistant_message("looking")])
            if fails:
                _fail()
            child.answer("found")
    except _DelegateFailedError:
        assert fails


def _fail() -> None:
    raise _DelegateFailedError
