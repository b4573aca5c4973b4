"""Large tool results as artifacts: their names, their contents, and the references that replace them.

An artifact is a tool result in the session log that has a name. It is derived from the log, so nothing is stored
twice. A reference is meant for a model, which can recall the whole result or a part of it. People should not see
references, so `strip_artifact_references` removes them from answers.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.messages import Entry, Text, ToolCall, ToolResult
from holdfast.core.conversation.shorten import clip_text
from holdfast.core.conversation.tokens import Counter, text_tokens
from holdfast.core.ledger.actions import call_outcome
from holdfast.core.ledger.identifiers import argument_value, identifiers
from holdfast.core.ledger.tool_calls import describe_call
from holdfast.core.recall.references import line_count
from holdfast.dataclass import dataclass
from holdfast.text import clip_to_line, lazy_pattern

ARTIFACT_PREFIX = "compress_"
RETRIEVAL_SHARE = 0.3
"""Share of the context window; a larger result can only be retrieved in parts."""
ARGUMENT_CHARS, ARTIFACT_PREVIEW_CHARS, FINDING_CHARS = 300, 150, 80
MAX_ID_PART_CHARS = 100
"""The longest call id, and tool name, that is repeated in the name of an artifact."""
MAX_ARTIFACT_NAMES, MAX_SCANNED_IDENTIFIERS = 5, 200
ARTIFACT_REFERENCE = lazy_pattern(
    r'\[artifact:\s*"[^"\n]{0,200}"\s*\(id:\s*[^)\n]{0,500}\)'
    r"(?>(?:[^\[\]\n]++|\n(?!\s*\n)|\[[^\[\]\n]*+\])*)\]",
    re.IGNORECASE,
)
"""A reference as a model repeats it: it may wrap over lines, and it ends at its own closing bracket."""
_NOT_IN_ID = lazy_pattern(r"[^\w.:|/+=@~-]+")
"""What a reference cannot repeat, or recall cannot read as an id: brackets, quotation marks, spaces."""
_BRACKETS_TO_PARENTHESES = str.maketrans("[]", "()")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A large tool result; `str()` of it is the reference that replaces it."""

    id: str
    tool: str
    arguments: str
    preview: str
    tokens: int
    position: int
    call_id: str = ""
    findings: tuple[str, ...] = ()
    """Facts that save reading it: how the call failed, the number of lines, the names in it."""

    def __str__(self) -> str:
        description = clip_text(self.arguments, ARGUMENT_CHARS)
        parts = [
            f'Artifact: "{neutralize(self.tool, "name")}" (id: {self.id})',
            f"description: {description}",
            f"size: {self.tokens:,} tokens, #{self.position}",
            f"summary: {self.preview}",
            *([f"key findings: {'; '.join(self.findings)}"] if self.findings else []),
        ]
        # A reference contains no bracket, so the first closing one ends it.
        line = " | ".join(" ".join(part.split()) for part in parts)
        return f"[{neutralize(line, 'item').translate(_BRACKETS_TO_PARENTHESES)}]"


def large_results(entries: Iterable[Entry], min_tokens: int, counter: Counter) -> Iterator[Artifact]:
    """Yield the tool results of more than `min_tokens` as artifacts."""
    calls: dict[str, ToolCall] = {}
    for entry in entries:
        calls.update({call.id: call for call in entry.message.calls})
        for result in entry.message.results:
            # A character costs at most four tokens, so most results need no counting.
            if 4 * len(result.text) <= min_tokens:
                continue
            tokens = _result_tokens(result, counter)
            if tokens > min_tokens:
                call, position = calls.get(result.call_id), entry.position or 0
                tool = call.name if call else "tool"
                yield Artifact(
                    f"{ARTIFACT_PREFIX}{_NOT_IN_ID.sub('_', tool)[:MAX_ID_PART_CHARS]}{_id_suffix(result)}",
                    tool,
                    call.arguments if call else "",
                    " ".join(result.text[: 2 * ARTIFACT_PREVIEW_CHARS].split())[:ARTIFACT_PREVIEW_CHARS],
                    tokens,
                    position,
                    result.call_id,
                    tuple(_key_findings(call, result, position)),
                )


def _result_tokens(result: ToolResult, counter: Counter) -> int:
    """Return the tokens of the texts of a result; of a single text, as of nearly all results, they are known."""
    only = result.content[0] if len(result.content) == 1 else None
    return text_tokens(only, counter) if isinstance(only, Text) else counter.count(result.text)


def strip_artifact_references(text: str) -> str:
    """Return an answer for a person: without the artifact references that a model may have copied into it."""
    without, count = ARTIFACT_REFERENCE.subn("", text)
    return re.sub(r"\n{3,}", "\n\n", without).strip() if count else text


def is_artifact_of(name: str, result: ToolResult) -> bool:
    """Return whether an artifact name belongs to a result; the tool name in it is ignored."""
    return name.startswith(ARTIFACT_PREFIX) and name.endswith(_id_suffix(result))


def _id_suffix(result: ToolResult) -> str:
    """Return the end of an artifact's id: the call and a hash of the result.

    A call id that a reference cannot repeat is hashed: LiteLLM's hold a signature of thousands of characters.
    """
    call = result.call_id
    if len(call) > MAX_ID_PART_CHARS or _NOT_IN_ID.search(call):
        call = _short_hash(call)
    return f"_{call}_{_short_hash(result.text)}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]


def _key_findings(call: ToolCall | None, result: ToolResult, position: int) -> Iterator[str]:
    made = describe_call(call, argument_value(call.arguments), position) if call else None
    outcome = call_outcome(made, result)
    if not outcome.is_ok:
        yield f"{outcome}: {clip_to_line(outcome.error_text, FINDING_CHARS)}"
    yield f"{line_count(result.text):,} lines"
    if names := _first_names(result.text):
        yield f"names {', '.join(names)}"


def _first_names(text: str) -> list[str]:
    """Return the first different names in a text. An output may begin with one name on many lines."""
    names: dict[str, None] = {}
    for name in islice(identifiers(text), MAX_SCANNED_IDENTIFIERS):
        names[name] = None
        if len(names) == MAX_ARTIFACT_NAMES:
            break
    return [*names]
