"""Check values that come from outside against the types and bounds that dataclasses declare.

Policies, stored events, settings and arguments all use these checks. Every error names the place of the value, such
as `policy.compaction.soft_share`, and repeats the value itself.

Three readers stay apart. `history.snapshot` reads records by position and checks nothing: only the version that wrote
a snapshot reads it, and a session must open quickly. `apps.settings.values` reads what people type and resolves
paths. `recall.query` answers a model in sentences of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Literal, TypeAlias, TypeGuard, Union, cast, get_args, get_origin, get_type_hints

from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError
from holdfast.redaction import redact_text

MIN_SHARE = 0.001
SHORT_REPR_CHARS = 60
HUGE_NUMBER = "a number of thousands of digits"
"""Stands for an integer that Python does not print."""
DEEP_VALUE = "a value that is nested hundreds of times"
"""Stands for tables or lists within each other that Python does not print."""

TypeCheck: TypeAlias = Callable[[object], bool]
_PLAIN_TYPES = frozenset({str, int, float, bool, NoneType})


def short_repr(value: object) -> str:
    """Return the start of a value's `repr` without secrets, `HUGE_NUMBER`, or `DEEP_VALUE`."""
    try:
        return redact_text(repr(value))[:SHORT_REPR_CHARS]
    except ValueError:
        return HUGE_NUMBER
    except RecursionError:
        return DEEP_VALUE


def suggest_similar(name: str, known: Sequence[str], otherwise: str) -> str:
    """Return a hint for an unknown name: the most similar known one, or `otherwise`."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for unknown names

    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is an integer or a float; a bool is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and the largest number that a field accepts."""

    minimum: float
    maximum: float
    is_maximum_excluded: bool = False

    def contain(self, number: float) -> bool:
        """Return whether a number lies inside."""
        return self.minimum <= number <= self.maximum and not (self.is_maximum_excluded and number == self.maximum)


BoundsMetadata: TypeAlias = Mapping[str, Bounds]


def share_bounds() -> BoundsMetadata:
    """Return field metadata for a share of something: below 1."""
    return {"bounds": Bounds(MIN_SHARE, 1.0, is_maximum_excluded=True)}


def number_bounds(minimum: float, maximum: float) -> BoundsMetadata:
    """Return field metadata for a number."""
    return {"bounds": Bounds(minimum, maximum)}


def integer_bounds(minimum: int, maximum: int) -> BoundsMetadata:
    """Return field metadata for an integer."""
    return {"bounds": Bounds(minimum, maximum)}


def check_fields(record: object, place: str) -> None:
    """Raise SettingsError for the first field that has the wrong type or lies outside its bounds."""
    for item, hint in typed_fields(type(record)):
        value: object = getattr(record, item.name)
        if problem := _problem(value, hint, item.metadata.get("bounds")):
            raise SettingsError(f"{place}.{item.name}", f"{problem}, not {short_repr(value)}")


def _problem(value: object, hint: object, bounds: Bounds | None) -> str | None:
    if value is None and NoneType in get_args(hint):
        return None
    types = types_in(hint)
    if types not in {(int,), (float,)}:
        expected = " or ".join(kind.__name__ for kind in types) or type_name(hint)
        return None if type_check(hint)(value) else f"must be {expected}"
    is_whole = types == (int,)
    if is_number(value) and (is_integer(value) or not is_whole) and (bounds is None or bounds.contain(value)):
        return None
    if bounds is None:
        return "must be a whole number" if is_whole else "must be a number"
    if is_whole:
        return f"must be a whole number from {bounds.minimum:,} to {bounds.maximum:,}"
    if not is_number(value):
        return "must be a number"
    if bounds.is_maximum_excluded and value == bounds.maximum:
        return f"must be below {bounds.maximum:g}"
    return f"must lie between {bounds.minimum} and {bounds.maximum:g}"


@cache
def typed_fields(kind: type) -> "tuple[tuple[Field[object], object], ...]":
    """Return the fields of a dataclass with their types."""
    hints = get_type_hints(kind)
    return tuple((item, hints[item.name]) for item in fields(kind))


def types_in(hint: object) -> tuple[type, ...]:
    """Return the classes of a union, without None."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(option for option in options if isinstance(option, type) and option is not NoneType)


@cache
def type_check(hint: object) -> TypeCheck:
    """Return a function that tells whether a value is of a type; an integer is no float here."""
    inner = get_args(hint)
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        options = tuple(map(type_check, inner))
        return lambda value: any(fits(value) for fits in options)
    if get_origin(hint) is Literal:
        return lambda value: value in inner
    if get_origin(hint) is tuple:
        return _tuple_check(inner)
    kind = cast("type", get_origin(hint) or hint)
    if kind in {int, float}:
        return lambda value: isinstance(value, kind) and not isinstance(value, bool)
    return lambda value: isinstance(value, kind)


@cache
def plain_types(hint: object) -> frozenset[type]:
    """Return classes whose values are of a type whatever they hold, so that they need no check."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return frozenset[type]().union(*map(plain_types, get_args(hint)))
    kind = get_origin(hint) or hint
    if kind is Mapping:
        return frozenset({dict})
    return frozenset({kind}) if isinstance(kind, type) and kind in _PLAIN_TYPES else frozenset()


def _tuple_check(inner: tuple[object, ...]) -> TypeCheck:
    checks = tuple(type_check(hint) for hint in inner if hint is not ...)

    def fits(value: object) -> bool:
        items = cast("tuple[object, ...]", value)
        return isinstance(value, tuple) and all(checks[number % len(checks)](item) for number, item in enumerate(items))

    return fits


def type_name(hint: object) -> str:
    """Return a type as an error message names it."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is Union:
        return " or ".join(type_name(option) for option in get_args(hint) if option is not NoneType)
    return getattr(hint, "__name__", None) or str(hint).replace("collections.abc.", "")
