"""Writes a note about each group of evicted messages, exactly once, by following a session's log.

The store keeps the progress, and memory recognizes a note that it already has. So an interrupted update is finished
later, and no note is written twice.

A note describes the context at the moment of the eviction, even if it was rewound since. It leaves out messages that
the store has lost. Its text is the session's own summary if a model wrote one. For messages that were cleared or
refused, a summarizer is asked; otherwise, and if the summary only repeats earlier notes, the note is a digest. No
failure here affects the session.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from holdfast.core.conversation.messages import Entry, user
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record
from holdfast.core.history.context import ContextVersion
from holdfast.core.history.digest import make_digest
from holdfast.core.history.history import History
from holdfast.core.memory.evictions import Eviction, Evictions
from holdfast.core.planning.steps import CompactSpan
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import HoldfastError, MalformedInputError, MissingBlobError, WorkspaceUnavailableError
from holdfast.models.base import Summarizer
from holdfast.models.retry import RetryLimits
from holdfast.redaction import redact_text
from holdfast.session.compaction.summarizer import SummaryJob, summarize
from holdfast.session.log.event_log import SessionLog
from holdfast.session.log.records import RECORDS_PER_PAGE, inline_blob
from holdfast.session.memory.daily import DailyMemory
from holdfast.stores.base import StoredRecord, session_value_key
from holdfast.wire.formats import format_named

MAX_NOTE_TOKENS = 700
"""The size limit of a digest, and of a summary that is written for memory alone."""
MAX_NOTED_PROMPTS, MAX_NOTED_RECENT = 128, 64
"""How many of the user's messages, and how many of the newest messages, a note is made from."""
PLACEHOLDER_MESSAGE = user("")
"""A placeholder for a message of which only the position matters."""
MIN_SUMMARIZED_MESSAGES = 4
"""Fewer messages than this are not worth a model's summary."""


class MemoryWriter:
    """Writes notes about the evicted messages of one session."""

    def __init__(
        self,
        session_log: SessionLog,
        daily: DailyMemory,
        *,
        has_summarizer: Callable[[], bool],
        get_summarizer: Callable[[], Summarizer],
    ) -> None:
        """`get_summarizer` is called only if `has_summarizer` returns True."""
        self._log = session_log
        self._daily = daily
        self._has_summarizer = has_summarizer
        self._get_summarizer = get_summarizer
        self._evictions: Evictions | None = None
        self._saved_log_position = 0
        """The progress that the store has."""
        self._pending: list[Eviction] = []
        """Evictions without a written note."""
        self._lock = asyncio.Lock()
        self.is_due = False
        """Whether events were appended since the last update."""
        self.is_closing = False
        """Whether the session is closing, so that no model may be asked."""

    async def update(self) -> None:
        """Write notes about new evictions; raises if a disk or a store fails, and the next update catches up."""
        async with self._lock:
            known = self._evictions
            if known is None:
                known = self._evictions = Evictions.from_json(await self._log.store.get_value(self._key))
                self._saved_log_position = known.log_index
            self.is_due = True
            while self.is_due:
                self.is_due = False
                await self._update_once(known)

    async def _update_once(self, evictions: Evictions) -> None:
        await self._read_log(evictions)
        if self.is_closing:
            self._pending += evictions.release_awaiting()
        await self._write_pending()
        if evictions.log_index > self._saved_log_position:
            await self._log.store.put_value(self._key, evictions.to_json())
            self._saved_log_position = evictions.log_index

    @property
    def _key(self) -> str:
        return session_value_key(self._log.session, "memory")

    async def _read_log(self, evictions: Evictions) -> None:
        """Read the new events of the log."""
        store, session = self._log.store, self._log.session
        while page := await store.read(session, start=evictions.log_index, limit=RECORDS_PER_PAGE):
            for stored in page:
                event = _decode_event(stored)
                self._pending += evictions.observe(event, stored.time_ms, may_await_summary=self._has_summarizer())
                if isinstance(event, log.Forked):
                    self._pending.clear()  # the session that this one was forked from has noted these

    async def _write_pending(self) -> None:
        """Write the pending notes; a file that cannot be written does not delay the notes of other days."""
        refused: WorkspaceUnavailableError | None = None
        at = 0
        while at < len(self._pending):
            try:
                await self._write_note(at)
                self._pending.pop(at)
            except WorkspaceUnavailableError as error:
                refused, at = refused or error, at + 1
        if refused is not None:
            raise refused

    async def _write_note(self, index: int) -> None:
        eviction, restarts = self._pending[index], self._log.restarts
        entries = await self._relevant_entries(eviction)
        if not entries:
            return
        text = eviction.summary
        if not text and (text := await self._summarize(eviction, entries)):
            async with self._log.locked():
                is_scrubbed = self._log.restarts != restarts
            if is_scrubbed:  # meanwhile, and the model has read the secret
                await self._write_note(index)
                return
        text = text or self._digest(eviction, entries)
        # Keep the text, so that a failed write does not cause another call of the model.
        self._pending[index] = replace(eviction, summary=text)
        is_new = await self._daily.add(self._log.session, eviction, text)
        if not is_new:
            # A summary whose lines all repeat an earlier note says nothing about these messages.
            await self._daily.add(self._log.session, eviction, self._digest(eviction, entries))

    async def _relevant_entries(self, eviction: Eviction) -> list[Entry]:
        """Return the messages that say most about an eviction: those of the user, and the newest."""
        positions = [position for span in eviction.ranges for position in span]
        async with self._log.lock:
            history = self._log.history
            context = replace(history.context(), version=await self._version_at(eviction))
            positions = positions[: bisect_left(positions, context.length)]
            prompts = sorted({*history.prompt_positions} & {*positions})[-MAX_NOTED_PROMPTS:]
            wanted = sorted({*prompts, *positions[-MAX_NOTED_RECENT:]})
            await self._read_messages([at for at in wanted if history.entries.get(at) is None])
            there = [at for at in wanted if history.entries.get(at) is not None]
            found = (entry for at in there for entry in context.entries_between(at, at + 1))
            return [entry for entry in found if entry.message.role != "system"]

    async def _read_messages(self, positions: list[int]) -> None:
        """Load earlier messages one by one, so that a lost or damaged one does not affect the others."""
        for position, stored in await self._log.message_records(positions):
            with suppress(MissingBlobError, MalformedInputError):
                event = from_record(await inline_blob(self._log.store, stored.record))
                if isinstance(event, log.MessageAppended):
                    self._log.history.load_message(position, event)

    async def _version_at(self, eviction: Eviction) -> ContextVersion:
        """Return the context version at an eviction; replays the log if a rewind hides the messages now."""
        now = self._log.history.version
        if not any(now.is_hidden(position) for span in eviction.ranges for position in span):
            return now
        store, session = self._log.store, self._log.session
        past = History(format_named)
        for start in range(0, eviction.log_index, RECORDS_PER_PAGE):
            for stored in await store.read(
                session, start=start, limit=min(RECORDS_PER_PAGE, eviction.log_index - start)
            ):
                with suppress(MalformedInputError):
                    past.append(_decode_event(stored), PLACEHOLDER_MESSAGE)
        return past.version

    async def _summarize(self, eviction: Eviction, entries: list[Entry]) -> str:
        """Return a model's summary of messages that were cleared or refused; empty if there is no model or it fails."""
        is_asked = self._has_summarizer() and not self.is_closing and len(entries) >= MIN_SUMMARIZED_MESSAGES
        if eviction.cause == "trimmed" or not is_asked:
            return ""
        span = Span(start=eviction.ranges[0].start, stop=eviction.ranges[-1].stop, count=len(entries))
        job = SummaryJob(
            step=CompactSpan(span=span, by="summary"),
            entries=tuple(entries),
            counter=counter_for(None),
            replaced_tokens=2 * MAX_NOTE_TOKENS,
            max_tokens=MAX_NOTE_TOKENS,
            redact=redact_text,
        )
        with suppress(HoldfastError, TimeoutError):
            limits = RetryLimits()
            async with asyncio.timeout(limits.deadline_seconds):
                return (await summarize(job, self._get_summarizer(), limits)).text
        return ""

    @staticmethod
    def _digest(eviction: Eviction, entries: list[Entry]) -> str:
        many = sum(map(len, eviction.ranges))
        text = make_digest(entries, allowance_tokens=MAX_NOTE_TOKENS, counter=counter_for(None), message_count=many)
        # The first line is an introduction for models; a memory search adds its own.
        return text.partition("\n")[2] or text


def _decode_event(stored: StoredRecord) -> log.Event:
    """Return the event of a record; messages come without their content."""
    if stored.record.get("type") == log.MessageAppended.KIND:
        return log.MessageAppended(format="openai-chat", native={})
    try:
        return from_record(stored.record)
    except MalformedInputError:
        return log.UnknownEvent(kind="damaged", schema=1, data={})
