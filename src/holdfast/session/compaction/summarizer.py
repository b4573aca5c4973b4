"""A span becomes a summary: every word of it is shown to a model, and what it wrote is judged.

Where the conversation's own model writes, it is asked behind the conversation's last request, which its provider holds
in a cache. Else, and where that does not work out, the span goes to it as data, in pieces that fit.
What is to be summarised is taken out of the history at once, as values: the conversation goes on meanwhile. What looks
like a key is taken out of it, and out of what comes back, unless somebody wants it otherwise; the log has it still.

Asking for a summary behind the conversation's own last request, so that the provider's prompt cache pays.

Possible where the conversation's own model writes, the writer speaks its format, nothing of the context has changed
since, no secret stands in what was sent, and the question still fits. What of the span the request does not show, or
not whole, goes with the question: all of a span reaches a summariser, whichever way it is asked.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from holdfast.core.conversation.json_values import dump_json, replace_surrogates
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history import events as log
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.steps import MAX_SUMMARY_TOKENS, CompactSpan, PlanInput, Summary
from holdfast.core.planning.summary.check import check_summary
from holdfast.core.planning.summary.chunks import (
    MIN_CHUNK_TOKENS,
    RedactText,
    newest_as_text,
    position_index,
    split_into_chunks,
)
from holdfast.core.planning.summary.must_keep import MustKeep, must_keep_lines, must_keep_of, must_keep_redacted
from holdfast.core.planning.summary.prompt import chunk_overhead_tokens, chunk_prompt, prefix_prompt
from holdfast.core.planning.summary.sanitize import sanitize_summary
from holdfast.counters.models import dollars_of, find_model
from holdfast.errors import CompactionFailedError, ModelOverflowError, ModelRefusedError
from holdfast.models.base import CachedPrefix, ModelReply, Summarizer, SummaryPrompt, supports_prefix
from holdfast.models.retry import MAX_ATTEMPTS, REPLY_TIMEOUT_SECONDS, with_retries
from holdfast.redaction import Redactor, redact_text

MAX_POSITIONS_TOKENS = 1_500
"""What an index of positions may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """The last request of an agent, as it went out."""

    prefix: CachedPrefix
    model: str | None
    """Who was asked."""
    tokens: int
    """What it costs, as the provider counts."""
    window: int
    """The model's, or what the policy takes for that of a model nobody knows."""
    whole_positions: frozenset[int]
    """The positions of the messages that it shows as they were said."""
    change_count: int
    """How often the context had changed by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixQuestion:
    """What is asked behind it."""

    entries: tuple[Entry, ...]
    """The messages to summarise."""
    previous: str
    plan: str
    todos: str
    skills: tuple[str, ...]
    focus: str
    max_words: int
    max_output_tokens: int
    counter: Counter
    max_bytes: int
    redact: RedactText
    redact_and_count: RedactText
    """Hides as well, and counts what it takes out of what is shown."""

    def prompt_after(self, last_request: SentRequest, summarizer: Summarizer, window: int) -> SummaryPrompt | None:
        """Return the ask that a writer can be given behind a request, or None where it has to be given the data."""
        is_own = summarizer.name == last_request.model and supports_prefix(summarizer, last_request.prefix.format)
        if not self.entries or not is_own or self._has_secret(last_request.prefix):
            return None
        room = window - last_request.tokens - self.max_output_tokens
        missing = self._missing_text(last_request, room)
        if missing is None:
            return None
        asked = prefix_prompt(
            range(self.entries[0].position or 0, (self.entries[-1].position or 0) + 1),
            position_index(
                self._whole_entries(last_request), self.counter, MAX_POSITIONS_TOKENS, self.redact_and_count
            ),
            missing=missing,
            previous=self.previous,
            plan=self.plan,
            todos=self.todos,
            skills=self.skills,
            focus=self.focus,
            max_words=self.max_words,
        )
        if self.counter.count(asked.system) + self.counter.count(asked.text) > room:
            return None
        return SummaryPrompt(
            system=asked.system, text=asked.text, max_output_tokens=self.max_output_tokens, prefix=last_request.prefix
        )

    def _whole_entries(self, last_request: SentRequest) -> list[Entry]:
        return [entry for entry in self.entries if entry.position in last_request.whole_positions]

    def _missing_text(self, last_request: SentRequest, room: int) -> str | None:
        """Return what the request does not show whole, as data; None where it is too much for one question."""
        missing = [entry for entry in self.entries if entry.position not in last_request.whole_positions]
        if not missing:
            return ""
        if room < MIN_CHUNK_TOKENS or len(missing) == len(self.entries):
            return None
        parts = split_into_chunks(missing, self.counter, room, self.max_bytes, self.redact_and_count)
        return "".join(parts) if len(parts) <= 1 else None

    def _has_secret(self, prefix: CachedPrefix) -> bool:
        text = dump_json([prefix.system, prefix.tools, list(prefix.messages)])
        return self.redact(text) != text


DEFAULT_SUMMARIZER_WINDOW = 32_000
"""What is sent at a time to a writer whose window nobody knows."""
MAX_PIECE_BYTES = 400_000
MIN_ROOM_TOKENS = 600
MIN_OUTPUT_TOKENS, MIN_WORDS = 256, 50
MAX_SUMMARY_CHARS_PER_TOKEN = 12
"""An answer with more characters than this for each token it may have is no answer."""
MAX_TAIL_TOKENS, MAX_SYSTEM_TOKENS = 1_500, 1_000
"""How much of what stays, and of the system text, a summariser is shown."""
RESTORED_SHARE, MIN_RESTORED_TOKENS = 0.25, 600
"""For what a summary lost: of what it may take, and at least so many tokens, for the user's rules must fit."""
SHRINK_FACTOR = 0.5
"""After a writer's refusal as too long, its pieces get this much smaller."""
MAX_SHRINKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How long a summary is waited for."""

    timeout_seconds: float = REPLY_TIMEOUT_SECONDS
    """For each call."""
    attempts: int = MAX_ATTEMPTS
    deadline_seconds: float = 300.0
    """For all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryJob:
    """All that a summary is made of and judged by."""

    step: CompactSpan
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
    must_keep: tuple[MustKeep, ...] | None
    """What must survive; None where the policy takes a summary as it is."""
    adjacent_texts: tuple[str, ...] = ()
    redact: RedactText = str
    """Takes out what a summariser may not see, nor write."""
    redactor: Redactor | None = None
    """Does so for what it is shown, and counts; None where nobody asks how many there were."""
    last_request: SentRequest | None = None
    """The last request, where the policy lets a summary be asked for behind it."""

    @property
    def redact_and_count(self) -> RedactText:
        """What a text goes through that the summariser is shown."""
        return self.redactor or self.redact


def summary_job(
    step: CompactSpan,
    outlook: PlanInput,
    policy: Policy,
    focus: str = "",
    *,
    redacts: bool = False,
    last_request: SentRequest | None = None,
) -> SummaryJob:
    """Return the job of summarising a span as it stands; `sent` is the last request."""
    redactor, hide = (Redactor(), redact_text) if redacts else (None, str)
    tell: RedactText = redactor or str
    history, context, scope = outlook.history, outlook.projection.context, outlook.situation.scope
    facts, before = history.session_state_for(scope), history.session_state.summary_within(step.start, step.stop, scope)
    first = max(before.stop if before else step.start, context.state.cleared_at)
    history.entries.require(range(first, min(step.stop, context.length)))
    rule = policy.fold
    return SummaryJob(
        step=step,
        entries=tuple(context.entries_between(first, step.stop)),
        previous=tell(before.text if before else _previous_summary(outlook, step)),
        plan=tell(facts.plan),
        todos=tell(facts.todos),
        skills=tuple(map(tell, facts.skills)),
        focus=tell(focus),
        tail=_tail_text(outlook, step, tell),
        system_context=_clip(
            tell(history.session_state.extras_for(scope).system), MAX_SYSTEM_TOKENS, outlook.situation.counter
        ),
        counter=outlook.situation.counter,
        replaced_tokens=max(2, outlook.projection.tokens - _tokens_after(outlook, step)),
        max_tokens=rule.max_summary_tokens(outlook, step) if rule else MAX_SUMMARY_TOKENS,
        must_keep=tuple(must_keep_redacted(must_keep_of(history.ledger(scope, step.stop)), hide))
        if rule and rule.checks_summary
        else None,
        adjacent_texts=tuple(map(hide, rule.texts_beside_summary(outlook, step))) if rule else (),
        redact=hide,
        redactor=redactor,
        last_request=last_request
        if policy.reuses_prefix and last_request and last_request.change_count == history.change_count
        else None,
    )


async def summarize(job: SummaryJob, summarizer: Summarizer, limits: RetryLimits) -> Summary:
    """Return the summary of a job; raises a `ModelError`, or `CompactionFailedError` where it may not count."""
    began = time.monotonic()
    found, spent = await _summarize_after_prefix(job, summarizer, limits)
    if found is None:
        answer, more = await _summarize_shrinking(job, summarizer, limits)
        found, spent = _check_summary(job, answer), _add_usage(more, spent)
    duration_ms = int((time.monotonic() - began) * 1000)
    dollars = dollars_of(spent, found.by_model or summarizer.name)
    taken = job.redactor.counts if job.redactor else ()
    return replace(found, usage=spent, duration_ms=duration_ms, dollars=dollars, redacted=taken)


async def _summarize_after_prefix(
    job: SummaryJob, summarizer: Summarizer, limits: RetryLimits
) -> tuple[Summary | None, log.Usage]:
    """Return the summary as the conversation's own model writes it behind the last request, and what was spent.

    There is none where it cannot be asked so, says that it is too long, or writes what does not do as a summary.
    """
    ask, spent = _prefix_prompt(job, summarizer), log.Usage()
    try:
        if ask is not None:
            answer = await _ask_model(job, summarizer, ask, limits)
            spent = answer.usage or spent
            return _check_summary(job, answer), spent
    except (ModelOverflowError, ModelRefusedError, CompactionFailedError) as error:
        if isinstance(error, ModelRefusedError) and error.is_transient:
            raise
    return None, spent


def _prefix_prompt(job: SummaryJob, summarizer: Summarizer) -> SummaryPrompt | None:
    if job.last_request is None:
        return None
    window = _summarizer_window(summarizer) or job.last_request.window
    max_output = _max_output(job, window)
    question = PrefixQuestion(
        entries=job.entries,
        previous=job.previous,
        plan=job.plan,
        todos=job.todos,
        skills=job.skills,
        focus=job.focus,
        max_words=_max_words(job, max_output),
        max_output_tokens=max_output,
        counter=job.counter,
        max_bytes=MAX_PIECE_BYTES,
        redact=job.redact,
        redact_and_count=job.redact_and_count,
    )
    return question.prompt_after(job.last_request, summarizer, window)


def _summarizer_window(summarizer: Summarizer) -> int | None:
    """Return the largest input of a writer: as it says, else as the table of models does."""
    known = find_model(summarizer.name) if summarizer.window is None else None
    return known.max_input_tokens if known else summarizer.window


def _max_output(job: SummaryJob, window: int) -> int:
    return min(MAX_SUMMARY_TOKENS, max(MIN_OUTPUT_TOKENS, 2 * job.max_tokens), max(64, window // 4))


def _max_words(job: SummaryJob, max_output: int) -> int:
    return max(MIN_WORDS, min(job.max_tokens, max_output) // 2)


async def _ask_model(job: SummaryJob, summarizer: Summarizer, prompt: SummaryPrompt, limits: RetryLimits) -> ModelReply:
    """Return what a writer wrote, without what it may not write; refused where it is nothing, or has no end."""
    answer = await with_retries(summarizer, prompt, timeout_seconds=limits.timeout_seconds, attempts=limits.attempts)
    if len(answer.text) > MAX_SUMMARY_CHARS_PER_TOKEN * prompt.max_output_tokens:
        raise CompactionFailedError("the summary is far longer than was asked for")
    if not sanitize_summary(answer.text, range(job.step.stop)):
        raise CompactionFailedError("the summary is empty")
    return replace(answer, text=job.redact(replace_surrogates(answer.text)))


async def _summarize_shrinking(
    job: SummaryJob, summarizer: Summarizer, limits: RetryLimits
) -> tuple[ModelReply, log.Usage]:
    """Return the answer, with smaller pieces each time a writer says that one was too long for it."""
    window, attempt = _summarizer_window(summarizer) or DEFAULT_SUMMARIZER_WINDOW, 0
    while True:
        try:
            return await _summarize_in_chunks(job, summarizer, limits, window)
        except ModelOverflowError as error:
            attempt += 1
            if attempt > MAX_SHRINKS:
                raise
            window = int(min(window, error.limit or window) * SHRINK_FACTOR)


async def _summarize_in_chunks(
    job: SummaryJob, summarizer: Summarizer, limits: RetryLimits, window: int
) -> tuple[ModelReply, log.Usage]:
    """Return the last answer and what all of them cost: each is shown to the next as the summary so far."""
    max_output = _max_output(job, window)
    around = _prompt_context(job)
    room = window - max_output - chunk_overhead_tokens(job.counter, previous_tokens=max_output, **around)
    if room < MIN_ROOM_TOKENS:
        # A small model is shown less around the messages, and all of the messages.
        around = _PromptContext(focus=job.focus)
        room = window - max_output - chunk_overhead_tokens(job.counter, previous_tokens=max_output, **around)
    parts = split_into_chunks(
        job.entries, job.counter, max(MIN_CHUNK_TOKENS, room), MAX_PIECE_BYTES, job.redact_and_count
    ) or [""]
    previous, spent = job.previous, log.Usage()
    answer = ModelReply(text="", model=summarizer.name)
    for number, part in enumerate(parts, start=1):
        max_words = _max_words(job, max_output)
        call = chunk_prompt(part, previous=previous, number=number, total=len(parts), max_words=max_words, **around)
        ask = SummaryPrompt(system=call.system, text=call.text, max_output_tokens=max_output)
        answer = await _ask_model(job, summarizer, ask, limits)
        spent, previous = _add_usage(spent, answer.usage), sanitize_summary(answer.text, range(job.step.stop))
    return answer, spent


class _PromptContext(TypedDict, total=False):
    """What a summariser is shown besides the messages."""

    plan: str
    todos: str
    skills: Sequence[str]
    focus: str
    tail: str
    system_context: str


def _prompt_context(job: SummaryJob) -> _PromptContext:
    return _PromptContext(
        plan=job.plan,
        todos=job.todos,
        skills=job.skills,
        focus=job.focus,
        tail=job.tail,
        system_context=job.system_context,
    )


def _check_summary(job: SummaryJob, reply: ModelReply) -> Summary:
    """Return the summary that counts, with its score and what it leaves out, or refuse it by name."""
    if job.must_keep is None:
        if reply.is_cut_off:
            raise CompactionFailedError("the summary was cut off")
        return Summary(reply.text.strip(), by_model=reply.model, request_id=reply.request_id)
    found = check_summary(
        reply.text,
        is_cut_off=reply.is_cut_off,
        span=range(job.step.stop),
        facts=job.must_keep,
        adjacent_texts=job.adjacent_texts,
        counter=job.counter,
        replaced_tokens=job.replaced_tokens,
        put_back_tokens=max(MIN_RESTORED_TOKENS, int(job.max_tokens * RESTORED_SHARE)),
    )
    if not found.is_accepted:
        raise CompactionFailedError(f"the summary is not good enough: {', '.join(found.problems)}")
    return Summary(
        found.full_text,
        by_model=reply.model,
        score=found.final_score,
        request_id=reply.request_id,
        put_back=must_keep_lines(found.restored_facts),
        left_out=must_keep_lines(found.still_missing),
    )


def _add_usage(one: log.Usage, other: log.Usage | None) -> log.Usage:
    if other is None:
        return one
    return replace(
        one,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cache_read_tokens=one.cache_read_tokens + other.cache_read_tokens,
        cache_write_tokens=one.cache_write_tokens + other.cache_write_tokens,
    )


def _previous_summary(outlook: PlanInput, step: CompactSpan) -> str:
    """Return the summary that stands in a span already: it is updated, and not summarised again."""
    folds = [
        fold
        for fold in outlook.projection.context.state.compactions
        if fold.start >= step.start and fold.stop <= step.stop and fold.by_model
    ]
    return folds[-1].summary_content if folds else ""


def _tokens_after(outlook: PlanInput, step: CompactSpan) -> int:
    shown = outlook.projection
    return sum(
        size
        for entry, size in zip(shown.entries, shown.entry_tokens(), strict=True)
        if entry.position is not None and (entry.position >= step.stop or entry.position in step.kept)
    )


def _tail_text(outlook: PlanInput, step: CompactSpan, redact: RedactText) -> str:
    """Return the newest of what stays behind a fold, as text."""
    context = outlook.projection.context
    behind = list(context.entries_between(step.stop, context.length))
    return newest_as_text(behind, outlook.situation.counter, MAX_TAIL_TOKENS, MAX_PIECE_BYTES, redact)


def _clip(text: str, tokens: int, counter: Counter) -> str:
    """Return the beginning of a text in about so many tokens."""
    count = counter.count(text) if text else 0
    return text if count <= tokens else text[: len(text) * tokens // count]
