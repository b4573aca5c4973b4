"""What the value of a setting may be: how it is read from words that somebody typed, checked, and shown.

A kind says what is wrong with a value; whoever asked it knows where the value stands.
"""

import json
import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeAlias, cast

from holdfast.app.places import exists, is_file, shortened
from holdfast.errors import redacted

OFF = frozenset({"off", "none", "never", "no"})
ON = frozenset({"on", "yes", "true", "1"})
NOTHING = "–"
MAX_DIGITS = 18
STORES = ("memory", "sqlite", "postgresql", "postgres")

Zero: TypeAlias = Literal["refused", "zero", "none"]
"""What 0 is where it is less than the least: wrong, a value of its own, or no value at all."""


class WrongValueError(ValueError):
    """A value cannot be: says what is wrong with it, and where inside of it that stands."""

    def __init__(self, problem: str, within: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.within = within


class Kind:
    """A text; other kinds differ in what they ask for."""

    asks: str = "a text"
    choices: tuple[str, ...] = ()
    is_list: bool = False

    def read(self, text: str) -> object:
        """Return what somebody means who typed this."""
        return text.strip()

    def checked(self, value: object, folder: Path) -> object:
        """Return the value as it is kept; paths are meant from a folder."""
        del folder
        if not isinstance(value, str) or not value.isprintable() or not value:
            raise wrong(self.asks, value)
        return value

    def kept(self, value: object, folder: Path) -> object:
        """Return a value as a file in a folder has it."""
        del folder
        return value

    def shown(self, value: object) -> str:
        """Return a value as people read it."""
        return NOTHING if value is None else redacted(str(value)) or '""'


class AnyText(Kind):
    """A text that may be empty."""

    def checked(self, value: object, folder: Path) -> object:
        """Return the text."""
        return value if value == "" else super().checked(value, folder)


class Whole(Kind):
    """A whole number between bounds."""

    def __init__(self, least: int, most: int, zero: Zero = "refused") -> None:
        self.least, self.most, self.zero = least, most, zero
        said = f"a whole number from {least:,} to {most:,}"
        self.asks = said if zero == "refused" or not least else f"{said}, or 0 for none"

    def read(self, text: str) -> object:
        """Return the number; thousands may be set apart."""
        bare = text.strip().replace("_", "").replace(",", "")
        if self.zero != "refused" and bare.lower() in OFF:
            return 0
        is_number = bare.removeprefix("-").isdecimal() and len(bare) <= MAX_DIGITS
        return int(bare) if is_number else text

    def checked(self, value: object, folder: Path) -> object:
        """Return the number, or None where 0 stands for none."""
        del folder
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(self.asks, value)
        if value == 0 and self.zero != "refused":
            return None if self.zero == "none" else 0
        if not self.least <= value <= self.most:
            raise wrong(self.asks, value)
        return value

    def kept(self, value: object, folder: Path) -> object:
        """Return the number; none is 0."""
        del folder
        return 0 if value is None else value

    def shown(self, value: object) -> str:
        """Return the number with its thousands set apart."""
        return f"{value:,}" if isinstance(value, int) else NOTHING


class Fraction(Kind):
    """A part of something: above 0, at most 1."""

    asks = "a number between 0 and 1"

    def read(self, text: str) -> object:
        """Return the number; a percentage will do."""
        bare = text.strip()
        try:
            return float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
        except ValueError:
            return text

    def checked(self, value: object, folder: Path) -> object:
        """Return the number."""
        del folder
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise wrong(self.asks, value)
        return float(value)

    def shown(self, value: object) -> str:
        """Return the number in as few digits as it has."""
        return f"{value:g}" if isinstance(value, float) else NOTHING


class Choice(Kind):
    """One of some words."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices
        self.asks = f"one of {', '.join(choices)}"

    def checked(self, value: object, folder: Path) -> object:
        """Return the word."""
        del folder
        if value in self.choices:
            return value
        raise WrongValueError(f"{value!r:.60} is not known; {nearest(str(value), self.choices)}")


class Switch(Kind):
    """On or off."""

    asks = "on or off (true or false in a file)"
    choices = ("on", "off")

    def read(self, text: str) -> object:
        """Return whether it is on; several words will do."""
        bare = text.strip().lower()
        return True if bare in ON else False if bare in OFF | {"false", "0"} else text

    def checked(self, value: object, folder: Path) -> object:
        """Return whether it is on."""
        del folder
        if value in self.choices:
            return value == "on"
        if isinstance(value, bool):
            return value
        raise wrong(self.asks, value)

    def shown(self, value: object) -> str:
        """Return the word for it."""
        return "on" if value else "off"


class Words(Kind):
    """A list of texts; some know which there are."""

    asks = 'a list of texts such as ["a", "b"]'
    is_list = True

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def read(self, text: str) -> object:
        """Return what stands between commas, or a list as JSON has it."""
        return listed(text)

    def checked(self, value: object, folder: Path) -> object:
        """Return the texts; the word `none` alone stands for no text."""
        del folder
        words = texts_of(value)
        if words is None or not all(words):
            raise wrong(self.asks, value)
        if words == ("none",):
            return ()
        for word in words:
            if self.choices and word not in self.choices:
                raise WrongValueError(f"{word!r:.60} is not known; {nearest(word, self.choices)}")
        return tuple(dict.fromkeys(words))

    def shown(self, value: object) -> str:
        """Return the texts between commas."""
        return redacted(", ".join(cast("Iterable[str]", value))) or "none"


class FilePath(Kind):
    """A file that is there."""

    asks = "the path of a file"

    def checked(self, value: object, folder: Path) -> object:
        """Return the path from the root."""
        if value == "":
            return None
        if not isinstance(value, str) or "\0" in value:
            raise wrong(self.asks, value)
        path = absolute(value, folder)
        if not is_file(path):
            raise WrongValueError(f"there is no file {shortened(path)}; check the path")
        return path

    def kept(self, value: object, folder: Path) -> object:
        """Return the path as the file would name it."""
        return from_folder(value, folder) if isinstance(value, Path) else ""

    def shown(self, value: object) -> str:
        """Return the path as people write it."""
        return shortened(value) if isinstance(value, Path) else NOTHING


class FolderPath(Kind):
    """A folder, which is made when it is needed; or off."""

    asks = "the path of a folder, or off"

    def read(self, text: str) -> object:
        """Return the path, or False for off."""
        return False if text.strip().lower() in OFF else text.strip()

    def checked(self, value: object, folder: Path) -> object:
        """Return the path from the root, or None."""
        if value is False or value in OFF:
            return None
        if not isinstance(value, str) or not value or "\0" in value:
            raise wrong(self.asks, value)
        path = absolute(value, folder)
        if exists(path) and not path.is_dir():
            raise WrongValueError(f"{shortened(path)} is a file; name a folder, or off")
        return path

    def kept(self, value: object, folder: Path) -> object:
        """Return the path as the file would name it."""
        return from_folder(value, folder) if isinstance(value, Path) else "off"

    def shown(self, value: object) -> str:
        """Return the path as people write it."""
        return shortened(value) if isinstance(value, Path) else "off"


class Folders(Kind):
    """A list of folders."""

    asks = 'a list of folders such as ["~/work"]'
    is_list = True

    def read(self, text: str) -> object:
        """Return what stands between commas."""
        return listed(text)

    def checked(self, value: object, folder: Path) -> object:
        """Return the paths from the root."""
        words = texts_of(value)
        if words is None or not all(words) or any("\0" in word for word in words):
            raise wrong(self.asks, value)
        return tuple(absolute(word, folder) for word in words)

    def kept(self, value: object, folder: Path) -> object:
        """Return the paths as the file would name them."""
        return [from_folder(path, folder) for path in cast("Iterable[Path]", value)]

    def shown(self, value: object) -> str:
        """Return the paths between commas."""
        return ", ".join(map(shortened, cast("Iterable[Path]", value))) or "none"


class StoreUrl(Kind):
    """Where conversations are kept."""

    asks = "memory://, sqlite:///file or postgresql://…"

    def checked(self, value: object, folder: Path) -> object:
        """Return the URL; a file that is named from somewhere is named from the root."""
        if not isinstance(value, str) or value.partition("://")[0] not in STORES:
            raise wrong(f"one of {self.asks}", value)
        scheme, _, rest = value.partition("://")
        path = rest.removeprefix("/")
        if scheme != "sqlite" or path.startswith(("/", "~")):
            return value
        if not path:
            raise WrongValueError("sqlite:/// needs the path of a file, such as sqlite:///chats.db")
        return f"sqlite:///{folder / path}"

    def kept(self, value: object, folder: Path) -> object:
        """Return the URL as the file would have it."""
        path = str(value).removeprefix("sqlite:///")
        is_file = path != value and path.startswith("/")
        return f"sqlite:///{from_folder(Path(path), folder)}" if is_file else value


def wrong(asks: str, value: object) -> WrongValueError:
    """Return the error for a value that is not what was asked for."""
    try:
        shown = redacted(repr(value))
    except ValueError:  # an integer of thousands of digits
        shown = "a number without end"
    return WrongValueError(f"must be {asks}, not {shown:.60}")


def nearest(name: str, known: Sequence[str], *, few: int = 12) -> str:
    """Return a hint for a name that nobody knows: the nearest, or all where there are few."""
    near = get_close_matches(name.lower(), known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose one of: {', '.join(known)}" if len(known) <= few else "holdfast config lists what there is"


def listed(text: str) -> object:
    """Return the texts between commas, or a list as JSON has it."""
    bare = text.strip()
    if bare.startswith("["):
        try:
            return json.loads(bare)
        except ValueError:
            return text
    return [word.strip() for word in bare.split(",") if word.strip()]


def texts_of(value: object) -> tuple[str, ...] | None:
    """Return a list of texts, or None where it is something else; a single text is a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        return None
    words = tuple(word for word in cast("Sequence[object]", value) if isinstance(word, str))
    return words if len(words) == len(cast("Sequence[object]", value)) else None


def absolute(text: str, folder: Path) -> Path:
    """Return a path from the root; a relative one is meant from a folder."""
    path = Path(text)
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise WrongValueError(f"{text!r:.60} names a home folder that is not known; write the whole path") from error
    return Path(os.path.normpath(path if path.is_absolute() else folder / path))


def from_folder(path: Path, folder: Path) -> str:
    """Return a path as a file in a folder names it: what lies beside it by its name alone."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) and path != folder else shortened(path)
