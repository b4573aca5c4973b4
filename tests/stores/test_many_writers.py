"""Several processes write one session at once: no message is lost or repeated, and each writer's order is kept."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.testing.chat import user_message

EACH = 12
"""Messages of one writer; every fourth is large enough to become a blob."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    new_database: Callable[[], str] = request.getfixturevalue("new_database")
    return new_database()


def name_and_number(message: Mapping[str, object]) -> tuple[str, int]:
    name, number, _ = str(message["content"]).split()
    return name, int(number)


@pytest.mark.parametrize("processes", [2, 10])
async def test_processes_that_write_one_session_neither_lose_nor_repeat_a_message(
    url: str, processes: int, writers: Any
) -> None:
    names = [f"writer-{number}" for number in range(processes)]
    started = writers.start(url, *names)

    for writer in started:
        writer.go(EACH)

    assert [writer.result() for writer in started] == [None] * processes
    async with Session.open("shared", store=url) as session:
        found = await session.messages_at(0, len(session))
        assert session.damage == []
    acknowledged = {position: message for writer in started for position, message in writer.acknowledged.items()}
    assert dict(enumerate(found)) == acknowledged
    assert {name: [number for who, number in map(name_and_number, found) if who == name] for name in names} == {
        name: list(range(EACH)) for name in names
    }


async def test_an_open_session_reads_what_other_processes_write(url: str, writers: Any) -> None:
    async with Session.open("shared", store=url) as session:
        (writer,) = writers.start(url, "other")
        writer.go(EACH)
        mine = [user_message(f"mine {number}") for number in range(EACH)]
        positions = [(await session.record([message])).start for message in mine]
        assert writer.result() is None

        await session.refresh()
        found = await session.messages_at(0, len(session))

    assert dict(enumerate(found)) == writer.acknowledged | dict(zip(positions, mine, strict=True))
