"""Large tool results by name: listed, and given out whole or in part."""

from collections.abc import Iterator

from holdfast.core.history import events as log
from holdfast.core.history.artifacts import LARGE_TOKENS, RETRIEVAL_SHARE, Artifact, artifacts_of
from holdfast.core.history.context import Context
from holdfast.core.history.recall.references import MAX_DIGITS, Span
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.everything import FoldEverything
from holdfast.core.planning.situation import Budget
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import ArtifactTooLargeError, MalformedInputError, UnknownArtifactError
from holdfast.session.circumstances import Wanted
from holdfast.session.fetching import fetching
from holdfast.session.folding import Folder
from holdfast.session.given import scope_named, words


class Archivist(Folder):
    """A session as far as its large tool results are asked for."""

    policy: Policy

    @fetching
    async def artifacts(self, *, scope: str = log.MAIN) -> list[Artifact]:
        """Return the large tool results that an agent may see, in view or not, the oldest first."""
        named = await self._keeper.scope(scope_named(scope))
        async with self._keeper.turn:
            await self._keeper.take_in()
        context = self.history.context(named)
        return list(self._large(context, range(context.standing.cleared_at, context.length)))

    @fetching
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
        named = await self._keeper.scope(scope_named(scope))
        async with self._keeper.turn:
            await self._keeper.take_in()
        found = self._named(self.history.context(named), words("reference", reference))
        results = self.history.entries[found.position].message.results
        text = next(result.text for result in results if result.call_id == found.call_id)
        part = _part(text, lines, chars)
        tokens = found.tokens if part is text else counter_for(self.model).count(part)
        window = self._preparer.situation(Wanted(budget=budget, model=self.model)).window or self.policy.unknown_window
        limit = int(RETRIEVAL_SHARE * window)
        if tokens > limit:
            raise ArtifactTooLargeError(found.id, tokens=tokens, limit=limit)
        return part

    def _named(self, context: Context, reference: str) -> Artifact:
        number = reference.removeprefix("#")
        positions = range(context.standing.cleared_at, context.length)
        if reference.startswith("#") and number.isdecimal() and len(number) <= MAX_DIGITS:
            place = int(number)
            positions = range(max(positions.start, place - NEAR), place + 1) if place in positions else range(0)
            context.entries.need(filter(context.may_see, positions))
            self._keeper.check_there(filter(context.may_see, positions[-1:]))
        for artifact in self._large(context, positions):
            if reference in {artifact.id, artifact.call_id, f"#{artifact.position}"}:
                return artifact
        raise UnknownArtifactError(reference)

    def _large(self, context: Context, positions: range) -> Iterator[Artifact]:
        fold = self.policy.fold
        least = fold.artifact_tokens if isinstance(fold, FoldEverything) else LARGE_TOKENS
        context.entries.need(filter(context.may_see, positions))
        return artifacts_of(context.between(positions.start, positions.stop), least, counter_for(self.model))


NEAR = 32
"""How far before a result its call is looked for."""


def _part(text: str, lines: tuple[int, int] | None, chars: tuple[int, int] | None) -> str:
    """Return a range of a text."""
    if lines is not None:
        first, last = _range("lines", lines, least=1)
        start, stop = Span(first, last, is_lines=True).within(text)
        return text[start:stop]
    if chars is not None:
        start, stop = _range("chars", chars, least=0)
        return text[start:stop]
    return text


def _range(name: str, given: object, *, least: int) -> tuple[int, int]:
    match given:
        case (int() as first, int() as last) if least <= first <= last:
            return first, last
        case _:
            raise MalformedInputError(f"artifact.{name}", f"must be two numbers from {least} on, in order")
