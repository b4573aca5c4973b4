"""Import the sessions that real clients wrote, and hold them against what the clients did.

    python -m benchmarks.clients.imports [--only claude-code,codex] [--folder FOLDER]

Each client talks to an upstream double directly, without a gateway and without a key: a turn, a tool call, resumed
turns, a sub-agent, its own compaction and a fork, where it has them. Before the last turn and after it, its sessions
are imported from its home folder into one store. The last line is a JSON object with the figures of each client.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from benchmarks.clients.__main__ import Step, install, place_of, run_step, serve_app, steps_of
from benchmarks.clients.programs import PROGRAMS, Program
from benchmarks.clients.upstream import Received, UpstreamDouble
from benchmarks.reporting import print_progress
from holdfast.core.history import events as log
from holdfast.importers.importing import SessionImport, import_found
from holdfast.importers.programs import SOURCE_PROGRAMS, find_sessions
from holdfast.importers.source import ReadReport, SourceProgram
from holdfast.session.log.event_log import now_ms
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.open import open_store
from holdfast.wire.formats import format_named

IMPORTED = {
    "claude-code": "claude-code",
    "codex": "codex",
    "copilot": "copilot",
    "copilot-anthropic": "copilot",
    "gemini-cli": "gemini",
    "opencode": "opencode",
    "pi": "pi",
}
"""By the name of a client, the program whose sessions it writes."""
WITHOUT_AGENTS = frozenset({"pi"})
"""Programs that start no sub-agents."""
SETTLED_LATER_MS = 120_000
"""The imports behave as if this time had passed, so that no answer waits for the next one."""


@dataclass(slots=True)
class ImportFigures:
    """What was found for one client."""

    sessions: int = 0
    messages: int = 0
    agents: int = 0
    compactions: int = 0
    compactions_made: int = 0
    """How often the upstream was asked for a summary."""
    prompts_missing: list[str] = field(default_factory=list[str])
    answers_missing: list[str] = field(default_factory=list[str])
    out_of_order: int = 0
    unpaired_calls: int = 0
    added_again: int = 0
    """Messages that an import added although nothing was new."""
    rewound: int = 0
    unknown: Counter[str] = field(default_factory=Counter[str])
    damaged: Counter[str] = field(default_factory=Counter[str])
    not_recalled: list[str] = field(default_factory=list[str])
    failed_runs: list[str] = field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        """Whether everything was imported, once."""
        return self.sessions > 0 and not any(
            (
                self.prompts_missing,
                self.answers_missing,
                self.out_of_order,
                self.unpaired_calls,
                self.added_again,
                self.rewound,
                self.unknown,
                self.damaged,
                self.not_recalled,
            )
        )


async def import_homes(store: Store, program: SourceProgram, homes: Sequence[Path]) -> list[SessionImport]:
    """Import the sessions of a program from home folders."""
    folders = [folder for home in homes for folder in program.folders({}, home) if folder.exists()]
    found = [one for folder in folders for one in find_sessions(program, folder, ReadReport())]
    return [await import_found(store, program, one, now_ms=now_ms() + SETTLED_LATER_MS) for one in found]


async def figures_of(
    store: Store, done: Sequence[SessionImport], steps: Sequence[Step], received: Sequence[Received]
) -> ImportFigures:
    """Return what the store holds, compared with what the client said and was answered."""
    figures = ImportFigures(sessions=len(done))
    texts_of = {one.session: await _read(store, one.session, figures) for one in done}
    for one in done:
        figures.messages += one.messages
        figures.agents += one.agents
        figures.compactions += one.compactions
        figures.unknown.update(one.report.unknown)
        figures.damaged.update(one.report.damaged)
    figures.compactions_made = sum(one.kind == "summary" for one in received)
    everything = [text for texts in texts_of.values() for text in texts]
    prompts = [step.prompt.split(" ")[0] for step in steps if step.prompt and step.exit_code == 0]
    figures.prompts_missing = [one for one in prompts if not any(one in text for text in everything)]
    # A request without tools is a call beside the conversation, such as for a summary.
    answers = [one.answer for one in received if one.kind == "answer" and json.loads(one.body).get("tools")]
    figures.answers_missing = [one for one in answers if not any(one in text for text in everything)]
    for texts in texts_of.values():
        places = [next((at for at, text in enumerate(texts) if one in text), None) for one in answers]
        known = [place for place in places if place is not None]
        figures.out_of_order += sum(a > b for a, b in pairwise(known))
    for prompt in dict.fromkeys(prompts):
        holders = [session for session, texts in texts_of.items() if any(f"{prompt} " in text for text in texts)]
        if prompt != "Hello" and not any([await _is_recalled(store, session, prompt) for session in holders]):
            figures.not_recalled.append(prompt)
    figures.failed_runs = [f"{step.prompt or 'compact'}: {step.exit_code}" for step in steps if step.exit_code]
    return figures


async def _read(store: Store, session: str, figures: ImportFigures) -> list[str]:
    """Return the texts of a session's messages, and count the calls that have no result, or several."""
    texts: list[str] = []
    async with Session.open(session, store=store) as opened:
        calls, results = Counter[str](), Counter[str]()
        for event in await opened.events():
            figures.rewound += isinstance(event, log.Rewound)
            if isinstance(event, log.MessageAppended):
                message = format_named(event.format).decode(event.native, 0)
                calls.update(f"{event.scope} {call.id}" for call in message.calls)
                results.update(f"{event.scope} {result.call_id}" for result in message.results)
                texts.append(message.text + " ".join(result.text for result in message.results))
        figures.unpaired_calls += sum(((calls - results) + (results - calls)).values())
    return texts


async def _is_recalled(store: Store, session: str, prompt: str) -> bool:
    async with Session.open(session, store=store) as opened:
        return prompt in str(await opened.recall(prompt))


async def check_client(program: Program, url: str, double: UpstreamDouble, work: Path, place: Path) -> ImportFigures:
    """Run a client, import what it wrote, and return the figures."""
    steps, before = steps_of(replace(program, has_agents=program.name not in WITHOUT_AGENTS)), len(double.received)
    source = SOURCE_PROGRAMS[IMPORTED[program.name]]
    homes = [work / "home-alpha", work / "home-beta"]
    store = open_store(f"sqlite:///{work}/imported.db")
    for step in steps[:-1]:
        await run_step(program, step, url=url, work=work, place=place)
    first = await import_homes(store, source, homes)
    again = await import_homes(store, source, homes)
    await run_step(program, steps[-1], url=url, work=work, place=place)
    grown = await import_homes(store, source, homes)
    figures = await figures_of(store, grown, steps, double.received[before:])
    figures.added_again = sum(one.new_messages for one in again)
    new = sum(one.new_messages for one in grown)
    if new + sum(one.new_messages for one in first) != figures.messages:
        figures.added_again += 1
    await store.close()
    return figures


async def main(options: argparse.Namespace) -> int:
    """Run the clients and print their figures."""
    wanted = set(options.only.split(",")) if options.only else set(IMPORTED)
    work = Path(tempfile.mkdtemp(prefix="holdfast-imports-"))
    results: dict[str, ImportFigures] = {}
    missing: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        double = UpstreamDouble("a.txt")
        url = await serve_app(stack, double.app())
        for program in (one for one in PROGRAMS if one.name in IMPORTED and one.name in wanted):
            if problem := await install(program, options.folder.absolute()):
                missing[program.name] = problem
                print_progress(f"{program.name}: {problem}")
                continue
            place = place_of(program, options.folder.absolute())
            found = results[program.name] = await check_client(program, url, double, work / program.name, place)
            state = "as it happened" if found.is_clean else "WRONG"
            print(f"{program.name}: {state}: {json.dumps(asdict(found))}", flush=True)
    if options.keep:
        print_progress(f"kept in {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    is_clean = bool(results) and all(one.is_clean for one in results.values())
    shown = {name: asdict(one) for name, one in results.items()}
    print(json.dumps({"clients": shown, "missing": missing, "clean": is_clean}))
    return int(not is_clean)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="names of clients, with commas between them")
    installed = Path(os.environ.get("HOLDFAST_CLIENTS") or Path.home() / ".cache/holdfast-clients")
    parser.add_argument("--folder", type=Path, default=installed, help="where the clients are installed")
    parser.add_argument("--keep", action="store_true", help="keep the store and the homes of the clients")
    raise SystemExit(asyncio.run(main(parser.parse_args())))
