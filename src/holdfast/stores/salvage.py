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
from holdfast.stores.base import Record
from holdfast.stores.packing import digest_of, read, unpacked
from holdfast.stores.sqlite_pages import Pages, Row
from holdfast.stores.sqlite_schema import POSITION_BITS, POSITION_MASK

MAGIC = b"SQLite format 3\x00"
NAME = "the damaged file"


@dataclass(slots=True)
class SalvagedLog:
    """What is left of one session."""

    id: str
    name: str = ""
    length: int = 0
    records: dict[int, tuple[int, Record]] = field(default_factory=dict[int, tuple[int, Record]])
    """By position: time and record."""

    @property
    def lost(self) -> list[int]:
        """The positions of records that could not be read."""
        length = max([self.length, *(position + 1 for position in self.records)])
        return [position for position in range(length) if position not in self.records]


@dataclass(slots=True)
class Salvage:
    """What is left of a store."""

    logs: dict[int, SalvagedLog] = field(default_factory=dict[int, SalvagedLog])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    facts: dict[str, Record] = field(default_factory=dict[str, Record])

    def take(self, row: Row) -> None:
        """Take in a row, whatever table it is of."""
        match row.values:
            case (None, int(time_ms), bytes(data)) if row.row_id is not None and row.row_id > POSITION_MASK:
                record = read(unpacked(data, NAME), NAME)
                if isinstance(record, dict):
                    log, position = self._log(row.row_id >> POSITION_BITS), row.row_id & POSITION_MASK
                    log.records.setdefault(position, (time_ms, record))
            case (None, str(name_id), str(title), int(length), int(), int()) if row.row_id is not None:
                log = self._log(row.row_id)
                log.id, log.name, log.length = name_id, title, length
            case (bytes(digest), bytes(data)):
                content = unpacked(data, NAME)
                if digest_of(content) == digest.hex():
                    self.blobs[digest.hex()] = content
            case (str(key), bytes(value)):
                self.facts[key] = read(value, NAME)
            case _:
                pass

    def _log(self, number: int) -> SalvagedLog:
        return self.logs.setdefault(number, SalvagedLog(f"recovered-{number}"))


def salvaged(path: Path, progress: Callable[[int], None] = lambda _: None) -> Salvage:
    """Return what can be read of a damaged file."""
    found = Salvage()
    with _copied(path) as copy, closing(Pages(copy)) as pages:
        for number, row in enumerate(pages.rows(), start=1):
            with suppress(DamagedStoreError):
                found.take(row)
            progress(number)
    found.logs = {number: log for number, log in sorted(found.logs.items()) if log.records}
    return found


@contextmanager
def _copied(path: Path) -> Generator[Path]:
    """Give a copy of a file that holds all its changes."""
    with tempfile.TemporaryDirectory(prefix="holdfast-recover-") as folder:
        copy = Path(folder) / "damaged.db"
        try:
            shutil.copyfile(path, copy)
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}-wal", f"{copy}-wal")
        except OSError as error:
            raise StoreUnavailableError(str(path), f"{error.strerror or error}; check the path") from error
        _apply_changes(copy)
        yield copy


def _apply_changes(copy: Path) -> None:
    """Bring the log of changes into the file, if there is one; a first page that lost its name gets it back."""
    if not Path(f"{copy}-wal").exists():
        return
    with copy.open("r+b") as file:
        file.write(MAGIC)
    with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
