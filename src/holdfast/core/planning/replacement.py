"""The text with which the default policy replaces compacted messages.

The text contains the user's messages verbatim, as many as fit; a model's summary or a digest made by rule; the current
plan, todos, skills and agents; and the names that are likely to be needed again. All of it is marked as reference, so
that the model does not read it as a request.

Work with tools leaves names, files and commands, which the ledger holds. A chat leaves only its messages, and any turn
may hold the one fact that the user asks for later. So the most informative turns of a chat, per token, are quoted
whole. Facts consist of rare words, names and numbers; a question rarely holds any. If one side has written little in
the whole conversation, its turns count for more. Candidates are the visible turns and those that an earlier compaction
quoted.
"""

import math
import re
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, pairwise
from operator import mul
from typing import ClassVar, NamedTuple

from holdfast.core.conversation.frames import (
    ANSWERS_HEADING,
    PROMPTS_HEADING,
    STATE_HEADING,
    neutralize,
    reference_frame,
)
from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.shorten import clip_text
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.digest import make_digest
from holdfast.core.history.events import Summary
from holdfast.core.history.session_state import SessionState
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.ledger.render import render_ledger
from holdfast.core.planning.steps import CompactSpan, PlanInput
from holdfast.text import lazy_pattern, pluralize

NAME_FACTOR = 3.0
"""How much more a name or a number counts than another word that is as rare."""
QUESTION_COST = 6.0
BASE_TOKENS = 10
"""Added to the size of each turn, because very short turns say little."""
MAX_DIGEST_SUMMARY_TOKENS = 2_000
"""The size of a digest that stands in place of a summary."""
MIN_CHAT_SHARE = 0.8
"""A conversation with a smaller share of chat is treated as work."""
MIN_NAME_CHARS = 3
TURN_STEM_CHARS = 6
"""Words that share this many first characters count as one."""
_TOKEN = lazy_pattern(r"[^\W_]+|[.!?:\n\[“\"]")
_BREAKS = frozenset('.!?:[“"\0')
"""What is no word among the tokens of a text: after it a capital says nothing. A line break is spelled as a zero."""
_SPACED = bytes(
    0 if byte == ord("\n") else byte if chr(byte).isalnum() or chr(byte) in '.!?:["' else ord(" ")
    for byte in range(128)
).ljust(256)
"""Translates a text in ASCII into one that has white space between words; a pattern takes seven times as long."""
_WORD_BYTES = bytes(byte for byte in _SPACED if chr(byte).isalnum() or byte == ord(" "))
_CJK = lazy_pattern(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def chat_share(entries: Sequence[Entry]) -> float:
    """Return the share of the text of messages that is chat, not tool calls or results."""
    chat = sum([entry.message.chat_chars for entry in entries])
    return chat / max(1, chat + sum([entry.message.outline.work_chars for entry in entries]))


def uses_tools(message: Message) -> bool:
    """Return whether a message holds tool calls or results."""
    return bool(message.outline.call_ids or message.outline.result_ids)


def chat_scale(share: float) -> float:
    """Return the share of the budget for quoted turns that applies: all for pure chat, none for work with tools."""
    return max(0.0, (share - MIN_CHAT_SHARE) / (1 - MIN_CHAT_SHARE))


def most_informative(
    entries: Sequence[Entry], allowance: int, sizes: Sequence[int], factors: Mapping[str, float]
) -> list[Entry]:
    """Return the turns with the most information per token, as many as fit, in their original order.

    `sizes` are the tokens of each turn, and `factors` the weights of roles; other roles have the weight 1.
    """
    texts = [entry.message.text for entry in entries]
    stems = _Stems.kept()
    words = [_turn_words(text, stems) for text in texts]
    _Stems.keep(stems)
    rarity = _Rarity(words)
    worth = [
        factors.get(entry.message.role, 1.0) * rarity.information(said, text) / (size + BASE_TOKENS)
        for entry, text, said, size in zip(entries, texts, words, sizes, strict=True)
    ]
    chosen: dict[str, int] = {}
    for index in sorted(range(len(entries)), key=worth.__getitem__, reverse=True):
        text = texts[index]
        # A turn without information, or a repeated one, is not worth its tokens.
        if worth[index] > 0 and sizes[index] <= allowance and text not in chosen:
            allowance -= sizes[index]
            chosen[text] = index
    return [entries[index] for index in sorted(chosen.values())]


class _Stems(dict[str, str]):
    """The stems of words in ASCII, made when they are first needed: conversations repeat most of their words."""

    MAX_KEPT_CHARS: ClassVar[int] = 1 << 18
    """How long the words may be together that are kept for the next compaction of the process."""
    _kept: "ClassVar[_Stems | None]" = None

    def __init__(self) -> None:
        super().__init__()
        self.capitalized: set[str] = set()
        """The words that are names, unless they begin a sentence."""
        self.chars = 0
        """How long the words are together."""

    @classmethod
    def kept(cls) -> "_Stems":
        """Return the stems that earlier compactions of this process have kept."""
        return cls._kept or cls()

    @classmethod
    def keep(cls, stems: "_Stems") -> None:
        """Keep stems for the next compaction, or none if they are many: a single word may have megabytes."""
        cls._kept = stems if stems.chars <= cls.MAX_KEPT_CHARS else None

    def __missing__(self, word: str) -> str:
        if "A" <= word <= "Z~" and len(word) >= MIN_NAME_CHARS:
            self.capitalized.add(word)
        self.chars += len(word)
        stem = self[word] = word[:TURN_STEM_CHARS].lower()
        return stem


class _Rarity:
    """How rare each word of some turns is among them."""

    def __init__(self, turns: Sequence[Mapping[str, float]]) -> None:
        held, total = Tally(chain.from_iterable(turns)), len(turns)
        by_count = {count: math.log(1 + (total - count + 0.5) / (count + 0.5)) for count in {*held.values()}}
        self._rarity = dict(zip(held, map(by_count.__getitem__, held.values()), strict=True))
        numbers = [word for word in held if "0" <= word <= "9~"]
        self._with_numbers = self._rarity | {word: self._rarity[word] * NAME_FACTOR for word in numbers}

    def information(self, words: Mapping[str, float], text: str) -> float:
        """Return the information in a turn: its words weighted by rarity, names and numbers above all."""
        rarity = self._with_numbers if text.isascii() else self._rarity
        said = sum(map(mul, map(rarity.__getitem__, words), words.values()))
        return max(0.0, said - (QUESTION_COST if "?" in text or "？" in text else 0.0))


def _turn_words(text: str, stems: _Stems) -> dict[str, float]:
    """Return the words of a turn, each with its weight: more for a name, and for a number that is not in ASCII."""
    if not text.isascii():
        return _words_of_any_script(_TOKEN.findall(text))
    encoded = text.encode().translate(_SPACED)
    spaced, breaks = encoded.decode(), {*encoded.translate(None, _WORD_BYTES).decode()}
    for mark in breaks:
        spaced = spaced.replace(mark, f" {mark} ")
    tokens = spaced.split()
    found = dict.fromkeys(map(stems.__getitem__, tokens), 1.0)
    for mark in breaks:
        del found[mark]
    if not spaced.islower():
        for before, token in compress(pairwise(tokens), map(stems.capitalized.__contains__, tokens[1:])):
            if before not in _BREAKS:
                found[stems[token]] = NAME_FACTOR
    return found


def _words_of_any_script(tokens: Iterable[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    is_beginning = True
    for token in tokens:
        first = token[0]
        if not first.isalnum():
            is_beginning = True
            continue
        is_name = first.isdigit() or (not is_beginning and first.isupper() and len(token) >= MIN_NAME_CHARS)
        for word in _word_stems(token):
            if is_name or word not in found:
                found[word] = NAME_FACTOR if is_name else 1.0
        is_beginning = False
    return found


def _word_stems(token: str) -> list[str]:
    """Return the stem of a word; a run of Chinese, Japanese or Korean becomes pairs of characters."""
    if _CJK.search(token):
        return [token[index : index + 2] for index in range(max(1, len(token) - 1))]
    return [token.lower()[:TURN_STEM_CHARS]]


PROMPTS_SHARE, LEDGER_SHARE = 0.2, 0.72
"""Shares of the allowance for the user's messages and for the ledger; the digest gets the rest.

What the user's messages do not use goes to the ledger, and what the ledger does not use goes to them."""
SHORT_PROMPTS_SHARE = 0.15
"""A further share that only short messages of the user may take from the ledger."""
REPLACEMENT_DIGEST_MESSAGES = 64
"""How many of the newest compacted messages a digest is made from."""
MAX_REPLACEMENT_PROMPTS = 256
"""How many of the user's messages are considered, newest first."""
STATE_SHARE = 0.3
"""Largest share of the allowance for plan, todos, skills and agent, which are clipped to fit."""
MAX_QUOTED_PROMPTS = 16
SHORT_PROMPT_TOKENS, PROMPT_CHARS_PER_TOKEN = 80, 4
"""A prompt up to this size is short."""
MAX_CHARS_PER_TOKEN = 12
"""A text with more characters for each token of an allowance does not fit, so its tokens are not counted."""
MIN_REPLACEMENT_DIGEST_TOKENS, MIN_STATE_CHARS = 60, 80


class _ReplacementParts(NamedTuple):
    """The parts of a replacement besides the summary or digest."""

    prompts: list[Entry]
    """The user's messages of the span that are considered."""
    quoted: list[Entry]
    """The messages that are quoted verbatim."""
    prompt_text: str
    ledger: str
    state: str
    """Plan, todos, skills and agents."""
    answer_text: str = ""
    """The assistant's quoted turns of a chat."""


class ReplacementBudget(NamedTuple):
    """How large the replacement of a span may be, in tokens."""

    tokens: int
    """For the summary or digest, the user's messages and the ledger."""
    chat_tokens: int = 0
    """Extra room for quoted turns of a chat."""


def replacement_text(
    plan_input: PlanInput, step: CompactSpan, summary: Summary | None, allowance: ReplacementBudget
) -> str:
    """Return the text that replaces a span; without a model's summary it fits the allowance."""
    kept = _replacement_parts(plan_input, step, allowance)
    texts = kept.state, kept.prompt_text, kept.answer_text, kept.ledger
    taken = sum(plan_input.situation.counter.count(text) + 2 for text in texts if text)
    done = (
        reference_frame(summary.text, step.span.count)
        if summary
        else _digest_text(plan_input, step, kept, allowance.tokens - max(0, taken - allowance.chat_tokens))
    )
    return "\n\n".join(text for text in (done, *texts) if text) or f"[{pluralize(step.span.count, 'earlier message')}]"


def _digest_text(plan_input: PlanInput, step: CompactSpan, kept: _ReplacementParts, allowance: int) -> str:
    """Return a digest; if a summary of the first part arrived too late for its own compaction, it comes first."""
    known = plan_input.history.session_state.summary_within(step.span.start, step.span.stop, plan_input.situation.scope)
    if known is None:
        return _make_digest(plan_input, step, kept.prompts, kept.quoted, allowance)
    summary = reference_frame(known.summary.text, known.stop - known.start)
    left = allowance - plan_input.situation.counter.count(summary)
    if left < MIN_REPLACEMENT_DIGEST_TOKENS or known.stop == step.span.stop:
        return summary
    newer = replace(step.span, start=known.stop, count=max(1, step.span.count - (known.stop - known.start)))
    prompts = [entry for entry in kept.prompts if (entry.position or 0) >= known.stop]
    digest = _make_digest(plan_input, replace(step, span=newer), prompts, kept.quoted, left)
    return f"{summary}\n\n{digest}"


def texts_beside_summary(plan_input: PlanInput, step: CompactSpan, allowance: ReplacementBudget) -> list[str]:
    """Return the texts that stay in view next to a summary of a span: the summary need not repeat their facts."""
    kept = _replacement_parts(plan_input, step, allowance)
    positions = sorted(
        {*step.span.kept, *(pin for pin in plan_input.situation.pins if step.span.start <= pin < step.span.stop)}
    )
    staying = [plan_input.history.entries[position] for position in positions]
    others = [text for text in (kept.answer_text, kept.state) if text]
    return [kept.prompt_text, kept.ledger, *others, *message_texts(staying), *_tail_texts(plan_input, step)]


def quoted_positions(texts: Iterable[str], plan_input: PlanInput) -> tuple[int, ...]:
    """Return the positions of messages that texts quote whole."""
    found: list[int] = []
    for text in texts:
        for place in re.findall(r"(?m)^\(#(\d{1,9})\) ", text):
            position = int(place)
            if position < len(plan_input.history) and _quote_line(plan_input.history.entries[position]) in text:
                found.append(position)
    return tuple(sorted(set(found)))


def _replacement_parts(plan_input: PlanInput, step: CompactSpan, budget: ReplacementBudget) -> _ReplacementParts:
    counter = plan_input.situation.counter
    known = plan_input.history.session_state_for(plan_input.situation.scope)
    state = _state_text(known, _running_delegates(plan_input), int(budget.tokens * STATE_SHARE), counter)
    allowance = budget.tokens - counter.count(state)
    prompts = _prompts_in(plan_input, step)
    # The first prompt of a chat is always quoted; other turns are chosen by their information.
    whole = _quotable_prompts(
        prompts[:1] if budget.chat_tokens else prompts,
        int(allowance * PROMPTS_SHARE),
        plan_input,
        extra_for_short=int(allowance * SHORT_PROMPTS_SHARE),
    )
    ledger = plan_input.history.ledger(plan_input.situation.scope, step.span.stop)
    near = "\n".join([_quote_text(whole), state, *_tail_texts(plan_input, step)])
    shared = int(allowance * (PROMPTS_SHARE + LEDGER_SHARE))
    names = render_ledger(ledger, shared - counter.count(_quote_text(whole)), counter, exclude_text=near)
    # A conversation without tools has few names: the user's messages get the room that the ledger does not use.
    spare = max(shared - counter.count(names), counter.count(_quote_text(whole)), int(allowance * PROMPTS_SHARE))
    if budget.chat_tokens:
        whole, answers = _quoted_turns(plan_input, step, whole, spare + budget.chat_tokens)
        return _ReplacementParts(
            prompts, whole, _quote_text(whole), names, state, _quote_text(answers, ANSWERS_HEADING)
        )
    # Prompts that were quoted first stay quoted, because the ledger leaves out what they say.
    quoted = {entry.position for entry in whole}
    others = [entry for entry in prompts if entry.position not in quoted]
    whole = _quotable_prompts([*whole, *others], spare, plan_input)
    return _ReplacementParts(prompts, whole, _quote_text(whole), names, state)


def _running_delegates(plan_input: PlanInput) -> str:
    """Return the running delegates of this agent that it can see, each with its task."""
    context, entries = plan_input.projection.context, plan_input.history.entries
    sent = [
        scope
        for scope in plan_input.history.session_state.running_delegates
        if context.scopes.parents.get(scope) == context.scope
    ]
    firsts = {scope: context.message_scopes.index(scope) for scope in sent if scope in context.message_scopes}
    entries.require([first for first in firsts.values() if context.may_be_in_view(first)])
    told = {scope: entries[first].message.text for scope, first in firsts.items() if context.is_visible(first)}
    return "\n".join(f"- {neutralize(f'{scope}: {task}', 'item')}" for scope, task in told.items())


def _state_text(state: SessionState, at_work: str, allowance: int, counter: Counter) -> str:
    """Return plan, todos, skills and agents within an allowance; only the last skill keeps its instructions."""
    *earlier, last = [*state.skills] or [""]
    skills = "\n".join([*(f"- {name}" for name in earlier), f"- {last}: {state.skills[last]}"]) if last else ""
    parts = {"Plan": state.plan, "To do": state.todos, "Skills called upon": skills, "Agent": state.agent_summary}
    parts["Agents at work when this was written; what they find comes later"] = at_work
    told = {name: text.strip() for name, text in parts.items() if text.strip()}
    chars = max(map(len, told.values()), default=0)
    while told:
        # The cut may begin a line with what was in the middle of one, so the clipped text is made safe.
        clipped = (f"{name}:\n{neutralize(clip_text(told[name], chars), beside_sections=True)}" for name in told)
        text = "\n".join([STATE_HEADING, *clipped])
        if counter.count(text) <= allowance:
            return text
        if chars < MIN_STATE_CHARS:
            break
        chars = int(0.8 * chars)
    return ""


def _quoted_turns(
    plan_input: PlanInput, step: CompactSpan, whole: list[Entry], allowance: int
) -> tuple[list[Entry], list[Entry]]:
    """Return the turns of a chat that are worth quoting whole, the user's and the assistant's.

    Candidates are the visible turns and those that an earlier compaction quoted.
    """
    history, counter = plan_input.history, plan_input.situation.counter
    quoted = [position for one in plan_input.projection.context.state.compactions for position in one.quoted]
    visible = [entry.position for entry in plan_input.projection.entries if entry.position is not None]
    chosen = {position for position in (*quoted, *visible) if step.span.start <= position < step.span.stop}
    others = sorted(chosen.difference(step.span.kept, (entry.position or 0 for entry in whole)))
    history.entries.require(others)
    turns, sizes = list[Entry](), list[int]()
    for turn in map(history.entries.__getitem__, others):
        if line := _quotable_line(turn):
            turns.append(turn)
            sizes.append(counter.count(line) + 1)
    room = allowance - sum(counter.count(text) + 1 for text in (_quote_text(whole) or PROMPTS_HEADING, ANSWERS_HEADING))
    factors = history.ledger(plan_input.situation.scope, step.span.stop).role_factors()
    best = most_informative(turns, room, sizes, factors)
    said = sorted([*whole, *(turn for turn in best if turn.message.role == "user")], key=_position_of)
    return said, [turn for turn in best if turn.message.role == "assistant"]


def _quote_text(whole: list[Entry], heading: str = PROMPTS_HEADING) -> str:
    return "\n".join([heading, *(_quote_line(entry) for entry in whole)]) if whole else ""


def digest_text(plan_input: PlanInput, step: CompactSpan) -> str:
    """Return a digest of a span, for rules that use it instead of a summary."""
    return _make_digest(plan_input, step, _prompts_in(plan_input, step), [], MAX_DIGEST_SUMMARY_TOKENS)


def _tail_texts(plan_input: PlanInput, step: CompactSpan) -> Iterator[str]:
    """Yield the texts that stay in view after the span."""
    return message_texts(
        plan_input.projection.context.entries_between(step.span.stop, plan_input.projection.context.length)
    )


def message_texts(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield all texts of messages: their own text, tool results, and tool arguments."""
    for entry in entries:
        message = entry.message
        yield message.text
        yield from (result.text for result in message.results)
        yield from (argument_text(call.arguments) for call in message.calls)


def _make_digest(
    plan_input: PlanInput, step: CompactSpan, prompts: list[Entry], whole: list[Entry], allowance: int
) -> str:
    context, start = plan_input.projection.context, max(step.span.start, step.span.stop - REPLACEMENT_DIGEST_MESSAGES)
    telling = {entry.position: entry for entry in prompts[:MAX_QUOTED_PROMPTS]}
    telling |= {entry.position: entry for entry in context.entries_between(start, step.span.stop)}
    for position in (*step.span.kept, *(entry.position for entry in whole)):
        telling.pop(position, None)
    entries = [telling[position] for position in sorted(telling, key=lambda position: position or 0)]
    return make_digest(
        entries,
        allowance_tokens=max(0, allowance),
        counter=plan_input.situation.counter,
        message_count=step.span.count,
        is_prompt_kept=bool(step.span.kept),
    )


def _prompts_in(plan_input: PlanInput, step: CompactSpan) -> list[Entry]:
    """Return the prompts of the span: the first prompt, then the others, newest first."""
    visible = [
        position
        for position in plan_input.prompts_between(step.span.start, step.span.stop)
        if position not in step.span.kept
    ]
    chosen = [*visible[-1:], *visible[: MAX_REPLACEMENT_PROMPTS - 1]]
    plan_input.history.entries.require(chosen)
    return [plan_input.history.entries[position] for position in dict.fromkeys(chosen)]


def _quotable_prompts(
    prompts: list[Entry], allowance: int, plan_input: PlanInput, *, extra_for_short: int = 0
) -> list[Entry]:
    """Return the prompts that fit an allowance whole, in their original order.

    The first prompt is tried first, then short prompts, which may use an extra allowance, then the others. Most
    corrections of the user are short, so few tokens hold nearly all of them.
    """
    counter = plan_input.situation.counter
    left, quoted = allowance + extra_for_short - counter.count(PROMPTS_HEADING), list[Entry]()
    short = [entry for entry in prompts[1:] if _is_short(entry)]
    others = [entry for entry in prompts[1:] if not _is_short(entry)]
    for entry in [*prompts[:1], *short, *others]:
        room = left if _is_short(entry) else left - extra_for_short
        if len(entry.message.text) > room * MAX_CHARS_PER_TOKEN:
            continue
        cost = counter.count(_quote_line(entry)) + 1
        if cost <= room:
            left -= cost
            quoted.append(entry)
    return sorted(quoted, key=_position_of)


def _is_short(entry: Entry) -> bool:
    return len(entry.message.text) <= SHORT_PROMPT_TOKENS * PROMPT_CHARS_PER_TOKEN


def _position_of(entry: Entry) -> int:
    return entry.position or 0


def _quotable_line(entry: Entry) -> str:
    """Return the line that quotes a turn; empty if it is no plain text, or if a line of it imitates another speaker."""
    message, position = entry
    if position is None or message.role not in {"user", "assistant"} or uses_tools(message):
        return ""
    if message.role == "user":
        # Text from memory or from another agent is not the user's own.
        is_own = message.is_prompt and not (message.is_task or message.is_from_memory)
        return _quote_line(entry) if is_own else ""
    text = message.text
    shown = neutralize(text, beside_sections=True)
    # Most texts are quoted as they are. Others may just have a heading such as `Files:`, which imitates nobody.
    is_plain = shown == text or neutralize(text) == text
    return f"(#{position}) {shown}" if is_plain and text.strip() else ""


def _quote_line(entry: Entry) -> str:
    """Return a message to the letter, except that no line of it can pass for one of ours."""
    return f"(#{entry.position}) {neutralize(entry.message.text, beside_sections=True)}"
