"""How events are written down, and read for ever.

A record is one JSON object: its kind, the number of the schema it was written in, and its fields in
the spelling of the systems it shares them with (camelCase). A field nobody knows is ignored, a kind
nobody knows is kept as it is, and records of earlier schemas are brought up to date by `UPCASTS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING
from functools import cache
from typing import NamedTuple, TypeAlias, cast, get_args

from holdfast.core.history.events import Effect, Event, TokenBreakdown, UnknownEvent, Usage
from holdfast.core.schema import TypeCheck, type_check, type_name, typed_fields
from holdfast.errors import MalformedInputError

RECORD_SCHEMA = 1
EventRecord: TypeAlias = dict[str, object]

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
    return tuple(
        _Field(
            item.name,
            _camel(item.name),
            item.default is MISSING and item.default_factory is MISSING,
            hint,
            type_check(hint),
        )
        for item, hint in typed_fields(kind)
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
            raise MalformedInputError(f"{place}.{key}", f"must be {type_name(hint)}, not {content!r:.60}")
        given[name] = content
    try:
        return kind(**given)  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise MalformedInputError(place, f"a field is missing: {error}") from error


def _nested_from_json(
    kind: type[Usage | TokenBreakdown | Effect], place: str, values: Mapping[str, object]
) -> Usage | TokenBreakdown | Effect:
    known: dict[str, object] = {}
    for name, key, _, hint, fits in _fields(kind):
        if key in values:
            if not fits(values[key]):
                raise MalformedInputError(f"{place}.{key}", f"must be {type_name(hint)}, not {values[key]!r:.60}")
            known[name] = values[key]
    return kind(**known)  # pyright: ignore[reportArgumentType]


def _lists_to_tuples(values: list[object]) -> tuple[object, ...]:
    return tuple(
        _lists_to_tuples(cast("list[object]", value)) if isinstance(value, list) else value for value in values
    )


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
