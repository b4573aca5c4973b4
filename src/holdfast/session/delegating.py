"""Delegations in the log: another agent is sent out, with what it is shown, and comes back, or does not."""

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from holdfast.core.conversation.messages import user
from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.delegated import Delegation, delegations_of
from holdfast.core.history.findings import Finding
from holdfast.core.history.identifiers import argument_text
from holdfast.core.history.ledger.names import stands_in
from holdfast.core.history.recall.references import references_in
from holdfast.core.history.scope import MainSees
from holdfast.core.history.sees import Sees, choose
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.session.archive import Archivist
from holdfast.session.fetching import fetching
from holdfast.session.given import scope_named, shown, words
from holdfast.session.owners import LIVE, is_gone, new_owner
from holdfast.wire.formats import format_named

HANDED_OVER = "[The conversation was handed over to {agent}, with this message from the agent before:]\n{message}"
_NUMBERED = re.compile(r"#\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What somebody is sent out with."""

    agent: str
    task: str
    sees: Sees
    parent: str
    main_sees: MainSees | None
    timeout_seconds: float | None
    tells: bool
    """Whether the task is recorded as the first thing that is said to the delegate."""


def errand_of(
    agent: str,
    task: str,
    sees: Sees,
    main_sees: MainSees | None,
    timeout_seconds: float | None,
    *,
    parent: str = log.MAIN,
    tells: bool = True,
) -> Errand:
    """Return what somebody is sent out with, checked."""
    name = words("agent", agent)
    if not name.strip():
        raise SettingsError("agent", "must be the name of who is asked")
    if not isinstance(sees, Sees):
        raise SettingsError("sees", f"must be a Sees, not {shown(sees)}")
    if main_sees is not None and main_sees not in get_args(MainSees):
        raise SettingsError("main_sees", f"must be one of {', '.join(get_args(MainSees))}, not {shown(main_sees)}")
    limit: object = timeout_seconds
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0
    if limit is not None and not is_number:
        raise SettingsError("timeout_seconds", f"must be a number above 0, not {shown(timeout_seconds)}")
    return Errand(
        agent=name,
        task=words("task", task),
        sees=sees,
        parent=scope_named(parent),
        main_sees=main_sees,
        timeout_seconds=timeout_seconds,
        tells=tells,
    )


class Delegator(Archivist):
    """A session as far as its agents send out others."""

    async def delegations(self) -> list[Delegation]:
        """Return every delegation, the oldest first: who was asked what, what that one saw, and how it ended."""
        self._keeper.turn.check()
        return delegations_of(await self._keeper.log.timed())

    async def transfer(self, agent: str, *, message: str = "") -> None:
        """Hand the conversation over to another agent; `message` is what that one has to know. No name ends it.

        The message is part of the history: the model finds it there, as reference that is nobody's word.
        """
        name, summary, keeper = words("agent", agent), words("message", message), self._keeper
        async with keeper.turn:
            await keeper.take_in()
            known = self.history.facts.agent
            await keeper.change(log.AgentChanged(name=name, summary=summary, previous=known.name if known else ""))
            if summary:
                wire = format_named(self.history.spoken)
                native = wire.encode(user(HANDED_OVER.format(agent=name or "the main agent", message=summary)))
                said = log.MessageAppended(format=wire.name, native=native, trust="memory")
                await keeper.say([said], [wire.decode(native, len(self.history))])

    @fetching
    async def begin_delegation(self, errand: Errand) -> log.DelegationStarted:
        """Record that an agent is sent out, with what it is shown."""
        keeper = self._keeper
        async with keeper.turn:
            await keeper.take_in()
            await self.end_abandoned()
            chosen = choose(self.history, errand.parent, errand.sees, counter_for(self.model))
            begun = log.DelegationStarted(
                scope=f"{errand.agent}:{secrets.token_hex(4)}",
                agent=errand.agent,
                parent=errand.parent,
                task=errand.task,
                sees=errand.sees.told(),
                shown=chosen.spans,
                briefing=chosen.briefing,
                shown_tokens=chosen.tokens,
                main_sees=errand.main_sees or self.policy.main_sees,
                owner=new_owner(),
                is_attributed=True,
            )
            LIVE.add(begun.owner)
            try:
                await self._sent_out(begun, tells=errand.tells)
            except BaseException:
                # Whatever arrived of it: nobody is at work.
                LIVE.discard(begun.owner)
                raise
            return begun

    async def _sent_out(self, begun: log.DelegationStarted, *, tells: bool) -> None:
        """Record that an agent is sent out, and what it is told; by who holds the turn."""
        await self._keeper.change(begun)
        if tells and (text := opening_of(begun)):
            wire = format_named(self.history.spoken)
            native = wire.encode(user(text))
            said = log.MessageAppended(format=wire.name, native=native, scope=begun.scope, agent=begun.agent)
            await self._keeper.say([said], [wire.decode(native, len(self.history))])

    @fetching
    async def end_delegation(self, ended: log.DelegationFinished) -> None:
        """Record that a delegate has answered, or will not; calls it left open are then never answered."""
        async with self._keeper.turn:
            await self._keeper.take_in()
            events: list[log.Event] = [] if ended.state == "answered" else [log.TurnInterrupted(scope=ended.scope)]
            await self._keeper.change(*events, ended)
            self._preparer.forget(ended.scope)

    async def end_abandoned(self) -> None:
        """Record that delegates whose process is gone will not answer; by who holds the turn."""
        gone = [scope for scope, owner in self.history.facts.delegates.items() if is_gone(owner)]
        ended = [
            log.DelegationFinished(scope=scope, state="abandoned", error="nobody is at it any more") for scope in gone
        ]
        if ended:
            await self._keeper.change(*(log.TurnInterrupted(scope=scope) for scope in gone), *ended)

    @fetching
    async def check_sources(self, scope: str, sources: Sequence[str]) -> tuple[str, ...]:
        """Return sources, or say which of them refers to a message that the delegate cannot have seen."""
        if isinstance(sources, str) or not all(isinstance(source, str) for source in sources):
            raise MalformedInputError("answer.sources", "must be a list of texts, such as '#12' or a path")
        context = self.history.context(scope)
        for source in sources:
            if _NUMBERED.match(source) and not _is_seen(source, context):
                raise MalformedInputError("answer.sources", f"{source:.60} is no message that {scope!r} can see")
        return tuple(sources)

    @fetching
    async def check_findings(self, scope: str, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return findings whose sources were looked up in what the delegate could see, was told and was given back."""
        if isinstance(findings, str) or not all(isinstance(finding, Finding) for finding in findings):
            raise MalformedInputError("answer.findings", "must be a list of Finding(claim=…, sources=…, status=…)")
        named = {source for finding in findings for source in finding.sources}
        if not named:
            return tuple(findings)
        context = self.history.context(scope)
        own = [position for position in range(context.length) if context.said_in[position] == scope]
        context.entries.need(own)
        texts = [text for position in own for text in _given(context.entries[position])]
        seen = {
            source
            for source in named
            if (_is_seen(source, context) if _NUMBERED.match(source) else any(stands_in(source, one) for one in texts))
        }
        return tuple(finding.checked(seen) for finding in findings)


def _given(entry: Entry) -> Iterator[str]:
    """Yield what an agent was told, asked its tools for and was given back: not its own words."""
    message = entry.message
    if message.role != "assistant":
        yield message.text
    yield from (result.text for result in message.results)
    yield from (argument_text(call.arguments) for call in message.calls)


def _is_seen(source: str, context: Context) -> bool:
    """Return whether an agent sees every message that a source refers to."""
    try:
        places = references_in(source)
    except MalformedInputError:
        return False
    return all(
        place.is_position
        and place.last < context.length
        and all(map(context.stands, range(place.first, place.last + 1)))
        for place in places
    )


def opening_of(begun: log.DelegationStarted) -> str:
    """Return what a delegate is told first: what it has to know of the rest, then its task."""
    return "\n\n".join(text for text in (begun.briefing, begun.task) if text)
