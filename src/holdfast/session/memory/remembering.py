"""A session's memory of what left its view: it follows the log, and writes each thing down once.

How far it has come is a fact in the store, and what it writes can be told from what is there: so whatever is stopped at
whatever moment is done later, and nothing is done twice. What has left is what stood when it left, whatever was rewound
since; of that, what the store has lost is left out. A model's summary is taken where the session has one; for what was
cleared or refused one is asked for; else a digest says it. None of it can hurt the session.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from holdfast.core.conversation.messages import user
from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.history.digest import digest
from holdfast.core.history.history import History
from holdfast.core.history.lasting.leavings import Leaving, Leavings
from holdfast.core.history.records import from_record
from holdfast.core.history.standing import Version
from holdfast.core.planning.steps import FoldSpan
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import HoldfastError, MalformedInputError, MissingBlobError, WorkspaceUnavailableError
from holdfast.models.base import Writer
from holdfast.redaction import redacted
from holdfast.session.blobs import whole_record
from holdfast.session.keeping import Keeper
from holdfast.session.log import PAGE
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.summarizer import Job, Patience, summarised
from holdfast.stores.base import StoredRecord
from holdfast.stores.facts import fact_about
from holdfast.wire.formats import format_named

NOTE_TOKENS = 700
"""The most that a digest, or a summary that is made for memory alone, takes."""
MOST_PROMPTS, MOST_RECENT = 128, 64
"""Of what left: so many of the user's messages, and so many of the newest, are looked at."""
UNREAD = user("")
"""Stands for any message where only its place counts."""
MIN_SUMMARISED = 4
"""Fewer messages than this are not worth a model's summary."""


class Remembering:
    """Writes down what leaves one session."""

    def __init__(
        self, keeper: Keeper, daily: DailyMemory, *, can_write: Callable[[], bool], writer: Callable[[], Writer]
    ) -> None:
        """`writer` gives who writes summaries, where `can_write` says that there is anybody."""
        self._keeper = keeper
        self._daily = daily
        self._can_write = can_write
        self._writer = writer
        self._leavings: Leavings | None = None
        self._kept_place = 0
        """How far the store says that it has come."""
        self._pending: list[Leaving] = []
        """What is known to have left and could not be written yet."""
        self._turn = asyncio.Lock()
        self.is_due = False
        """Whether something has happened since it last looked."""
        self.is_ending = False
        """Whether there is no time left to ask a model."""

    async def catch_up(self) -> None:
        """Write down what has left since; where a disk or a store fails, that is raised, and done next time."""
        async with self._turn:
            known = self._leavings
            if known is None:
                known = self._leavings = Leavings.of(await self._keeper.store.get_fact(self._key))
                self._kept_place = known.place
            self.is_due = True
            while self.is_due:
                self.is_due = False
                await self._go_on(known)

    async def _go_on(self, known: Leavings) -> None:
        await self._read(known)
        if self.is_ending:
            self._pending += known.give_up()
        await self._note_pending()
        if known.place > self._kept_place:
            await self._keeper.store.put_fact(self._key, known.record())
            self._kept_place = known.place

    @property
    def _key(self) -> str:
        return fact_about(self._keeper.session, "memory")

    async def _read(self, known: Leavings) -> None:
        """Take in what stands in the log since."""
        store, session = self._keeper.store, self._keeper.session
        while page := await store.read(session, start=known.place, limit=PAGE):
            for stored in page:
                event = _event(stored)
                self._pending += known.take(event, stored.time_ms, may_wait=self._can_write())
                if isinstance(event, log.Forked):
                    self._pending.clear()  # it was noted for the conversation that this one goes on from

    async def _note_pending(self) -> None:
        """Write down what is known to have left; a day's file that cannot be written holds up no other day."""
        refused: WorkspaceUnavailableError | None = None
        at = 0
        while at < len(self._pending):
            try:
                await self._note(at)
                self._pending.pop(at)
            except WorkspaceUnavailableError as error:
                refused, at = refused or error, at + 1
        if refused is not None:
            raise refused

    async def _note(self, at: int) -> None:
        leaving = self._pending[at]
        entries = await self._entries(leaving)
        if not entries:
            return
        text = leaving.summary or await self._summary(leaving, entries) or self._digest(leaving, entries)
        # Where it cannot be written now, nobody is asked for it again.
        self._pending[at] = replace(leaving, summary=text)
        await self._daily.add(self._keeper.session, leaving, text)

    async def _entries(self, leaving: Leaving) -> list[Entry]:
        """Return the messages that tell most of what left: what the user said, and the newest."""
        positions = [position for span in leaving.messages for position in span]
        async with self._keeper.turn:
            history = self._keeper.history
            context = replace(history.context(), version=await self._version_at(leaving))
            positions = positions[: bisect_left(positions, context.length)]
            prompts = sorted({*history.prompts} & {*positions})[-MOST_PROMPTS:]
            wanted = sorted({*prompts, *positions[-MOST_RECENT:]})
            await self._read_messages([at for at in wanted if history.entries.held(at) is None])
            there = [at for at in wanted if history.entries.held(at) is not None]
            found = (entry for at in there for entry in context.between(at, at + 1))
            return [entry for entry in found if entry.message.role != "system"]

    async def _read_messages(self, positions: list[int]) -> None:
        """Read messages of the past, each by itself: one that is gone or damaged costs no other."""
        for position, stored in await self._keeper.pick(positions):
            with suppress(MissingBlobError, MalformedInputError):
                event = from_record(await whole_record(self._keeper.store, stored.record))
                if isinstance(event, log.MessageAppended):
                    self._keeper.history.read(position, event)

    async def _version_at(self, leaving: Leaving) -> Version:
        """Return how the conversation stood when something left it; read off the log where a rewind hides it now."""
        now = self._keeper.history.version
        if not any(now.is_hidden(position) for span in leaving.messages for position in span):
            return now
        store, session = self._keeper.store, self._keeper.session
        past = History(format_named)
        for start in range(0, leaving.place, PAGE):
            for stored in await store.read(session, start=start, limit=min(PAGE, leaving.place - start)):
                with suppress(MalformedInputError):
                    past.append(_event(stored), UNREAD)
        return past.version

    async def _summary(self, leaving: Leaving, entries: list[Entry]) -> str:
        """Return what a model says of what was cleared or refused; nothing where there is none, or it fails."""
        is_asked = self._can_write() and not self.is_ending and len(entries) >= MIN_SUMMARISED
        if leaving.cause == "trimmed" or not is_asked:
            return ""
        stop = leaving.messages[-1].stop
        job = Job(
            step=FoldSpan(start=leaving.messages[0].start, stop=stop, by="summary", count=len(entries)),
            entries=tuple(entries),
            previous="",
            plan="",
            todos="",
            skills=(),
            focus="",
            tail="",
            system_context="",
            counter=counter_for(None),
            replaced_tokens=2 * NOTE_TOKENS,
            max_tokens=NOTE_TOKENS,
            facts=None,
            hide=redacted,
        )
        with suppress(HoldfastError, TimeoutError):
            patience = Patience()
            async with asyncio.timeout(patience.deadline_seconds):
                return (await summarised(job, self._writer(), patience)).text
        return ""

    @staticmethod
    def _digest(leaving: Leaving, entries: list[Entry]) -> str:
        many = sum(map(len, leaving.messages))
        text = digest(entries, allowance_tokens=NOTE_TOKENS, counter=counter_for(None), message_count=many)
        # Its first line is for a model; who searches memory is told the same for all that was found.
        return text.partition("\n")[2] or text


def _event(stored: StoredRecord) -> log.Event:
    """Return the event of a record; of a message only that it is one."""
    if stored.record.get("type") == log.MessageAppended.KIND:
        return log.MessageAppended(format="", native={})
    try:
        return from_record(stored.record)
    except MalformedInputError:
        return log.Unknown(kind="damaged", schema=1, data={})
