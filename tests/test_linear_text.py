"""Every text operation takes time that grows with the text: no output of a tool stops the process."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pytest

from holdfast.apps.gateway.recording.client_forms import count_shared_contents
from holdfast.apps.lab.identifiers import extract_identifiers
from holdfast.core.ledger import constraints
from holdfast.core.ledger.constraints import Constraints, matches_cue
from holdfast.core.ledger.identifiers import distinct_identifiers, identifiers
from holdfast.core.planning.rules.default import without_durations
from holdfast.core.recall.answer import looks_like_heading
from holdfast.errors import MalformedInputError
from holdfast.stores.jsonl import load_bytes
from holdfast.wire.equivalence import essential_gemini_content

GENEROUS_S = 10
"""Of processor time, for what takes less than one: the old patterns took minutes."""


def linear_text(package: str, folder: Path) -> list[str]:
    """Return what `linear_text.py`, in a process of its own, says is not linear in a package of a folder."""
    program = Path(__file__).with_name("linear_text.py")
    ran = subprocess.run(
        [sys.executable, program, package], env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_no_pattern_and_no_text_function_takes_more_than_linear_time() -> None:
    assert linear_text("holdfast", Path()) == []


def test_a_quadratic_pattern_is_found_wherever_it_is(tmp_path: Path) -> None:
    package = tmp_path / "slow"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "held.py").write_text(
        """
import re
DURATION = re.compile(r"\\b\\d+(?:[.,:]\\d+)*\\s?(?:ms|s|secs?|seconds?)\\b")
class Reader:
    heading = {"like": (re.compile(r"(?m)^#\\d+\\S* (?:system|user)\\b"),)}
TOO_FAR = re.compile(r"(?:a|b(?=c))*+")
"""
    )
    (package / "used.py").write_text(
        """
import re
TOKEN = r"eyJ[\\w-]{8,}\\.eyJ"
def strip_blanks(text: str) -> str:
    return re.sub(r"\\s+$", "", text)
def is_token(text):
    return search(TOKEN, text)
def search(pattern, text):
    return re.search(pattern, text)
"""
    )

    places = {line.partition(" ")[0] for line in linear_text("slow", tmp_path)}

    assert places == {
        "slow.held.DURATION",
        "slow.held.Reader",
        "slow.held.TOO_FAR",
        "slow.used:5",
        "slow.used.TOKEN",
        "slow.used.strip_blanks",
    }


def test_the_patterns_that_take_the_square_of_a_text_read_short_text_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}

    def noting(function: Callable[..., object]) -> Callable[[str, str], object]:
        def noted(pattern: str, text: str) -> object:
            if pattern.startswith("(?P<mail>"):
                seen["(?P<mail>"] = max(seen.get("(?P<mail>", 0), len(text))
            return function(pattern, text)

        return noted

    def noting_cue(cue: constraints.Cue, sentence: str) -> bool:
        seen["cue"] = max(seen.get("cue", 0), len(sentence))
        return matches_cue(cue, sentence)

    monkeypatch.setattr(constraints, "matches_cue", noting_cue)
    monkeypatch.setattr(re, "finditer", noting(re.finditer))
    monkeypatch.setattr(re, "search", noting(re.search))
    text = "".join(f"never use {'a' * size}. " for size in (100, 199, 200, 289, 290, 999, 1_000)) + "a" * 1_000_000
    assert [*identifiers(text), *distinct_identifiers(text)] == []
    Constraints().observe(text, "user", 1)

    assert seen == {"(?P<mail>": 200, "cue": 300}

    assert [*extract_identifiers(text)] == []
    assert seen["(?P<mail>"] == 1_000


def test_a_long_list_of_numbers_is_searched_for_durations_once() -> None:
    numbers = f"[{'255,0,17,' * 110_000}0]"
    started = process_time()

    assert without_durations(numbers) == numbers
    assert process_time() - started < GENEROUS_S


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("ran in 1.5s", "ran in "),
        ("took 1:02:03 seconds, then 4 ms.", "took , then ."),
        ("x86,2s", "x86,"),
        ("a1s 1,2 3 s", "a1s 1,2 "),
        ("12 sheep", "12 sheep"),
        ("1\x1cs", ""),
    ],
)
def test_durations_are_left_out_and_other_numbers_stay_in_any_script(text: str, left: str) -> None:
    assert without_durations(text) == left
    assert without_durations(f"é {text}") == f"é {left}"


def test_a_line_of_digits_is_searched_for_a_heading_once() -> None:
    started = process_time()

    assert not looks_like_heading(f"#{'1' * 1_000_000}")
    assert looks_like_heading(f"#{'1' * 1_000_000} user")
    assert process_time() - started < GENEROUS_S


@pytest.mark.parametrize("line", [b"[[],\n", b"[[],\n1,\n", b'[",\n', b"{}", b'{"a":1 ', b'{"a":[0,'])
def test_a_file_of_beginnings_is_refused_in_time_that_grows_with_it(line: bytes) -> None:
    started = process_time()

    with pytest.raises(MalformedInputError):
        load_bytes(line * (200_000 // len(line)))

    assert process_time() - started < GENEROUS_S


def test_a_content_of_many_parts_is_compared_in_linear_time() -> None:
    chunks = [{"role": "model", "parts": [{"text": "word" * 250}]} for _ in range(20_000)]
    whole = {"role": "model", "parts": [part for content in chunks for part in content["parts"]]}
    began = process_time()

    [part] = essential_gemini_content(whole)["parts"]
    shared = count_shared_contents([whole], [*chunks, chunks[0]])

    assert (len(part["text"]), shared) == (20_000_000, (1, 20_000))
    assert process_time() - began < GENEROUS_S
