"""The chat with the embedded model, as `make chat` opens it."""

from pathlib import Path

from holdfast import Session
from holdfast.apps.chat.runtime import RuntimeCache
from holdfast.apps.chat.tools.files import FileTools
from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.sources import load_settings
from holdfast.models.embedded.weights import cache_folder
from holdfast.stores.memory import MemoryStore
from tests.chat.conftest import Sit
from tests.chat.recording_screen import RecordingScreen

CTRL_D = "\x04"
CARGO = " Coal, timber, salt." * 24
"""Three such prompts fill the window; the model answers them in a few words, which it is slow to write."""


def test_a_conversation_in_a_small_window_folds_and_goes_on(weights: Path, sit: Sit, env: dict[str, str]) -> None:
    assert weights.is_relative_to(cache_folder())
    env["HOLDFAST_N_CTX"] = "512"
    env["HOLDFAST_SYSTEM"] = str(Path(env["HOLDFAST_HOME"]).parent / "system.txt")
    Path(env["HOLDFAST_SYSTEM"]).write_text("Answer with one word.")
    person = sit("--model", "embedded")

    for number, cargo in enumerate([CARGO, CARGO, CARGO, ""]):
        person.says(f"Entry {number}: the Aurora came in. Say yes.{cargo}")
        # Unlike /history, this waits for the answer.
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
