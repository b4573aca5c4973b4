"""Recordings from wherever they are: files of JSON lines, anything that can be imported, sessions of a store.

What cannot be read is told, by file and line, and the rest is used.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.core.history.records import from_record
from holdfast.errors import HoldfastError, MalformedInputError
from holdfast.lab.recordings import Recording, read_recording
from holdfast.session.session import now_ms
from holdfast.session.transfer import bring_in, outgoing, records_of
from holdfast.stores.base import Store
from holdfast.stores.jsonl import load_file
from holdfast.stores.listing import session_named
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import Json
from holdfast.wire.convert import convert


async def recordings_of(sources: Sequence[str], store: Store | None) -> tuple[list[Recording], list[str]]:
    """Return the recordings of files and sessions, and what could not be read."""
    found: list[Recording] = []
    problems: list[str] = []
    for source in sources:
        path = Path(source)
        try:
            if path.is_file():  # noqa: ASYNC240 - files are read one after the other, before anything is played
                read, wrong = _of_lines(path)
                read, wrong = (read, wrong) if read else await _imported(path)
                found += read
                problems += wrong
            elif store is not None:
                found.append(await _of_session(store, await session_named(store, source)))
            else:
                problems.append(f"{source}: there is no such file, and no store to look into")
        except (OSError, HoldfastError) as error:
            problems.append(f"{source}: {error}")
    return found, problems


def _of_lines(path: Path) -> tuple[list[Recording], list[str]]:
    """Return the conversations of a file that holds one a line, and what could not be read."""
    found: list[Recording] = []
    problems: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), start=1):
        if line.strip():
            try:
                found.append(read_recording(json.loads(line)))
            except (ValueError, MalformedInputError) as error:
                problems.append(f"{path}, line {number}: {error}")
    return found, problems


async def _imported(path: Path) -> tuple[list[Recording], list[str]]:
    loaded, store = load_file(path), MemoryStore()
    problems = [f"{path}, line {loss.line}: {loss.reason}" for loss in loaded.losses]
    found: list[Recording] = []
    for number, conversation in enumerate(loaded.conversations):
        name = conversation.name or (path.stem if len(loaded.conversations) == 1 else f"{path.stem}-{number + 1}")
        await bring_in(store, name, records_of(conversation, now_ms()))
        found.append(await _of_session(store, name))
    if not found:
        problems.append(f'{path}: holds no conversation; a line for each: {{"messages": […]}}, or what import reads')
    return found, problems


async def _of_session(store: Store, session: str) -> Recording:
    """Return everything that was said in a session, whatever became of it later."""
    natives: list[Json] = []
    times: list[float | None] = []
    usage: list[dict[str, int] | None] = []
    async for stored in outgoing(store, session):
        event = from_record(stored.record)
        if not isinstance(event, log.MessageAppended) or event.scope != log.MAIN:
            continue
        said = convert([event.native], source=event.format, target="openai-chat").messages
        natives += [dict(one) for one in said]
        times += [stored.time_ms / 1000] * len(said)
        billed = None if event.usage is None else _billed(event.usage)
        usage += [billed if one["role"] == "assistant" else None for one in said]
    if not natives:
        raise MalformedInputError(session, "nothing was said in it")
    return Recording(session, natives, times, [*usage])


def _billed(usage: log.Usage) -> dict[str, int]:
    return {"input": usage.input_tokens, "cacheRead": usage.cache_read_tokens, "cacheWrite": usage.cache_write_tokens}
