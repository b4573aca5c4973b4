"""Build sessions, budgets, memory and boards from the settings of a program."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from holdfast.apps.settings.models import bare_model_name, configured_model
from holdfast.apps.settings.paths import display_path, session_folder_name
from holdfast.apps.settings.policies import find_policy_link
from holdfast.apps.settings.settings import Settings
from holdfast.core.conversation.tokens import Provenance
from holdfast.core.planning.rules.rule import PolicyThreshold
from holdfast.core.planning.situation import Budget, Situation
from holdfast.counters.models import budget_for, prices_of
from holdfast.counters.vocabularies import model_family
from holdfast.errors import SettingsError, StoreUnavailableError
from holdfast.models.base import Summarizer, is_embedded
from holdfast.models.local_servers import OLLAMA_PREFIX
from holdfast.session.compaction.checkpoints import Checkpoints
from holdfast.session.compaction.compactor import Approval, CompactionOptions
from holdfast.session.log.event_log import Clock, now_ms
from holdfast.session.memory.board_file import ContextBoard, repository_of
from holdfast.session.memory.consolidation import RemAgent
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.session import Session, SessionOpener
from holdfast.stores.base import Store

NO_SUMMARIZER = "none"
MEGABYTE = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCallbacks:
    """The functions and the summarizer that a program passes to its sessions."""

    primary: str | Summarizer | None = None
    """Summarizes with the model that answers, if that model is already running."""
    approve: Approval | None = None
    """Called before a summary is applied, if the settings require approval."""
    notice: Callable[[str], None] | None = None
    """Receives each problem that did not stop a compaction."""
    progress: Callable[[str], None] | None = None
    """Receives what the session is waiting for, and an empty text when the wait is over."""


NO_CALLBACKS = SessionCallbacks()


def budget_from(settings: Settings, model: str | None = None) -> Budget | None:
    """Return the budget for a model; None if the settings do not say and the table of models decides.

    A limit that a rule of the preset applies, such as the tokens and turns of `cowagent`, is not part of the budget.
    """
    name = model or settings.model
    tokens, turns, messages = (
        _request_limit(settings, setting)
        for setting in ("max_context_tokens", "max_context_turns", "max_history_messages")
    )
    held = _configured_budget(settings, name)
    if tokens is None and turns is None and messages is None:
        return held
    most = held or budget_for(bare_model_name(name))
    if tokens is not None:
        # The user's limit decides, except that the embedded model cannot exceed the window it was started with.
        most = Budget(min(tokens, most.tokens) if is_embedded(name) else tokens)
    return replace(most, turns=turns, messages=messages)


def request_budget(settings: Settings, model: str | None = None) -> Budget:
    """Return the budget for a model: that of the settings, else that of the table of models."""
    bare = bare_model_name(model or settings.model)
    return budget_from(settings, model) or budget_for(bare, unknown_window=settings.effective_policy.unknown_window)


def _request_limit(settings: Settings, name: str) -> int | None:
    value = settings.value(name)
    is_ours = find_policy_link(settings.effective_policy, name) is None
    return value if is_ours and isinstance(value, int) and value else None


def _configured_budget(settings: Settings, name: str) -> Budget | None:
    """Return the budget of the embedded model, or of a model with overrides in the settings; else None."""
    known = configured_model(settings, name)
    is_described = (
        is_embedded(name) or name.startswith(OLLAMA_PREFIX) or {name, bare_model_name(name)} & {*settings.models}
    )
    if known is None or not is_described:
        return None
    return Budget.resolve(provider_window=known.max_input_tokens, max_output=known.max_output_tokens)


def read_system_text(settings: Settings) -> str | None:
    """Return the system text from its file."""
    if settings.system is None:
        return None
    try:
        return settings.system.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        place = display_path(settings.system)
        raise SettingsError("system", f"cannot be read: {error}; check the file", where=place) from error


def checkpoints_folder(settings: Settings, session_id: str) -> Path | None:
    """Return the folder of a session's checkpoints; None if they are off."""
    return None if settings.checkpoints is None else settings.checkpoints / session_folder_name(session_id)


def session_files(settings: Settings, session_id: str) -> list[Path]:
    """Return the files outside the store that hold content of a session."""
    folders = (checkpoints_folder(settings, session_id), settings.paths.attachments(session_id))
    shared = (settings.memory, settings.boards)
    found = [path for folder in (*folders, *shared) if folder is not None for path in sorted(folder.rglob("*"))]
    return [path for path in (*found, settings.paths.prompt_history) if path.is_file()]


def delete_session_files(settings: Settings, session_id: str) -> list[Path]:
    """Delete the folders of a session outside the store: its checkpoints and attachments. Return those that existed.

    Notes and boards are about many sessions, so they stay. Raises `StoreUnavailableError` for a folder that cannot be
    deleted.
    """
    folders = (checkpoints_folder(settings, session_id), settings.paths.attachments(session_id))
    existing = [folder for folder in folders if folder is not None and folder.is_dir()]
    for folder in existing:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise StoreUnavailableError(str(folder), f"{error.strerror or error}; delete it by hand") from error
    return existing


def memory_from(settings: Settings) -> DailyMemory | None:
    """Return daily memory if the policy uses it or the user has named a folder; None if it is off."""
    is_used = settings.effective_policy.writes_memory or settings.source("memory").kind != "default"
    return _cached_memory(settings.memory) if settings.memory is not None and is_used else None


@lru_cache(maxsize=4)
def _cached_memory(folder: Path) -> DailyMemory:
    """Return the memory in a folder, the same object every time, because it caches what it has read."""
    return DailyMemory(folder)


def board_from(settings: Settings) -> ContextBoard | None:
    """Return the context board of the repository and branch around the working folder; None if it is off."""
    if settings.boards is None:
        return None
    return ContextBoard(settings.boards, repository_of(settings.paths.cwd))


def rem_agent_from(
    settings: Settings, store: Store, *, primary: str | Summarizer | None = None, clock: Clock = now_ms
) -> RemAgent | None:
    """Return the agent that maintains the context board; None if boards are off."""
    board = board_from(settings)
    if board is None:
        return None
    options = compaction_from(settings, "", SessionCallbacks(primary=primary))
    return RemAgent(store, board, summarizer=options.automatic or options.manual, clock=clock)


def compaction_from(
    settings: Settings, session_id: str, callbacks: SessionCallbacks = NO_CALLBACKS
) -> CompactionOptions:
    """Return the compaction options of a session: its summarizers, its approval and its observers.

    The embedded model is no summarizer by default: its summaries are worse than a digest. Where the digest of the
    policy keeps as much as a summary, no model writes automatic ones by default.
    """
    main = callbacks.primary or (None if is_embedded(settings.model) else settings.model)
    rule, cheap = settings.effective_policy.compaction, settings.summarization_model
    usual = None if rule and rule.keeps_most_by_rule else main
    folder = checkpoints_folder(settings, session_id)
    known = configured_model(settings)
    return CompactionOptions(
        prices=prices_of(known) if known else None,
        automatic=None if cheap == NO_SUMMARIZER else cheap or usual,
        manual=None if cheap == NO_SUMMARIZER else main,
        hooks=settings.hooks,
        checkpoints=None if folder is None else Checkpoints(folder),
        memory=memory_from(settings),
        memory_limit_bytes=None if settings.memory_limit_mb is None else settings.memory_limit_mb * MEGABYTE,
        approve=callbacks.approve if settings.approve else None,
        notice=callbacks.notice,
        progress=callbacks.progress,
    )


def open_session(
    settings: Settings,
    session_id: str,
    *,
    store: Store | None = None,
    callbacks: SessionCallbacks = NO_CALLBACKS,
    clock: Clock = now_ms,
    delete_files: Callable[[str], object] | None = None,
) -> SessionOpener:
    """Open an existing or a new session with the settings; use the result with `async with` or `await`."""
    return Session.open(
        session_id,
        store=store or settings.store,
        policy=settings.effective_policy,
        model=bare_model_name(settings.model),
        compaction=compaction_from(settings, session_id, callbacks),
        clock=clock,
        delete_files=delete_files,
    )


async def update_session_settings(
    session: Session, settings: Settings, callbacks: SessionCallbacks = NO_CALLBACKS
) -> None:
    """Apply changed settings to an open session from its next request on; its store and model do not change."""
    options = compaction_from(settings, session.id, callbacks)
    await session.set_policy(settings.effective_policy, compaction=options)


def policy_thresholds(settings: Settings, model: str) -> list[PolicyThreshold]:
    """Return the thresholds of the policy for a model, the lowest first.

    They hold for requests of messages alone, until the provider's own counts have calibrated ours.
    """
    policy, bare, rule = settings.effective_policy, bare_model_name(model), settings.effective_policy.compaction
    budget, known = request_budget(settings, model), configured_model(settings, model)
    window = budget.window(known.max_input_tokens if known else None) or policy.unknown_window
    situation = Situation(
        budget=budget,
        counter=UnloadedCounter(model_family(bare).provenance),
        window=window,
        policy_limit=rule.request_limit(window) if rule else None,
    )
    found = list(rule.thresholds(situation, window)) if rule else []
    if policy.truncator is not None:
        found.append(PolicyThreshold("truncated", situation.limit))
    return found


@dataclass(frozen=True, slots=True)
class UnloadedCounter:
    """Says where the counts of a model come from, without loading its vocabulary."""

    provenance: Provenance
    name: str = ""

    def count(self, text: str) -> int:
        """Raise: nothing is counted for a threshold."""
        raise NotImplementedError(text)
