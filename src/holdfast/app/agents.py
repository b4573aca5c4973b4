"""Agents that the main one may ask, by name: `[agents.NAME]` in the settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from holdfast.app.kinds import WrongValueError, nearest, texts_of, wrong
from holdfast.app.tables import NamedTables
from holdfast.core.history.sees import EVERYTHING, Sees

AgentTool = Literal["read", "run"]
TOOLS: tuple[AgentTool, ...] = ("read", "run")
CLASSES = ("everything", "nothing", "pins", "ledger", "files")
MAIN_SEES = ("everything", "answers", "nothing")
TEXTS = ("description", "instructions", "model", "main_sees")
NUMBERS = ("turns", "max_tokens", "max_steps", "timeout_seconds")
KNOWN = (*TEXTS, "tools", "sees", *NUMBERS)
MOST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAgent:
    """An agent that can be asked."""

    name: str
    description: str = ""
    """What it is for, as the model is told that may ask it."""
    instructions: str = ""
    model: str | None = None
    """None for the one that answers the user."""
    tools: tuple[str, ...] = ("read",)
    sees: Sees = EVERYTHING
    main_sees: Literal["everything", "answers", "nothing"] = "nothing"
    max_steps: int | None = None
    timeout_seconds: int | None = None

    def __str__(self) -> str:
        """What it is, in one line, as far as something was said of it."""
        parts = [
            self.description,
            f"model {self.model}" if self.model else "",
            f"tools {', '.join(self.tools) or 'none'}",
            f"sees {_told(self.sees)}",
            f"the main agent sees {self.main_sees} of it",
            f"at most {self.max_steps:,} steps" if self.max_steps else "",
            f"at most {self.timeout_seconds:,} seconds" if self.timeout_seconds else "",
        ]
        return "; ".join(part for part in parts if part)


class NamedAgents(NamedTables):
    """Agents by their names."""

    asks = '[agents.NAME] with description = "…", instructions = "…"'

    def one(self, name: str, table: Mapping[str, object]) -> NamedAgent:
        """Return one agent."""
        for key in table:
            if key not in KNOWN:
                raise WrongValueError(f"is not a setting; {nearest(key, KNOWN)}", (name, key))
        texts = {key: _text(name, key, table[key]) for key in TEXTS if key in table}
        numbers = {key: _number(name, key, table[key]) for key in NUMBERS if key in table}
        main_sees = _one_of(name, "main_sees", texts.get("main_sees", "nothing"), MAIN_SEES)
        return NamedAgent(
            name=name,
            description=texts.get("description", ""),
            instructions=texts.get("instructions", ""),
            model=texts.get("model"),
            tools=tuple(_one_of(name, "tools", tool, TOOLS) for tool in _words(name, "tools", table, ["read"])),
            sees=_sees(name, table, numbers),
            main_sees=cast("Literal['everything', 'answers', 'nothing']", main_sees),
            max_steps=numbers.get("max_steps"),
            timeout_seconds=numbers.get("timeout_seconds"),
        )


def _told(sees: Sees) -> str:
    """Return what an agent is shown, in words."""
    chosen = [name for name in ("everything", "pins", "ledger", "files") if getattr(sees, name)]
    chosen += [f"turns = {sees.turns:,}"] if sees.turns else []
    most = "" if sees.max_tokens is None else f" in at most {sees.max_tokens:,} tokens"
    return (", ".join(chosen) or "nothing") + most


def _sees(name: str, table: Mapping[str, object], numbers: Mapping[str, int]) -> Sees:
    """Return what an agent is shown: everything, unless something is chosen."""
    default = [] if "turns" in numbers else ["everything"]
    chosen = [_one_of(name, "sees", word, CLASSES) for word in _words(name, "sees", table, default)]
    return Sees(
        everything="everything" in chosen,
        pins="pins" in chosen,
        ledger="ledger" in chosen,
        files="files" in chosen,
        turns=numbers.get("turns", 0),
        max_tokens=numbers.get("max_tokens"),
    )


def _words(name: str, key: str, table: Mapping[str, object], default: list[str]) -> tuple[str, ...]:
    value = table.get(key, default)
    words = (value,) if isinstance(value, str) else texts_of(value)
    if words is None:
        raise WrongValueError(wrong("a list of words", value).problem, (name, key))
    return words


def _one_of(name: str, key: str, word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise WrongValueError(f"{word!r:.60} is not known; {nearest(word, known)}", (name, key))
    return word


def _text(name: str, key: str, value: object) -> str:
    if not isinstance(value, str) or (key == "model" and not value):
        raise WrongValueError(wrong("a text", value).problem, (name, key))
    return value


def _number(name: str, key: str, value: object) -> int:
    least = 0 if key in {"turns", "max_tokens"} else 1
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise WrongValueError(wrong(f"a whole number from {least} on", value).problem, (name, key))
    return value
