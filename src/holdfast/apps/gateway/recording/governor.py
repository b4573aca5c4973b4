"""Govern the requests of sessions: by which policy, within which budget, with whose key, and with the recall tool."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from holdfast.apps.gateway.provider_apis import header_line
from holdfast.apps.gateway.recording.client_list import AgentList, ClientList
from holdfast.apps.gateway.recording.exchange import Exchange, ReadRequest, Shrink
from holdfast.apps.gateway.recording.governing import (
    COMPACTION_HEADER,
    JOINABLE_WIRES,
    RECALL_HEADER,
    GoverningChoice,
    governed_body,
    has_pieces,
    is_whole,
    model_of,
    with_members,
)
from holdfast.apps.gateway.recording.identity import Newest
from holdfast.apps.gateway.recording.open_sessions import OpenSession, OpenSessions
from holdfast.apps.gateway.recording.recall_rounds import RECALL_DEFINITIONS, has_one_choice, tools_with_recall
from holdfast.apps.gateway.upstream_summarizer import Payment
from holdfast.core.planning.policy import PRESETS, Policy, policy_named
from holdfast.core.planning.situation import MAX_LIMIT
from holdfast.errors import (
    CannotFitError,
    CompactionError,
    ConcurrentWriteError,
    HoldfastError,
    SettingsError,
    StoreError,
)
from holdfast.models.base import Summarizer
from holdfast.session.compaction.compactor import CompactionOptions, CompactionQueue
from holdfast.wire.answers import Wire
from holdfast.wire.overflow import classify
from holdfast.wire.request import Request

OVER_BUDGET_REMEDY = "compact the session, make the newest prompt smaller, or raise the budget"


class _Server(NamedTuple):
    """A model at an upstream, and how it is spoken to."""

    wire: Wire
    upstream: str
    model: str | None


def _shrink_to_least(
    exchange: Exchange, prepare: Callable[[int], Awaitable[Request]], problem: Exception
) -> Shrink | None:
    """Return what makes a body that is refused as too long the smallest one, if it could not be made to fit.

    A budget leaves room for the answer. So what must be sent can be over it, and within the window without the rest.
    """
    if not isinstance(problem, CannotFitError) or problem.unit != "tokens":
        return None

    async def shrink(error: str, status: int) -> None:
        refusal = classify(error, status=status)
        if refusal is None or refusal.kind != "overflow":
            raise problem
        exchange.shrink = None
        tokens = problem.needed + problem.limit // 16
        with exchange.unless_it_fails():
            try:
                await prepare(tokens)
            except CannotFitError as still:
                # A share of each budget is held in reserve; what was left of this one tells how much.
                tokens = tokens * tokens // still.limit + 1
                await prepare(tokens)
            exchange.prepare_again = partial(prepare, tokens)
            exchange.headers["x-holdfast-error"] = header_line(f"over budget: {problem}")

    return shrink


class Governor:
    """Keeps the requests of all sessions within their budgets, each as its policy says."""

    def __init__(
        self,
        sessions: OpenSessions,
        *,
        policy: str | Policy,
        policies: Mapping[str, Policy] | None,
        budget: int | None,
        summarizer: str | Summarizer | None,
        payment: Payment,
        offers_recall: bool,
    ) -> None:
        self._sessions = sessions
        self.policy = policy_named(policy)
        self.policies: Mapping[str, Policy] = {**PRESETS, **(policies or {})}
        """The policies that requests may name."""
        self._budget = budget
        self.summarizer = summarizer
        """Writes the summaries of all sessions, with a key of its own."""
        self._payment: Payment = payment
        self.queue: CompactionQueue | None = None
        """Where summaries are left that any gateway can write."""
        self._queue_here: CompactionQueue | None = None
        """Where summaries are left that need the key of a client, which only this process has."""
        self._offers_recall = offers_recall
        self._alternating = Newest[_Server, None]()
        """What has refused neighbors of one role."""

    def use_queues(self, queue: CompactionQueue, here: CompactionQueue) -> None:
        """Leave the summaries of sessions that are opened from now on to workers.

        `here` is for those that need the key of a client: their jobs begin in this process.
        """
        self.queue, self._queue_here = queue, here

    async def choose(self, opened: OpenSession, choice: GoverningChoice) -> None:
        """Govern a session in another way from now on; raises `SettingsError` for what is not possible."""
        self.check_choice(choice)
        opened.choice = choice
        await self._sessions.store_governing(opened)

    def check_choice(self, choice: GoverningChoice) -> None:
        """Check that there is a policy of that name, and that no session would refuse the budget."""
        if choice.budget is not None and choice.budget > MAX_LIMIT:
            raise SettingsError("budget", f"must be at most {MAX_LIMIT:,}")
        if choice.policy is not None and choice.policy not in self.policies:
            known = ", ".join(self.policies)
            raise SettingsError("policy", f"none is called {choice.policy!r:.60}; there are {known}")

    async def use_policy(self, opened: OpenSession, choice: GoverningChoice, *, has_key: bool | None = None) -> None:
        """Give a session the policy that was chosen for it or the gateway's, and a summarizer if it has a key."""
        policy = self.policies[choice.policy] if choice.policy else self.policy
        has_key = opened.has_key if has_key is None else has_key
        if policy is opened.policy and has_key is opened.has_key:
            return
        options = None
        if self.summarizer is None:
            options = CompactionOptions(automatic=opened.summarizer if has_key else None, queue=self._queue_here)
        await opened.session.set_policy(policy, compaction=options)
        opened.policy, opened.has_key = policy, has_key

    @property
    def may_use_client_keys(self) -> bool:
        """Whether the keys of clients may pay for summaries."""
        return self.summarizer is None and self._payment != "digest"

    def _take_key(self, reading: ReadRequest, opened: OpenSession) -> bool:
        """Return whether summaries may be written with the key of a request, which then is the one to use."""
        access, model = reading.request.access, reading.body.model
        if not self.may_use_client_keys or access is None or model is None or not access.pays(self._payment):
            return False
        return opened.summarizer.use(reading.request.wire, model, access, reading.request.body)

    async def govern(
        self, reading: ReadRequest, opened: OpenSession, agent_list: AgentList, listed: ClientList
    ) -> Exchange:
        """Return an exchange with the body that fits the budget: the client's own bytes where nothing had to change."""
        exchange, wanted = Exchange(reading.request), reading.request.governing
        choice = wanted.choice.otherwise(opened.choice)
        await self.use_policy(opened, choice, has_key=self._take_key(reading, opened))
        body, raw, model = reading.body, reading.request.body, model_of(reading.request.path, reading.body)
        server = _Server(body.wire, reading.request.upstream, model)
        extras, recall_tools = agent_list.extras_of(body), self.recall_tools(reading, agent_list, exchange)
        tools = extras.tools if recall_tools is None else [*(extras.tools or ()), RECALL_DEFINITIONS[body.wire]]

        def encode(prepared: Request) -> bytes:
            is_untouched = prepared.receipt.is_unchanged and not agent_list.has_recall
            slices: Mapping[int, msgspec.Raw] = {} if is_untouched else agent_list.recorded_slices(listed)
            is_cut = not is_whole(prepared, slices)
            left_out = agent_list.tokens_left_out(prepared, slices, model) if slices and not is_cut else 0
            is_over = prepared.tokens.total + left_out > prepared.receipt.budget.tokens
            is_changed = is_cut or (left_out > 0 and is_over and compacts)
            # What the client does not see may come any time: the messages before it stay as they were sent.
            has_hidden = agent_list.has_recall and (
                not agent_list.hidden.isdisjoint(prepared.positions) or has_pieces(slices)
            )
            changes = is_changed or has_hidden
            exchange.body = raw
            if changes:
                hidden, joins = agent_list.hidden_slices(listed), server in self._alternating
                exchange.body = governed_body(
                    raw, body, slices, prepared, hidden, joined=agent_list.joined, joins=joins
                )
            if recall_tools is not None:
                exchange.body = with_members(exchange.body, {"tools": recall_tools})
            exchange.is_compacted = is_changed
            tokens = prepared.tokens.total + (0 if changes else left_out)
            exchange.describe(prepared, tokens, has_compacted=is_changed or opened.has_compacted)
            if not compacts and tokens > prepared.receipt.budget.tokens:
                sizes = f"{tokens:,} tokens are more than {prepared.receipt.budget.tokens:,}"
                problem = f"over budget: {sizes}, and compaction is {choice.compaction!r}; {OVER_BUDGET_REMEDY}"
                exchange.headers.setdefault("x-holdfast-error", header_line(problem))
            return exchange.body

        async def prepare(tokens: int | None) -> Request:
            return await agent_list.conversation.prepare(
                tokens,
                model=model,
                endpoint=reading.request.upstream,
                system=extras.system,
                tools=tools,
                has_recall=None if recall_tools is None else True,
                encode_body=encode,
                compacts=compacts,
            )

        budget, compacts = choice.budget or self._budget, choice.compaction in {None, "auto"}
        exchange.prepare_again, exchange.compacts_ahead = partial(prepare, budget), compacts
        shrink: Shrink | None = partial(self._make_acceptable, exchange, agent_list, server)
        try:
            if wanted.compacts_now:
                await self._compact_now(exchange, agent_list, budget)
            prepared = await prepare(budget)
            if exchange.is_compacted and not opened.has_compacted:
                opened.has_compacted = True
                await self._sessions.store_governing(opened)
            opened.compaction_due = prepared.compaction_due if choice.compaction == "ask" else ""
            exchange.headers |= {COMPACTION_HEADER: "due"} if opened.compaction_due else {}
        except (ConcurrentWriteError, StoreError):
            # Not governed, because the log was not read: then the request is received again, or not recorded at all.
            raise
        except (HoldfastError, ValueError) as error:
            # What cannot be governed goes on as it came; the provider has the last word.
            exchange.headers["x-holdfast-error"] = header_line(f"not governed: {error}")
            shrink = _shrink_to_least(exchange, prepare, error) if len(body.slices) > 1 else None
        exchange.shrink = shrink if compacts else None
        return exchange

    async def _make_acceptable(
        self, exchange: Exchange, agent_list: AgentList, server: _Server, error: str, status: int
    ) -> None:
        """Make the body of a request acceptable after a refusal: smaller, or with messages of one role joined."""
        refusal = classify(error, status=status)
        with exchange.unless_it_fails():
            # A client that has neighbors of one role by itself hears what its server says to it.
            is_ours = exchange.is_compacted and server.wire in JOINABLE_WIRES and server not in self._alternating
            if is_ours and refusal is not None and refusal.wants_alternating_roles and exchange.prepare_again:
                self._alternating[server] = None
                await exchange.prepare_again()
            else:
                await agent_list.conversation.retry(error, status=status)

    async def _compact_now(self, exchange: Exchange, agent_list: AgentList, budget: int | None) -> None:
        """Compact by rule before a request, because it says so; a model's summary would take too long here."""
        try:
            preview = await agent_list.conversation.preview(budget=budget)
            await agent_list.conversation.apply_preview(preview, budget=budget)
        except CompactionError as error:
            exchange.headers["x-holdfast-error"] = header_line(f"not compacted: {error}")

    async def offer_recall(self, reading: ReadRequest, opened: OpenSession, agent_list: AgentList) -> None:
        """Give the model the recall tool, if the first request of a conversation asks for it and can have it."""
        asked = reading.request.governing.recalls
        if not (self._offers_recall if asked is None else asked) or tools_with_recall(reading.body) is None:
            return
        opened.has_recall = agent_list.has_recall = True
        await self._sessions.store_governing(opened)

    def recall_tools(self, reading: ReadRequest, agent_list: AgentList, exchange: Exchange) -> bytes | None:
        """Return the tools of a request with the recall tool; None if it goes without."""
        if not agent_list.has_recall:
            if reading.request.governing.recalls:
                exchange.headers[RECALL_HEADER] = "off"
            return None
        tools = tools_with_recall(reading.body) if has_one_choice(reading.body.wire, reading.request.body) else None
        exchange.has_recall = tools is not None
        exchange.headers[RECALL_HEADER] = "off" if tools is None else "on"
        return tools
