"""Every setting, declared once: its name, type, default, kind, help, and what others call it.

Files, variables, flags, commands, `holdfast config` and the documentation all read these declarations.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import cast

from holdfast.app.agents import NamedAgent, NamedAgents
from holdfast.app.kinds import (
    AnyText,
    Choice,
    FilePath,
    FolderPath,
    Folders,
    Fraction,
    Kind,
    StoreUrl,
    Switch,
    Whole,
    Words,
    nearest,
)
from holdfast.app.tables import HookCommands, McpServer, McpServers, ModelFacts, ModelTables
from holdfast.app.trust import Untrusted
from holdfast.core.planning.presets import PRESETS
from holdfast.core.planning.situation import MAX_LIMIT, MIN_TOKENS
from holdfast.errors import SettingsError
from holdfast.session.hooks import Hooks

PREFIX = "HOLDFAST_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What is known of a setting before anybody has set it."""

    name: str
    group: str
    help: str
    kind: Kind
    default: object
    also: tuple[str, ...] = ()
    """Other names it has in files and commands."""
    variables: tuple[str, ...] = ()
    """Every variable of the environment that sets it; the first one counts."""
    untrusted: Untrusted = "refused"
    """What a project may do with it before the user trusts the project."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it has in files and commands."""
        return (self.name, *self.also)


def _about(
    group: str,
    kind: Kind,
    help: str,  # noqa: A002
    *,
    also: str = "",
    variables: str = "",
    untrusted: Untrusted = "refused",
) -> Mapping[str, object]:
    names = {"also": also.split(), "variables": variables.split()}
    return {"group": group, "kind": kind, "help": help, "untrusted": untrusted, **names}


ANSWERS, KEEPING, PLACES, TOOLS, PROGRAM = (
    "Who answers",
    "How a conversation is kept short",
    "Where things are kept",
    "What the model may do",
    "The program",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The value of every setting. None means none: no limit, no file, or no such rule in this preset."""

    model: str = field(
        default="embedded",
        metadata=_about(ANSWERS, Kind(), "Who answers: embedded, a name that pydantic-ai knows, or http://…/v1#name"),
    )
    summarization_model: str = field(
        default="",
        metadata=_about(
            ANSWERS,
            AnyText(),
            'Who writes summaries that nobody asked for; "" is the model itself, none is nobody',
            also="summariser summarizer",
            variables="CO_CLI_SUMMARIZATION_MODEL",
        ),
    )
    n_ctx: int = field(
        default=8_192,
        metadata=_about(
            ANSWERS, Whole(512, 1_000_000), "The window of the embedded model, in tokens", also="embedded_n_ctx"
        ),
    )
    system: Path | None = field(default=None, metadata=_about(ANSWERS, FilePath(), "A file with the system text"))
    models: Mapping[str, ModelFacts] = field(
        default_factory=dict[str, ModelFacts],
        metadata=_about(ANSWERS, ModelTables(), "What you know of a model better than the table"),
    )

    preset: str = field(
        default="default", metadata=_about(KEEPING, Choice(*PRESETS), "Whose way with long conversations")
    )
    policy: Path | None = field(
        default=None, metadata=_about(KEEPING, FilePath(), "A file with rules of your own, begun from the preset")
    )
    max_context_tokens: int | None = field(
        default=None,
        metadata=_about(
            KEEPING,
            Whole(MIN_TOKENS, MAX_LIMIT, "none"),
            "The largest request in tokens; 0 is what the model holds",
            also="budget agent_max_context_tokens",
        ),
    )
    max_context_turns: int | None = field(
        default=None,
        metadata=_about(
            KEEPING,
            Whole(1, 10**9, "none"),
            "The most turns in a request; 0 is any number",
            also="agent_max_context_turns",
        ),
    )
    max_history_messages: int | None = field(
        default=None,
        metadata=_about(
            KEEPING,
            Whole(1, 10**9, "zero"),
            "The most messages in a request; 0 is any number",
            variables="CO_CLI_MAX_HISTORY_MESSAGES",
        ),
    )
    tool_output_trim_chars: int | None = field(
        default=None,
        metadata=_about(
            KEEPING,
            Whole(1, 10**9, "zero"),
            "What is shown of an older tool output, in characters; 0 is all",
            variables="CO_CLI_TOOL_OUTPUT_TRIM_CHARS",
        ),
    )
    background_compaction_threshold: float | None = field(
        default=None,
        metadata=_about(
            KEEPING,
            Fraction(),
            "How full the window is when a summary is begun",
            variables="COPILOT_BACKGROUND_COMPACTION_THRESHOLD",
        ),
    )
    buffer_exhaustion_threshold: float | None = field(
        default=None,
        metadata=_about(
            KEEPING,
            Fraction(),
            "How full the window is when nothing may wait any longer",
            variables="COPILOT_BUFFER_EXHAUSTION_THRESHOLD",
        ),
    )
    min_compaction_messages: int | None = field(
        default=None,
        metadata=_about(KEEPING, Whole(1, 10**6), "Fewer messages than this are not compacted by themselves"),
    )
    compression_threshold: float | None = field(
        default=None,
        metadata=_about(KEEPING, Fraction(), "How full the window is when the whole conversation is compressed"),
    )
    retrieved_messages: int | None = field(
        default=None,
        metadata=_about(KEEPING, Whole(1, 10**9), "How many messages are looked at where summaries can be had"),
    )
    fallback_messages: int | None = field(
        default=None,
        metadata=_about(KEEPING, Whole(1, 10**9), "How many messages are sent where nobody writes summaries"),
    )
    fallback_tokens: int | None = field(
        default=None,
        metadata=_about(KEEPING, Whole(1, 10**9), "How many tokens of them are sent where nobody writes summaries"),
    )
    approve: bool = field(default=False, metadata=_about(KEEPING, Switch(), "Ask before a summary counts"))

    consolidate: bool = field(
        default=False,
        metadata=_about(
            KEEPING,
            Switch(),
            "Put what a conversation leaves on the context board when it ends with nobody at the terminal",
        ),
    )

    store: str = field(
        default="sqlite:///~/.holdfast/chats.db", metadata=_about(PLACES, StoreUrl(), "Where conversations are kept")
    )
    checkpoints: Path | None = field(
        default=Path("~/.holdfast/checkpoints"),
        metadata=_about(PLACES, FolderPath(), "A folder for summaries that people can read, or off"),
    )
    memory: Path | None = field(
        default=Path("~/.holdfast/memory"),
        metadata=_about(
            PLACES,
            FolderPath(),
            "A folder for daily memory, YYYY-MM-DD.md, or off; named by you it holds for presets that have none too",
        ),
    )
    boards: Path | None = field(
        default=Path("~/.holdfast/boards"),
        metadata=_about(
            PLACES,
            FolderPath(),
            "A folder for context boards, one for each repository and branch, or off",
            also="board",
        ),
    )
    retention_days: int | None = field(
        default=None,
        metadata=_about(PLACES, Whole(1, 10**6, "none"), "After how many days a conversation is deleted; 0 is never"),
    )

    tools: tuple[str, ...] = field(
        default=("read",),
        metadata=_about(
            TOOLS, Words("read", "run"), "What tools there are: read (files), run (commands, asked first), none"
        ),
    )
    allow: tuple[str, ...] = field(
        default=(), metadata=_about(TOOLS, Words(), "Commands that may run unasked, by how they begin")
    )
    max_steps: int | None = field(
        default=None,
        metadata=_about(
            TOOLS,
            Whole(1, 10**6, "none"),
            "How many steps an agent may take in a turn; 0 is any number",
            also="agent_max_steps",
            untrusted="lower",
        ),
    )
    mcp: Mapping[str, McpServer] = field(
        default_factory=dict[str, McpServer], metadata=_about(TOOLS, McpServers(), "MCP servers for tools")
    )
    agents: Mapping[str, NamedAgent] = field(
        default_factory=dict[str, NamedAgent],
        metadata=_about(TOOLS, NamedAgents(), "Agents that the model may give tasks to"),
    )
    hooks: Hooks = field(
        default_factory=Hooks, metadata=_about(TOOLS, HookCommands(), "Programs that are told of compactions")
    )
    trust: tuple[Path, ...] = field(
        default=(),
        metadata=_about(
            TOOLS,
            Folders(),
            "Projects whose settings all count: they may run programs and send conversations elsewhere",
        ),
    )

    colour: str = field(
        default="auto",
        metadata=_about(
            PROGRAM, Choice("auto", "always", "never"), "Whether output is coloured", also="color", untrusted="any"
        ),
    )


def _declaration(item: "Field[object]") -> Declaration:
    facts = cast("Mapping[str, object]", item.metadata)
    own = f"{PREFIX}{item.name.upper()}"
    return Declaration(
        name=item.name,
        group=cast("str", facts["group"]),
        help=cast("str", facts["help"]),
        kind=cast("Kind", facts["kind"]),
        default=None if item.default is MISSING else item.default,
        also=tuple(cast("list[str]", facts["also"])),
        variables=(own, *cast("list[str]", facts["variables"])),
        untrusted=cast("Untrusted", facts["untrusted"]),
    )


DECLARATIONS: Mapping[str, Declaration] = {item.name: _declaration(item) for item in fields(Values)}
_NAMES = {name: one.name for one in DECLARATIONS.values() for name in one.names}


def canonical(key: str, *, where: str = "") -> str:
    """Return the name of a setting, whichever of its names is given."""
    wanted = key.strip().lower().replace("-", "_")
    if wanted not in _NAMES:
        raise SettingsError(key, f"is not a setting; {_hint(wanted)}", where=where)
    return _NAMES[wanted]


def _hint(key: str) -> str:
    if any(word in key for word in ("api_key", "apikey", "token", "secret", "password")) and "tokens" not in key:
        return "keys are read from the environment, such as $OPENAI_API_KEY, and never from a file"
    return nearest(key, list(_NAMES))


def keys() -> list[str]:
    """Return the names of all settings, in the order of the documentation."""
    return list(DECLARATIONS)


def choices(key: str) -> tuple[str, ...]:
    """Return the words that a setting may be; none where it may be anything."""
    return DECLARATIONS[canonical(key)].kind.choices
