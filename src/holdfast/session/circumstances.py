"""The circumstances of a session's next request: what its history knows, and what the tables know of its model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.conversation.batching import ONE_RESULT_PER_MESSAGE
from holdfast.core.conversation.json_values import dump_json
from holdfast.core.conversation.tokens import Calibration, Counter
from holdfast.core.history import events as log
from holdfast.core.history.facts import RequestExtras
from holdfast.core.history.history import History
from holdfast.core.planning.situation import Budget, Situation
from holdfast.counters.models import budget_for, find_model, prices_of
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import SettingsError
from holdfast.session.given import extras_json
from holdfast.wire.formats import MessageFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What the caller says of a request."""

    budget: int | Budget | None = None
    model: str | None = None
    system: object = None
    """The system text, or a provider's own form of it."""
    tools: Sequence[Mapping[str, object]] | None = None
    scope: str = log.MAIN
    refusals: int = 0
    """How often the provider has refused it as too long."""
    without_summarizer: bool = False
    """Whether it is to be made as if there were nobody to write summaries."""
    idle_seconds: float = 0.0
    """Since the last request."""
    has_recall: bool | None = None
    """Whether the model has the recall tool; None for as it was last said."""


class ExtrasCounter:
    """Counts what travels outside the messages: once, for as long as it stays as it is."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str], tuple[RequestExtras, int, int]] = {}

    def tokens(self, scope: str, extras: RequestExtras, counter: Counter) -> tuple[int, int]:
        """Return what an agent's system text costs, and what its tools cost."""
        known = self._counted.get((scope, counter.name))
        if known is None or known[0].system is not extras.system or known[0].tools is not extras.tools:
            system = counter.count(extras.system) if extras.system else 0
            tools = counter.count(dump_json([dict(tool) for tool in extras.tools])) if extras.tools else 0
            known = self._counted[scope, counter.name] = extras, system, tools
        return known[1:]

    def forget(self, scope: str) -> None:
        """Let go of what was counted for an agent that will make no more requests."""
        for key in [key for key in self._counted if key[0] == scope]:
            del self._counted[key]


def situation_of(
    history: History, message_format: MessageFormat | None, options: RequestOptions, extras_counter: ExtrasCounter
) -> Situation:
    """Return the situation of a request; `wire` is None where nothing was said yet."""
    counter, known, facts = counter_for(options.model), find_model(options.model), history.session_state
    system_tokens, tools_tokens = extras_counter.tokens(options.scope, facts.extras_for(options.scope), counter)
    budget = budget_for(options.model, options.budget)
    table_window = known.max_input_tokens if known else None
    return Situation(
        budget=budget,
        counter=counter,
        calibration=Calibration(),
        system_tokens=system_tokens,
        tools_tokens=tools_tokens,
        pins=facts.pins,
        batching=message_format.batching if message_format else ONE_RESULT_PER_MESSAGE,
        max_text_chars=message_format.max_text_chars if message_format else None,
        max_images=message_format.max_images if message_format else None,
        scope=options.scope,
        # Who names a budget, a person or a provider, means that as the window that is to be filled.
        window=budget.tokens if budget.source in {"user", "provider"} else table_window,
        prices=prices_of(known) if known else None,
        idle_seconds=options.idle_seconds,
        has_recall=options.scope in facts.recall_scopes,
        refusals=options.refusals,
    )


def extras_changed_events(history: History, options: RequestOptions) -> list[log.SystemChanged | log.ToolsChanged]:
    """Return what has changed of what travels outside the messages."""
    events: list[log.SystemChanged | log.ToolsChanged] = []
    system, scope, known = options.system, options.scope, history.session_state.extras_for(options.scope)
    text = system if isinstance(system, str) else "" if system is None else extras_json("system", system)
    if text != known.system:
        events.append(log.SystemChanged(text=text, scope=scope))
    listed = tuple(dict(tool) for tool in options.tools or ())
    if listed != tuple(dict(tool) for tool in known.tools):
        extras_json("tools", list(listed))
        events.append(log.ToolsChanged(tools=listed, scope=scope))
    return events


def recall_offered_events(history: History, options: RequestOptions) -> list[log.RecallOffered]:
    """Return that an agent has the recall tool now, or has it no more, where that is new."""
    has_it = options.scope in history.session_state.recall_scopes
    if options.has_recall is None or options.has_recall is has_it:
        return []
    return [log.RecallOffered(is_offered=options.has_recall, scope=options.scope)]


def check_usage(usage: Mapping[str, int] | None) -> log.Usage | None:
    """Return what a provider billed, from the fields that a caller knows."""
    if usage is None:
        return None
    if not isinstance(usage, Mapping):
        raise SettingsError("usage", f"must be an object with counts of tokens, not {usage!r:.60}")
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    wrong = [name for name, value in usage.items() if isinstance(value, bool) or not isinstance(value, int)]
    if wrong:
        raise SettingsError(f"usage.{wrong[0]}", f"must be a whole number, not {usage[wrong[0]]!r}")
    return log.Usage(**{name: usage[name] for name in names if name in usage})
