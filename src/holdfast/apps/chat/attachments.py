"""Files that a user attaches to a prompt: named as `@path` in the text, with /attach, with --attach, or pasted.

A text that leaves room for the conversation is part of the prompt. A longer one becomes an attachment of the
conversation, which the model reads in parts. An image is sent to models that take images.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from holdfast.core.conversation.frames import neutralize
from holdfast.errors import SettingsError

IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif",
               ".webp": "image/webp"}  # fmt: skip
_SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
)
"""How the images of each type begin. A provider refuses an image of another type than the request says."""
MAX_IMAGE_BYTES = 5_000_000
MAX_ATTACHED_BYTES = 20_000_000
MAX_INLINE_SHARE = 0.25
"""A text that takes a larger share of the budget becomes an attachment."""
CLIPBOARD_SECONDS = 5
MAX_PATH_CHARS = 4_000
_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"\n]{1,1000})\"|((?:\\ |\S){1,1000}))")
_ESCAPED = re.compile(r"\\(.)")
_TRAILING = ".,;:!?)]}'\""


@dataclass(frozen=True, slots=True)
class AttachedImage:
    """An image for the model."""

    name: str
    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class AttachedText:
    """A text file for the model."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt as it is sent."""

    text: str
    images: tuple[AttachedImage, ...] = field(default=())


def mentioned_files(prompt: str, folder: Path) -> list[str]:
    """Return the paths that a prompt names as `@path` and that are files, each once."""
    found: dict[str, None] = {}
    for mention in _MENTION.finditer(prompt):
        path = next((word for word in _possible_paths(mention) if is_file(folder, word)), None)
        if path is not None:
            found[path] = None
    return list(found)


def missing_files(prompt: str, folder: Path) -> list[str]:
    """Return the words of a prompt that look like `@path` and name no file, each once.

    A prompt of several lines may hold code, where such words have another meaning.
    """
    if "\n" in prompt.strip():
        return []
    missing: dict[str, None] = {}
    for mention in _MENTION.finditer(prompt):
        paths = _possible_paths(mention)
        if not paths or any(is_file(folder, path) or is_folder(folder, path) for path in paths):
            continue
        there = next((path for path in paths if _is(Path.exists, folder, path)), None)
        if there is not None:
            missing[f"@{there} (a pipe or a device)"] = None
        elif "/" in paths[-1] or "." in paths[-1]:
            missing[f"@{paths[-1]}"] = None
    return list(missing)


def _possible_paths(mention: re.Match[str]) -> list[str]:
    """Return what a mention may name: the words as they are, without the end of a sentence, or without backslashes."""
    if mention[1]:
        return [mention[1]]
    word, unescaped = mention[2], _ESCAPED.sub(r"\1", mention[2])
    # A space in a name is escaped as in a shell; without such a file it ends the name.
    first = word.partition("\\ ")[0] if "\\ " in word else word
    found = [first, first.rstrip(_TRAILING), unescaped, unescaped.rstrip(_TRAILING)]
    return [path for path in dict.fromkeys(found) if path]


def _is(kind: Callable[[Path], bool], folder: Path, path: str) -> bool:
    """Return whether a path, relative to a folder, is of a kind; a text that can be no path is of none."""
    try:
        return kind(folder / Path(path).expanduser())
    except (OSError, ValueError, RuntimeError):
        return False


def is_folder(folder: Path, path: str) -> bool:
    """Return whether a path, relative to a folder, is a folder."""
    return _is(Path.is_dir, folder, path)


def is_file(folder: Path, path: str) -> bool:
    """Return whether a path, relative to a folder, is a file."""
    return _is(Path.is_file, folder, path)


def is_pipe(folder: Path, path: str) -> bool:
    """Return whether a path, relative to a folder, is a named pipe."""
    return _is(Path.is_fifo, folder, path)


def read_attachment(path: str, folder: Path) -> AttachedText | AttachedImage:
    """Return a file that the user attaches; it may be anywhere, because the user names it."""
    try:
        place = folder / Path(path).expanduser()
        with place.open("rb") as file:
            # A pipe and a device have no size, and may never end.
            data = file.read(MAX_ATTACHED_BYTES + 1)
            size = max(len(data), place.stat().st_size)
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingsError(path, f"cannot be attached: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_ATTACHED_BYTES:
        raise SettingsError(path, f"has {size:,} bytes; {MAX_ATTACHED_BYTES:,} is the limit of an attachment")
    # The end of a name is often wrong: browsers save other types as they are under .jpg.
    media_type = next((kind for signature, kind in _SIGNATURES if signature.match(data)), None)
    is_image = media_type is not None or place.suffix.lower() in IMAGE_TYPES
    if is_image and size > MAX_IMAGE_BYTES:
        raise SettingsError(path, f"has {size:,} bytes; {MAX_IMAGE_BYTES:,} is the limit of an image")
    if media_type is not None:
        return AttachedImage(place.name, data, media_type)
    if is_image or b"\0" in data:
        kinds = ", ".join(suffix.removeprefix(".") for suffix in IMAGE_TYPES)
        what = "holds no image" if is_image else "is neither text nor an image"
        raise SettingsError(path, f"{what} ({kinds})" if data else "is empty")
    return AttachedText(path, data.decode("utf-8", errors="replace"))


def render_text(attached: AttachedText) -> str:
    """Return a text file as part of a prompt, in a fence that nothing in it closes."""
    fence = "```"
    while fence in attached.text:
        fence += "`"
    lines = len(attached.text.splitlines())
    name = neutralize(attached.name, "name")
    return f"[attached: {name}, {lines:,} lines]\n{fence}\n{attached.text.rstrip()}\n{fence}"


def pasted_image_path(text: str, folder: Path) -> str | None:
    """Return the path of an image if a pasted text is one, as terminals paste a file that is dropped on them."""
    line = text.strip()
    if not line or "\n" in line or len(line) > MAX_PATH_CHARS:
        return None
    if line.startswith("file://"):
        line = unquote(line.removeprefix("file://"))
    elif line[0] in "'\"" or "\\ " in line:
        try:
            words = shlex.split(line)
        except ValueError:
            return None
        line = words[0] if len(words) == 1 else ""
    is_image = Path(line).suffix.lower() in IMAGE_TYPES
    return line if line and is_image and is_file(folder, line) else None


def clipboard_commands() -> Sequence[Sequence[str]]:
    """Return the commands that print the clipboard's image as PNG on this platform."""
    if sys.platform == "darwin":
        return (("pngpaste", "-"),)
    return (("wl-paste", "--type", "image/png"), ("xclip", "-selection", "clipboard", "-t", "image/png", "-o"))


def clipboard_image() -> bytes | None:
    """Return the image of the clipboard as PNG; None if there is none, or no program that reads it."""
    for command in clipboard_commands():
        try:
            done = subprocess.run(command, capture_output=True, timeout=CLIPBOARD_SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.startswith(b"\x89PNG") and len(done.stdout) <= MAX_IMAGE_BYTES:
            return done.stdout
    return None
