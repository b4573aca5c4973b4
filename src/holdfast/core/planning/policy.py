"""What we want of a conversation, as data: when something is done about its length, what, and what is kept.

Four systems' ways with a long conversation, and our own.

Policies written down: TOML in, a policy out, and a clear word about what is wrong with it.

`base` names the preset to begin with (without one, the default), each table changes the settings of one rule,
`rule` in it takes another rule, and `false` in the place of a table switches it off.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Literal, TypeAlias, cast, get_type_hints

from holdfast.core.history.scopes import MainVisibility
from holdfast.core.planning.bounds import check_bounds, integer_bounds, share_bounds, types_in
from holdfast.core.planning.rules.co_cli import CoCliCompaction
from holdfast.core.planning.rules.copilot import CopilotCompaction
from holdfast.core.planning.rules.cowagent import CowAgentCompaction, Emergency
from holdfast.core.planning.rules.default import DefaultCompaction
from holdfast.core.planning.rules.inkeep import FixedLimits, InkeepCompaction
from holdfast.core.planning.rules.outputs import KeepEnds, KeepHeads, Offload
from holdfast.core.planning.rules.truncator import BasicTruncator
from holdfast.errors import SettingsError

SummaryTiming: TypeAlias = Literal["inline", "background", "deferred"]
FailureFallback: TypeAlias = Literal["marker", "limits", "keep", "trim", "digest"]
RestoreMode: TypeAlias = Literal["full", "since_summary", "replay", "recent_text"]
SummaryAuthorChoice: TypeAlias = Literal["cheap_then_primary", "summariser", "session"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How a request that would not fit is made to fit, whatever the policy.

    Shares are of the room that system text and tools leave to the messages.
    """

    step_share: float = field(default=1 / 4, metadata=share_bounds())
    """Lines move by this much at a time: between two moves a growing list keeps its prefix."""
    clip_share: float = field(default=1 / 16, metadata=share_bounds())
    """Old tool output is clipped to this size."""
    clip_min_tokens: int = field(default=100, metadata=integer_bounds(1, 10**6))
    clip_zone_steps: int = field(default=4, metadata=integer_bounds(1, 1_000))
    """Tool output is clipped this many steps before its message is folded."""
    digest_share: float = field(default=1 / 10, metadata=share_bounds())
    """The most that a digest of folded messages may take."""
    digest_max_tokens: int = field(default=2_000, metadata=integer_bounds(1, 10**6))
    max_media: int = field(default=20, metadata=integer_bounds(1, 10**4))
    """Images beyond this are elided, oldest first; more than 20 have to be small for some providers."""

    def __post_init__(self) -> None:
        check_bounds(self, "floor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a conversation is kept inside a window. Presets are policies; what is None is not done."""

    name: str = "default"
    fold: DefaultCompaction | CoCliCompaction | InkeepCompaction | CopilotCompaction | CowAgentCompaction | None = (
        field(default_factory=DefaultCompaction)
    )
    """When older messages are replaced by a summary, which, and by what."""
    offload: Offload | None = None
    """When large settled tool outputs are shown as a preview from then on."""
    outputs: KeepHeads | KeepEnds | None = None
    """How old tool output is shown, decided anew for every request."""
    limits: FixedLimits | None = None
    """What is sent where no model is there to write summaries."""
    truncator: BasicTruncator | None = None
    """What leaves a single request that is still too long."""
    emergency: Emergency | None = None
    """What is left after a provider's refusal."""
    floor: FitSettings = field(default_factory=FitSettings)
    apply: SummaryTiming = "background"
    """Whether a summary is waited for, written meanwhile, or put in place at the next turn."""
    on_failure: FailureFallback = "digest"
    """What happens where no summary could be had."""
    author: SummaryAuthorChoice = "cheap_then_primary"
    """Which model writes summaries: a cheaper one unless the user asks, one of its own, or the session's."""
    reuses_prefix: bool = True
    """Whether the conversation's own model may be asked for a summary behind its last request: a prompt cache pays."""
    manual_min_messages: int = field(default=2, metadata=integer_bounds(1, 10**6))
    needs_context: bool = False
    """Whether a compaction on the user's word is refused before the first request, and without a model to write it."""
    main_sees: MainVisibility = "everything"
    """What the main agent sees of what its delegates do, unless a delegation says otherwise."""
    unknown_window: int = field(default=128_000, metadata=integer_bounds(1_000, 10**12))
    """The window of a model nobody knows."""
    max_steps: int | None = field(default=50, metadata=integer_bounds(1, 10**6))
    """How many steps an agent may take in one turn."""
    restore: RestoreMode = "replay"
    remembers: bool = False
    """Whether a program is to write down by day what leaves the view; a session does so wherever it has a folder."""
    retention_days: int | None = field(default=None, metadata=integer_bounds(1, 10**6))
    """After how many days a session may be cleaned up; None for never."""

    def __post_init__(self) -> None:
        check_bounds(self, "")


DEFAULT = Policy(
    name="default",
    fold=DefaultCompaction(),
    offload=Offload(),
    emergency=Emergency(first=3),
    floor=FitSettings(),
    remembers=True,
)
CO_CLI = Policy(
    name="co-cli",
    outputs=KeepHeads(max_chars=2_000, protect_last=2),
    fold=CoCliCompaction(max_messages=40),
    apply="inline",
    on_failure="marker",
    # A fresh agent with a prompt of its own and no tools writes: no request of the conversation begins so.
    reuses_prefix=False,
    max_steps=None,
    restore="full",
)
INKEEP = Policy(
    name="inkeep",
    fold=InkeepCompaction(fraction=0.5),
    limits=FixedLimits(max_messages=50, max_tokens=8_000, max_retrieved=10_000),
    apply="inline",
    on_failure="limits",
    author="summariser",
    reuses_prefix=False,
    unknown_window=120_000,
    max_steps=None,
    restore="since_summary",
)
COPILOT = Policy(
    name="copilot",
    fold=CopilotCompaction(),
    truncator=BasicTruncator(target_share=0.95),
    apply="background",
    on_failure="keep",
    author="session",
    unknown_window=128_000,
    max_steps=None,
    restore="replay",
    needs_context=True,
)
COWAGENT = Policy(
    name="cowagent",
    outputs=KeepEnds(max_chars=20_000),
    fold=CowAgentCompaction(max_turns=20, max_tokens=50_000),
    emergency=Emergency(max_chars=10_000, max_turns=5),
    apply="deferred",
    on_failure="trim",
    author="session",
    reuses_prefix=False,
    unknown_window=50_000,
    max_steps=15,
    restore="recent_text",
    remembers=True,
    retention_days=30,
)
PRESETS: Mapping[str, Policy] = {policy.name: policy for policy in (DEFAULT, CO_CLI, INKEEP, COPILOT, COWAGENT)}


def policy_named(policy: str | Policy) -> Policy:
    """Return a policy by its name, or the policy itself."""
    if isinstance(policy, Policy):
        return policy
    name = policy
    if not isinstance(name, str) or name not in PRESETS:
        raise SettingsError("policy", f"{name!r} is not known; choose one of: {', '.join(PRESETS)}, or pass a Policy")
    return PRESETS[name]


def read_policy(text: str, *, base: str | Policy = DEFAULT) -> Policy:
    """Return the policy that a TOML document describes; `base` is what it begins with where it does not say so."""
    if not isinstance(text, str):
        raise SettingsError("policy", f"must be TOML text, not {type(text).__name__}")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError("policy", f"is not TOML that can be read: {error}") from error
    return with_policy_changes(policy_named(table.pop("base", base)), {"name": "custom", **table})


def with_policy_changes(policy: Policy, table: Mapping[str, object]) -> Policy:
    """Return a policy with the settings of a table in their place."""
    return cast("Policy", _with_changes(policy, table, "policy"))


def _with_changes(settings: object, table: Mapping[str, object], place: str) -> object:
    """Return settings with those of a table in their place."""
    kind = type(settings)
    hints = get_type_hints(kind)
    known = [item.name for item in fields(cast("type", kind))]
    changes: dict[str, object] = {}
    for name, value in table.items():
        if name not in known:
            raise SettingsError(f"{place}.{name}", f"is not a setting{_suggestion(name, known)}")
        changes[name] = _changed_value(getattr(settings, name), value, hints[name], f"{place}.{name}")
    return replace(settings, **changes)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]


def _changed_value(current: object, value: object, hint: object, place: str) -> object:
    rules = [kind for kind in types_in(hint) if is_dataclass(kind)]
    if not rules:
        return value
    if value is False:
        return None
    if not isinstance(value, dict):
        raise SettingsError(place, f"must be a table of settings, or false, not {value!r:.60}")
    table = dict(cast("dict[str, object]", value))
    named: dict[str, type] = {getattr(rule, "RULE", rule.__name__): rule for rule in rules}
    wanted = table.pop("rule", None)
    if wanted is not None and (not isinstance(wanted, str) or wanted not in named):
        raise SettingsError(f"{place}.rule", f"{wanted!r:.60} is not known; choose one of: {', '.join(named)}")
    begin = named[wanted]() if isinstance(wanted, str) else current if current is not None else rules[0]()
    if type(begin) is type(current):
        begin = current
    return _with_changes(begin, table, place)


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"
