"""The circumstances of a session's next request: what its history knows, and what the tables know of its model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.conversation.batching import EACH
from holdfast.core.conversation.json_values import written
from holdfast.core.conversation.tokens import Calibration, Counter
from holdfast.core.history import events as log
from holdfast.core.history.facts import Beside
from holdfast.core.history.history import History
from holdfast.core.planning.situation import Budget, Situation
from holdfast.counters.models import budget_for, model_named, prices_of
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import SettingsError
from holdfast.session.given import json_text
from holdfast.wire.formats import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the caller says of a request."""

    budget: int | Budget | None = None
    model: str | None = None
    system: object = None
    """The system text, or a provider's own form of it."""
    tools: Sequence[Mapping[str, object]] | None = None
    scope: str = log.MAIN
    refusals: int = 0
    """How often the provider has refused it as too long."""
    is_alone: bool = False
    """Whether it is to be made as if there were nobody to write summaries."""
    idle_seconds: float = 0.0
    """Since the last request."""
    has_recall: bool | None = None
    """Whether the model has the recall tool; None for as it was last said."""


class Outside:
    """Counts what travels outside the messages: once, for as long as it stays as it is."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Beside, int, int]] = {}

    def tokens(self, scope: str, beside: Beside, counter: Counter) -> tuple[int, int]:
        """Return what an agent's system text costs, and what its tools cost."""
        known = self._known.get((scope, counter.name))
        if known is None or known[0].system is not beside.system or known[0].tools is not beside.tools:
            system = counter.count(beside.system) if beside.system else 0
            tools = counter.count(written([dict(tool) for tool in beside.tools])) if beside.tools else 0
            known = self._known[scope, counter.name] = beside, system, tools
        return known[1:]

    def forget(self, scope: str) -> None:
        """Let go of what was counted for an agent that will make no more requests."""
        for key in [key for key in self._known if key[0] == scope]:
            del self._known[key]


def situation_of(history: History, wire: Format | None, wanted: Wanted, outside: Outside) -> Situation:
    """Return the situation of a request; `wire` is None where nothing was said yet."""
    counter, known, facts = counter_for(wanted.model), model_named(wanted.model), history.facts
    system_tokens, tools_tokens = outside.tokens(wanted.scope, facts.beside(wanted.scope), counter)
    budget = budget_for(wanted.model, wanted.budget)
    table_window = known.max_input_tokens if known else None
    return Situation(
        budget=budget,
        counter=counter,
        calibration=Calibration(),
        system_tokens=system_tokens,
        tools_tokens=tools_tokens,
        pins=facts.pins,
        batching=wire.batching if wire else EACH,
        max_text_chars=wire.max_text_chars if wire else None,
        max_images=wire.max_images if wire else None,
        scope=wanted.scope,
        # Who names a budget, a person or a provider, means that as the window that is to be filled.
        window=budget.tokens if budget.source in {"user", "provider"} else table_window,
        prices=prices_of(known) if known else None,
        idle_seconds=wanted.idle_seconds,
        has_recall=wanted.scope in facts.recallers,
        refusals=wanted.refusals,
    )


def changes_beside(history: History, wanted: Wanted) -> list[log.SystemChanged | log.ToolsChanged]:
    """Return what has changed of what travels outside the messages."""
    events: list[log.SystemChanged | log.ToolsChanged] = []
    system, scope, known = wanted.system, wanted.scope, history.facts.beside(wanted.scope)
    text = system if isinstance(system, str) else "" if system is None else json_text("system", system)
    if text != known.system:
        events.append(log.SystemChanged(text=text, scope=scope))
    listed = tuple(dict(tool) for tool in wanted.tools or ())
    if listed != tuple(dict(tool) for tool in known.tools):
        json_text("tools", list(listed))
        events.append(log.ToolsChanged(tools=listed, scope=scope))
    return events


def recall_changed(history: History, wanted: Wanted) -> list[log.RecallOffered]:
    """Return that an agent has the recall tool now, or has it no more, where that is new."""
    has_it = wanted.scope in history.facts.recallers
    if wanted.has_recall is None or wanted.has_recall is has_it:
        return []
    return [log.RecallOffered(is_offered=wanted.has_recall, scope=wanted.scope)]


def billed_usage(given: Mapping[str, int] | None) -> log.Usage | None:
    """Return what a provider billed, from the fields that a caller knows."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise SettingsError("usage", f"must be an object with counts of tokens, not {given!r:.60}")
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    wrong = [name for name, value in given.items() if isinstance(value, bool) or not isinstance(value, int)]
    if wrong:
        raise SettingsError(f"usage.{wrong[0]}", f"must be a whole number, not {given[wrong[0]]!r}")
    return log.Usage(**{name: given[name] for name in names if name in given})
