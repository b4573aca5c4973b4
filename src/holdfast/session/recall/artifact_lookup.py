"""Finds large tool results by name, and returns them whole or in part."""

from collections.abc import Iterator
from typing import cast

from holdfast.core.conversation.shorten import DEFAULT_ARTIFACT_TOKENS
from holdfast.core.history.context import Context
from holdfast.core.planning.policy import Policy
from holdfast.core.recall.artifacts import Artifact, large_results
from holdfast.core.recall.references import MAX_REFERENCE_DIGITS, TextSpan
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError, UnknownArtifactError
from holdfast.session.log.event_log import SessionLog

ARTIFACT_CALL_LOOKBACK = 32
"""How many messages before a result are searched for its call."""


def visible_artifacts(
    context: Context, policy: Policy, model: str | None, positions: range | None = None
) -> Iterator[Artifact]:
    """Yield the large tool results at some positions, or since the last clear, the oldest first."""
    span = range(context.state.cleared_at, context.length) if positions is None else positions
    rule = policy.compaction
    min_tokens = rule.artifact_tokens if rule else DEFAULT_ARTIFACT_TOKENS
    context.entries.require(filter(context.may_be_in_view, span))
    return large_results(context.entries_between(span.start, span.stop), min_tokens, counter_for(model))


def find_artifact(
    session_log: SessionLog, context: Context, policy: Policy, model: str | None, reference: str
) -> Artifact:
    """Return an artifact by its id, the id of its call, or `#12`; raises `UnknownArtifactError` if there is none."""
    number, positions = reference.removeprefix("#"), None
    if reference.startswith("#") and number.isdecimal() and len(number) <= MAX_REFERENCE_DIGITS:
        first, position = context.state.cleared_at, int(number)
        is_known = first <= position < context.length
        positions = range(max(first, position - ARTIFACT_CALL_LOOKBACK), position + 1) if is_known else range(0)
        context.entries.require(filter(context.may_be_in_view, positions))
        session_log.require_content(filter(context.may_be_in_view, positions[-1:]))
    for artifact in visible_artifacts(context, policy, model, positions):
        if reference in {artifact.id, artifact.call_id, f"#{artifact.position}"}:
            return artifact
    raise UnknownArtifactError(reference)


def text_range(text: str, lines: tuple[int, int] | None, chars: tuple[int, int] | None) -> str:
    """Return a range of a text: `lines` from 1 with the last included, or `chars` from 0."""
    name, value, least = ("chars", chars, 0) if lines is None else ("lines", lines, 1)
    match cast("object", value):
        case None:
            return text
        case (int() as first, int() as last) if least <= first <= last:
            start, stop = TextSpan(first, last, is_lines=name == "lines").bounds_in(text)
            return text[start:stop]
        case _:
            raise MalformedInputError(
                f"artifact.{name}", f"must be two numbers of at least {least}, the smaller one first"
            )
