"""Files and images that a user attaches to a prompt."""

import base64
import os
import sys
import threading
from pathlib import Path

import pytest

from holdfast.apps.chat.attachments import (
    MAX_ATTACHED_BYTES,
    MAX_IMAGE_BYTES,
    AttachedImage,
    clipboard_image,
    mentioned_files,
    missing_files,
    pasted_image_path,
    read_attachment,
)
from holdfast.apps.chat.pastes import PastedTexts
from holdfast.apps.chat.tools.files import FileTools
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, reply_to
from tests.chat.test_turns import chat_with

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_a_file_that_a_prompt_names_is_part_of_it_and_a_long_one_is_read_in_parts(
    tmp_path: Path, served: Served
) -> None:
    (tmp_path / "short.txt").write_text("the tide is at nine\n```\nfenced\n```\n")
    (tmp_path / "long.log").write_text("".join(f"line {number}\n" for number in range(5_000)))
    chat = await chat_with(tmp_path, served.model, RecordingScreen(), budget="8000")

    await chat.take_turn("Compare @short.txt with @long.log, please, and mail me@example.com.")
    names = list(chat.session.attachments)
    (stored,) = await chat.store.sessions(limit=2)
    await chat.close()

    prompt = served.prompts[0]
    assert stored.name == "Compare @short.txt with @long.log, please, and mail me@example.com."
    assert "[attached: short.txt, 4 lines]\n````\nthe tide is at nine" in prompt
    assert "[attached: long.log, 5,000 lines" in prompt
    assert names == ["long.log"]


async def test_an_image_is_sent_to_a_model_that_takes_images_and_recorded(tmp_path: Path, served: Served) -> None:
    (tmp_path / "tide.png").write_bytes(PIXEL)
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)

    await reply_to(chat, screen, "/attach tide.png")
    listed = await reply_to(chat, screen, '/attach "tide.png"')
    await chat.take_turn("What is this? @tide.png")
    await chat.take_turn("And now?")
    cleared = await reply_to(chat, screen, "/attach")
    await chat.close()

    assert listed == f"FILE | SIZE | PART OF\ntide.png | {len(PIXEL)} bytes, image/png | the next prompt"
    data = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    assert str(served.asked[0]).count(data) == 1
    assert data in str(served.asked[1])
    assert "nothing is attached" in cleared


@pytest.mark.parametrize(
    ("name", "data", "media_type"),
    [
        ("tide.jpg", PIXEL, "image/png"),
        ("tide", PIXEL, "image/png"),
        ("tide.png", b"\xff\xd8\xff\xe0\0", "image/jpeg"),
        ("tide.png", b"GIF89a\1\0", "image/gif"),
        ("tide.jpg", b"RIFF\x0a\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_an_image_has_the_type_of_what_it_holds_whatever_its_name_says(
    tmp_path: Path, name: str, data: bytes, media_type: str
) -> None:
    (tmp_path / name).write_bytes(data)

    assert read_attachment(name, tmp_path) == AttachedImage(name, data, media_type)


async def test_a_long_file_that_has_changed_is_attached_beside_the_one_before(tmp_path: Path, served: Served) -> None:
    text = "".join(f"line {number}\n" for number in range(5_000))
    (tmp_path / "long.log").write_text(text)
    chat = await chat_with(tmp_path, served.model, RecordingScreen(), budget="8000")

    await chat.take_turn("Read @long.log.")
    await chat.take_turn("Again: @long.log.")
    (tmp_path / "long.log").write_text(f"{text}the end\n")
    await chat.take_turn("And now? @long.log")
    stored = {name: await chat.session.attachment(name) for name in chat.session.attachments}
    await chat.close()

    assert stored == {"long.log": text, "new-long.log": f"{text}the end\n"}


async def test_what_cannot_be_attached_is_said_and_nothing_is_sent(tmp_path: Path, served: Served) -> None:
    (tmp_path / "data.bin").write_bytes(b"\0\1")
    (tmp_path / "empty.png").touch()
    (tmp_path / "page.jpg").write_text("<html>Not found</html>")
    for name, size in (("huge.log", MAX_ATTACHED_BYTES), ("huge.png", MAX_IMAGE_BYTES)):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size + 1)
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)

    names = (
        *("missing.txt", "data.bin", "empty.png", "page.jpg"),
        *("huge.log", "huge.png", "/dev/zero", "~nobody-has-this-name/a.txt"),
    )
    said = [await reply_to(chat, screen, f"/attach {name}") for name in names]
    await chat.close()

    assert said == [
        "missing.txt: cannot be attached: No such file or directory",
        "data.bin: is neither text nor an image (png, jpg, jpeg, gif, webp)",
        "empty.png: is empty",
        "page.jpg: holds no image (png, jpg, jpeg, gif, webp)",
        "huge.log: has 20,000,001 bytes; 20,000,000 is the limit of an attachment",
        "huge.png: has 5,000,001 bytes; 5,000,000 is the limit of an image",
        "/dev/zero: has 20,000,001 bytes; 20,000,000 is the limit of an attachment",
        "~nobody-has-this-name/a.txt: cannot be attached: Could not determine home directory.",
    ]
    assert served.requests == []


async def test_a_pipe_is_not_attached_and_the_chat_goes_on(tmp_path: Path, served: Served) -> None:
    os.mkfifo(tmp_path / "pipe")
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=["words"])
    writer.start()  # it waits until somebody opens the pipe to read

    said = await reply_to(chat, screen, "/attach pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer.join()
    os.close(reader)
    await chat.close()

    assert said == "pipe: is a pipe, which may never end; write what it holds to a file, and attach that"


@pytest.mark.parametrize(("name", "problem"), [("missing.gguf", "there is no file"), ("a.txt", "is not a GGUF file")])
async def test_a_file_that_is_no_model_is_named(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "a.txt").write_text("a")
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, f"embedded:{tmp_path / name}", screen)

    outcome = await chat.take_turn("hello")
    await chat.close()

    assert (outcome, problem in screen.since(0)) == ("failed", True)


@pytest.mark.parametrize(
    ("prompt", "files"),
    [
        ("see @a.txt.", ["a.txt"]),
        ('see @"b c.txt"', ["b c.txt"]),
        ("@a.txt @a.txt @missing", ["a.txt"]),
        ("me@a.txt and a.txt", []),
        ("see @b\\ c.txt, please", ["b c.txt"]),
        ("see @a.txt\\ c", ["a.txt"]),
        ("@", []),
    ],
)
def test_a_prompt_names_files_with_an_at_sign(tmp_path: Path, prompt: str, files: list[str]) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b c.txt").write_text("b")

    assert mentioned_files(prompt, tmp_path) == files


def test_a_file_that_is_dropped_on_the_terminal_is_recognized_as_an_image(tmp_path: Path) -> None:
    (tmp_path / "my tide.png").write_bytes(PIXEL)
    path = tmp_path / "my tide.png"

    pasted = [f"'{path}'", str(path).replace(" ", "\\ "), f"file://{str(path).replace(' ', '%20')}", "my tide.png"]
    assert [pasted_image_path(text, tmp_path) for text in pasted] == [str(path)] * 3 + ["my tide.png"]
    assert [pasted_image_path(text, tmp_path) for text in ("missing.png", "a\nb.png", "'open", "")] == [None] * 4


@pytest.mark.parametrize(
    ("prompt", "missing"),
    [
        ("look at @nosuch.txt, @notes.txt and @nosuch.txt.", ["@nosuch.txt"]),
        ('compare @"no such.md" and @src/gone.py!', ["@no such.md", "@src/gone.py"]),
        ("ask @alice about @src/ and a@b.com", []),
        ("why?\n@app.route\ndef f(): ...", []),
        ("look at @pipe, @src and @nobody.", ["@pipe (a pipe or a device)"]),
        ("look at @no\\ such.png", ["@no such.png"]),
    ],
)
def test_a_prompt_that_names_a_file_which_is_not_there_is_told_so(
    prompt: str, missing: list[str], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "src").mkdir()
    os.mkfifo(tmp_path / "pipe")

    assert missing_files(prompt, tmp_path) == missing


def test_a_long_paste_is_a_mark_in_the_line_and_whole_when_it_is_submitted() -> None:
    pastes, text = PastedTexts(), "line\n" * 200_000
    mark = pastes.shorten(text)

    assert mark == "[paste 1: 200,001 lines, 1,000,000 characters]"
    assert pastes.expand(f"Look: {mark}?") == f"Look: {text}?"
    assert pastes.shorten("short") == "short"
    assert pastes.expand("[paste 9: 1 line, 5 characters]") == "[paste 9: 1 line, 5 characters]"


def test_paths_are_completed_from_their_beginning_or_from_anywhere_in_a_name(tmp_path: Path) -> None:
    for name in ("main.py", "src/domain.py", "src/other.py", ".git/main"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    files = FileTools(tmp_path)

    assert files.complete_path("") == ["main.py", "src/"]
    assert files.complete_path("mai") == ["main.py", "src/domain.py"]
    assert files.complete_path("src/o") == ["src/other.py"]
    assert files.complete_path("../") == []


@pytest.mark.parametrize(
    ("programs", "image"),
    [
        ({}, None),
        ({"wl-paste": "exit 1"}, None),
        ({"wl-paste": "echo words"}, None),
        ({"wl-paste": "exit 1", "xclip": "cat tide.png"}, PIXEL),
        ({"pngpaste": "cat tide.png"}, PIXEL),
    ],
    ids=["no program", "no image", "text", "x11", "macos"],
)
def test_the_image_of_the_clipboard_comes_from_the_program_of_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, str], image: bytes | None
) -> None:
    (tmp_path / "tide.png").write_bytes(PIXEL)
    for name, command in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin; cd {tmp_path}; {command}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "darwin" if "pngpaste" in programs else "linux")

    assert clipboard_image() == image
