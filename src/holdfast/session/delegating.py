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
from holdfast.core.history.delegated import DelegationRecord, delegation_records
from holdfast.core.history.findings import DelegateFinding
from holdfast.core.history.identifiers import argument_text
from holdfast.core.history.ledger.names import is_name_in
from holdfast.core.history.recall.references import parse_references
from holdfast.core.history.scope import MainVisibility
from holdfast.core.history.sees import Visibility, choose_visible
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.session.archive import Archivist
from holdfast.session.fetching import retry_when_not_loaded
from holdfast.session.given import check_scope, check_text, short_repr
from holdfast.session.owners import HELD_HERE, has_owner_exited, new_owner_id
from holdfast.wire.formats import format_named

HANDOVER_TEXT = "[The conversation was handed over to {agent}, with this message from the agent before:]\n{message}"
_POSITION_SOURCE = re.compile(r"#\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationSpec:
    """What somebody is sent out with."""

    agent: str
    task: str
    sees: Visibility
    parent: str
    main_sees: MainVisibility | None
    timeout_seconds: float | None
    adds_task_message: bool
    """Whether the task is recorded as the first thing that is said to the delegate."""


def delegation_spec(
    agent: str,
    task: str,
    sees: Visibility,
    main_sees: MainVisibility | None,
    timeout_seconds: float | None,
    *,
    parent: str = log.MAIN,
    adds_task_message: bool = True,
) -> DelegationSpec:
    """Return what somebody is sent out with, checked."""
    name = check_text("agent", agent)
    if not name.strip():
        raise SettingsError("agent", "must be the name of who is asked")
    if not isinstance(sees, Visibility):
        raise SettingsError("sees", f"must be a Sees, not {short_repr(sees)}")
    if main_sees is not None and main_sees not in get_args(MainVisibility):
        raise SettingsError(
            "main_sees", f"must be one of {', '.join(get_args(MainVisibility))}, not {short_repr(main_sees)}"
        )
    limit: object = timeout_seconds
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0
    if limit is not None and not is_number:
        raise SettingsError("timeout_seconds", f"must be a number above 0, not {short_repr(timeout_seconds)}")
    return DelegationSpec(
        agent=name,
        task=check_text("task", task),
        sees=sees,
        parent=check_scope(parent),
        main_sees=main_sees,
        timeout_seconds=timeout_seconds,
        adds_task_message=adds_task_message,
    )


class Delegator(Archivist):
    """A session as far as its agents send out others."""

    async def delegations(self) -> list[DelegationRecord]:
        """Return every delegation, the oldest first: who was asked what, what that one saw, and how it ended."""
        self._log.lock.check_open()
        return delegation_records(await self._log.stored.timed_events())

    async def transfer(self, agent: str, *, message: str = "") -> None:
        """Hand the conversation over to another agent; `message` is what that one has to know. No name ends it.

        The message is part of the history: the model finds it there, as reference that is nobody's word.
        """
        name, summary, keeper = check_text("agent", agent), check_text("message", message), self._log
        async with keeper.lock:
            await keeper.refresh()
            known = self.history.session_state.agent
            await keeper.append(log.AgentChanged(name=name, summary=summary, previous=known.name if known else ""))
            if summary:
                wire = format_named(self.history.message_format)
                native = wire.encode(user(HANDOVER_TEXT.format(agent=name or "the main agent", message=summary)))
                said = log.MessageAppended(format=wire.name, native=native, trust="memory")
                await keeper.append_messages([said], [wire.decode(native, len(self.history))])

    @retry_when_not_loaded
    async def begin_delegation(self, spec: DelegationSpec) -> log.DelegationStarted:
        """Record that an agent is sent out, with what it is shown."""
        keeper = self._log
        async with keeper.lock:
            await keeper.refresh()
            await self.end_abandoned_delegations()
            chosen = choose_visible(self.history, spec.parent, spec.sees, counter_for(self.model))
            begun = log.DelegationStarted(
                scope=f"{spec.agent}:{secrets.token_hex(4)}",
                agent=spec.agent,
                parent=spec.parent,
                task=spec.task,
                sees=spec.sees.to_json(),
                shown=chosen.spans,
                briefing=chosen.briefing,
                shown_tokens=chosen.tokens,
                main_sees=spec.main_sees or self.policy.main_sees,
                owner=new_owner_id(),
                is_attributed=True,
            )
            HELD_HERE.add(begun.owner)
            try:
                await self._record_start(begun, adds_task_message=spec.adds_task_message)
            except BaseException:
                # Whatever arrived of it: nobody is at work.
                HELD_HERE.discard(begun.owner)
                raise
            return begun

    async def _record_start(self, started: log.DelegationStarted, *, adds_task_message: bool) -> None:
        """Record that an agent is sent out, and what it is told; by who holds the turn."""
        await self._log.append(started)
        if adds_task_message and (text := delegate_prompt(started)):
            wire = format_named(self.history.message_format)
            native = wire.encode(user(text))
            said = log.MessageAppended(format=wire.name, native=native, scope=started.scope, agent=started.agent)
            await self._log.append_messages([said], [wire.decode(native, len(self.history))])

    @retry_when_not_loaded
    async def end_delegation(self, finished: log.DelegationFinished) -> None:
        """Record that a delegate has answered, or will not; calls it left open are then never answered."""
        async with self._log.lock:
            await self._log.refresh()
            events: list[log.Event] = (
                [] if finished.state == "answered" else [log.TurnInterrupted(scope=finished.scope)]
            )
            await self._log.append(*events, finished)
            self._builder.forget_scope(finished.scope)

    async def end_abandoned_delegations(self) -> None:
        """Record that delegates whose process is gone will not answer; by who holds the turn."""
        gone = [
            scope for scope, owner in self.history.session_state.running_delegates.items() if has_owner_exited(owner)
        ]
        ended = [
            log.DelegationFinished(scope=scope, state="abandoned", error="nobody is at it any more") for scope in gone
        ]
        if ended:
            await self._log.append(*(log.TurnInterrupted(scope=scope) for scope in gone), *ended)

    @retry_when_not_loaded
    async def check_sources(self, scope: str, sources: Sequence[str]) -> tuple[str, ...]:
        """Return sources, or say which of them refers to a message that the delegate cannot have seen."""
        if isinstance(sources, str) or not all(isinstance(source, str) for source in sources):
            raise MalformedInputError("answer.sources", "must be a list of texts, such as '#12' or a path")
        context = self.history.context(scope)
        for source in sources:
            if _POSITION_SOURCE.match(source) and not _is_source_visible(source, context):
                raise MalformedInputError("answer.sources", f"{source:.60} is no message that {scope!r} can see")
        return tuple(sources)

    @retry_when_not_loaded
    async def check_findings(self, scope: str, findings: Sequence[DelegateFinding]) -> tuple[DelegateFinding, ...]:
        """Return findings whose sources were looked up in what the delegate could see, was told and was given back."""
        if isinstance(findings, str) or not all(isinstance(finding, DelegateFinding) for finding in findings):
            raise MalformedInputError("answer.findings", "must be a list of Finding(claim=…, sources=…, status=…)")
        named = {source for finding in findings for source in finding.sources}
        if not named:
            return tuple(findings)
        context = self.history.context(scope)
        own = [position for position in range(context.length) if context.message_scopes[position] == scope]
        context.entries.require(own)
        texts = [text for position in own for text in _received_texts(context.entries[position])]
        seen = {
            source
            for source in named
            if (
                _is_source_visible(source, context)
                if _POSITION_SOURCE.match(source)
                else any(is_name_in(source, one) for one in texts)
            )
        }
        return tuple(finding.check_sources(seen) for finding in findings)


def _received_texts(entry: Entry) -> Iterator[str]:
    """Yield what an agent was told, asked its tools for and was given back: not its own words."""
    message = entry.message
    if message.role != "assistant":
        yield message.text
    yield from (result.text for result in message.results)
    yield from (argument_text(call.arguments) for call in message.calls)


def _is_source_visible(source: str, context: Context) -> bool:
    """Return whether an agent sees every message that a source refers to."""
    try:
        places = parse_references(source)
    except MalformedInputError:
        return False
    return all(
        place.is_position
        and place.last < context.length
        and all(map(context.is_visible, range(place.first, place.last + 1)))
        for place in places
    )


def delegate_prompt(started: log.DelegationStarted) -> str:
    """Return what a delegate is told first: what it has to know of the rest, then its task."""
    return "\n\n".join(text for text in (started.briefing, started.task) if text)
