"""Text of others cannot look like a line of the command line's own."""

import json
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


async def test_a_session_cannot_be_renamed_to_several_lines() -> None:
    async with Session.open("s1") as session:
        with pytest.raises(SettingsError, match="name: must be one line without control characters"):
            await session.rename("a\nb")
