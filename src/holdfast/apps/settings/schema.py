"""Every setting, declared once: its name, type, default, help and other names.

Files, variables, flags, commands, `holdfast config` and the documentation all read these declarations.
"""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TypeVar, cast

from holdfast.apps.settings.tables import (
    AgentSettings,
    AgentTables,
    HookTable,
    McpServer,
    McpServerTables,
    ModelOverrides,
    ModelOverrideTables,
)
from holdfast.apps.settings.trust import Untrusted
from holdfast.apps.settings.values import (
    Choice,
    FilePath,
    FolderList,
    FolderPath,
    Fraction,
    NamedFiles,
    NamedUrls,
    OptionalText,
    SettingType,
    StoreUrl,
    Switch,
    TextList,
    WholeNumber,
    suggest_name,
)
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.situation import MAX_LIMIT, MIN_BUDGET_TOKENS
from holdfast.errors import SettingsError
from holdfast.session.compaction.hooks import Hooks

VARIABLE_PREFIX = "HOLDFAST_"
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDeclaration:
    """The facts about a setting that do not depend on its value."""

    group: str
    help: str
    value_type: SettingType
    default: object
    name: str = ""
    aliases: tuple[str, ...] = ()
    """Other names in files and commands."""
    variables: tuple[str, ...] = ()
    """Environment variables that set it; the first one that is set counts."""
    untrusted: Untrusted = "refused"
    """Whether a project may set it before the user trusts the project."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names in files and commands."""
        return (self.name, *self.aliases)


def _setting(
    group: str,
    kind: SettingType,
    help: str,  # noqa: A002
    *,
    default: ValueT | None = None,
    also: str = "",
    variables: str = "",
    untrusted: Untrusted = "refused",
    factory: Callable[[], ValueT] | None = None,
) -> ValueT:
    """Return a field that carries its declaration; `also` and `variables` are words separated by spaces."""
    declaration = SettingDeclaration(
        group=group,
        help=help,
        value_type=kind,
        default=default,
        aliases=tuple(also.split()),
        variables=tuple(variables.split()),
        untrusted=untrusted,
    )
    metadata = {"declaration": declaration}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=cast("ValueT", default), metadata=metadata)


MODEL_GROUP, COMPACTION_GROUP, STORAGE_GROUP, TOOLS_GROUP, GATEWAY_GROUP, PROGRAM_GROUP = (
    "Models",
    "Compaction",
    "Storage",
    "Tools and agents",
    "The gateway",
    "The program",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSettings:
    """The value of every setting. None means no limit, no file, or no such rule in this preset."""

    model: str = _setting(
        MODEL_GROUP,
        SettingType(),
        "The model that answers: embedded, a name that pydantic-ai knows, or http://…/v1#name",
        default="embedded",
    )
    summarization_model: str = _setting(
        MODEL_GROUP,
        OptionalText(),
        'The model for automatic summaries; "" is none under the preset default, else the model that answers',
        default="",
        also="summariser summarizer",
        variables="CO_CLI_SUMMARIZATION_MODEL",
    )
    n_ctx: int = _setting(
        MODEL_GROUP,
        WholeNumber(512, 1_000_000),
        "The window of the embedded model, in tokens",
        default=8_192,
        also="embedded_n_ctx",
    )
    idle_seconds: int | None = _setting(
        MODEL_GROUP,
        WholeNumber(1, 10**6, "none"),
        "How many seconds a model may send nothing before the turn ends; 0 means no limit",
        default=300,
    )
    system: Path | None = _setting(MODEL_GROUP, FilePath(), "A file with the system text")
    models: Mapping[str, ModelOverrides] = _setting(
        MODEL_GROUP,
        ModelOverrideTables(),
        "Your own values for a model, which override the table of models",
        factory=dict[str, ModelOverrides],
    )

    preset: str = _setting(
        COMPACTION_GROUP, Choice(*PRESETS), "The preset whose rules keep conversations short", default="default"
    )
    policy: Path | None = _setting(COMPACTION_GROUP, FilePath(), "A file with your own rules, based on the preset")
    max_context_tokens: int | None = _setting(
        COMPACTION_GROUP,
        WholeNumber(MIN_BUDGET_TOKENS, MAX_LIMIT, "none"),
        "The largest request in tokens; 0 means what the model accepts",
        also="budget agent_max_context_tokens",
    )
    max_context_turns: int | None = _setting(
        COMPACTION_GROUP,
        WholeNumber(1, 10**9, "none"),
        "The most turns in a request; 0 means no limit",
        also="agent_max_context_turns",
    )
    max_history_messages: int | None = _setting(
        COMPACTION_GROUP,
        WholeNumber(1, 10**9, "zero"),
        "The most messages in a request; 0 means no limit",
        variables="CO_CLI_MAX_HISTORY_MESSAGES",
    )
    tool_output_trim_chars: int | None = _setting(
        COMPACTION_GROUP,
        WholeNumber(1, 10**9, "zero"),
        "How many characters of an older tool output are sent; 0 means all",
        variables="CO_CLI_TOOL_OUTPUT_TRIM_CHARS",
    )
    background_compaction_threshold: float | None = _setting(
        COMPACTION_GROUP,
        Fraction(),
        "The share of the limit at which a background summary starts",
        variables="COPILOT_BACKGROUND_COMPACTION_THRESHOLD",
    )
    buffer_exhaustion_threshold: float | None = _setting(
        COMPACTION_GROUP,
        Fraction(),
        "The share of the limit at which a request is compacted before it is sent",
        variables="COPILOT_BUFFER_EXHAUSTION_THRESHOLD",
    )
    min_compaction_messages: int | None = _setting(
        COMPACTION_GROUP, WholeNumber(1, 10**6), "The fewest messages that are compacted automatically"
    )
    compression_threshold: float | None = _setting(
        COMPACTION_GROUP, Fraction(), "The share of the limit at which the whole conversation is compacted"
    )
    retrieved_messages: int | None = _setting(
        COMPACTION_GROUP, WholeNumber(1, 10**9), "The most messages that are considered if there is a summarizer"
    )
    fallback_messages: int | None = _setting(
        COMPACTION_GROUP, WholeNumber(1, 10**9), "The most messages that are sent if there is no summarizer"
    )
    fallback_tokens: int | None = _setting(
        COMPACTION_GROUP,
        WholeNumber(1, 10**9),
        "The most tokens of those messages that are sent if there is no summarizer",
    )
    memory_limit_mb: int | None = _setting(
        COMPACTION_GROUP,
        WholeNumber(1, 10**9, "none"),
        "If the program still uses more megabytes of memory after a garbage collection, it compacts; 0 means never",
    )
    approve: bool = _setting(COMPACTION_GROUP, Switch(), "Ask before a summary is applied", default=False)

    consolidate: bool = _setting(
        COMPACTION_GROUP,
        Switch(),
        "Update the context board when a conversation ends without a terminal to ask on",
        default=False,
    )

    store: str = _setting(
        STORAGE_GROUP, StoreUrl(), "The store of conversations", default="sqlite:///~/.holdfast/chats.db"
    )
    checkpoints: Path | None = _setting(
        STORAGE_GROUP,
        FolderPath(),
        "A folder for summaries that people can read, or off",
        default=Path("~/.holdfast/checkpoints"),
    )
    memory: Path | None = _setting(
        STORAGE_GROUP,
        FolderPath(),
        "A folder for daily memory, YYYY-MM-DD.md, or off; a folder that you set is used with every preset",
        default=Path("~/.holdfast/memory"),
    )
    boards: Path | None = _setting(
        STORAGE_GROUP,
        FolderPath(),
        "A folder for context boards, one for each repository and branch, or off",
        default=Path("~/.holdfast/boards"),
        also="board",
    )
    retention_days: int | None = _setting(
        STORAGE_GROUP,
        WholeNumber(1, 10**6, "none"),
        "After how many days without a change a conversation of these settings is deleted; 0 means never",
    )

    tools: tuple[str, ...] = _setting(
        TOOLS_GROUP,
        TextList("read", "edit", "run", "plan"),
        "The tools of the model: read (files), edit (files, after asking), run (commands, after asking),"
        " plan (a list of tasks), none",
        default=("read", "edit", "run", "plan"),
    )
    accept_edits: bool = _setting(
        TOOLS_GROUP,
        Switch(),
        "Apply changes of files without asking, but for files that configure Holdfast",
        default=False,
    )
    allow: tuple[str, ...] = _setting(
        TOOLS_GROUP, TextList(), "The beginnings of commands that run without asking", default=()
    )
    pass_env: tuple[str, ...] = _setting(
        TOOLS_GROUP,
        TextList(),
        "Variables that commands get besides harmless ones such as PATH; a star stands for any characters",
        default=(),
    )
    max_steps: int | None = _setting(
        TOOLS_GROUP,
        WholeNumber(1, 10**6, "none"),
        "The most steps of an agent in a turn; 0 means no limit",
        also="agent_max_steps",
        untrusted="lower",
    )
    mcp: Mapping[str, McpServer] = _setting(
        TOOLS_GROUP, McpServerTables(), "MCP servers for tools", factory=dict[str, McpServer]
    )
    agents: Mapping[str, AgentSettings] = _setting(
        TOOLS_GROUP, AgentTables(), "Agents that the model can delegate to", factory=dict[str, AgentSettings]
    )
    hooks: Hooks = _setting(TOOLS_GROUP, HookTable(), "Programs that run before and after compactions", factory=Hooks)
    trust: tuple[Path, ...] = _setting(
        TOOLS_GROUP,
        FolderList(),
        "Projects whose settings all apply: they may run programs and send conversations elsewhere",
        default=(),
    )

    gateway_upstreams: tuple[str, ...] = _setting(
        GATEWAY_GROUP,
        NamedUrls(),
        "Providers of the gateway, NAME=URL with the base URL that the provider's own client would be given",
        default=(),
    )
    gateway_policies: tuple[str, ...] = _setting(
        GATEWAY_GROUP,
        NamedFiles(),
        "Policies that requests may name besides the presets, NAME=FILE; each is based on the preset",
        default=(),
    )
    gateway_summaries: str = _setting(
        GATEWAY_GROUP,
        Choice("digest", "key", "login"),
        "What may pay for summaries without a `summarization_model`: nothing, a client's API key, or also its login",
        default="digest",
    )
    gateway_recall: bool = _setting(
        GATEWAY_GROUP,
        Switch(),
        "Give the model of each new conversation the recall tool, which the gateway answers",
        default=False,
    )
    gateway_jobs: bool = _setting(
        GATEWAY_GROUP,
        Switch(),
        "Leave summaries to background jobs on DBOS, which all gateways on the store share; needs the extra `dbos`",
        default=False,
    )
    gateway_jobs_per_minute: int = _setting(
        GATEWAY_GROUP,
        WholeNumber(0, 1_000_000),
        "How many summaries all gateways with the same `summarization_model` begin in a minute; 0 means any number",
        default=0,
    )
    gateway_hosts: tuple[str, ...] = _setting(
        GATEWAY_GROUP,
        TextList(),
        "Names, besides loopback addresses, by which clients may reach the gateway",
        default=(),
    )
    gateway_body_mb: int = _setting(
        GATEWAY_GROUP, WholeNumber(1, 4_096), "The largest request that the gateway reads, in megabytes", default=64
    )
    gateway_connect_seconds: int = _setting(
        GATEWAY_GROUP, WholeNumber(1, 3_600), "How long a connection to a provider may take", default=10
    )
    gateway_first_byte_seconds: int = _setting(
        GATEWAY_GROUP, WholeNumber(1, 86_400), "How long a provider may take to begin its answer", default=1_800
    )
    gateway_silence_seconds: int = _setting(
        GATEWAY_GROUP, WholeNumber(1, 86_400), "How long a provider may be silent within an answer", default=1_800
    )
    gateway_ping_seconds: int = _setting(
        GATEWAY_GROUP, WholeNumber(1, 86_400), "After how much silence a stream gets a ping", default=15
    )
    gateway_drain_seconds: int = _setting(
        GATEWAY_GROUP, WholeNumber(1, 86_400), "How long running answers may take after a stop", default=300
    )

    colour: str = _setting(
        PROGRAM_GROUP,
        Choice("auto", "always", "never"),
        "Whether output is colored",
        default="auto",
        also="color",
        untrusted="any",
    )
    theme: str = _setting(
        PROGRAM_GROUP,
        Choice("auto", "dark", "light"),
        "The background of the terminal, which decides the colors of code; auto takes what the terminal says",
        default="auto",
    )


def _declaration(item: "Field[object]") -> SettingDeclaration:
    one = cast("SettingDeclaration", item.metadata["declaration"])
    return replace(one, name=item.name, variables=(f"{VARIABLE_PREFIX}{item.name.upper()}", *one.variables))


SETTING_DECLARATIONS: Mapping[str, SettingDeclaration] = {
    item.name: _declaration(item) for item in fields(DeclaredSettings)
}
_CANONICAL_NAMES = {name: one.name for one in SETTING_DECLARATIONS.values() for name in one.names}


def setting_name(key: str, *, where: str = "") -> str:
    """Return the name of a setting for any of its names."""
    name = key.strip().lower().replace("-", "_")
    if name not in _CANONICAL_NAMES:
        raise SettingsError(key, f"is not a setting; {_hint(name)}", where=where)
    return _CANONICAL_NAMES[name]


def _hint(key: str) -> str:
    if any(word in key for word in ("api_key", "apikey", "token", "secret", "password")) and "tokens" not in key:
        return "keys are read from the environment, such as $OPENAI_API_KEY, and never from a file"
    return suggest_name(key, list(_CANONICAL_NAMES))


def setting_names() -> list[str]:
    """Return the names of all settings, in the order of the documentation."""
    return list(SETTING_DECLARATIONS)
