"""Recall: everything that was said and is not in view any more, for programs and for the model itself.

By reference, by range, by words, from the end; for one agent, and never what that one may not see: nothing before a
clear, nothing that a rewind took out, nothing of another delegation. A program gets values and errors with types; a
model gets one text, and whatever it asks, an answer.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from holdfast.core.conversation.handles import RECALL
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.recall.answer import Excerpt, Recalled
from holdfast.core.history.recall.asking import DEFAULT_TOKENS, Recall
from holdfast.core.history.recall.packing import (
    Found,
    Packer,
    answered_places,
    packed_places,
    packed_search,
)
from holdfast.core.history.recall.references import Reference
from holdfast.core.history.recall.schema import DESCRIPTION, PARAMETERS
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError, UnknownReferenceError
from holdfast.session.fetching import fetching
from holdfast.session.finding import Finder, Findings, check_words
from holdfast.session.keeping import Keeper
from holdfast.session.reading import Reader
from holdfast.session.rereading import Rereader

__all__ = ["Excerpt", "Recall", "RecallTool", "Recalled", "Recalling"]
MOST_TOKENS = 4
"""How many times its allowance a model may ask for."""
RUN = 32
"""How many messages of a long reference are read at a time."""


@dataclass(frozen=True, slots=True)
class RecallTool:
    """The tool as any framework can offer it to a model."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments."""
    call: Callable[[Mapping[str, object]], Awaitable[str]]
    """Answers; never raises for anything that a model can ask."""


class Recalling(Reader):
    """A session as far as its past is asked for."""

    @fetching
    async def recall_for(self, asking: Recall | str, *, scope: str = log.MAIN) -> Recalled:
        """Return what is asked for of everything that an agent may see, in excerpts to the letter.

        A text asks for the references it is made of, or for its words. Raises `UnknownReferenceError` where nothing of
        what it refers to is there for this agent.
        """
        question = asking if isinstance(asking, Recall) else Recall.of(asking)
        check_words(question)
        async with self._keeper.turn:
            await self._keeper.take_in()
        recollection = _Recollection(self._keeper, self.history.context(scope), question, self.model)
        return await (recollection.places() if question.refs else recollection.search())

    def recall_tool(self, *, scope: str = log.MAIN, max_tokens: int = DEFAULT_TOKENS) -> RecallTool:
        """Return the tool by which the model itself recalls; say `has_recall=True` to `prepare` where it is offered."""

        async def call(arguments: Mapping[str, object]) -> str:
            try:
                asked = Recall.from_arguments(arguments, max_tokens=max_tokens)
                asked = replace(asked, max_tokens=min(asked.max_tokens, MOST_TOKENS * max_tokens))
                return str(await self.recall_for(asked, scope=scope))
            except MalformedInputError as error:
                return f"[Recall: {error.where.removeprefix('recall.')}: {error.problem}]"
            except UnknownReferenceError as error:
                return f"[Recall: {error}]"

        return RecallTool(RECALL, DESCRIPTION, PARAMETERS, call)


class _Recollection:
    """One question, answered for one agent."""

    def __init__(self, keeper: Keeper, context: Context, asking: Recall, model: str | None) -> None:
        self._context = context
        self._asking = asking
        self._reader = Rereader(keeper, context)
        seen = keeper.in_view.get(context.scope, frozenset()) if asking.is_unseen_first else frozenset[int]()
        self._finder = Finder(keeper.store, keeper.session, self._reader, seen)
        self._packer = Packer(counter_for(model), asking.max_tokens)

    # By reference.

    async def places(self) -> Recalled:
        """Return what references mean, in their order, as much as there is room for."""
        references, missing = self._asking.references, list[str]()
        left: list[Reference] = []
        for number, place in enumerate(references):
            rest, is_there = await self._place(place)
            if not is_there:
                missing.append(str(place))
            if rest:
                left = [*rest, *references[number + 1 :]]
                break
        if missing and not self._packer.excerpts and not left and not self._reader.notes:
            raise UnknownReferenceError(missing[0])
        notes = [f"there is no message {name} here" for name in missing]
        return answered_places(left, self._asking, self._packer, [*self._reader.notes, *notes])

    async def _place(self, place: Reference) -> tuple[list[Reference], bool]:
        """Take what one reference means; returns what there is no room for, and whether anything is there."""
        if place.call_id:
            one = await self._finder.call(place.call_id)
            if one is None:
                return [], False
            meant = replace(_part_of(one, place.call_id), span=place.span)
            return packed_places([(meant, one)], self._packer), True
        is_there = False
        for run in self._runs(place):
            found = [one for one in await self._reader.read(run) if _has_part(one, place)]
            is_there = is_there or bool(found)
            if left := packed_places([(place, one) for one in found], self._packer):
                rest = Reference(run[-1] + 1, place.last)
                return [*left, *([rest] if rest.first <= rest.last else [])], True
        return [], is_there

    def _runs(self, place: Reference) -> Iterator[list[int]]:
        """Yield the positions of a reference that this agent may see, some at a time."""
        run: list[int] = []
        for position in range(place.first, min(place.last + 1, self._context.length)):
            if self._context.recalls(position):
                run.append(position)
            if len(run) == RUN:
                yield run
                run = []
        if run:
            yield run

    # By search.

    async def search(self) -> Recalled:
        """Return what was looked for, the best first, as much as there is room for."""
        asking, packer = self._asking, self._packer
        findings = await self._finder.search(asking)
        later = asking.continued()
        packer.set_aside(str(later.arguments()))
        packed_search(await self._with_neighbours(findings.found[asking.skip :]), asking, packer)
        shown = [excerpt.position for excerpt in packer.excerpts if not excerpt.is_neighbour]
        more = _more(findings, later, shown)
        notes = list(self._reader.notes)
        if more and more.before == findings.stopped_at:
            notes.append(f"messages before #{findings.stopped_at} were not looked at yet")
        return Recalled(
            excerpts=tuple(packer.excerpts), found=max(findings.count, len(shown)), notes=tuple(notes), more=more
        )

    async def _with_neighbours(self, found: list[Found]) -> list[Found]:
        count = self._asking.neighbours
        if not count:
            return found
        listed: list[Found] = []
        for one in found[: self._asking.max_tokens // 12]:
            near = [*range(one.position - count, one.position), *range(one.position + 1, one.position + count + 1)]
            listed.append(one)
            listed += [replace(other, is_neighbour=True) for other in await self._reader.read(near)]
        return listed


def _more(findings: Findings, later: Recall, shown: list[int]) -> Recall | None:
    """Return what to ask for the rest, where there is any."""
    seen = later.skip + len(shown)
    if seen < len(findings.found):
        if findings.is_by_time and shown:
            left = later.last - len(shown) if later.last else 0
            return replace(later, skip=0, before=shown[-1], last=left)
        return replace(later, skip=seen)
    return None if findings.stopped_at is None else replace(later, skip=0, before=findings.stopped_at)


def _has_part(one: Found, place: Reference) -> bool:
    return place.part is None or one.body.part(place.part) is not None


def _part_of(one: Found, call_id: str) -> Reference:
    """Return the reference to the part of a message that answers a call, or makes it."""
    for number, part in enumerate(one.message.parts, 1):
        if call_id in {getattr(part, "call_id", None), getattr(part, "id", None)}:
            return Reference(one.position, one.position, number if len(one.message.parts) > 1 else None)
    return Reference(one.position, one.position)
