"""Daily memory on a disk: private, atomic, shared by processes, and found again."""

import asyncio
import stat
import subprocess
import sys
import time
from collections.abc import Generator
from datetime import datetime
from pathlib import Path

import pytest

from holdfast.core.memory.evictions import Eviction
from holdfast.core.memory.notes import parse_sections
from holdfast.errors import MalformedInputError, WorkspaceUnavailableError
from holdfast.session.memory.daily import DailyMemory

WHEN = int(datetime(2026, 11, 15, 14, 3).timestamp() * 1000)  # noqa: DTZ001 - the day of whoever sits there
DAY = "2026-11-15"
MANY = 25


def left(place: int, *, days: int = 0) -> Eviction:
    time_ms = WHEN + days * 86_400_000
    return Eviction(log_index=place, time_ms=time_ms, cause="trimmed", ranges=(range(2),))


async def test_a_note_is_written_once_for_its_owner_alone(tmp_path: Path) -> None:
    daily = DailyMemory(tmp_path / "memory")

    new = [await daily.add("s1", left(3), "the keys are red"), await daily.add("s1", left(3), "the keys are red")]

    path = tmp_path / "memory" / f"{DAY}.md"
    assert new == [True, False]
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)] == [0o600, 0o700]
    assert (await daily.days(), await daily.read_day(DAY)) == ([DAY], path.read_text())


@pytest.fixture
def zone(request: pytest.FixtureRequest) -> Generator[None]:
    """Let this machine be in a time zone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


# In Tokyo the year 10000 begins nine hours before it does in UTC; in Honolulu it was 1969 when time began.
@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone of this system cannot be changed")
@pytest.mark.parametrize(
    ("zone", "days", "day"),
    [
        ("UTC", -40_000, "1970-01-01"),
        ("UTC", 10**7, "9999-12-31"),
        ("JST-9", -40_000, "1970-01-01"),
        ("JST-9", 10**7, "9999-12-31"),
        ("HST10", -40_000, "1969-12-31"),
        ("HST10", 10**7, "9999-12-31"),
    ],
    indirect=["zone"],
)
@pytest.mark.usefixtures("zone")
async def test_a_clock_that_cannot_be_right_still_gives_a_day(tmp_path: Path, days: int, day: str) -> None:
    daily = DailyMemory(tmp_path)

    assert await daily.add("s1", left(3, days=days), "the keys are red")

    assert await daily.days() == [day]


async def test_what_looks_like_a_key_is_not_written(tmp_path: Path) -> None:
    daily = DailyMemory(tmp_path)

    await daily.add("s1", left(3), "the key is sk-abcdefghijklmnop1234")

    assert "abcdefghijklmnop" not in (tmp_path / f"{DAY}.md").read_text()


WRITER = """
import asyncio, sys
from holdfast.core.memory.evictions import Eviction
from holdfast.session.memory.daily import DailyMemory

async def main(folder, session, when, many):
    daily = DailyMemory(folder)
    for place in range(many):
        left = Eviction(log_index=place, time_ms=when, cause="trimmed", ranges=(range(1),))
        await daily.add(session, left, f"note {place} of {session}")

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


async def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, session, str(WHEN), str(MANY)]) for session in ("s1", "s2", "s1")]

    codes = [await asyncio.to_thread(writer.wait) for writer in writers]

    sections = parse_sections((tmp_path / f"{DAY}.md").read_text(), DAY)
    assert codes == [0, 0, 0]
    assert sorted((section.session, section.place) for section in sections) == [
        (session, place) for session in ("s1", "s2") for place in range(MANY)
    ]


async def test_a_folder_that_cannot_be_written_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file")

    with pytest.raises(WorkspaceUnavailableError) as refused:
        await DailyMemory(tmp_path / "memory").add("s1", left(1), "words")

    assert "move it away" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"# day\n\n## Mine\n\n" + b"my notes\n" * 450_000, "is larger than 4,000,000 bytes"),
        ("## Mine\n\ncaf\xe9\n".encode("latin-1"), "is not in UTF-8 from byte 12 on; save it in UTF-8"),
    ],
    ids=["large", "latin-1"],
)
async def test_what_cannot_be_read_whole_is_not_written(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / f"{DAY}.md"
    path.write_bytes(content)

    with pytest.raises(WorkspaceUnavailableError, match=problem):
        await DailyMemory(tmp_path).add("s1", left(1), "the keys are red")

    assert path.read_bytes() == content


async def test_a_link_stays_a_link_and_the_file_it_means_is_added_to(tmp_path: Path) -> None:
    mine, memory = tmp_path / "mine.md", tmp_path / "memory"
    memory.mkdir()
    mine.write_text("## Mine\n\nmy own words\n")
    (memory / f"{DAY}.md").symlink_to(mine)

    await DailyMemory(memory).add("s1", left(1), "the keys are red")

    assert (memory / f"{DAY}.md").is_symlink()
    assert [section.text for section in parse_sections(mine.read_text(), DAY)] == ["my own words", "the keys are red"]


@pytest.mark.parametrize("target", ["nothing", f"{DAY}.md", "."], ids=["nothing", "itself", "folder"])
async def test_a_link_to_what_is_no_file_is_refused_and_stays(tmp_path: Path, target: str) -> None:
    path = tmp_path / f"{DAY}.md"
    path.symlink_to(tmp_path / target)

    with pytest.raises(WorkspaceUnavailableError, match=r"is a link to .*; .*remove the link"):
        await DailyMemory(tmp_path).add("s1", left(1), "the keys are red")

    assert path.is_symlink()


async def test_the_folders_above_a_memory_that_are_made_for_it_are_private_too(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "memory"

    await DailyMemory(folder).add("s1", left(1), "the keys are red")

    assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, *folder.parents[:2])] == [0o700] * 3


async def test_search_finds_the_best_first_and_says_how_many_there_are(tmp_path: Path) -> None:
    daily = DailyMemory(tmp_path)
    await daily.add(
        "s1", left(1), "the boat was painted, and the keys to the shed were found in it after a long search"
    )
    await daily.add("s1", left(2, days=1), "the keys are under the mat")
    await daily.add("s1", left(3, days=2), "钥匙在红色的盒子里")

    found = await daily.search("where are the keys?")
    second = await daily.search("where are the keys?", limit=1, skip=1)

    assert [section.day for section in found.sections] == ["2026-11-16", "2026-11-15"]
    assert ([section.day for section in second.sections], second.total) == (["2026-11-15"], 2)
    assert [section.day for section in (await daily.search("红色")).sections] == ["2026-11-17"]
    assert (await daily.search("")).sections == ()
    assert (await daily.search("zebra")).sections == ()


async def test_what_stands_in_quotation_marks_has_to_be_there_as_it_is_written(tmp_path: Path) -> None:
    daily = DailyMemory(tmp_path)
    await daily.add("s1", left(1), "run make -> all in src/app.py")
    await daily.add("s1", left(2, days=1), "all of src was made, run by run")

    literal = await daily.search('"(a+)+$" run')
    path = await daily.search('"SRC/app.py"')
    sign = await daily.search('"->"')

    assert literal.sections == ()
    assert [section.day for section in path.sections] == ["2026-11-15"]
    assert [section.day for section in sign.sections] == ["2026-11-15"]


async def test_what_a_person_edits_is_what_is_found(tmp_path: Path) -> None:
    daily = DailyMemory(tmp_path)
    await daily.add("s1", left(1), "the keys are red")
    assert (await daily.search("red")).total == 1

    (tmp_path / f"{DAY}.md").write_bytes(b"\xef\xbb\xbfthe keys are blue now \xff\n")

    assert ((await daily.search("red")).total, (await daily.search("blue")).total) == (0, 1)


async def test_a_day_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(MalformedInputError, match="YYYY-MM-DD"):
        await DailyMemory(tmp_path).read_day("../secrets")
