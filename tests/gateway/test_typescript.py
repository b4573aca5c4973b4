"""The example in TypeScript, compiled by TypeScript's own compiler and run by Node against a real gateway.

`make typescript` installs the compiler and sets `HOLDFAST_TYPESCRIPT`, the folder that has it.
"""

import asyncio
import json
import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from holdfast.apps.gateway.access import Access
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import ask, running_gateway

COMPILER = os.environ.get("HOLDFAST_TYPESCRIPT", "")
EXAMPLE = Path(__file__).parents[2] / "examples" / "control_api.ts"
OPTIONS = [
    "--strict",
    "--target",
    "es2022",
    "--module",
    "nodenext",
    "--types",
    "node",
    "--rewriteRelativeImportExtensions",
]
TOKEN, BUDGET = "t0ken", 3_000
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Noted."}, "finish_reason": "stop"}]}

pytestmark = pytest.mark.skipif(not COMPILER or not shutil.which("node"), reason="run it with: make typescript")


async def compiled(folder: Path) -> Path:
    """Return the example as a module for Node; the compiler accepts it in strict mode."""
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "node_modules").symlink_to(Path(COMPILER).absolute() / "node_modules")
    shutil.copy(EXAMPLE, folder / "control_api.ts")
    compiler = folder / "node_modules" / ".bin" / "tsc"
    process = await asyncio.create_subprocess_exec(
        compiler, *OPTIONS, "control_api.ts", cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return folder / "control_api.js"


async def test_the_example_watches_a_conversation_and_approves_its_compaction(tmp_path: Path) -> None:
    program = await compiled(tmp_path)
    answer = FaultyAnswer(pieces=[json.dumps(ANSWER).encode()])
    messages: list[dict[str, str]] = []

    async def say(url: str, text: str) -> None:
        messages.append({"role": "user", "content": text})
        body = json.dumps({"model": "gpt-5", "messages": messages}).encode()
        await ask(url, body=body, x_holdfast_session="talk")
        messages.append({"role": "assistant", "content": "Noted."})

    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FaultyUpstream(answer))
        gateway = running_gateway(upstream.url, access=Access(control_token=TOKEN), budget=BUDGET)
        url = await stack.enter_async_context(gateway)
        await say(url, "hello")
        environment = {**os.environ, "HOLDFAST_GATEWAY": url, "HOLDFAST_CONTROL_TOKEN": TOKEN}
        node = await asyncio.create_subprocess_exec(
            "node",
            program,
            "talk",
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert node.stdout is not None
        lines: list[str] = []
        try:
            async with asyncio.timeout(60):
                while "request.prepared" not in "".join(lines):
                    lines.append((await node.stdout.readline()).decode())
                for number in range(12):
                    await say(url, f"question {number}: " + "a word of the report and " * 40)
                while "session.compaction_complete" not in "".join(lines):
                    lines.append((await node.stdout.readline()).decode())
                    assert lines[-1], lines
        finally:
            node.kill()
            await node.wait()
        sessions = await ask(url, "GET", "/holdfast/v1/sessions/talk", authorization=f"Bearer {TOKEN}")

    assert lines[0] == "talk  2 messages  hello\n"
    assert any("tokens would be" in line for line in lines)
    assert json.loads(sessions.body)["compactions"] == 1
