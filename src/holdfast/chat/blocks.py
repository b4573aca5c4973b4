"""Markdown that is still being written: which of it is whole already, and what may yet change.

A block ends where an empty line follows it outside a fence of code; what stands before that will not be rendered
differently by what comes later, except for lists, which go on over empty lines.
"""

import re

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_LIST_LINE = re.compile(r"^\s*([-*+]|\d{1,9}[.)])\s|^\s+\S")
"""A line of a list, or one that is indented and may belong to one."""


def split_finished_blocks(text: str) -> tuple[str, str]:
    """Return what can be rendered for good, and the rest."""
    end, fence, is_list, offset = 0, "", False, 0
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        marked = _FENCE.match(line)
        if fence:
            fence = "" if marked and marked[1].startswith(fence) and not line.strip(" `~\n") else fence
        elif marked:
            fence = marked[1]
        elif not line.strip():
            coming = lines[number + 1] if number + 1 < len(lines) else ""
            if coming.strip() and coming.endswith("\n") and not (is_list and _LIST_LINE.match(coming)):
                end = offset + len(line)
                is_list = False
        elif _LIST_LINE.match(line):
            is_list = True
        offset += len(line)
    return text[:end], text[end:]
