"""What a program is made of, built from its settings.

At how many tokens a policy does something about a conversation with a model.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from holdfast.apps.settings.models import bare_model_name, configured_model
from holdfast.apps.settings.paths import display_path, session_folder_name
from holdfast.apps.settings.policies import find_policy_link
from holdfast.apps.settings.settings import Settings
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.rule import PolicyThreshold
from holdfast.core.planning.situation import MARGIN_ESTIMATED, Budget
from holdfast.counters.models import budget_for, prices_of
from holdfast.counters.vocabularies import model_family
from holdfast.errors import SettingsError
from holdfast.models.base import Summarizer
from holdfast.models.embedded.weights import EMBEDDED_MODEL as EMBEDDED
from holdfast.session.compaction.checkpoints import Checkpoints
from holdfast.session.compaction.compactor import Approval, CompactionOptions
from holdfast.session.log.event_log import Clock
from holdfast.session.memory.board import ContextBoard
from holdfast.session.memory.consolidation import RemAgent
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.memory.files import repository_of
from holdfast.session.session import Session, SessionOpener, now_ms
from holdfast.stores.base import Store

NO_SUMMARIZER = "none"


def policy_from(settings: Settings) -> Policy:
    """Return the policy: the preset's or the file's, with the settings in it."""
    return settings.effective_policy


def store_url(settings: Settings) -> str:
    """Return where conversations are kept."""
    return settings.store


def budget_from(settings: Settings, model: str | None = None) -> Budget | None:
    """Return the largest request that a model is to get; None where the table of models says it.

    What the preset's own rules know, such as `cowagent` its tokens and turns, is no limit of every request.
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
        # A word of the user counts, but for what the embedded model was started with: it holds no more.
        most = Budget(min(tokens, most.tokens) if name == EMBEDDED else tokens)
    return replace(most, turns=turns, messages=messages)


def _request_limit(settings: Settings, name: str) -> int | None:
    value = settings.value(name)
    is_ours = find_policy_link(settings.effective_policy, name) is None
    return value if is_ours and isinstance(value, int) and value else None


def _configured_budget(settings: Settings, name: str) -> Budget | None:
    """Return the budget of a model that the user knows better than the table, and of the embedded one."""
    known = configured_model(settings, name)
    is_told = name == EMBEDDED or {name, bare_model_name(name)} & {*settings.models}
    if known is None or not is_told:
        return None
    return Budget.resolve(provider_window=known.max_input_tokens, max_output=known.max_output_tokens)


def read_system_text(settings: Settings) -> str | None:
    """Return the system text, read from its file."""
    if settings.system is None:
        return None
    try:
        return settings.system.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        place = display_path(settings.system)
        raise SettingsError("system", f"cannot be read: {error}; check the file", where=place) from error


def checkpoints_folder(settings: Settings, session_id: str) -> Path | None:
    """Return the folder of a session's checkpoints; None where they are off."""
    return None if settings.checkpoints is None else settings.checkpoints / session_folder_name(session_id)


def session_files(settings: Settings, session_id: str) -> list[Path]:
    """Return the files that hold something of what was said in a session, besides its store."""
    folders = (checkpoints_folder(settings, session_id), settings.paths.attachments(session_id))
    shared = (settings.memory, settings.boards)
    found = [path for folder in (*folders, *shared) if folder is not None for path in sorted(folder.rglob("*"))]
    return [path for path in (*found, settings.paths.prompt_history) if path.is_file()]


def memory_from(settings: Settings) -> DailyMemory | None:
    """Return daily memory: where the policy wants one or the user has named a folder; None where it is off."""
    is_wanted = policy_from(settings).remembers or settings.source("memory").kind != "default"
    return _cached_memory(settings.memory) if settings.memory is not None and is_wanted else None


@lru_cache(maxsize=4)
def _cached_memory(folder: Path) -> DailyMemory:
    """Return the memory in a folder, the same one every time: it knows what it has read."""
    return DailyMemory(folder)


def board_from(settings: Settings) -> ContextBoard | None:
    """Return the context board of the repository and branch around the working folder; None where it is off."""
    if settings.boards is None:
        return None
    return ContextBoard(settings.boards, repository_of(settings.paths.cwd))


def rem_agent_from(
    settings: Settings, store: Store, *, primary: str | Summarizer | None = None, clock: Clock = now_ms
) -> RemAgent | None:
    """Return who keeps the context board, with the model that writes summaries; None where boards are off."""
    board = board_from(settings)
    if board is None:
        return None
    how = compaction_from(settings, "", primary=primary)
    return RemAgent(store, board, summarizer=how.automatic or how.manual, clock=clock)


def compaction_from(
    settings: Settings,
    session_id: str,
    *,
    primary: str | Summarizer | None = None,
    approve: Approval | None = None,
    notice: Callable[[str], None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> CompactionOptions:
    """Return who writes summaries and what goes with them.

    `primary` asks the model that answers, where that is running already. By itself the embedded model writes none:
    its summaries are worse than a digest.
    """
    main = primary or (None if settings.model == EMBEDDED else settings.model)
    cheap = settings.summarization_model
    folder = checkpoints_folder(settings, session_id)
    known = configured_model(settings)
    return CompactionOptions(
        prices=prices_of(known) if known else None,
        automatic=None if cheap == NO_SUMMARIZER else cheap or main,
        manual=None if cheap == NO_SUMMARIZER else main,
        hooks=settings.hooks,
        checkpoints=None if folder is None else Checkpoints(folder),
        memory=memory_from(settings),
        approve=approve if settings.approve else None,
        notice=notice,
        progress=progress,
    )


def open_session(
    settings: Settings,
    session_id: str,
    *,
    store: Store | None = None,
    primary: str | Summarizer | None = None,
    approve: Approval | None = None,
    notice: Callable[[str], None] | None = None,
    progress: Callable[[str], None] | None = None,
    clock: Clock = now_ms,
) -> SessionOpener:
    """Open a session, or begin one, as the settings say; use it with `async with` or `await`."""
    return Session.open(
        session_id,
        store=store or store_url(settings),
        policy=policy_from(settings),
        model=bare_model_name(settings.model),
        compaction=compaction_from(
            settings, session_id, primary=primary, approve=approve, notice=notice, progress=progress
        ),
        clock=clock,
    )


async def update_session_settings(
    session: Session,
    settings: Settings,
    *,
    primary: str | Summarizer | None = None,
    approve: Approval | None = None,
    notice: Callable[[str], None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Let a session that is open go by changed settings from its next request on.

    Store and model are not changed here.
    """
    how = compaction_from(settings, session.id, primary=primary, approve=approve, notice=notice, progress=progress)
    await session.set_policy(policy_from(settings), compaction=how)


def policy_thresholds(settings: Settings, model: str) -> list[PolicyThreshold]:
    """Return where the policy acts with a model, nothing but messages being sent, the earliest first."""
    policy, bare = policy_from(settings), bare_model_name(model)
    budget = budget_from(settings, model) or budget_for(bare)
    known = configured_model(settings, model)
    margin = 0.0 if model_family(bare).has_own_vocabulary else MARGIN_ESTIMATED
    usable = int(budget.tokens * (1 - margin))
    # Who names a budget, a person or a provider, means that as the window that is to be filled.
    is_told = budget.source in {"user", "provider"}
    window = budget.tokens if is_told or known is None else known.max_input_tokens
    if known is None and not is_told:
        window = policy.unknown_window
    found = list(policy.fold.thresholds(window, usable)) if policy.fold else []
    if policy.truncator is not None:
        found.append(PolicyThreshold("truncated", int(policy.truncator.target_share * window)))
    return found
