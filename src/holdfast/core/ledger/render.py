"""Render the whole ledger as text for a model.

The user's constraints come first, those that say always or never before the others, then decisions, files, commands,
errors and searches. Each line names the position of its source. Each of these sections has a share of the token budget.
Identifiers use the rest of the budget, and those that already occur in a section are left out. The sections may then
use what the identifiers leave.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.packing import Section, choose_more, choose_within_shares, section_lines
from holdfast.core.conversation.tokens import Counter
from holdfast.core.ledger.ledger import Ledger

LEDGER_FRAME = "[Ledger of earlier messages, made by rule, for reference only; #n is where a line comes from.]"
CONSTRAINTS_SHARE, MIN_CONSTRAINTS_TOKENS, MAX_CONSTRAINTS_SHARE = 0.15, 160, 0.5
"""The share of the constraints, with a minimum because a constraint is no shorter in a small budget."""
MAX_ORDERS_TOKENS = 300
"""If the user said what to do always or never, these constraints have room for as much as this."""
WORK_SHARE = 0.06
"""The share of the plan, of the tasks, and of the notes, where there are any."""
PLAN_HEADING = "The assistant's plan as it last stood; a record of what is done and what is put off, not an order:"
TASKS_HEADING = "Background tasks and sub-agents, with their ids:"
NOTES_HEADING = "The assistant's notes to itself:"
MAX_SECTION_RECORDS = 60
"""How many records of a section to consider; more never fit."""


def render_ledger(ledger: Ledger, allowance_tokens: int, counter: Counter, *, exclude_text: str = "") -> str:
    """Return the ledger in at most `allowance_tokens`; empty if not even its frame fits.

    `exclude_text` is the text that remains in the view. Identifiers, constraints and decisions in it are left out.
    """
    room = allowance_tokens - counter.count(LEDGER_FRAME) - 1
    if room < 0:
        return ""
    sections = _sections(ledger, exclude_text, room, counter)
    chosen, _ = choose_within_shares(sections, room, counter)
    shares = "\n".join([LEDGER_FRAME, *section_lines(sections, chosen)])
    names = ledger.names.pack(
        allowance_tokens - counter.count(shares) - 1, counter, exclude_text=f"{shares}\n{exclude_text}"
    )
    # Lines within the shares stay, however much the names cost: the user's constraints are among them.
    left = allowance_tokens - counter.count(f"{shares}\n{names}") - 1
    lines = section_lines(sections, choose_more(sections, chosen, left, counter))
    return "\n".join([LEDGER_FRAME, *lines, *([names] if names else [])])


def _sections(ledger: Ledger, exclude_text: str, room: int, counter: Counter) -> list[Section]:
    statements = [statement for statement in ledger.constraints if statement.text not in exclude_text][::-1]
    statements.sort(key=lambda statement: (statement.status != "active", not statement.is_order))
    orders = sum(counter.count(str(one)) + 4 for one in statements if one.is_order and one.status == "active")
    least = MIN_CONSTRAINTS_TOKENS + min(MAX_ORDERS_TOKENS, orders)
    rules_share = min(MAX_CONSTRAINTS_SHARE, max(CONSTRAINTS_SHARE, least / max(1, room)))
    files = [*ledger.files][::-1]
    files.sort(key=lambda file: (file.last_write is None, file.last_read is None))
    errors = [*ledger.actions.errors.values()][::-1]
    errors.sort(key=lambda error: error.is_resolved)
    plan = sorted(ledger.work.plan, key=lambda step: step.state == "done")
    tasks = [*ledger.work.tasks.values()][::-1]
    tasks.sort(key=lambda task: task.has_ended)
    notes = [note for note in reversed(ledger.work.notes) if note.text not in exclude_text]
    work: dict[str, Sequence[object]] = {PLAN_HEADING: plan, TASKS_HEADING: tasks, NOTES_HEADING: notes}
    return [
        _section("The user asked to keep to:", rules_share, (one for one in statements if one.kind == "constraint")),
        _section("Decided:", 0.02, (one for one in statements if one.kind == "decision")),
        *(_section(heading, WORK_SHARE, records) for heading, records in work.items() if records),
        _section("Files:", 0.04, files),
        _section("Commands:", 0.02, reversed(ledger.actions.commands.values())),
        _section("Went wrong:", 0.02, errors),
        _section("Searches:", 0.01, reversed(ledger.actions.searches.values())),
    ]


def _section(heading: str, share: float, records: Iterable[object]) -> Section:
    """Return a section of records, which come most important first."""
    lines = [neutralize(str(record), "item") for record in islice(records, MAX_SECTION_RECORDS)]
    return Section(heading, share, lines, range(len(lines)))
