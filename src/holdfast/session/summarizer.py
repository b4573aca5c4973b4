"""A span becomes a summary: every word of it is shown to a model, and what it wrote is judged.

Where the conversation's own model writes, it is asked behind the conversation's last request, which its provider holds
in a cache. Else, and where that does not work out, the span goes to it as data, in pieces that fit.
What is to be summarised is taken out of the history at once, as values: the conversation goes on meanwhile. What looks
like a key is taken out of it, and out of what comes back, unless somebody wants it otherwise; the log has it still.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from holdfast.core.conversation.json_values import cleaned_text
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.deep import FoldDeep
from holdfast.core.planning.steps import MAX_SUMMARY_TOKENS, FoldSpan, Outlook, Summary
from holdfast.core.planning.summary.asking import asked, fixed_tokens
from holdfast.core.planning.summary.checking import verdict
from holdfast.core.planning.summary.cleaning import cleaned
from holdfast.core.planning.summary.material import MIN_PIECE_TOKENS, Hide, newest, pieces
from holdfast.core.planning.summary.survival import Fact, facts_of, facts_without, lines_of
from holdfast.counters.models import dollars_of, model_named
from holdfast.errors import CompactionFailedError, ModelOverflowError, ModelRefusedError
from holdfast.models.base import Answer, Ask, Writer
from holdfast.models.patience import ATTEMPTS, TIMEOUT_SECONDS, patiently
from holdfast.redaction import Redactor, redacted
from holdfast.session.prefix import Question, Sent

UNKNOWN_WINDOW = 32_000
"""What is sent at a time to a writer whose window nobody knows."""
MAX_PIECE_BYTES = 400_000
MIN_ROOM_TOKENS = 600
MIN_OUTPUT_TOKENS, MIN_WORDS = 256, 50
MAX_CHARS_PER_TOKEN = 12
"""An answer with more characters than this for each token it may have is no answer."""
TAIL_TOKENS, SYSTEM_TOKENS = 1_500, 1_000
"""How much of what stays, and of the system text, a summariser is shown."""
PUT_BACK_SHARE, MIN_PUT_BACK = 0.25, 600
"""For what a summary lost: of what it may take, and at least so many tokens, for the user's rules must fit."""
SHRINK = 0.5
"""After a writer's refusal as too long, its pieces get this much smaller."""
MAX_SHRINKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a summary is waited for."""

    timeout_seconds: float = TIMEOUT_SECONDS
    """For each call."""
    attempts: int = ATTEMPTS
    deadline_seconds: float = 300.0
    """For all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that a summary is made of and judged by."""

    step: FoldSpan
    entries: tuple[Entry, ...]
    previous: str
    plan: str
    todos: str
    skills: tuple[str, ...]
    focus: str
    tail: str
    system_context: str
    counter: Counter
    replaced_tokens: int
    max_tokens: int
    """What the summary may take."""
    facts: tuple[Fact, ...] | None
    """What must survive; None where the policy takes a summary as it is."""
    beside: tuple[str, ...] = ()
    hide: Hide = str
    """Takes out what a summariser may not see, nor write."""
    redactor: Redactor | None = None
    """Does so for what it is shown, and counts; None where nobody asks how many there were."""
    sent: Sent | None = None
    """The last request, where the policy lets a summary be asked for behind it."""

    @property
    def tell(self) -> Hide:
        """What a text goes through that the summariser is shown."""
        return self.redactor or self.hide


def job_of(
    step: FoldSpan,
    outlook: Outlook,
    policy: Policy,
    focus: str = "",
    *,
    redacts: bool = False,
    sent: Sent | None = None,
) -> Job:
    """Return the job of summarising a span as it stands; `sent` is the last request."""
    redactor, hide = (Redactor(), redacted) if redacts else (None, str)
    tell: Hide = redactor or str
    history, context, scope = outlook.history, outlook.shown.context, outlook.situation.scope
    facts, before = history.facts_for(scope), history.facts.summary_within(step.start, step.stop, scope)
    first = max(before.stop if before else step.start, context.standing.cleared_at)
    history.entries.need(range(first, min(step.stop, context.length)))
    rule = policy.fold if isinstance(policy.fold, FoldDeep) else None
    return Job(
        step=step,
        entries=tuple(context.between(first, step.stop)),
        previous=tell(before.text if before else _earlier(outlook, step)),
        plan=tell(facts.plan),
        todos=tell(facts.todos),
        skills=tuple(map(tell, facts.skills)),
        focus=tell(focus),
        tail=_tail(outlook, step, tell),
        system_context=_clipped(tell(history.facts.beside(scope).system), SYSTEM_TOKENS, outlook.situation.counter),
        counter=outlook.situation.counter,
        replaced_tokens=max(2, outlook.shown.tokens - _behind(outlook, step)),
        max_tokens=rule.allowance(outlook, step) if rule else MAX_SUMMARY_TOKENS,
        facts=tuple(facts_without(facts_of(history.ledger(scope, step.stop)), hide)) if rule else None,
        beside=tuple(map(hide, rule.beside(outlook, step))) if rule else (),
        hide=hide,
        redactor=redactor,
        sent=sent if policy.reuses_prefix and sent and sent.changes == history.changes else None,
    )


async def summarised(job: Job, writer: Writer, patience: Patience) -> Summary:
    """Return the summary of a job; raises a `ModelError`, or `CompactionFailedError` where it may not count."""
    began = time.monotonic()
    found, spent = await _behind_the_request(job, writer, patience)
    if found is None:
        answer, more = await _shrinking(job, writer, patience)
        found, spent = _judged(job, answer), _sum(more, spent)
    duration_ms = int((time.monotonic() - began) * 1000)
    dollars = dollars_of(spent, found.by_model or writer.name)
    taken = job.redactor.taken if job.redactor else ()
    return replace(found, usage=spent, duration_ms=duration_ms, dollars=dollars, redacted=taken)


async def _behind_the_request(job: Job, writer: Writer, patience: Patience) -> tuple[Summary | None, log.Usage]:
    """Return the summary as the conversation's own model writes it behind the last request, and what was spent.

    There is none where it cannot be asked so, says that it is too long, or writes what does not do as a summary.
    """
    ask, spent = _question(job, writer), log.Usage()
    try:
        if ask is not None:
            answer = await _answered(job, writer, ask, patience)
            spent = answer.usage or spent
            return _judged(job, answer), spent
    except (ModelOverflowError, ModelRefusedError, CompactionFailedError) as error:
        if isinstance(error, ModelRefusedError) and error.is_passing:
            raise
    return None, spent


def _question(job: Job, writer: Writer) -> Ask | None:
    if job.sent is None:
        return None
    window = _window(writer) or job.sent.window
    max_output = _max_output(job, window)
    question = Question(
        entries=job.entries,
        previous=job.previous,
        plan=job.plan,
        todos=job.todos,
        skills=job.skills,
        focus=job.focus,
        max_words=_max_words(job, max_output),
        max_output=max_output,
        counter=job.counter,
        max_bytes=MAX_PIECE_BYTES,
        hide=job.hide,
        tell=job.tell,
    )
    return question.behind(job.sent, writer, window)


def _window(writer: Writer) -> int | None:
    """Return the largest input of a writer: as it says, else as the table of models does."""
    known = model_named(writer.name) if writer.window is None else None
    return known.max_input_tokens if known else writer.window


def _max_output(job: Job, window: int) -> int:
    return min(MAX_SUMMARY_TOKENS, max(MIN_OUTPUT_TOKENS, 2 * job.max_tokens), max(64, window // 4))


def _max_words(job: Job, max_output: int) -> int:
    return max(MIN_WORDS, min(job.max_tokens, max_output) // 2)


async def _answered(job: Job, writer: Writer, ask: Ask, patience: Patience) -> Answer:
    """Return what a writer wrote, without what it may not write; refused where it is nothing, or has no end."""
    answer = await patiently(writer, ask, timeout_seconds=patience.timeout_seconds, attempts=patience.attempts)
    if len(answer.text) > MAX_CHARS_PER_TOKEN * ask.max_output_tokens:
        raise CompactionFailedError("the summary is far longer than was asked for")
    if not cleaned(answer.text, range(job.step.stop)):
        raise CompactionFailedError("the summary is empty")
    return replace(answer, text=job.hide(cleaned_text(answer.text)))


async def _shrinking(job: Job, writer: Writer, patience: Patience) -> tuple[Answer, log.Usage]:
    """Return the answer, with smaller pieces each time a writer says that one was too long for it."""
    window, attempt = _window(writer) or UNKNOWN_WINDOW, 0
    while True:
        try:
            return await _rolled(job, writer, patience, window)
        except ModelOverflowError as error:
            attempt += 1
            if attempt > MAX_SHRINKS:
                raise
            window = int(min(window, error.limit or window) * SHRINK)


async def _rolled(job: Job, writer: Writer, patience: Patience, window: int) -> tuple[Answer, log.Usage]:
    """Return the last answer and what all of them cost: each is shown to the next as the summary so far."""
    max_output = _max_output(job, window)
    around = _around(job)
    room = window - max_output - fixed_tokens(job.counter, previous_tokens=max_output, **around)
    if room < MIN_ROOM_TOKENS:
        # A small model is shown less around the messages, and all of the messages.
        around = _Around(focus=job.focus)
        room = window - max_output - fixed_tokens(job.counter, previous_tokens=max_output, **around)
    parts = pieces(job.entries, job.counter, max(MIN_PIECE_TOKENS, room), MAX_PIECE_BYTES, job.tell) or [""]
    previous, spent = job.previous, log.Usage()
    answer = Answer(text="", model=writer.name)
    for number, part in enumerate(parts, start=1):
        max_words = _max_words(job, max_output)
        call = asked(part, previous=previous, number=number, of=len(parts), max_words=max_words, **around)
        ask = Ask(system=call.system, text=call.text, max_output_tokens=max_output)
        answer = await _answered(job, writer, ask, patience)
        spent, previous = _sum(spent, answer.usage), cleaned(answer.text, range(job.step.stop))
    return answer, spent


class _Around(TypedDict, total=False):
    """What a summariser is shown besides the messages."""

    plan: str
    todos: str
    skills: Sequence[str]
    focus: str
    tail: str
    system_context: str


def _around(job: Job) -> _Around:
    return _Around(
        plan=job.plan,
        todos=job.todos,
        skills=job.skills,
        focus=job.focus,
        tail=job.tail,
        system_context=job.system_context,
    )


def _judged(job: Job, answer: Answer) -> Summary:
    """Return the summary that counts, with its score and what it leaves out, or refuse it by name."""
    if job.facts is None:
        if answer.is_cut_off:
            raise CompactionFailedError("the summary was cut off")
        return Summary(answer.text.strip(), by_model=answer.model, request_id=answer.request_id)
    found = verdict(
        answer.text,
        is_cut_off=answer.is_cut_off,
        span=range(job.step.stop),
        facts=job.facts,
        beside=job.beside,
        counter=job.counter,
        replaced_tokens=job.replaced_tokens,
        put_back_tokens=max(MIN_PUT_BACK, int(job.max_tokens * PUT_BACK_SHARE)),
    )
    if not found.is_accepted:
        raise CompactionFailedError(f"the summary is not good enough: {', '.join(found.problems)}")
    return Summary(
        found.whole,
        by_model=answer.model,
        score=found.final_score,
        request_id=answer.request_id,
        put_back=lines_of(found.given_back),
        left_out=lines_of(found.lost),
    )


def _sum(one: log.Usage, other: log.Usage | None) -> log.Usage:
    if other is None:
        return one
    return replace(
        one,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cache_read_tokens=one.cache_read_tokens + other.cache_read_tokens,
        cache_write_tokens=one.cache_write_tokens + other.cache_write_tokens,
    )


def _earlier(outlook: Outlook, step: FoldSpan) -> str:
    """Return the summary that stands in a span already: it is updated, and not summarised again."""
    folds = [
        fold
        for fold in outlook.shown.context.standing.folds
        if fold.start >= step.start and fold.stop <= step.stop and fold.by_model
    ]
    return folds[-1].summary_content if folds else ""


def _behind(outlook: Outlook, step: FoldSpan) -> int:
    shown = outlook.shown
    return sum(
        size
        for entry, size in zip(shown.entries, shown.sizes(), strict=True)
        if entry.position is not None and (entry.position >= step.stop or entry.position in step.kept)
    )


def _tail(outlook: Outlook, step: FoldSpan, hide: Hide) -> str:
    """Return the newest of what stays behind a fold, as text."""
    context = outlook.shown.context
    behind = list(context.between(step.stop, context.length))
    return newest(behind, outlook.situation.counter, TAIL_TOKENS, MAX_PIECE_BYTES, hide)


def _clipped(text: str, tokens: int, counter: Counter) -> str:
    """Return the beginning of a text in about so many tokens."""
    count = counter.count(text) if text else 0
    return text if count <= tokens else text[: len(text) * tokens // count]
