"""Encode events as JSON records and decode records of every released schema.

A record is one JSON object: its kind, its schema number, and its fields. Field names are in camelCase because other
systems that share the records spell them so. The decoder ignores unknown fields and keeps records of unknown kinds
unchanged. `UPCASTS` converts records of earlier schemas, so old logs always load. Only this module knows the stored
form of an event.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, is_dataclass, replace
from functools import cache, partial
from typing import NamedTuple, TypeAlias, cast, get_args, get_origin

from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import Event, Summary, UnknownEvent
from holdfast.core.schema import TypeCheck, plain_types, type_check, type_name, typed_fields
from holdfast.dataclass import filled_fields_reader
from holdfast.errors import MalformedInputError

RECORD_SCHEMA = 1
EventRecord: TypeAlias = dict[str, object]

EVENT_TYPES: Mapping[str, type[Event]] = {kind.KIND: kind for kind in get_args(Event) if kind is not UnknownEvent}
UPCASTS: Mapping[int, Callable[[str, Mapping[str, object]], Mapping[str, object]]] = {}
"""For each earlier schema, a function that turns a record's fields into those of the next schema."""
_INLINE: tuple[object, ...] = (Span, Summary)
"""Types whose fields are stored directly in the record of the event that holds them."""


def to_record(event: Event) -> EventRecord:
    """Return an event as a JSON object, without optional fields that are empty."""
    if isinstance(event, UnknownEvent):
        return {"type": event.kind, "schema": event.schema, "data": dict(event.data)}
    return {"type": event.KIND, "schema": RECORD_SCHEMA, "data": _to_json(event)}


def from_record(record: object) -> Event:
    """Return the event that a JSON record describes; raise MalformedInputError if the record is invalid."""
    if not isinstance(record, Mapping):
        raise MalformedInputError("record", "must be an object")
    known = cast("Mapping[str, object]", record)
    kind, schema, data = known.get("type"), known.get("schema", RECORD_SCHEMA), known.get("data", {})
    if not isinstance(kind, str) or not isinstance(schema, int) or not isinstance(data, Mapping):
        raise MalformedInputError("record", "must have a type, a schema number and data")
    if isinstance(schema, bool) or schema < 1:
        raise MalformedInputError("record", f"the schema number must be at least 1, not {schema!r}")
    values = cast("Mapping[str, object]", data)
    if kind not in EVENT_TYPES or schema > RECORD_SCHEMA:
        return UnknownEvent(kind=kind, schema=schema, data=values)
    for number in range(schema, RECORD_SCHEMA):
        values = UPCASTS[number](kind, values)
    return cast("Event", _from_json(EVENT_TYPES[kind], kind, values))


class _Field(NamedTuple):
    """One stored field of a type; computed once per type."""

    owner: str
    """The field whose inlined value has this field; empty if the type itself has it."""
    name: str
    key: str
    is_required: bool
    hint: object
    fits: TypeCheck
    plain: frozenset[type]
    """Classes of stored values that are taken as they are."""
    nested: type | None
    """The type of the value, if it is stored as a nested object."""


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    found = [one for item, hint in typed_fields(kind) for one in _stored_fields(item, hint)]
    order = cast("tuple[str, ...]", getattr(kind, "KEYS", ()))
    return tuple(sorted(found, key=lambda one: order.index(one.key)) if order else found)


@cache
def _fields_by_key(kind: type) -> Mapping[str, _Field]:
    return {one.key: one for one in _fields(kind)}


def _stored_fields(item: "Field[object]", hint: object) -> Iterator[_Field]:
    stored: object = item.metadata.get("stored")
    if hint in _INLINE:
        renamed = cast("Mapping[str, str]", stored or {})
        for one in _fields(cast("type", hint)):
            yield one._replace(owner=item.name, key=renamed.get(one.name, one.key))
        return
    nested = next((one for one in (hint, *get_args(hint)) if isinstance(one, type) and is_dataclass(one)), None)
    is_required = item.default is MISSING and item.default_factory is MISSING
    key = stored if isinstance(stored, str) else _camel(item.name)
    plain = plain_types(hint) - {dict} if nested else plain_types(hint)
    yield _Field("", item.name, key, is_required, hint, type_check(hint), plain, nested)


class _Encoding(NamedTuple):
    """How the fields of a type are stored; computed once per type."""

    filled_fields: Callable[[object], EventRecord]
    """Returns the fields of a value by their keys, without optional ones that are empty."""
    containers: tuple[tuple[str, bool, bool], ...]
    """The keys that may hold a tuple or a nested object, each with whether it may be an object and is required."""


@cache
def _encoding(kind: type) -> _Encoding:
    fields = _fields(kind)
    paths = {one.key: f"{one.owner}.{one.name}" if one.owner else one.name for one in fields}
    return _Encoding(
        filled_fields_reader(paths, {one.key for one in fields if not one.is_required}),
        tuple(
            (one.key, one.nested is not None, one.is_required)
            for one in fields
            if one.nested or _may_be_tuple(one.hint)
        ),
    )


def _may_be_tuple(hint: object) -> bool:
    return get_origin(hint) is tuple or any(map(_may_be_tuple, get_args(hint)))


def _to_json(value: object) -> EventRecord:
    filled_fields, containers = _encoding(type(value))
    out = filled_fields(value)
    for key, is_nested, is_required in containers:
        content = out.get(key)
        if content is None:
            continue
        if isinstance(content, tuple):
            out[key] = [*cast("tuple[object, ...]", content)]
        elif is_nested:
            inner = _to_json(content)
            if inner or is_required:
                out[key] = inner
            else:
                del out[key]
    return out


def _from_json(kind: type, place: str, values: Mapping[str, object]) -> object:
    makers = _inlined(kind)
    known = _fields_by_key(kind)
    found: dict[str, dict[str, object]] = {"": {}, **{owner: {} for owner in makers}}
    for key, stored in values.items():  # a record has few of the fields that it may have
        field, content = known.get(key), stored
        if field is None:
            continue
        if type(content) not in field.plain:
            if field.nested and isinstance(content, Mapping):
                content = _from_json(field.nested, f"{place}.{key}", cast("Mapping[str, object]", content))
            elif isinstance(content, list):
                content = _lists_to_tuples(cast("list[object]", content))
            if not field.fits(content):
                raise MalformedInputError(f"{place}.{key}", f"must be {type_name(field.hint)}, not {content!r:.60}")
        found[field.owner][field.name] = content
    try:
        return kind(**found[""], **{owner: make(**found[owner]) for owner, make in makers.items()})
    except TypeError as error:
        raise MalformedInputError(place, f"a field is missing: {error}") from error


@cache
def _inlined(kind: type) -> Mapping[str, Callable[..., object]]:
    """Return a constructor for each inlined field; it builds the value from the fields found in a record."""
    return {
        item.name: cast("type", hint)
        if item.default is MISSING
        else partial(replace, cast("Span | Summary", item.default))
        for item, hint in typed_fields(kind)
        if hint in _INLINE
    }


def _lists_to_tuples(values: list[object]) -> tuple[object, ...]:
    return tuple(
        _lists_to_tuples(cast("list[object]", value)) if isinstance(value, list) else value for value in values
    )


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
