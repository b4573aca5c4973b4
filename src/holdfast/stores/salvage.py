"""Saves what is readable of a damaged SQLite store.

The file is copied and only the copy is opened. Rows are known by their shape and proved by their content: a record
must be a record, and a blob must have its hash. So nothing is needed of the file but the pages they stand on.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import DamagedStoreError, StoreUnavailableError
from holdfast.stores.base import JsonRecord
from holdfast.stores.packing import decode_record, decompress, sha256_hex
from holdfast.stores.sqlite_pages import SqlitePages, SqliteRow
from holdfast.stores.sqlite_schema import POSITION_BITS, POSITION_MASK

SQLITE_MAGIC = b"SQLite format 3\x00"
DAMAGED_FILE_LABEL = "the damaged file"


@dataclass(slots=True)
class RecoveredLog:
    """What is left of one session."""

    id: str
    name: str = ""
    length: int = 0
    records: dict[int, tuple[int, JsonRecord]] = field(default_factory=dict[int, tuple[int, JsonRecord]])
    """By position: time and record."""

    @property
    def lost(self) -> list[int]:
        """The positions of records that could not be read."""
        length = max([self.length, *(position + 1 for position in self.records)])
        return [position for position in range(length) if position not in self.records]


@dataclass(slots=True)
class RecoveredStore:
    """What is left of a store."""

    logs: dict[int, RecoveredLog] = field(default_factory=dict[int, RecoveredLog])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    values: dict[str, JsonRecord] = field(default_factory=dict[str, JsonRecord])

    def add_row(self, row: SqliteRow) -> None:
        """Take in a row, whatever table it is of."""
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
    return found


@contextmanager
def _temporary_copy(path: Path) -> Generator[Path]:
    """Give a copy of a file that holds all its changes."""
    with tempfile.TemporaryDirectory(prefix="holdfast-recover-") as folder:
        copy = Path(folder) / "damaged.db"
        try:
            shutil.copyfile(path, copy)
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}-wal", f"{copy}-wal")
        except OSError as error:
            raise StoreUnavailableError(str(path), f"{error.strerror or error}; check the path") from error
        _apply_wal(copy)
        yield copy


def _apply_wal(copy: Path) -> None:
    """Bring the log of changes into the file, if there is one; a first page that lost its name gets it back."""
    if not Path(f"{copy}-wal").exists():
        return
    with copy.open("r+b") as file:
        file.write(SQLITE_MAGIC)
    with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
