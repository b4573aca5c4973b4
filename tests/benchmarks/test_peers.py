"""Peers in environments of their own: one that cannot be asked is a row, and stops nobody."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers import WORKERS, Peer, PeerError, all_peers, choose_peers, run_program, run_task


def test_every_peer_has_a_worker_and_versions_that_are_pinned() -> None:
    peers = all_peers()

    assert [name for name, peer in peers.items() if not (WORKERS / peer.worker).exists()] == []
    assert [line for peer in peers.values() for line in peer.packages if "==" not in line] == []
    assert [name for name, peer in peers.items() if not peer.packages] == ["holdfast"]


def test_holdfast_stands_beside_whoever_is_chosen() -> None:
    assert [peer.name for peer in choose_peers(["agno"])] == ["holdfast", "agno"]


def test_a_peer_that_nobody_knows_is_refused_with_those_there_are() -> None:
    with pytest.raises(PeerError, match="nobody: no such peer; there are langchain, "):
        choose_peers(["nobody"])


async def test_a_worker_that_fails_is_one_row_with_its_last_complaint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('no module named anything')")
    monkeypatch.setattr("benchmarks.peers.WORKERS", tmp_path)

    rows = await run_task(Peer("broken", "broken.py"), {"do": "prepare"})

    assert rows == [{"name": "broken", "failed": "ImportError: no module named anything"}]


async def test_holdfasts_own_worker_makes_requests_with_the_library_as_it_is() -> None:
    asked, more = {"role": "user", "content": "hello"}, {"role": "user", "content": "go on"}
    task = {"do": "prepare", "budget": 2_000, "repeats": 1, "seconds": 1, "more": more}

    [row] = await run_task(all_peers()["holdfast"], {**task, "cases": [{"name": "one", "messages": [asked]}]})

    assert (row["name"], row.get("failed"), row["messages"]) == ("Holdfast", None, [asked])


async def test_a_program_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.TASK_SECONDS", 0.2)

    with pytest.raises(PeerError, match=r"not finished after 0\.2 s"):
        await run_program([sys.executable, "-c", "import threading; threading.Event().wait()"])


def test_nothing_of_a_peer_reaches_outside() -> None:
    environ = Peer("any", "any.py", ("any==1",)).environ

    assert (environ["HTTPS_PROXY"], environ["NO_PROXY"]) == ("http://127.0.0.1:9", "127.0.0.1,localhost")
    assert "PYTHONPATH" not in environ


WORKER = f"""
import sys
sys.path.insert(0, {str(WORKERS)!r})
from serving import Way, serve

class Echo(Way):
    has_state = False
    def take(self, messages): self.messages = messages
    def prepare(self): print("libraries print what they like")
    def sent(self): return self.messages

class Broken(Echo):
    def prepare(self): raise ValueError("no room\\nfor this")

serve(ways={{"broken": lambda budget: Broken(), "echo": lambda budget: Echo()}})
"""


async def test_a_way_that_fails_is_a_row_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr("benchmarks.peers.WORKERS", tmp_path)
    task = {"do": "needles", "budget": 10, "turns": [["a"], ["b", "c"]], "queries": ["d"]}

    rows = await run_task(Peer("two", "worker.py"), task)

    assert rows == [
        {"name": "broken", "failed": "ValueError: no room for this"},
        {"name": "echo", "messages": ["a", "b", "c"], "shown": None, "found": [None]},
    ]
