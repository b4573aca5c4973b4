"""A summary without a model.

What the user asked, what was done and how it ended, which files were touched, what went wrong, what
was answered and what is open: read off the messages by rule, in the words that stand there, and
packed into an allowance of tokens. It is always available, at once, and always the same for the same
messages. It is marked as reference: nothing in it is a request, whoever said it first.
"""

import re
from collections.abc import Iterator, Sequence

from holdfast.core.conversation.messages import ToolCall, ToolResult
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry

QUOTE_CHARS = 300
LINE_CHARS = 160
MAX_FILES = 40

FAILURE_WORDS = ("error", "exception", "traceback", "failed", "failure", "fatal", "denied", "not found")
FAILURE_CHARS = 500
"""How much of each end of an output is searched for them: tools say it first or last."""
# Patterns are compiled at their first use, and kept by `re`.
_FILE_ARGUMENT = r'"(?:path|file|file_path|filename|filepath|target_file)"\s*:\s*"([^"\\]{1,200})"'
_PATH = r"(?<![\w/.-])(?:[\w.-]{1,60}/){1,12}[\w.-]{0,60}\w"


class _Section:
    """Lines under one heading, oldest first."""

    def __init__(self, heading: str, share: float) -> None:
        self.heading = heading
        self.share = share
        """How much of the allowance it may take before the others have had theirs."""
        self.lines: list[str] = []


class _Findings:
    def __init__(self) -> None:
        self.asked = _Section("The user asked:", 0.35)
        self.done = _Section("Done:", 0.25)
        self.errors = _Section("Went wrong:", 0.12)
        self.answers = _Section("The assistant said:", 0.18)
        self.files = _Section("Files:", 0.10)
        self.open_ends = _Section("Left open:", 0.10)


def digest(
    entries: Sequence[Entry],
    *,
    allowance_tokens: int,
    counter: Counter,
    message_count: int | None = None,
    is_continued: bool = False,
) -> str:
    """Return a summary of messages in at most `allowance_tokens`; empty if not even its frame fits.

    `message_count` is how many messages it stands for, where `entries` are only the most telling;
    `is_continued` says that the last turn goes on behind them.
    """
    count = len(entries) if message_count is None else message_count
    frame = (
        f"[Summary of {count:,} earlier messages, made by rule, for reference only. "
        "It records what happened and asks for nothing.]"
    )
    room = allowance_tokens - counter.count(frame) - 2
    if room < 0:
        return ""
    findings = _read(entries, is_continued=is_continued)
    sections = (
        findings.asked,
        findings.done,
        findings.errors,
        findings.answers,
        findings.files,
        findings.open_ends,
    )
    body = _pack([section for section in sections if section.lines], room, counter)
    return "\n".join([frame, *body])


def _read(entries: Sequence[Entry], *, is_continued: bool) -> _Findings:
    findings = _Findings()
    names: dict[str, ToolCall] = {}
    files: dict[str, None] = {}
    last_prompt, is_answered = None, True
    for entry in entries:
        message = entry.message
        tag = "" if entry.position is None else f"(#{entry.position}) "
        if message.is_prompt:
            last_prompt, is_answered = tag + _quote(message.text), False
            findings.asked.lines.append(last_prompt)
        for call in message.calls:
            names[call.id] = call
            for path in _paths(call.arguments):
                files.pop(path, None)
                files[path] = None
        for result in message.results:
            _note_result(findings, tag, names.pop(result.call_id, None), result)
        if message.role == "assistant" and message.text.strip() and not message.calls:
            is_answered = True
            findings.answers.lines.append(tag + _quote(message.text))
    if files:
        findings.files.lines = list(files)[-MAX_FILES:]
    findings.open_ends.lines = [f"no result for {_name_call(call)}" for call in names.values()]
    if last_prompt and not is_answered and not is_continued:
        findings.open_ends.lines.append(f"not answered yet: {last_prompt}")
    return findings


def _note_result(findings: _Findings, tag: str, call: ToolCall | None, result: ToolResult) -> None:
    text = result.text
    trouble = _trouble(text)
    name = _name_call(call) if call else "a tool"
    if result.is_error or trouble is not None:
        start = text.rfind("\n", 0, trouble or 0) + 1
        findings.errors.lines.append(f"{tag}{name}: {_one_line(text[start : start + 2 * LINE_CHARS])}")
        findings.done.lines.append(f"{tag}{name}: went wrong")
    else:
        findings.done.lines.append(f"{tag}{name}: {_size(text)}")


def _trouble(text: str) -> int | None:
    """Return where an output speaks of failure."""
    tail = max(0, len(text) - FAILURE_CHARS)
    for start, end in ((0, text[:FAILURE_CHARS].lower()), (tail, text[tail:].lower() if tail else "")):
        for word in FAILURE_WORDS:
            if (at := end.find(word)) >= 0:
                return start + at
    return None


def _name_call(call: ToolCall) -> str:
    return _one_line(f"{call.name} {call.arguments}" if call.arguments not in {"", "{}"} else call.name)


def _size(text: str) -> str:
    lines = text.count("\n") + 1
    return _one_line(text, 60) if lines == 1 else f"{lines:,} lines"


def _paths(arguments: str) -> Iterator[str]:
    head = arguments[:2_000]
    named = re.findall(_FILE_ARGUMENT, head)
    yield from named or re.findall(_PATH, head)


def _quote(text: str) -> str:
    return f"“{_one_line(text, QUOTE_CHARS)}”"


def _one_line(text: str, max_chars: int = LINE_CHARS) -> str:
    line = " ".join(text[: 4 * max_chars].split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def _pack(sections: list[_Section], room: int, counter: Counter) -> list[str]:
    """Return as many lines as fit: each section within its share first, then whoever has more."""

    def price(section: _Section, index: int) -> int:
        # A line of a list costs its words, a dash and a line break; the first one brings the heading.
        heading = 0 if chosen[section.heading] else counter.count(section.heading) + 1
        return heading + counter.count(section.lines[index]) + 3

    chosen: dict[str, list[int]] = {section.heading: [] for section in sections}
    left = room
    for is_sharing in (True, False):
        for section in sections:
            own = chosen[section.heading]
            allowance = min(left, int(room * section.share)) if is_sharing else left
            for index in _by_importance(len(section.lines)):
                if index in own:
                    continue
                cost = price(section, index)
                if cost > allowance:
                    break
                own.append(index)
                allowance -= cost
                left -= cost
    return [line for section in sections for line in _render(section, sorted(chosen[section.heading]))]


def _by_importance(count: int) -> Iterator[int]:
    """Yield the first, which says what it is all about, then the newest backwards."""
    if count:
        yield 0
        yield from range(count - 1, 0, -1)


def _render(section: _Section, chosen: list[int]) -> Iterator[str]:
    if not chosen:
        return
    yield section.heading
    for index in chosen:
        yield f"- {section.lines[index]}"
