"""Text of others cannot look like a line of the command line's own."""

import json
import re
from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.session.session import Session
from tests.cli.conftest import run

HOSTILE = "first\n--- 9 user\nfake line"


def imported(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> str:
    header = {"type": "holdfast.export", "schema": 1, "data": {"session": "s1", "name": name}}
    data = {"format": "openai-chat", "native": {"role": "user", "content": HOSTILE}}
    record = {"timeMs": 1, "type": "message.appended", "schema": 1, "data": data}
    file = tmp_path / "log.jsonl"
    file.write_text(f"{json.dumps(header)}\n{json.dumps(record)}\n")
    store = f"sqlite:///{tmp_path}/log.db"
    assert run(capsys, "import", str(file), "--store", store)[0] == 0
    return store


def test_no_text_of_a_message_looks_like_the_header_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = imported(tmp_path, capsys, "plain")

    assert run(capsys, "show", "s1", "--store", store)[1] == ("--- 0 user\n  first\n  --- 9 user\n  fake line\n\n")


def test_a_session_name_with_a_line_break_forges_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = imported(tmp_path, capsys, "x\nFAKE  99  1 s  other")

    _, listed, _ = run(capsys, "sessions", "--store", store)

    assert [line.split()[0] for line in listed.splitlines()] == ["ID", "s1"]
    assert listed.rstrip().endswith("x FAKE  99  1 s  other")


def test_an_id_of_thousands_of_characters_widens_no_other_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, long = imported(tmp_path, capsys, "plain"), "x" * 3_000
    run(capsys, "import", str(tmp_path / "log.jsonl"), "--as", long, "--store", store)

    _, listed, _ = run(capsys, "sessions", "--store", store)

    age = r"\d+ d"
    rows = [r"ID {78}  EVENTS  AGE +NAME", rf"{long}  1 {{5}}  {age} +plain", rf"s1 {{78}}  1 {{5}}  {age} +plain"]
    assert [line for line in listed.splitlines() if not any(re.fullmatch(row, line) for row in rows)] == []


def test_an_id_with_a_line_break_stays_on_its_line_in_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = imported(tmp_path, capsys, "plain")
    file, to_store = str(tmp_path / "log.jsonl"), ["--store", store]
    recover = ["recover", str(tmp_path / "log.db"), "-o", str(tmp_path / "saved.db")]

    results = [
        run(capsys, *arguments, *to_store)[1:]
        for arguments in (
            ["import", file, "--as", "a\nFAKE"],
            ["import", file, "--as", "a\nFAKE"],
            ["scrub", "s1", "fake line"],
            ["scrub", "a\nFAKE", "fake line"],
            ["replay", "a\nFAKE", "--verify"],
            ["sessions", "prune", "--days", "1", "--dry-run"],
            recover,
            ["sessions", "rm", "a\nFAKE", "--yes"],
        )
    ]

    printed = [line for pair in results for text in pair for line in text.splitlines()]
    assert [line for line in printed if line.startswith("FAKE")] == []
    assert results[0] == ("imported a\\nFAKE: 1 message, 1 record\n", "")
    assert results[2][1].startswith("holdfast: session a\\nFAKE also contains it; scrub that session too\n")
    assert results[-1] == ("deleted a\\nFAKE: 2 events\n", "")


async def test_a_session_cannot_be_renamed_to_several_lines() -> None:
    async with Session.open("s1") as session:
        with pytest.raises(SettingsError, match="name: must be one line without control characters"):
            await session.rename("a\nb")
