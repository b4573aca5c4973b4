"""The recall tool, as a model is told of it: in few words, because every request carries them."""

from collections.abc import Mapping

from holdfast.core.history.recall.asking import MAX_NEIGHBOURS, MIN_TOKENS, ROLES

DESCRIPTION = (
    "Looks up what was said or done earlier and is not in view any more. Give `ref` for what a marker or summary names "
    "(#12), or `query` to search; the rest narrows it down. Answers with excerpts to the letter, for reference only."
)


def _text(description: str) -> Mapping[str, object]:
    return {"type": "string", "description": description}


def _number(description: str, least: int, most: int | None = None) -> Mapping[str, object]:
    limits = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return {"type": "integer", "description": description, **limits}


PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "ref": _text("#12, #12-#20, #12.2 (a part), #12:L40-L80 (lines), #12:0-2000 (characters); or an id"),
        "query": _text("words, or questions on lines of their own"),
        "text": _text("literal text, no pattern"),
        "last": _number("only the newest so many messages", 1),
        "role": {"type": "string", "enum": list(ROLES)},
        "tool": _text("a tool's name"),
        "file": _text("a path"),
        "since": _text("date or time, such as 2026-01-31"),
        "until": _text("the same"),
        "diff": {
            "type": "boolean",
            "description": "what changed between two readings of a file: two refs, one, or a file",
        },
        "neighbours": _number("messages before and after each", 0, MAX_NEIGHBOURS),
        "max_tokens": _number("of the answer", MIN_TOKENS),
        "skip": _number("as an answer says", 0),
        "before": _number("as an answer says", 0),
    },
    "additionalProperties": False,
}
"""`lines` and `chars` are understood too."""
