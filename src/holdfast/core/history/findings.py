"""What a delegate found, claim by claim: a small schema, read patiently and checked by rule.

A delegate may give its answer as findings, or write them into its text as JSON; a text alone is an answer too. What a
claim names as its source is looked up: a message has to be one that the delegate sees, and any other name has to stand
in what it was told, asked for or given back. What does not is kept apart, and the claim is not called confirmed then.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

FindingStatus: TypeAlias = Literal["confirmed", "uncertain", "open"]
"""Whether a claim rests on what was seen, is a guess, or is a question that is left."""
MAX_FINDINGS, MAX_CLAIM_CHARS, MAX_FINDING_SOURCES = 100, 2_000, 50
_STATUSES: Mapping[str, FindingStatus] = {"confirmed": "confirmed", "uncertain": "uncertain", "open": "open"}
_OPENING, _CLOSING = re.compile(r"```(?:json)?[ \t]*\n"), re.compile(r"\n[ \t]*```")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegateFinding:
    """One claim, with what it rests on."""

    claim: str
    sources: tuple[str, ...] = ()
    """`#12` for a message, a path, an address."""
    status: FindingStatus = "uncertain"
    unverified: tuple[str, ...] = ()
    """Sources that it named and cannot have had."""

    @property
    def is_verified(self) -> bool:
        """Whether it names sources, and has seen all of them."""
        return bool(self.sources) and not self.unverified

    def check_sources(self, seen_sources: Iterable[str]) -> "DelegateFinding":
        """Return the finding with those of its sources kept apart that are not among what was seen."""
        known = frozenset(seen_sources)
        sources = tuple(source for source in self.sources if source in known)
        unverified = tuple(source for source in self.sources if source not in known)
        status = "uncertain" if self.status == "confirmed" and not sources else self.status
        return replace(self, sources=sources, unverified=unverified, status=status)

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object: how a log has it."""
        lists = {"sources": list(self.sources), "unverified": list(self.unverified)}
        return {"claim": self.claim, "status": self.status, **{name: value for name, value in lists.items() if value}}

    def __str__(self) -> str:
        of = f" [{', '.join(self.sources)}]" if self.sources else ""
        not_seen = f"; not seen by it: {', '.join(self.unverified)}" if self.unverified else ""
        return f"{self.claim}{of} ({self.status}{not_seen})"


def parse_findings(text: str) -> tuple[DelegateFinding, ...]:
    """Return the findings that a text is, or holds in its last fence of JSON; none where it holds none."""
    for written in (text, *reversed([*_fenced(text)])):
        try:
            value: object = json.loads(written)
        except (ValueError, RecursionError):
            continue
        listed = cast("Mapping[str, object]", value).get("findings") if isinstance(value, Mapping) else value
        if found := findings_from_json(listed):
            return found
    return ()


def _fenced(text: str) -> Iterator[str]:
    """Yield what stands in the fences of a text."""
    opening = _OPENING.search(text)
    while opening and (closing := _CLOSING.search(text, opening.end())):
        yield text[opening.end() : closing.start()]
        opening = _OPENING.search(text, closing.end())


def findings_from_json(values: object) -> tuple[DelegateFinding, ...]:
    """Return the findings of a list of JSON objects; what is none of them is left out."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return ()
    read = map(_finding_from_json, cast("Sequence[object]", values)[:MAX_FINDINGS])
    return tuple(finding for finding in read if finding is not None)


def _finding_from_json(value: object) -> DelegateFinding | None:
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, object]", value)
    claim, status = fields.get("claim"), fields.get("status")
    if not isinstance(claim, str) or not claim.strip():
        return None
    return DelegateFinding(
        claim=claim.strip()[:MAX_CLAIM_CHARS],
        sources=_finding_texts(fields.get("sources")),
        status=_STATUSES.get(status, "uncertain") if isinstance(status, str) else "uncertain",
        unverified=_finding_texts(fields.get("unverified")),
    )


def _finding_texts(value: object) -> tuple[str, ...]:
    """Return the texts of a list, or the one that stands in its place."""
    given = cast("Sequence[object]", value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    texts = [one.strip() for one in given if isinstance(one, str) and one.strip()]
    return tuple(dict.fromkeys(texts))[:MAX_FINDING_SOURCES]
