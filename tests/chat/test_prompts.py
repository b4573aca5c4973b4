"""Typed or pasted text becomes a prompt."""

from pathlib import Path

import pytest

from holdfast.apps.chat.input_line import MAX_KEPT_PROMPT_CHARS, PromptHistory
from holdfast.apps.chat.prompts import CleanPrompt, attachment_text, clean_prompt, is_too_large, new_attachment_name
from holdfast.counters.vocabularies import counter_for


@pytest.mark.parametrize(
    ("typed", "cleaned"),
    [
        ("  hello \n", CleanPrompt("hello")),
        ("a\tb\nc", CleanPrompt("a\tb\nc")),
        ("a\x1b[31mb", CleanPrompt("a[31mb", note="control characters were removed")),
        ("lone \ud800 surrogate", CleanPrompt("lone \ufffd surrogate")),
        ("", CleanPrompt("")),
    ],
)
def test_what_is_typed_becomes_sound_text(typed: str, cleaned: CleanPrompt) -> None:
    assert clean_prompt(typed) == cleaned


def test_binary_data_is_refused_with_a_word_what_to_do() -> None:
    data = bytes(range(256)).decode("latin-1") * 20

    assert clean_prompt(data) == CleanPrompt(
        "", problem="this is binary data, not text: save it as a file and ask about the file"
    )


def test_a_prompt_that_would_fill_half_of_the_window_is_too_large() -> None:
    counter = counter_for(None)

    assert not is_too_large("word " * 400, 1_000, counter)
    assert is_too_large("word " * 600, 1_000, counter)
    assert is_too_large("x" * 1_000_000, 1_000, counter)


def test_each_attachment_has_a_name_of_its_own() -> None:
    assert new_attachment_name([]) == "paste-1.txt"
    assert new_attachment_name(["paste-1.txt", "paste-3.txt"]) == "paste-2.txt"


def test_a_reference_says_how_to_read_on() -> None:
    text = "line\n" * 1_000

    assert attachment_text("paste-1.txt", text).startswith(
        "[attached: paste-1.txt, 1,000 lines, 5,000 characters; it begins as below and is read with"
        ' read_file("paste-1.txt", start_line=…)]\n\nline\n'
    )


def test_the_prompt_history_keeps_what_was_typed_and_no_large_paste(tmp_path: Path) -> None:
    history = PromptHistory(tmp_path / "prompts")
    typed, paste = "t" * MAX_KEPT_PROMPT_CHARS, "p" * (MAX_KEPT_PROMPT_CHARS + 1)

    for text in ("hello", paste, typed):
        history.append_string(text)

    assert history.get_strings() == ["hello", paste, typed], "it can be edited while the program runs"
    assert list(PromptHistory(tmp_path / "prompts").load_history_strings()) == [typed, "hello"]
