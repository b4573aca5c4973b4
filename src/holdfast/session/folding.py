"""Folding a conversation on somebody's word, and telling what every change of it did."""

from collections.abc import Mapping, Sequence

from holdfast.core.history import events as log
from holdfast.core.planning.change import brought_back
from holdfast.core.planning.completion import measured
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget
from holdfast.errors import CompactionError, MalformedInputError, ModelError, NothingToCompactError
from holdfast.models.base import Writer
from holdfast.session.circumstances import Wanted
from holdfast.session.compactor import Compactor
from holdfast.session.fetching import fetching
from holdfast.session.given import count, scope_named, words
from holdfast.session.keeping import Keeper
from holdfast.session.manual import ManualCompaction
from holdfast.session.preparer import Preparer
from holdfast.session.pressure import relieved, switched
from holdfast.session.recall import Recalling
from holdfast.session.tools import COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, ModelTool


class Folder(Recalling):
    """Compacts, previews, takes apart and accounts for."""

    def __init__(self, keeper: Keeper, compactor: Compactor, preparer: Preparer, policy: Policy) -> None:
        super().__init__(keeper, compactor, preparer)
        self._manual = ManualCompaction(keeper, compactor, preparer, policy)

    @fetching
    async def compact(
        self,
        *,
        focus: str = "",
        trigger: log.Trigger = "manual",
        budget: int | Budget | None = None,
        scope: str = log.MAIN,
    ) -> log.CompactionCompleted:
        """Fold what the policy would fold, now; `focus` is what the summary is to be about above all.

        Waits for the summary, and raises by name why there is none; then nothing has changed.
        """
        wanted = Wanted(budget=budget, model=self.model, scope=await self._keeper.scope(scope_named(scope)))
        return await self._manual.compact(wanted, trigger, words("focus", focus))

    def compact_tool(self, *, scope: str = log.MAIN) -> ModelTool:
        """Return the tool by which a model asks for a compaction itself, in the middle of its work."""
        named = scope_named(scope)

        async def call(arguments: Mapping[str, object]) -> str:
            focus = arguments.get("focus")
            try:
                done = await self.compact(
                    focus=focus if isinstance(focus, str) else "", trigger="agent_request", scope=named
                )
            except (CompactionError, ModelError) as error:
                return f"[{COMPACT_CONTEXT}: nothing was changed: {error}]"
            before, after = done.pre_compaction_tokens, done.post_compaction_tokens
            return f"Done: {before:,} tokens are {after:,} now. Go on with the task."

        return ModelTool(COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, call)

    @fetching
    async def recompact(self, *, focus: str = "", budget: int | Budget | None = None) -> log.CompactionCompleted:
        """Take the last compaction back and make it anew from the original, with other words about what matters."""
        if not self.history.version.of(log.MAIN).folds:
            raise NothingToCompactError(len(self.history))
        if not self.history.is_last_change_a_fold:
            raise MalformedInputError("recompact", "the last change of context is no compaction; undo that first")
        await self.undo()
        try:
            return await self.compact(focus=focus, budget=budget)
        except BaseException:
            await self.redo()
            raise

    @fetching
    async def bring_back(self, positions: Sequence[int]) -> None:
        """Show chosen messages of the last compaction again, whole, behind its summary."""
        async with self._keeper.turn:
            await self._keeper.take_in()
            event = brought_back(self.history.context(), positions)
            await self._keeper.change(measured(event, self._preparer.outlook(Wanted(model=self.model))))

    @fetching
    async def preview(
        self, *, draft: bool = False, focus: str = "", budget: int | Budget | None = None
    ) -> log.CompactionCompleted:
        """Return what a compaction would do now, and do nothing.

        By rule, which is free; with `draft=True` the model is asked for the summary that would count, which is not.
        """
        wanted, focus = Wanted(budget=budget, model=self.model), words("focus", focus)
        if draft:
            return await self._manual.draft(wanted, focus)
        async with self._keeper.turn:
            await self._keeper.take_in()
            return self._manual.preview(wanted)

    @fetching
    async def switch_model(self, model: str, *, budget: int | Budget | None = None) -> log.CompactionCompleted | None:
        """Let another model answer from now on; what is too long for it is compacted first, and that is returned."""
        done = await switched(self._keeper, self._manual, self._preparer, Wanted(model=model, budget=budget))
        self.model = model
        return done

    @fetching
    async def relieve(self, limit_bytes: int) -> log.CompactionCompleted | None:
        """Compact if the process still holds more memory than that after cleaning up; returns what was done."""
        return await relieved(self._manual, Wanted(model=self.model), count("limit_bytes", limit_bytes))

    @property
    def writers(self) -> list[Writer]:
        """Those who write summaries for this session alone: the ones that were named and not given."""
        return self._compactor.own_writers

    async def cancel_compaction(self) -> bool:
        """Give up the summary that is being written here, and say whether there was one."""
        return await self._compactor.cancel()
