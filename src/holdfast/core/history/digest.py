"""Summarize messages by rule, without a model.

A digest quotes what the user asked, what the agent did and with which outcome, the files, the errors, the
answers, and the open points. It packs these lines into a token budget. A digest is always available
immediately, and the same messages always produce the same digest. Its frame marks it as reference, so that the
model does not read a quoted request as a new one.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias, overload

from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.messages import Entry, ToolResult
from holdfast.core.conversation.packing import Section, first_then_newest, pack_sections
from holdfast.core.conversation.tokens import Counter
from holdfast.core.ledger.actions import call_outcome
from holdfast.core.ledger.identifiers import argument_value
from holdfast.core.ledger.tool_calls import ObservedCall, describe_call
from holdfast.dataclass import dataclass
from holdfast.text import clip_to_line, pluralize

QUOTE_CHARS = 300
SIZE_CHARS = 60
MAX_FILES = 40


class _Quotation(NamedTuple):
    """What somebody said, to be quoted in a line."""

    tag: str
    text: str

    def __str__(self) -> str:
        return f"{self.tag}“{clip_to_line(self.text, QUOTE_CHARS)}”"


_Line: TypeAlias = str | _Quotation


class _SafeLines(Sequence[str]):
    """The lines of a section, made safe for it. Most digests have room for a few, so each is made when it is read."""

    def __init__(self, lines: Sequence[_Line]) -> None:
        self._lines = lines
        self._made: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if index not in self._made:
            self._made[index] = neutralize(str(self._lines[index]), "item")
        return self._made[index]


@dataclass(slots=True)
class _DigestLines:
    """The lines of a digest by section, oldest first."""

    requests: list[_Line] = field(default_factory=list[_Line])
    tasks: list[_Line] = field(default_factory=list[_Line])
    """Tasks that agents gave to other agents."""
    actions: list[_Line] = field(default_factory=list[_Line])
    errors: list[_Line] = field(default_factory=list[_Line])
    answers: list[_Line] = field(default_factory=list[_Line])
    files: list[_Line] = field(default_factory=list[_Line])
    open_ends: list[_Line] = field(default_factory=list[_Line])

    def sections(self) -> list[Section]:
        """Return the lines as sections, each with its heading and its share of the budget."""
        shares = (
            ("The user asked:", 0.35, self.requests),
            ("Agents were told:", 0.12, self.tasks),
            ("Done:", 0.25, self.actions),
            ("Went wrong:", 0.12, self.errors),
            ("The assistant said:", 0.18, self.answers),
            ("Files:", 0.10, self.files),
            ("Left open:", 0.10, self.open_ends),
        )
        return [
            Section(heading, share, _SafeLines(lines), first_then_newest(len(lines)))
            for heading, share, lines in shares
        ]


def make_digest(
    entries: Sequence[Entry],
    *,
    allowance_tokens: int,
    counter: Counter,
    message_count: int | None = None,
    is_prompt_kept: bool = False,
) -> str:
    """Return a summary of messages in at most `allowance_tokens`; empty if not even its frame fits.

    `message_count` is the number of messages that the digest replaces, if `entries` are only a selection of them.
    `is_prompt_kept` says that the prompt stays in view or its turn continues after `entries`, so the digest does not
    list the last prompt as unanswered.
    """
    count = len(entries) if message_count is None else message_count
    frame = (
        f"[Summary of {pluralize(count, 'earlier message')}, made by rule, for reference only. "
        "It records what happened and asks for nothing.]"
    )
    room = allowance_tokens - counter.count(frame) - 2
    if room < 0:
        return ""
    lines = _collect_lines(entries, is_prompt_kept=is_prompt_kept)
    return "\n".join([frame, *pack_sections(lines.sections(), room, counter)])


def _collect_lines(entries: Sequence[Entry], *, is_prompt_kept: bool) -> _DigestLines:
    findings = _DigestLines()
    open_calls: dict[str, ObservedCall] = {}
    files: dict[str, None] = {}
    last_prompt, is_answered = None, True
    for entry in entries:
        message = entry.message
        tag = "" if entry.position is None else f"(#{entry.position}) "
        if message.is_prompt:
            last_prompt, is_answered = _Quotation(tag, message.text), False
            (findings.tasks if message.is_task else findings.requests).append(last_prompt)
        for part in message.calls:
            call = describe_call(part, argument_value(part.arguments), entry.position or 0)
            open_calls[call.id] = call
            for path in call.paths:
                files.pop(path, None)
                files[path] = None
        for result in message.results:
            _add_result(findings, tag, open_calls.pop(result.call_id, None), result)
        if message.role == "assistant" and message.text.strip() and not message.calls:
            is_answered = True
            findings.answers.append(_Quotation(tag, message.text))
    findings.files.extend([*files][-MAX_FILES:])
    findings.open_ends = [f"no result for {call.label}" for call in open_calls.values()]
    if last_prompt and not is_answered and not is_prompt_kept:
        findings.open_ends.append(f"not answered yet: {last_prompt}")
    return findings


def _add_result(lines: _DigestLines, tag: str, call: ObservedCall | None, result: ToolResult) -> None:
    name = call.label if call else "a tool"
    outcome = call_outcome(call, result)
    if outcome.is_ok:
        count = result.text.count("\n") + 1
        size = clip_to_line(result.text, SIZE_CHARS) if count == 1 else f"{count:,} lines"
        lines.actions.append(f"{tag}{name}: {size}")
    else:
        lines.errors.append(f"{tag}{name}: {outcome.error_text}")
        lines.actions.append(f"{tag}{name}: went wrong")
