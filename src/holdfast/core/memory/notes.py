"""Daily notes: a Markdown file per day that people read and edit, with a section per eviction.

In a section that Holdfast wrote, a comment after the heading names the session, the event and its time. The time is
needed because a session name may be reused. The comment identifies the section, so that it is never written twice. A
section without a comment belongs to a person and is searched like any other. Notes are escaped, so that no line of
them can begin a section or forge such a comment.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import cast

from holdfast.core.conversation.frames import INVISIBLE_CHARS, JOINERS, LINE_BREAKS
from holdfast.core.memory.evictions import Eviction, EvictionCause
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern

EVICTION_TITLES: Mapping[EvictionCause, str] = {
    "trimmed": "Trimmed Context",
    "overflow": "Context Overflow Recovery",
    "cleared": "Cleared Context",
}
_MARK = lazy_pattern(r"<!-- holdfast (?P<facts>\{.*\}) -->")
_SECTION = lazy_pattern(r"(?m)^## ")
_HEADING = lazy_pattern(rf"(?m)^(?>(?:[^\S\n]|[{JOINERS}])*)(?=(?>(?:#[{JOINERS}]*+){{1,4}})(?:[ \t]|$))")
_BREAK = lazy_pattern(rf"\r\n|[{LINE_BREAKS}]")


@dataclass(frozen=True, slots=True)
class DailySection:
    """A section of a daily file."""

    day: str
    title: str
    text: str
    session: str = ""
    """The session that it is about; empty if a person wrote it."""
    place: int | None = None
    """The index of the eviction event in the session log."""
    messages: str = ""
    """The evicted messages: `#0-3, #6`."""
    time_ms: int | None = None
    """The time of the event."""


def eviction_section(session: str, eviction: Eviction, text: str, *, day: str, time: str) -> DailySection:
    """Return the section about evicted messages; `time` is the time of day as HH:MM."""
    messages = ", ".join(
        f"#{span.start}" if len(span) == 1 else f"#{span.start}-{span.stop - 1}" for span in eviction.ranges
    )
    title = f"{EVICTION_TITLES[eviction.cause]} ({time})"
    return DailySection(day, title, text, session, eviction.log_index, messages, eviction.time_ms)


def append_section(content: str, new: DailySection) -> str:
    """Return a daily file with a section added; unchanged if it already has that section or every line of it."""
    own = [section for section in parse_sections(content, new.day) if section.session == new.session]
    if any(section.place == new.place and section.time_ms in {None, new.time_ms} for section in own):
        return content
    text = _without_repeated(_escape_markup(new.text), own)
    if not text:
        return content
    facts = {"session": new.session, "event": new.place, "at": new.time_ms, "messages": new.messages}
    # No ">" of a name may end the comment, and no "<" may begin a tag.
    mark = json.dumps(facts, ensure_ascii=True).replace(">", "\\u003e").replace("<", "\\u003c")
    head = content if content.strip() else f"# {new.day}\n"
    return f"{head.rstrip()}\n\n## {new.title}\n<!-- holdfast {mark} -->\n\n{text}\n"


def parse_sections(content: str, day: str) -> list[DailySection]:
    """Return the sections of a daily file; text before the first heading is a section too."""
    first, *others = _SECTION.split(content.replace("\r\n", "\n"))
    found = [_parse_section(day, other) for other in others]
    opening = re.sub(r"(?m)^# .*$", "", first).strip()
    return [DailySection(day, "", opening), *found] if opening else found


def _parse_section(day: str, text: str) -> DailySection:
    title, _, body = text.partition("\n")
    mark = _MARK.match(body.lstrip())
    try:
        facts: object = json.loads(mark["facts"]) if mark else None
    except (ValueError, RecursionError):
        facts = None
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
    lines = _HEADING.sub("##", _BREAK.sub("\n", INVISIBLE_CHARS.sub("", text)).strip())
    return lines.replace("<!--", "‹!--")


def _without_repeated(text: str, sections: Iterable[DailySection]) -> str:
    """Return a text without the lines that sections already have, because a later summary repeats an earlier one."""
    known = {line.strip() for section in sections for line in section.text.split("\n") if len(line.split()) > 1}
    kept = [line for line in text.split("\n") if _is_heading(line) or line.strip() not in known]
    lines: list[str] = []
    has_text = False
    for line in reversed(kept):
        # Drop a heading without remaining lines below it. Without a blank line before it, Markdown would read a heading
        # as part of a list.
        if not _is_heading(line):
            lines.append(line)
            has_text = has_text or bool(line.strip())
        else:
            lines += [line, ""] if has_text else []
            has_text = False
    return re.sub(r"\n{3,}", "\n\n", "\n".join(reversed(lines))).strip()


def _is_heading(line: str) -> bool:
    return line.startswith("#") or (line.endswith(":") and not line.startswith("- "))
