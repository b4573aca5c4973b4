"""What the value of a setting may be: how it is read from words that somebody typed, checked, and shown.

A kind says what is wrong with a value; whoever asked it knows where the value stands.
"""

import json
import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeAlias, cast

from holdfast.apps.settings.paths import display_path, file_exists, path_exists
from holdfast.errors import redact_text

OFF_WORDS = frozenset({"off", "none", "never", "no"})
ON_WORDS = frozenset({"on", "yes", "true", "1"})
NO_VALUE_TEXT = "–"
MAX_SETTING_DIGITS = 18
STORE_SCHEMES = ("memory", "sqlite", "postgresql", "postgres")

ZeroMeaning: TypeAlias = Literal["refused", "zero", "none"]
"""What 0 is where it is less than the least: wrong, a value of its own, or no value at all."""


class InvalidValueError(ValueError):
    """A value cannot be: says what is wrong with it, and where inside of it that stands."""

    def __init__(self, problem: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path


class SettingType:
    """A text; other kinds differ in what they ask for."""

    expects: str = "a text"
    choices: tuple[str, ...] = ()
    is_list: bool = False

    def parse(self, text: str) -> object:
        """Return what somebody means who typed this."""
        return text.strip()

    def check(self, value: object, folder: Path) -> object:
        """Return the value as it is kept; paths are meant from a folder."""
        del folder
        if not isinstance(value, str) or not value.isprintable() or not value:
            raise invalid_value_error(self.expects, value)
        return value

    def to_file(self, value: object, folder: Path) -> object:
        """Return a value as a file in a folder has it."""
        del folder
        return value

    def render(self, value: object) -> str:
        """Return a value as people read it."""
        return NO_VALUE_TEXT if value is None else redact_text(str(value)) or '""'


class OptionalText(SettingType):
    """A text that may be empty."""

    def check(self, value: object, folder: Path) -> object:
        """Return the text."""
        return value if value == "" else super().check(value, folder)


class WholeNumber(SettingType):
    """A whole number between bounds."""

    def __init__(self, minimum: int, maximum: int, zero: ZeroMeaning = "refused") -> None:
        self.minimum, self.maximum, self.zero = minimum, maximum, zero
        said = f"a whole number from {minimum:,} to {maximum:,}"
        self.expects = said if zero == "refused" or not minimum else f"{said}, or 0 for none"

    def parse(self, text: str) -> object:
        """Return the number; thousands may be set apart."""
        bare = text.strip().replace("_", "").replace(",", "")
        if self.zero != "refused" and bare.lower() in OFF_WORDS:
            return 0
        is_number = bare.removeprefix("-").isdecimal() and len(bare) <= MAX_SETTING_DIGITS
        return int(bare) if is_number else text

    def check(self, value: object, folder: Path) -> object:
        """Return the number, or None where 0 stands for none."""
        del folder
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid_value_error(self.expects, value)
        if value == 0 and self.zero != "refused":
            return None if self.zero == "none" else 0
        if not self.minimum <= value <= self.maximum:
            raise invalid_value_error(self.expects, value)
        return value

    def to_file(self, value: object, folder: Path) -> object:
        """Return the number; none is 0."""
        del folder
        return 0 if value is None else value

    def render(self, value: object) -> str:
        """Return the number with its thousands set apart."""
        return f"{value:,}" if isinstance(value, int) else NO_VALUE_TEXT


class Fraction(SettingType):
    """A part of something: above 0, at most 1."""

    expects = "a number between 0 and 1"

    def parse(self, text: str) -> object:
        """Return the number; a percentage will do."""
        bare = text.strip()
        try:
            return float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
        except ValueError:
            return text

    def check(self, value: object, folder: Path) -> object:
        """Return the number."""
        del folder
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise invalid_value_error(self.expects, value)
        return float(value)

    def render(self, value: object) -> str:
        """Return the number in as few digits as it has."""
        return f"{value:g}" if isinstance(value, float) else NO_VALUE_TEXT


class Choice(SettingType):
    """One of some words."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices
        self.expects = f"one of {', '.join(choices)}"

    def check(self, value: object, folder: Path) -> object:
        """Return the word."""
        del folder
        if value in self.choices:
            return value
        raise InvalidValueError(f"{value!r:.60} is not known; {suggest_name(str(value), self.choices)}")


class Switch(SettingType):
    """On or off."""

    expects = "on or off (true or false in a file)"
    choices = ("on", "off")

    def parse(self, text: str) -> object:
        """Return whether it is on; several words will do."""
        bare = text.strip().lower()
        return True if bare in ON_WORDS else False if bare in OFF_WORDS | {"false", "0"} else text

    def check(self, value: object, folder: Path) -> object:
        """Return whether it is on."""
        del folder
        if value in self.choices:
            return value == "on"
        if isinstance(value, bool):
            return value
        raise invalid_value_error(self.expects, value)

    def render(self, value: object) -> str:
        """Return the word for it."""
        return "on" if value else "off"


class TextList(SettingType):
    """A list of texts; some know which there are."""

    expects = 'a list of texts such as ["a", "b"]'
    is_list = True

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def parse(self, text: str) -> object:
        """Return what stands between commas, or a list as JSON has it."""
        return parse_list(text)

    def check(self, value: object, folder: Path) -> object:
        """Return the texts; the word `none` alone stands for no text."""
        del folder
        words = as_texts(value)
        if words is None or not all(words):
            raise invalid_value_error(self.expects, value)
        if words == ("none",):
            return ()
        for word in words:
            if self.choices and word not in self.choices:
                raise InvalidValueError(f"{word!r:.60} is not known; {suggest_name(word, self.choices)}")
        return tuple(dict.fromkeys(words))

    def render(self, value: object) -> str:
        """Return the texts between commas."""
        return redact_text(", ".join(cast("Iterable[str]", value))) or "none"


class FilePath(SettingType):
    """A file that is there."""

    expects = "the path of a file"

    def check(self, value: object, folder: Path) -> object:
        """Return the path from the root."""
        if value == "":
            return None
        if not isinstance(value, str) or "\0" in value:
            raise invalid_value_error(self.expects, value)
        path = absolute_path(value, folder)
        if not file_exists(path):
            raise InvalidValueError(f"there is no file {display_path(path)}; check the path")
        return path

    def to_file(self, value: object, folder: Path) -> object:
        """Return the path as the file would name it."""
        return path_for_file(value, folder) if isinstance(value, Path) else ""

    def render(self, value: object) -> str:
        """Return the path as people write it."""
        return display_path(value) if isinstance(value, Path) else NO_VALUE_TEXT


class FolderPath(SettingType):
    """A folder, which is made when it is needed; or off."""

    expects = "the path of a folder, or off"

    def parse(self, text: str) -> object:
        """Return the path, or False for off."""
        return False if text.strip().lower() in OFF_WORDS else text.strip()

    def check(self, value: object, folder: Path) -> object:
        """Return the path from the root, or None."""
        if value is False or value in OFF_WORDS:
            return None
        if not isinstance(value, str) or not value or "\0" in value:
            raise invalid_value_error(self.expects, value)
        path = absolute_path(value, folder)
        if path_exists(path) and not path.is_dir():
            raise InvalidValueError(f"{display_path(path)} is a file; name a folder, or off")
        return path

    def to_file(self, value: object, folder: Path) -> object:
        """Return the path as the file would name it."""
        return path_for_file(value, folder) if isinstance(value, Path) else "off"

    def render(self, value: object) -> str:
        """Return the path as people write it."""
        return display_path(value) if isinstance(value, Path) else "off"


class FolderList(SettingType):
    """A list of folders."""

    expects = 'a list of folders such as ["~/work"]'
    is_list = True

    def parse(self, text: str) -> object:
        """Return what stands between commas."""
        return parse_list(text)

    def check(self, value: object, folder: Path) -> object:
        """Return the paths from the root."""
        words = as_texts(value)
        if words is None or not all(words) or any("\0" in word for word in words):
            raise invalid_value_error(self.expects, value)
        return tuple(absolute_path(word, folder) for word in words)

    def to_file(self, value: object, folder: Path) -> object:
        """Return the paths as the file would name them."""
        return [path_for_file(path, folder) for path in cast("Iterable[Path]", value)]

    def render(self, value: object) -> str:
        """Return the paths between commas."""
        return ", ".join(map(display_path, cast("Iterable[Path]", value))) or "none"


class StoreUrl(SettingType):
    """Where conversations are kept."""

    expects = "memory://, sqlite:///file or postgresql://…"

    def check(self, value: object, folder: Path) -> object:
        """Return the URL; a file that is named from somewhere is named from the root."""
        if not isinstance(value, str) or value.partition("://")[0] not in STORE_SCHEMES:
            raise invalid_value_error(f"one of {self.expects}", value)
        scheme, _, rest = value.partition("://")
        path = rest.removeprefix("/")
        if scheme != "sqlite" or path.startswith(("/", "~")):
            return value
        if not path:
            raise InvalidValueError("sqlite:/// needs the path of a file, such as sqlite:///chats.db")
        return f"sqlite:///{folder / path}"

    def to_file(self, value: object, folder: Path) -> object:
        """Return the URL as the file would have it."""
        path = str(value).removeprefix("sqlite:///")
        is_file = path != value and path.startswith("/")
        return f"sqlite:///{path_for_file(Path(path), folder)}" if is_file else value


def invalid_value_error(expected: str, value: object) -> InvalidValueError:
    """Return the error for a value that is not what was asked for."""
    try:
        shown = redact_text(repr(value))
    except ValueError:  # an integer of thousands of digits
        shown = "a number without end"
    return InvalidValueError(f"must be {expected}, not {shown:.60}")


def suggest_name(name: str, known: Sequence[str], *, few: int = 12) -> str:
    """Return a hint for a name that nobody knows: the nearest, or all where there are few."""
    near = get_close_matches(name.lower(), known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose one of: {', '.join(known)}" if len(known) <= few else "holdfast config lists what there is"


def parse_list(text: str) -> object:
    """Return the texts between commas, or a list as JSON has it."""
    bare = text.strip()
    if bare.startswith("["):
        try:
            return json.loads(bare)
        except ValueError:
            return text
    return [word.strip() for word in bare.split(",") if word.strip()]


def as_texts(value: object) -> tuple[str, ...] | None:
    """Return a list of texts, or None where it is something else; a single text is a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        return None
    words = tuple(word for word in cast("Sequence[object]", value) if isinstance(word, str))
    return words if len(words) == len(cast("Sequence[object]", value)) else None


def absolute_path(text: str, folder: Path) -> Path:
    """Return a path from the root; a relative one is meant from a folder."""
    path = Path(text)
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise InvalidValueError(f"{text!r:.60} names a home folder that is not known; write the whole path") from error
    return Path(os.path.normpath(path if path.is_absolute() else folder / path))


def path_for_file(path: Path, folder: Path) -> str:
    """Return a path as a file in a folder names it: what lies beside it by its name alone."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) and path != folder else display_path(path)
