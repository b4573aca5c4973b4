"""What a setting may be: checked where a rule is made, so that a wrong one is named before it does harm."""

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Literal, TypeAlias, cast, get_args, get_origin, get_type_hints

from holdfast.errors import SettingsError

MIN_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most a number may be."""

    minimum: float
    maximum: float
    is_maximum_excluded: bool = False
    """Whether the most itself is too much."""


BoundsMetadata: TypeAlias = Mapping[str, Bounds]


def share_bounds(*, minimum: float = MIN_SHARE) -> BoundsMetadata:
    """Return the bounds of a share of something."""
    return {"bounds": Bounds(minimum, 1.0, is_maximum_excluded=True)}


def number_bounds(minimum: float, maximum: float) -> BoundsMetadata:
    """Return the bounds of a number."""
    return {"bounds": Bounds(minimum, maximum)}


def integer_bounds(minimum: int, maximum: int) -> BoundsMetadata:
    """Return the bounds of a whole number."""
    return {"bounds": Bounds(minimum, maximum)}


def check_bounds(settings: object, place: str) -> None:
    """Refuse a setting of the wrong kind or size, by its name."""
    kind = type(settings)
    hints = _hints(kind)
    for item in fields(cast("type", kind)):
        value: object = getattr(settings, item.name)
        name = ".".join(part for part in ("policy", place, item.name) if part)
        problem = _problem(value, hints[item.name], item)
        if problem:
            raise SettingsError(name, f"{problem}, not {_preview(value)}")


def _preview(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:  # an integer of thousands of digits
        return "a number without end"


@cache
def _hints(kind: type) -> Mapping[str, object]:
    return get_type_hints(kind)


def types_in(hint: object) -> tuple[type, ...]:
    """Return the classes that a type consists of, None left out."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(option for option in options if isinstance(option, type) and option is not NoneType)


def _problem(value: object, hint: object, item: "Field[object]") -> str | None:
    """Return what is wrong with a value, in words."""
    if value is None and NoneType in get_args(hint):
        return None
    if get_origin(hint) is Literal:
        return None if value in get_args(hint) else f"must be one of {', '.join(map(str, get_args(hint)))}"
    kinds = types_in(hint)
    if kinds in {(int,), (float,)}:
        return _number_problem(value, item, is_whole=kinds == (int,))
    if not isinstance(value, kinds):
        return f"must be {' or '.join(kind.__name__ for kind in kinds)}"
    return None


def _number_problem(value: object, item: "Field[object]", *, is_whole: bool) -> str | None:
    bounds: Bounds | None = item.metadata.get("bounds")
    is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
    is_inside = is_number and (
        bounds is None
        or (
            bounds.minimum <= cast("float", value) <= bounds.maximum
            and not (bounds.is_maximum_excluded and value == bounds.maximum)
        )
    )
    if is_inside:
        return None
    if bounds is None:
        return "must be a whole number" if is_whole else "must be a number"
    if is_whole:
        return f"must be a whole number from {bounds.minimum:,} to {bounds.maximum:,}"
    return f"must lie between {bounds.minimum} and {bounds.maximum:g}"
