"""Daily notes: a Markdown file per day that people read and edit, with a section per eviction.

In a section that Holdfast wrote, a comment after the heading names the session, the event and its time. The time is
needed because a session name may be reused. The comment identifies the section, so that it is never written twice. A
section without a comment belongs to a person and is searched like any other. Notes are escaped, so that no line of
them can begin a section or forge such a comment.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from holdfast.core.conversation.spans import PositionRanges
from holdfast.core.memory.evictions import EvictionCause

EVICTION_TITLES: Mapping[EvictionCause, str] = {
    "trimmed": "Trimmed Context",
    "overflow": "Context Overflow Recovery",
    "cleared": "Cleared Context",
}
_MARK = re.compile(r"<!-- holdfast (?P<facts>\{.*\}) -->")
_SECTION = re.compile(r"(?m)^## ")
_HEADING = re.compile(r"(?m)^(?=#{1,4}(?:[ \t]|$))")
_COMMENT = re.compile(r"<!--")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNote:
    """A note about messages that were evicted from a conversation."""

    session: str
    log_index: int
    """The index of the eviction event in the session log."""
    time_ms: int
    """The time of that event."""
    cause: EvictionCause
    time: str
    """The time of day, as HH:MM."""
    messages: PositionRanges
    text: str


@dataclass(frozen=True, slots=True)
class DailySection:
    """A section of a daily file."""

    day: str
    title: str
    text: str
    session: str = ""
    """The session that it is about; empty if a person wrote it."""
    place: int | None = None
    messages: str = ""
    time_ms: int | None = None


def append_note(content: str, day: str, note: MemoryNote) -> str:
    """Return a daily file with a note added; unchanged if it already has that note or every line of it."""
    sections = parse_sections(content, day)
    own = [section for section in sections if section.session == note.session]
    if any(section.place == note.log_index and section.time_ms in {None, note.time_ms} for section in own):
        return content
    text = _without_repeated(_escape_markup(note.text), own)
    if not text:
        return content
    facts = {
        "session": note.session,
        "event": note.log_index,
        "at": note.time_ms,
        "messages": _format_ranges(note.messages),
    }
    # No ">" of a name may end the comment.
    mark = json.dumps(facts, ensure_ascii=True).replace(">", "\\u003e")
    head = content if content.strip() else f"# {day}\n"
    return f"{head.rstrip()}\n\n## {EVICTION_TITLES[note.cause]} ({note.time})\n<!-- holdfast {mark} -->\n\n{text}\n"


def parse_sections(content: str, day: str) -> list[DailySection]:
    """Return the sections of a daily file; text before the first heading is a section too."""
    first, *others = _SECTION.split(content.replace("\r\n", "\n"))
    found = [_parse_section(day, other) for other in others]
    opening = re.sub(r"(?m)^# .*$", "", first).strip()
    return [DailySection(day, "", opening), *found] if opening else found


def _parse_section(day: str, text: str) -> DailySection:
    title, _, body = text.partition("\n")
    mark = _MARK.match(body.lstrip())
    facts: object = None
    if mark is not None:
        try:
            facts = json.loads(mark["facts"])
        except ValueError:
            mark = None
    if mark is None or not isinstance(facts, dict):
        return DailySection(day, title.strip(), body.strip())
    known = cast("dict[str, object]", facts)
    place, time_ms = known.get("event"), known.get("at")
    return DailySection(
        day,
        title.strip(),
        body.lstrip()[mark.end() :].strip(),
        str(known.get("session", "")),
        place if isinstance(place, int) else None,
        str(known.get("messages", "")),
        time_ms if isinstance(time_ms, int) else None,
    )


def _escape_markup(text: str) -> str:
    """Return a text in which no line can begin a section, a title or a comment."""
    lines = _HEADING.sub("##", text.replace("\r\n", "\n").replace("\r", "\n").strip())
    return _COMMENT.sub("‹!--", lines)


def _without_repeated(text: str, sections: Iterable[DailySection]) -> str:
    """Return a text without the lines that sections already have, because a later summary repeats an earlier one."""
    known = {line.strip() for section in sections for line in section.text.split("\n") if len(line.split()) > 1}
    kept = [line for line in text.split("\n") if _is_heading(line) or line.strip() not in known]
    # Drop headings without remaining lines below them.
    told: list[str] = []
    has_words = False
    for line in reversed(kept):
        if has_words or not _is_heading(line):
            told.append(line)
        has_words = not _is_heading(line) and (has_words or bool(line.strip()))
    told.reverse()
    return (
        re.sub(r"\n{3,}", "\n\n", "\n".join(_separate_headings(told))).strip()
        if any(not _is_heading(line) and line.strip() for line in told)
        else ""
    )


def _separate_headings(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with a blank one before each heading; without it, Markdown reads the heading as part of a list."""
    for line in lines:
        if _is_heading(line):
            yield ""
        yield line


def _is_heading(line: str) -> bool:
    return line.startswith("#") or (line.endswith(":") and not line.startswith("- "))


def _format_ranges(spans: PositionRanges) -> str:
    return ", ".join(f"#{span.start}" if len(span) == 1 else f"#{span.start}-{span.stop - 1}" for span in spans)
