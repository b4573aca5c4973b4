"""Agents that the main one may ask, by name: `[agents.NAME]` in the settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from holdfast.app.kinds import InvalidValueError, as_texts, invalid_value_error, suggest_name
from holdfast.app.tables import NamedTables
from holdfast.core.history.sees import SEES_EVERYTHING, Visibility

AgentTool = Literal["read", "run"]
AGENT_TOOLS: tuple[AgentTool, ...] = ("read", "run")
AGENT_VISIBILITY_CHOICES = ("everything", "nothing", "pins", "ledger", "files")
MAIN_VISIBILITY_CHOICES = ("everything", "answers", "nothing")
AGENT_TEXT_KEYS = ("description", "instructions", "model", "main_sees")
AGENT_NUMBER_KEYS = ("turns", "max_tokens", "max_steps", "timeout_seconds")
AGENT_KEYS = (*AGENT_TEXT_KEYS, "tools", "sees", *AGENT_NUMBER_KEYS)
MAX_AGENT_NUMBER = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """An agent that can be asked."""

    name: str
    description: str = ""
    """What it is for, as the model is told that may ask it."""
    instructions: str = ""
    model: str | None = None
    """None for the one that answers the user."""
    tools: tuple[str, ...] = ("read",)
    sees: Visibility = SEES_EVERYTHING
    main_sees: Literal["everything", "answers", "nothing"] = "nothing"
    max_steps: int | None = None
    timeout_seconds: int | None = None

    def __str__(self) -> str:
        """What it is, in one line, as far as something was said of it."""
        parts = [
            self.description,
            f"model {self.model}" if self.model else "",
            f"tools {', '.join(self.tools) or 'none'}",
            f"sees {_describe_visibility(self.sees)}",
            f"the main agent sees {self.main_sees} of it",
            f"at most {self.max_steps:,} steps" if self.max_steps else "",
            f"at most {self.timeout_seconds:,} seconds" if self.timeout_seconds else "",
        ]
        return "; ".join(part for part in parts if part)


class AgentTables(NamedTables):
    """Agents by their names."""

    expects = '[agents.NAME] with description = "…", instructions = "…"'

    def parse_table(self, name: str, table: Mapping[str, object]) -> AgentSettings:
        """Return one agent."""
        for key in table:
            if key not in AGENT_KEYS:
                raise InvalidValueError(f"is not a setting; {suggest_name(key, AGENT_KEYS)}", (name, key))
        texts = {key: _check_text(name, key, table[key]) for key in AGENT_TEXT_KEYS if key in table}
        numbers = {key: _check_number(name, key, table[key]) for key in AGENT_NUMBER_KEYS if key in table}
        main_sees = _check_choice(name, "main_sees", texts.get("main_sees", "nothing"), MAIN_VISIBILITY_CHOICES)
        return AgentSettings(
            name=name,
            description=texts.get("description", ""),
            instructions=texts.get("instructions", ""),
            model=texts.get("model"),
            tools=tuple(
                _check_choice(name, "tools", tool, AGENT_TOOLS) for tool in _check_words(name, "tools", table, ["read"])
            ),
            sees=_parse_visibility(name, table, numbers),
            main_sees=cast("Literal['everything', 'answers', 'nothing']", main_sees),
            max_steps=numbers.get("max_steps"),
            timeout_seconds=numbers.get("timeout_seconds"),
        )


def _describe_visibility(sees: Visibility) -> str:
    """Return what an agent is shown, in words."""
    chosen = [name for name in ("everything", "pins", "ledger", "files") if getattr(sees, name)]
    chosen += [f"turns = {sees.turns:,}"] if sees.turns else []
    most = "" if sees.max_tokens is None else f" in at most {sees.max_tokens:,} tokens"
    return (", ".join(chosen) or "nothing") + most


def _parse_visibility(name: str, table: Mapping[str, object], numbers: Mapping[str, int]) -> Visibility:
    """Return what an agent is shown: everything, unless something is chosen."""
    default = [] if "turns" in numbers else ["everything"]
    chosen = [
        _check_choice(name, "sees", word, AGENT_VISIBILITY_CHOICES)
        for word in _check_words(name, "sees", table, default)
    ]
    return Visibility(
        everything="everything" in chosen,
        pins="pins" in chosen,
        ledger="ledger" in chosen,
        files="files" in chosen,
        turns=numbers.get("turns", 0),
        max_tokens=numbers.get("max_tokens"),
    )


def _check_words(name: str, key: str, table: Mapping[str, object], default: list[str]) -> tuple[str, ...]:
    value = table.get(key, default)
    words = (value,) if isinstance(value, str) else as_texts(value)
    if words is None:
        raise InvalidValueError(invalid_value_error("a list of words", value).problem, (name, key))
    return words


def _check_choice(name: str, key: str, word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise InvalidValueError(f"{word!r:.60} is not known; {suggest_name(word, known)}", (name, key))
    return word


def _check_text(name: str, key: str, value: object) -> str:
    if not isinstance(value, str) or (key == "model" and not value):
        raise InvalidValueError(invalid_value_error("a text", value).problem, (name, key))
    return value


def _check_number(name: str, key: str, value: object) -> int:
    least = 0 if key in {"turns", "max_tokens"} else 1
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_AGENT_NUMBER:
        raise InvalidValueError(invalid_value_error(f"a whole number from {least} on", value).problem, (name, key))
    return value
