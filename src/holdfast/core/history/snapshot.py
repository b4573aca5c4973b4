"""A snapshot of a history without its messages, and the JSON form of the snapshot.

A snapshot is small even for a long log, and can be deleted at any time: replaying the log produces the same history.
Its JSON identifies fields by order and not by name, and the reader does not check types, because only the version that
wrote a snapshot reads it. The log itself uses named fields; see `codec`.
"""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import accumulate
from operator import sub
from types import UnionType
from typing import NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from holdfast.core.history.context import ContextVersion
from holdfast.core.history.recall_marks import RecallMarksSnapshot
from holdfast.core.history.scopes import Scopes
from holdfast.core.history.session_state import SessionState
from holdfast.dataclass import dataclass

SnapshotT = TypeVar("SnapshotT")
ValueReader = Callable[[object], object]


def to_snapshot_json(value: object) -> str:
    """Return a value as JSON; a dataclass becomes a list of its fields."""
    return json.dumps(value, default=_encode_value, separators=(",", ":"))


def _encode_value(value: object) -> object:
    if isinstance(value, range):
        return [value.start, value.stop]
    if isinstance(value, AbstractSet):
        return sorted(cast("AbstractSet[int]", value))
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    if is_dataclass(value):
        return [getattr(value, item.name) for item in fields(value)]
    raise TypeError(f"a snapshot cannot hold a value of type {type(value).__name__}")


def from_snapshot_json(kind: type[SnapshotT], text: str | bytes) -> SnapshotT:
    """Return the value that `to_snapshot_json` wrote; raise ValueError if it is not of that type."""
    try:
        return cast("SnapshotT", _reader_for(kind)(json.loads(text)))
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"the text is not a snapshot of {kind}") from error


def pack_positions(positions: Sequence[int]) -> str:
    """Return positions as one string of differences, which JSON parses faster than a list of numbers."""
    return " ".join(map(str, map(sub, positions, [0, *positions])))


def unpack_positions(text: str) -> "array[int]":
    """Return the positions that `pack_positions` wrote; raise ValueError if the text is malformed."""
    return array("q", accumulate(map(int, text.split())))


@cache
def _reader_for(hint: object) -> ValueReader:
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if isinstance(hint, UnionType) or kind is Union:
        return _optional_reader(inner)
    if kind is range:
        return lambda value: range(*cast("list[int]", value))
    if kind is tuple:
        return _tuple_reader(inner)
    if kind is set or kind is frozenset:
        return cast("ValueReader", kind)
    if not isinstance(kind, type):
        return _read_as_is
    known = cast("type[object]", kind)
    if issubclass(known, Mapping):
        reads = _reader_for(inner[1])
        return lambda value: {key: reads(item) for key, item in cast("dict[str, object]", value).items()}
    return _record_reader(known) if is_dataclass(known) or hasattr(known, "_fields") else _read_as_is


def _read_as_is(value: object) -> object:
    return value


def _optional_reader(options: tuple[object, ...]) -> ValueReader:
    """Return a reader for a union, in which at most one option is a record."""
    inner = [_reader_for(option) for option in options if option is not type(None)]
    reads = next((reader for reader in inner if reader is not _read_as_is), _read_as_is)
    return lambda value: None if value is None else reads(value)


def _tuple_reader(inner: tuple[object, ...]) -> ValueReader:
    if len(inner) == 2 and inner[1] is ...:  # noqa: PLR2004 - tuple[X, ...]
        reads = _reader_for(inner[0])
        if reads is _read_as_is:
            return lambda value: tuple(cast("list[object]", value))
        return lambda value: tuple(map(reads, cast("list[object]", value)))
    readers = [_reader_for(option) for option in inner]
    return lambda value: tuple(reads(item) for reads, item in zip(readers, cast("list[object]", value), strict=True))


def _record_reader(kind: type[object]) -> ValueReader:
    hints = get_type_hints(kind)
    names = [item.name for item in fields(kind)] if is_dataclass(kind) else list(hints)
    make = cast("Callable[..., object]", kind)
    readers = [_reader_for(hints[name]) for name in names]
    if hasattr(kind, "_fields") and all(reads is _read_as_is for reads in readers):
        return lambda value: make(*cast("list[object]", value))

    def read(value: object) -> object:
        given = zip(names, readers, cast("list[object]", value), strict=True)
        return make(**{name: reads(item) for name, reads, item in given})

    return read


KEPT_VERSIONS, SNAPSHOT_VERSIONS = 8, 2
"""The number of context versions that stay in memory, and in a snapshot, where each compaction has its whole text.

An undo beyond them replays the log from its beginning.
"""


class LedgerLineage(NamedTuple):
    """The rewinds and the clear under which a ledger was built; a ledger of another lineage is not reused."""

    hidden: tuple[range, ...]
    cleared_at: int


@dataclass(frozen=True, slots=True)
class PackedLedger:
    """A ledger as JSON text, parsed on first use because most resumed sessions do not need it soon."""

    lineage: LedgerLineage
    stop: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySnapshot:
    """The result of `History.snapshot` and the input of `History.from_snapshot`."""

    length: int
    format: str | None
    scope_runs: tuple[tuple[str, int], ...]
    """The scopes of the messages in order, run-length encoded."""
    system_positions: tuple[int, ...]
    packed_prompts: str
    """Positions of user prompts, as `pack_positions` writes them."""
    recall_marks: RecallMarksSnapshot
    versions: tuple[ContextVersion, ...]
    """The last few versions, including undone ones."""
    current: int
    """The index of the version in force."""
    change_count: int
    request_chain: str
    has_forgotten_versions: bool
    session_state: SessionState
    scopes: Scopes
    ledgers: Mapping[str, PackedLedger]
