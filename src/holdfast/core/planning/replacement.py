"""What the default policy puts in the place of folded messages.

The user's own words as far as they fit, whole; what was done, by a model's summary or read off by rule; the plan, the
list of things to do, skills and agents as they stand; and the names that are likely to be needed again. All of it is
marked as reference: it asks for nothing.

What of a talk stays whole when it is folded: the turns that say most in the fewest tokens.

Work leaves names, files and commands, which a ledger holds. Talk leaves what was said, and any turn may hold the one
fact that is asked for later. Rare words, names and numbers are what such facts are made of; a question holds none.
Where one side says little and the other much, what the one says counts for more. All of it is read off the turns
themselves, those that stood whole until now and those that an earlier fold has quoted.
"""

import math
import re
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.shorten import clip_text
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.digest import make_digest
from holdfast.core.history.session_state import SessionState
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.ledger.render import render_ledger
from holdfast.core.planning.steps import CompactSpan, PlanInput, Summary
from holdfast.core.planning.summary.framing import (
    ANSWERS_HEADING,
    PROMPTS_HEADING,
    STATE_HEADING,
    neutralize_frames,
    reference_frame,
)
from holdfast.text import pluralize

NAME_FACTOR = 3.0
"""What a name or a number counts for beside another word that is as rare."""
QUESTION_COST = 6.0
BASE_TOKENS = 10
"""A turn costs this much besides its words: very short ones say little."""
MAX_ROLE_FACTOR = 4.0
MIN_CHAT_SHARE = 0.8
"""Where less than this is talk, it is work."""
MIN_NAME_CHARS = 3
TURN_STEM_CHARS = 6
"""Words that begin alike so far count as one."""
_TOKEN = re.compile(r"[^\W_]+|[.!?:\n\[“\"]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def chat_share(entries: Sequence[Entry]) -> float:
    """Return which share of the text of messages is talk, and not calls or what tools gave back."""
    talk = work = 0
    for entry in entries:
        message = entry.message
        talk += len(message.text)
        if uses_tools(message):
            work += sum(len(result.text) for result in message.results)
            work += sum(len(call.name) + len(call.arguments) for call in message.calls)
    return talk / max(1, talk + work)


def uses_tools(message: Message) -> bool:
    """Return whether a message calls for something or answers that."""
    return bool(message.outline.call_ids or message.outline.result_ids)


def chat_scale(share: float) -> float:
    """Return how much of what a talk may keep a conversation keeps: all of it for nothing but talk, none for work."""
    return max(0.0, (share - MIN_CHAT_SHARE) / (1 - MIN_CHAT_SHARE))


def is_quotable(entry: Entry) -> bool:
    """Return whether a turn can stand among others' words: nothing but words, and none that speak as somebody else."""
    message = entry.message
    if entry.position is None or message.role not in {"user", "assistant"} or uses_tools(message):
        return False
    if message.role == "user":
        # What memory or another agent has put here is no word of the user's.
        return message.is_prompt and not (message.is_task or message.is_from_memory)
    return bool(message.text.strip()) and neutralize_frames(message.text) == message.text


def most_informative(entries: Sequence[Entry], allowance: int, price: Callable[[Entry], int]) -> list[Entry]:
    """Return the turns that say most in the fewest tokens, as many as fit, in the order in which they were said."""
    words = [_turn_words(entry.message.text) for entry in entries]
    held = Tally(word for one in words for word in one)
    sizes = [price(entry) for entry in entries]
    factors = _role_factors(entries, sizes)
    worth = [
        factors[entry.message.role] * _information(said, held, len(entries), entry.message.text) / (size + BASE_TOKENS)
        for entry, said, size in zip(entries, words, sizes, strict=True)
    ]
    chosen: dict[str, int] = {}
    for index in sorted(range(len(entries)), key=lambda index: (-worth[index], index)):
        text = entries[index].message.text
        # What says nothing, or nothing that was not said already, is not worth its tokens.
        if worth[index] > 0 and sizes[index] <= allowance and text not in chosen:
            allowance -= sizes[index]
            chosen[text] = index
    return [entries[index] for index in sorted(chosen.values())]


def _information(words: Mapping[str, bool], held: Mapping[str, int], total: int, text: str) -> float:
    """Return how much a turn says: its words by how rare they are, names and numbers above all."""
    said = sum(
        math.log(1 + (total - held[word] + 0.5) / (held[word] + 0.5)) * (NAME_FACTOR if is_name else 1.0)
        for word, is_name in words.items()
    )
    return max(0.0, said - (QUESTION_COST if "?" in text or "？" in text else 0.0))


def _turn_words(text: str) -> dict[str, bool]:
    """Return the words of a turn, each with whether it is a name or a number."""
    found: dict[str, bool] = {}
    is_beginning = True
    for token in _TOKEN.findall(text):
        if not token[0].isalnum():
            is_beginning = True
            continue
        is_name = token[0].isdigit() or (token[0].isupper() and not is_beginning and len(token) >= MIN_NAME_CHARS)
        for word in _word_stems(token):
            found[word] = found.get(word, False) or is_name
        is_beginning = False
    return found


def _word_stems(token: str) -> list[str]:
    """Return a word by its beginning; a run of Chinese, Japanese or Korean as pairs."""
    if _CJK.search(token):
        return [token[index : index + 2] for index in range(max(1, len(token) - 1))]
    return [token.lower()[:TURN_STEM_CHARS]]


def _role_factors(entries: Sequence[Entry], sizes: Sequence[int]) -> Mapping[str, float]:
    """Return what a turn counts for by who says it: the less somebody says in all, the more."""
    said = Tally[str]()
    for entry, size in zip(entries, sizes, strict=True):
        said[entry.message.role] += size
    total = sum(said.values())
    return {role: min(MAX_ROLE_FACTOR, max(1.0, total / (2 * size))) for role, size in said.items() if size}


PROMPTS_SHARE, LEDGER_SHARE = 0.2, 0.68
"""Of the allowance: for the user's words, and for the ledger; what they leave is the digest's."""
REPLACEMENT_DIGEST_MESSAGES = 64
"""How many of the newest folded messages a digest is read from."""
MAX_REPLACEMENT_PROMPTS = 256
"""How many of the user's messages are looked at, newest first."""
STATE_SHARE = 0.3
"""Of the allowance: the most that plan, todos, skills and agent take; what is longer is clipped."""
MAX_QUOTED_PROMPTS = 16
MIN_REPLACEMENT_DIGEST_TOKENS, MIN_STATE_CHARS = 60, 80


class _ReplacementParts(NamedTuple):
    """What a replacement holds besides an account of what was done."""

    prompts: list[Entry]
    """What the user said in the span, as far as it is looked at."""
    quoted: list[Entry]
    """What of it is quoted to the letter."""
    prompt_text: str
    ledger: str
    state: str
    """How things stand besides what was said."""
    answer_text: str = ""
    """What the assistant said, to the letter, where a talk is folded."""


class ReplacementBudget(NamedTuple):
    """What may stand for a span, in tokens."""

    tokens: int
    """Summary or digest, the user's words and the ledger."""
    chat_tokens: int = 0
    """Turns that stay whole besides, where a talk is folded."""


def replacement_text(
    plan_input: PlanInput, step: CompactSpan, summary: Summary | None, allowance: ReplacementBudget
) -> str:
    """Return the text that stands for a span, in at most the allowance where no model's summary is in it."""
    kept = _replacement_parts(plan_input, step, allowance)
    texts = kept.state, kept.prompt_text, kept.answer_text, kept.ledger
    taken = sum(plan_input.situation.counter.count(text) + 2 for text in texts if text)
    done = (
        reference_frame(summary.text, step.count)
        if summary
        else _digest_text(plan_input, step, kept, allowance.tokens - max(0, taken - allowance.chat_tokens))
    )
    return "\n\n".join(text for text in (done, *texts) if text) or f"[{pluralize(step.count, 'earlier message')}]"


def _digest_text(plan_input: PlanInput, step: CompactSpan, kept: _ReplacementParts, allowance: int) -> str:
    """Return what was done by rule; where a model's summary of the beginning came too late for its fold, that first."""
    known = plan_input.history.session_state.summary_within(step.start, step.stop, plan_input.situation.scope)
    if known is None:
        return _make_digest(plan_input, step, kept.prompts, kept.quoted, allowance)
    told = reference_frame(known.text, known.stop - known.start)
    left = allowance - plan_input.situation.counter.count(told)
    rest = replace(step, start=known.stop, count=max(1, step.count - (known.stop - known.start)))
    newer = [entry for entry in kept.prompts if (entry.position or 0) >= known.stop]
    if left < MIN_REPLACEMENT_DIGEST_TOKENS or known.stop == step.stop:
        return told
    return f"{told}\n\n{_make_digest(plan_input, rest, newer, kept.quoted, left)}"


def texts_beside_summary(plan_input: PlanInput, step: CompactSpan, allowance: ReplacementBudget) -> list[str]:
    """Return the texts that a summary of a span will stand next to: what it need not say, and what it may lose."""
    kept = _replacement_parts(plan_input, step, allowance)
    positions = sorted({*step.kept, *(pin for pin in plan_input.situation.pins if step.start <= pin < step.stop)})
    staying = [plan_input.history.entries[position] for position in positions]
    others = [text for text in (kept.answer_text, kept.state) if text]
    return [kept.prompt_text, kept.ledger, *others, *message_texts(staying), *_tail_texts(plan_input, step)]


def quoted_positions(texts: Iterable[str], plan_input: PlanInput) -> tuple[int, ...]:
    """Return the positions of messages that texts quote whole, as this page does."""
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
    # Of a talk the first prompt stays for its own sake, and all else for what it says.
    whole = _quotable_prompts(
        prompts[:1] if budget.chat_tokens else prompts, int(allowance * PROMPTS_SHARE), plan_input
    )
    ledger = plan_input.history.ledger(plan_input.situation.scope, step.stop)
    near = "\n".join([_quote_text(whole), state, *_tail_texts(plan_input, step)])
    names = render_ledger(ledger, int(allowance * LEDGER_SHARE), counter, exclude_text=near)
    # A conversation without tools has few names: what the ledger leaves, the user's words take.
    spare = max(int(allowance * (PROMPTS_SHARE + LEDGER_SHARE)) - counter.count(names), int(allowance * PROMPTS_SHARE))
    if budget.chat_tokens:
        whole, answers = _quoted_turns(plan_input, step, whole, spare + budget.chat_tokens)
        return _ReplacementParts(
            prompts, whole, _quote_text(whole), names, state, _quote_text(answers, ANSWERS_HEADING)
        )
    # What was quoted stays so: the ledger does not say it again.
    quoted = {entry.position for entry in whole}
    others = [entry for entry in prompts if entry.position not in quoted]
    whole = _quotable_prompts([*whole, *others], spare, plan_input)
    return _ReplacementParts(prompts, whole, _quote_text(whole), names, state)


def _running_delegates(plan_input: PlanInput) -> str:
    """Return the agents that were sent out from here, are shown here and have not answered, each with its task."""
    context, entries = plan_input.projection.context, plan_input.history.entries
    sent = [
        scope
        for scope in plan_input.history.session_state.running_delegates
        if context.scopes.parents.get(scope) == context.scope
    ]
    firsts = {scope: context.message_scopes.index(scope) for scope in sent if scope in context.message_scopes}
    entries.require([first for first in firsts.values() if context.may_be_visible(first)])
    told = {scope: entries[first].message.text for scope, first in firsts.items() if context.is_visible(first)}
    return "\n".join(f"- {scope}: {' '.join(task.split())}" for scope, task in told.items())


def _state_text(state: SessionState, at_work: str, allowance: int, counter: Counter) -> str:
    """Return how things stand in at most an allowance; of skills the last one with its instructions."""
    *earlier, last = [*state.skills] or [""]
    skills = "\n".join([*(f"- {name}" for name in earlier), f"- {last}: {state.skills[last]}"]) if last else ""
    parts = {"Plan": state.plan, "To do": state.todos, "Skills called upon": skills, "Agent": state.agent_summary}
    parts["Agents at work when this was written; what they find comes later"] = at_work
    told = {name: neutralize_frames(text.strip()) for name, text in parts.items() if text.strip()}
    chars = max(map(len, told.values()), default=0)
    while told:
        text = "\n".join([STATE_HEADING, *(f"{name}:\n{clip_text(told[name], chars)}" for name in told)])
        if counter.count(text) <= allowance:
            return text
        if chars < MIN_STATE_CHARS:
            break
        chars = int(0.8 * chars)
    return ""


def _quoted_turns(
    plan_input: PlanInput, step: CompactSpan, whole: list[Entry], allowance: int
) -> tuple[list[Entry], list[Entry]]:
    """Return the turns of a talk that are worth staying whole, the user's and the assistant's.

    They are chosen from those that stood whole until now and those that an earlier fold has quoted.
    """
    history, counter = plan_input.history, plan_input.situation.counter
    known = [position for fold in plan_input.projection.context.state.compactions for position in fold.quoted]
    standing = [entry.position for entry in plan_input.projection.entries if entry.position is not None]
    chosen = {position for position in (*known, *standing) if step.start <= position < step.stop}
    others = sorted(chosen.difference(step.kept, (entry.position or 0 for entry in whole)))
    history.entries.require(others)
    turns = [turn for turn in (history.entries[position] for position in others) if is_quotable(turn)]
    room = allowance - sum(counter.count(text) + 1 for text in (_quote_text(whole) or PROMPTS_HEADING, ANSWERS_HEADING))
    best = most_informative(turns, room, lambda entry: counter.count(_quote_line(entry)) + 1)
    said = sorted([*whole, *(turn for turn in best if turn.message.role == "user")], key=_position_of)
    return said, [turn for turn in best if turn.message.role == "assistant"]


def _quote_text(whole: list[Entry], heading: str = PROMPTS_HEADING) -> str:
    return "\n".join([heading, *(_quote_line(entry) for entry in whole)]) if whole else ""


def digest_text(plan_input: PlanInput, step: CompactSpan, allowance: int = 2_000) -> str:
    """Return a summary of a span made by rule alone, for those that want nothing but a summary."""
    return _make_digest(plan_input, step, _prompts_in(plan_input, step), [], allowance)


def _tail_texts(plan_input: PlanInput, step: CompactSpan) -> Iterator[str]:
    """Yield the texts that stay in view behind the fold."""
    return message_texts(plan_input.projection.context.entries_between(step.stop, plan_input.projection.context.length))


def message_texts(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield all that can be read in messages: what was said, what tools answered, and what they were asked."""
    for entry in entries:
        message = entry.message
        yield message.text
        yield from (result.text for result in message.results)
        yield from (argument_text(call.arguments) for call in message.calls)


def _make_digest(
    plan_input: PlanInput, step: CompactSpan, prompts: list[Entry], whole: list[Entry], allowance: int
) -> str:
    context, start = plan_input.projection.context, max(step.start, step.stop - REPLACEMENT_DIGEST_MESSAGES)
    telling = {entry.position: entry for entry in prompts[:MAX_QUOTED_PROMPTS]}
    telling |= {entry.position: entry for entry in context.entries_between(start, step.stop)}
    for position in (*step.kept, *(entry.position for entry in whole)):
        telling.pop(position, None)
    entries = [telling[position] for position in sorted(telling, key=lambda position: position or 0)]
    return make_digest(
        entries,
        allowance_tokens=max(0, allowance),
        counter=plan_input.situation.counter,
        message_count=step.count,
        is_prompt_kept=bool(step.kept),
    )


def _prompts_in(plan_input: PlanInput, step: CompactSpan) -> list[Entry]:
    """Return what the user said in the span: the first message, then the newest backwards."""
    standing = [position for position in plan_input.prompts_between(step.start, step.stop) if position not in step.kept]
    chosen = [*standing[-1:], *standing[: MAX_REPLACEMENT_PROMPTS - 1]]
    plan_input.history.entries.require(chosen)
    return [plan_input.history.entries[position] for position in dict.fromkeys(chosen)]


def _quotable_prompts(prompts: list[Entry], allowance: int, plan_input: PlanInput) -> list[Entry]:
    """Return the prompts that fit an allowance whole, in the order in which they were said."""
    return sorted(_prompts_within(prompts, allowance, plan_input), key=_position_of)


def _prompts_within(prompts: list[Entry], allowance: int, plan_input: PlanInput) -> Iterator[Entry]:
    counter = plan_input.situation.counter
    left = allowance - counter.count(PROMPTS_HEADING)
    for entry in prompts:
        cost = counter.count(_quote_line(entry)) + 1
        if cost <= left:
            left -= cost
            yield entry


def _position_of(entry: Entry) -> int:
    return entry.position or 0


def _quote_line(entry: Entry) -> str:
    return f"(#{entry.position}) {entry.message.text}"
