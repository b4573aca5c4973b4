"""Commands, searches and errors of a conversation, and how they ended.

A tool reports failure by a flag, by an exit code, or by a phrase at the beginning of a line near either end of its
output. Reading a file that is merely about errors is not a failure. When the same attempt succeeds later, its earlier
error is resolved.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from holdfast.core.conversation.json_values import Json
from holdfast.core.conversation.messages import ToolResult
from holdfast.core.ledger.tool_calls import CallKind, ObservedCall
from holdfast.dataclass import dataclass
from holdfast.text import clip_to_line, lazy_pattern

MAX_ACTION_RECORDS = 500
"""The limit for each kind; the oldest records are evicted first."""
MAX_ACTION_SOURCES = 4
SCANNED_END_CHARS = 500
"""How much of each end of an output to search for a failure: tools report it first or last."""
ACTION_CLIP_CHARS = 80
"""How much of a command or an error to render."""
_CHANGE_OF_DIRECTORY = r"^cd \S+ (?:&&|;) "
_EXIT_CODE = r"(?i)\b(?:exit(?:ed)?(?: with)?(?: (?:code|status))?|return ?code)[:= ]{1,3}(-?\d{1,5})\b"
_FAILURE_WORDS = (
    "error", "exception", "traceback", "fail", "fatal", "panic", "abort", "denied", "not found", "no such", "err!",
    "e  ", "cannot ", "could not ", "unknown option", "fehler", "erreur", "错误", "エラー",
)  # fmt: skip
"""Every match of `_FAILURE` contains one of these; they are checked first because that is cheap."""
_FAILURE = (
    r"(?im)^\W{0,6}(?:error|fatal|exception|traceback|failed|failure|panic|aborted|permission denied|access denied"
    r"|npm err!|e {2,}\w|fehler|erreur|错误|エラー|no such file|file not found|not found|cannot |could not "
    r"|unknown option)|^.{0,200}?(?:\b\w*(?:Error|Exception)\b ?:|: (?:command )?not found\s*$"
    r"|no such file or directory|permission denied|\b[1-9]\d* (?:failed|failures?|errors?)\b)"
)
_FAILURE_OF_A_READ = (
    r"(?i)\W{0,6}(?:error|fatal|enoent|eacces|traceback|fehler|erreur|错误|no such file|file not found|not found"
    r"|cannot |could not |failed to |permission denied|access denied"
    r"|.{0,200}?no such file or directory|.{0,200}?does not exist)"
)
# Exit code 1 of these commands is a result, not a failure: nothing found, or not equal.
_COMPARISON_COMMANDS = r"\b(?:[ef]?grep|rg|ag|diff|cmp|pgrep|test)\b"
_NOTHING_FOUND = (
    r"(?i)\W{0,3}(?:no (?:match|result|file|hit)|nothing found|0 (?:match|result|hit)|keine |没有|aucun|ning[uú]n)"
)

ActionT = TypeVar("ActionT")


class CallOutcome(NamedTuple):
    """How a call ended."""

    is_ok: bool
    exit_code: int | None = None
    error_text: str = ""
    """The output from the first line that reports the failure, shortened."""

    def __str__(self) -> str:
        if self.is_ok:
            return "ok"
        return "failed" if self.exit_code is None else f"exit {self.exit_code}"


SUCCESS = CallOutcome(is_ok=True)
"""How most calls end: one object for all, because Python's garbage collector visits each that is kept."""


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """A command that was run, and how its latest run ended."""

    text: str
    outcome: CallOutcome
    sources: tuple[int, ...]
    """The positions of its first and its latest results."""
    runs: int = 1

    def __str__(self) -> str:
        times = f", {self.runs} runs" if self.runs > 1 else ""
        return f"{_short_command(self.text)}: {self.outcome}{times} #{self.sources[-1]}"


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """A search: its pattern, its path, and how many lines it returned."""

    pattern: str
    path: str
    hits: int
    sources: tuple[int, ...]

    def __str__(self) -> str:
        place = f" in {self.path}" if self.path else ""
        return f"{self.pattern}{place}: {self.hits:,} hits #{self.sources[-1]}"


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """A failed call, and whether the same attempt succeeded later."""

    call: str
    tool: str
    text: str
    sources: tuple[int, ...]
    is_resolved: bool = False

    def __str__(self) -> str:
        end = " (resolved)" if self.is_resolved else ""
        command, text = _short_command(self.call, ACTION_CLIP_CHARS // 2), clip_to_line(self.text, ACTION_CLIP_CHARS)
        return f"{command}: {text}{end} #{self.sources[-1]}"


@dataclass(slots=True)
class Actions:
    """Commands, searches and errors by the key of their call, the latest of each kind last."""

    commands: dict[str, CommandRecord] = field(default_factory=dict[str, CommandRecord])
    searches: dict[str, SearchRecord] = field(default_factory=dict[str, SearchRecord])
    errors: dict[str, ErrorRecord] = field(default_factory=dict[str, ErrorRecord])
    """The calls that failed."""

    def observe_result(self, call: ObservedCall, outcome: CallOutcome, output: str, position: int) -> None:
        """Record the outcome of a call."""
        if call.kind == "command":
            ran = self.commands.get(call.key)
            sources = add_source(ran.sources if ran else (), position)
            _keep_latest(
                self.commands, call.key, CommandRecord(call.subject, outcome, sources, ran.runs + 1 if ran else 1)
            )
        elif call.kind == "search" and outcome.is_ok:
            made = self.searches.get(call.key)
            sources = add_source(made.sources if made else (), position)
            _keep_latest(
                self.searches, call.key, SearchRecord(call.subject, call.search_path, _hit_count(output), sources)
            )
        failed = self.errors.get(call.key)
        if not outcome.is_ok:
            sources = add_source(failed.sources if failed else (), position)
            name = call.subject if call.kind == "command" else call.label
            _keep_latest(self.errors, call.key, ErrorRecord(name, call.tool, outcome.error_text, sources))
        elif failed:
            self.errors[call.key] = replace(failed, is_resolved=True)


def call_outcome(call: ObservedCall | None, result: ToolResult) -> CallOutcome:
    """Return how a call ended, judged by its result."""
    text, kind = result.text, call.kind if call else "command"
    tail = max(0, len(text) - SCANNED_END_CHARS)
    ends = ((0, text[:SCANNED_END_CHARS]), (tail, text[tail:] if tail else ""))
    code = None if kind == "file" else _exit_code(ends)
    trouble = _failure_offset(ends, kind)
    if code == 1 and trouble is None and call and re.search(_COMPARISON_COMMANDS, call.subject):
        return CallOutcome(is_ok=True, exit_code=code)
    if result.is_error or code or (code is None and trouble is not None):
        start = text.rfind("\n", 0, trouble or 0) + 1
        return CallOutcome(is_ok=False, exit_code=code or None, error_text=clip_to_line(text[start : start + 320]))
    return SUCCESS if code is None else CallOutcome(is_ok=True, exit_code=code)


def add_source(sources: tuple[int, ...], position: int) -> tuple[int, ...]:
    """Return the positions with one more; if there are too many, only the first and the latest ones."""
    return (*sources, position) if len(sources) < MAX_ACTION_SOURCES else (sources[0], *sources[2:], position)


def _short_command(command: str, max_chars: int = ACTION_CLIP_CHARS) -> str:
    """Return a shortened command without a leading `cd`."""
    return clip_to_line(re.sub(_CHANGE_OF_DIRECTORY, "", command), max_chars)


def _exit_code(ends: tuple[tuple[int, str], ...]) -> int | None:
    for _, end in reversed(ends):
        if ("exit" in end or "code" in end) and (found := re.findall(_EXIT_CODE, end)):
            return int(found[-1])
    return None


def _failure_offset(ends: tuple[tuple[int, str], ...], kind: CallKind) -> int | None:
    """Return the offset at which an output reports a failure; None if it does not."""
    if kind != "command":
        return 0 if re.match(_FAILURE_OF_A_READ, ends[0][1]) else None
    for start, end in ends:
        lower = end.lower()
        if any(map(lower.__contains__, _FAILURE_WORDS)) and (found := re.search(_FAILURE, end)):
            return start + found.start()
    return None


def _hit_count(output: str) -> int:
    if re.match(_NOTHING_FOUND, output):
        return 0
    return sum(not line.isspace() for line in output.splitlines() if line)


def _keep_latest(records: dict[str, ActionT], key: str, record: ActionT) -> None:
    records.pop(key, None)
    records[key] = record
    if len(records) > MAX_ACTION_RECORDS:
        del records[next(iter(records))]


# The agent's own work: its plan, its running tasks, and its notes to itself.
#
# A summary turns a plan into prose, and then steps that were finished or put off come back as orders. So the last plan
# is kept with the state of each step, ids of jobs and sub-agents to the letter, and notes as they were written.

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
_ID_KEY = lazy_pattern(r"(?i)(?:task|agent|shell|bash|job|process|session|run|terminal|worker)_?id")
_TASK_WORDS = ("task", "agent", "shell", "bash", "job", "process", "session", "background", "terminal", "worker")
_ID_IN_RESULT = lazy_pattern(
    rf"(?i)\b(?:{'|'.join(_TASK_WORDS)})"
    r"(?: (?:command|task|process|agent|job|session|running|started|launched|with)){0,4}[ _-]?id\b"
    r"[\"'`]?\s{0,3}[:=]?\s{0,3}[\"'`]?(?P<id>[A-Za-z0-9][\w.-]{1,63})"
)
_ENDED_BY = lazy_pattern(r"(?i)kill|stop|cancel|terminat|close")
_HAS_ENDED = lazy_pattern(
    r"(?i)\bstatus\W{1,6}(?:completed|finished|killed|failed|done|exited)|\b(?:has )?(?:exited|completed|been killed)\b"
)
_NOTE = lazy_pattern(
    r"(?im)^[ \t>*_#-]{0,8}(?:note to (?:my)?self|milestone(?: note)?|handoff note|progress note|checkpoint note)"
    r"[*_]{0,3}[ \t]{0,2}[:\u2013\u2014-][ \t*_]{0,4}(?P<note>\S[^\n]{0,2000}(?:\n(?![ \t]*\n)[^\n]{1,2000}){0,12})"
)
_PUT_OFF = lazy_pattern(
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
        for match in _ID_IN_RESULT.finditer(ends) if _may_name_task(ends) else ():
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


def _may_name_task(text: str) -> bool:
    """Return whether a text may have the id of a task; to look for the words takes less than the pattern."""
    lower = text.lower()
    return not text.isascii() or ("id" in lower and any(map(lower.__contains__, _TASK_WORDS)))


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
