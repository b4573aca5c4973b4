"""A session's memory of what left its view: it follows the log, and writes each thing down once.

How far it has come is a fact in the store, and what it writes can be told from what is there: so whatever is stopped at
whatever moment is done later, and nothing is done twice. A model's summary is taken where the session has one; for what
was cleared or refused one is asked for; else a digest says it. None of it can hurt the session.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.history.digest import digest
from holdfast.core.history.lasting.leavings import Leaving, Leavings
from holdfast.core.history.records import from_record
from holdfast.core.planning.steps import FoldSpan
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import HoldfastError, MalformedInputError
from holdfast.models.base import Writer
from holdfast.redaction import redacted
from holdfast.session.keeping import Keeper
from holdfast.session.log import PAGE
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.summarizer import Job, Patience, summarised
from holdfast.stores.base import StoredRecord
from holdfast.stores.facts import fact_about

NOTE_TOKENS = 700
"""The most that a digest, or a summary that is made for memory alone, takes."""
MOST_PROMPTS, MOST_RECENT = 128, 64
"""Of what left: so many of the user's messages, and so many of the newest, are looked at."""
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
        while self._pending:
            await self._note(self._pending[0])
            self._pending.pop(0)
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

    async def _note(self, leaving: Leaving) -> None:
        entries = await self._entries(leaving)
        if not entries:
            return
        text = leaving.summary or await self._summary(leaving, entries) or self._digest(leaving, entries)
        await self._daily.add(self._keeper.session, leaving, text)

    async def _entries(self, leaving: Leaving) -> list[Entry]:
        """Return the messages that tell most of what left: what the user said, and the newest."""
        positions = [position for span in leaving.messages for position in span]

        def chosen() -> list[Entry]:
            history = self._keeper.history
            context = history.context()
            prompts = sorted({*history.prompts} & {*positions})[-MOST_PROMPTS:]
            wanted = sorted({*prompts, *positions[-MOST_RECENT:]})
            history.entries.need(at for at in wanted if at < context.length)
            found = (entry for at in wanted for entry in context.between(at, at + 1))
            return [entry for entry in found if entry.message.role != "system"]

        async with self._keeper.turn:
            return await self._keeper.decided(chosen)

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
        return digest(entries, allowance_tokens=NOTE_TOKENS, counter=counter_for(None), message_count=many)


def _event(stored: StoredRecord) -> log.Event:
    """Return the event of a record; of a message only that it is one."""
    if stored.record.get("type") == log.MessageAppended.KIND:
        return log.MessageAppended(format="", native={})
    try:
        return from_record(stored.record)
    except MalformedInputError:
        return log.Unknown(kind="damaged", schema=1, data={})
