"""Folding a conversation on somebody's word, and telling what every change of it did."""

from collections.abc import Mapping, Sequence

from holdfast.core.history import events as log
from holdfast.core.planning.change import with_messages_restored
from holdfast.core.planning.completion import with_measured_effect
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget
from holdfast.errors import CompactionError, MalformedInputError, ModelError, NothingToCompactError
from holdfast.models.base import Summarizer
from holdfast.session.circumstances import RequestOptions
from holdfast.session.compactor import Compactor
from holdfast.session.fetching import retry_when_not_loaded
from holdfast.session.given import check_count, check_scope, check_text
from holdfast.session.keeping import SessionLog
from holdfast.session.manual import ManualCompaction
from holdfast.session.preparer import RequestBuilder
from holdfast.session.pressure import compact_above_memory_limit, switch_model_and_fit
from holdfast.session.recall import Recalling
from holdfast.session.tools import COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, ModelTool


class Folder(Recalling):
    """Compacts, previews, takes apart and accounts for."""

    def __init__(self, session_log: SessionLog, compactor: Compactor, builder: RequestBuilder, policy: Policy) -> None:
        super().__init__(session_log, compactor, builder)
        self._manual = ManualCompaction(session_log, compactor, builder, policy)

    @retry_when_not_loaded
    async def compact(
        self,
        *,
        focus: str = "",
        trigger: log.CompactionTrigger = "manual",
        budget: int | Budget | None = None,
        scope: str = log.MAIN,
    ) -> log.CompactionCompleted:
        """Fold what the policy would fold, now; `focus` is what the summary is to be about above all.

        Waits for the summary, and raises by name why there is none; then nothing has changed.
        """
        wanted = RequestOptions(budget=budget, model=self.model, scope=await self._log.check_scope(check_scope(scope)))
        return await self._manual.compact(wanted, trigger, check_text("focus", focus))

    def compact_tool(self, *, scope: str = log.MAIN) -> ModelTool:
        """Return the tool by which a model asks for a compaction itself, in the middle of its work."""
        named = check_scope(scope)

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

    @retry_when_not_loaded
    async def recompact(self, *, focus: str = "", budget: int | Budget | None = None) -> log.CompactionCompleted:
        """Take the last compaction back and make it anew from the original, with other words about what matters."""
        if not self.history.version.state_of(log.MAIN).compactions:
            raise NothingToCompactError(len(self.history))
        if not self.history.is_last_change_a_compaction:
            raise MalformedInputError("recompact", "the last change of context is no compaction; undo that first")
        await self.undo()
        try:
            return await self.compact(focus=focus, budget=budget)
        except BaseException:
            await self.redo()
            raise

    @retry_when_not_loaded
    async def restore_messages(self, positions: Sequence[int]) -> None:
        """Show chosen messages of the last compaction again, whole, behind its summary."""
        async with self._log.lock:
            await self._log.refresh()
            event = with_messages_restored(self.history.context(), positions)
            await self._log.append(
                with_measured_effect(event, self._builder.plan_input(RequestOptions(model=self.model)))
            )

    @retry_when_not_loaded
    async def preview(
        self, *, draft: bool = False, focus: str = "", budget: int | Budget | None = None
    ) -> log.CompactionCompleted:
        """Return what a compaction would do now, and do nothing.

        By rule, which is free; with `draft=True` the model is asked for the summary that would count, which is not.
        """
        wanted, focus = RequestOptions(budget=budget, model=self.model), check_text("focus", focus)
        if draft:
            return await self._manual.draft(wanted, focus)
        async with self._log.lock:
            await self._log.refresh()
            return self._manual.preview(wanted)

    @retry_when_not_loaded
    async def switch_model(self, model: str, *, budget: int | Budget | None = None) -> log.CompactionCompleted | None:
        """Let another model answer from now on; what is too long for it is compacted first, and that is returned."""
        done = await switch_model_and_fit(
            self._log, self._manual, self._builder, RequestOptions(model=model, budget=budget)
        )
        self.model = model
        return done

    @retry_when_not_loaded
    async def compact_if_memory_above(self, limit_bytes: int) -> log.CompactionCompleted | None:
        """Compact if the process still holds more memory than that after cleaning up; returns what was done."""
        return await compact_above_memory_limit(
            self._manual, RequestOptions(model=self.model), check_count("limit_bytes", limit_bytes)
        )

    @property
    def summarizers(self) -> list[Summarizer]:
        """Those who write summaries for this session alone: the ones that were named and not given."""
        return self._compactor.owned_summarizers

    async def cancel_compaction(self) -> bool:
        """Give up the summary that is being written here, and say whether there was one."""
        return await self._compactor.cancel()
