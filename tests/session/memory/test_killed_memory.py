"""A process that is killed at any moment leaves a memory that is made whole at the next opening, each note once."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.core.memory.evictions import Evictions
from holdfast.core.memory.notes import parse_sections
from tests.session.memory.memory_writer import opened

WRITER = Path(__file__).parent / "memory_writer.py"
KILLS = int(os.environ.get("HOLDFAST_KILLS", "4"))


def killed_writer(url: str, folder: Path, messages: int) -> None:
    """Start a writer and kill it after so many messages."""
    process = subprocess.Popen([sys.executable, str(WRITER), url, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(messages):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def positions(messages: str) -> list[int]:
    spans = [span.lstrip("#").split("-") for span in messages.split(", ")]
    return [at for span in spans for at in range(int(span[0]), int(span[-1]) + 1)]


async def test_what_left_is_noted_once_however_often_a_process_is_killed(tmp_path: Path) -> None:
    url, folder, chance = f"sqlite:///{tmp_path / 'chats.db'}", tmp_path / "memory", random.Random(7)
    for _ in range(KILLS):
        killed_writer(url, folder, chance.randint(41, 120))

    async with opened(url, str(folder)) as session:
        await session.clear()
        leavings = Evictions()
        for event in await session.events():
            leavings.observe(event, 0, may_await_summary=False)

    noted = [
        at
        for path in folder.glob("*.md")
        for section in parse_sections(path.read_text(), path.stem)
        for at in positions(section.messages)
    ]
    left = [at for span in leavings.reported for at in span]
    assert len(noted) == len(set(noted))
    assert sorted(noted) == left == [*range(len(session))]
