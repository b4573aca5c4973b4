"""The rules of the default policy: compact rarely, and then nearly everything.

With a prompt cache, a changed prompt costs more than a long one. So the rule changes nothing until a threshold is
reached. Then one compaction replaces everything but a short tail and breaks the prefix once, and the conversation can
grow into the whole window again. Between the two thresholds, a compaction waits until the cached prefix has been read
often enough to pay for itself. At the hard threshold, or when the cache has expired or saves nothing, it does not wait.

The rule does not compact if that would not help: if the parts that no compaction makes smaller fill the budget by
themselves, or if an agent is in a loop since the last compaction. In a loop, every call returned the same result as
before, and there was no new prompt or decision. Each compaction stores hashes of the progress so far, so that a loop is
detected without reading the compacted messages.

`Offload` replaces large, settled outputs by previews for good. It breaks the prefix like a compaction, but keeps the
conversation itself whole. So it pays only if a few outputs hold most of the tokens.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar

from holdfast.core.conversation.cuts import next_cut, reasoning_exchange, uncuttable_span
from holdfast.core.conversation.messages import Entry, ToolCall
from holdfast.core.conversation.shorten import output_chars
from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.history.events import MAIN, Summary
from holdfast.core.history.read_notes import without_read_note
from holdfast.core.planning.rules.rule import CompactionRule, PolicyThreshold
from holdfast.core.planning.situation import PROVIDER_PRICES, Situation, break_even_turns
from holdfast.core.planning.steps import (
    NO_STEPS,
    AwaitSummary,
    CompactionForecast,
    CompactSpan,
    OffloadOutputs,
    Plan,
    PlanInput,
    Threshold,
    cannot_help_plan,
    describe_breakdown,
)
from holdfast.core.schema import check_fields, integer_bounds, number_bounds, share_bounds
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError
from holdfast.text import lazy_pattern, pluralize

if TYPE_CHECKING:
    from holdfast.core.planning.replacement import ReplacementBudget

MIN_REPLACEMENT_TOKENS, MAX_REPLACEMENT_SHARE = 2_000, 0.25
"""A replacement may have the first size even if its share is less, up to the second number as a share of a window."""
MODEL_SUMMARY_SHARE = 0.6
"""The largest size of a model's summary, as a share of the replacement that is made by rule."""
MAX_QUOTED_SHARE = 0.75
"""The largest share of a span that may be quoted, so that a compaction frees something."""
MIN_QUOTED_SHARE = 0.75
"""The least share of the turns that a chat deserves to have quoted, if an early compaction is to happen."""
TAIL_DIVISOR = 4
"""If there are too many messages, turns or bytes, one message in this many stays."""
LEAST_REPLACEMENT_TOKENS = 32
"""What a replacement takes beside the texts that its budget is for: its frame, and how to recall the messages."""
ASSUMED_PRICES = PROVIDER_PRICES["anthropic"]
"""The prices to assume if none are known."""
OFFLOAD_CHARS_PER_TOKEN = 4
MAX_PROGRESS_MARKS = 200
"""How many of the newest marks a compaction stores; older progress counts as new again."""
PROGRESS_MARK_CHARS = 8
MIN_CALLS = 3
"""With fewer calls since the last compaction, an agent does not count as looping."""
UNDONE_REASON = "the last change was undone, so nothing is compacted as long as the messages fit"
# A changed duration is not progress. The first digit is not one within a number, so that a long list of numbers is
# scanned once and not again from each number. A pattern that begins with a digit skips what has none at once.
_DURATION_PATTERN = (
    r"(\d)(?<!\d\d)(?<!\d[.,:]\d)"
    r"(?:(?<!\w\d)\d*+|(?<=\w\d)(\d*+[.,:])\d++)(?>(?:[.,:]\d++)*)[\s\x1c-\x1f]?(?:ms|s|secs?|seconds?)\b"
)
# A text in ASCII is read by the second one, because `re` takes longer for digits and letters of all scripts. For both,
# the separators of ASCII are white space.
_DURATION, _ASCII_DURATION = lazy_pattern(_DURATION_PATTERN), lazy_pattern(_DURATION_PATTERN, re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultCompaction(CompactionRule):
    """Compacts everything but a short tail, once it pays or the room is full.

    Shares are of the room that system text and tools leave to the messages.
    """

    RULE: ClassVar[str] = "default"
    offers_recall: ClassVar[bool] = True
    checks_summary: ClassVar[bool] = True
    is_summary_prompt: ClassVar[bool] = False
    keeps_most_by_rule: ClassVar[bool] = True
    weighs_prices: ClassVar[bool] = True
    has_ledger: ClassVar[bool] = True
    waits_for_round: ClassVar[bool] = True
    compacts_ahead: ClassVar[bool] = True

    soft_share: float = field(default=0.8, metadata=share_bounds())
    """From this share on a summary is requested, and a compaction happens once it pays."""
    hard_share: float = field(default=0.95, metadata=share_bounds())
    """At this share a compaction happens at once."""
    cold_share: float = field(default=0.6, metadata=share_bounds())
    """From this share on a compaction happens if the prompt cache has expired anyway, or saves nothing."""
    tail_share: float = field(default=0.02, metadata=share_bounds())
    """The share of the room for the newest messages, which stay."""
    summary_share: float = field(default=0.1, metadata=share_bounds())
    summary_max_tokens: int = field(default=5_000, metadata=integer_bounds(1, 10**6))
    """The largest size of a digest, including the user's messages and the ledger."""
    chat_share: float = field(default=0.6, metadata=share_bounds())
    chat_max_tokens: int = field(default=24_000, metadata=integer_bounds(0, 10**6))
    """The largest size of the informative turns that are quoted too, if nearly all of the span is chat."""
    min_reuse: float = field(default=30.0, metadata=number_bounds(0, 10**6))
    """A compaction pays once the prefix was read this often; fewer reads suffice if cached reads are not free."""
    min_gain_share: float = field(default=0.2, metadata=share_bounds())
    """A compaction that frees less does not happen unless the request would not fit otherwise."""
    min_messages: int = field(default=4, metadata=integer_bounds(1, 10**6))
    """Fewer messages are not compacted, unless they are answered and the request would not fit otherwise."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.compaction")
        # Rounded, because 0.3 + 0.1 + 0.2 is a little more than 0.6.
        least = round(self.tail_share + self.summary_share + self.min_gain_share, 9)
        if least >= 1:
            largest = max(
                ("tail_share", "summary_share", "min_gain_share"), key=lambda name: float(getattr(self, name))
            )
            problem = f"is {getattr(self, largest):g}; with it tail_share + summary_share + min_gain_share are"
            raise SettingsError(f"policy.compaction.{largest}", f"{problem} {least:g} and must stay below 1")
        for name, above, below in (
            ("hard_share", self.hard_share, self.soft_share),
            ("soft_share", self.soft_share, least),
            ("cold_share", self.cold_share, least),
        ):
            if above < below:
                limit = "soft_share" if name == "hard_share" else "tail_share + summary_share + min_gain_share"
                problem = f"must be at least {below:g} ({limit}), not {above:g}"
                raise SettingsError(f"policy.compaction.{name}", problem)

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the compaction to carry out now, or the summary to request in the background."""
        situation, tokens = plan_input.situation, plan_input.projection.tokens
        room = situation.message_budget
        if situation.has_ready_summary:
            return Plan(now=(AwaitSummary(),), reasons=("a summary is ready and replaces the messages that it covers",))
        fill = plan_input.fill
        cause = self._compaction_reason(plan_input, fill)
        is_full = fill >= self.soft_share and situation.has_summarizer
        if room <= 0 or (cause is None and not is_full):
            return NO_STEPS
        step = self._span(plan_input, room, self.min_messages)
        if step is None:
            return NO_STEPS
        is_mostly_fixed = plan_input.fixed_tokens - situation.extras_tokens > self.soft_share * room
        if cause is not None and is_mostly_fixed and fill <= 1:
            return cannot_help_plan(plan_input, "system text, pins", f"{self.soft_share:.0%} of the budget")
        after = plan_input.tokens_outside(step.span) + sum(self._replacement_budget(plan_input, step))
        if is_mostly_fixed and tokens - after < LEAST_REPLACEMENT_TOKENS:
            return NO_STEPS
        if tokens - after < self._min_gain(plan_input):
            reason = f"a compaction would free only {max(0, tokens - after):,} of {tokens:,} tokens, so there was none"
            return Plan(reasons=(reason,)) if cause else NO_STEPS
        # If the user has undone the last change, compacting at once would take the undo back.
        is_undone = plan_input.history.can_redo and plan_input.fill <= 1
        if not situation.refusals and (reason := UNDONE_REASON if is_undone else self.loop_reason(plan_input)):
            return Plan(reasons=(reason,))
        if cause is not None:
            prices = situation.prices or ASSUMED_PRICES
            turns = break_even_turns(prices, before=tokens, after=after)
            cost = f"compacting to about {after:,} pays for itself after {turns:.1f} requests ({prices.name} prices)"
            return Plan(now=(step,), reasons=(f"{cause}; {cost}",))
        if plan_input.is_summarizing:
            return NO_STEPS
        reason = f"{_describe_fill(plan_input, self.soft_share)}: a summary is written in the background"
        return Plan(later=(replace(step, by="summary"),), reasons=(reason,))

    def threshold(self, plan_input: PlanInput) -> Threshold:
        """Return how near the next compaction is: the soft threshold with a summarizer, the hard one without."""
        situation = plan_input.situation
        share = self.soft_share if situation.has_summarizer else self.hard_share
        tokens = plan_input.projection.tokens + situation.extras_tokens + REPLY_OVERHEAD
        return Threshold(tokens, _request_tokens_at(share, situation), "tokens")

    def thresholds(self, situation: Situation, window: int) -> Iterator[PolicyThreshold]:
        """Yield the soft and the hard threshold."""
        del window
        yield PolicyThreshold("summary starts", _request_tokens_at(self.soft_share, situation))
        yield PolicyThreshold("compacted", _request_tokens_at(self.hard_share, situation))

    def tuned_settings(self, *, has_summarizer: bool) -> tuple[str, ...]:
        """Return the settings that decide how much stays, and when to compact."""
        return "tail_share", "summary_share", "soft_share" if has_summarizer else "min_reuse"

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast:
        """Return the expected size after a compaction of messages that take `tokens`."""
        room = max(0, plan_input.situation.message_budget)
        kept = int(self.tail_share * room)
        compacted = max(0, tokens - kept)
        by_model = plan_input.situation.has_summarizer
        summary = min(int(self._replacement_tokens(room) * (MODEL_SUMMARY_SHARE if by_model else 1)), compacted // 2)
        spare = self._max_quoted_tokens(compacted, room) - summary
        quoted = max(0, int(min(self._chat_tokens(plan_input.projection.entries, room), spare)))
        return CompactionForecast(kept, summary, quoted, by_model=by_model)

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return what the hard threshold would compact, as if the messages filled the room."""
        room = min(plan_input.situation.message_budget, plan_input.projection.tokens)
        step = self._span(plan_input, room, min_messages=1)
        by = "summary" if plan_input.situation.has_summarizer else "digest"
        return replace(step, by=by, trigger="manual") if step else None

    def may_grow(self, step: CompactSpan) -> bool:
        """Return False: a compaction that frees nothing is refused."""
        del step
        return False

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return one text: the summary or digest, the user's messages, the current state, and the ledger."""
        from holdfast.core.planning.replacement import replacement_text  # noqa: PLC0415 - only for a compaction

        return (replacement_text(plan_input, step, summary, self._replacement_budget(plan_input, step)),)

    def texts_beside_summary(self, plan_input: PlanInput, step: CompactSpan) -> list[str]:
        """Return the texts of the replacement besides the summary, and the messages that stay."""
        from holdfast.core.planning.replacement import texts_beside_summary  # noqa: PLC0415 - as above

        return texts_beside_summary(plan_input, step, self._replacement_budget(plan_input, step))

    def max_summary_tokens(self, plan_input: PlanInput, step: CompactSpan) -> int:
        """Return the share of a model's summary in the room, at most half of the span."""
        compacted = plan_input.projection.tokens - plan_input.tokens_outside(step.span)
        tokens = self._replacement_tokens(plan_input.situation.message_budget)
        return min(int(tokens * MODEL_SUMMARY_SHARE), compacted // 2)

    def loop_reason(self, plan_input: PlanInput) -> str:
        """Return why another compaction would only repeat a loop; empty if there was progress since the last one."""
        state = plan_input.projection.context.state
        if not state.compactions or not state.compactions[-1].marks:
            return ""
        stop, known = state.compactions[-1].span.stop, frozenset(state.compactions[-1].marks)
        after = [entry for entry in _recorded_entries(plan_input) if (entry.position or 0) >= stop]
        # Messages that the compaction kept were recorded before it.
        calls = sum(len(entry.message.results) for entry in after if (entry.position or 0) >= state.changed_at)
        marks = (mark for entry, called in _with_calls(after) for mark in _marks_of(entry, called))
        if calls < MIN_CALLS or any(mark not in known for mark in marks):
            return ""
        return (
            f"the agent made no progress since the last compaction: {pluralize(calls, 'call')} returned the same "
            "results as before, without a new prompt or decision; another compaction would only restart the loop "
            f"({describe_breakdown(plan_input)})"
        )

    def progress_marks(self, plan_input: PlanInput) -> tuple[str, ...]:
        """Return the marks of all progress so far, including those of the last compaction, newest last."""
        compactions = plan_input.projection.context.state.compactions
        before = compactions[-1].marks if compactions else ()
        newest_first: dict[str, None] = {}
        for entry, called in reversed(_with_calls(_recorded_entries(plan_input))):
            if len(newest_first) >= MAX_PROGRESS_MARKS:
                break
            newest_first |= dict.fromkeys(reversed([*_marks_of(entry, called)]))
        newest_first |= dict.fromkeys(reversed(before))
        return tuple(reversed([*newest_first][:MAX_PROGRESS_MARKS]))

    def _replacement_tokens(self, room: int) -> int:
        # A share of a small window holds few names, so there it may take more, up to a share of the window.
        least = min(MIN_REPLACEMENT_TOKENS, int(room * MAX_REPLACEMENT_SHARE))
        return min(self.summary_max_tokens, max(int(room * self.summary_share), least))

    def _replacement_budget(self, plan_input: PlanInput, step: CompactSpan) -> "ReplacementBudget":
        """Return the room for a replacement: more if the span is chat, of which the ledger keeps nothing."""
        from holdfast.core.planning.replacement import ReplacementBudget  # noqa: PLC0415 - as above

        projection, budget = plan_input.projection, plan_input.situation.message_budget
        room = min(budget, projection.tokens)
        compacted = projection.tokens - plan_input.tokens_outside(step.span)
        # What the system text, the pins and the newest prompt leave: else the request would be cut again.
        fixed = plan_input.fixed_tokens - plan_input.situation.extras_tokens
        left = max(0, budget - fixed - LEAST_REPLACEMENT_TOKENS)
        summary = min(self._replacement_tokens(budget), compacted // 2, left)
        # Each text is quoted once, so it counts once.
        sizes = {
            entry.message.text: size
            for entry, size in zip(projection.entries, projection.entry_tokens(), strict=True)
            if (entry.position or 0) < step.span.stop
        }
        entries = [entry for entry in projection.entries if (entry.position or 0) < step.span.stop]
        wanted = min(int(self._chat_tokens(entries, room)), sum(sizes.values()))
        # So that it frees enough, unless it would quote too little: then it is too early for a compaction.
        quoted = min(wanted, self._max_quoted_tokens(compacted, budget) - summary)
        if step.trigger == "manual" or quoted < MIN_QUOTED_SHARE * wanted:
            quoted = min(wanted, self._max_quoted_tokens(compacted, room) - summary)
        return ReplacementBudget(summary, max(0, min(quoted, left - summary)))

    def _chat_tokens(self, entries: Sequence[Entry], room: int) -> float:
        """Return the room for quoted turns."""
        from holdfast.core.planning.replacement import chat_scale, chat_share  # noqa: PLC0415 - as above

        return min(self.chat_max_tokens, int(room * self.chat_share)) * chat_scale(chat_share(entries))

    def _max_quoted_tokens(self, compacted: int, room: int) -> int:
        """Return how much of a span may be quoted so that the compaction still frees something."""
        return min(int(compacted * MAX_QUOTED_SHARE), compacted - int(self.min_gain_share * room) - 1)

    def _min_gain(self, plan_input: PlanInput) -> float:
        """Return how many tokens a compaction has to free: any, if the problem is not the number of tokens."""
        is_about_tokens = plan_input.fill == plan_input.token_fill
        room = plan_input.situation.message_budget
        return self.min_gain_share * room if is_about_tokens and plan_input.fill <= 1 else 1

    def _compaction_reason(self, plan_input: PlanInput, fill: float) -> str | None:
        """Return why to compact now; None if it can wait."""
        situation, projection = plan_input.situation, plan_input.projection
        if situation.refusals:
            return "the provider refused the request as too long"
        if fill < self.soft_share and fill < self.cold_share:
            return None  # as in most requests: nothing below holds for less than both
        if fill >= self.hard_share:
            return _describe_fill(plan_input, self.hard_share)
        if situation.is_cache_cold and fill >= self.cold_share:
            fill_text = _describe_fill(plan_input, self.cold_share)
            return f"{fill_text} and the prompt cache has expired, so a new prefix costs nothing extra"
        prices = situation.prices or ASSUMED_PRICES
        if prices.read >= prices.write and fill >= self.cold_share and not situation.has_summarizer:
            fill_text = _describe_fill(plan_input, self.cold_share)
            return f"{fill_text} and cached tokens are no cheaper, so a new prefix costs nothing extra"
        required_reuse = self.min_reuse * (1 - prices.read / prices.write)
        reuse = projection.answered_tokens / max(1, projection.tokens)
        if fill >= self.soft_share and reuse >= required_reuse and not situation.has_summarizer:
            return f"{_describe_fill(plan_input, self.soft_share)} and the cached prefix was read {reuse:.0f} times"
        return None

    def _span(self, plan_input: PlanInput, room: int, min_messages: int) -> CompactSpan | None:
        """Return everything before a short tail, except the prompt that is being answered."""
        projection, state = plan_input.projection, plan_input.projection.context.state
        first = projection.first_uncompacted
        last = uncuttable_span(projection, len(projection) - 1)[0] if len(projection) else 0
        tail = projection.tail_start(int(self.tail_share * room))
        if plan_input.fill > plan_input.token_fill:
            tail = max(tail, len(projection) - len(projection) // TAIL_DIVISOR)
        cut = min(next_cut(projection, max(first, tail)), last)
        # What the model has answered may go however few messages there are, if the rest does not fit: a compaction is
        # on record, a cut request is not. What it has not read yet is better cut than replaced.
        is_answered = any(entry.message.role == "assistant" for entry in projection.entries[max(0, cut - 1) :])
        if cut - first < (1 if plan_input.fill > 1 and is_answered else min_messages):
            return None
        prompt = plan_input.prompt
        indices = [at for index in prompt if index < cut for at in range(*uncuttable_span(projection, index))]
        if prompt and prompt[-1] < cut:
            indices += reasoning_exchange(projection, prompt[-1], cut)
        kept = [at for index in indices if (at := projection.entries[index].position) is not None]
        stop = projection.position_at(cut)
        return CompactSpan(
            span=Span(
                start=state.cleared_at,
                stop=stop,
                kept=tuple(sorted({*kept})),
                count=max(1, _visible_count(plan_input, state.cleared_at, stop) - len(kept)),
            ),
            by="digest",
            trigger="context_limit_retry" if plan_input.situation.refusals else "threshold",
        )


def _request_tokens_at(share: float, situation: Situation) -> int:
    """Return the size of a request whose messages fill a share of their room."""
    return int(share * max(0, situation.message_budget)) + situation.extras_tokens + REPLY_OVERHEAD


def _visible_count(plan_input: PlanInput, start: int, stop: int) -> int:
    """Return how many messages of a span are visible; if the main agent sees everything, without loading them."""
    history = plan_input.history
    if plan_input.situation.scope != MAIN or not history.scopes.does_main_see_all:
        return sum(1 for _ in plan_input.projection.context.entries_between(start, stop))
    hidden = {
        position for span in history.version.hidden for position in range(max(start, span.start), min(stop, span.stop))
    }
    return stop - start - len(hidden)


def _describe_fill(plan_input: PlanInput, threshold: float) -> str:
    situation, count = plan_input.situation, len(plan_input.projection)
    tokens = f"{situation.billed_tokens(plan_input.projection.tokens):,} tokens in {count:,} messages"
    # A budget may also limit messages, turns or bytes; then the share is one of these.
    is_about_tokens = plan_input.fill == plan_input.token_fill
    room = situation.billed_tokens(situation.message_budget)
    whole = f"the {room:,} that the budget leaves for messages" if is_about_tokens else "the budget"
    return f"{tokens} fill {plan_input.fill:.0%} of {whole} (threshold {threshold:.0%})"


def without_durations(text: str) -> str:
    """Return a text without its durations, so that two runs of one command compare as equal."""
    # In `v5.3s` only `3s` is one: `v5.` is a name. A template would be expanded anew for each match, a function is not.
    pattern = _ASCII_DURATION if text.isascii() else _DURATION
    return pattern.sub(lambda found: found[1] + found[2] if found[2] else "", text)


def _recorded_entries(plan_input: PlanInput) -> list[Entry]:
    """Return the visible messages in their recorded form, not as the context shortens them."""
    entries = plan_input.history.entries
    positions = [entry.position for entry in plan_input.projection.entries if entry.position is not None]
    entries.require(positions)
    return [entries[position] for position in positions]


def _with_calls(entries: Iterable[Entry]) -> list[tuple[Entry, list[ToolCall | None]]]:
    """Return messages, each with the calls that its results answer."""
    calls: dict[str, ToolCall] = {}
    found: list[tuple[Entry, list[ToolCall | None]]] = []
    for entry in entries:
        outline = entry.message.outline
        if outline.call_ids:
            calls |= {call.id: call for call in entry.message.calls}
        found.append((entry, [calls.get(call_id) for call_id in outline.result_ids]))
    return found


def _marks_of(entry: Entry, calls: Sequence[ToolCall | None]) -> Iterator[str]:
    """Yield a mark for a prompt, for each call with its result, and for each decision of the model."""
    message = entry.message
    if message.is_prompt:
        yield _hash_mark("said", str(entry.position))
    for result, call in zip(message.results, calls, strict=True):
        asked = (call.name, call.arguments) if call else ("", "")
        yield _hash_mark(*asked, without_durations(without_read_note(result.text)))
    if message.role == "assistant" and message.text:
        from holdfast.core.ledger.constraints import decisions_in  # noqa: PLC0415 - as above

        yield from (_hash_mark("decided", decision) for decision in decisions_in(message.text))


def _hash_mark(*parts: str) -> str:
    from hashlib import sha256  # noqa: PLC0415 - as above

    return sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:PROGRESS_MARK_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Replaces large, settled outputs by previews for good, if that frees enough.

    Shares are of the room that system text and tools leave to the messages.
    """

    at_share: float = field(default=0.8, metadata=share_bounds())
    """The share at which the rule acts."""
    max_left_share: float = field(default=0.2, metadata=share_bounds())
    """The largest share that may remain; if more would remain, a compaction is the better way to break the prefix."""
    tail_share: float = field(default=0.05, metadata=share_bounds())
    """Outputs among the newest messages stay whole: the model is usually still reading them."""
    max_chars: int = field(default=2_000, metadata=integer_bounds(64, 10**9))
    """The length of the preview."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.offload")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the offload of all outputs before the tail, if it frees enough."""
        projection, room = plan_input.projection, plan_input.situation.message_budget
        if plan_input.token_fill < self.at_share or not len(projection):
            return NO_STEPS
        last = uncuttable_span(projection, len(projection) - 1)[0]
        tail = max(projection.first_uncompacted, projection.tail_start(int(self.tail_share * room)))
        cut = min(next_cut(projection, tail), last)
        gain = sum(self._freed_tokens(plan_input, index) for index in range(cut))
        if gain < self.max_left_share * room or projection.tokens - gain > self.max_left_share * room:
            return NO_STEPS
        step = OffloadOutputs(before=projection.position_at(cut), max_chars=self.max_chars)
        previous = projection.context.state.offloaded
        if previous is not None and step.before <= previous.line:
            return NO_STEPS
        reason = f"tool outputs before #{step.before} hold about {gain:,} tokens: previews replace them from now on"
        return Plan(now=(step,), reasons=(reason,))

    def _freed_tokens(self, plan_input: PlanInput, index: int) -> int:
        entry = plan_input.projection.entries[index]
        if not entry.message.outline.result_ids or entry.position is None:
            return 0
        if entry.position in plan_input.history.session_state.pins:
            return 0
        keeps_recall = plan_input.projection.context.has_recall
        results = (result for result in entry.message.results if not (keeps_recall and result.is_recall_answer))
        return sum(max(0, output_chars(result) - self.max_chars) for result in results) // OFFLOAD_CHARS_PER_TOKEN
