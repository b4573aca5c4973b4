"""Compaction beside the conversation: a summary is begun, written while requests go on, judged, and put in place.

Everything that matters is in the log. Who begins a summary says so there, so one runs at a time, whatever process
asks; a summary that was written is there too, before it counts, so a crash in between loses nothing; and it is put in
place only where the context has not changed since it was begun. One that comes too late is kept for the next fold.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from holdfast.core.conversation.json_values import cleaned_text
from holdfast.core.history import events as log
from holdfast.core.history.projection import Projection
from holdfast.core.planning.completion import completed, given_up, started, step_of, summary_of, written
from holdfast.core.planning.cost import Prices
from holdfast.core.planning.forecast import SummaryBy
from holdfast.core.planning.plan import outlook_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import FoldSpan, Summary
from holdfast.core.planning.summary.material import Hide
from holdfast.counters.models import model_named, prices_of
from holdfast.errors import (
    CompactionFailedError,
    HoldfastError,
    ModelAccessError,
    OvertakenError,
    SessionClosedError,
    SettingsError,
    StoreError,
)
from holdfast.models.base import Closes, Writer, reuses_prefix
from holdfast.models.open import writer_for
from holdfast.redaction import redacted
from holdfast.session.companions import Companions, With
from holdfast.session.keeping import Keeper
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.memory.remembering import Remembering
from holdfast.session.owners import LIVE, is_gone, new_owner
from holdfast.session.prefix import Sent
from holdfast.session.summarizer import Job, Patience, job_of, summarised

LEASE_MS = 600_000
"""After this long a compaction that has not ended is taken for abandoned."""
POLL_SECONDS = 0.2
"""How often one looks whether another process is done."""
ASKED_FOR = frozenset({"manual", "agent_request"})
GRACE_SECONDS = 5.0
"""How long one waits for a writer that was told to stop."""
COMPACTING = "Compacting conversation history"

Approval: TypeAlias = Callable[["Draft"], Awaitable[bool | str]]
"""Says whether a summary may count; a text takes its place."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A summary before it counts."""

    step: FoldSpan
    summary: Summary
    """With the facts that were put back into it, and those that it leaves out."""
    replaced_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(With):
    """Who writes summaries, and what goes with them."""

    automatic: str | Writer | None = None
    """Writes summaries that nobody asked for: a cheaper model will do."""
    manual: str | Writer | None = None
    """Writes those that somebody asked for."""
    patience: Patience = field(default_factory=Patience)
    approve: Approval | None = None
    progress: Callable[[str], None] | None = None
    """Hears what is being waited for, and an empty text when that is over."""
    prices: Prices | None = None
    """What tokens cost, for who knows that better than the table of models: a fold is weighed with it."""
    redact: bool = True
    """Whether what looks like a key is kept from the writer and out of the summary; what is stored keeps it."""

    def __post_init__(self) -> None:
        for name in ("automatic", "manual"):
            writer: object = getattr(self, name)
            if not (writer is None or isinstance(writer, str) or callable(getattr(writer, "write", None))):
                problem = f"must be the name of a model, or a writer, not {writer!r:.60}"
                raise SettingsError(f"compaction.{name}", problem)
        memory: object = self.memory
        if not (memory is None or isinstance(memory, DailyMemory)):
            raise SettingsError("compaction.memory", f"must be a DailyMemory(folder), not {memory!r:.60}")


class Compactor:
    """Begins, watches and ends the compactions of one session."""

    def __init__(self, keeper: Keeper, policy: Policy, how: Compaction) -> None:
        self._keeper = keeper
        self._policy = policy
        self.how = how
        self._task: asyncio.Task[None] | None = None
        self.companions = Companions(keeper, how, self._remembering)
        self._running_owner = ""
        self._made: dict[str, Writer] = {}
        """The writers that were named and not given: they are ours to close."""
        self._begun_in: int | None = None
        """The prompt in whose turn a summary was last begun."""
        self.problem: HoldfastError | None = None
        """Why the last one came to nothing."""

    def follow(self, policy: Policy, how: Compaction | None = None) -> None:
        """Go by another policy from now on, and in another way where one is given."""
        self._policy = policy
        if how is not None:
            self.how = how
            self.companions.follow(how)

    def _remembering(self, daily: DailyMemory) -> Remembering:
        """Return what writes down what leaves this session."""
        return Remembering(self._keeper, daily, can_write=lambda: self.can_write, writer=lambda: self.writer("manual"))

    @property
    def can_write(self) -> bool:
        """Whether there is anybody to write summaries."""
        return self.how.manual is not None or self.how.automatic is not None

    @property
    def is_running(self) -> bool:
        """Whether a summary is being written, here or elsewhere."""
        facts = self._keeper.history.facts
        return facts.running is not None and facts.written is None

    def may_begin(self, situation: Situation) -> bool:
        """Return whether a summary may be begun: one at a time, and one a turn."""
        shown = self._keeper.history.projection(situation.counter, situation.scope)
        return self._keeper.history.facts.running is None and (_turn(shown) is None or _turn(shown) != self._begun_in)

    # All of what follows up to `wait` is called by who holds the session's turn.

    async def tidy(self) -> None:
        """End what has been abandoned, and what was overtaken by another change of context."""
        history = self._keeper.history
        run, done = history.facts.running, history.facts.written
        if run is None:
            return
        if done is not None and run.basis != history.changes:
            why = "the context has changed meanwhile; the summary is kept for the next fold"
            await self._give_up(run, why)
        elif done is None and self._is_abandoned(run):
            await self._give_up(run, "whoever began it did not finish it")

    async def set_aside(self, *, other_than: str | None = None) -> None:
        """Make room for another compaction: a summary that waits to be put in place is kept for the next fold."""
        facts = self._keeper.history.facts
        if facts.running is not None and facts.written is not None and facts.running.scope != other_than:
            await self._give_up(facts.running, "another one takes its place; the summary is kept for the next fold")

    async def begin(self, step: FoldSpan, situation: Situation, focus: str = "", *, sent: Sent | None = None) -> None:
        """Begin a summary of a span; the conversation goes on. `sent` is the last request, to be asked behind."""
        outlook = outlook_of(self._keeper.history, self._policy, situation)
        job, writer = self.job(step, situation, focus, sent=sent), self.writer(step.trigger)
        owner = new_owner()
        event = replace(started(step, outlook, focus), owner=owner)
        LIVE.add(owner)
        try:
            await self._keeper.change(event)
        except BaseException:
            LIVE.discard(owner)
            raise
        self._begun_in = _turn(outlook.shown)
        self.problem = None
        self._running_owner = owner
        self._task = asyncio.create_task(self._run(job, event, writer))

    def job(self, step: FoldSpan, situation: Situation, focus: str = "", *, sent: Sent | None = None) -> Job:
        """Return all that a summary of a span is made of, as it stands now."""
        outlook = outlook_of(self._keeper.history, self._policy, situation)
        return job_of(step, outlook, self._policy, focus, redacts=self.how.redact, sent=sent)

    @property
    def hide(self) -> Hide:
        """What takes out of a text what a summariser may not see."""
        return redacted if self.how.redact else str

    async def draft(self, job: Job) -> Summary:
        """Return a summary that was written and judged, and that nobody but who asked knows of."""
        writer, seconds = self.writer(job.step.trigger), self.how.patience.deadline_seconds
        self._tell(COMPACTING)
        try:
            return await self._summarised(job, writer)
        except TimeoutError:
            raise CompactionFailedError(f"it took longer than {seconds:g} s") from None
        finally:
            self._tell("")

    async def _summarised(self, job: Job, writer: Writer) -> Summary:
        with self.companions.call(writer.name) as call:
            async with asyncio.timeout(self.how.patience.deadline_seconds):
                summary = await summarised(job, writer, self.how.patience)
            call.answered(summary.usage, model=summary.by_model)
        return summary

    @property
    def own_writers(self) -> list[Writer]:
        """The writers that were named and not given; what is wrong with a name is said when it is needed."""
        for name in (self.how.automatic, self.how.manual):
            if isinstance(name, str):
                with suppress(SettingsError):
                    self._own(name)
        return list(self._made.values())

    def writer(self, trigger: log.Trigger) -> Writer:
        """Return who writes, as the policy says: often a cheaper model by itself, the primary when somebody asks."""
        named = self._named(trigger)
        if named is None:
            raise ModelAccessError("summariser", "there is no model to write the summary", "name one: summariser=…")
        return self._own(named) if isinstance(named, str) else named

    def _named(self, trigger: log.Trigger) -> str | Writer | None:
        cheap, primary, author = self.how.automatic, self.how.manual, self._policy.author
        is_primary = author == "session" or (author == "cheap_then_primary" and trigger in ASKED_FOR)
        return (primary or cheap) if is_primary else (cheap or primary)

    def summary_by(self, model: str | None, format: str | None) -> SummaryBy | None:  # noqa: A002 - as users say
        """Return who would write the next summary for a model's conversation in a format; None where nobody would."""
        named = self._named("threshold")
        if named is None:
            return None
        name = named if isinstance(named, str) else named.name
        prices = prices_of(known) if (known := model_named(name)) else None
        if name != model:
            return SummaryBy(prices)
        can_ask_behind = not isinstance(named, str) and reuses_prefix(named, format or "")
        return SummaryBy(self.how.prices or prices, is_behind=can_ask_behind and self._policy.reuses_prefix)

    def _own(self, name: str) -> Writer:
        """Return a named writer: made once and kept, as one may have a server of its own to start."""
        if name not in self._made:
            self._made[name] = writer_for(name)
        return self._made[name]

    async def commit(self, situation: Situation) -> log.CompactionCompleted | None:
        """Put the summary that was written in place; None where there is none, or it does not fit any more."""
        await self.tidy()
        facts, rule = self._keeper.history.facts, self._policy.fold
        run, done = facts.running, facts.written
        if run is None or done is None or rule is None or run.scope != situation.scope:
            return None
        step, summary = step_of(run), summary_of(done)
        event = await self._keeper.decided(
            lambda: completed(step, rule, outlook_of(self._keeper.history, self._policy, situation), summary)
        )
        event = await self.companions.checkpointed(event)
        await self.record(event)
        return event

    async def record(self, event: log.CompactionCompleted) -> None:
        """Record how a compaction ended, and let it be known."""
        await self._keeper.change(event)
        self.companions.after(event)
        await self.companions.align()

    async def wait(self) -> None:
        """Wait until the summary that is being written is there or came to nothing; not by who holds the turn."""
        self._tell(COMPACTING)
        try:
            if self._task is not None and not self._task.done():
                await asyncio.wait({self._task})
                return
            while True:
                async with self._keeper.turn:
                    await self._keeper.take_in()
                    with suppress(OvertakenError):
                        await self.tidy()
                    if not self.is_running:
                        return
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._tell("")

    async def cancel(self) -> bool:
        """Give up the summary that is being written here, and say whether there was one."""
        task = self._task
        if task is None or task.done():
            return False
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
        # One that never got to run, or that does not let itself be stopped, cannot say that it is over.
        LIVE.discard(self._running_owner)
        with suppress(OvertakenError, StoreError):
            async with self._keeper.turn:
                await self.tidy()
        return True

    async def _run(self, job: Job, event: log.CompactionStarted, writer: Writer) -> None:
        """Write a summary and record it, or why there is none."""
        try:
            await self._end(event, await self._written(job, event, writer))
        except asyncio.CancelledError:
            await self._end(event, given_up(event, "it was cancelled", is_cancelled=True))
        except TimeoutError:
            seconds = self.how.patience.deadline_seconds
            self.problem = CompactionFailedError(f"it took longer than {seconds:g} s")
            await self._end(event, given_up(event, str(self.problem)))
        except HoldfastError as error:
            self.problem = error
            await self._end(event, given_up(event, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever a caller's own code raises, the session goes on
            self.problem = CompactionFailedError(f"{type(error).__name__}: {error}")
            await self._end(event, given_up(event, str(self.problem)))
        finally:
            LIVE.discard(event.owner)

    async def _written(
        self, job: Job, event: log.CompactionStarted, writer: Writer
    ) -> log.SummaryWritten | log.CompactionCompleted:
        """Return the event that a summary was written, or that it was not approved."""
        with self.companions.watch(event):
            await self.companions.before(event)
            summary = await self._summarised(job, writer)
        if self.how.approve is not None:
            approved = await self._approved(Draft(job.step, summary, job.replaced_tokens))
            if approved is None:
                return given_up(event, "it was not approved", is_cancelled=True)
            summary = approved
        return written(event, summary)

    async def _approved(self, draft: Draft) -> Summary | None:
        """Return a summary as somebody approved it; only a yes and a text are approval."""
        verdict: object = None
        if self.how.approve is not None:
            with suppress(Exception):
                verdict = await self.how.approve(draft)
        if isinstance(verdict, str) and verdict.strip():
            # Nobody has judged what was edited.
            return replace(draft.summary, text=cleaned_text(verdict), score=None, put_back=(), left_out=())
        return draft.summary if verdict is True else None

    async def _end(self, run: log.CompactionStarted, event: log.SummaryWritten | log.CompactionCompleted) -> None:
        """Record how it went, if it is still ours to say."""
        with suppress(StoreError, SessionClosedError):
            while True:
                with suppress(OvertakenError):
                    await self._told(run, event)
                    return

    async def _told(self, run: log.CompactionStarted, event: log.SummaryWritten | log.CompactionCompleted) -> None:
        async with self._keeper.turn:
            await self._keeper.take_in()
            now = self._keeper.history.facts.running
            if now is None or now.owner != run.owner:
                return
            if isinstance(event, log.CompactionCompleted):
                await self.record(event)
            else:
                await self._keeper.change(event)
                self.companions.remember()

    async def close(self) -> None:
        """Give up what is running, and wait for what goes with it."""
        await self.cancel()
        await self.companions.close()
        for writer in self._made.values():
            if isinstance(writer, Closes):
                await writer.close()
        self._made.clear()

    async def _give_up(self, run: log.CompactionStarted, why: str) -> None:
        await self.record(given_up(run, why, is_cancelled=True))

    def _is_abandoned(self, run: log.CompactionStarted) -> bool:
        """Return whether nobody is at it any more: the process is gone, or too much time has passed."""
        if run.owner in LIVE:
            return False
        if is_gone(run.owner):
            return True
        began = self._keeper.began_ms
        # One that begins in the future was begun before the clock was set back.
        return began is None or abs(self._keeper.clock() - began) > LEASE_MS

    def _tell(self, what: str) -> None:
        if self.how.progress is not None:
            with suppress(Exception):
                self.how.progress(what)


def _turn(shown: Projection) -> int | None:
    """Return the position of the prompt that is being answered."""
    return None if shown.newest_prompt is None else shown.entries[shown.newest_prompt].position
