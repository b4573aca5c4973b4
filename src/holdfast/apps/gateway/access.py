"""Who may speak to the gateway.

Any web page can send requests to a port of this machine, so every route checks `Host` and `Origin`, and the control API
needs a token on the loopback interface too. Beyond it every client needs a key. The keys file holds their hashes only;
each key has a namespace of its own, whose conversations no other key reaches, and may have limits.
"""

import hmac
import logging
import math
import os
import secrets
import socket
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import cast
from urllib.parse import parse_qsl

from holdfast.apps.serving import AccessDeniedError, check_source, is_address
from holdfast.core.schema import check_fields, integer_bounds
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError
from holdfast.models.http_endpoint import is_loopback
from holdfast.stores.files import (
    create_private_file,
    disk_remedy,
    is_missing,
    locked_file,
    write_private_lines,
)

CONTROL_TOKEN_VARIABLE = "HOLDFAST_CONTROL_TOKEN"  # noqa: S105 - the name of a variable
OWN_KEY_HEADER = "x-holdfast-key"
PLAIN_KEY_HEADERS = (OWN_KEY_HEADER, "x-api-key", "x-goog-api-key", "api-key")
"""Headers that hold a key and nothing else."""
KEY_PREFIX = "hf-"
SECONDS_PER_DAY = 86_400
_logger = logging.getLogger("holdfast.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One key of the keys file, by its hash."""

    name: str
    sha256: str
    namespace: str
    requests_per_minute: int | None = field(default=None, metadata=integer_bounds(1, 10**9))
    tokens_per_day: int | None = field(default=None, metadata=integer_bounds(1, 10**15))
    """How many tokens its requests may cost, input and output together, from midnight to midnight (UTC)."""
    control: bool = False
    """Whether it may use the control API."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    namespace: str = ""
    key: KeyEntry | None = None
    credentials: frozenset[str] = frozenset()
    """The headers, or `?key`, that had a key of ours instead of the provider's."""


class Keys:
    """The keys of a file, with what each has used of its limits.

    With a `path`, a changed file counts from the next request on. One that cannot be read changes nothing.
    """

    def __init__(
        self, entries: Sequence[KeyEntry], *, clock: Callable[[], float] = time.time, path: Path | None = None
    ) -> None:
        self._entries: Mapping[str, KeyEntry] = {}
        self._clock = clock
        self._used: dict[str, _Used] = {}
        self._path = path
        self._version = _version_of(path) if path else None
        """Which file the entries are of."""
        self.use(entries)

    def use(self, entries: Iterable[KeyEntry]) -> None:
        """Take other entries; what a key has used stays known, also while it has none."""
        self._entries = {entry.sha256: entry for entry in entries}
        for digest, entry in self._entries.items():
            self._used.setdefault(digest, _Used(room=float(entry.requests_per_minute or 0)))

    def find(self, key: str) -> KeyEntry | None:
        """Return the entry of a key."""
        return self.find_hash(key_hash(key))

    def find_hash(self, sha256: str) -> KeyEntry | None:
        """Return the entry of the key with a hash."""
        if self._path is not None and (version := _version_of(self._path)) != self._version:
            self._version = version
            self._read_again(self._path)
        return self._entries.get(sha256)

    def _read_again(self, path: Path) -> None:
        try:
            entries = _read_entries(path).values()
        except SettingsError as error:
            _logger.warning("the keys are still those from before: %s", error)
            return
        self.use(entries)

    def admit(self, entry: KeyEntry) -> None:
        """Count a request; raises `AccessDeniedError` if a limit of the key is reached."""
        used, now = self._used[entry.sha256], self._clock()
        if entry.tokens_per_day is not None and used.tokens_on(now) >= entry.tokens_per_day:
            wait = SECONDS_PER_DAY - int(now) % SECONDS_PER_DAY
            text = f"key {entry.name!r} has used its {entry.tokens_per_day:,} tokens of today; ask for a larger limit"
            raise AccessDeniedError(429, text, retry_after_seconds=wait)
        if entry.requests_per_minute is not None:
            rate = entry.requests_per_minute / 60
            used.room = min(float(entry.requests_per_minute), used.room + max(0.0, now - used.at) * rate)
            used.at = now
            if used.room < 1:
                wait = math.ceil((1 - used.room) / rate)
                text = f"key {entry.name!r} may send {entry.requests_per_minute:,} requests a minute; wait {wait} s"
                raise AccessDeniedError(429, text, retry_after_seconds=wait)
            used.room -= 1

    def spend(self, entry: KeyEntry, tokens: int) -> None:
        """Count the tokens of an answered request."""
        now = self._clock()
        self._used[entry.sha256].spend(now, tokens)


@dataclass(slots=True)
class _Used:
    room: float
    """How many requests may come now."""
    at: float = 0.0
    day: int = 0
    tokens: int = 0

    def tokens_on(self, now: float) -> int:
        return self.tokens if self.day == int(now) // SECONDS_PER_DAY else 0

    def spend(self, now: float, tokens: int) -> None:
        self.tokens = self.tokens_on(now) + tokens
        self.day = int(now) // SECONDS_PER_DAY


def _version_of(path: Path) -> tuple[int, ...] | None:
    """Return what changes with a file; None if it cannot be found."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def key_hash(key: str) -> str:
    """Return the hash of a key. Keys are random and long, so one round of SHA-256 keeps them secret."""
    return sha256(key.encode(errors="replace")).hexdigest()


def load_keys(path: Path) -> Keys:
    """Return the keys of a file; raises a `SettingsError` that names the wrong place."""
    keys = Keys([], path=path)  # a change while the file is read is a later one
    keys.use(_read_entries(path).values())
    return keys


def _read_entries(path: Path) -> dict[str, KeyEntry]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"{error.strerror or error}; make one with: holdfast gateway key NAME --keys {path}"
        raise SettingsError("keys", problem, where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError("keys", str(error), where=str(path)) from error
    return {name: _entry(name, table, str(path)) for name, table in tables.items()}


def _entry(name: str, table: object, where: str) -> KeyEntry:
    known = [item.name for item in fields(KeyEntry) if item.name != "name"]
    if not isinstance(table, dict) or "sha256" not in table:
        raise SettingsError(name, "must be a table with the sha256 of a key", where=where)
    given = cast("dict[str, object]", table)
    for key in given:
        if key not in known:
            raise SettingsError(f"{name}.{key}", f"is not known; there are {', '.join(known)}", where=where)
    # `check_fields` refuses values of another type.
    entry = replace(KeyEntry(name=name, sha256="", namespace=name), **cast("dict[str, str]", given))
    check_fields(entry, f"{where}: {name}")
    return entry


def create_key(path: Path, name: str, *, control: bool = False) -> str:
    """Add a new key to a file, and return it; only its hash is stored."""
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise SettingsError("NAME", f"{name!r:.40} must be of letters, digits, - and _")
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    control_line = ["control = true\n"] if control else []
    with locked_file(path):
        entries = {} if is_missing(path) else _read_entries(path)
        if name in entries:
            raise SettingsError("NAME", f"{path} already has a key {name!r}; choose another name, or remove its table")
        before = _private_text(path)
        lines = [before, "\n" * bool(before), f'[{name}]\nsha256 = "{key_hash(key)}"\n', *control_line]
        write_private_lines(path, lines)
    return key


def control_token(path: Path, environ: Mapping[str, str] | None = None) -> tuple[str, Path | None]:
    """Return the token of the control API and the file that has it: that of the environment, else one made once."""
    if token := (os.environ if environ is None else environ).get(CONTROL_TOKEN_VARIABLE):
        return token, None
    remedy = f"check the path, or set {CONTROL_TOKEN_VARIABLE} to a token"
    if token := _private_text(path, remedy).strip():
        return token, path
    with locked_file(path):
        if not (token := _private_text(path, remedy).strip()):  # another gateway may have been faster
            token = secrets.token_urlsafe(32)
            write_private_lines(path, [f"{token}\n"])
    return token, path


def _private_text(path: Path, remedy: str = "check the path") -> str:
    """Return the text of a private file, which is made if it is missing."""
    try:
        create_private_file(path)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not a text"
        remedy = disk_remedy(error, remedy) if isinstance(error, OSError) else remedy
        raise SettingsError("the file", f"cannot be used: {problem}; {remedy}", where=str(path)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rules that decide who is served."""

    host: str = "127.0.0.1"
    """The address that the server listens on."""
    hosts: frozenset[str] = frozenset()
    """Further names that clients reach it by."""
    keys: Keys | None = None
    control_token: str | None = None
    """The token of the control API on the loopback interface."""

    def __post_init__(self) -> None:
        if self.keys is None and not is_loopback(self.host):
            problem = "can be reached from elsewhere, which needs --keys FILE; make a key with: holdfast gateway key"
            raise SettingsError("--host", f"{self.host} {problem} NAME --keys FILE")

    def check_source(self, headers: Mapping[str, str]) -> None:
        """Raise `AccessDeniedError` for a request of a web page, or one that was lured here by a foreign name."""
        check_source(headers, self.is_own_host, name="this gateway", hint="; see the setting gateway_hosts")

    def is_own_host(self, name: str) -> bool:
        """Return whether a host name, in small letters and without a port, leads to this server."""
        if is_loopback(name) or name in self.hosts:
            return True
        # Beyond loopback a key is needed, and a page that was lured here by DNS has a name, never an address.
        return not is_loopback(self.host) and (is_address(name.strip("[]")) or name == socket.gethostname().lower())

    def identify(self, headers: Mapping[str, str], query: str) -> Caller:
        """Return who sent a request to a provider; raises `AccessDeniedError`."""
        if self.keys is None:
            return Caller()
        presented = _presented_keys(headers, query)
        found = [(source, entry) for source, key in presented if (entry := self.keys.find(key))]
        if found:
            entry = found[0][1]
            self.keys.admit(entry)
            return Caller(entry.namespace, entry, frozenset([source for source, _ in found]))
        text = f"this gateway needs a key of its own, as the API key or in the header {OWN_KEY_HEADER}"
        raise AccessDeniedError(401, text)

    def spend(self, caller: Caller, tokens: int) -> None:
        """Count the tokens of an answer against the limit of its key."""
        if self.keys is not None and caller.key is not None:
            self.keys.spend(caller.key, tokens)

    def may_still_control(self, caller: Caller) -> bool:
        """Return whether the control API would serve a caller again: its key may have gone or changed."""
        if caller.key is None:
            return True
        entry = self.keys.find_hash(caller.key.sha256) if self.keys else None
        return entry is not None and entry.control and entry.namespace == caller.namespace

    def check_control(self, headers: Mapping[str, str]) -> Caller:
        """Return who sent a request to the control API; raises `AccessDeniedError`."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else ""
        expected = self.control_token if is_loopback(self.host) else None
        if expected and given and hmac.compare_digest(given.encode(), expected.encode()):
            return Caller()
        entry = self.keys.find(given) if self.keys and given else None
        if entry and entry.control:
            return Caller(entry.namespace, entry)
        if entry:
            raise AccessDeniedError(403, f"key {entry.name!r} may not use the control API; set control = true for it")
        needed = ("its token", "TOKEN") if is_loopback(self.host) else ("a key with control = true", "KEY")
        raise AccessDeniedError(401, "the control API needs {}: Authorization: Bearer {}".format(*needed))


def _presented_keys(headers: Mapping[str, str], query: str) -> list[tuple[str, str]]:
    """Return every place of a request that may hold one of our keys, with the key."""
    found = [(name, headers[name]) for name in PLAIN_KEY_HEADERS if name in headers]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found.append(("authorization", token.strip()))
    return [*found, *(("?key", value) for name, value in parse_qsl(query) if name == "key")]
