"""The recall tool, as a model is told of it: in few words, because every request carries them."""

from collections.abc import Mapping

from holdfast.core.history.recall.asking import MAX_NEIGHBORS, MIN_RECALL_TOKENS, RECALL_ROLES

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
