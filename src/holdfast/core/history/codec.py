"""How events are written down, and read for ever.

A record is one JSON object: its kind, the number of the schema it was written in, and its fields in
the spelling of the systems it shares them with (camelCase). A field nobody knows is ignored, a kind
nobody knows is kept as it is, and records of earlier schemas are brought up to date by `UPCASTS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Literal, NamedTuple, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from holdfast.core.history.events import Effect, Event, TokenBreakdown, UnknownEvent, Usage
from holdfast.errors import MalformedInputError

RECORD_SCHEMA = 1
EventRecord: TypeAlias = dict[str, object]
TypeCheck: TypeAlias = Callable[[object], bool]

EVENT_TYPES: Mapping[str, type[Event]] = {kind.KIND: kind for kind in get_args(Event) if kind is not UnknownEvent}
UPCASTS: Mapping[int, Callable[[str, Mapping[str, object]], Mapping[str, object]]] = {}
"""For each earlier schema, what turns a record's fields into those of the next one."""
_NESTED = {"usage": Usage, "tokens": TokenBreakdown, "effect": Effect}


def to_record(event: Event) -> EventRecord:
    """Return an event as a JSON object; fields that say nothing are left out."""
    if isinstance(event, UnknownEvent):
        return {"type": event.kind, "schema": event.schema, "data": dict(event.data)}
    return {"type": event.KIND, "schema": RECORD_SCHEMA, "data": _fields_to_json(event)}


def from_record(record: object) -> Event:
    """Return the event of a JSON object."""
    if not isinstance(record, Mapping):
        raise MalformedInputError("record", "must be an object")
    known = cast("Mapping[str, object]", record)
    kind, schema, data = known.get("type"), known.get("schema", RECORD_SCHEMA), known.get("data", {})
    if not isinstance(kind, str) or not isinstance(schema, int) or not isinstance(data, Mapping):
        raise MalformedInputError("record", "must have a type, a schema number and data")
    if isinstance(schema, bool) or schema < 1:
        raise MalformedInputError("record", f"{schema!r} is no schema number")
    values = cast("Mapping[str, object]", data)
    if kind not in EVENT_TYPES or schema > RECORD_SCHEMA:
        return UnknownEvent(kind=kind, schema=schema, data=values)
    for number in range(schema, RECORD_SCHEMA):
        values = UPCASTS[number](kind, values)
    return _event_from_json(EVENT_TYPES[kind], kind, values)


class _Field(NamedTuple):
    """What is known of a field, found out once for each kind."""

    name: str
    key: str
    """How it is spelled in a record."""
    is_required: bool
    hint: object
    fits: TypeCheck


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    return tuple(
        _Field(
            item.name,
            _camel(item.name),
            item.default is MISSING and item.default_factory is MISSING,
            hints[item.name],
            _type_check(hints[item.name]),
        )
        for item in fields(kind)
    )


def _fields_to_json(value: Event | Usage | TokenBreakdown | Effect) -> EventRecord:
    out: EventRecord = {}
    for name, key, is_needed, _, _ in _fields(type(value)):
        content = getattr(value, name)
        if not is_needed and (content is None or content == ()):
            continue
        if isinstance(content, (Usage, TokenBreakdown, Effect)):
            content = _fields_to_json(content)
            if not content:
                continue
        out[key] = list(cast("tuple[object, ...]", content)) if isinstance(content, tuple) else content
    return out


def _event_from_json(kind: type[Event], place: str, values: Mapping[str, object]) -> Event:
    given: dict[str, object] = {}
    for name, key, _, hint, fits in _fields(kind):
        if key not in values:
            continue
        content = values[key]
        if name in _NESTED and isinstance(content, Mapping):
            content = _nested_from_json(_NESTED[name], f"{place}.{key}", cast("Mapping[str, object]", content))
        elif isinstance(content, list):
            content = _lists_to_tuples(cast("list[object]", content))
        if not fits(content):
            raise MalformedInputError(f"{place}.{key}", f"must be {_type_name(hint)}, not {content!r:.60}")
        given[name] = content
    try:
        return kind(**given)  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise MalformedInputError(place, f"a field is missing: {error}") from error


@cache
def _type_check(hint: object) -> TypeCheck:
    """Return what tells whether a value is of the kind that a field has."""
    inner = get_args(hint)
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        options = tuple(map(_type_check, inner))
        return lambda value: any(fits(value) for fits in options)
    if get_origin(hint) is Literal:
        return lambda value: value in inner
    if get_origin(hint) is tuple:
        return _tuple_check(inner)
    kind = cast("type", get_origin(hint) or hint)
    if kind in {int, float}:
        return lambda value: isinstance(value, kind) and not isinstance(value, bool)
    return lambda value: isinstance(value, kind)


def _tuple_check(inner: tuple[object, ...]) -> TypeCheck:
    checks = tuple(_type_check(hint) for hint in inner if hint is not ...)

    def fits(value: object) -> bool:
        items = cast("tuple[object, ...]", value)
        return isinstance(value, tuple) and all(checks[number % len(checks)](item) for number, item in enumerate(items))

    return fits


def _type_name(hint: object) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    return getattr(hint, "__name__", None) or str(hint).replace("collections.abc.", "")


def _nested_from_json(
    kind: type[Usage | TokenBreakdown | Effect], place: str, values: Mapping[str, object]
) -> Usage | TokenBreakdown | Effect:
    known: dict[str, object] = {}
    for name, key, _, hint, fits in _fields(kind):
        if key in values:
            if not fits(values[key]):
                raise MalformedInputError(f"{place}.{key}", f"must be {_type_name(hint)}, not {values[key]!r:.60}")
            known[name] = values[key]
    return kind(**known)  # pyright: ignore[reportArgumentType]


def _lists_to_tuples(values: list[object]) -> tuple[object, ...]:
    return tuple(
        _lists_to_tuples(cast("list[object]", value)) if isinstance(value, list) else value for value in values
    )


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
