"""Recall: everything that was said and is not in view any more, for programs and for the model itself.

By reference, by range, by words, from the end; for one agent, and never what that one may not see: nothing before a
clear, nothing that a rewind took out, nothing of another delegation. A program gets values and errors with types; a
model gets one text, and whatever it asks, an answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.core.conversation.handles import RECALL_TOOL
from holdfast.core.history import events as log
from holdfast.core.history.artifacts import RETRIEVAL_SHARE
from holdfast.core.history.recall.answer import Excerpt, RecallAnswer
from holdfast.core.history.recall.asking import DEFAULT_RECALL_TOKENS, MAX_RECALL_TOKENS, MIN_RECALL_TOKENS, RecallQuery
from holdfast.core.history.recall.schema import RECALL_DESCRIPTION, RECALL_PARAMETERS
from holdfast.errors import MalformedInputError, StoreError, UnknownReferenceError
from holdfast.session.earlier import EarlierSessions
from holdfast.session.fetching import retry_when_not_loaded
from holdfast.session.finding import check_query_words
from holdfast.session.given import check_scope
from holdfast.session.keeping import Clock
from holdfast.session.reading import Reader
from holdfast.session.recollecting import answer_recall
from holdfast.session.request import PreparedRequest
from holdfast.session.tools import ModelTool
from holdfast.stores.base import Store

__all__ = ["Excerpt", "RecallAnswer", "RecallQuery", "Recalling"]
MAX_ALLOWANCE_FACTOR = 4
"""How many times its allowance a model may ask for."""


class Recalling(Reader):
    """A session as far as its past is asked for."""

    store: Store
    clock: Clock

    async def recall(
        self, query: RecallQuery | str, *, scope: str = log.MAIN, earlier: Sequence[str] = ()
    ) -> RecallAnswer:
        """Return what is asked for of everything that an agent may see, in excerpts to the letter.

        A text asks for the references it is made of, or for its words. `earlier` names other sessions of the store
        that may be searched too, and be referred to as `NAME#12`. Raises `UnknownReferenceError` where nothing of what
        it refers to is there for this agent.
        """
        named = await self._log.check_scope(check_scope(scope))
        others = EarlierSessions(
            self.store, self.clock, self.model, [name for name in earlier if name != self._log.session]
        )
        if isinstance(query, Sequence) and not isinstance(query, str):
            raise MalformedInputError("recall", "pass Recall(query=(…)) for several questions, not a list of them")
        if isinstance(query, str) and others.session_of_refs(query):
            query = RecallQuery(refs=query)
        question = query if isinstance(query, RecallQuery) else RecallQuery.from_text(query)
        check_query_words(question)
        if (elsewhere := await others.answer_references(question)) is not None:
            return elsewhere
        if not (others.names and question.questions) or question.skip:
            return await self._recall_here(question, named)
        found = await others.search(question)
        left = question.max_tokens - sum(one.query.max_tokens for one in found if one.query)
        own = await self._recall_here(replace(question, max_tokens=left), named)
        return replace(own, earlier_sessions=tuple(found), notes=(*own.notes, *await others.missing_notes()))

    @retry_when_not_loaded
    async def _recall_here(self, query: RecallQuery, scope: str) -> RecallAnswer:
        async with self._log.lock:
            await self._log.refresh()
        seen = self._positions_in_view(scope) if query.is_unseen_first else frozenset[int]()
        return await answer_recall(self._log, self.history.context(scope), query, self.model, seen)

    def has_omissions(self, request: PreparedRequest, *, scope: str = log.MAIN) -> bool:
        """Return whether a request leaves something out or shortens it: only then a model has use for recall."""
        if request.receipt.compacted or request.receipt.clipped or request.receipt.elided:
            return True
        shown = set(request.positions)
        return any(entry.position not in shown for entry in self.history.context(scope).visible_entries())

    def _positions_in_view(self, scope: str) -> frozenset[int]:
        """Return the positions of what stood whole in the last request of an agent, or was quoted there."""
        sent = self._builder.last_request(scope)
        folds = self.history.version.state_of(scope).compactions
        return (sent.whole_positions if sent else frozenset[int]()).union(*(fold.quoted for fold in folds))

    def _max_answer_tokens(self, scope: str) -> int:
        """Return what an answer may take of an agent's window; what is larger is given out in parts."""
        sent = self._builder.last_request(scope)
        return int(RETRIEVAL_SHARE * sent.window) if sent else MAX_RECALL_TOKENS

    def recall_tool(
        self, *, scope: str = log.MAIN, max_tokens: int = DEFAULT_RECALL_TOKENS, earlier: Sequence[str] = ()
    ) -> ModelTool:
        """Return the tool by which the model itself recalls; say `has_recall=True` to `prepare` where it is offered."""

        async def call(arguments: Mapping[str, object]) -> str:
            try:
                asked = RecallQuery.from_arguments(arguments, max_tokens=max_tokens)
                most = min(MAX_ALLOWANCE_FACTOR * max_tokens, self._max_answer_tokens(scope))
                asked = replace(asked, max_tokens=max(MIN_RECALL_TOKENS, min(asked.max_tokens, most)))
                return str(await self.recall(asked, scope=scope, earlier=earlier))
            except MalformedInputError as error:
                where = "" if error.where == RECALL_TOOL else f"{error.where.removeprefix('recall.')}: "
                return f"[Recall: {where}{error.problem}]"
            except (UnknownReferenceError, StoreError) as error:
                return f"[Recall: {error}]"

        return ModelTool(RECALL_TOOL, RECALL_DESCRIPTION, RECALL_PARAMETERS, call)
