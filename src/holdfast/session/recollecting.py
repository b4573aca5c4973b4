"""One question to the past of one session, answered for one agent: found, packed into its allowance, told.

Who asks, and which session is asked, is settled before; here it is only looked for and put together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from holdfast.core.conversation.messages import ToolResult
from holdfast.core.history.artifacts import is_named
from holdfast.core.history.context import Context
from holdfast.core.history.recall.answer import Recalled, by_day
from holdfast.core.history.recall.asking import Recall
from holdfast.core.history.recall.bodies import body_of
from holdfast.core.history.recall.names import MAX_RANKED, names_for
from holdfast.core.history.recall.packing import Found, Packer, answered_places, beyond, packed_places, packed_search
from holdfast.core.history.recall.references import Reference
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import NotInMemoryError, UnknownReferenceError
from holdfast.session.comparing import compared
from holdfast.session.finding import READ, TOKENS_PER_MESSAGE, Finder, Findings, is_work
from holdfast.session.keeping import Keeper
from holdfast.session.rereading import Rereader

NAMES_SHARE = 0.4
"""What names may take of an answer about work."""
NAMED = 24
"""Of at least how many messages that may be shown the tools are looked for."""
MAX_NAMED, MAX_NAME_CHARS = 3, 60
"""How much is told of what could not be had."""
RUN = 32
"""How many messages of a long reference are read at a time."""


async def recollected(
    keeper: Keeper, context: Context, asking: Recall, model: str | None, in_view: frozenset[int] = frozenset()
) -> Recalled:
    """Return the answer to a question, within its allowance; what stands in view anyway comes last."""
    counter, room = counter_for(model), asking.max_tokens
    if asking.diff:
        return await _Recollection(keeper, context, asking, model, in_view, room=room).difference()
    while True:
        recollection = _Recollection(keeper, context, asking, model, in_view, room=room)
        answer = await (recollection.places() if asking.refs else recollection.search())
        over = counter.count(str(answer)) - asking.max_tokens
        if over <= 0 or not answer.excerpts:
            return answer
        # What is told besides the excerpts took more than was set aside for it.
        room -= over + 1


class _Recollection:
    """One question, answered for one agent."""

    def __init__(
        self,
        keeper: Keeper,
        context: Context,
        asking: Recall,
        model: str | None,
        in_view: frozenset[int],
        *,
        room: int,
    ) -> None:
        self._history = keeper.history
        self._context = context
        self._asking = asking
        self._reader = Rereader(keeper, context)
        self._finder = Finder(keeper.store, keeper.session, self._reader, keeper.history.answers, in_view)
        self._packer = Packer(counter_for(model), room)

    async def difference(self) -> Recalled:
        """Return what changed between two readings."""
        return await compared(self._reader, self._finder, self._asking, self._packer.counter)

    # By reference.

    async def places(self) -> Recalled:
        """Return what references mean, in their order, as much as there is room for."""
        references, missing = self._asking.references[self._asking.skip :], list[str]()
        left, done = list[Reference](), 0
        for number, place in enumerate(references):
            rest, is_there = await self._place(place)
            if not is_there:
                missing.append(str(place))
            if rest:
                left, done = [*rest, *references[number + 1 :]], number + 1
                break
        if missing and not self._packer.excerpts and not left and not self._reader.notes:
            raise UnknownReferenceError(missing[0][:MAX_NAME_CHARS])
        notes = [*_few(self._reader.notes), *([f"there is no message {_named(missing)} here"] if missing else [])]
        more = len(left) - len(references) + done
        return answered_places(left, self._asking, self._packer, notes, rest=left[:more], skip=done)

    async def _place(self, place: Reference) -> tuple[list[Reference], bool]:
        """Take what one reference means; returns what there is no room for, and whether anything is there."""
        if not place.is_position:
            return await self._called(place)
        is_there = False
        for run in self._runs(place):
            read = await self._reader.named(await self._reader.read(run))
            found = [one for one in read if _has_part(one, place)]
            is_there = is_there or bool(found)
            self._reader.notes += [note for one in found if (note := beyond(place, one))]
            found = [one for one in found if not beyond(place, one)]
            if left := packed_places([(place, one) for one in found], self._packer):
                rest = Reference(run[-1] + 1, place.last)
                return [*left, *([rest] if rest.first <= rest.last else [])], True
        return await self._called(place) if place.call_id and not is_there else ([], is_there)

    async def _called(self, place: Reference) -> tuple[list[Reference], bool]:
        """Take what a call gave back, by its id or by the name of the artifact that this is."""
        one = await self._finder.call(place.call_id)
        if one is None:
            return [], False
        meant = replace(_part_of(one, place.call_id), span=place.span)
        named = await self._reader.named([one])
        return packed_places([(meant, found) for found in named], self._packer), True

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
        names_room = self._names_room(findings)
        packer.left -= names_room
        wanted = findings.found[asking.skip :]
        first = await self._reader.named(wanted[: max(NAMED, asking.max_tokens // TOKENS_PER_MESSAGE // 2)])
        listed = await self._with_neighbours([*first, *wanted[len(first) :]])
        done = packed_search(listed, asking, packer)
        seen = sum(not one.is_neighbour for one in listed[:done])
        more = _more(findings, later, seen)
        more = more.roomier() if more and not packer.excerpts else more
        shown = [excerpt for excerpt in packer.excerpts if not excerpt.is_neighbour]
        notes = list(self._reader.notes)
        if more and more.before == findings.stopped_at:
            notes.append(f"messages before #{findings.stopped_at} were not looked at yet")
        return Recalled(
            excerpts=tuple(by_day(packer.excerpts)),
            found=max(findings.count, len(shown)),
            names=self._names(names_room + max(0, packer.left)) if names_room else "",
            notes=tuple(notes),
            more=more,
            asked=asking,
        )

    def _names_room(self, findings: Findings) -> int:
        """Return what names may take: nothing in a talk, nor where somebody asks for more of the same."""
        first = findings.found[:READ]
        is_asked = bool(self._asking.questions) and self._asking.is_unseen_first and not self._asking.skip
        if not is_asked or sum(map(is_work, first)) * 2 < len(first):
            return 0
        return int(self._asking.max_tokens * NAMES_SHARE)

    def _names(self, allowance: int) -> str:
        """Return the names that go with the question and are not in view, as far as a ledger of them is at hand."""
        context, history = self._context, self._history
        folds, offloaded = context.standing.folds, context.standing.offloaded
        stop = max(folds[-1].stop if folds else 0, offloaded.line if offloaded else 0)
        if not stop:
            return ""
        try:
            context.entries.need(range(stop, context.length))
            items = history.ledger(context.scope, stop).ranked(MAX_RANKED)
        except NotInMemoryError:
            return ""
        tail = (body_of(entry.message).text for entry in context.between(stop, context.length))
        folded = (text for fold in folds for text in fold.replacement)
        beside = "\n".join([*tail, *folded, *self._packer.texts])
        return names_for(self._asking.questions, items, allowance, self._packer.counter, beside=beside)

    async def _with_neighbours(self, found: list[Found]) -> list[Found]:
        count = self._asking.neighbours
        if not count:
            return found
        listed: list[Found] = []
        for one in found[: self._asking.max_tokens // TOKENS_PER_MESSAGE]:
            near = [*range(one.position - count, one.position), *range(one.position + 1, one.position + count + 1)]
            listed.append(one)
            others = await self._reader.named(await self._reader.read(near))
            listed += [replace(other, is_neighbour=True) for other in others]
        return listed


def _more(findings: Findings, later: Recall, seen: int) -> Recall | None:
    """Return what to ask for the rest, where there is any."""
    skip = later.skip + seen
    if skip < len(findings.found):
        if findings.is_by_time and skip:
            left = max(0, later.last - skip)
            return replace(later, skip=0, before=findings.found[skip - 1].position, last=left)
        return replace(later, skip=skip)
    return None if findings.stopped_at is None else replace(later, skip=0, before=findings.stopped_at)


def _named(names: Sequence[str]) -> str:
    """Return the first of some names, and how many there are besides."""
    first = " or ".join(name[:MAX_NAME_CHARS] for name in names[:MAX_NAMED])
    return first if len(names) <= MAX_NAMED else f"{first}, nor {len(names) - MAX_NAMED:,} others,"


def _few(notes: Sequence[str]) -> list[str]:
    return [*notes[:MAX_NAMED], *([f"and {len(notes) - MAX_NAMED:,} more like this"] if len(notes) > MAX_NAMED else [])]


def _has_part(one: Found, place: Reference) -> bool:
    return place.part is None or one.body.part(place.part) is not None


def _part_of(one: Found, call_id: str) -> Reference:
    """Return the reference to the part of a message that answers a call, or makes it."""
    for number, part in enumerate(one.message.parts, 1):
        names = {getattr(part, "call_id", None), getattr(part, "id", None)}
        if call_id in names or (isinstance(part, ToolResult) and is_named(call_id, part)):
            return Reference(one.position, one.position, number if len(one.message.parts) > 1 else None)
    return Reference(one.position, one.position)
