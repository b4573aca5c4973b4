"""A recall query, and the recall tool that a model is offered.

A query selects messages by reference, by words, by a literal text, by speaker and time, or simply the newest.
A model's arguments are read leniently; an argument that makes no sense raises an error that says what would.
The description of the tool is short, because every request carries it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import cast, get_args

from holdfast.core.conversation.messages import Role
from holdfast.core.recall.ranking import search_words, split_questions
from holdfast.core.recall.references import (
    MAX_REFERENCE_DIGITS,
    MessageReference,
    TextSpan,
    is_reference_text,
    parse_references,
    parse_span,
)
from holdfast.errors import MalformedInputError

DEFAULT_RECALL_TOKENS, MIN_RECALL_TOKENS, MAX_RECALL_TOKENS = 1_000, 100, 100_000
MAX_NEIGHBORS = 20
MAX_RECALL_TEXT_CHARS = 10_000
"""Of a question or a literal text: more says no more."""
RECALL_ROLES: tuple[Role, ...] = get_args(Role)
MAX_DIFF_REFS = 2
"""As many things are compared."""
SHORT_QUERY_CHARS = 160
"""A question up to this length is told again as it is."""
INTERNAL_FIELDS = frozenset({"is_unseen_first", "least_share"})
"""What no model asks for."""
HUGE_NUMBER = "a number of thousands of digits"
EMPTY_QUERY = "say what to look for: a ref such as #12, a query, a text, or last"
ARGUMENT_ALIASES: Mapping[str, str] = {
    "ref": "refs",
    "reference": "refs",
    "queries": "query",
    "q": "query",
    "literal": "text",
}
"""What models say besides the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallQuery:
    """One question to the past; at least one of the first nine says what is wanted."""

    query: str | tuple[str, ...] = ()
    """Words; several questions are searched for apart, and the best of each come first."""
    text: str = ""
    """To stand in the message as it is, small letters or capitals; never a pattern."""
    refs: str = ""
    """`#12`, `#12-#20`, `#12.2` (its second part), `#12:4000-8000` (characters), `#12:L40-L80` (lines), a call's id."""
    last: int = 0
    """The newest so many messages."""
    role: str = ""
    tool: str = ""
    """Calls of a tool, and what it gave back."""
    file: str = ""
    """A path, or the end of one: where it is named, and what was done with it."""
    since: str = ""
    until: str = ""
    """ISO dates or times; a date is meant to its end. UTC where no zone is said."""
    lines: str = ""
    """Of each message referred to: `40-80`, from 1, the last included."""
    chars: str = ""
    """Of each message referred to: `0-2000`, from 0, the last not included."""
    neighbours: int = 0
    """So many messages before and after each one found."""
    max_tokens: int = DEFAULT_RECALL_TOKENS
    skip: int = 0
    """How many messages of the same search were seen already."""
    before: int = 0
    """Only what was said before the message at this position; 0 for everything."""
    diff: bool = False
    """What changed between two readings of a file: two refs, the newer alone, or a file for its two newest."""
    is_unseen_first: bool = False
    """Whether what stands in view anyway comes last."""
    least_share: float = 0.0
    """What fits a question less than this share of what fits it best is left out; a model asks without it."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("last", 0, 10**9), ("neighbours", 0, MAX_NEIGHBORS), ("skip", 0, 10**9),
            ("before", 0, 10**12), ("max_tokens", MIN_RECALL_TOKENS, MAX_RECALL_TOKENS),
        ):  # fmt: skip
            _check_number(name, getattr(self, name), least, most)
        for name in ("text", "refs", "role", "tool", "file", "since", "until", "lines", "chars"):
            _check_text(name, getattr(self, name))
        if not isinstance(self.query, str | tuple):
            raise MalformedInputError("recall.query", f"must be a text or several, not {_preview(self.query)}")
        for question in self.questions:
            _check_text("query", question)
        if self.role and self.role not in RECALL_ROLES:
            raise MalformedInputError(
                "recall.role", f"must be one of {', '.join(RECALL_ROLES)}, not {_preview(self.role)}"
            )
        if (self.lines or self.chars) and not self.refs:
            raise MalformedInputError("recall.lines", "says which part of a message: give its ref too, such as #12")
        if self.lines and self.chars:
            raise MalformedInputError("recall.lines", "give either lines or chars")
        if not (self.refs or self.last or self.is_search):
            raise MalformedInputError("recall", EMPTY_QUERY)
        if self.diff:
            self._check_diff()

    def _check_diff(self) -> None:
        places = self.references if self.refs else []
        is_pair = 1 <= len(places) <= MAX_DIFF_REFS and all(place.first == place.last for place in places)
        if not (is_pair if self.refs else self.file):
            raise MalformedInputError("recall.diff", "takes two refs such as #12, #40, or one, or a file")

    @classmethod
    def from_text(cls, text: str, *, max_tokens: int = DEFAULT_RECALL_TOKENS) -> "RecallQuery":
        """Return the question that a line of text asks: references where it is made of them, else words."""
        if not isinstance(text, str) or not text.strip():
            raise MalformedInputError("recall", EMPTY_QUERY)
        if is_reference_text(text):
            return cls(refs=text, max_tokens=max_tokens)
        return cls(query=text, max_tokens=max_tokens)

    @classmethod
    def from_arguments(cls, arguments: object, *, max_tokens: int = DEFAULT_RECALL_TOKENS) -> "RecallQuery":
        """Return the question of a model, whose arguments may be anything."""
        if not isinstance(arguments, Mapping):
            raise MalformedInputError("recall", f"the arguments must be an object, not {_preview(arguments)}")
        known = {item.name for item in fields(cls)} - INTERNAL_FIELDS
        given: dict[str, object] = {"max_tokens": max_tokens}
        for key, value in cast("Mapping[object, object]", arguments).items():
            name = ARGUMENT_ALIASES.get(_value_as_text(key), _value_as_text(key))
            if name in known and value not in (None, "", [], 0):
                given[name] = _coerce_argument(name, value)
        return cls(is_unseen_first=True, **given)  # pyright: ignore[reportArgumentType] - checked when it is made

    def to_arguments(self) -> dict[str, object]:
        """Return the arguments by which a model asks this."""
        told = {item.name: getattr(self, item.name) for item in fields(self)}
        known = {name: value for name, value in told.items() if value and name not in INTERNAL_FIELDS}
        if known["max_tokens"] == DEFAULT_RECALL_TOKENS:
            del known["max_tokens"]
        if "query" in known:
            known["query"] = "\n".join(self.questions)
        if "refs" in known:
            known = {"ref": known.pop("refs"), **known}
        return known

    def shortened(self) -> "RecallQuery":
        """Return the same question in as few words as find the same."""
        return replace(self, query=tuple(_shorten_question(question) for question in self.questions))

    def with_doubled_budget(self) -> "RecallQuery":
        """Return the same question with twice the room, where an answer had no room for anything."""
        return replace(self, max_tokens=min(MAX_RECALL_TOKENS, 2 * self.max_tokens))

    @property
    def questions(self) -> tuple[str, ...]:
        """What is searched for, each for itself."""
        given = (self.query,) if isinstance(self.query, str) else self.query
        return tuple(question for question in given if question)

    @property
    def is_search(self) -> bool:
        """Whether anything is to be looked for."""
        return bool(
            self.questions or self.text or self.role or self.tool or self.file or self.since or self.until
        )  # fmt: skip

    @property
    def references(self) -> list[MessageReference]:
        """The places it names, with the part of each that is wanted."""
        span = self._span
        found = parse_references(self.refs)
        return found if span is None else [place.with_span(span) for place in found]

    @property
    def _span(self) -> TextSpan | None:
        if self.lines:
            return parse_span("recall.lines", self.lines, is_lines=True)
        return parse_span("recall.chars", self.chars, is_lines=False) if self.chars else None


def _shorten_question(question: str) -> str:
    return (
        question
        if len(question) <= SHORT_QUERY_CHARS
        else "; ".join(map(search_words, split_questions(question)[1:] or [question]))
    )


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise MalformedInputError(
            f"recall.{name}", f"must be a whole number from {least} to {most:,}, not {_preview(value)}"
        )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise MalformedInputError(f"recall.{name}", f"must be a text, not {_preview(value)}")
    if len(value) > MAX_RECALL_TEXT_CHARS:
        raise MalformedInputError(f"recall.{name}", f"must have at most {MAX_RECALL_TEXT_CHARS:,} characters")


def _coerce_argument(name: str, value: object) -> object:
    """Return what a model means by a value that is nearly of the right kind."""
    if name == "diff":
        return _value_as_text(value).strip().lower() not in {"false", "no", "0"}
    if name in {"last", "neighbours", "max_tokens", "skip", "before"}:
        number = _coerce_number(value)
        return max(number, MIN_RECALL_TOKENS) if name == "max_tokens" and isinstance(number, int) else number
    if name == "query" and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_value_as_text, cast("Sequence[object]", value)))
    if name == "refs" and isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_coerce_reference, cast("Sequence[object]", value)))
    return _coerce_reference(value) if name == "refs" else _value_as_text(value)


def _coerce_number(value: object) -> object:
    if (
        isinstance(value, str)
        and (digits := value.strip().lstrip("+#")).isdecimal()
        and len(digits) <= MAX_REFERENCE_DIGITS
    ):
        return int(digits)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _coerce_reference(value: object) -> str:
    written = _value_as_text(value)
    return f"#{written}" if isinstance(value, int) and not isinstance(value, bool) else written


def _value_as_text(value: object) -> str:
    """Return a value as a text; Python writes no number of thousands of digits."""
    try:
        return str(value)
    except ValueError as error:
        raise MalformedInputError("recall", f"{HUGE_NUMBER} is in it; give a smaller one") from error


def _preview(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:
        return HUGE_NUMBER


RECALL_DESCRIPTION = (
    "Looks up what was said or done earlier and is not in view any more. Give `ref` for what a marker or summary names "
    "(#12), or `query` to search; the rest narrows it down. Answers with excerpts to the letter, for reference only."
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
        "query": _text_schema("words, or questions on lines of their own"),
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
"""`lines` and `chars` are understood too."""
