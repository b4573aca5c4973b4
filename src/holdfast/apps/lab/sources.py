"""Recordings from files of JSON lines, anything that can be imported, and sessions of a store.

A conversation is replayed as it was recorded: broken parts stay broken, and no message is invented. A recording that
cannot be read is skipped and reported with its file, line or session.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from holdfast.apps.lab.recordings import RecordedCompaction, Recording, read_recording
from holdfast.apps.lab.simulation import LAB_FORMAT, LAB_MODEL
from holdfast.core.conversation.json_values import dump_json
from holdfast.core.conversation.messages import Opaque
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import HoldfastError, MalformedInputError, UnknownSessionError
from holdfast.importers.importing import import_found
from holdfast.importers.programs import find_sessions
from holdfast.importers.source import ReadReport, SourceProgram
from holdfast.session.log.event_log import now_ms
from holdfast.session.maintenance.transfer import export_records, import_session, records_from_file
from holdfast.stores.base import Store, resolve_session_id
from holdfast.stores.jsonl import LoadedConversation, load_file
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage, system_message
from holdfast.wire.convert import as_chat_messages, plain_system_text
from holdfast.wire.formats import format_named
from holdfast.wire.json_reader import is_mapping

ANTHROPIC_FORMAT, ANTHROPIC_BLOCKS = "anthropic-messages", frozenset({"tool_use", "tool_result"})
SOURCE_MISSING = "there is no such file, and no such session"
SOURCE_IS_FOLDER = "it is a folder; name its files, such as {}/*.jsonl"


async def load_recordings(sources: Sequence[str], store: Store) -> tuple[list[Recording], list[str]]:
    """Return the recordings of files and sessions, with distinct names, and the problems of those that failed."""
    found: list[Recording] = []
    problems: list[str] = []
    for source in sources:
        path = Path(source)
        try:
            if path.is_file():  # noqa: ASYNC240 - files are read one after the other, before any replay
                read, failures = _read_lines(path) or await _import_file(path)
                found += read
                problems += failures
            else:
                found.append(_check_playable(await _read_session(store, await resolve_session_id(store, source))))
        except (OSError, HoldfastError) as error:
            problems.append(_describe_error(source, error))
    return _with_unique_names(found), problems


async def load_program_sessions(
    program: SourceProgram, paths: Sequence[str], limit: int
) -> tuple[list[Recording], list[str]]:
    """Return the newest sessions that a program has left on this machine, or at some paths, and the problems.

    They are imported into memory: nothing is written.
    """
    search = ReadReport()
    places = [Path(path) for path in paths] or [None]
    sessions = {one.id: one for place in places for one in find_sessions(program, place, search)}
    newest = sorted(sessions.values(), key=lambda one: -one.modified_ms)
    found, problems = list[Recording](), search.search_problems
    for one in newest:
        if len(found) == limit:
            break
        store = MemoryStore()
        try:
            done = await import_found(store, program, one, now_ms=now_ms())
            if done.messages:
                found.append(_check_playable(_to_chat_format(await _read_session(store, done.session))))
        except (OSError, HoldfastError) as error:
            problems.append(f"{one.session_id}: {error}")
    return _with_unique_names(found), problems


def _describe_error(source: str, error: Exception) -> str:
    """Describe the problem of a source, and name the source exactly once."""
    if isinstance(error, UnknownSessionError) and not error.candidates:
        is_folder = Path(source).is_dir()
        return f"{source}: {SOURCE_IS_FOLDER.format(source.rstrip('/')) if is_folder else SOURCE_MISSING}"
    return str(error) if source in str(error) else f"{source}: {error}"


def _with_unique_names(recordings: Sequence[Recording]) -> list[Recording]:
    """Return recordings with distinct names of one line, because results are grouped by name, each in a row."""
    seen: dict[str, int] = {}
    named: list[Recording] = []
    for recording in recordings:
        name = " ".join(recording.name.splitlines())
        number = seen[name] = seen.get(name, 0) + 1
        named.append(replace(recording, name=name if number == 1 else f"{name} ({number})"))
    return named


def _read_lines(path: Path) -> tuple[list[Recording], list[str]] | None:
    """Return the conversations of a JSONL file, and the problems of its lines; None for another kind of file."""
    found: list[Recording] = []
    problems: list[str] = []
    has_conversation = False
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), start=1):
        if line.strip():
            try:
                record: object = json.loads(line)
                has_conversation |= is_mapping(record) and "messages" in record
                found.append(_check_playable(_to_chat_format(read_recording(record, f"{path.stem}:{number}"))))
            except (ValueError, RecursionError, MalformedInputError) as error:
                problems.append(f"{path}, line {number}: {error}")
    return (found, problems) if has_conversation else None


def _check_playable(recording: Recording) -> Recording:
    """Return the recording; raise if it cannot be replayed."""
    try:
        for index, native in enumerate(recording.messages):
            format_named(LAB_FORMAT).decode(native, index)
    except MalformedInputError as error:
        raise MalformedInputError(f"session {recording.name!r}", str(error)) from error
    if not recording.turns:
        raise MalformedInputError(f"session {recording.name!r}", "there is no assistant turn to replay")
    return recording


def _to_chat_format(recording: Recording) -> Recording:
    """Return a recording in OpenAI's chat format; Anthropic's format differs only where tools are called."""
    try:
        decoded = [format_named(LAB_FORMAT).decode(native, index) for index, native in enumerate(recording.messages)]
    except MalformedInputError:
        return recording
    parts = (part for message in decoded for part in message.parts)
    if not any(isinstance(part, Opaque) and part.kind in ANTHROPIC_BLOCKS for part in parts):
        return recording
    converted = as_chat_messages(recording.messages, source=ANTHROPIC_FORMAT)
    places = converted.source_indices
    index = {place: number for number, place in enumerate(places)}
    compactions = (replace(one, index=bisect_left(places, one.index)) for one in recording.compactions)
    return replace(
        recording,
        messages=[dict(native) for native in converted.messages],
        times=[recording.times[place] for place in places],
        usage=[recording.usage[place] for place in places],
        compactions=tuple(one for one in compactions if 0 < one.index < len(places)),
        inserted=frozenset(number for number, place in enumerate(places) if place in recording.inserted),
        probes=tuple(
            replace(probe, evidence=tuple(index[at] for at in probe.evidence))
            for probe in recording.probes
            if all(at in index for at in probe.evidence)
        ),
        notes=converted.notes,
    )


async def _import_file(path: Path) -> tuple[list[Recording], list[str]]:
    loaded = load_file(path)
    problems = [f"{path}, line {loss.line}: {loss.reason}" for loss in loaded.losses]
    found: list[Recording] = []
    for number, conversation in enumerate(loaded.conversations, start=1):
        name = conversation.name or (path.stem if len(loaded.conversations) == 1 else f"{path.stem}:{number}")
        try:
            found.append(await _import_conversation(name, conversation))
        except MalformedInputError as error:
            problems.append(f"{path}: {error}")
    if not loaded.conversations:
        problems.append(
            f'{path}: has no conversation; write {{"messages": […]}} in a line for each, or what import reads'
        )
    return found, problems


async def _import_conversation(name: str, conversation: LoadedConversation) -> Recording:
    """Return the imported conversation; raise if the import has gaps."""
    store = MemoryStore()
    arrived = await import_session(store, name, records_from_file(conversation, now_ms()))
    for line, reason in arrived.refused[:1]:
        raise MalformedInputError(f"line {line}", f"session {name!r}: {reason}")
    return _check_playable(_to_chat_format(await _read_session(store, name)))


@dataclass(slots=True)
class _SessionLog:
    """The data that a replay needs from a session log."""

    messages: list[tuple[float, log.MessageAppended]] = field(default_factory=list[tuple[float, log.MessageAppended]])
    system: str = ""
    tools: Sequence[Mapping[str, object]] = ()
    has_request_extras: bool = False
    """Whether the log has the system text and tools that were sent."""
    counter: str = ""
    """The token counter of the recorded session."""
    compactions: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The compactions of the program itself: how many messages were before each, and its summary."""

    def apply(self, time_ms: int, event: log.Event) -> None:
        """Apply an event of the main agent."""
        match event:
            case log.MessageAppended(scope=log.MAIN):
                self.messages.append((time_ms / 1000, event))
            case log.SystemChanged(scope=log.MAIN, text=text):
                self.system, self.has_request_extras = text, True
            case log.ToolsChanged(scope=log.MAIN, tools=tools):
                self.tools, self.has_request_extras = tools, True
            case log.CompactionCompleted(success=True, scope=log.MAIN, trigger="client", summary=summary):
                self.compactions.append((len(self.messages), summary.text))
            case log.RequestPrepared(scope=log.MAIN, situation=situation):
                self.counter, self.has_request_extras = str(situation.get("counter")), True
            case _:
                pass


async def _read_session(store: Store, session: str) -> Recording:
    """Return all messages of a session, including compacted ones, and the size of its tools."""
    session_log = _SessionLog()
    async for stored in export_records(store, session):
        session_log.apply(stored.time_ms, from_record(stored.record))
    if not session_log.messages:
        raise MalformedInputError(f"session {session!r}", "there are no messages in it")
    messages: list[JsonMessage] = [system_message(text)] if (text := _plain_system(session_log.system)) else []
    times: list[float | None] = [None] * len(messages)
    usage: list[Mapping[str, int] | None] = [None] * len(messages)
    notes: dict[str, None] = {}
    numbers = [-1] * len(messages)
    formats: set[str] = set()
    for format_name, run in groupby(session_log.messages, key=lambda pair: pair[1].format):
        events = list(run)
        natives, places, lost = _convert_to_chat(format_name, [event.native for _, event in events])
        notes |= dict.fromkeys(lost)
        formats.add(format_name)
        first = numbers[-1] + 1 if numbers else 0
        numbers += [first + place for place in places]
        messages += natives
        times += [events[place][0] for place in places]
        usage += [_billed_usage(events[place][1], native) for place, native in zip(places, natives, strict=True)]
    recording = read_recording({"id": session, "messages": messages})
    tools_tokens = counter_for(LAB_MODEL).count(dump_json([*map(dict, session_log.tools)])) if session_log.tools else 0
    return replace(
        recording,
        times=[logged if own is None else own for own, logged in zip(recording.times, times, strict=True)],
        usage=[logged if own is None else own for own, logged in zip(recording.usage, usage, strict=True)],
        static=tools_tokens if session_log.has_request_extras else None,
        is_claude=_is_billed_by_claude(session_log, formats),
        notes=tuple(notes),
        compactions=tuple(
            RecordedCompaction(bisect_left(numbers, count), summary)
            for count, summary in session_log.compactions
            if bisect_left(numbers, count) < len(messages)
        ),
        inserted=frozenset(
            index for index, number in enumerate(numbers) if number >= 0 and session_log.messages[number][1].trust
        ),
    )


def _is_billed_by_claude(session_log: _SessionLog, formats: AbstractSet[str]) -> bool:
    """Return whether the bills of a session count tokens as Claude does; a log of another program says no counter."""
    if session_log.counter:
        return session_log.counter == counter_for("claude").name
    return not session_log.has_request_extras or formats == {ANTHROPIC_FORMAT}


def _plain_system(system: str) -> str:
    """Return system text as plain text; it may be recorded as text or as a provider's JSON blocks."""
    try:
        return plain_system_text(json.loads(system)) if system.startswith(("[", "{")) else system
    except (ValueError, RecursionError, MalformedInputError):
        return system


def _convert_to_chat(
    format_name: str, natives: Sequence[Mapping[str, object]]
) -> tuple[list[JsonMessage], Sequence[int], Sequence[str]]:
    """Return messages in OpenAI's chat format, the original index of each, and what could not be converted."""
    if format_name == LAB_FORMAT:
        return [dict(native) for native in natives], range(len(natives)), ()
    converted = as_chat_messages(natives, source=format_name)
    return [dict(native) for native in converted.messages], converted.source_indices, converted.notes


def _billed_usage(event: log.MessageAppended, native: JsonMessage) -> dict[str, int] | None:
    usage = event.usage
    if usage is None or native["role"] != "assistant":
        return None
    return {"input": usage.input_tokens, "cacheRead": usage.cache_read_tokens, "cacheWrite": usage.cache_write_tokens}
