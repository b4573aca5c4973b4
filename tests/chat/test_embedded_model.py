"""The chat with the embedded model, as `make chat` opens it."""

from pathlib import Path

import pytest

from holdfast import Session
from holdfast.apps.chat.runtime import RuntimeCache
from holdfast.apps.chat.tools.files import FileTools
from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.sources import load_settings
from holdfast.models.embedded.weights import cache_folder
from holdfast.stores.memory import MemoryStore
from tests.chat.conftest import Sit
from tests.chat.recording_screen import RecordingScreen, reply_to
from tests.chat.test_attached_files import PIXEL
from tests.chat.test_turns import chat_with

CTRL_D = "\x04"
CARGO = " Coal, timber, salt." * 24
"""Three such prompts fill the window."""


@pytest.fixture
def small_window(env: dict[str, str], tmp_path: Path) -> None:
    env["HOLDFAST_N_CTX"] = "512"
    env["HOLDFAST_SYSTEM"] = str(tmp_path / "system.txt")
    (tmp_path / "system.txt").write_text("Answer with one word.")


@pytest.mark.usefixtures("small_window")
def test_the_model_that_is_there_without_a_key_answers(weights: Path, sit: Sit) -> None:
    assert weights.is_relative_to(cache_folder())
    person = sit("--model", "embedded")

    person.says("Say yes.")
    # Unlike /history, this waits for the answer.
    person.says("/title Answered")
    person.sees("now called 'Answered'")
    person.says("/history")
    person.sees("2 are in the log")
    person.types(CTRL_D)

    assert person.leaves() == 0
    assert "Nothing is lost" not in person.text


@pytest.mark.usefixtures("small_window")
def test_a_conversation_in_a_small_window_is_compacted_and_goes_on(shallow_weights: Path, sit: Sit) -> None:
    person = sit("--model", f"embedded:{shallow_weights}")

    for number, cargo in enumerate([CARGO, CARGO, CARGO, ""]):
        person.says(f"Entry {number}: the Aurora came in. Say yes.{cargo}")
        person.says(f"/title Entry {number} is answered")
        person.sees(f"now called 'Entry {number} is answered'")
        person.says("/history")
        person.sees(f"{2 * number + 2} are in the log")
    person.says("/context")
    person.sees("in effect; /receipts", "next compaction at")
    person.types(CTRL_D)

    assert person.leaves() == 0
    assert "Nothing is lost" not in person.text


async def test_a_server_of_another_window_does_not_outlive_the_settings_that_wanted_it(
    weights: Path, tmp_path: Path
) -> None:
    assert weights.exists()

    def wanting(n_ctx: int) -> Settings:
        flags = {"model": "embedded", "summarization_model": "embedded", "n_ctx": str(n_ctx)}
        return load_settings(flags=flags, cwd=tmp_path, environ={"HOLDFAST_HOME": str(tmp_path)})

    runtimes = RuntimeCache(RecordingScreen())
    async with Session.open("s", store=MemoryStore()) as session:
        await runtimes.get(wanting(512), session, FileTools(tmp_path))
        first = runtimes._server
        assert first is not None
        was_running = first.is_running

        runtimes.summarizer(wanting(1_024))
        await runtimes.close()

    assert (was_running, first.is_running) == (True, False)


async def test_a_server_goes_on_for_the_same_settings_and_stops_when_another_model_answers(
    shallow_weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "tide.png").write_bytes(PIXEL)
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, f"embedded:{shallow_weights}", screen, n_ctx="512")
    runtimes = chat._runtimes
    await runtimes.get(chat.settings, chat.session, chat.file_tools)
    first = runtimes._server
    assert first is not None

    outcome = await chat.take_turn("What is this? @tide.png")
    runtimes.invalidate()
    await runtimes.get(chat.settings, chat.session, chat.file_tools)
    states = [(runtimes._server is first, first.is_running)]
    await reply_to(chat, screen, "/model http://127.0.0.1:9/v1#other")
    await runtimes.get(chat.settings, chat.session, chat.file_tools)
    states.append((runtimes._server is first, first.is_running))
    back = await reply_to(chat, screen, f"/model embedded:{shallow_weights}")
    await chat.close()

    assert outcome == "failed"
    assert " takes no images; /model switches to another" in screen.since(0)
    assert states == [(True, True), (True, False)]
    assert back == f"switched to embedded:{shallow_weights}"
