"""Holdfast as a capability: one line lets any pydantic-ai agent talk for ever.

Every request of every run is prepared by a session, in the middle of a tool loop too, while the run's own history
stays whole. What belongs to one run is kept with that run, so many of them may go on at once.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.tools import RunContext

from holdfast.adapters.pydantic_ai.conversation import SessionOptions, SessionPool
from holdfast.adapters.pydantic_ai.run import GovernedRun, is_inside_run_of
from holdfast.core.history.events import Usage
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget
from holdfast.errors import SettingsError
from holdfast.models.base import Summarizer
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.request import Request
from holdfast.session.session import Session
from holdfast.stores.base import Store


class Holdfast(AbstractCapability[Any]):
    """Keeps an agent's conversations in sessions: `Agent(model, capabilities=[Holdfast()])`.

    A run's `conversation_id` names its session, and a run without `message_history=` goes on from what stands there.
    """

    id = "holdfast"  # one is enough for an agent; one that a run is given takes the place of the agent's

    def __init__(
        self,
        *,
        session: Session | str | None = None,
        store: str | Store | None = None,
        policy: str | Policy | None = None,
        budget: int | Budget | None = None,
        model: str | None = None,
        summarizer: str | Summarizer | None = None,
        compaction: CompactionOptions | None = None,
        recall: bool = True,
        recall_from: Sequence[str] = (),
        compact_context: bool = False,
    ) -> None:
        """`session` is the one conversation of all runs, by its id or already open.

        `store`, `policy`, `summariser` and `compaction` are those of `Session.open`: memory and `default` where they
        are not given. `budget` is the largest input in tokens; without it the model says, or the table of models,
        in which `model` names it where its own name is not the one there. `recall` gives the agent the tool of that
        name, by which its model sees again what was folded or shortened; `recall_from` are the ids of earlier
        sessions that it may look into as well. `compact_context` gives it one by which it asks for a compaction itself.
        """
        given = session if isinstance(session, Session) else None
        how = SessionOptions(store=store, policy=policy, summarizer=summarizer, compaction=compaction)
        self.conversations = SessionPool(how, given)
        self._fixed_session_id = session.id if isinstance(session, Session) else session
        self._current = given
        self.budget = budget
        self.model = model
        self.recall = recall
        self.recall_from = recall_from
        self.compact_context = compact_context
        self.last_request: Request | None = None
        """The newest request; those of runs inside other runs do not count."""
        self.last_usage: Usage | None = None
        """What the newest answer cost, as the provider says."""

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        """Return the last of several: a conversation is kept in one place."""
        return capabilities[-1]

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Return None: sessions and stores are no data."""
        return None

    # What a program asks.

    @property
    def session(self) -> Session | None:
        """The session of the newest run, else the one that was given or opened last."""
        return self._current

    @property
    def sessions(self) -> Mapping[str, Session]:
        """All sessions that are open, by id."""
        return self.conversations.sessions

    async def open(self, conversation_id: str | None = None) -> Session:
        """Return the session that runs of a conversation use; None is the one that was given as `session=`."""
        session_id = conversation_id or self._fixed_session_id
        if session_id is None:
            raise SettingsError("conversation_id", "is needed: there is no one session for all runs")
        self._current = (await self.conversations.conversation(session_id)).session
        return self._current

    async def close(self) -> None:
        """Close the sessions that were opened here, and the store; everything is already durable."""
        await self.conversations.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What pydantic-ai asks.

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Return what governs one run."""
        own = ctx.conversation_id or ctx.run_id or "run"
        is_nested = is_inside_run_of(self)
        session_id = own if is_nested else self._fixed_session_id or own
        if is_nested and session_id in (self._fixed_session_id, *self.conversations.busy_ids):
            # A conversation that is in the middle of a tool call cannot be gone on with.
            session_id = f"{session_id}.{ctx.run_id}"
        return GovernedRun(self, session_id, is_nested=is_nested)

    def run_started(self, session: Session) -> None:
        """Hear that a run takes part in a session."""
        self._current = session
