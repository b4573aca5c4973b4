"""Every setting, declared once: its name, type, default, kind, help, and what others call it.

Files, variables, flags, commands, `holdfast config` and the documentation all read these declarations.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import cast

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDeclaration:
    """What is known of a setting before anybody has set it."""

    name: str
    group: str
    help: str
    value_type: SettingType
    default: object
    aliases: tuple[str, ...] = ()
    """Other names it has in files and commands."""
    variables: tuple[str, ...] = ()
    """Every variable of the environment that sets it; the first one counts."""
    untrusted: Untrusted = "refused"
    """What a project may do with it before the user trusts the project."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it has in files and commands."""
        return (self.name, *self.aliases)


def _metadata(
    group: str,
    kind: SettingType,
    help: str,  # noqa: A002
    *,
    also: str = "",
    variables: str = "",
    untrusted: Untrusted = "refused",
) -> Mapping[str, object]:
    names = {"also": also.split(), "variables": variables.split()}
    return {"group": group, "kind": kind, "help": help, "untrusted": untrusted, **names}


MODEL_GROUP, COMPACTION_GROUP, STORAGE_GROUP, TOOLS_GROUP, PROGRAM_GROUP = (
    "Who answers",
    "How a conversation is kept short",
    "Where things are kept",
    "What the model may do",
    "The program",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSettings:
    """The value of every setting. None means none: no limit, no file, or no such rule in this preset."""

    model: str = field(
        default="embedded",
        metadata=_metadata(
            MODEL_GROUP, SettingType(), "Who answers: embedded, a name that pydantic-ai knows, or http://…/v1#name"
        ),
    )
    summarization_model: str = field(
        default="",
        metadata=_metadata(
            MODEL_GROUP,
            OptionalText(),
            'Who writes summaries that nobody asked for; "" is the model itself, none is nobody',
            also="summariser summarizer",
            variables="CO_CLI_SUMMARIZATION_MODEL",
        ),
    )
    n_ctx: int = field(
        default=8_192,
        metadata=_metadata(
            MODEL_GROUP,
            WholeNumber(512, 1_000_000),
            "The window of the embedded model, in tokens",
            also="embedded_n_ctx",
        ),
    )
    system: Path | None = field(
        default=None, metadata=_metadata(MODEL_GROUP, FilePath(), "A file with the system text")
    )
    models: Mapping[str, ModelOverrides] = field(
        default_factory=dict[str, ModelOverrides],
        metadata=_metadata(MODEL_GROUP, ModelOverrideTables(), "What you know of a model better than the table"),
    )

    preset: str = field(
        default="default", metadata=_metadata(COMPACTION_GROUP, Choice(*PRESETS), "Whose way with long conversations")
    )
    policy: Path | None = field(
        default=None,
        metadata=_metadata(COMPACTION_GROUP, FilePath(), "A file with rules of your own, begun from the preset"),
    )
    max_context_tokens: int | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP,
            WholeNumber(MIN_BUDGET_TOKENS, MAX_LIMIT, "none"),
            "The largest request in tokens; 0 is what the model holds",
            also="budget agent_max_context_tokens",
        ),
    )
    max_context_turns: int | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP,
            WholeNumber(1, 10**9, "none"),
            "The most turns in a request; 0 is any number",
            also="agent_max_context_turns",
        ),
    )
    max_history_messages: int | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP,
            WholeNumber(1, 10**9, "zero"),
            "The most messages in a request; 0 is any number",
            variables="CO_CLI_MAX_HISTORY_MESSAGES",
        ),
    )
    tool_output_trim_chars: int | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP,
            WholeNumber(1, 10**9, "zero"),
            "What is shown of an older tool output, in characters; 0 is all",
            variables="CO_CLI_TOOL_OUTPUT_TRIM_CHARS",
        ),
    )
    background_compaction_threshold: float | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP,
            Fraction(),
            "How full the window is when a summary is begun",
            variables="COPILOT_BACKGROUND_COMPACTION_THRESHOLD",
        ),
    )
    buffer_exhaustion_threshold: float | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP,
            Fraction(),
            "How full the window is when nothing may wait any longer",
            variables="COPILOT_BUFFER_EXHAUSTION_THRESHOLD",
        ),
    )
    min_compaction_messages: int | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP, WholeNumber(1, 10**6), "Fewer messages than this are not compacted by themselves"
        ),
    )
    compression_threshold: float | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP, Fraction(), "How full the window is when the whole conversation is compressed"
        ),
    )
    retrieved_messages: int | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP, WholeNumber(1, 10**9), "How many messages are looked at where summaries can be had"
        ),
    )
    fallback_messages: int | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP, WholeNumber(1, 10**9), "How many messages are sent where nobody writes summaries"
        ),
    )
    fallback_tokens: int | None = field(
        default=None,
        metadata=_metadata(
            COMPACTION_GROUP, WholeNumber(1, 10**9), "How many tokens of them are sent where nobody writes summaries"
        ),
    )
    approve: bool = field(default=False, metadata=_metadata(COMPACTION_GROUP, Switch(), "Ask before a summary counts"))

    consolidate: bool = field(
        default=False,
        metadata=_metadata(
            COMPACTION_GROUP,
            Switch(),
            "Put what a conversation leaves on the context board when it ends with nobody at the terminal",
        ),
    )

    store: str = field(
        default="sqlite:///~/.holdfast/chats.db",
        metadata=_metadata(STORAGE_GROUP, StoreUrl(), "Where conversations are kept"),
    )
    checkpoints: Path | None = field(
        default=Path("~/.holdfast/checkpoints"),
        metadata=_metadata(STORAGE_GROUP, FolderPath(), "A folder for summaries that people can read, or off"),
    )
    memory: Path | None = field(
        default=Path("~/.holdfast/memory"),
        metadata=_metadata(
            STORAGE_GROUP,
            FolderPath(),
            "A folder for daily memory, YYYY-MM-DD.md, or off; named by you it holds for presets that have none too",
        ),
    )
    boards: Path | None = field(
        default=Path("~/.holdfast/boards"),
        metadata=_metadata(
            STORAGE_GROUP,
            FolderPath(),
            "A folder for context boards, one for each repository and branch, or off",
            also="board",
        ),
    )
    retention_days: int | None = field(
        default=None,
        metadata=_metadata(
            STORAGE_GROUP, WholeNumber(1, 10**6, "none"), "After how many days a conversation is deleted; 0 is never"
        ),
    )

    tools: tuple[str, ...] = field(
        default=("read",),
        metadata=_metadata(
            TOOLS_GROUP,
            TextList("read", "run"),
            "What tools there are: read (files), run (commands, asked first), none",
        ),
    )
    allow: tuple[str, ...] = field(
        default=(), metadata=_metadata(TOOLS_GROUP, TextList(), "Commands that may run unasked, by how they begin")
    )
    max_steps: int | None = field(
        default=None,
        metadata=_metadata(
            TOOLS_GROUP,
            WholeNumber(1, 10**6, "none"),
            "How many steps an agent may take in a turn; 0 is any number",
            also="agent_max_steps",
            untrusted="lower",
        ),
    )
    mcp: Mapping[str, McpServer] = field(
        default_factory=dict[str, McpServer],
        metadata=_metadata(TOOLS_GROUP, McpServerTables(), "MCP servers for tools"),
    )
    agents: Mapping[str, AgentSettings] = field(
        default_factory=dict[str, AgentSettings],
        metadata=_metadata(TOOLS_GROUP, AgentTables(), "Agents that the model may give tasks to"),
    )
    hooks: Hooks = field(
        default_factory=Hooks, metadata=_metadata(TOOLS_GROUP, HookTable(), "Programs that are told of compactions")
    )
    trust: tuple[Path, ...] = field(
        default=(),
        metadata=_metadata(
            TOOLS_GROUP,
            FolderList(),
            "Projects whose settings all count: they may run programs and send conversations elsewhere",
        ),
    )

    colour: str = field(
        default="auto",
        metadata=_metadata(
            PROGRAM_GROUP,
            Choice("auto", "always", "never"),
            "Whether output is coloured",
            also="color",
            untrusted="any",
        ),
    )


def _declaration(item: "Field[object]") -> SettingDeclaration:
    facts = cast("Mapping[str, object]", item.metadata)
    own = f"{VARIABLE_PREFIX}{item.name.upper()}"
    return SettingDeclaration(
        name=item.name,
        group=cast("str", facts["group"]),
        help=cast("str", facts["help"]),
        value_type=cast("SettingType", facts["kind"]),
        default=None if item.default is MISSING else item.default,
        aliases=tuple(cast("list[str]", facts["also"])),
        variables=(own, *cast("list[str]", facts["variables"])),
        untrusted=cast("Untrusted", facts["untrusted"]),
    )


SETTING_DECLARATIONS: Mapping[str, SettingDeclaration] = {
    item.name: _declaration(item) for item in fields(DeclaredSettings)
}
_CANONICAL_NAMES = {name: one.name for one in SETTING_DECLARATIONS.values() for name in one.names}


def setting_name(key: str, *, where: str = "") -> str:
    """Return the name of a setting, whichever of its names is given."""
    wanted = key.strip().lower().replace("-", "_")
    if wanted not in _CANONICAL_NAMES:
        raise SettingsError(key, f"is not a setting; {_hint(wanted)}", where=where)
    return _CANONICAL_NAMES[wanted]


def _hint(key: str) -> str:
    if any(word in key for word in ("api_key", "apikey", "token", "secret", "password")) and "tokens" not in key:
        return "keys are read from the environment, such as $OPENAI_API_KEY, and never from a file"
    return suggest_name(key, list(_CANONICAL_NAMES))


def setting_names() -> list[str]:
    """Return the names of all settings, in the order of the documentation."""
    return list(SETTING_DECLARATIONS)


def setting_choices(key: str) -> tuple[str, ...]:
    """Return the words that a setting may be; none where it may be anything."""
    return SETTING_DECLARATIONS[setting_name(key)].value_type.choices
