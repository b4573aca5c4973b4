"""Recall: everything that was said and is not in view any more, for programs and for the model itself.

By reference, by range, by words, from the end; for one agent, and never what that one may not see: nothing before a
clear, nothing that a rewind took out, nothing of another delegation. A program gets values and errors with types; a
model gets one text, and whatever it asks, an answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.core.conversation.handles import RECALL
from holdfast.core.history import events as log
from holdfast.core.history.artifacts import RETRIEVAL_SHARE
from holdfast.core.history.recall.answer import Excerpt, Recalled
from holdfast.core.history.recall.asking import DEFAULT_TOKENS, MAX_TOKENS, MIN_TOKENS, Recall
from holdfast.core.history.recall.schema import DESCRIPTION, PARAMETERS
from holdfast.errors import MalformedInputError, StoreError, UnknownReferenceError
from holdfast.session.earlier import Earlier
from holdfast.session.fetching import fetching
from holdfast.session.finding import check_words
from holdfast.session.given import scope_named
from holdfast.session.keeping import Clock
from holdfast.session.reading import Reader
from holdfast.session.recollecting import recollected
from holdfast.session.request import PreparedRequest
from holdfast.session.tools import ModelTool
from holdfast.stores.base import Store

__all__ = ["Excerpt", "Recall", "Recalled", "Recalling"]
MOST_TOKENS = 4
"""How many times its allowance a model may ask for."""


class Recalling(Reader):
    """A session as far as its past is asked for."""

    store: Store
    clock: Clock

    async def recall_for(self, asking: Recall | str, *, scope: str = log.MAIN, earlier: Sequence[str] = ()) -> Recalled:
        """Return what is asked for of everything that an agent may see, in excerpts to the letter.

        A text asks for the references it is made of, or for its words. `earlier` names other sessions of the store
        that may be searched too, and be referred to as `NAME#12`. Raises `UnknownReferenceError` where nothing of what
        it refers to is there for this agent.
        """
        named = await self._keeper.scope(scope_named(scope))
        others = Earlier(self.store, self.clock, self.model, [name for name in earlier if name != self._keeper.session])
        if isinstance(asking, Sequence) and not isinstance(asking, str):
            raise MalformedInputError("recall", "pass Recall(query=(…)) for several questions, not a list of them")
        if isinstance(asking, str) and others.named_in(asking):
            asking = Recall(refs=asking)
        question = asking if isinstance(asking, Recall) else Recall.of(asking)
        check_words(question)
        if (elsewhere := await others.places(question)) is not None:
            return elsewhere
        if not (others.names and question.questions) or question.skip:
            return await self._recalled(question, named)
        found = await others.search(question)
        left = question.max_tokens - sum(one.asked.max_tokens for one in found if one.asked)
        own = await self._recalled(replace(question, max_tokens=left), named)
        return replace(own, earlier=tuple(found), notes=(*own.notes, *await others.missing()))

    @fetching
    async def _recalled(self, question: Recall, scope: str) -> Recalled:
        async with self._keeper.turn:
            await self._keeper.take_in()
        seen = self._in_view(scope) if question.is_unseen_first else frozenset[int]()
        return await recollected(self._keeper, self.history.context(scope), question, self.model, seen)

    def leaves_out(self, request: PreparedRequest, *, scope: str = log.MAIN) -> bool:
        """Return whether a request leaves something out or shortens it: only then a model has use for recall."""
        if request.receipt.folded or request.receipt.clipped or request.receipt.elided:
            return True
        shown = set(request.positions)
        return any(entry.position not in shown for entry in self.history.context(scope).shown())

    def _in_view(self, scope: str) -> frozenset[int]:
        """Return the positions of what stood whole in the last request of an agent, or was quoted there."""
        sent = self._preparer.last(scope)
        folds = self.history.version.of(scope).folds
        return (sent.whole if sent else frozenset[int]()).union(*(fold.quoted for fold in folds))

    def _share(self, scope: str) -> int:
        """Return what an answer may take of an agent's window; what is larger is given out in parts."""
        sent = self._preparer.last(scope)
        return int(RETRIEVAL_SHARE * sent.window) if sent else MAX_TOKENS

    def recall_tool(
        self, *, scope: str = log.MAIN, max_tokens: int = DEFAULT_TOKENS, earlier: Sequence[str] = ()
    ) -> ModelTool:
        """Return the tool by which the model itself recalls; say `has_recall=True` to `prepare` where it is offered."""

        async def call(arguments: Mapping[str, object]) -> str:
            try:
                asked = Recall.from_arguments(arguments, max_tokens=max_tokens)
                most = min(MOST_TOKENS * max_tokens, self._share(scope))
                asked = replace(asked, max_tokens=max(MIN_TOKENS, min(asked.max_tokens, most)))
                return str(await self.recall_for(asked, scope=scope, earlier=earlier))
            except MalformedInputError as error:
                where = "" if error.where == RECALL else f"{error.where.removeprefix('recall.')}: "
                return f"[Recall: {where}{error.problem}]"
            except (UnknownReferenceError, StoreError) as error:
                return f"[Recall: {error}]"

        return ModelTool(RECALL, DESCRIPTION, PARAMETERS, call)
