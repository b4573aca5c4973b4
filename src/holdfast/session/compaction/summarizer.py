"""Summarizes a span: a model reads all of it, and the summary is checked.

If the conversation's own model is the summarizer, it is asked after the conversation's last request, because the
provider has cached that prefix. Otherwise, or if that fails, the span is sent as data, in chunks that fit. Either way
the summarizer reads the whole span.

The job copies the messages from the history as values, so that the conversation can continue meanwhile. Texts that look
like keys are hidden from the summarizer and removed from its reply, unless the options say otherwise; the log keeps
them.
"""

import time
from dataclasses import field, replace
from typing import NamedTuple

from holdfast.core.conversation.json_values import dump_json, replace_surrogates
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.events import Summary
from holdfast.core.history.projection import Projection
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.steps import MAX_SUMMARY_TOKENS, CompactSpan, PlanInput
from holdfast.core.planning.summary.check import check_summary
from holdfast.core.planning.summary.chunks import (
    MIN_CHUNK_TOKENS,
    RedactText,
    newest_as_text,
    position_index,
    split_into_chunks,
)
from holdfast.core.planning.summary.must_keep import MustKeep, must_keep_lines, must_keep_of, must_keep_redacted
from holdfast.core.planning.summary.prompt import TITLE_ELEMENT, SummaryMaterial
from holdfast.core.planning.summary.sanitize import sanitize_summary
from holdfast.counters.models import dollars_of, find_model
from holdfast.dataclass import dataclass
from holdfast.errors import CompactionFailedError, ModelOverflowError, ModelRefusedError
from holdfast.models.base import (
    DEFAULT_SUMMARIZER_WINDOW,
    MAX_PIECE_BYTES,
    CachedPrefix,
    ModelReply,
    Summarizer,
    SummaryPrompt,
    supports_prefix,
)
from holdfast.models.retry import RetryLimits, with_retries
from holdfast.redaction import Redactor, redact_text

MAX_POSITIONS_TOKENS = 1_500
"""The size limit of the index of positions."""
MIN_ROOM_TOKENS = 600
MIN_OUTPUT_TOKENS, MIN_WORDS = 256, 50
MAX_SUMMARY_CHARS_PER_TOKEN = 12
"""A reply with more characters per allowed token is rejected."""
MAX_TAIL_TOKENS, MAX_SYSTEM_TOKENS = 1_500, 1_000
"""How much of the messages after the span, and of the system text, the summarizer reads."""
RESTORED_SHARE, MIN_RESTORED_TOKENS = 0.25, 600
"""Room for facts that a summary lost: a share of its size, and at least enough tokens for the user's rules."""
SHRINK_FACTOR = 0.5
"""Each overflow reduces the size of the next chunks by this factor."""
MAX_SHRINKS = 3


class SentRequest(NamedTuple):
    """The last request of an agent, as it was sent."""

    prefix: CachedPrefix
    model: str | None
    """The model that received it."""
    tokens: int
    """Its size, as the provider counts."""
    window: int
    """The context window of the model, or the one that the policy assumes for an unknown model."""
    whole_positions: tuple[int, ...]
    """The positions of the messages that it holds unchanged."""
    change_count: int
    """How many changes of context came before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryJob:
    """The input of a summary, and what it is checked against."""

    step: CompactSpan
    entries: tuple[Entry, ...]
    material: SummaryMaterial = field(default=SummaryMaterial())
    counter: Counter
    replaced_tokens: int
    max_tokens: int
    """The largest allowed summary."""
    must_keep: tuple[MustKeep, ...] | None = None
    """Facts that must survive; None if the policy does not check summaries."""
    adjacent_texts: tuple[str, ...] = ()
    redact: RedactText = str
    """Hides what a summarizer may neither read nor write."""
    redactor: Redactor | None = None
    """Hides the same in the summarizer's input, and counts; None if no count is needed."""
    shows_tool_use: bool = False
    """Whether tool results are passed on together with their input."""
    last_request: SentRequest | None = None
    """The last request, if the policy allows a summarizer to continue from it."""
    sent: SentRequest | None = None
    """The last request, whether or not a summarizer may continue from it."""
    restarts: int = 0
    """The `restarts` of the log when its messages were read for this."""

    @property
    def redact_and_count(self) -> RedactText:
        """The function that hides secrets in the summarizer's input."""
        return self.redactor or self.redact

    def max_output(self, window: int) -> int:
        """Return how many tokens a model with this window may write."""
        return min(MAX_SUMMARY_TOKENS, max(MIN_OUTPUT_TOKENS, 2 * self.max_tokens), max(64, window // 4))

    def max_words(self, max_output: int) -> int:
        """Return how many words to ask for."""
        return max(MIN_WORDS, min(self.max_tokens, max_output) // 2)


def summary_job(
    step: CompactSpan,
    plan_input: PlanInput,
    policy: Policy,
    focus: str = "",
    *,
    redacts: bool = False,
    last_request: SentRequest | None = None,
) -> SummaryJob:
    """Return the job of summarizing a span of the current context."""
    redactor, redact = (Redactor(), redact_text) if redacts else (None, str)
    redact_and_count: RedactText = redactor or str
    history, context, situation = plan_input.history, plan_input.projection.context, plan_input.situation
    span, scope, counter = step.span, situation.scope, situation.counter
    state, before = history.session_state_for(scope), history.session_state.summary_within(span.start, span.stop, scope)
    first = max(before.stop if before else span.start, context.state.cleared_at)
    history.entries.require(range(first, min(span.stop, context.length)))
    rule = policy.compaction
    tail = list(context.entries_between(span.stop, context.length))
    return SummaryJob(
        step=step,
        # What a client left out of its list is in the client's own summary, which the span holds.
        entries=tuple(
            entry
            for entry in context.entries_between(first, span.stop)
            if entry.position is None or not context.state.is_left_out(entry.position)
        ),
        material=SummaryMaterial(
            previous=redact_and_count(before.summary.text if before else _previous_summary(context, span)),
            plan=redact_and_count(state.plan),
            todos=redact_and_count(state.todos),
            skills=tuple(map(redact_and_count, state.skills)),
            focus=redact_and_count(focus),
            tail=newest_as_text(tail, counter, MAX_TAIL_TOKENS, MAX_PIECE_BYTES, redact_and_count),
            asks_title=rule is not None and rule.asks_title,
            system_context=_clip(redact_and_count(_system_text(plan_input)), MAX_SYSTEM_TOKENS, counter),
        ),
        counter=counter,
        replaced_tokens=max(2, plan_input.projection.tokens - _tokens_after(plan_input.projection, span)),
        max_tokens=rule.max_summary_tokens(plan_input, step) if rule else MAX_SUMMARY_TOKENS,
        must_keep=tuple(must_keep_redacted(must_keep_of(history.ledger(scope, span.stop)), redact))
        if rule and rule.checks_summary
        else None,
        adjacent_texts=tuple(map(redact, rule.texts_beside_summary(plan_input, step))) if rule else (),
        redact=redact,
        redactor=redactor,
        shows_tool_use=rule is not None and rule.shows_tool_use,
        last_request=last_request
        if policy.reuses_prefix and last_request and last_request.change_count == history.change_count
        else None,
        sent=last_request,
    )


async def summarize(job: SummaryJob, summarizer: Summarizer, limits: RetryLimits) -> Summary:
    """Return the summary of a job; raises a `ModelError`, or `CompactionFailedError` if the check rejects it."""
    began = time.monotonic()
    found, spent = await _summarize_after_prefix(job, summarizer, limits)
    if found is None:
        answer, more = await _summarize_shrinking(job, summarizer, limits)
        found, spent = _check_summary(job, answer), more + spent
    duration_ms = int((time.monotonic() - began) * 1000)
    dollars = dollars_of(spent, found.by_model or summarizer.name)
    taken = job.redactor.counts if job.redactor else ()
    return replace(found, usage=spent, duration_ms=duration_ms, dollars=dollars, redacted=taken)


async def _summarize_after_prefix(
    job: SummaryJob, summarizer: Summarizer, limits: RetryLimits
) -> tuple[Summary | None, log.Usage]:
    """Return the summary that the conversation's own model writes after the last request, and its cost.

    The summary is None if the model cannot be asked this way, overflows, or writes a summary that the check rejects.
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
    """Return the prompt to ask after the last request, or None if the messages must be sent as data.

    The prefix is used only if the conversation's own model writes the summary, the summarizer supports its format, the
    prefix holds no secret, and the prompt fits the window.
    """
    last = job.last_request
    is_own = last and summarizer.name == last.model and supports_prefix(summarizer, last.prefix.format)
    if last is None or not job.entries or not is_own or _has_secret(last.prefix, job.redact):
        return None
    window = _summarizer_window(summarizer, last)
    max_output = job.max_output(window)
    room = window - last.tokens - max_output
    missing = _missing_text(job, last, room)
    if missing is None:
        return None
    sent = frozenset(last.whole_positions)
    whole = [entry for entry in job.entries if entry.position in sent]
    call = job.material.after_prefix(
        range(job.entries[0].position or 0, (job.entries[-1].position or 0) + 1),
        position_index(whole, job.counter, MAX_POSITIONS_TOKENS, job.redact_and_count),
        missing,
        max_words=job.max_words(max_output),
    )
    if job.counter.count(call.system) + job.counter.count(call.text) > room:
        return None
    return SummaryPrompt(system=call.system, text=call.text, max_output_tokens=max_output, prefix=last.prefix)


def _missing_text(job: SummaryJob, last_request: SentRequest, room: int) -> str | None:
    """Return the messages that the last request lacks or shortens, as data; None if they do not fit one call."""
    sent = frozenset(last_request.whole_positions)
    missing = [entry for entry in job.entries if entry.position not in sent]
    if not missing:
        return ""
    if room < MIN_CHUNK_TOKENS or len(missing) == len(job.entries):
        return None
    chunks = split_into_chunks(
        missing, job.counter, room, MAX_PIECE_BYTES, job.redact_and_count, shows_tool_use=job.shows_tool_use
    )
    return "".join(chunks) if len(chunks) <= 1 else None


def _has_secret(prefix: CachedPrefix, redact: RedactText) -> bool:
    text = dump_json([prefix.system, prefix.tools, list(prefix.messages)])
    return redact(text) != text


def _summarizer_window(summarizer: Summarizer, sent: SentRequest | None) -> int:
    """Return the largest input of a summarizer: its own figure, that of the model table, or else an assumption.

    If the conversation's own model writes, the window of the conversation is assumed.
    """
    known = find_model(summarizer.name) if summarizer.window is None else None
    window = known.max_input_tokens if known else summarizer.window
    if window is None and sent is not None and sent.model == summarizer.name:
        return sent.window
    return window or DEFAULT_SUMMARIZER_WINDOW


async def _ask_model(job: SummaryJob, summarizer: Summarizer, prompt: SummaryPrompt, limits: RetryLimits) -> ModelReply:
    """Return a redacted reply; raises if it holds no more than a title or is far too long."""
    answer = await with_retries(summarizer, prompt, timeout_seconds=limits.timeout_seconds, attempts=limits.attempts)
    if len(answer.text) > MAX_SUMMARY_CHARS_PER_TOKEN * prompt.max_output_tokens:
        raise CompactionFailedError("the summary is far longer than was asked for")
    if not sanitize_summary(TITLE_ELEMENT.sub("", answer.text), range(job.step.span.stop)):
        raise CompactionFailedError("the summary is empty")
    return replace(answer, text=job.redact(replace_surrogates(answer.text)))


async def _summarize_shrinking(
    job: SummaryJob, summarizer: Summarizer, limits: RetryLimits
) -> tuple[ModelReply, log.Usage]:
    """Return the reply, with smaller chunks after each overflow."""
    window, attempt = _summarizer_window(summarizer, job.sent), 0
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
    """Return the last reply and the cost of all calls; each call updates the summary of the previous one."""
    max_output, material = job.max_output(window), job.material
    room = window - max_output - material.overhead_tokens(job.counter, previous_tokens=max_output)
    if room < MIN_ROOM_TOKENS:
        # A small model gets less of the surrounding text, but all of the messages.
        material = SummaryMaterial(previous=material.previous, focus=material.focus, asks_title=material.asks_title)
        room = window - max_output - material.overhead_tokens(job.counter, previous_tokens=max_output)
    chunks = split_into_chunks(
        job.entries,
        job.counter,
        max(MIN_CHUNK_TOKENS, room),
        MAX_PIECE_BYTES,
        job.redact_and_count,
        shows_tool_use=job.shows_tool_use,
    ) or [""]
    spent, reply = log.Usage(), ModelReply(text="", model=summarizer.name)
    for number, chunk in enumerate(chunks, start=1):
        call = material.as_data(chunk, number=number, total=len(chunks), max_words=job.max_words(max_output))
        prompt = SummaryPrompt(system=call.system, text=call.text, max_output_tokens=max_output)
        reply = await _ask_model(job, summarizer, prompt, limits)
        spent += reply.usage or log.Usage()
        material = replace(material, previous=sanitize_summary(reply.text, range(job.step.span.stop)))
    return reply, spent


def _check_summary(job: SummaryJob, reply: ModelReply) -> Summary:
    """Return the checked summary with its score and the facts it lacks; raises if it is not good enough."""
    if job.must_keep is None:
        if reply.is_cut_off:
            raise CompactionFailedError("the summary was cut off")
        return Summary(reply.text.strip(), by_model=reply.model, request_id=reply.request_id)
    found = check_summary(
        reply.text,
        is_cut_off=reply.is_cut_off,
        span=range(job.step.span.stop),
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


def _system_text(plan_input: PlanInput) -> str:
    """Return the system text of a request: the text beside the messages, then the system messages among them."""
    beside = plan_input.history.session_state.extras_for(plan_input.situation.scope).system
    among = (entry.message.text for entry in plan_input.projection.entries if entry.message.role == "system")
    return "\n\n".join(text for text in (beside, *among) if text)


def _previous_summary(context: Context, span: Span) -> str:
    """Return the summary that the span already holds: the summarizer updates it instead of summarizing it again."""
    inside = [one.summary for one in context.state.compactions if span.contains(one.span) and one.summary.by_model]
    return inside[-1].text if inside else ""


def _tokens_after(projection: Projection, span: Span) -> int:
    return sum(
        size
        for entry, size in zip(projection.entries, projection.entry_tokens(), strict=True)
        if entry.position is not None and (entry.position >= span.stop or entry.position in span.kept)
    )


def _clip(text: str, tokens: int, counter: Counter) -> str:
    """Return the beginning of a text, cut at about this many tokens."""
    count = counter.count(text) if text else 0
    return text if count <= tokens else text[: len(text) * tokens // count]
