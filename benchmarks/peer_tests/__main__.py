"""Runs the public tests of other libraries through our adapters and our gateway, and writes what they say.

    python -m benchmarks.peer_tests [SUITE …]

The tests are in the source distributions of the libraries, at the versions of constraints.txt, which are downloaded
once into `.peers/tests`. Each suite runs twice: as it stands, and with Holdfast in the place that its plugin names. A
test that fails only with Holdfast does not apply if `DOES_NOT_APPLY` says why; else the failure is ours. The table goes
to benchmarks/PEER_TESTS.md. The exit status is 1 if a failure is ours.
"""

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.clients.__main__ import serve_app, start_gateway
from benchmarks.clients.upstream import UpstreamDouble
from benchmarks.tables import markdown_table

ROOT = Path(__file__).parent.parent.parent
CACHE, RESULTS = ROOT / ".peers" / "tests", ROOT / "benchmarks" / "PEER_TESTS.md"
TOOLS = (
    "asttokens==3.0.2", "executing==2.3.0", "inline-snapshot==0.36.1", "pytest-mock==3.17.0", "syrupy==6.1.1",
)  # fmt: skip
"""What the tests import besides what our own tests do."""
SECONDS = 540
MODEL_CALLS = (
    *("--noconftest", "-k", "create or count_tokens"),
    *("-o", "asyncio_default_fixture_loop_scope=session", "-o", "asyncio_default_test_loop_scope=session"),
)
"""The tests of model calls; what else providers serve, such as files, the gateway passes on unread."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests of one library."""

    distribution: str
    shows: str
    """What passing them shows."""
    paths: Sequence[str]
    plugin: str
    """What puts Holdfast in its place; through the gateway, what makes clients."""
    options: Sequence[str] = ()
    is_served: bool = False
    """Whether the tests send requests: to a double of the provider, and to the gateway in front of it."""
    base_path: str = ""
    """What clients add to the address."""


SUITES: Mapping[str, Suite] = {
    "openai-agents": Suite(
        distribution="openai-agents",
        shows="`HoldfastSession` is a session as the SDK expects it",
        paths=(
            "tests/memory/test_session.py",
            "tests/memory/test_session_limit.py",
            "tests/memory/test_session_persistence_sanitize.py",
            "tests/memory/test_session_context_wrapper.py",
            "tests/test_max_turns.py",
            "tests/test_native_tool_failure_history.py",
            "tests/test_soft_cancel.py",
            "tests/test_tool_batch_failure_history.py",
            "tests/test_tool_failure_boundaries.py",
        ),
        plugin="benchmarks.peer_tests.openai_agents_plugin",
    ),
    "langchain": Suite(
        distribution="langchain",
        shows="agents and other middleware work as before with `HoldfastMiddleware`",
        paths=("tests/unit_tests/agents",),
        plugin="benchmarks.peer_tests.langchain_plugin",
        options=(
            "--noconftest",
            *("-p", "tests.unit_tests.agents.conftest", "-p", "syrupy", "-p", "pytest_mock"),
            # Starts shells; recorded HTTP; the type checker's own tests.
            "--ignore=tests/unit_tests/agents/middleware/implementations/test_shell_tool.py",
            "--ignore=tests/unit_tests/agents/test_response_format_integration.py",
            "--ignore=tests/unit_tests/agents/middleware_typing",
        ),
    ),
    "openai": Suite(
        distribution="openai",
        shows="the gateway is a server of OpenAI's API",
        paths=("tests/api_resources/chat/test_completions.py", "tests/api_resources/test_responses.py"),
        plugin="benchmarks.peer_tests.clients_plugin",
        options=MODEL_CALLS,
        is_served=True,
        base_path="/v1",
    ),
    "anthropic": Suite(
        distribution="anthropic",
        shows="the gateway is a server of Anthropic's API",
        paths=("tests/api_resources/test_messages.py", "tests/api_resources/beta/test_messages.py"),
        plugin="benchmarks.peer_tests.clients_plugin",
        options=MODEL_CALLS,
        is_served=True,
    ),
}

SQLITE = "reads or breaks the connections and tables of the SDK's own SQLite session"
DRAWN = "compares a drawing of the graph, in which a middleware that wraps tool calls is drawn"
LIKE_ANY = "one that does nothing fails this test too"
DOES_NOT_APPLY: Mapping[str, Mapping[str, str]] = {
    "openai-agents": {
        r"test_sqlite_session_(failed|rollback|close_|post_commit|reaps|closes_retired|keeps_connections)": SQLITE,
        r"test_sqlite_session_(pop_item_skips|pop_item_returns_none_after|get_items_(limit|session_settings))": SQLITE,
        r"test_sqlite_session_file_lock_is_shared": SQLITE,
        r"test_sqlite_session_closed_rejects": "a session of Holdfast that was closed opens again when it is used",
    },
    "langchain": {
        r"test_async_middleware_with_can_jump_to_graph_snapshot|test_create_agent_diagram": DRAWN,
        r"test_dynamic_tool_without_handler_raises_error|test_unknown_tool_raises_error": (
            f"LangChain refuses tools that it does not know only where no middleware wraps tool calls; {LIKE_ANY}"
        ),
        r"test_jump_to_is_ephemeral": (
            f"the state keeps `jump_to` for a step where a middleware wraps tool calls; {LIKE_ANY}"
        ),
        r"test_create_agent_patches_only_invalid_tool_calls_with_ids": (
            "a call without an id gets one, and a result: providers reject a request that has neither"
        ),
    },
}
"""By suite and test, why a test that fails only with Holdfast does not apply."""


def version_of(distribution: str) -> str:
    """Return the version in constraints.txt."""
    found = re.search(rf"(?m)^{re.escape(distribution)}==(\S+)$", (ROOT / "constraints.txt").read_text())
    if found is None:
        raise SystemExit(f"{distribution} is not in constraints.txt")
    return found[1]


def pip(*arguments: str) -> None:
    """Run pip; what it prints is shown if it fails."""
    done = subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip {arguments[0]} failed:\n{done.stderr[-2_000:]}")


def folder_of(suite: Suite) -> Path:
    """Return the folder with a library's sources; download them if necessary."""
    version = version_of(suite.distribution)
    folder = CACHE / f"{suite.distribution.replace('-', '_')}-{version}"
    if not folder.is_dir():
        print(f"downloading the sources of {suite.distribution} {version}", file=sys.stderr)
        requirement = f"{suite.distribution}=={version}"
        pip("download", "--no-deps", "--no-binary", suite.distribution, "-d", str(CACHE), requirement)
        with tarfile.open(folder.with_name(f"{folder.name}.tar.gz")) as archive:
            archive.extractall(CACHE, filter="data")
    return folder


def results_of(suite: Suite, folder: Path, plugins: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Run the tests, and return by test how each ended: passed, skipped, or what went wrong."""
    report = CACHE / f"{suite.distribution}.xml"
    report.unlink(missing_ok=True)
    named = [option for plugin in plugins for option in ("-p", plugin)]
    command = [
        *(
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--continue-on-collection-errors",
            *suite.options,
            *named,
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
        ),
        *("-o", "addopts=", "-o", "asyncio_mode=auto", f"--junitxml={report}", *suite.paths),
    ]
    paths = os.pathsep.join([str(ROOT), str(CACHE / "site")])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths, **environment}, timeout=SECONDS,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not report.exists():
        raise SystemExit(f"{suite.distribution}: pytest ended with {done.returncode}\n{done.stdout[-3_000:]}")
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest on this machine has written it
        outcome = next((one for one in case if one.tag in {"failure", "error", "skipped"}), None)
        ended = (
            "passed" if outcome is None else "skipped" if outcome.tag == "skipped" else outcome.get("message") or "?"
        )
        found[f"{case.get('classname')}::{case.get('name')}"] = ended
    return found


async def both_results(suite: Suite, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return how the tests end as they stand, and with Holdfast."""
    if not suite.is_served:
        bare = await asyncio.to_thread(results_of, suite, folder, [], {})
        return bare, await asyncio.to_thread(results_of, suite, folder, [suite.plugin], {})
    found: list[dict[str, str]] = []
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # tests close streams before their ends
    async with AsyncExitStack() as stack:
        upstream = await serve_app(stack, UpstreamDouble("a.txt").app())
        command = f"{Path(sys.executable).parent / 'holdfast'} gateway"
        gateway = await start_gateway(stack, command, "memory://", upstream)
        for address in (upstream, gateway):
            environment = {"TEST_API_BASE_URL": f"{address}{suite.base_path}", "TEST_SDK": suite.distribution}
            found.append(await asyncio.to_thread(results_of, suite, folder, [suite.plugin], environment))
    return found[0], found[1]


def is_failure(ended: str) -> bool:
    return ended not in {"passed", "skipped"}


def reason_for(name: str, test: str) -> str | None:
    """Return why a test does not apply, if it does not."""
    rules, function = DOES_NOT_APPLY.get(name, {}), test.rpartition("::")[2]
    return next((reason for pattern, reason in rules.items() if re.search(pattern, function)), None)


def compare(name: str) -> int:
    """Run a suite, keep its row of the table and its notes, and return how many failures are ours."""
    suite = SUITES[name]
    bare, governed = asyncio.run(both_results(suite, folder_of(suite)))
    failed = {test: ended for test, ended in governed.items() if is_failure(ended)}
    before = [test for test in failed if is_failure(bare.get(test, "passed"))]
    reasons = {test: reason for test in failed if test not in before and (reason := reason_for(name, test))}
    ours = [test for test in failed if test not in before and test not in reasons]
    passed, skipped = (sum(ended == kind for ended in governed.values()) for kind in ("passed", "skipped"))
    counts = (passed, skipped, len(before), len(reasons), len(ours))
    notes: list[str] = []
    for reason in dict.fromkeys(reasons.values()):
        tests = sorted({test.rpartition("::")[2].partition("[")[0] for test, one in reasons.items() if one == reason})
        notes.append(f"- {name}: {reason}: {', '.join(f'`{test}`' for test in tests)}.")
    notes += [f"- {name}, **ours**: `{test}`: {' '.join(failed[test].split())[:200]}" for test in ours]
    row = [f"{name} {version_of(suite.distribution)}", suite.shows, *map(str, counts)]
    (CACHE / f"{name}.json").write_text(json.dumps({"row": row, "notes": notes}))
    return len(ours)


def page() -> str:
    """Return the newest results of each suite."""
    files = [path for name in SUITES if (path := CACHE / f"{name}.json").exists()]
    found = [json.loads(path.read_text()) for path in files]
    header = ["tests of", "what they show", "pass", "skipped", "fail without Holdfast too", "do not apply", "fail"]
    notes = "\n".join(note for one in found for note in one["notes"])
    return f"""# Tests of other libraries, run through Holdfast

`make peer-tests` takes the public tests out of the source distributions and writes this page. Each suite runs twice: as
it stands, and with Holdfast in its place. For the two SDKs that means: straight to a double of the provider, and to the
gateway in front of it; what the double does not answer as the provider does fails both ways.

{markdown_table(header, [one["row"] for one in found])}

Why tests do not apply, and which fail:

{notes or "- none"}
"""


def main(names: Sequence[str]) -> int:
    CACHE.mkdir(parents=True, exist_ok=True)
    if not (CACHE / "site").is_dir():
        pip("install", "--no-deps", "--target", str(CACHE / "site"), *TOOLS)
    if unknown := [name for name in names if name not in SUITES]:
        raise SystemExit(f"unknown suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    ours = sum(compare(name) for name in names or SUITES)
    RESULTS.write_text(page())
    print(page())
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
