"""The messages of a span as data for a summariser: all of them, in pieces that it can read.

Every part of a message stands under a line that says where it was said and by whom, `[#12 user]` or
`[#13 result of read_file]`, and no text can forge such a line: where one looks like it, it is quoted. Reasoning is left
out, media are a word, and so are earlier summaries, which have a place of their own. Nothing else is: what is
too large for one piece goes on in the next, and says which part it is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeAlias

from holdfast.core.conversation.clip import clip_text
from holdfast.core.conversation.json_values import cleaned_text
from holdfast.core.conversation.messages import (
    Content,
    Media,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Trust,
)
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry
from holdfast.core.conversation.weight import utf8_length
from holdfast.core.history.ledger.calls import one_line
from holdfast.core.planning.summary.frames import quoted
from holdfast.errors import SettingsError

MIN_PIECE_TOKENS, MIN_PIECE_BYTES = 200, 600
"""Room for the longest line that says who speaks, and for some words under it."""
NAME_BYTES = 128
"""No provider allows a tool a longer name."""
BEGINNING_CHARS = 60
"""How much of a message tells it from its neighbours."""
CHARS_PER_TOKEN = 5
"""More than texts have on average: where a part of a message is cut is guessed from above."""
SEALED = ("signature", "encrypted")
"""What stands in the names of blocks that only a provider can read."""
Hide: TypeAlias = Callable[[str], str]
"""Takes out of what was said what nobody else may see."""
SPEAKERS: dict[Trust, str] = {
    "system": "note",
    "user": "user",
    "agent": "task",
    "model": "assistant",
    "tool": "tool",
    "memory": "memory",
}


class Block(NamedTuple):
    """Something that was said, and the words that tell where and by whom."""

    label: str
    body: str

    def __str__(self) -> str:
        return f"[{self.label}]\n{quoted(self.body)}" if self.body else f"[{self.label}]"


@dataclass(frozen=True, slots=True)
class _Limits:
    counter: Counter
    max_tokens: int
    max_bytes: int

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", MIN_PIECE_TOKENS), ("max_bytes", MIN_PIECE_BYTES)):
            if getattr(self, name) < least:
                problem = f"a piece of a conversation needs at least {least}, not {getattr(self, name)}"
                raise SettingsError(f"summary.{name}", problem)

    def excess(self, text: str) -> float:
        """Return how many times as much as allowed a text is; up to 1 it fits."""
        share = utf8_length(text) / self.max_bytes
        # Tokens are dear to count, and what has too many bytes does not fit anyway.
        return share if share > 1 else max(share, self.counter.count(text) / self.max_tokens)

    def hold(self, text: str) -> bool:
        return self.excess(text) <= 1


def pieces(entries: Iterable[Entry], counter: Counter, max_tokens: int, max_bytes: int, hide: Hide = str) -> list[str]:
    """Return everything that was said, in as few pieces as fit both limits, cut between messages where possible.

    `hide` sees each text before it is cut: half of a secret does not look like one.
    """
    limits = _Limits(counter, max_tokens, max_bytes)
    packed: list[str] = []
    current: list[str] = []
    tokens = size = 0
    for unit in _units(entries, limits, hide):
        # Each unit brings a line break.
        unit_tokens, unit_size = counter.count(unit) + 1, utf8_length(unit) + 1
        if current and (tokens + unit_tokens > max_tokens or size + unit_size > max_bytes):
            packed += _joined(current, limits)
            current, tokens, size = [], 0, 0
        current.append(unit)
        tokens, size = tokens + unit_tokens, size + unit_size
    return [*packed, *_joined(current, limits)]


def newest(entries: Sequence[Entry], counter: Counter, max_tokens: int, max_bytes: int, hide: Hide = str) -> str:
    """Return the last messages, as many as fit; for what stays in view anyway and is shown only to be known.

    The last one is shortened where it does not fit by itself.
    """
    limits = _Limits(counter, max_tokens, max_bytes)
    shown = ""
    for entry, blocks in reversed(_said(entries, hide)):
        text = "\n".join(map(str, blocks))
        longer = f"{text}\n{shown}" if shown else text
        if limits.hold(longer):
            shown = longer
            continue
        return shown or _clipped(_label(entry, "clipped"), text, limits)
    return shown


def positions(entries: Iterable[Entry], counter: Counter, max_tokens: int, hide: Hide = str) -> str:
    """Return the beginnings of messages with where they were said, a line each; of too many some."""
    lines = [f"[{blocks[0].label}] {one_line(blocks[0].body, BEGINNING_CHARS)}" for _, blocks in _said(entries, hide)]
    for step in range(1, len(lines) + 1):
        text = "\n".join([*lines[:-1:step], *lines[-1:]])
        if counter.count(text) <= max_tokens:
            return text
    return ""


def _units(entries: Iterable[Entry], limits: _Limits, hide: Hide) -> Iterator[str]:
    """Yield what must not be parted: messages, or what a message that is too large has to be cut into."""
    for _, blocks in _said(entries, hide):
        text = "\n".join(map(str, blocks))
        if limits.hold(text):
            yield text
            continue
        for block in blocks:
            if limits.hold(whole := str(block)):
                yield whole
            else:
                yield from _split(block, limits)


def _split(block: Block, limits: _Limits) -> Iterator[str]:
    """Yield a text in parts that fit, each saying which part it is."""
    most = "9" * len(str(len(block.body)))
    bodies: list[str] = []
    start = 0
    while start < len(block.body):
        body = _beginning(f"{block.label}, part {most} of {most}", block.body, start, limits)
        bodies.append(body)
        start += len(body)
    for number, body in enumerate(bodies, start=1):
        yield str(Block(f"{block.label}, part {number} of {len(bodies)}", body))


def _beginning(label: str, text: str, start: int, limits: _Limits) -> str:
    """Return as much of a text as fits under a label; one character at least."""
    length = min(len(text) - start, limits.max_tokens * CHARS_PER_TOKEN, limits.max_bytes)
    while True:
        body = text[start : start + length]
        if start + length < len(text):
            body = body[: _border(body)]
        excess = limits.excess(str(Block(label, body)))
        if excess <= 1 or length == 1:
            return body
        length = max(1, min(length - 1, int(0.95 * length / excess)))


def _border(text: str) -> int:
    """Return where a text is best cut: after its last line, else after its last word, else at its end."""
    half = len(text) // 2
    line = text.rfind("\n", half)
    if line >= 0:
        return line + 1
    spaces = (index + 1 for index in range(len(text) - 1, half - 1, -1) if text[index].isspace())
    return next(spaces, len(text))


def _joined(units: list[str], limits: _Limits) -> list[str]:
    """Return units as one piece, or as more where together they cost more than one by one."""
    text = "\n".join(units)
    if not units or len(units) == 1 or limits.hold(text):
        return [text] if units else []
    half = len(units) // 2
    return [*_joined(units[:half], limits), *_joined(units[half:], limits)]


def _clipped(label: str, text: str, limits: _Limits) -> str:
    chars = min(len(text), limits.max_tokens * CHARS_PER_TOKEN, limits.max_bytes)
    while not limits.hold(clipped := str(Block(label, clip_text(text, chars)))):
        chars = int(0.8 * chars)
    return clipped


def _said(entries: Iterable[Entry], hide: Hide) -> list[tuple[Entry, list[Block]]]:
    """Return the messages that say something, each with what it says."""
    names: dict[str, str] = {}
    said: list[tuple[Entry, list[Block]]] = []
    for entry in entries:
        if entry.message.role == "system":
            continue
        names.update({call.id: call.name for call in entry.message.calls})
        if blocks := [Block(label, hide(body)) for label, body in _blocks(entry, names)]:
            said.append((entry, blocks))
    return said


def _blocks(entry: Entry, names: dict[str, str]) -> Iterator[Block]:
    found = (block for part in entry.message.parts for block in _part(entry, part, names))
    for label, same in groupby(found, key=lambda block: block.label):
        yield Block(label, cleaned_text("\n".join(block.body for block in same)))


def _part(entry: Entry, part: Part, names: dict[str, str]) -> Iterator[Block]:
    if isinstance(part, Thinking) or part.trust == "summary":
        return
    if isinstance(part, ToolCall):
        yield Block(_label(entry, f"call {_name(part.name)}"), part.arguments)
    elif isinstance(part, ToolResult):
        tool = _name(names.get(part.call_id, "") or (part.answers.name if part.answers else ""))
        label = _label(entry, f"result of {tool}{', error' if part.is_error else ''}")
        yield Block(label, "\n".join(filter(None, map(_content, part.content))))
    elif isinstance(part, Opaque):
        if body := _content(part):
            yield Block(_label(entry, f"block {_name(part.kind)}"), body)
    elif isinstance(part, Media) or not part.is_blank:
        yield Block(_label(entry, SPEAKERS.get(part.trust, part.trust)), _content(part))


def _content(content: Content) -> str:
    if isinstance(content, Media):
        return f"[{content.kind}]"
    if isinstance(content, Text) or content.text:
        return content.text
    return "" if any(word in content.kind.lower() for word in SEALED) else f"[{_name(content.kind)}]"


def _label(entry: Entry, words: str) -> str:
    return f"#{'-' if entry.position is None else entry.position} {words}"


def _name(name: str) -> str:
    """Return a tool's name as it can stand in a line of ours."""
    line = "".join(char if char.isprintable() and char not in "[]" else " " for char in cleaned_text(name))
    short = line.encode()[:NAME_BYTES].decode(errors="ignore")
    return " ".join(short.split()) or "a tool"
