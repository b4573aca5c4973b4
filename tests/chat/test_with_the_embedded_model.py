"""The chat with a real model, and nothing but this machine: what `make chat` opens."""

from pathlib import Path

from holdfast.models.embedded.weights import cache_folder
from tests.chat.conftest import Sit

CTRL_D = "\x04"


def test_a_conversation_in_a_small_window_folds_and_goes_on(weights: Path, sit: Sit, env: dict[str, str]) -> None:
    assert weights.is_relative_to(cache_folder())
    env["HOLDFAST_N_CTX"] = "1024"
    env["HOLDFAST_SYSTEM"] = str(Path(env["HOLDFAST_HOME"]).parent / "system.txt")
    Path(env["HOLDFAST_SYSTEM"]).write_text("Answer with one short sentence.")
    person = sit("--model", "embedded")

    for number in range(6):
        person.says(f"Entry {number}: the Aurora came in with " + "timber and salt and coal, " * 20 + "is that all?")
        person.says("/history")
        person.sees(f"{2 * number + 2} are in the log")
    person.says("/context")
    person.sees("folds stand", "next fold at")
    person.types(CTRL_D)

    assert person.leaves() == 0
    assert "Nothing is lost" not in person.text
