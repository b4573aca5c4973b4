"""How events are written down, and read for ever.

A record is one JSON object: its kind, the number of the schema it was written in, and its fields in
the spelling of the systems it shares them with (camelCase). A field nobody knows is ignored, a kind
nobody knows is kept as it is, and records of earlier schemas are brought up to date by `UPCASTS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from holdfast.core.history.events import Breakdown, Effect, Event, Unknown, Usage
from holdfast.errors import MalformedInputError

SCHEMA = 1
Record: TypeAlias = dict[str, object]

KINDS: Mapping[str, type[Event]] = {kind.KIND: kind for kind in get_args(Event) if kind is not Unknown}
UPCASTS: Mapping[int, Callable[[str, Mapping[str, object]], Mapping[str, object]]] = {}
"""For each earlier schema, what turns a record's fields into those of the next one."""
_NESTED = {"usage": Usage, "tokens": Breakdown, "effect": Effect}


def to_record(event: Event) -> Record:
    """Return an event as a JSON object; fields that say nothing are left out."""
    if isinstance(event, Unknown):
        return {"type": event.kind, "schema": event.schema, "data": dict(event.data)}
    return {"type": event.KIND, "schema": SCHEMA, "data": _written(event)}


def from_record(record: object) -> Event:
    """Return the event of a JSON object."""
    if not isinstance(record, Mapping):
        raise MalformedInputError("record", "must be an object")
    known = cast("Mapping[str, object]", record)
    kind, schema, data = known.get("type"), known.get("schema", SCHEMA), known.get("data", {})
    if not isinstance(kind, str) or not isinstance(schema, int) or not isinstance(data, Mapping):
        raise MalformedInputError("record", "must have a type, a schema number and data")
    if isinstance(schema, bool) or schema < 1:
        raise MalformedInputError("record", f"{schema!r} is no schema number")
    values = cast("Mapping[str, object]", data)
    if kind not in KINDS or schema > SCHEMA:
        return Unknown(kind=kind, schema=schema, data=values)
    for number in range(schema, SCHEMA):
        values = UPCASTS[number](kind, values)
    return _read(KINDS[kind], kind, values)


def _written(value: object) -> Record:
    out: Record = {}
    for item in fields(value) if is_dataclass(value) else ():
        content = getattr(value, item.name)
        is_needed = item.default is MISSING and item.default_factory is MISSING
        if not is_needed and (content is None or content == ()):
            continue
        if is_dataclass(content):
            content = _written(content)
            if not content:
                continue
        out[_camel(item.name)] = list(cast("tuple[object, ...]", content)) if isinstance(content, tuple) else content
    return out


def _read(kind: type[Event], name: str, values: Mapping[str, object]) -> Event:
    given: dict[str, object] = {}
    hints = _hints(kind)
    for item in fields(kind):
        key = _camel(item.name)
        if key not in values:
            continue
        content = values[key]
        if item.name in _NESTED and isinstance(content, Mapping):
            content = _nested(_NESTED[item.name], f"{name}.{key}", cast("Mapping[str, object]", content))
        elif isinstance(content, list):
            content = _frozen(cast("list[object]", content))
        if not _fits(content, hints[item.name]):
            raise MalformedInputError(f"{name}.{key}", f"must be {_named(hints[item.name])}, not {content!r:.60}")
        given[item.name] = content
    try:
        return kind(**given)  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise MalformedInputError(name, f"a field is missing: {error}") from error


@cache
def _hints(kind: type) -> Mapping[str, object]:
    return get_type_hints(kind)


def _fits(value: object, hint: object) -> bool:
    """Return whether a value is of the kind that a field has."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        items = cast("tuple[object, ...]", value)
        return isinstance(value, tuple) and all(
            _fits(item, inner[0] if inner[-1] is ... else inner[number % len(inner)])
            for number, item in enumerate(items)
        )
    kind = get_origin(hint) or hint
    if kind in {int, float} and isinstance(value, bool):
        return False
    return isinstance(value, cast("type", kind))


def _named(hint: object) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    return getattr(hint, "__name__", None) or str(hint).replace("collections.abc.", "")


def _nested(
    kind: type[Usage | Breakdown | Effect], place: str, values: Mapping[str, object]
) -> Usage | Breakdown | Effect:
    known = {item.name: values[_camel(item.name)] for item in fields(kind) if _camel(item.name) in values}
    for field_name, value in known.items():
        hint = _hints(kind)[field_name]
        if not _fits(value, hint):
            raise MalformedInputError(f"{place}.{_camel(field_name)}", f"must be {_named(hint)}, not {value!r:.60}")
    return kind(**known)  # pyright: ignore[reportArgumentType]


def _frozen(values: list[object]) -> tuple[object, ...]:
    return tuple(_frozen(cast("list[object]", value)) if isinstance(value, list) else value for value in values)


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
