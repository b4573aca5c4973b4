"""What users and stored logs depend on: names that stay as they are, wherever the code moves.

`persisted_names.json` holds every name that outlives a program: event kinds and their stored fields, settings,
variables, flags, the keys of JSON output, the keys of policy files, and a hash of every text that a model reads.
When code moves, the imports below change and the file does not. To rewrite it after a change that is meant:

    python -m tests.test_persisted_names

With `--texts FILE` it writes the texts behind the hashes as well, so that two versions can be compared.
"""

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import os
import re
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from hashlib import sha256
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import ModuleType, SimpleNamespace, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints
from unittest.mock import patch

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

# All that is imported from the code under test. When it moves or is renamed, only these lines change.
from benchmarks import endurance, imports, log, loop, needles, prepare, recall, retention, start, validity
from benchmarks.store import appends, opening, size, writers
from holdfast.adapters.pydantic_ai import SubAgent, delegation_toolset, summarize_messages
from holdfast.adapters.pydantic_ai.tools import RecallToolset
from holdfast.adapters.pydantic_ai.tools import compaction_toolset as compacting_toolset
from holdfast.apps.chat.agent import DELEGATE_SYSTEM_TEXT, StepLimit, build_system_text, build_toolsets, memory_toolset
from holdfast.apps.chat.dispatch import SLASH_COMMANDS
from holdfast.apps.chat.events import ChatEvent, Consent
from holdfast.apps.chat.plain_screen import JsonScreen
from holdfast.apps.chat.prompts import attachment_text as attachment_reference
from holdfast.apps.chat.tools.files import FileTools
from holdfast.apps.chat.tools.shell import ShellTool
from holdfast.apps.cli.main import main as holdfast
from holdfast.apps.cli.parser import build_parser as command_line
from holdfast.apps.lab import runner as lab_running
from holdfast.apps.lab.tables import result_rows
from holdfast.apps.settings.models import PROVIDER_KEYS
from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.sources import load_settings
from holdfast.bare_list import govern
from holdfast.core.history.codec import from_record as decode_event
from holdfast.core.history.codec import to_record as encode_event
from holdfast.core.history.events import Event, PlanChanged, SkillInvoked, TodosChanged
from holdfast.core.history.visibility import Visibility
from holdfast.core.planning.policy import PRESETS, Policy, read_policy
from holdfast.core.schema import types_in
from holdfast.errors import ModelAccessError, SettingsError
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.compaction.hooks import HookCall, hook_payload
from holdfast.session.memory.board_file import ContextBoard, Repository, repository_of
from holdfast.session.memory.board_file import board_key as board_fact
from holdfast.session.memory.consolidation import RemAgent
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.memory.search_tool import MemorySearchTool
from holdfast.session.session import Session
from holdfast.session.tools import ModelTool
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.models import ScriptedModel
from holdfast.testing.sessions import generate_session
from tests.support import InThisProcess

FROZEN = Path(__file__).with_name("persisted_names.json")
SOURCE = Path(__file__).parent.parent / "src"
COMMAND = "python -m tests.test_persisted_names"
BEGIN_MS = 1_700_000_000_000
MODEL, BUDGET, SYSTEM = "gpt-5", 9_000, "Be brief."
TOOLS: list[JsonMessage] = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
SUMMARY = "Intent: Always run the tests before the answer, and never push to main [#0].\nDone: src/a.py was read [#2]."
REFUSAL = {"error": {"message": "maximum context length is 6000 tokens", "code": "context_length_exceeded"}}
FINDINGS = {
    "findings": [
        {"claim": "It is short.", "sources": ["#1"], "status": "confirmed"},
        {"claim": "It is old.", "sources": ["src/nowhere.py"], "status": "confirmed"},
    ]
}
EVERY_TABLE = """
[models."some-model"]
window = 9000
output = 900
input_price = 1.0
output_price = 2.0
cache_read_price = 0.1
cache_write_price = 1.25

[mcp.program]
command = "serve"
args = ["--quiet"]
env = { NAME = "value" }

[mcp.address]
url = "https://example.com/mcp"
headers = { Name = "value" }

[agents.reader]
description = "Reads."
instructions = "Read it."
model = "embedded"
main_sees = "answers"
tools = ["read", "run"]
sees = ["pins", "ledger", "files"]
turns = 2
max_tokens = 900
max_steps = 3
timeout_seconds = 60

[hooks]
pre_compact = [["notify", "--quiet"]]
post_compact = ["notify"]
timeout_seconds = 5
"""


# Values of every kind, and the paths of their keys.


def filled(hint: Any) -> Any:
    """Return a value of a type in which every field is set; a mapping has one key, an asterisk."""
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, UnionType) or origin is Union:
        return filled(inner[0])
    if origin is Literal:
        return inner[-1]
    if origin is tuple:
        return tuple(filled(one) for one in inner if one is not ...)
    if origin is list:
        return [filled(inner[0])]
    if is_dataclass(hint):
        return cast("Any", hint)(**{name: filled(of) for name, of in field_types(hint).items()})
    plain: dict[Any, object] = {str: "text", int: 7, float: 0.5, bool: True}
    return plain.get(hint, {"*": 1})


def field_types(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, in their order."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def key_paths(value: object, place: str = "") -> Iterator[str]:
    """Yield the dotted path of every key in a JSON value; a key with a dot in it is in quotation marks."""
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, object]", value).items():
            name = json.dumps(key) if "." in key else key
            here = f"{place}.{name}" if place else name
            yield here
            yield from key_paths(inner, here)
    elif isinstance(value, list | tuple):
        for inner in cast("Sequence[object]", value):
            yield from key_paths(inner, f"{place}[]")


def keys_of(*values: object) -> list[str]:
    """Return the sorted paths of the keys that any of some JSON values has."""
    return sorted({path for value in values for path in key_paths(value)})


def in_json(value: object) -> Any:
    """Return a value as JSON carries it."""
    return json.loads(json.dumps(value, ensure_ascii=False))


# Where the collectors work: nothing of the person's own settings, clock or folders is seen.


@contextlib.contextmanager
def alone(folder: Path) -> Generator[Path]:
    """Let an empty folder be the home and the working folder, with no other variables, in UTC."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    try:
        with (
            patch.dict(os.environ, {**kept, "HOME": str(folder), "TZ": "UTC"}, clear=True),
            contextlib.chdir(folder),
        ):
            time.tzset()
            yield folder
    finally:
        time.tzset()


def printed(action: Callable[[], object]) -> str:
    """Return what an action prints to standard output, however it ends."""
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        action()
    return out.getvalue()


def output_of(*arguments: str) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(printed(lambda: holdfast([*arguments, "--json"])))


# Logs.


def every_event() -> dict[str, Event]:
    """Return an event of each kind, with all its fields set."""
    return {kind.KIND: filled(kind) for kind in get_args(Event)}


def events() -> object:
    """Return the stored fields of each kind of event."""
    records = {kind: in_json(encode_event(event)) for kind, event in every_event().items()}
    kinds = {kind: keys_of(record["data"]) for kind, record in records.items()}
    return {"kinds": kinds, "every record": sorted({key for record in records.values() for key in record})}


def recorded() -> object:
    """Return the keys of the records of a session, with what is inside of open fields."""
    lives = [asyncio.run(lived(preset)) for preset in ("default", "copilot")]
    records = [record for life in lives for record in life.records]
    kinds = sorted({str(record["type"]) for record in records})
    return {kind: keys_of(*(one["data"] for one in records if one["type"] == kind)) for kind in kinds}


def exported() -> object:
    """Return the keys of the lines of an export, and the names of tables and columns in a SQLite file."""
    asyncio.run(kept_in("sqlite:///chats.db"))
    printed(lambda: holdfast(["export", "kept", "-o", "kept.jsonl", "--store", "sqlite:///chats.db"]))
    head, *lines = [json.loads(line) for line in Path("kept.jsonl").read_text(encoding="utf-8").splitlines()]
    with contextlib.closing(sqlite3.connect("chats.db")) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        tables = sorted(name for (name,) in connection.execute(query))
        columns = {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in tables}
    return {"head": keys_of(head), "line": sorted({key for line in lines for key in line}), "tables": columns}


async def kept_in(store: str) -> None:
    """Keep a conversation with two requests and a large message in a store."""
    ticks = itertools.count(BEGIN_MS, 1_000)
    async with Session.open("kept", store=store, model=MODEL, clock=lambda: next(ticks)) as session:
        await session.record(
            [
                user_message("Always run the tests."),
                assistant_message("Yes, I will. " * 40),
                user_message("word" * 5_000),
            ]
        )
        await session.prepare(BUDGET, system=SYSTEM, tools=TOOLS)
        await session.record([assistant_message("Because the key is sk-leaked-0123456789.")])
        await session.compact()
        await session.record([user_message("Go on.")])
        await session.prepare(BUDGET)
        await session.store.put_value(board_fact("kept"), {"board": repository_of(Path.cwd()).key})


# Settings.


def settings() -> object:
    """Return every setting with its type, default and names, and the defaults of each preset."""
    types = field_types(Settings)
    rows = output_of("config")
    return {
        "settings": {
            row["name"]: {"type": shown_type(types[row["name"]]), "default": row["text"], "also": row["also"]}
            for row in rows
        },
        "presets": {name: {row["name"]: row["text"] for row in output_of("config", "--preset", name)
                           if row["source"]["kind"] == "preset"} for name in PRESETS},
    }  # fmt: skip


def shown_type(hint: Any) -> str:
    """Return the type of a setting, without the names of our own classes."""
    if isinstance(hint, UnionType):
        return " | ".join(map(shown_type, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"list of {shown_type(get_args(hint)[0])}"
    names = {str: "text", int: "whole number", float: "number", bool: "switch", Path: "path", type(None): "none"}
    return names.get(hint, "table")


def environment() -> object:
    """Return the variables that are read: those of settings, those of providers, and those that the source names."""
    pattern = re.compile(
        r"[\"'](HOLDFAST_[A-Z_]+|XDG_[A-Z_]+|CO_CLI_[A-Z_]*|COPILOT_[A-Z_]+|NO_COLOR|TERM|LOCALAPPDATA)[\"']"
    )
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    named = sorted({name for text in texts for name in pattern.findall(text)})
    return {
        "settings": {row["name"]: row["variables"] for row in output_of("config")},
        "providers": {name: list(variables) for name, variables in PROVIDER_KEYS.items()},
        "named": named,
    }


# The command line.


def commands() -> object:
    """Return every command with its arguments and flags."""
    return {" ".join(path): sorted(flags) for path, flags in walked(command_line(), ("holdfast",))}


def walked(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    flags: list[str] = []
    numbers = itertools.count(1)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            inner = cast("Mapping[str, argparse.ArgumentParser]", action.choices)
            for name, sub in inner.items():
                yield from walked(sub, (*path, name))
            continue
        takes = {None: " VALUE", 0: ""}.get(cast("Any", action.nargs), f" {action.nargs}")
        default = "" if action.default in (None, argparse.SUPPRESS, False, []) else f" ({action.default})"
        name = ", ".join(action.option_strings) or f"argument {next(numbers)}"
        flags.append(f"{name}{takes}{default}")
    yield path, flags


def slash_commands() -> object:
    """Return every command of the chat with its aliases."""
    return {f"/{command.name}": {"usage": command.usage, "also": list(command.aliases)} for command in SLASH_COMMANDS}


def command_output() -> object:
    """Return the keys of what each command prints with `--json`."""
    store = ("--store", "sqlite:///chats.db")
    asyncio.run(kept_in("sqlite:///chats.db"))
    day = Path(".holdfast/memory/2023-11-14.md")
    day.parent.mkdir(parents=True)
    day.write_text("# 2023-11-14\n\n## A note\nThe red box holds the keys.\n", encoding="utf-8")
    os.environ["HOLDFAST_SUMMARIZATION_MODEL"] = "none"
    exporting = output_of("export", "kept", "-o", "kept.jsonl", *store)
    with Path("kept.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"torn')
    found: dict[str, object] = {
        "sessions": output_of("sessions", *store),
        "show": output_of("show", "kept", *store),
        "show --at": output_of("show", "kept", "--at", "1", *store),
        "replay": output_of("replay", "kept", *store),
        "export -o": exporting,
        "import": output_of("import", "kept.jsonl", "--as", "again", *store),
        "recover": output_of("recover", "chats.db", "-o", "saved.db"),
        "scrub": output_of("scrub", "kept", "sk-leaked-0123456789", *store),
        "consolidate": output_of("consolidate", "--now", *store),
        "memory": output_of("memory"),
        "memory DAY": output_of("memory", "2023-11-14"),
        "memory search": output_of("memory", "search", "red", "box"),
        "config": output_of("config"),
        "config KEY": output_of("config", "model"),
        "config KEY VALUE": output_of("config", "max_steps", "30"),
        "models": output_of("models", "gpt-5"),
        "doctor": output_of("doctor"),
        "sessions prune --dry-run": output_of("sessions", "prune", "--days", "1", "--dry-run", *store),
        "sessions rm": output_of("sessions", "rm", "again", "--yes", *store),
        "sessions prune": output_of("sessions", "prune", "--days", "1", "--yes", *store),
    }
    return {name: keys_of(value) for name, value in found.items()}


def chat_output() -> object:
    """Return the keys of each line that `holdfast chat --json` prints."""
    screen = JsonScreen()

    def show() -> None:
        for kind in get_args(ChatEvent):
            screen.show(filled(kind))
        screen.show_busy("text")
        asyncio.run(screen.ask_consent("text"))

    lines = [json.loads(line) for line in printed(show).splitlines()]
    return {event: keys_of(*(line for line in lines if line["event"] == event)) for event in
            dict.fromkeys(line["event"] for line in lines)}  # fmt: skip


# The laboratory and the benchmarks.


def recordings(*wanted: str) -> str:
    """Write recorded conversations into a file, some work with bills and a talk, and return where they are."""
    probes = [{"question": "Which harbour?", "answer": "Bergen", "evidence": ["first"], "category": 1}]
    first: JsonMessage = {
        **user_message("[Session 1, 8:56 pm on 20 July, 2023] The harbour is Bergen."),
        "x_id": "first",
    }
    work = generate_session(40)[1:]
    billed = [{**m, "x_usage": {"input": 90, "cacheRead": 10, "cacheWrite": 5}} if m["role"] == "assistant" else m
              for m in work]  # fmt: skip
    turns = [turn for n in range(4) for turn in (user_message(f"Question {n}?"), assistant_message(f"Answer {n}."))]
    every = {"work": [first, *billed], "talk": [first, *turns]}
    lines = [json.dumps({"id": name, "messages": every[name], "probes": probes}) for name in wanted]
    path = Path("-".join(wanted)).with_suffix(".jsonl")
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def lab_output() -> object:
    """Return the keys of the rows of `holdfast lab run` and `holdfast lab tune`."""
    played = (recordings("work"), "--static", "100", "--budget", "4000")
    with patch.object(lab_running, "WorkerPool", InThisProcess):
        run = output_of("lab", "run", *played, "--policy", "default+summary", "--baselines", "full,threshold")
        tuned = output_of("lab", "tune", *played, "--vary", "compaction.tail_share=0.05")
    stopped = result_rows([lab_running.PolicyResult("text", "text", 1, problems=["text"], missing_replays=1)])
    return {"lab run": keys_of(*run, *stopped), "lab tune": keys_of(*tuned)}


def figures_of(module: ModuleType, *arguments: str, **constants: Any) -> Any:
    """Return what a benchmark writes with `--json`; `constants` of its module make it small."""
    argv = [module.__name__, *arguments, "--json", "figures.json"]
    with contextlib.ExitStack() as small:
        small.enter_context(patch.object(sys, "argv", argv))
        for name, value in constants.items():
            small.enter_context(patch.object(module, name, value))
        printed(module.main)
    return json.loads(Path("figures.json").read_text(encoding="utf-8"))


def benchmark_output() -> object:
    """Return the keys of what each benchmark writes with `--json`."""
    file, folder = recordings("work", "talk"), Path.cwd()
    small = patch.multiple(appends, ROUNDS=2, APPENDS=1, FLUSH_COUNT=1), patch.multiple(size, STEPS=2)
    with small[0], small[1], patch.multiple(opening, SIZES=(200, 200), REPEATS=1):
        log_figures = figures_of(log, "--only", "appends,size,opening", "--no-peers", "--quick")
    needle_row = {"name": "text", "messages": [], "shown": ["text"], "found": [None]}
    found: dict[str, object] = {
        "endurance": figures_of(endurance, "--turns", "1"),
        "log": log_figures,
        "log writers": writer_figures(folder),
        "prepare": figures_of(prepare, "--sizes", "20", "--repeats", "1", "--peers", ""),
        "recall": figures_of(recall, "--chats", file, "--work", file, "--long", recordings("talk"), "--messages", "60"),
        "retention": figures_of(
            retention, file, "--budget", "6000", "--ledger", "200", Pool=ThreadPool, FAR_MESSAGES=2
        ),
        "start": figures_of(start, "--runs", "1", first_line_seconds=a_second, time_statement=a_second),
        "validity": figures_of(validity, file, "--budgets", "8000", Pool=ThreadPool),
        "beside needles": [needles.count_needles(needle_row, [needles.Needle("text", "text")])],
        "beside loop": [loop.run_figures({"name": "text", "answer": "text"}, loop.Tally())],
        "beside imports": [imports.row_medians({"name": "text", "pairs": [(2.0, 1.0)], "modules": 1})],
    }
    return {name: keys_of(value) for name, value in found.items()}


def a_second(*_: object) -> float:
    return 1.0


def writer_figures(folder: Path) -> object:
    """Return the figures of the writers without a server and its processes: those of threads on SQLite."""

    @contextlib.contextmanager
    def server(_: Path) -> Generator[tuple[str, dict[str, str]]]:
        yield "sqlite:///writers.db", dict.fromkeys(("server_version", "fsync", "synchronous_commit"), "text")

    @contextlib.contextmanager
    def manager() -> Generator[SimpleNamespace]:
        yield SimpleNamespace(Barrier=threading.Barrier)

    def context(_: str) -> SimpleNamespace:
        return SimpleNamespace(Manager=manager, Pool=ThreadPool)

    processes = SimpleNamespace(get_context=context)
    with (
        patch.multiple(writers, run_server=server, multiprocessing=processes, WRITERS=1, MESSAGES=1),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        return writers.measure(folder)


# Policies.


ONLY = "the only one"
"""The rule of a place that knows one rule alone: nobody has to name it."""


def policies() -> object:
    """Return every preset as a policy file would have it, and every rule that a policy file may name."""
    hints = get_type_hints(Policy)
    slots = {item.name: [kind for kind in types_in(hints[item.name]) if is_dataclass(kind)] for item in fields(Policy)}
    return {
        "presets": {name: written(policy) for name, policy in PRESETS.items()},
        "rules": {
            slot: {getattr(kind, "RULE", ONLY): written(cast("Any", kind)()) for kind in kinds}
            for slot, kinds in slots.items()
            if kinds
        },
    }


def written(value: Any, place: str = "") -> dict[str, object]:
    """Return the settings of a policy or a rule by their dotted keys; what is not done is false."""
    found: dict[str, object] = {}
    for name, hint in field_types(type(value)).items():
        inner, key = getattr(value, name), f"{place}{name}"
        rules = [kind for kind in types_in(hint) if is_dataclass(kind)]
        if rules and inner is not None and len(rules) > 1:
            found[f"{key}.rule"] = inner.RULE
        if rules and inner is not None:
            found |= written(inner, f"{key}.")
        else:
            found[key] = False if rules else in_json(inner)
    return found


def toml_of(table: Mapping[str, object]) -> str:
    """Return dotted keys and their values as TOML; what has no value is left out."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items() if value is not None)


# What other programs are told.


def told_programs() -> object:
    """Return the keys of what a hook reads, and the names that telemetry writes."""
    names = re.compile(r"\"((?:gen_ai|compaction|holdfast|error)(?:\.[a-z_]+)+)\"")
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    calls = [filled(HookCall), HookCall(name="preCompact", session="text", trigger="manual")]
    payloads = {call.name: keys_of(hook_payload(call)) for call in calls}
    return {"hooks": payloads, "telemetry": sorted({name for text in texts for name in names.findall(text)})}


# What a model reads.


@dataclass(slots=True)
class Life:
    """What a conversation came to: its log, and every text that a model was given."""

    records: list[JsonMessage] = field(default_factory=list[JsonMessage])
    texts: dict[str, str] = field(default_factory=dict[str, str])


async def lived(preset: str, *, window: int | None = None, has_writer: bool = True, behind: bool = False) -> Life:
    """Return what a conversation under a preset comes to; the same every time."""
    life, ticks, store = Life(), itertools.count(BEGIN_MS, 1_000), MemoryStore()
    own = {"name": MODEL, "prefix_formats": ["openai-chat"]} if behind else {}
    writer = ScriptedModel(itertools.repeat(SUMMARY), window=window, **cast("Any", own))
    how = CompactionOptions(automatic=writer, manual=writer) if has_writer else CompactionOptions()
    async with Session.open(
        "life", store=store, policy=preset, model=MODEL, compaction=how, clock=lambda: next(ticks)
    ) as session:
        for number, request in enumerate([one async for one in steps_of(session, life)]):
            life.texts[f"request {number}"] = json.dumps(request, ensure_ascii=False)
        for number, ask in enumerate(writer.prompts):
            life.texts |= {f"ask {number} system": ask.system, f"ask {number} text": ask.text}
        life.records = [dict(stored.record) for stored in await store.read("life")]
    return life


async def steps_of(session: Session, life: Life) -> AsyncIterator[object]:
    """Let a conversation go on, and yield every request that it comes to."""
    for event in (
        PlanChanged(text="1. read 2. mend"),
        TodosChanged(text="[ ] tests"),
        SkillInvoked(name="review", instructions="Read twice."),
    ):
        await session.record_state(event)
    await session.record(generate_session(30))
    await session.pin(1)
    yield (await session.prepare(BUDGET, system=SYSTEM, tools=TOOLS, has_recall=True)).messages
    bill = {"input_tokens": 812, "output_tokens": 40, "cache_read_tokens": 300}
    await session.record([assistant_message("It is mended.")], usage=bill, duration_ms=1_250, agent="coder")
    await session.transfer("reviewer", message="The tests are next.")
    visible = Visibility(pins=True, ledger=True, files=True, turns=1, max_tokens=2_000)
    async with session.delegate("scout", task="Find the tests.", sees=visible, main_sees="answers") as child:
        life.texts["delegate opening"] = child.opening_prompt
        await child.record([tool_call_message("a"), tool_result_message("a", "tests/test_totals.py")])
        yield (await child.prepare(BUDGET, system=SYSTEM)).messages
        # A message of another one's scope is a source, and a file that was never read is none.
        life.texts["delegate answer"] = str(await child.answer(json.dumps(FINDINGS)))
    await session.record([user_message("Never touch src/a.py. Is it tested?")])
    yield (await session.prepare(BUDGET, system=SYSTEM, tools=TOOLS, has_recall=True)).messages
    with contextlib.suppress(ModelAccessError):  # one preset has no other way than a model
        await session.compact(focus="the totals")
    yield (await session.prepare(BUDGET, has_recall=True)).messages
    yield (await session.retry(REFUSAL, status=400)).messages
    for name, arguments in RECALLS.items():
        life.texts[f"recall {name}"] = await session.recall_tool().call(arguments)
    await session.record([assistant_message("Yes."), tool_call_message("b")])
    await session.interrupt()
    await session.record([user_message("Go on with the next part. " * 300)])
    yield (await session.prepare(BUDGET, has_recall=True)).messages


RECALLS: Mapping[str, Mapping[str, object]] = {
    "of a position": {"ref": "#1"},
    "of a range": {"ref": "#1-#6", "max_tokens": 300},
    "of words": {"query": "request handler"},
    "of nothing": {"query": "zebra"},
    "of a wrong position": {"ref": "#9999"},
    "of a wrong argument": {"ref": 7},
    "of the newest": {"last": 2},
}


def tool_texts(tools: Iterable[ModelTool]) -> dict[str, str]:
    """Return each tool as a model is told of it."""
    return {one.name: definition(one.name, one.description, one.parameters) for one in tools}


def definition(name: str, description: str | None, parameters: Mapping[str, object]) -> str:
    return json.dumps({"name": name, "description": description, "parameters": in_json(dict(parameters))})


async def tools_of_the_chat(folder: Path) -> dict[str, str]:
    """Return the tools of the chat and of the adapter as a model is told of them."""

    async def ask(_: str) -> Consent:
        return "no"

    plain = FileTools(folder)
    agent = SubAgent(agent=cast("Any", None), description="Reads files.")
    made = [
        *build_toolsets(("read", "run"), plain, ask, ()),
        memory_toolset(MemorySearchTool(DailyMemory(folder))),
        delegation_toolset({"reader": agent, "writer": SubAgent(agent=cast("Any", None))}),
        compacting_toolset(lambda: None),
    ]
    found = [tool.tool_def for one in made for tool in cast("FunctionToolset[Any]", one).tools.values()]
    found += [one.tool_def for one in (await RecallToolset(lambda: None).get_tools(cast("Any", None))).values()]
    texts = {f"chat {one.name}": definition(one.name, one.description, one.parameters_json_schema) for one in found}
    return {
        **texts,
        "answer of list_files, nothing": plain.list_files("."),
        "answer of read_file, missing": plain.read_file("nowhere.py"),
        "answer of read_file, outside": plain.read_file("../outside.py"),
        "answer of search_files, nothing": plain.search_files("zebra"),
        "answer of run_command, refused": await ShellTool(folder, ask, ()).run_command("rm -r ."),
    }


async def memory_texts(folder: Path) -> dict[str, str]:
    """Return what a model is asked when a conversation is over, and what it is offered from memory."""
    store, board = MemoryStore(), ContextBoard(folder / "boards", Repository(Path("/report"), "main"))
    async with Session.open("over", store=store, clock=lambda: BEGIN_MS) as session:
        await store.put_value(board_fact("over"), {"board": board.repository.key})
        await session.record([user_message("Always run the tests."), assistant_message("Yes.")])
    writer = ScriptedModel(itertools.repeat("none"))
    empty = RemAgent(store, board, summarizer=writer, clock=lambda: BEGIN_MS)
    await empty.run(include_active=True)
    await board.add("Tests run with make test", day="2023-11-14")
    await empty.run(include_active=True)
    asks = {f"ask {n} {part}": text for n, one in enumerate(writer.prompts) for part, text in
            (("system", one.system), ("text", one.text))}  # fmt: skip
    day = folder / "memory/2023-11-14.md"
    day.parent.mkdir()
    day.write_text("# 2023-11-14\n\n## A note\nThe red box holds the keys.\n", encoding="utf-8")
    tool = MemorySearchTool(DailyMemory(day.parent))
    return {
        **asks,
        "inbox": await board.offer(day="2023-11-14"),
        **tool_texts([cast("ModelTool", tool)]),
        "answer to words": await tool.call({"query": "red box"}),
        "answer to a day": await tool.call({"day": "2023-11-14"}),
        "answer to nothing": await tool.call({"query": "zebra"}),
        "answer to no question": await tool.call({}),
    }


async def adapter_texts() -> dict[str, str]:
    """Return what a model is asked by the history processors."""
    asked: dict[str, str] = {}

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked["system"] = info.instructions or ""
        asked["text"] = str(cast("UserPromptPart", messages[-1].parts[-1]).content)
        return ModelResponse(parts=[TextPart("They counted.")])

    talk = [ModelRequest(parts=[UserPromptPart("One?")]), ModelResponse(parts=[TextPart("Two.")])]
    await summarize_messages(talk, FunctionModel(answer))
    return asked


def repaired_texts() -> dict[str, str]:
    """Return requests with everything in them that is put in the place of something else."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    broken = [
        assistant_message("So."),
        tool_call_message("a", "b"),
        tool_result_message("a"),
        user_message("What?"),
        tool_result_message("lost"),
        assistant_message("Well."),
    ]
    shown: JsonMessage = {"role": "user", "content": [picture]}
    images = [message for number in range(24) for message in (shown, assistant_message(f"{number}"))]
    long = [system_message("Be brief."), *generate_session(60)[1:]]
    return {
        name: json.dumps(govern(messages, budget=budget, model=MODEL).messages, ensure_ascii=False)
        for name, messages, budget in (("broken", broken, 4_000), ("images", [*images, user_message("?")], 50_000),
                                       ("long", long, 4_000))
    }  # fmt: skip


@cache
def texts() -> dict[str, str]:
    """Return every fixed text that a model reads, by its name; made from inputs that are always the same."""
    folder = Path(tempfile.mkdtemp(dir=Path.cwd()))
    session = asyncio.run(Session.open("tools", store=MemoryStore())._open())
    lives = {name: lived(name) for name in PRESETS}
    lives |= {f"{name} without a writer": lived(name, has_writer=False) for name in PRESETS}
    lives |= {"default in pieces": lived("default", window=3_000), "default behind": lived("default", behind=True)}
    closing = StepLimit(3).get_instructions()(cast("Any", SimpleNamespace(usage=SimpleNamespace(requests=3))))
    groups: dict[str, Mapping[str, str]] = {
        **{f"preset {name}": asyncio.run(life).texts for name, life in lives.items()},
        "tool": tool_texts([session.recall_tool(), session.compact_tool()]),
        "memory": asyncio.run(memory_texts(folder)),
        "chat": {
            **asyncio.run(tools_of_the_chat(folder / "memory")),
            "system": build_system_text(None, Path("/report"), has_tools=False),
            "system with tools": build_system_text(None, Path("/report"), has_tools=True),
            "system of a sub-agent": DELEGATE_SYSTEM_TEXT,
            "end of the steps": str(closing),
            "attachment": attachment_reference("paste-1.txt", "line\n" * 200),
        },
        "history processors": asyncio.run(adapter_texts()),
        "request": repaired_texts(),
    }
    return {f"{group}: {name}": text for group, inner in groups.items() for name, text in inner.items()}


def text_hashes() -> object:
    """Return a hash of every fixed text that a model reads."""
    return {name: sha256(text.encode()).hexdigest() for name, text in texts().items()}


SECTIONS: Mapping[str, Callable[[], object]] = {
    "events": events,
    "records of a session": recorded,
    "exports and stores": exported,
    "settings": settings,
    "environment": environment,
    "commands": commands,
    "slash commands": slash_commands,
    "command output": command_output,
    "chat output": chat_output,
    "lab output": lab_output,
    "benchmark output": benchmark_output,
    "policies": policies,
    "hooks and telemetry": told_programs,
    "texts": text_hashes,
}


# What is held against what.


def leaves(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield each name with its value; an item of a list is a name."""
    if isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            yield from leaves(inner, f"{place} › {key}" if place else key)
    elif isinstance(value, list) and all(isinstance(item, str) for item in cast("list[object]", value)):
        yield from ((f"{place} › {item}", "") for item in cast("list[str]", value))
    else:
        yield place, json.dumps(value, ensure_ascii=False)


def differences(frozen: object, found: object) -> list[str]:
    """Return the names that were lost, added or changed, a line each."""
    before, after = dict(leaves(frozen)), dict(leaves(found))
    lost = [f"lost: {name} {before[name]}".rstrip() for name in before if name not in after]
    added = [f"added: {name} {after[name]}".rstrip() for name in after if name not in before]
    changed = [
        f"changed: {name}: {before[name]} is {after[name]} now"
        for name in before
        if name in after and before[name] != after[name]
    ]
    return [*lost, *added, *changed]


@pytest.fixture
def frozen() -> dict[str, Any]:
    return json.loads(FROZEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("section", SECTIONS)
def test_names_that_outlive_the_program_are_as_they_were(section: str, frozen: Any, tmp_path: Path) -> None:
    with alone(tmp_path):
        found = in_json(SECTIONS[section]())

    wrong = differences(frozen[section], found)
    assert not wrong, "\n".join([f"{section}: if this is meant, run {COMMAND}", *wrong])


def test_an_event_with_all_its_fields_is_read_as_it_was_written() -> None:
    written_down = {kind: in_json(encode_event(event)) for kind, event in every_event().items()}

    assert {kind: decode_event(record) for kind, record in written_down.items()} == every_event()


def test_a_policy_file_with_every_key_of_a_preset_is_that_preset(frozen: Any) -> None:
    presets = frozen["policies"]["presets"]

    read = {name: read_policy(f'base = "{name}"\n{toml_of(table)}') for name, table in presets.items()}

    assert read == PRESETS


def test_a_policy_file_may_name_every_rule_with_every_key(frozen: Any) -> None:
    rules = {(slot, rule): table for slot, of in frozen["policies"]["rules"].items() for rule, table in of.items()}

    named = {(slot, rule): table if rule == ONLY else {"rule": rule, **table} for (slot, rule), table in rules.items()}
    read = {(slot, rule): read_policy(f"[{slot}]\n{toml_of(table)}") for (slot, rule), table in named.items()}

    assert {name: written(getattr(policy, name[0])) for name, policy in read.items()} == rules


def test_every_key_inside_of_a_table_of_settings_is_known(tmp_path: Path) -> None:
    path = tmp_path / ".config/holdfast/holdfast.toml"
    path.parent.mkdir(parents=True)

    with alone(tmp_path):
        path.write_text(EVERY_TABLE, encoding="utf-8")
        loaded = load_settings()
        path.write_text(EVERY_TABLE.replace("input_price", "input_prize"), encoding="utf-8")
        with pytest.raises(SettingsError, match="input_prize"):
            load_settings()

    tables = {name: output for name in ("models", "mcp", "agents", "hooks") if (output := loaded.render_value(name))}
    assert tables == {
        "models": "some-model",
        "mcp": "program, address",
        "agents": "reader",
        "hooks": "before: notify --quiet; after: notify",
    }


def test_a_difference_is_told_by_its_name() -> None:
    before = {"kinds": {"a": ["one", "two"]}, "default": "on"}
    after = {"kinds": {"a": ["one", "three"]}, "default": "off"}

    assert differences(before, after) == [
        "lost: kinds › a › two",
        "added: kinds › a › three",
        'changed: default: "on" is "off" now',
    ]


def main() -> None:
    """Write what is there now."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--texts", type=Path, metavar="FILE", help="write the texts behind the hashes too")
    place: Path | None = parser.parse_args().texts
    target = place.absolute() if place else None
    found: dict[str, object] = {}
    for name, collect in SECTIONS.items():
        with tempfile.TemporaryDirectory() as folder, alone(Path(folder)):
            found[name] = collect()
            if target and collect is text_hashes:
                target.write_text(json.dumps(texts(), indent=1, ensure_ascii=False), encoding="utf-8")
    FROZEN.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
