"""Large tool results by name: listed, and given out whole or in part."""

from collections.abc import Iterator

from holdfast.core.history import events as log
from holdfast.core.history.artifacts import DEFAULT_ARTIFACT_TOKENS, RETRIEVAL_SHARE, Artifact, large_results
from holdfast.core.history.context import Context
from holdfast.core.history.recall.references import MAX_REFERENCE_DIGITS, TextSpan
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.everything import InkeepCompaction
from holdfast.core.planning.situation import Budget
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import ArtifactTooLargeError, MalformedInputError, UnknownArtifactError
from holdfast.session.circumstances import RequestOptions
from holdfast.session.fetching import retry_when_not_loaded
from holdfast.session.folding import Folder
from holdfast.session.given import check_scope, check_text


class Archivist(Folder):
    """A session as far as its large tool results are asked for."""

    policy: Policy

    @retry_when_not_loaded
    async def artifacts(self, *, scope: str = log.MAIN) -> list[Artifact]:
        """Return the large tool results that an agent may see, in view or not, the oldest first."""
        named = await self._log.check_scope(check_scope(scope))
        async with self._log.lock:
            await self._log.refresh()
        context = self.history.context(named)
        return list(self._large_results(context, range(context.state.cleared_at, context.length)))

    @retry_when_not_loaded
    async def artifact(
        self,
        reference: str,
        *,
        lines: tuple[int, int] | None = None,
        chars: tuple[int, int] | None = None,
        budget: int | Budget | None = None,
        scope: str = log.MAIN,
    ) -> str:
        """Return a large tool result by its id, the id of its call, or `#12`, to the letter.

        `lines` are counted from 1, the last one included, `chars` from 0. What is larger than a share of the window is
        given out in such parts only.
        """
        named = await self._log.check_scope(check_scope(scope))
        async with self._log.lock:
            await self._log.refresh()
        found = self._find_artifact(self.history.context(named), check_text("reference", reference))
        results = self.history.entries[found.position].message.results
        text = next(result.text for result in results if result.call_id == found.call_id)
        part = _text_range(text, lines, chars)
        tokens = found.tokens if part is text else counter_for(self.model).count(part)
        window = (
            self._builder.situation(RequestOptions(budget=budget, model=self.model)).window
            or self.policy.unknown_window
        )
        limit = int(RETRIEVAL_SHARE * window)
        if tokens > limit:
            raise ArtifactTooLargeError(found.id, tokens=tokens, limit=limit)
        return part

    def _find_artifact(self, context: Context, reference: str) -> Artifact:
        number = reference.removeprefix("#")
        positions = range(context.state.cleared_at, context.length)
        if reference.startswith("#") and number.isdecimal() and len(number) <= MAX_REFERENCE_DIGITS:
            place = int(number)
            positions = (
                range(max(positions.start, place - ARTIFACT_CALL_LOOKBACK), place + 1)
                if place in positions
                else range(0)
            )
            context.entries.require(filter(context.may_be_visible, positions))
            self._log.require_content(filter(context.may_be_visible, positions[-1:]))
        for artifact in self._large_results(context, positions):
            if reference in {artifact.id, artifact.call_id, f"#{artifact.position}"}:
                return artifact
        raise UnknownArtifactError(reference)

    def _large_results(self, context: Context, positions: range) -> Iterator[Artifact]:
        fold = self.policy.fold
        least = fold.artifact_tokens if isinstance(fold, InkeepCompaction) else DEFAULT_ARTIFACT_TOKENS
        context.entries.require(filter(context.may_be_visible, positions))
        return large_results(context.entries_between(positions.start, positions.stop), least, counter_for(self.model))


ARTIFACT_CALL_LOOKBACK = 32
"""How far before a result its call is looked for."""


def _text_range(text: str, lines: tuple[int, int] | None, chars: tuple[int, int] | None) -> str:
    """Return a range of a text."""
    if lines is not None:
        first, last = _check_range("lines", lines, least=1)
        start, stop = TextSpan(first, last, is_lines=True).bounds_in(text)
        return text[start:stop]
    if chars is not None:
        start, stop = _check_range("chars", chars, least=0)
        return text[start:stop]
    return text


def _check_range(name: str, given: object, *, least: int) -> tuple[int, int]:
    match given:
        case (int() as first, int() as last) if least <= first <= last:
            return first, last
        case _:
            raise MalformedInputError(f"artifact.{name}", f"must be two numbers from {least} on, in order")
