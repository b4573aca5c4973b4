"""The messages of a span as text for a summarizer, in chunks that fit its window.

A label precedes every part of a message and names its position and speaker: `[#12 user]` or
`[#13 result of read_file]`. No text can forge a label: a line that looks like one is quoted. Reasoning is left
out. So are earlier summaries, which have a frame of their own in the prompt. A placeholder replaces media. All other
text is included: a text that is too large for one chunk continues in the next, with its part number in the label. A
rule may ask for each tool result together with its input; the call then has no text of its own.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from holdfast.core.conversation.frames import neutralize, quote_message_starts
from holdfast.core.conversation.json_values import parse_json, replace_surrogates
from holdfast.core.conversation.messages import (
    Content,
    Entry,
    Media,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Trust,
)
from holdfast.core.conversation.shorten import clip_text
from holdfast.core.conversation.tokens import Counter, utf8_length
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError
from holdfast.text import clip_to_line

MIN_CHUNK_TOKENS, MIN_CHUNK_BYTES = 200, 600
"""Room for the longest label and some text after it."""
NAME_BYTES = 128
"""No provider allows a longer tool name."""
MESSAGE_START_CHARS = 60
"""How many characters of a message distinguish it from its neighbors."""
CHUNK_CHARS_PER_TOKEN = 5
"""More than texts have on average: the first guess of where to cut should be too long rather than too short."""
ENCRYPTED_FIELD_NAMES = ("signature", "encrypted")
"""Substrings in the kind of a block that only the provider can read."""
RedactText: TypeAlias = Callable[[str], str]
"""A function that returns a text with its secrets redacted."""
SPEAKER_LABELS: dict[Trust, str] = {
    "system": "note",
    "user": "user",
    "agent": "task",
    "model": "assistant",
    "tool": "tool",
    "memory": "memory",
}


class LabeledText(NamedTuple):
    """A text with the label that names its position and speaker."""

    label: str
    body: str

    def __str__(self) -> str:
        return f"[{self.label}]\n{quote_message_starts(self.body)}" if self.body else f"[{self.label}]"


_LabeledMessage: TypeAlias = tuple[Entry, list[LabeledText]]


class _SeenCalls(NamedTuple):
    """The tool calls so far, and those whose input the result shows."""

    by_id: dict[str, ToolCall]
    shown: frozenset[str]
    is_shown: bool = False
    """Whether results show their input, so that no other text may look like one."""


@dataclass(frozen=True, slots=True)
class _ChunkLimits:
    counter: Counter
    max_tokens: int
    max_bytes: int

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", MIN_CHUNK_TOKENS), ("max_bytes", MIN_CHUNK_BYTES)):
            if getattr(self, name) < least:
                problem = f"must be at least {least} to hold part of a conversation, not {getattr(self, name)}"
                raise SettingsError(f"summary.{name}", problem)

    def excess(self, text: str) -> float:
        """Return the size of a text as a multiple of the limit; up to 1 it fits."""
        share = utf8_length(text) / self.max_bytes
        # Counting tokens is expensive, and a text with too many bytes does not fit anyway.
        return share if share > 1 else max(share, self.counter.count(text) / self.max_tokens)

    def fits(self, text: str) -> bool:
        return self.excess(text) <= 1


def split_into_chunks(
    entries: Iterable[Entry],
    counter: Counter,
    max_tokens: int,
    max_bytes: int,
    hide: RedactText = str,
    *,
    shows_tool_use: bool = False,
) -> list[str]:
    """Return all messages as text, in as few chunks as fit both limits, cut between messages if possible.

    `hide` redacts each text before it is cut, because half of a secret does not look like a secret. With
    `shows_tool_use`, a tool result contains its input too, in the form of `tool_use_as_text`.
    """
    limits = _ChunkLimits(counter, max_tokens, max_bytes)
    packed: list[str] = []
    current: list[str] = []
    tokens = size = 0
    for unit in _unsplittable_texts(_labeled_messages(entries, hide, shows_tool_use=shows_tool_use), limits):
        # Each unit adds a line break.
        unit_tokens, unit_size = counter.count(unit) + 1, utf8_length(unit) + 1
        if current and (tokens + unit_tokens > max_tokens or size + unit_size > max_bytes):
            packed += _join_texts(current, limits)
            current, tokens, size = [], 0, 0
        current.append(unit)
        tokens, size = tokens + unit_tokens, size + unit_size
    return [*packed, *_join_texts(current, limits)]


def newest_as_text(
    entries: Sequence[Entry], counter: Counter, max_tokens: int, max_bytes: int, hide: RedactText = str
) -> str:
    """Return the newest messages as text, as many as fit: they stay in view, and the summarizer reads them as context.

    If the newest message alone does not fit, it is shortened.
    """
    limits = _ChunkLimits(counter, max_tokens, max_bytes)
    shown = ""
    for entry, blocks in reversed(_labeled_messages(entries, hide)):
        text = "\n".join(map(str, blocks))
        longer = f"{text}\n{shown}" if shown else text
        if limits.fits(longer):
            shown = longer
            continue
        return shown or _clip_labeled(_speaker_label(entry, "clipped"), text, limits)
    return shown


def position_index(entries: Iterable[Entry], counter: Counter, max_tokens: int, hide: RedactText = str) -> str:
    """Return an index of messages, one line each with label and first characters; if it is too long, only every nth."""
    lines = [
        f"[{blocks[0].label}] {clip_to_line(blocks[0].body, MESSAGE_START_CHARS)}"
        for _, blocks in _labeled_messages(entries, hide)
    ]
    for step in range(1, len(lines) + 1):
        text = "\n".join([*lines[:-1:step], *lines[-1:]])
        if counter.count(text) <= max_tokens:
            return text
    return ""


def _unsplittable_texts(messages: Iterable[_LabeledMessage], limits: _ChunkLimits) -> Iterator[str]:
    """Yield the units that a chunk holds whole: messages, or the parts of a message that is too large."""
    for _, blocks in messages:
        text = "\n".join(map(str, blocks))
        if limits.fits(text):
            yield text
            continue
        for block in blocks:
            if limits.fits(whole := str(block)):
                yield whole
            else:
                yield from _split_text(block, limits)


def _split_text(block: LabeledText, limits: _ChunkLimits) -> Iterator[str]:
    """Yield a text in parts that fit, each with its part number in the label."""
    most = "9" * len(str(len(block.body)))
    bodies: list[str] = []
    start = 0
    while start < len(block.body):
        body = _fitting_start(f"{block.label}, part {most} of {most}", block.body, start, limits)
        bodies.append(body)
        start += len(body)
    for number, body in enumerate(bodies, start=1):
        yield str(LabeledText(f"{block.label}, part {number} of {len(bodies)}", body))


def _fitting_start(label: str, text: str, start: int, limits: _ChunkLimits) -> str:
    """Return as much of a text as fits after a label, at least one character."""
    length = min(len(text) - start, limits.max_tokens * CHUNK_CHARS_PER_TOKEN, limits.max_bytes)
    while True:
        body = text[start : start + length]
        if start + length < len(text):
            body = body[: _cut_offset(body)]
        excess = limits.excess(str(LabeledText(label, body)))
        if excess <= 1 or length == 1:
            return body
        length = max(1, min(length - 1, int(0.95 * length / excess)))


def _cut_offset(text: str) -> int:
    """Return where to cut a text: after its last line break, else after its last space, else at its end."""
    half = len(text) // 2
    line = text.rfind("\n", half)
    if line >= 0:
        return line + 1
    spaces = (index + 1 for index in range(len(text) - 1, half - 1, -1) if text[index].isspace())
    return next(spaces, len(text))


def _join_texts(units: list[str], limits: _ChunkLimits) -> list[str]:
    """Return units as one chunk, or as several if joining them costs more tokens than the units alone."""
    text = "\n".join(units)
    if not units or len(units) == 1 or limits.fits(text):
        return [text] if units else []
    half = len(units) // 2
    return [*_join_texts(units[:half], limits), *_join_texts(units[half:], limits)]


def _clip_labeled(label: str, text: str, limits: _ChunkLimits) -> str:
    chars = min(len(text), limits.max_tokens * CHUNK_CHARS_PER_TOKEN, limits.max_bytes)
    while not limits.fits(clipped := str(LabeledText(label, clip_text(text, chars)))):
        chars = int(0.8 * chars)
    return clipped


def _labeled_messages(
    entries: Iterable[Entry], hide: RedactText, *, shows_tool_use: bool = False
) -> list[_LabeledMessage]:
    """Return the messages that have any text, each with its labeled texts."""
    messages = list(entries)
    answered = (result.call_id for entry in messages if shows_tool_use for result in entry.message.results)
    calls = _SeenCalls({}, frozenset(answered), shows_tool_use)
    said: list[_LabeledMessage] = []
    for entry in messages:
        if entry.message.role == "system":
            continue
        calls.by_id.update({call.id: call for call in entry.message.calls})
        if blocks := [LabeledText(label, hide(body)) for label, body in _message_texts(entry, calls)]:
            said.append((entry, blocks))
    return said


def _message_texts(entry: Entry, calls: _SeenCalls) -> Iterator[LabeledText]:
    found = (block for part in entry.message.parts for block in _part_texts(entry, part, calls))
    for label, same in groupby(found, key=lambda block: block.label):
        yield LabeledText(label, replace_surrogates("\n".join(block.body for block in same)))


def _part_texts(entry: Entry, part: Part, calls: _SeenCalls) -> Iterator[LabeledText]:
    if isinstance(part, Thinking) or part.trust == "summary" or (isinstance(part, ToolCall) and part.id in calls.shown):
        return
    if isinstance(part, ToolCall):
        yield LabeledText(_speaker_label(entry, f"call {_tool_label(part.name)}"), part.arguments)
    elif isinstance(part, ToolResult):
        call = calls.by_id.get(part.call_id) or part.answered_call
        tool = _tool_label(call.name if call else "")
        label = _speaker_label(entry, f"result of {tool}{', error' if part.is_error else ''}")
        output = "\n".join(filter(None, map(_content_text, part.content)))
        is_use = call is not None and part.call_id in calls.shown
        yield LabeledText(label, tool_use_as_text(tool, call.arguments, output) if call and is_use else output)
    elif isinstance(part, Opaque):
        if body := _content_text(part):
            yield LabeledText(_speaker_label(entry, f"block {_tool_label(part.kind)}"), body)
    elif isinstance(part, Media) or not part.is_blank:
        label, text = _speaker_label(entry, SPEAKER_LABELS.get(part.trust, part.trust)), _content_text(part)
        yield LabeledText(label, neutralize(text) if calls.is_shown else text)


def tool_use_as_text(name: str, arguments: str, output: str) -> str:
    """Return a tool call with its result as text, in the form of Inkeep: JSON is indented, and no line is forged."""
    given, returned = neutralize(_indented_json(arguments)), neutralize(_indented_json(output))
    return f"## Tool: {neutralize(name, 'name')}\n\n**Input:**\n{given}\n\n**Output:**\n{returned}"


def _indented_json(text: str) -> str:
    """Return a JSON object or list with an indent; any other text unchanged."""
    try:
        value = parse_json(text)
        return json.dumps(value, ensure_ascii=False, indent=2) if isinstance(value, dict | list) else text
    except (ValueError, RecursionError):
        return text


def _content_text(content: Content) -> str:
    if isinstance(content, Media):
        return f"[{content.kind}]"
    if isinstance(content, Text) or content.text:
        return content.text
    return (
        "" if any(word in content.kind.lower() for word in ENCRYPTED_FIELD_NAMES) else f"[{_tool_label(content.kind)}]"
    )


def _speaker_label(entry: Entry, words: str) -> str:
    return f"#{'-' if entry.position is None else entry.position} {words}"


def _tool_label(name: str) -> str:
    """Return a tool's name in a form that is safe inside a label."""
    line = "".join(char if char.isprintable() and char not in "[]" else " " for char in replace_surrogates(name))
    short = line.encode()[:NAME_BYTES].decode(errors="ignore")
    return " ".join(short.split()) or "a tool"
