"""The plan and the list of tasks of a conversation: tools for the model, and what /plan and /todo show.

Both are state of the session, beside its messages. A compaction puts them beside its summary, so they survive it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.apps.chat.tools.files import ToolRefusal
from holdfast.core.history.events import PlanChanged, TodosChanged
from holdfast.session.session import Session

MAX_TODOS = 100
MAX_TODO_CHARS = 300
MAX_PLAN_CHARS = 8_000
TODO_MARKS = {"open": "[ ]", "in_progress": "[>]", "done": "[x]"}


@dataclass(frozen=True, slots=True)
class TodoItem:
    """A task of the list."""

    task: str
    status: Literal["open", "in_progress", "done"] = "open"


class PlanTools:
    """The tools with which a model keeps its plan and its list of tasks."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def update_todos(self, todos: list[TodoItem]) -> str:
        """Write the list of tasks; it replaces the list before. Use it for work of more than two steps.

        The user sees the list, and it is kept when older messages are compacted.

        Args:
            todos: All tasks in their order; exactly one is in progress while you work.
        """
        if len(todos) > MAX_TODOS:
            return ToolRefusal(f"{len(todos):,} tasks are too many; {MAX_TODOS} is the limit")
        text = render_todos([(item.task, item.status) for item in todos])
        await self._session.record_state(TodosChanged(text=text))
        return text or "the list is empty"

    async def update_plan(self, plan: str) -> str:
        """Write down how you will proceed; it replaces the plan before, and is kept when messages are compacted.

        Args:
            plan: The plan, in Markdown.
        """
        if len(plan) > MAX_PLAN_CHARS:
            return ToolRefusal(f"a plan of {len(plan):,} characters is too long; {MAX_PLAN_CHARS:,} is the limit")
        await self._session.record_state(PlanChanged(text=plan.strip()))
        return "the plan is written down"


def render_todos(todos: Sequence[tuple[str, str]]) -> str:
    """Return a list of tasks as text, one line for each."""
    lines = [f"- {TODO_MARKS[status]} {' '.join(task.split())[:MAX_TODO_CHARS]}" for task, status in todos]
    return "\n".join(lines)


def parse_todos(text: str) -> list[tuple[str, str]]:
    """Return the tasks of a list that `render_todos` made."""
    statuses = {f"- {mark} ": status for status, mark in TODO_MARKS.items()}
    size = len("- [ ] ")
    return [(line[size:], statuses[line[:size]]) for line in text.splitlines() if line[:size] in statuses]
