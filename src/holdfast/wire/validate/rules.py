"""What the providers' rules are made of."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from holdfast.wire.json_reader import is_list, is_mapping


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a request breaks, and where."""

    rule: str
    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem} [{self.rule}]"


class Payload(NamedTuple):
    """What is about to be sent."""

    messages: Sequence[Mapping[str, Any]]
    system: object = None
    tools: object = None


ValidationRule: TypeAlias = Callable[[Payload], Iterator[Violation]]


def payload_path(index: int, path: str = "") -> str:
    """Return the name of a place."""
    return f"messages[{index}]{path}"


def content_blocks(message: Mapping[str, Any], key: str = "content") -> list[Mapping[str, Any]]:
    """Return a message's blocks; none where its content is a bare string."""
    content = message.get(key)
    return [block for block in content if is_mapping(block)] if is_list(content) else []


def is_blank(text: object) -> bool:
    """Return whether a text is missing, empty or white space."""
    return not isinstance(text, str) or not text.strip()


def image_limit_rule(kind: str, max_images: int) -> ValidationRule:
    """Return the rule that a request holds at most so many images, inside results too."""

    def images_are_few_enough(payload: Payload) -> Iterator[Violation]:
        outer = [block for message in payload.messages for block in content_blocks(message)]
        inner = [block for result in outer for block in content_blocks(result)]
        count = sum(block.get("type") == kind for block in (*outer, *inner))
        if count > max_images:
            yield Violation("images", "messages", f"{count} images are more than {max_images}")

    return images_are_few_enough


def is_not_empty(payload: Payload) -> Iterator[Violation]:
    """Every provider wants at least one message."""
    if not payload.messages:
        yield Violation("not-empty", "messages", "there is no message")
