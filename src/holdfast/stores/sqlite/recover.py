"""Recovers what is readable of a damaged SQLite store.

SQLite finds a row by walking down a tree, so one bad page hides all rows below it. Here every page is read by itself
(https://www.sqlite.org/fileformat2.html), so that a bad page costs only its own rows. A row is recognized by its shape
and verified by its content: a record must be a record, a blob must match its hash. Only a copy of the file is opened.
"""

import errno
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from holdfast.errors import DamagedStoreError, StoreUnavailableError
from holdfast.stores.base import JsonRecord
from holdfast.stores.encoding import decode_record, decompress, sha256_hex
from holdfast.stores.files import SQLITE_MAGIC, disk_remedy
from holdfast.stores.sqlite.schema import POSITION_BITS, POSITION_MASK

SqliteValue: TypeAlias = int | float | str | bytes | None
INDEX_INTERIOR, INDEX_LEAF, TABLE_LEAF = 0x02, 0x0A, 0x0D
FILE_HEADER_BYTES = 100
DEFAULT_PAGE_BYTES = 4096
LEAST_ROW_BYTES = 16
"""What a record takes on its page at least: its place there, its id, a header, a time, and what zlib writes."""
FLOAT_TYPE, FIRST_BLOB_TYPE = 7, 12
"""Serial types: even ones from 12 on are blobs, odd ones are texts."""
_FIXED_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, FLOAT_TYPE: 8}
"""The size of a number, by serial type."""


class SqliteRow(NamedTuple):
    """The id of a row, None in a table without ids, and its values."""

    row_id: int | None
    values: tuple[SqliteValue, ...]


class SqlitePages:
    """The pages of a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        header = self._file.read(FILE_HEADER_BYTES)
        size = int.from_bytes(header[16:18], "big")
        size = 65_536 if size == 1 else size
        self._page_bytes = size if size >= 512 and size & (size - 1) == 0 else DEFAULT_PAGE_BYTES  # noqa: PLR2004
        self._usable_bytes = self._page_bytes - (header[20] if len(header) > 20 and header[20] <= 32 else 0)  # noqa: PLR2004
        self.count = path.stat().st_size // self._page_bytes
        # The header knows how many pages there were before the file was cut off.
        pages = max(self.count, int.from_bytes(header[28:32], "big"))
        self.max_rows = pages * self._page_bytes // LEAST_ROW_BYTES
        """How many records the file can have held."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self) -> Iterator[SqliteRow]:
        """Yield every row of every page that can be read."""
        for number in range(1, self.count + 1):
            page = self._page(number)
            start = FILE_HEADER_BYTES if number == 1 else 0
            kind = page[start] if len(page) > start else 0
            if kind not in {INDEX_INTERIOR, INDEX_LEAF, TABLE_LEAF}:
                continue
            first = start + (12 if kind == INDEX_INTERIOR else 8)
            for cell in range(int.from_bytes(page[start + 3 : start + 5], "big")):
                pointer = page[first + 2 * cell : first + 2 * cell + 2]
                # A damaged cell can fail in any of these ways; it is skipped.
                with suppress(ValueError, IndexError, struct.error, OverflowError):
                    yield self._row(page, kind, int.from_bytes(pointer, "big"))

    def _page(self, number: int) -> bytes:
        if not 1 <= number <= self.count:
            raise ValueError("there is no such page")
        self._file.seek((number - 1) * self._page_bytes)
        return self._file.read(self._page_bytes)

    def _row(self, page: bytes, kind: int, at: int) -> SqliteRow:
        row_id = None
        at += 4 if kind == INDEX_INTERIOR else 0
        length, at = _varint(page, at)
        if kind == TABLE_LEAF:
            row_id, at = _varint(page, at)
        if not 0 < length <= self.count * self._page_bytes:
            raise ValueError("no length of a row")
        local = self._bytes_on_page(length, is_table=kind == TABLE_LEAF)
        payload = page[at : at + local]
        if local < length:
            overflow = int.from_bytes(page[at + local : at + local + 4], "big")
            payload += self._overflow(overflow, length - local)
        if len(payload) != length:
            raise ValueError("the row is cut off")
        return SqliteRow(row_id, _values(payload))

    def _bytes_on_page(self, length: int, *, is_table: bool) -> int:
        """Return how many bytes of a row its own page holds."""
        least = (self._usable_bytes - 12) * 32 // 255 - 23
        most = self._usable_bytes - 35 if is_table else (self._usable_bytes - 12) * 64 // 255 - 23
        if length <= most:
            return length
        some = least + (length - least) % (self._usable_bytes - 4)
        return some if some <= most else least

    def _overflow(self, number: int, length: int) -> bytes:
        pieces: list[bytes] = []
        while length > 0:
            page = self._page(number)
            piece = page[4 : 4 + min(length, self._usable_bytes - 4)]
            pieces.append(piece)
            length -= len(piece) or length
            number = int.from_bytes(page[:4], "big")
        return b"".join(pieces)


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return an integer of variable length, and where it ends."""
    value = 0
    for count in range(9):
        byte = content[at + count]
        if count == 8:  # noqa: PLR2004 - all eight bits of the ninth byte count
            return (value << 8) | byte, at + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:  # noqa: PLR2004
            return value, at + count + 1
    raise ValueError("no number")  # pragma: no cover - the ninth byte ends it


def _values(payload: bytes) -> tuple[SqliteValue, ...]:
    end, at = _varint(payload, 0)
    if end > len(payload):
        raise ValueError("no header of a row")
    values: list[SqliteValue] = []
    start = end
    while at < end:
        kind, at = _varint(payload, at)
        size = (kind - 12) // 2 if kind >= FIRST_BLOB_TYPE else _FIXED_BYTES.get(kind, 0)
        content = payload[start : start + size]
        if len(content) != size:
            raise ValueError("a value is cut off")
        values.append(_value(kind, content))
        start += size
    return tuple(values)


def _value(kind: int, content: bytes) -> SqliteValue:
    if kind >= FIRST_BLOB_TYPE:
        return content.decode("utf-8", "replace") if kind % 2 else content
    if kind == FLOAT_TYPE:
        return struct.unpack(">d", content)[0]
    return int.from_bytes(content, "big", signed=True) if content else {8: 0, 9: 1}.get(kind)


DAMAGED_FILE_LABEL = "the damaged file"


@dataclass(slots=True)
class RecoveredLog:
    """What could be read of one session."""

    id: str
    name: str = ""
    length: int = 0
    records: dict[int, tuple[int, JsonRecord]] = field(default_factory=dict[int, tuple[int, JsonRecord]])
    """Time and record, by position."""
    max_length: int = POSITION_MASK
    """How many records the file can have held; a length or a position beyond it is damaged."""

    @property
    def lost(self) -> list[int]:
        """The positions of records that could not be read."""
        lengths = [self.length, *(position + 1 for position in self.records)]
        length = max([length for length in lengths if length <= self.max_length], default=0)
        return [position for position in range(length) if position not in self.records]


@dataclass(slots=True)
class RecoveredStore:
    """What could be read of a store."""

    logs: dict[int, RecoveredLog] = field(default_factory=dict[int, RecoveredLog])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    values: dict[str, JsonRecord] = field(default_factory=dict[str, JsonRecord])

    def add_row(self, row: SqliteRow) -> None:
        """Add a row of any table."""
        match row.values:
            case (None, int(time_ms), bytes(data)) if row.row_id is not None and row.row_id > POSITION_MASK:
                record = decode_record(decompress(data, DAMAGED_FILE_LABEL), DAMAGED_FILE_LABEL)
                if isinstance(record, dict):
                    log, position = self._log(row.row_id >> POSITION_BITS), row.row_id & POSITION_MASK
                    log.records.setdefault(position, (time_ms, record))
            case (None, str(name_id), str(title), int(length), int(), int()) if row.row_id is not None:
                log = self._log(row.row_id)
                log.id, log.name, log.length = name_id, title, length
            case (bytes(digest), bytes(data)):
                content = decompress(data, DAMAGED_FILE_LABEL)
                if sha256_hex(content) == digest.hex():
                    self.blobs[digest.hex()] = content
            case (str(key), bytes(value)):
                self.values[key] = decode_record(value, DAMAGED_FILE_LABEL)
            case _:
                pass

    def _log(self, number: int) -> RecoveredLog:
        return self.logs.setdefault(number, RecoveredLog(f"recovered-{number}"))


def recover_store(path: Path, progress: Callable[[int], None] = lambda _: None) -> RecoveredStore:
    """Return what can be read of a damaged file."""
    found = RecoveredStore()
    with _temporary_copy(path) as copy, closing(SqlitePages(copy)) as pages:
        for number, row in enumerate(pages.rows(), start=1):
            with suppress(DamagedStoreError):
                found.add_row(row)
            progress(number)
    found.logs = {number: log for number, log in sorted(found.logs.items()) if log.records}
    ids = set[str]()
    for number, log in found.logs.items():
        log.id, log.max_length = _usable_id(log.id, number, ids), pages.max_rows
        ids.add(log.id)
    return found


def _usable_id(damaged: str, number: int, taken: set[str]) -> str:
    """Return the id of a session; another one if damage has made it that of a second session, or one of none."""
    is_usable = damaged != "" and "\0" not in damaged and damaged not in taken
    name = damaged if is_usable else f"recovered-{number}"
    while name in taken:
        name += "-2"
    return name


@contextmanager
def _temporary_copy(path: Path) -> Generator[Path]:
    """Yield a copy of a file with its write-ahead log applied."""
    with tempfile.TemporaryDirectory(prefix="holdfast-recover-") as folder:
        copy = Path(folder) / "damaged.db"
        try:
            shutil.copyfile(path, copy)
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}-wal", f"{copy}-wal")
        except OSError as error:
            problem = f"{error.strerror or error}; {disk_remedy(error)}"
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                where = tempfile.gettempdir()
                problem = f"{error.strerror} for a copy in {where}; free some space there, or set TMPDIR"
            raise StoreUnavailableError(str(path), problem) from error
        if Path(f"{copy}-wal").exists():
            # SQLite needs the magic number, which the first page may have lost.
            with copy.open("r+b") as file:
                file.write(SQLITE_MAGIC)
            with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield copy
