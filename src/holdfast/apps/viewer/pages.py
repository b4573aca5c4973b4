"""What each page shows, as plain values.

A page in HTML and the same page as JSON are made from one value of this module, and so is an export. Nothing here knows
of HTML or of HTTP.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise, takewhile
from typing import Literal, TypeAlias, cast

from holdfast.apps.serving import page_cursor
from holdfast.apps.viewer.message_values import MAX_PART_CHARS, MessageValue, PartValue, message_value, part_values
from holdfast.apps.viewer.request_comparison import (
    CacheBreak,
    DiffRow,
    RequestSide,
    cache_break,
    diff_rows,
    receipt_lines,
)
from holdfast.apps.viewer.session_index import (
    ContextPoint,
    IndexedRequest,
    LoadedMessage,
    LogMark,
    PartTokens,
    SessionIndex,
    SessionIndexes,
)
from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.spans import format_positions, position_ranges
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.history import History
from holdfast.core.history.message_cache import MessageCache
from holdfast.core.planning.change_receipt import ChangeReceipt
from holdfast.core.planning.situation import Prices
from holdfast.core.recall.references import MAX_REFERENCE_DIGITS
from holdfast.counters.models import find_model, prices_of
from holdfast.errors import HoldfastError, MalformedInputError, NotInMemoryError, UnknownSessionError
from holdfast.session.heavy_work import are_long, plan_in_thread
from holdfast.session.log.sent_body import SentBody
from holdfast.session.request import encode_extras, payload_hash
from holdfast.stores.base import JsonRecord, SessionInfo, session_info
from holdfast.text import clip_to_line
from holdfast.wire.formats import format_named

MESSAGES_PER_PAGE, SESSIONS_PER_PAGE, MAX_HITS = 60, 50, 30
MAX_FOREIGN_HITS = 500
"""How many hits are looked through for those of a reader who sees some sessions only."""
MAX_CONTEXT_POINTS = 800
LIST_WAIT_SECONDS, PAGE_WAIT_SECONDS = 0.15, 0.12
"""How long a page waits for a log that is being read for the first time."""
MAX_EXCERPT_CHARS = 220
MAX_BODY_BYTES = 20_000
"""How much of a request's bytes a page shows; its own address has all of them."""
MAX_SOURCES_PER_LINE, MAX_LINES_PER_MESSAGE = 12, 6

SentKind: TypeAlias = Literal[
    "same", "shortened", "text_only", "compacted", "rewound", "cleared", "left_out", "elsewhere", "later", "unknown"
]
"""What became of a message on its way to the model."""


class UnknownPageError(HoldfastError):
    """Raised when a session has no such message, request or change. Follow a link of the session's page."""

    def __init__(self, what: str, session: str) -> None:
        super().__init__(f"session {session!r} has no {what}")


# Values.


@dataclass(frozen=True, slots=True)
class SentValue:
    """What the model is sent in the place of a message."""

    kind: SentKind
    change: int = 0
    """The number of the compaction that replaces it."""
    parts: tuple[PartValue, ...] = ()
    """The shorter form."""
    lines: tuple[str, ...] = ()
    """The lines of the summary that name the message as their source."""


@dataclass(frozen=True, slots=True)
class Savings:
    """What changes of context kept out of the requests after them, and what they cost."""

    tokens: int
    """The tokens that each request was smaller by, over all of them."""
    requests: int
    dollars: float | None
    """The price of those tokens if they had been read from the provider's cache; None if it is unknown."""
    cost: float | None
    """The price of the summaries, and of what was sent uncached because of the changes; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class ChangeValue:
    """A change of context, with its receipt."""

    number: int
    kind: str
    headline: str
    receipt: tuple[tuple[str, str], ...]
    """What was done: name and text of each line, without costs and reasons."""
    reasons: tuple[str, ...]
    costs: tuple[tuple[float, str], ...]
    """Amounts in dollars, and what they were for."""
    time_ms: int
    position: int
    """How many messages came before it."""
    is_compaction: bool
    is_failed: bool
    is_undone: bool
    undo: str
    undo_steps: int
    tokens_before: int
    tokens_after: int
    by: str
    span: tuple[int, int]
    request_before: int | None
    request_after: int | None
    savings: Savings | None
    """None if the sizes before and after are not known."""


@dataclass(frozen=True, slots=True)
class TranscriptRow:
    """One row of the transcript: a message beside what is sent for it, or an event between two messages."""

    message: MessageValue | None = None
    sent: SentValue | None = None
    change: ChangeValue | None = None
    request: int | None = None
    request_tokens: int = 0
    request_reason: str = ""
    note: str = ""
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """What the list says about a session."""

    id: str
    title: str
    client: str = ""
    model: str = ""
    messages: int | None = None
    requests: int | None = None
    tokens: int | None = None
    """The size of the last request."""
    budget: int | None = None
    dollars: float | None = None
    compactions: int | None = None
    created_ms: int = 0
    updated_ms: int = 0
    records: int = 0
    read_records: int = 0

    @property
    def is_read(self) -> bool:
        """Whether the whole log was read."""
        return self.read_records >= self.records


@dataclass(frozen=True, slots=True)
class SearchResultValue:
    """A message that a search found."""

    session: str
    title: str
    position: int
    speaker: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class SessionListPage:
    """The sessions of a store, or what a search found in them."""

    sessions: tuple[SessionFacts, ...]
    query: str = ""
    hits: tuple[SearchResultValue, ...] = ()
    next: str | None = None


@dataclass(frozen=True, slots=True)
class ContextPlot:
    """The context over time: one point for a request, tokens by part."""

    requests: tuple[int, ...]
    times_ms: tuple[int, ...]
    parts: Mapping[str, tuple[int, ...]]
    budget: tuple[int, ...]
    positions: tuple[int, ...]
    drops: tuple[tuple[int, int], ...]
    """The number of the first request after a change of context, and the number of the change."""
    total: int
    """How many requests there are; a long session shows some of them."""
    is_billed: bool = False
    """Whether no requests are on record, so that each point is an answer with its billed tokens."""


@dataclass(frozen=True, slots=True)
class SessionPage:
    """One session: what was said beside what the model is sent."""

    facts: SessionFacts
    rows: tuple[TranscriptRow, ...]
    first: int
    stop: int
    message_count: int
    at_request: int | None
    changes: tuple[ChangeValue, ...]
    compaction_count: int
    can_undo: bool
    can_redo: bool
    scopes: tuple[tuple[str, int], ...]
    scope: str
    damage: tuple[str, ...]
    system: str
    tools: tuple[str, ...]
    billed: log.Usage
    savings: Savings | None
    """What all changes of context together saved; None if there were none."""


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One line of a summary, with the messages that it comes from."""

    text: str
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangePage:
    """One change of context: before and after, the whole replacement, the sources of its lines, and how to undo it."""

    facts: SessionFacts
    change: ChangeValue
    replacement: tuple[tuple[SummaryLine, ...], ...]
    summary: str
    kept: str
    quoted: str
    put_back: tuple[str, ...]
    left_out: tuple[str, ...]
    sources: Mapping[int, MessageValue]
    change_count: int


@dataclass(frozen=True, slots=True)
class BodyValue:
    """The bytes of a request as they were sent, as text."""

    size: int
    """In bytes."""
    sha256: str
    """The hash that was recorded when they were sent."""
    is_same: bool
    """Whether the bytes that the log gives have that hash."""
    is_scrubbed: bool
    """Whether they differ because a secret was scrubbed from the log."""
    text: str
    hidden_bytes: int
    """How many bytes are not shown here."""


@dataclass(frozen=True, slots=True)
class RequestPage:
    """One request, exactly as it was sent."""

    facts: SessionFacts
    number: int
    count: int
    scope: str
    time_ms: int
    policy: str
    tokens: int
    budget: int
    parts: Mapping[str, int]
    payload_hash: str
    chain_hash: str | None
    is_same: bool
    is_chained: bool
    message_count: int
    first: int
    messages: tuple[MessageValue, ...]
    receipt: tuple[tuple[str, str], ...]
    cache: CacheBreak | None
    diff: tuple[DiffRow, ...]
    system: object
    tools: object
    body: BodyValue | None
    """None if its bytes were not recorded."""
    body_problem: str
    """Why its bytes cannot be put together any more."""
    native: tuple[JsonRecord, ...] = field(default=(), repr=False)
    """The messages as JSON, for programs."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """One message in full, with its JSON."""

    facts: SessionFacts
    message: MessageValue
    native: JsonRecord
    format: str
    count: int


# The list.


class Pages:
    """Makes the pages of one store."""

    def __init__(self, indexes: SessionIndexes, *, prefix: str = "", unnamed_model: str | None = None) -> None:
        """`prefix` limits what is visible to some ids; `unnamed_model` prices sessions whose log names no model."""
        self._indexes = indexes
        self._store = indexes.store
        self.prefix = prefix
        self._unnamed_model = unnamed_model

    async def sessions(self, *, query: str = "", after: str | None = None) -> SessionListPage:
        """Return a page of sessions, newest change first, or those in which a search found something."""
        if query.strip():
            return await self._search(query)
        infos = await self._store.sessions(prefix=self.prefix, before=page_cursor(after), limit=SESSIONS_PER_PAGE + 1)
        page = infos[:SESSIONS_PER_PAGE]
        deadline = LIST_WAIT_SECONDS
        facts: list[SessionFacts] = []
        for info in page:
            index = await self._indexes.get(info.id)
            await index.refresh(wait_seconds=deadline)
            # The first logs that are not read yet use up the time of the page; the others are read meanwhile.
            deadline = deadline if index.is_complete else 0.0
            facts.append(self._facts(index, info))
        last = page[-1] if len(infos) > len(page) else None
        return SessionListPage(tuple(facts), next=f"{last.updated_ms}:{last.id}" if last else None)

    async def _search(self, query: str) -> SessionListPage:
        hits = await self._store.search(query, limit=MAX_FOREIGN_HITS if self.prefix else MAX_HITS)
        found: list[SearchResultValue] = []
        for hit in hits:
            if len(found) >= MAX_HITS or not hit.session.startswith(self.prefix):
                continue
            index = await self._indexes.get(hit.session)
            await index.refresh(wait_seconds=LIST_WAIT_SECONDS, needed_messages=hit.position + 1)
            async with index.lock:
                loaded = (await index.load([hit.position])).get(hit.position)
            if loaded is not None:
                text = "\n".join(part.text for part in part_values(loaded.message.parts, None))
                found.append(
                    SearchResultValue(
                        hit.session.removeprefix(self.prefix),
                        index.title,
                        hit.position,
                        loaded.message.speaker,
                        excerpt_of(text, query),
                    )
                )
        return SessionListPage((), query, tuple(found))

    def _facts(self, index: SessionIndex, info: SessionInfo | None = None) -> SessionFacts:
        model = index.model or self._unnamed_model
        last = index.requests[-1] if index.requests else None
        latest = index.bills.latest
        billed = latest.all_input_tokens if latest else None
        is_read = index.is_complete
        return SessionFacts(
            id=index.session.removeprefix(self.prefix),
            title=(info.name if info else "") or index.title or index.session,
            client=index.client,
            model=model or "",
            messages=index.message_count or None,
            requests=len(index.requests) if is_read else None,
            tokens=last.parts.total if last else billed,
            budget=last.budget if last else None,
            dollars=index.bills.dollars(model) if is_read else None,
            compactions=_compaction_count(index) if is_read else None,
            created_ms=info.created_ms if info else 0,
            updated_ms=info.updated_ms if info else 0,
            records=index.total,
            read_records=index.length,
        )

    # One session.

    async def session(
        self,
        session: str,
        *,
        first: int | None = None,
        at_request: int | None = None,
        scope: str = "",
        max_chars: int | None = MAX_PART_CHARS,
    ) -> SessionPage:
        """Return a page of the transcript; `at_request` compares it with one request instead of the current context.

        Texts longer than `max_chars` are cut.
        """
        start = max(0, first or 0)
        index = await self._open(session, needed_messages=start + MESSAGES_PER_PAGE, wait_seconds=PAGE_WAIT_SECONDS)
        info = await session_info(self._store, session)
        async with index.lock:
            count = index.message_count
            start = min(start, max(0, count - 1)) if first is not None else start
            request = _request_numbered(index, at_request) if at_request else None
            scopes = tuple(sorted(index.history.message_counts.items()))
            positions = list(islice(_positions_from(index, start, scope), MESSAGES_PER_PAGE))
            loaded = await index.load(positions)
            changes = self._changes(index)
            context = self._context(index, request, loaded)

            def make_rows() -> tuple[TranscriptRow, ...]:
                made = self._rows(index, positions, loaded, changes=changes, context=context, max_chars=max_chars)
                return tuple(made)

            is_long = are_long([one.event.native for one in loaded.values()])
            rows = await plan_in_thread(make_rows) if is_long else make_rows()
            state = request.state if request else index.history.session_state
            stop = positions[-1] + 1 if positions else start
            billed = sum(index.bills.usage.values(), log.Usage())
            return SessionPage(
                facts=self._facts(index, info),
                rows=rows,
                first=start,
                stop=stop,
                message_count=count,
                at_request=at_request,
                changes=tuple(changes),
                compaction_count=_compaction_count(index),
                can_undo=index.history.can_undo,
                can_redo=index.history.can_redo,
                scopes=scopes,
                scope=scope,
                damage=tuple(index.damage),
                system=state.system,
                tools=tuple(tool_name(tool) for tool in state.tools),
                billed=billed,
                savings=_sum_of([one.savings for one in changes if one.savings]),
            )

    def _context(
        self, index: SessionIndex, request: IndexedRequest | None, loaded: Mapping[int, LoadedMessage]
    ) -> Context:
        """Return the context to compare with, in which the messages of the page are in memory."""
        context = index.history.context() if request is None else index.history_at(request).context(request.scope)
        cache = MessageCache(context.length)
        for at, one in loaded.items():
            cache.load(Entry(one.message, at), one.event)
        return replace(context, entries=cache)

    def _rows(
        self,
        index: SessionIndex,
        positions: Sequence[int],
        loaded: Mapping[int, LoadedMessage],
        *,
        changes: Sequence[ChangeValue],
        context: Context,
        max_chars: int | None,
    ) -> Iterator[TranscriptRow]:
        """Yield the messages at some positions, with the events before each of them; after the last, also those."""
        numbers = {id(change): number for number, (_, change) in enumerate(index.changes, 1)}
        summary = _lines_by_source(context.state.compactions)
        shown = 0
        for position in positions:
            first = position if position == positions[0] else shown
            yield from _mark_rows(index, index.marks_between(first, position + 1), changes)
            shown = position + 1
            if one := loaded.get(position):
                is_pinned = position in context.pins
                message = message_value(one.message, position, max_chars, one, is_pinned=is_pinned)
                sent = sent_value(context, position, one.message, numbers)
                if sent.kind == "compacted":
                    sent = replace(sent, lines=tuple(summary.get(position, ())))
                yield TranscriptRow(message=message, sent=sent)
            else:
                lost = MessageValue(position, "unknown", (PartValue("other", "this message could not be read"),))
                yield TranscriptRow(message=lost, sent=SentValue("unknown"))
        if shown >= index.message_count:
            yield from _mark_rows(index, index.marks_between(shown, shown + 1), changes)

    # Changes of context.

    def _changes(self, index: SessionIndex) -> list[ChangeValue]:
        known = find_model(index.model or self._unnamed_model)
        prices = prices_of(known) if known else None

        def compute() -> list[ChangeValue]:
            found = zip(index.receipts(), index.changes, index.request_counts(), strict=True)
            return [
                change_value(number, receipt, mark, index, savings_of(receipt, count, prices))
                for number, (receipt, (mark, _), count) in enumerate(found, 1)
            ]

        return index.remember("changes", compute)

    async def change(self, session: str, number: int) -> ChangePage:
        """Return one change of context, with the sources of each line of its summary."""
        index = await self._open(session)
        info = await session_info(self._store, session)
        async with index.lock:
            changes = self._changes(index)
            if not 1 <= number <= len(changes):
                raise UnknownPageError(f"change {number}", session)
            _, event = index.changes[number - 1]
            done = event if isinstance(event, log.CompactionCompleted) else log.CompactionCompleted(success=False)
            texts = done.replacement or ((done.summary.text,) if done.summary.text else ())
            replacement = tuple(tuple(summary_lines(text, index.message_count)) for text in texts)
            wanted = sorted({at for lines in replacement for line in lines for at in line.sources})
            loaded = await index.load(wanted)
            sources = {at: message_value(one.message, at, MAX_PART_CHARS // 4, one) for at, one in loaded.items()}
            return ChangePage(
                facts=self._facts(index, info),
                change=changes[number - 1],
                replacement=replacement,
                summary=done.summary.text,
                kept=format_positions(position_ranges(done.span.kept)),
                quoted=format_positions(position_ranges(sorted(done.quoted))),
                put_back=done.summary.put_back,
                left_out=done.summary.left_out,
                sources=sources,
                change_count=len(changes),
            )

    # One request.

    async def request(self, session: str, number: int, *, first: int = 0, with_native: bool = False) -> RequestPage:
        """Return one request as it was sent, compared with the request before of the same agent."""
        index = await self._open(session)
        info = await session_info(self._store, session)
        async with index.lock:
            request = _request_numbered(index, number)
            event, past, messages = await index.rebuild(request)
            now = _side(index, request, past, messages)
            is_same = payload_hash(now.hashes, encode_extras(now.extras)) == request.payload_hash
            form = format_named(request.format or "openai-chat")
            cache, diff = None, tuple[DiffRow, ...]()
            if request.previous is not None:
                other = _request_numbered(index, request.previous)
                _, earlier, others = await index.rebuild(other)
                before = _side(index, other, earlier, others)
                cache = cache_break(before, now, index.model or self._unnamed_model)
                diff = diff_rows(before, now, form.decode)
            body, problem = await _body_value(index, request, None if with_native else MAX_BODY_BYTES)
            shown = range(max(0, first), min(len(messages), max(0, first) + MESSAGES_PER_PAGE))
            values = tuple(
                message_value(form.decode(messages[at][1], at), messages[at][0], MAX_PART_CHARS) for at in shown
            )
            return RequestPage(
                facts=self._facts(index, info),
                number=number,
                count=len(index.requests),
                scope=request.scope,
                time_ms=request.time_ms,
                policy=event.policy,
                tokens=request.parts.total,
                budget=request.budget,
                parts=request.parts._asdict(),
                payload_hash=request.payload_hash,
                chain_hash=event.chain_hash,
                is_same=is_same,
                is_chained=request.is_chained,
                message_count=len(messages),
                first=max(0, first),
                messages=values,
                receipt=tuple(receipt_lines(event, past, messages)),
                cache=cache,
                diff=diff,
                system=now.extras.system or None,
                tools=[*map(dict, now.extras.tools)] or None,
                body=body,
                body_problem=problem,
                native=tuple(message for _, message in messages) if with_native else (),
            )

    async def body(self, session: str, number: int) -> SentBody:
        """Return the bytes of a request as they were sent."""
        index = await self._open(session)
        async with index.lock:
            found = await index.sent_body(_request_numbered(index, number))
        if found is None:
            raise UnknownPageError(f"bytes of request {number}: whoever sent it did not hand them over", session)
        return found

    async def message(self, session: str, position: int) -> MessagePage:
        """Return one message in full."""
        index = await self._open(session, needed_messages=position + 1, wait_seconds=PAGE_WAIT_SECONDS)
        info = await session_info(self._store, session)
        async with index.lock:
            loaded = (await index.load([position])).get(position)
            if loaded is None:
                raise UnknownPageError(f"message #{position}", session)
            is_pinned = position in index.history.session_state.pins
            show = partial(message_value, loaded.message, position, None, loaded, is_pinned=is_pinned)
            value = await plan_in_thread(show) if are_long([loaded.event.native]) else show()
            return MessagePage(
                self._facts(index, info), value, loaded.event.native, loaded.event.format, index.message_count
            )

    async def plot(self, session: str, *, wait_seconds: float | None = PAGE_WAIT_SECONDS) -> ContextPlot | None:
        """Return the context of the main agent over time; None while the log is being read."""
        index = await self._open(session, wait_seconds=wait_seconds)
        if not index.is_complete:
            return None
        async with index.lock:
            return index.remember("plot", lambda: context_plot(index))

    async def facts(self, session: str) -> SessionFacts:
        """Return what the list says about a session."""
        return self._facts(await self._open(session), await session_info(self._store, session))

    async def list_state(self) -> str:
        """Return a text that changes with what the list of sessions shows."""
        infos = await self._store.sessions(prefix=self.prefix, limit=SESSIONS_PER_PAGE)
        newest = max((info.updated_ms for info in infos), default=0)
        return f"{newest}-{sum(self._indexes.length_read(info.id) for info in infos)}"

    async def session_state(self, session: str) -> str:
        """Return a text that changes with what the pages of a session show."""
        return f"{await self._store.length(session)}-{self._indexes.length_read(session)}"

    async def last_budget(self, session: str) -> int | None:
        """Return the budget of the last request."""
        index = await self._open(session)
        return index.requests[-1].budget or None if index.requests else None

    async def check_exists(self, session: str) -> None:
        """Raise `UnknownSessionError` unless there is such a session, and this reader may see it."""
        if not session.startswith(self.prefix) or not await self._store.length(session):
            raise UnknownSessionError(session.removeprefix(self.prefix))

    async def _open(
        self, session: str, *, needed_messages: int | None = None, wait_seconds: float | None = None
    ) -> SessionIndex:
        """Return the index of a session that exists.

        Waits until its log was read, or for `wait_seconds` at most; with `needed_messages`, until so many are known.
        """
        await self.check_exists(session)
        index = await self._indexes.get(session)
        await index.refresh(wait_seconds=wait_seconds, needed_messages=needed_messages)
        while needed_messages is not None and not index.is_complete and index.message_count < needed_messages:
            await index.refresh(wait_seconds=PAGE_WAIT_SECONDS / 8)
        return index


# How values are made.


def sent_value(context: Context, position: int, message: Message, numbers: Mapping[int, int]) -> SentValue:
    """Return what a context sends in the place of a message; `numbers` are those of changes, by their identity."""
    state = context.state
    if position >= context.length or context.version.is_hidden(position):
        return SentValue("later" if position >= context.length else "rewound")
    if position < state.cleared_at:
        return SentValue("cleared")
    compaction = _compaction_of(context, position, message)
    if compaction is not None or state.is_left_out(position):
        is_client = compaction is None or compaction.trigger == "client"
        return SentValue("left_out" if is_client else "compacted", numbers.get(id(compaction), 0))
    try:
        sent = context.visible_entry(position).message if context.is_in_view(position) else None
    except NotInMemoryError:
        return SentValue("unknown")
    if sent is None:
        return SentValue("elsewhere")
    if position < state.text_only_before:
        return SentValue("text_only")
    return SentValue("same") if sent == message else SentValue("shortened", 0, part_values(sent.parts, MAX_PART_CHARS))


def _compaction_of(context: Context, position: int, message: Message) -> log.CompactionCompleted | None:
    """Return the compaction that replaces a message."""
    compactions = context.state.compactions
    number = bisect_right(compactions, position, key=lambda one: one.span.start) - 1
    if number < 0 or position >= compactions[number].span.stop:
        return None
    is_kept = position in compactions[number].span.kept or message.role == "system" or position in context.pins
    return None if is_kept else compactions[number]


def _lines_by_source(compactions: Sequence[log.CompactionCompleted]) -> dict[int, list[str]]:
    """Return the lines of summaries, by the messages that they name."""
    found: dict[int, list[str]] = {}
    for text in (text for compaction in compactions for text in compaction.replacement):
        for line in summary_lines(text, compactions[-1].span.stop):
            for at in line.sources:
                if len(lines := found.setdefault(at, [])) < MAX_LINES_PER_MESSAGE:
                    lines.append(clip_to_line(line.text, MAX_EXCERPT_CHARS))
    return found


def _mark_rows(
    index: SessionIndex, marks: Sequence[LogMark], changes: Sequence[ChangeValue]
) -> Iterator[TranscriptRow]:
    """Yield the events between two messages."""
    for mark in marks:
        if mark.kind == log.RequestPrepared.KIND:
            request = index.requests[mark.number - 1]
            yield TranscriptRow(
                request=mark.number,
                request_tokens=request.parts.total,
                request_reason=request.break_reason,
                time_ms=mark.time_ms,
            )
        elif mark.number:
            yield TranscriptRow(change=changes[mark.number - 1], time_ms=mark.time_ms)
        else:
            yield TranscriptRow(note=mark.text, time_ms=mark.time_ms)


def _positions_from(index: SessionIndex, start: int, scope: str) -> Iterator[int]:
    """Yield the positions from `start` on of one agent's messages, or of all."""
    scopes = index.history.message_scopes
    return (at for at in range(start, index.message_count) if not scope or scopes[at] == scope)


def _side(
    index: SessionIndex, request: IndexedRequest, past: History, messages: Sequence[tuple[int | None, JsonRecord]]
) -> RequestSide:
    measured = [index.measure(position, message) for position, message in messages]
    hashes, sizes = [digest for digest, _ in measured], [size for _, size in measured]
    return RequestSide(request, past.session_state.extras_for(request.scope), messages, hashes, sizes)


async def _body_value(
    index: SessionIndex, request: IndexedRequest, max_bytes: int | None
) -> tuple[BodyValue | None, str]:
    """Return the bytes of a request for display, or why they are not there any more."""
    try:
        body = await index.sent_body(request)
    except MalformedInputError as error:
        return None, str(error)
    if body is None:
        return None, ""
    shown = body.content[:max_bytes]
    return BodyValue(
        size=len(body.content),
        sha256=body.sha256,
        is_same=body.is_same,
        is_scrubbed=body.is_scrubbed,
        text=shown.decode(errors="replace"),
        hidden_bytes=len(body.content) - len(shown),
    ), ""


def savings_of(receipt: ChangeReceipt, requests: int, prices: Prices | None) -> Savings | None:
    """Return what a change of context saved in the requests for which it was in force."""
    is_shortening = not isinstance(receipt.event, log.Rewound | log.ContextCleared)
    if not (is_shortening and receipt.tokens_after and receipt.tokens_before > receipt.tokens_after):
        return None
    tokens = (receipt.tokens_before - receipt.tokens_after) * requests
    costs = [one for one in (receipt.summary.dollars, receipt.effect.rewrite_dollars) if one is not None]
    return Savings(tokens, requests, prices.dollars_to_read(tokens) if prices else None, sum(costs) if costs else None)


def _sum_of(savings: Sequence[Savings]) -> Savings | None:
    """Return what several changes saved together; the requests are those of the first of them."""
    if not savings:
        return None
    dollars = [one.dollars for one in savings if one.dollars is not None]
    costs = [one.cost for one in savings if one.cost is not None]
    return Savings(
        sum(one.tokens for one in savings),
        max(one.requests for one in savings),
        sum(dollars) if len(dollars) == len(savings) else None,
        sum(costs) if costs else None,
    )


def change_value(
    number: int, receipt: ChangeReceipt, mark: LogMark, index: SessionIndex, savings: Savings | None
) -> ChangeValue:
    """Return a change of context for display."""
    done = receipt.compaction
    headline, *lines = str(receipt).split("\n")
    costs = (receipt.summary.dollars, "for the summary"), (receipt.effect.rewrite_dollars, "for uncached input")
    named = [(name, text.strip()) for name, _, text in (line.partition("  ") for line in lines) if text]
    after = bisect_right(index.requests, mark.log_position, key=lambda one: one.log_position)
    span = (done.span.start, done.span.stop) if done else (receipt.length, receipt.length)
    if isinstance(receipt.event, log.Rewound):
        span = (receipt.event.to, receipt.length)
    return ChangeValue(
        number=number,
        kind=receipt.event.KIND,
        headline=headline,
        receipt=tuple((name, text) for name, text in named if name not in {"because", "cost"}),
        reasons=tuple(receipt.reason.split("; ")) if receipt.reason else (),
        costs=tuple((amount, what) for amount, what in costs if amount),
        time_ms=mark.time_ms,
        position=mark.length,
        is_compaction=done is not None,
        is_failed=done is not None and not done.success,
        is_undone=receipt.is_undone,
        undo=receipt.undo,
        undo_steps=receipt.undo_steps,
        tokens_before=receipt.tokens_before,
        tokens_after=receipt.tokens_after,
        by=(done.summary.by_model or "rule") if done else "",
        span=span,
        request_before=index.requests[after - 1].number if after else None,
        request_after=index.requests[after].number if after < len(index.requests) else None,
        savings=savings,
    )


def summary_lines(text: str, message_count: int) -> Iterator[SummaryLine]:
    """Yield the lines of a summary, each with the positions that it names as `#12` or `#12–#20`."""
    for line in text.split("\n"):
        found = dict.fromkeys(at for at in _named_positions(line) if at < message_count)
        yield SummaryLine(line, tuple(found)[:MAX_SOURCES_PER_LINE])


def _named_positions(line: str) -> Iterator[int]:
    for piece in line.split("#")[1:]:
        digits = "".join(takewhile(str.isdecimal, piece[: MAX_REFERENCE_DIGITS + 1]))
        if digits and digits.isascii() and len(digits) <= MAX_REFERENCE_DIGITS:
            yield int(digits)


def context_plot(index: SessionIndex, *, max_points: int = MAX_CONTEXT_POINTS) -> ContextPlot:
    """Return the context of the main agent over time; of many requests, those that matter to the shape."""
    points = index.context_points()
    shown = _thinned(points, max_points)
    drops: list[tuple[int, int]] = []
    for before, point in pairwise(shown):
        drops += [(point.number, number) for number in range(before.change_count + 1, point.change_count + 1)][-1:]
    known = find_model(index.model)
    window = known.max_input_tokens if known else 0
    return ContextPlot(
        requests=tuple(point.number for point in shown),
        times_ms=tuple(point.time_ms for point in shown),
        parts={name: tuple(getattr(point.parts, name) for point in shown) for name in PartTokens._fields},
        budget=tuple(point.budget or window for point in shown),
        positions=tuple(max(0, point.length - 1) for point in shown),
        drops=tuple(drops),
        total=len(points),
        is_billed=bool(points) and not index.requests,
    )


def _thinned(points: list[ContextPoint], max_points: int) -> list[ContextPoint]:
    """Return some of many points: of each stretch the largest and the smallest, so that drops stay."""
    if len(points) <= max_points:
        return points
    width = len(points) * 2 / max_points
    kept: dict[int, ContextPoint] = {}
    for bucket in range(max_points // 2):
        part = points[int(bucket * width) : int((bucket + 1) * width)]
        for point in (min(part, key=_size_of), max(part, key=_size_of)) if part else ():
            kept[point.number] = point
    return [kept[number] for number in sorted(kept)]


def _size_of(point: ContextPoint) -> int:
    return point.parts.total


def excerpt_of(text: str, query: str) -> str:
    """Return the part of a text around the first word of a query that it contains."""
    folded = text.lower()
    places = [at for word in query.lower().split() if (at := folded.find(word)) >= 0]
    start = max(0, min(places, default=0) - MAX_EXCERPT_CHARS // 3)
    piece = clip_to_line(text[start : start + 2 * MAX_EXCERPT_CHARS], MAX_EXCERPT_CHARS)
    return f"…{piece}" if start else piece


def tool_name(tool: JsonRecord) -> str:
    """Return the name of a tool in any provider's form."""
    function = tool.get("function")
    named = cast("JsonRecord", function) if isinstance(function, Mapping) else tool
    return str(named.get("name", tool.get("type", "tool")))


def _compaction_count(index: SessionIndex) -> int:
    return sum(isinstance(event, log.CompactionCompleted) and event.success for _, event in index.changes)


def _request_numbered(index: SessionIndex, number: int) -> IndexedRequest:
    if not 1 <= number <= len(index.requests):
        raise UnknownPageError(f"request {number}", index.session)
    return index.requests[number - 1]
