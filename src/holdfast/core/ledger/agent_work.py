"""What a coding agent keeps about its own work: its plan, its running tasks, and its notes to itself.

Agents write their plans with a tool, as a list of steps that each have a state. A summary turns such a list into
prose, and then steps that were finished or put off come back as orders. So the ledger keeps the last list with its
states. Ids of background jobs and of sub-agents are needed to the letter to read their output or to stop them. A note
that the model wrote to itself at a milestone is kept as it was written.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from holdfast.core.conversation.json_values import Json
from holdfast.core.ledger.tool_calls import ObservedCall
from holdfast.text import clip_to_line

StepState: TypeAlias = Literal["done", "in progress", "open", "put off"]
_STATES: Mapping[str, StepState] = {
    **dict.fromkeys(("completed", "complete", "done", "finished", "closed", "resolved"), "done"),
    **dict.fromkeys(("in_progress", "in-progress", "active", "doing", "running", "current"), "in progress"),
    **dict.fromkeys(("pending", "open", "todo", "not_started", "not-started", "queued", "planned"), "open"),
    **dict.fromkeys(
        ("cancelled", "canceled", "shelved", "deferred", "skipped", "deleted", "abandoned", "dropped", "postponed",
         "on_hold", "blocked", "paused"),
        "put off",
    ),
}  # fmt: skip
_TEXT_KEYS = ("content", "step", "text", "title", "subject", "description", "task", "name")
_LIST_KEYS = ("todos", "plan", "items", "steps", "tasks", "todo_list", "todolist")
_ID_KEY = re.compile(r"(?i)(?:task|agent|shell|bash|job|process|session|run|terminal|worker)_?id")
_ID_IN_RESULT = re.compile(
    r"(?i)\b(?:task|agent|shell|bash|job|process|session|background|terminal|worker)"
    r"(?: (?:command|task|process|agent|job|session|running|started|launched|with)){0,4}[ _-]?id\b"
    r"[\"'`]?\s{0,3}[:=]?\s{0,3}[\"'`]?(?P<id>[A-Za-z0-9][\w.-]{1,63})"
)
_ENDED_BY = re.compile(r"(?i)kill|stop|cancel|terminat|close")
_HAS_ENDED = re.compile(
    r"(?i)\bstatus\W{1,6}(?:completed|finished|killed|failed|done|exited)|\b(?:has )?(?:exited|completed|been killed)\b"
)
_NOTE = re.compile(
    r"(?im)^[ \t>*_#-]{0,8}(?:note to (?:my)?self|milestone(?: note)?|handoff note|progress note|checkpoint note)"
    r"[*_]{0,3}[ \t]{0,2}[:\u2013\u2014-][ \t*_]{0,4}(?P<note>\S[^\n]{0,2000}(?:\n(?![ \t]*\n)[^\n]{1,2000}){0,12})"
)
_PUT_OFF = re.compile(
    r"(?i)\b(?:shelve|postpone|park|abandon|cancel|drop|forget(?: about)?|put off|leave)\s+(?:the|this|that|your|my)\s+"
    r"(?:\w+\s+){0,3}(?:plan|todo list|to-do list|todos|refactor\w*|rewrite|migration)\b"
    r"|\bput\s+(?:the|this|that|it)(?:\s+\w+){0,4}\s+on\s+hold\b"
)
MAX_STEPS, MAX_STEP_CHARS = 60, 200
MAX_TASKS, MAX_NOTES, MAX_NOTE_CHARS = 40, 6, 800
SCANNED_RESULT_CHARS, MAX_ORDER_CHARS = 2_000, 2_000
_NOT_AN_ID = frozenset({"is", "id", "the", "not", "none", "null", "for", "and", "was", "with", "to", "of", "in"})


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A step of the agent's plan."""

    text: str
    state: StepState
    position: int

    def __str__(self) -> str:
        return f"[{self.state}] {self.text} [#{self.position}]"


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """A job or a sub-agent that the agent has started."""

    id: str
    what: str
    position: int
    has_ended: bool = False

    def __str__(self) -> str:
        ended = " (ended)" if self.has_ended else ""
        return f"{self.id}{ended}: {self.what} [#{self.position}]"


@dataclass(frozen=True, slots=True)
class AgentNote:
    """A note that the model wrote to itself."""

    text: str
    position: int

    def __str__(self) -> str:
        return f"{self.text} [#{self.position}]"


@dataclass(slots=True)
class AgentWork:
    """The plan as it was last written, the tasks that were started, and the last notes."""

    plan: list[PlanStep] = field(default_factory=list[PlanStep])
    tasks: dict[str, BackgroundTask] = field(default_factory=dict[str, BackgroundTask])
    notes: list[AgentNote] = field(default_factory=list[AgentNote])

    def observe_call(self, call: ObservedCall, value: Json) -> None:
        """Read a plan, a note, or the end of a task from the arguments of a call."""
        if not isinstance(value, dict):
            return
        fields = {key.lower(): item for key, item in value.items()}
        if steps := [*_steps(fields, call.position)]:
            self.plan = steps[:MAX_STEPS]
        note = fields.get("note")
        if isinstance(note, str) and "compact" in call.tool.lower():
            self._add_note(note, call.position)
        for key, item in fields.items():
            if _ID_KEY.fullmatch(key) and isinstance(item, str | int) and (known := self.tasks.get(str(item))):
                ended = known.has_ended or _ENDED_BY.search(call.tool) is not None
                self.tasks[known.id] = BackgroundTask(known.id, known.what, call.position, ended)

    def observe_result(self, call: ObservedCall, text: str, position: int) -> None:
        """Read the ids of started tasks from the result of a call, and whether a known one has ended."""
        ends = (
            text
            if len(text) <= 2 * SCANNED_RESULT_CHARS
            else text[:SCANNED_RESULT_CHARS] + text[-SCANNED_RESULT_CHARS:]
        )
        for match in _ID_IN_RESULT.finditer(ends):
            task = match["id"].rstrip(".-")
            if task.lower() in _NOT_AN_ID or not any(char.isdigit() or char in "_-" for char in task):
                continue
            known = self.tasks.pop(task, None)
            what = known.what if known else clip_to_line(call.subject or call.label, MAX_STEP_CHARS)
            has_ended = _HAS_ENDED.search(ends) is not None
            self.tasks[task] = BackgroundTask(task, what, position, has_ended)
        while len(self.tasks) > MAX_TASKS:
            del self.tasks[next(iter(self.tasks))]

    def observe_answer(self, text: str, position: int) -> None:
        """Read the notes to itself in what the model says."""
        for match in _NOTE.finditer(text):
            self._add_note(match["note"], position)

    def observe_prompt(self, text: str, position: int) -> None:
        """Put off what is left of the plan if the user says so."""
        if self.plan and _PUT_OFF.search(text[:MAX_ORDER_CHARS]):
            self.plan = [
                step if step.state == "done" else PlanStep(step.text, "put off", position) for step in self.plan
            ]

    def _add_note(self, text: str, position: int) -> None:
        note = AgentNote(text.strip()[:MAX_NOTE_CHARS], position)
        if note.text:
            self.notes = [*(one for one in self.notes if one.text != note.text), note][-MAX_NOTES:]


def _steps(fields: Mapping[str, Json], position: int) -> Iterator[PlanStep]:
    """Yield the steps of a plan in the arguments of a call: objects with a text and a known state."""
    for key in _LIST_KEYS:
        items = fields.get(key)
        for item in items if isinstance(items, list) else ():
            if not isinstance(item, dict):
                continue
            text = next((text for name in _TEXT_KEYS if isinstance(text := item.get(name), str) and text.strip()), "")
            state = _STATES.get(str(item.get("status") or item.get("state") or "").strip().lower())
            if text and state:
                yield PlanStep(clip_to_line(text, MAX_STEP_CHARS), state, position)
