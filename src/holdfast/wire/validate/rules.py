"""The parts that the rules of every provider are made of.

The validators share nothing with the decoders on purpose: they would share their bugs.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from holdfast.wire.json_reader import is_list, is_mapping


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a request breaks, and the place."""

    rule: str
    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem} [{self.rule}]"


class Payload(NamedTuple):
    """The request to validate."""

    messages: Sequence[Mapping[str, Any]]
    system: object = None
    tools: object = None
    thinking_prefixes: Mapping[str, Collection[str]] = {}
    """By the signature of a thinking block, the hashes of the requests that it was said in."""

    @property
    def last(self) -> int:
        """The index of the last message."""
        return len(self.messages) - 1


ValidationRule: TypeAlias = Callable[[Payload], Iterator[Violation]]


def at(index: int, path: str = "") -> str:
    """Return the path of a message, or of a place in it."""
    return f"messages[{index}]{path}"


def content_blocks(message: Mapping[str, Any], key: str = "content") -> list[Mapping[str, Any]]:
    """Return the blocks of a message; none if its content is a string."""
    content = message.get(key)
    return [block for block in content if is_mapping(block)] if is_list(content) else []


def is_blank(text: object) -> bool:
    """Return whether a text is missing, empty or only white space."""
    return not isinstance(text, str) or not text.strip()


def image_limit_rule(kind: str, max_images: int) -> ValidationRule:
    """Return the rule that a request holds at most `max_images` images, results included."""

    def images_are_few_enough(payload: Payload) -> Iterator[Violation]:
        outer = [block for message in payload.messages for block in content_blocks(message)]
        inner = [block for result in outer for block in content_blocks(result)]
        count = sum(block.get("type") == kind for block in (*outer, *inner))
        if count > max_images:
            yield Violation("images", "messages", f"{count} images are more than {max_images}")

    return images_are_few_enough


def tool_name_violations(names: Iterable[tuple[str, object]], pattern: str) -> Iterator[Violation]:
    """Yield a violation for each name of a tool that does not match, by its place."""
    for place, name in names:
        if not isinstance(name, str) or not re.fullmatch(pattern, name):
            yield Violation("tool-name", place, f"{name!r:.80} does not match the pattern {pattern}")


def is_not_empty(payload: Payload) -> Iterator[Violation]:
    """A request needs at least one message."""
    if not payload.messages:
        yield Violation("not-empty", "messages", "there is no message")
