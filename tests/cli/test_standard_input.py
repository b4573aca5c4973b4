"""Commands that read standard input, and what ends them."""

import asyncio
import io
import os
import sys
from pathlib import Path

import pytest

from holdfast.apps.threads import run_in_daemon_thread
from tests.cli.conftest import run

MESSAGES = '[{"role": "user", "content": "When is high tide?"}, {"role": "assistant", "content": "At four."}]'


async def test_whoever_waits_for_the_end_of_the_input_can_be_cancelled() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as piped, os.fdopen(writing, "w") as other_end:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_in_daemon_thread(piped.read), timeout=0.01)

        other_end.close()


async def test_an_error_of_the_input_is_raised_where_it_is_awaited() -> None:
    closed = io.StringIO()
    closed.close()

    with pytest.raises(ValueError, match="closed file"):
        await run_in_daemon_thread(closed.read)


def test_messages_of_standard_input_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MESSAGES.encode("utf-16"))))

    imported = run(capsys, "import", "-", "--as", "tides", "--store", store)

    assert imported == (0, "imported tides: 2 messages, 2 records\n", "holdfast: it was written in UTF-16\n")
    code, shown, _ = run(capsys, "show", "tides", "--store", store)
    assert (code, "At four." in shown) == (0, True)


def test_an_import_whose_text_was_not_utf8_says_with_its_exit_code_that_text_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = '{"role": "user", "content": "bl\u00e5"}'
    for number, wrong in enumerate([content.encode("latin-1"), content.encode("utf-16") + b"\n"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(wrong)))
        code, out, said = run(capsys, "import", "-", "--as", f"s{number}", "--store", f"sqlite:///{tmp_path}/store.db")

        assert (code, out) == (1, f"imported s{number}: 1 message, 1 record\n")
        assert "were replaced, the first at" in said


def test_an_export_is_imported_from_standard_input_under_its_own_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MESSAGES.encode())))
    run(capsys, "import", "-", "--as", "tides", "--store", first)
    _, exported, _ = run(capsys, "export", "tides", "--store", first)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(exported.encode())))

    imported = run(capsys, "import", "-", "--store", second)

    assert imported == (0, "imported tides: 2 messages, 2 records\n", "")
    assert run(capsys, "export", "tides", "--store", second)[1] == exported


def test_messages_of_standard_input_need_an_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MESSAGES.encode())))

    code, out, told = run(capsys, "import", "-", "--store", f"sqlite:///{tmp_path}/store.db")

    assert (code, out) == (2, "")
    assert told == "holdfast: --as: is missing, and standard input names no session; give the id of the new one\n"
