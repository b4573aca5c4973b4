"""Policies: when a conversation is shortened, how, and what is kept. Presets are policies.

`read_policy` reads a policy from TOML. `base` names the preset to start from (the default if missing). Each table
changes the settings of one rule, `rule` in it chooses another rule, and `false` instead of a table switches the rule
off. `false` is also what TOML has for None, as in `retention_days = false`. `[models."claude-*"]` holds what differs
for the models whose names match.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from types import NoneType
from typing import Literal, TypeAlias, cast, get_args

from holdfast.core.history.scopes import MainVisibility
from holdfast.core.planning.rules.clip_tool_outputs import KeepEnds, KeepHeads
from holdfast.core.planning.rules.co_cli import CoCliCompaction
from holdfast.core.planning.rules.copilot import CopilotCompaction
from holdfast.core.planning.rules.cowagent import CowAgentCompaction, Emergency
from holdfast.core.planning.rules.default import DefaultCompaction, Offload
from holdfast.core.planning.rules.inkeep import FixedLimits, InkeepCompaction
from holdfast.core.planning.rules.rule import CompactionRule
from holdfast.core.planning.rules.truncator import BasicTruncator
from holdfast.core.planning.situation import last_name_part, without_provider
from holdfast.core.schema import (
    check_fields,
    integer_bounds,
    share_bounds,
    short_repr,
    suggest_similar,
    typed_fields,
    types_in,
)
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError

SummaryTiming: TypeAlias = Literal["inline", "background", "deferred"]
FailureFallback: TypeAlias = Literal["marker", "limits", "keep", "trim", "digest"]
RestoreMode: TypeAlias = Literal["full", "since_summary", "replay", "recent_text"]
AnyCompaction: TypeAlias = (
    DefaultCompaction | CoCliCompaction | InkeepCompaction | CopilotCompaction | CowAgentCompaction
)
MODELS_TABLE = "models"
SummarizerChoice: TypeAlias = Literal["cheap_then_primary", "dedicated", "session"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How a request that is too long is made to fit, whatever the policy.

    Shares are of the tokens that system text and tools leave for the messages.
    """

    step_share: float = field(default=1 / 4, metadata=share_bounds())
    """Cuts move by this much at a time: between two moves a growing list keeps its prefix."""
    clip_share: float = field(default=1 / 16, metadata=share_bounds())
    """Old tool output is clipped to this size."""
    clip_min_tokens: int = field(default=100, metadata=integer_bounds(1, 10**6))
    clip_zone_steps: int = field(default=4, metadata=integer_bounds(1, 1_000))
    """Tool output is clipped this many steps before its message is compacted."""
    digest_share: float = field(default=1 / 10, metadata=share_bounds())
    """The largest digest of compacted messages."""
    digest_max_tokens: int = field(default=2_000, metadata=integer_bounds(1, 10**6))
    max_media: int = field(default=20, metadata=integer_bounds(1, 10**4))
    """More images than this are dropped, oldest first; some providers accept more than 20 only if they are small."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a conversation is kept inside the context window. A rule that is None is not applied."""

    name: str = "default"
    compaction: AnyCompaction | CompactionRule | None = field(default_factory=DefaultCompaction)
    """When older messages are compacted, which ones, and into what; a rule of your own is a `CompactionRule`."""
    offload: Offload | None = None
    """When large settled tool outputs are replaced by a preview, for good."""
    outputs: KeepHeads | KeepEnds | None = None
    """How old tool output is shortened, decided again for every request."""
    limits: FixedLimits | None = None
    """Which messages are sent if there is no summarizer."""
    truncator: BasicTruncator | None = None
    """Which messages are dropped from a single request that is still too long."""
    emergency: Emergency | None = None
    """What is kept after a provider rejected a request as too long."""
    fit: FitSettings = field(default_factory=FitSettings)
    apply: SummaryTiming = "background"
    """Whether a request waits for a summary, a background task writes it, or it is applied at the next turn."""
    on_failure: FailureFallback = "digest"
    """What happens if no summary can be written."""
    summarizer_choice: SummarizerChoice = "cheap_then_primary"
    """Which model writes summaries: a cheaper one unless the user asks, a separate one, or the session's."""
    reuses_prefix: bool = True
    """Whether the summary request may extend the last request, so that it reads the prompt cache."""
    manual_min_messages: int = field(default=2, metadata=integer_bounds(1, 10**6))
    """A manual compaction of fewer messages is refused; system text does not count."""
    needs_context: bool = False
    """Whether a manual compaction is refused before the first request, and without a summarizer."""
    main_sees: MainVisibility = "everything"
    """What the main agent sees of its delegates' messages, unless a delegation says otherwise."""
    main_sees_sub_agents: MainVisibility | None = "nothing"
    """The same for delegates whose answer is the result of a tool call; None, or false in TOML, for `main_sees`."""
    unknown_window: int = field(default=128_000, metadata=integer_bounds(1_000, 10**12))
    """The context window assumed for an unknown model."""
    max_steps: int | None = field(default=50, metadata=integer_bounds(1, 10**6))
    """How many steps an agent may take in one turn; None, or false in TOML, for any number."""
    restore: RestoreMode = "replay"
    writes_memory: bool = False
    """Whether programs keep a daily memory of evicted messages; a session does so whenever it has a folder."""
    retention_days: int | None = field(default=None, metadata=integer_bounds(1, 10**6))
    """After how many days a session may be deleted; None, or false in TOML, for never."""
    models: "tuple[tuple[str, Policy], ...]" = field(default=(), repr=False)
    """For patterns of models' names, such as `claude-*`, the policy of those models; the first match counts."""

    def __post_init__(self) -> None:
        check_fields(self, "policy")
        if self.compaction is not None and not is_dataclass(self.compaction):
            # Its settings are part of the policy's hash, which every request records.
            rule = type(self.compaction).__name__
            raise SettingsError("policy.compaction", f"{rule} must be a dataclass: @dataclass(frozen=True)")

    def for_model(self, model: str | None) -> "Policy":
        """Return the policy for a model: that of the first pattern that its name matches, or this one.

        The name may have its provider before it, as in `anthropic:claude-sonnet-5-5` or `anthropic/claude-sonnet-5.5`.
        """
        name = (model or "").lower()
        names = name, last_name_part(without_provider(name))
        return next(
            (policy for pattern, policy in self.models if any(fnmatchcase(one, pattern.lower()) for one in names)), self
        )

    def without_rules(self) -> "Policy":
        """Return a policy that leaves every message as it is."""
        return replace(self, compaction=None, offload=None, outputs=None, limits=None, truncator=None, emergency=None)


def _default() -> Policy:
    return Policy(
        name="default",
        compaction=DefaultCompaction(),
        offload=Offload(),
        emergency=Emergency(first=3),
        fit=FitSettings(),
        main_sees_sub_agents="recall",
        writes_memory=True,
    )


def _co_cli() -> Policy:
    return Policy(
        name="co-cli",
        outputs=KeepHeads(max_chars=2_000, protect_last=2),
        compaction=CoCliCompaction(max_messages=40),
        apply="inline",
        on_failure="marker",
        # A separate agent without tools writes the summary, so its request shares no prefix with the conversation.
        reuses_prefix=False,
        manual_min_messages=1,
        max_steps=None,
        restore="full",
    )


def _inkeep() -> Policy:
    return Policy(
        name="inkeep",
        compaction=InkeepCompaction(fraction=0.5),
        limits=FixedLimits(max_messages=50, max_tokens=8_000, max_retrieved=10_000),
        apply="inline",
        on_failure="limits",
        summarizer_choice="dedicated",
        reuses_prefix=False,
        main_sees_sub_agents=None,
        unknown_window=120_000,
        max_steps=None,
        restore="since_summary",
    )


def _copilot() -> Policy:
    return Policy(
        name="copilot",
        compaction=CopilotCompaction(),
        truncator=BasicTruncator(target_share=0.95),
        apply="background",
        on_failure="keep",
        summarizer_choice="session",
        unknown_window=128_000,
        max_steps=None,
        restore="replay",
        needs_context=True,
    )


def _cowagent() -> Policy:
    return Policy(
        name="cowagent",
        outputs=KeepEnds(max_chars=20_000),
        compaction=CowAgentCompaction(max_turns=20, max_tokens=50_000),
        emergency=Emergency(max_chars=10_000, max_turns=5, persists=True),
        apply="deferred",
        on_failure="trim",
        summarizer_choice="session",
        reuses_prefix=False,
        max_steps=15,
        restore="recent_text",
        writes_memory=True,
        retention_days=30,
    )


class _Presets(Mapping[str, Policy]):
    """The presets by name; each is made when it is first read."""

    def __init__(self, makers: Mapping[str, Callable[[], Policy]]) -> None:
        self._makers = {name: cache(make) for name, make in makers.items()}

    def __getitem__(self, name: str, /) -> Policy:
        return self._makers[name]()

    def __contains__(self, name: object, /) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


PRESETS: Mapping[str, Policy] = _Presets(
    {"default": _default, "co-cli": _co_cli, "inkeep": _inkeep, "copilot": _copilot, "cowagent": _cowagent}
)


def policy_named(policy: str | Policy) -> Policy:
    """Return a policy by its name, or the policy itself."""
    if isinstance(policy, Policy):
        return policy
    name = policy
    if not isinstance(name, str) or name not in PRESETS:
        remedy = f"choose one of: {', '.join(PRESETS)}, or pass the Policy that read_policy() makes of your TOML"
        raise SettingsError("policy", f"{short_repr(name)} is not known; {remedy}")
    return PRESETS[name]


def read_policy(text: str, *, base: str | Policy = "default") -> Policy:
    """Return the policy that a TOML document describes; it starts from `base` unless it names another."""
    if not isinstance(text, str):
        raise SettingsError("policy", f"must be TOML text, not {type(text).__name__}")
    import tomllib  # noqa: PLC0415 - presets are not read

    try:
        table = tomllib.loads(text.removeprefix("\ufeff"))  # Windows' editors begin a file with this mark
    except (ValueError, RecursionError) as error:
        is_path = text.endswith(".toml") and "\n" not in text
        hint = "; pass the text of the file, not its path" if is_path else ""
        raise SettingsError("policy", f"is not TOML that can be read: {error}{hint}") from error
    return with_policy_changes(policy_named(table.pop("base", base)), {"name": "custom", **table})


def with_policy_changes(policy: Policy, table: Mapping[str, object]) -> Policy:
    """Return a policy with the values of a table applied to it."""
    return cast("Policy", _with_changes(policy, table, "policy"))


def _with_changes(record: object, table: Mapping[str, object], place: str) -> object:
    hints = {item.name: hint for item, hint in typed_fields(type(record))}
    changes: dict[str, object] = {}
    for name, value in table.items():
        if name == MODELS_TABLE and isinstance(record, Policy):
            changes[name] = _model_policies(record, table, place)
            continue
        if name not in hints:
            hint = suggest_similar(name, list(hints), f"there are: {', '.join(hints)}")
            raise SettingsError(f"{place}.{name}", f"is not a setting; {hint}")
        changes[name] = _changed_value(getattr(record, name), value, hints[name], f"{place}.{name}")
    return replace(record, **changes)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]


def _model_policies(policy: Policy, table: Mapping[str, object], place: str) -> tuple[tuple[str, Policy], ...]:
    """Return the policy for each pattern of models: the settings of the table, and then those of the pattern."""
    common = {name: value for name, value in table.items() if name != MODELS_TABLE}
    base, place = cast("Policy", _with_changes(policy, common, place)), f"{place}.{MODELS_TABLE}"
    patterns = table[MODELS_TABLE]
    if not patterns:
        return ()
    if not isinstance(patterns, dict):
        raise SettingsError(place, f"must be a table of patterns, not {short_repr(patterns)}")
    found: list[tuple[str, Policy]] = []
    for pattern, changes in cast("dict[str, object]", patterns).items():
        where = f"{place}.{pattern}"
        if not isinstance(changes, dict) or MODELS_TABLE in changes:
            raise SettingsError(where, f"must be a table of settings, not {short_repr(cast('object', changes))}")
        found.append((pattern, cast("Policy", _with_changes(base, cast("dict[str, object]", changes), where))))
    return tuple(found)


def _changed_value(current: object, value: object, hint: object, place: str) -> object:
    rules = [kind for kind in types_in(hint) if is_dataclass(kind)]
    may_be_none = NoneType in get_args(hint)
    if value is False and may_be_none:
        return None
    if not rules:
        return value
    if not isinstance(value, dict):
        expected = "a table of settings, or false" if may_be_none else "a table of settings"
        raise SettingsError(place, f"must be {expected}, not {short_repr(value)}")
    table = dict(cast("dict[str, object]", value))
    rules_by_name: dict[str, type] = {getattr(rule, "RULE", rule.__name__): rule for rule in rules}
    name = table.pop("rule", None)
    if name is not None and (not isinstance(name, str) or name not in rules_by_name):
        raise SettingsError(
            f"{place}.rule", f"{short_repr(name)} is not known; choose one of: {', '.join(rules_by_name)}"
        )
    rule = rules[0] if name is None else rules_by_name[name]
    keeps_rule = current is not None and (name is None or type(current) is rule)
    return _with_changes(current if keeps_rule else rule(), table, place)
