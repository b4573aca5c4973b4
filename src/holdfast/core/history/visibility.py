"""Select what a delegate sees of its parent's conversation.

The selection is made once, when the delegate starts, within a token budget. Selected messages are visible in full; the
briefing is a text about the ledger or the files. The budget goes to pins first, then to the briefing, then to turns,
newest first. The selection never contains a message that delegates of the parent may not see.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.messages import EntryMessages
from holdfast.core.conversation.spans import PositionPairs, position_pairs
from holdfast.core.conversation.tokens import Counter, message_tokens
from holdfast.core.history.context import Context
from holdfast.core.history.history import History
from holdfast.core.ledger.ledger import Ledger
from holdfast.core.ledger.render import LEDGER_FRAME, render_ledger
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError

ALL_TURNS = 10**6
MAX_BRIEFING_TOKENS = 2_000
"""The limit for the briefing, which also uses at most half of the remaining budget."""
FILES_HEADING = "[Files that were read or written so far; #n is where.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """What a delegate sees of the earlier conversation; `Visibility()` selects nothing."""

    everything: bool = False
    """All messages of its ancestors, including later ones unless `max_tokens` is set."""
    pins: bool = False
    """The pinned messages, each with the messages that cannot be cut from it."""
    ledger: bool = False
    """A briefing made by rule from the ledger: constraints, decisions, files, commands, errors, names."""
    files: bool = False
    """A briefing that lists the files read and written."""
    turns: int = 0
    """The number of newest turns."""
    max_tokens: int | None = None
    """The token budget of the whole selection; None for no limit."""

    def __post_init__(self) -> None:
        for name in ("everything", "pins", "ledger", "files"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"sees.{name}", "must be true or false")
        for name in ("turns", "max_tokens"):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            if not is_count and not (name == "max_tokens" and value is None):
                raise SettingsError(f"sees.{name}", f"must be a whole number from 0 on, not {value!r:.60}")

    @property
    def is_unlimited(self) -> bool:
        """Whether the delegate sees everything, without a budget."""
        return self.everything and self.max_tokens is None

    def to_json(self) -> Mapping[str, object]:
        """Return the options as the log stores them; there, `everything` means without a budget."""
        return {**asdict(self), "everything": self.is_unlimited}


SEES_EVERYTHING = Visibility(everything=True)
SEES_NOTHING = Visibility()


@dataclass(frozen=True, slots=True)
class VisibleParts:
    """The selected messages, the briefing, and their tokens."""

    spans: PositionPairs = ()
    briefing: str = ""
    tokens: int = 0


def choose_visible(history: History, parent: str, visibility: Visibility, counter: Counter) -> VisibleParts:
    """Return the selection for a delegate of `parent` that starts now."""
    if visibility.is_unlimited:
        context, start = history.delegable_context(parent), history.version.state_of(parent).cleared_at
        return VisibleParts(position_pairs(filter(context.is_visible, range(start, len(history)))))
    choice = _VisibleSelection(history, parent, counter, visibility.max_tokens)
    if visibility.pins:
        choice.add_pins()
    briefing = choice.briefing(visibility) if visibility.ledger or visibility.files else ""
    choice.add_turns(ALL_TURNS if visibility.everything else visibility.turns)
    return VisibleParts(position_pairs(choice.positions), briefing, choice.spent)


class _VisibleSelection:
    """The messages selected so far, and the tokens spent."""

    def __init__(self, history: History, parent: str, counter: Counter, max_tokens: int | None) -> None:
        self._history = history
        self._counter = counter
        self._context: Context = history.delegable_context(parent)
        self._start = history.version.state_of(parent).cleared_at
        self._max_tokens = max_tokens
        self.positions: set[int] = set()
        self.spent = 0

    def add_pins(self) -> None:
        """Select pinned messages, newest first."""
        for pin in sorted(self._history.session_state.pins, reverse=True):
            if pin >= self._start:
                self._add(range(*uncuttable_span(EntryMessages(self._history.entries), pin)))

    def briefing(self, visibility: Visibility) -> str:
        """Return the briefing and add its tokens to those spent; empty if there is nothing to report."""
        half = self._remaining_tokens // 2 if self._max_tokens is not None else MAX_BRIEFING_TOKENS
        ledger = self._history.ledger(self._context.scope, len(self._history))
        allowance = min(half, MAX_BRIEFING_TOKENS)
        text = (
            render_ledger(ledger, allowance, self._counter)
            if visibility.ledger
            else _file_lines(ledger, allowance, self._counter)
        )
        if text == LEDGER_FRAME:
            return ""
        self.spent += self._counter.count(text) if text else 0
        return text

    def add_turns(self, count: int) -> None:
        """Select the newest turns that fit; if not even the newest fits, only its prompt."""
        stop = len(self._history)
        for number, start in enumerate(self._prompts()):
            if number == count:
                return
            if not self._add(range(start, stop)):
                if not number:
                    self._add(range(start, start + 1))
                return
            stop = start
        if count == ALL_TURNS:
            self._add(range(self._start, stop))

    def _prompts(self) -> Iterator[int]:
        """Yield the positions at which turns begin, newest first."""
        context = self._context
        own = context.scopes.lineage(context.scope)
        for position in reversed(self._history.prompt_positions):
            if position < self._start:
                return
            if context.is_visible(position) and context.message_scopes[position] in own:
                yield position

    @property
    def _remaining_tokens(self) -> int:
        return 10**12 if self._max_tokens is None else self._max_tokens - self.spent

    def _add(self, span: range) -> bool:
        """Select the visible messages of a span if they fit; return whether they do."""
        new = [position for position in span if position not in self.positions and self._context.is_visible(position)]
        # A delegate can recall an attachment, but no request carries it.
        sent = [position for position in new if self._context.is_in_view(position)]
        self._history.entries.require(sent)
        cost = sum(sum(message_tokens(self._history.entries[at].message, self._counter)) for at in sent)
        if cost > self._remaining_tokens:
            return False
        self.positions.update(new)
        self.spent += cost
        return True


def _file_lines(ledger: Ledger, allowance_tokens: int, counter: Counter) -> str:
    """Return the files of a ledger that fit, latest first."""
    lines, left = [FILES_HEADING], allowance_tokens - counter.count(FILES_HEADING)
    for file in reversed(list(ledger.files)):
        line = neutralize(neutralize(str(file), "item"))
        cost = counter.count(f"\n{line}")
        if cost > left:
            break
        lines.append(line)
        left -= cost
    return "\n".join(lines) if len(lines) > 1 else ""
