"""What a tool call is about: a file, a search, or a command.

Agents name their tools differently, but their arguments have few forms. A call with a path is about a file, a call
with a pattern is a search, a call with a command line runs it, and any other call counts as a command itself. The
arguments decide, whatever the name of the tool.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal, TypeAlias

from holdfast.core.conversation.json_values import Json
from holdfast.core.conversation.messages import ToolCall
from holdfast.core.ledger.identifiers import identifiers
from holdfast.dataclass import dataclass
from holdfast.text import clip_to_line

CallKind: TypeAlias = Literal["file", "search", "command"]
LineRange: TypeAlias = tuple[int, int]

_PATH_KEYS = ("path", "file_path", "filepath", "filename", "file", "target_file", "relative_path", "notebook_path")
_COMMAND_KEYS = ("command", "cmd", "commandline", "command_line", "script")
_PATTERN_KEYS = ("pattern", "query", "regex", "q", "search_term", "search_query", "glob", "glob_pattern")
_WHERE_KEYS = (*_PATH_KEYS, "directory", "dir", "include", "glob")
_CONTENT_KEYS = (
    "content", "contents", "file_text", "new_string", "new_str", "newtext", "new_text", "new_source",
    "insert_text", "replacement", "code_edit", "patch", "diff", "edits",
)  # fmt: skip
_RANGE_KEYS = (("start_line", "end_line"), ("line_start", "line_end"), ("startline", "endline"), ("start", "end"))
_EDITOR_VERBS = frozenset({"view", "create", "str_replace", "insert", "undo_edit", "open", "edit", "write", "read"})
_WRITING = r"write|edit|creat|replace|patch|insert|append|delete|remove|rename|move|save"
_URL = r"\b\w++://\S+"
_HEAD_CHARS = 2_000
"""How much of a command to search for paths."""


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """The facts of a tool call that the ledger uses."""

    id: str
    tool: str
    kind: CallKind
    subject: str
    """The path, the pattern, or the command."""
    position: int
    search_path: str = ""
    """The file or directory that a search covers."""
    is_write: bool = False
    lines: LineRange | None = None
    """The first and last line that it asks for."""
    content: str = ""
    """The text that it writes."""
    named_paths: tuple[str, ...] = ()
    """The paths that a command contains."""
    label: str = ""
    """The tool and its arguments on one line, shortened."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The file that the call is about, or the paths that its command contains."""
        return (self.subject,) if self.kind == "file" else self.named_paths

    @property
    def key(self) -> str:
        """Equal for two calls that are the same attempt."""
        return f"{self.kind}\x1f{self.tool}\x1f{self.subject}\x1f{self.search_path}"


def describe_call(call: ToolCall, value: Json, position: int) -> ObservedCall:
    """Return what a call is about; `value` is the parsed JSON of its arguments."""
    fields = {key.lower(): item for key, item in value.items()} if isinstance(value, dict) else {}
    label = clip_to_line(f"{call.name} {call.arguments}" if call.arguments not in {"", "{}"} else call.name)
    path, command = _first_text(fields, _PATH_KEYS), _first_text(fields, _COMMAND_KEYS)
    content = _written_content(fields)
    observed = partial(ObservedCall, call.id, call.name, position=position, label=label)
    if command and not (path and command in _EDITOR_VERBS):
        return observed("command", clip_to_line(command), named_paths=tuple(paths_in(command)))
    pattern = _first_text(fields, _PATTERN_KEYS)
    if pattern and not content:
        where = next(
            (place for key in _WHERE_KEYS if (place := _argument_text(fields.get(key))) not in {"", pattern}), ""
        )
        return observed("search", clip_to_line(pattern), search_path=where)
    if path:
        is_write = bool(content) or re.search(_WRITING, f"{call.name} {command}".lower()) is not None
        return observed("file", path, is_write=is_write, lines=_line_range(fields), content=content)
    return observed("command", label, named_paths=tuple(paths_in(call.arguments)))


def paths_in(text: str) -> Iterator[str]:
    """Yield what looks like a file path in the first part of a command."""
    for name in identifiers(re.sub(_URL, " ", text[:_HEAD_CHARS])):
        steps = name.count("/")
        if steps > 1 or (steps and "." in name.rpartition("/")[2]):
            yield name


def _first_text(fields: Mapping[str, Json], keys: tuple[str, ...]) -> str:
    return next((text for key in keys if key in fields and (text := _argument_text(fields[key]))), "")


def _argument_text(value: Json) -> str:
    """Return a string, or the joined strings of a list, because some agents send a command as a list of words."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return " ".join(item for item in value if isinstance(item, str)).strip()
    return ""


def _written_content(fields: Mapping[str, Json]) -> str:
    """Return the text that a call writes; for several edits, their new texts joined."""
    for key in (key for key in _CONTENT_KEYS if key in fields):
        value = fields[key]
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list):
            edits = ({name.lower(): item for name, item in edit.items()} for edit in value if isinstance(edit, dict))
            return "\n".join(_written_content(edit) for edit in edits)
    return ""


def _line_range(fields: Mapping[str, Json]) -> LineRange | None:
    span = fields.get("view_range")
    pairs = [tuple(span)] if isinstance(span, list) and len(span) == 2 else []  # noqa: PLR2004
    pairs += [(fields.get(first), fields.get(last)) for first, last in _RANGE_KEYS]
    limit = fields.get("limit")
    if isinstance(limit, int) and limit > 0:
        offset = fields.get("offset", 1)
        start = max(1, offset) if isinstance(offset, int) else 1
        pairs.append((start, start + limit - 1))
    return next(((a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int) and 0 < a <= b), None)
