"""A process that is killed at any moment loses nothing that it had acknowledged."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.session.session import Session
from holdfast.testing.chat import user_message

WRITER = Path(__file__).parent / "crash_writer.py"
KILLS = int(os.environ.get("HOLDFAST_KILLS", "6"))
"""A short run; `make crash` asks for a thousand."""


def killed_writer(url: str, acknowledged: int) -> int:
    """Start a writer, kill it after so many acknowledgements and a little more, and return the last one seen."""
    process = subprocess.Popen([sys.executable, str(WRITER), url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = -1
    for _ in range(acknowledged):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    process.wait()
    process.stdout.close()
    complete = [line for line in rest.split("\n")[:-1] if line]
    return int(complete[-1]) if complete else last


@pytest.mark.parametrize("seed", range(KILLS))
async def test_every_acknowledged_message_survives_a_kill(tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    last = killed_writer(url, random.Random(seed).randint(1, 60))

    async with Session.open("crash", store=url) as session:
        texts = [entry.message.text for entry in session.history.entries]
        assert texts == [f"message {number}" for number in range(len(texts))]
        assert len(texts) > last
        hits = await session.store.search("message", limit=1_000)
        assert sorted(hit.position for hit in hits) == list(range(len(texts)))
        assert await session.record([user_message("after")]) == range(len(texts), len(texts) + 1)
        assert session.damage == []


async def test_two_processes_that_write_one_session_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with Session.open("crash", store=url) as session:
        process = subprocess.Popen([sys.executable, str(WRITER), url], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        for number in range(50):
            await session.record([user_message(f"mine {number}")])
        process.kill()
        process.stdout.read()
        process.wait()
        process.stdout.close()
        await session.refresh()
        texts = [entry.message.text for entry in session.history.entries]

    mine = [text for text in texts if text.startswith("mine")]
    theirs = [text for text in texts if text.startswith("message")]
    assert mine == [f"mine {number}" for number in range(50)]
    assert len(theirs) == len(set(theirs))
    assert [int(text.split()[1]) for text in theirs] == sorted(int(text.split()[1]) for text in theirs)
