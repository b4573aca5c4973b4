"""A recall query, and the recall tool as a model sees it.

A query selects messages by reference, search words, literal text, role, tool, file or time, or it selects the newest
messages. The parser accepts a model's arguments leniently, and an error says what would be accepted. The description
of the tool is short because every request carries it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import cast, get_args

from holdfast.core.conversation.messages import Role
from holdfast.core.recall.ranking import search_words, split_questions
from holdfast.core.recall.references import (
    MAX_REFERENCE_DIGITS,
    MessageReference,
    is_reference_text,
    parse_references,
    parse_span,
)
from holdfast.core.schema import HUGE_NUMBER, is_integer, short_repr
from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError

DEFAULT_RECALL_TOKENS, MIN_RECALL_TOKENS, MAX_RECALL_TOKENS = 1_000, 100, 100_000
MAX_NEIGHBORS = 20
MAX_SEPARATE_QUESTIONS = 20
"""The longest list of questions that are searched separately; a longer one is one question, as pasted text is."""
MAX_RECALL_TEXT_CHARS = 10_000
"""The longest question or literal text."""
RECALL_ROLES: tuple[Role, ...] = get_args(Role)
MAX_DIFF_REFS = 2
SHORT_QUERY_CHARS = 160
"""A question up to this length is not shortened."""
INTERNAL_FIELDS = frozenset({"is_unseen_first", "least_share"})
"""Fields that a model cannot set."""
EMPTY_QUERY = "say what to look for: a ref such as #12, a query, a text, or last"
ARGUMENT_ALIASES = {"ref": "refs", "reference": "refs", "queries": "query", "q": "query", "literal": "text"}
"""Other names that models use for the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallQuery:
    """A query for earlier messages; at least one of the first nine fields must be set."""

    query: str | tuple[str, ...] = ()
    """Search words; several questions are searched separately, and the best hits of each come first."""
    text: str = ""
    """Literal text that the message contains, in any case; not a pattern."""
    refs: str = ""
    """`#12`, `#12-#20`, `#12.2` (its second part), `#12:4000-8000` (characters), `#12:L40-L80` (lines), a call's id."""
    last: int = 0
    """How many of the newest messages to return or search."""
    role: str = ""
    tool: str = ""
    """The calls and results of a tool."""
    file: str = ""
    """A path or the end of one: messages that name it or work with it."""
    since: str = ""
    until: str = ""
    """ISO dates or times, in UTC without a zone; a date includes its whole day."""
    lines: str = ""
    """Lines of each referenced message: `40-80`, from 1, inclusive."""
    chars: str = ""
    """Characters of each referenced message: `0-2000`, from 0, exclusive."""
    neighbours: int = 0
    """How many messages to add before and after each hit."""
    max_tokens: int = DEFAULT_RECALL_TOKENS
    skip: int = 0
    """How many hits of the same search to skip."""
    before: int = 0
    """Only messages before this position; 0 for all."""
    diff: bool = False
    """Compare two readings of a file: two refs, the newer one alone, or a file for its two newest."""
    is_unseen_first: bool = False
    """Whether messages that are in view come last, except the best ones; so it is when a model asks."""
    least_share: float = 0.0
    """Leave out hits that score less than this share of the best one."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("last", 0, 10**9), ("neighbours", 0, MAX_NEIGHBORS), ("skip", 0, 10**9),
            ("before", 0, 10**12), ("max_tokens", MIN_RECALL_TOKENS, MAX_RECALL_TOKENS),
        ):  # fmt: skip
            _check_number(name, getattr(self, name), least, most)
        for name in ("text", "refs", "role", "tool", "file", "since", "until", "lines", "chars"):
            _check_text(name, getattr(self, name))
        _check_query(self.query)
        for question in self.questions:
            _check_text("query", question)
        if self.role and self.role not in RECALL_ROLES:
            raise MalformedInputError(
                "recall.role", f"must be one of {', '.join(RECALL_ROLES)}, not {short_repr(self.role)}"
            )
        if (self.lines or self.chars) and not self.refs:
            raise MalformedInputError("recall.lines", "says which part of a message: give its ref too, such as #12")
        if self.lines and self.chars:
            raise MalformedInputError("recall.lines", "give either lines or chars")
        searched = (self.questions, self.text, self.role, self.tool, self.file, self.since, self.until)
        if not (self.refs or self.last or any(searched)):
            raise MalformedInputError("recall", EMPTY_QUERY)
        if self.diff:
            self._check_diff()

    def _check_diff(self) -> None:
        places = self.references if self.refs else []
        is_pair = 1 <= len(places) <= MAX_DIFF_REFS and all(place.first == place.last for place in places)
        if not (is_pair if self.refs else self.file):
            raise MalformedInputError("recall.diff", "takes two refs such as #12, #40, or one, or a file")

    @classmethod
    def from_text(cls, text: str) -> "RecallQuery":
        """Return the query for a line of text: references if it consists of them, else search words."""
        if not isinstance(text, str) or not text.strip():
            raise MalformedInputError("recall", EMPTY_QUERY)
        _check_text("query", text)  # first: to look for references takes time in proportion to the text
        return cls(refs=text) if is_reference_text(text) else cls(query=text)

    @classmethod
    def from_arguments(cls, arguments: object, *, max_tokens: int = DEFAULT_RECALL_TOKENS) -> "RecallQuery":
        """Return the query for the arguments of a model, which may be anything."""
        if not isinstance(arguments, Mapping):
            raise MalformedInputError("recall", f"the arguments must be an object, not {short_repr(arguments)}")
        known = {item.name for item in fields(cls)} - INTERNAL_FIELDS
        values: dict[str, object] = {"max_tokens": max_tokens}
        for key, value in cast("Mapping[object, object]", arguments).items():
            name = ARGUMENT_ALIASES.get(_value_as_text(key), _value_as_text(key))
            if name in known and value not in (None, "", [], 0):
                values[name] = _coerce_argument(name, value)
        return cls(is_unseen_first=True, **values)  # pyright: ignore[reportArgumentType] - checked when it is made

    def to_arguments(self) -> dict[str, object]:
        """Return the arguments with which a model makes this query."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        known = {name: value for name, value in values.items() if value and name not in INTERNAL_FIELDS}
        if known["max_tokens"] == DEFAULT_RECALL_TOKENS:
            del known["max_tokens"]
        if "query" in known:
            known["query"] = "\n".join(self.questions)
        if "refs" in known:
            known = {"ref": known.pop("refs"), **known}
        return known

    def shortened(self) -> "RecallQuery":
        """Return the query with only the search words of long questions."""
        short = tuple(
            question
            if len(question) <= SHORT_QUERY_CHARS
            else "; ".join(map(search_words, split_questions(question)[1:] or [question]))
            for question in self.questions
        )
        return replace(self, query=short)

    def with_doubled_budget(self) -> "RecallQuery":
        """Return the query with twice the tokens for the answer."""
        return replace(self, max_tokens=min(MAX_RECALL_TOKENS, 2 * self.max_tokens))

    @property
    def questions(self) -> tuple[str, ...]:
        """The questions, each searched separately."""
        questions = (self.query,) if isinstance(self.query, str) else self.query
        asked = tuple(question for question in questions if question)
        return asked if len(asked) <= MAX_SEPARATE_QUESTIONS else (" ".join(asked),)

    @property
    def references(self) -> list[MessageReference]:
        """The referenced messages, with the selected part of each."""
        span = None
        if self.lines or self.chars:
            name = "lines" if self.lines else "chars"
            span = parse_span(f"recall.{name}", self.lines or self.chars, is_lines=bool(self.lines))
        found = parse_references(self.refs)
        return [replace(place, span=place.span or span) for place in found]


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if not is_integer(value) or not least <= value <= most:
        raise MalformedInputError(
            f"recall.{name}", f"must be a whole number from {least} to {most:,}, not {short_repr(value)}"
        )


def _check_query(value: object) -> None:
    if not isinstance(value, str | tuple):
        raise MalformedInputError("recall.query", f"must be a text or several, not {short_repr(value)}")
    for question in cast("tuple[object, ...]", value) if isinstance(value, tuple) else ():
        _check_text("query", question)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise MalformedInputError(f"recall.{name}", f"must be a text, not {short_repr(value)}")
    if len(value) > MAX_RECALL_TEXT_CHARS:
        raise MalformedInputError(f"recall.{name}", f"must have at most {MAX_RECALL_TEXT_CHARS:,} characters")


def _coerce_argument(name: str, value: object) -> object:
    """Return the value that a model probably means by one of a similar type."""
    if name == "diff":
        return _value_as_text(value).strip().lower() not in {"false", "no", "0"}
    if name in {"last", "neighbours", "max_tokens", "skip", "before"}:
        number = _coerce_number(value)
        return max(number, MIN_RECALL_TOKENS) if name == "max_tokens" and isinstance(number, int) else number
    if name in {"query", "refs"} and isinstance(value, Sequence) and not isinstance(value, str):
        values = cast("Sequence[object]", value)
        return tuple(map(_value_as_text, values)) if name == "query" else ", ".join(map(_coerce_reference, values))
    return _coerce_reference(value) if name == "refs" else _value_as_text(value)


def _coerce_reference(value: object) -> str:
    return ("#" if is_integer(value) else "") + _value_as_text(value)


def _coerce_number(value: object) -> object:
    if isinstance(value, str):
        digits = value.strip().lstrip("+#")
        return int(digits) if digits.isdecimal() and len(digits) <= MAX_REFERENCE_DIGITS else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _value_as_text(value: object) -> str:
    """Return a value as text; Python prints no integer of thousands of digits."""
    try:
        return str(value)
    except ValueError as error:
        raise MalformedInputError("recall", f"{HUGE_NUMBER} is in it; give a smaller one") from error


RECALL_DESCRIPTION = (
    "Looks up what was said or done earlier and is not in view any more. Give `ref` for what a marker or summary names "
    "(#12), or `query` to search: several short queries, one per line, with partial names such as `login view` where "
    "the whole name is unknown. The rest narrows it down. Answers with excerpts to the letter, for reference only."
)


def _text_schema(description: str) -> Mapping[str, object]:
    return {"type": "string", "description": description}


def _number_schema(description: str, least: int, most: int | None = None) -> Mapping[str, object]:
    limits = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return {"type": "integer", "description": description, **limits}


RECALL_PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "ref": _text_schema("#12, #12-#20, #12.2 (a part), #12:L40-L80 (lines), #12:0-2000 (characters); or an id"),
        "query": _text_schema("a few words, names or parts of names; several queries on lines of their own"),
        "text": _text_schema("literal text, no pattern"),
        "last": _number_schema("only the newest so many messages", 1),
        "role": {"type": "string", "enum": list(RECALL_ROLES)},
        "tool": _text_schema("a tool's name"),
        "file": _text_schema("a path"),
        "since": _text_schema("date or time, such as 2026-01-31"),
        "until": _text_schema("the same"),
        "diff": {
            "type": "boolean",
            "description": "what changed between two readings of a file: two refs, one, or a file",
        },
        "neighbours": _number_schema("messages before and after each", 0, MAX_NEIGHBORS),
        "max_tokens": _number_schema("of the answer", MIN_RECALL_TOKENS),
        "skip": _number_schema("as an answer says", 0),
        "before": _number_schema("as an answer says", 0),
    },
    "additionalProperties": False,
}
"""`lines` and `chars` are accepted too."""
