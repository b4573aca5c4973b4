"""The types of settings: how each one parses typed text, checks a value, writes it to a file and shows it.

A type says what is wrong with a value; the caller adds the place of the value.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, cast

from holdfast.apps.settings.paths import display_path
from holdfast.core.schema import is_integer, is_number, short_repr, suggest_similar
from holdfast.models.http_endpoint import split_http_url
from holdfast.redaction import redact_text, redact_url

OFF_WORDS = frozenset({"off", "none", "never", "no"})
ON_WORDS = frozenset({"on", "yes", "true", "1"})
NO_VALUE_TEXT = "–"
MAX_SETTING_DIGITS = 18
MAX_LISTED_NAMES = 12
"""How many names a hint lists; more are in `holdfast config`."""
STORE_SCHEMES = ("memory", "sqlite", "postgresql", "postgres")

ZeroMeaning: TypeAlias = Literal["refused", "zero", "none"]
"""What 0 means if it is below the minimum: an error, the number 0, or no value."""


class InvalidValueError(ValueError):
    """Raised when a value is wrong; has the path of the problem inside the value."""

    def __init__(self, problem: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path


class SettingType:
    """A text; the base of the other types."""

    expects: str = "a text"
    choices: tuple[str, ...] = ()
    is_list: bool = False

    def parse(self, text: str) -> object:
        """Return the value of typed text; a list is separated by commas or written as JSON."""
        bare = text.strip()
        if not self.is_list:
            return bare
        if bare.startswith("["):
            try:
                return json.loads(bare)
            except (ValueError, RecursionError):
                return text
        return [word.strip() for word in bare.split(",") if word.strip()]

    def check(self, value: object, _folder: Path, /) -> object:
        """Return the checked value; a relative path is relative to the folder."""
        if not isinstance(value, str) or not value.isprintable() or not value:
            raise invalid_value_error(self.expects, value)
        return value

    def to_file(self, value: object, _folder: Path, /) -> object:
        """Return a value as it is written to a file in a folder."""
        return value

    def render(self, value: object) -> str:
        """Return a value as text for people."""
        return NO_VALUE_TEXT if value is None else redact_text(str(value)) or '""'


class OptionalText(SettingType):
    """A text that may be empty."""

    def check(self, value: object, folder: Path, /) -> object:
        return value if value == "" else super().check(value, folder)


class WholeNumber(SettingType):
    """A whole number between bounds."""

    def __init__(self, minimum: int, maximum: int, zero: ZeroMeaning = "refused") -> None:
        self.minimum, self.maximum, self.zero = minimum, maximum, zero
        is_zero_extra = zero != "refused" and minimum
        self.expects = f"a whole number from {minimum:,} to {maximum:,}" + ", or 0 for none" * bool(is_zero_extra)

    def parse(self, text: str) -> object:
        """Return the number; `_` and `,` may separate thousands."""
        bare = text.strip().replace("_", "").replace(",", "")
        if self.zero != "refused" and bare.lower() in OFF_WORDS:
            return 0
        is_number = bare.removeprefix("-").isdecimal() and len(bare) <= MAX_SETTING_DIGITS
        return int(bare) if is_number else text

    def check(self, value: object, _folder: Path, /) -> object:
        if is_integer(value) and value == 0 and self.zero != "refused":
            return None if self.zero == "none" else 0
        if not is_integer(value) or not self.minimum <= value <= self.maximum:
            raise invalid_value_error(self.expects, value)
        return value

    def to_file(self, value: object, _folder: Path, /) -> object:
        return 0 if value is None else value

    def render(self, value: object) -> str:
        return f"{value:,}" if isinstance(value, int) else NO_VALUE_TEXT


class Fraction(SettingType):
    """A share: above 0, at most 1."""

    expects = "a number between 0 and 1"

    def parse(self, text: str) -> object:
        """Return the number; a percentage is accepted."""
        bare = text.strip()
        try:
            return float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
        except ValueError:
            return text

    def check(self, value: object, _folder: Path, /) -> object:
        if not is_number(value) or not 0 < value <= 1:
            raise invalid_value_error(self.expects, value)
        return float(value)

    def render(self, value: object) -> str:
        return f"{value:g}" if isinstance(value, float) else NO_VALUE_TEXT


class Choice(SettingType):
    """One of several fixed words."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices
        self.expects = f"one of {', '.join(choices)}"

    def check(self, value: object, _folder: Path, /) -> object:
        return check_choice(value, self.choices)


class Switch(SettingType):
    """On or off."""

    expects = "on or off (true or false in a file)"
    choices = ("on", "off")

    def parse(self, text: str) -> object:
        bare = text.strip().lower()
        return True if bare in ON_WORDS else False if bare in OFF_WORDS | {"false", "0"} else text

    def check(self, value: object, _folder: Path, /) -> object:
        if value in self.choices:
            return value == "on"
        if isinstance(value, bool):
            return value
        raise invalid_value_error(self.expects, value)

    def render(self, value: object) -> str:
        return "on" if value else "off"


class TextList(SettingType):
    """A list of texts, or of fixed words."""

    expects = 'a list of texts such as ["a", "b"]'
    is_list = True

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def check(self, value: object, _folder: Path, /) -> object:
        """Return the texts; the word `none` alone means no text."""
        words = as_texts(value)
        if words is None or not all(words):
            raise invalid_value_error(self.expects, value)
        if words == ("none",):
            return ()
        return tuple(dict.fromkeys(check_choice(word, self.choices) if self.choices else word for word in words))

    def render(self, value: object) -> str:
        return redact_text(", ".join(cast("Iterable[str]", value))) or "none"


class NamedTexts(TextList):
    """A list of texts NAME=…; the base of those that name files or URLs."""

    def check(self, value: object, folder: Path, /) -> object:
        words = cast("tuple[str, ...]", super().check(value, folder))
        checked: list[str] = []
        for word in words:
            name, _, named = word.partition("=")
            if not (name.strip() and named.strip()):
                raise invalid_value_error(self.expects, word)
            checked.append(f"{name.strip()}={self.check_named(name.strip(), named.strip(), folder)}")
        return tuple(checked)

    def check_named(self, name: str, named: str, _folder: Path, /) -> str:
        """Return what has a name, checked."""
        del name
        return named


class NamedFiles(NamedTexts):
    """A list of texts NAME=FILE."""

    expects = 'a list of texts NAME=FILE such as ["coding=~/coding.toml"]'

    def check_named(self, name: str, named: str, folder: Path, /) -> str:
        """Return the absolute path of a file; one that is relative is relative to the folder."""
        if "\0" in named:
            raise invalid_value_error(self.expects, f"{name}={named}")
        return str(absolute_path(named, folder))

    def to_file(self, value: object, folder: Path, /) -> object:
        return [f"{name}={path_for_file(path, folder)}" for name, path in _files_by_name(value)]

    def render(self, value: object) -> str:
        return super().render([f"{name}={display_path(path)}" for name, path in _files_by_name(value)])


def _files_by_name(value: object) -> list[tuple[str, Path]]:
    pairs = (word.partition("=") for word in cast("Iterable[str]", value))
    return [(name, Path(file)) for name, _, file in pairs]


class NamedUrls(NamedTexts):
    """A list of texts NAME=URL."""

    expects = 'a list of texts NAME=URL such as ["openai=http://127.0.0.1:8000/v1"]'

    def check_named(self, name: str, named: str, _folder: Path, /) -> str:
        """Return a base URL without a password."""
        parts = split_http_url(named)
        if parts is None or parts.query or parts.fragment:
            raise invalid_value_error(self.expects, redact_url(f"{name}={named}"))
        if parts.username or parts.password:
            raise InvalidValueError(f"the URL of {name!r:.40} has a password; set ${name.upper()}_API_KEY instead")
        return named


class FilePath(SettingType):
    """A file that exists."""

    expects = "the path of a file"
    none_text = ""

    def check(self, value: object, folder: Path, /) -> object:
        if value == "":
            return None
        if not isinstance(value, str) or "\0" in value:
            raise invalid_value_error(self.expects, value)
        path = absolute_path(value, folder)
        if not os.path.isfile(path):  # noqa: PTH113 - False if it cannot be checked
            raise InvalidValueError(f"there is no file {display_path(path)}; check the path")
        return path

    def to_file(self, value: object, folder: Path, /) -> object:
        return path_for_file(value, folder) if isinstance(value, Path) else self.none_text

    def render(self, value: object) -> str:
        return display_path(value) if isinstance(value, Path) else self.none_text or NO_VALUE_TEXT


class FolderPath(FilePath):
    """A folder, which is created when needed; or off."""

    expects = "the path of a folder, or off"
    none_text = "off"

    def parse(self, text: str) -> object:
        return False if text.strip().lower() in OFF_WORDS else text.strip()

    def check(self, value: object, folder: Path, /) -> object:
        if value is False or (isinstance(value, str) and value in OFF_WORDS):
            return None
        if not isinstance(value, str) or not value or "\0" in value:
            raise invalid_value_error(self.expects, value)
        path = absolute_path(value, folder)
        if os.path.exists(path) and not path.is_dir():  # noqa: PTH110 - False if it cannot be checked
            raise InvalidValueError(f"{display_path(path)} is a file; name a folder, or off")
        return path


class FolderList(SettingType):
    """A list of folders."""

    expects = 'a list of folders such as ["~/work"]'
    is_list = True

    def check(self, value: object, folder: Path, /) -> object:
        words = as_texts(value)
        if words is None or not all(words) or any("\0" in word for word in words):
            raise invalid_value_error(self.expects, value)
        return tuple(absolute_path(word, folder) for word in words)

    def to_file(self, value: object, folder: Path, /) -> object:
        return [path_for_file(path, folder) for path in cast("Iterable[Path]", value)]

    def render(self, value: object) -> str:
        return ", ".join(map(display_path, cast("Iterable[Path]", value))) or "none"


class StoreUrl(SettingType):
    """The URL of a store."""

    expects = "memory://, sqlite:///file or postgresql://…"

    def check(self, value: object, folder: Path, /) -> object:
        """Return the URL; the path of a file becomes absolute."""
        if not isinstance(value, str) or value.partition("://")[0] not in STORE_SCHEMES:
            shown = redact_url(value) if isinstance(value, str) else value
            raise invalid_value_error(f"one of {self.expects}", shown)
        scheme, _, rest = value.partition("://")
        path = rest.removeprefix("/")
        if scheme != "sqlite" or path.startswith(("/", "~")):
            return value
        if not path:
            raise InvalidValueError("sqlite:/// needs the path of a file, such as sqlite:///chats.db")
        return f"sqlite:///{folder / path}"

    def to_file(self, value: object, folder: Path, /) -> object:
        path = str(value).removeprefix("sqlite:///")
        is_file = path != value and path.startswith("/")
        return f"sqlite:///{path_for_file(Path(path), folder)}" if is_file else value

    def render(self, value: object) -> str:
        return redact_url(str(value))


def invalid_value_error(expected: str, value: object, *path: str) -> InvalidValueError:
    """Return the error for a value that is not the expected one."""
    return InvalidValueError(f"must be {expected}, not {short_repr(value)}", path)


def check_choice(value: object, choices: Sequence[str], *path: str) -> str:
    """Return a value that is one of several words."""
    if isinstance(value, str) and value in choices:
        return value
    hint = suggest_name(value if isinstance(value, str) else "", choices)
    raise InvalidValueError(f"{short_repr(value)} is not known; {hint}", path)


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown name: the most similar one, or all if there are few."""
    everything = (
        f"choose one of: {', '.join(known)}" if len(known) <= MAX_LISTED_NAMES else "holdfast config lists them"
    )
    return suggest_similar(name.lower(), known, everything)


def as_texts(value: object) -> tuple[str, ...] | None:
    """Return a list of texts, or None for anything else; a single text is a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        return None
    words = cast("Sequence[object]", value)
    return tuple(cast("Sequence[str]", words)) if all(isinstance(word, str) for word in words) else None


def absolute_path(text: str, folder: Path) -> Path:
    """Return an absolute path; a relative path is relative to the folder."""
    path = Path(text)
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise InvalidValueError(f"{text!r:.60} names an unknown home folder; write the whole path") from error
    return Path(os.path.normpath(path if path.is_absolute() else folder / path))


def path_for_file(path: Path, folder: Path) -> str:
    """Return a path as it is written to a file in a folder: relative if it is inside that folder."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) and path != folder else display_path(path)
