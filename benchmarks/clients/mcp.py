"""Let the real Codex recall an imported session of its own through `holdfast mcp`.

    python -m benchmarks.clients.mcp [--folder FOLDER]

Codex says a sentence to an upstream double, the session is imported, and a second Codex calls `recall` of the server.
The check holds if the next request carries the sentence in the result of that call.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web

from benchmarks.clients.__main__ import Step, install, place_of, run_step, serve_app
from benchmarks.clients.imports import import_homes
from benchmarks.clients.programs import PROGRAMS
from benchmarks.clients.upstream import UpstreamDouble
from holdfast.importers.programs import SOURCE_PROGRAMS
from holdfast.stores.open import open_store
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events

SENTENCE, USE_RECALL, SERVER = "My boat is called Kittiwake", "use-recall", "holdfast"


class RecallingDouble(UpstreamDouble):
    """An upstream double whose model calls `recall` of the MCP server when it is told to."""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        body = await request.read()
        if USE_RECALL.encode() not in body or b"function_call_output" in body:
            return await super().serve(request)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        reply = ProviderReply(tool="recall", arguments={"conversation": "codex-", "query": "boat"})
        for name, event in stream_events("openai-responses", reply, 1):
            # Codex has the tools of a server in a namespace of their own.
            named = json.dumps(event).replace('"name": "recall"', f'"name": "recall", "namespace": "mcp__{SERVER}"')
            await response.write(event_bytes(name, json.loads(named)))
        return response


async def main(options: argparse.Namespace) -> int:
    """Run Codex twice, and return 0 if it recalled what it said."""
    codex = next(program for program in PROGRAMS if program.name == "codex")
    folder: Path = options.folder.absolute()
    if problem := await install(codex, folder):
        print(f"codex: {problem}")
        return 1
    async with AsyncExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-mcp-")))
        double = RecallingDouble("a.txt")
        url = await serve_app(stack, double.app())
        place, store_url = place_of(codex, folder), f"sqlite:///{work}/store.db"
        await run_step(codex, Step("alpha", SENTENCE, codex.first(SENTENCE)), url=url, work=work, place=place)
        store = open_store(store_url)
        await import_homes(store, SOURCE_PROGRAMS["codex"], [work / "home-alpha"])
        await store.close()
        program = Path(sys.executable).parent / "holdfast"
        # Without `required` the first turn does not wait until the server has started.
        server = f'{{command="{program}",args=["mcp","--store","{store_url}"],required=true,startup_timeout_sec=60}}'
        arguments = ["exec", "-s", "read-only", "@codex", "-c", f"mcp_servers.{SERVER}={server}", USE_RECALL]
        await run_step(codex, Step("alpha", USE_RECALL, arguments), url=url, work=work, place=place)
        items = json.loads(double.received[-1].body)["input"]
    found = [json.dumps(item) for item in items if item.get("type") == "function_call_output"]
    is_recalled = any(SENTENCE in text for text in found)
    print(f"codex: {'recalled what it had said' if is_recalled else f'WRONG: {found}'}")
    return int(not is_recalled)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    installed = Path(os.environ.get("HOLDFAST_CLIENTS") or Path.home() / ".cache/holdfast-clients")
    parser.add_argument("--folder", type=Path, default=installed, help="where the clients are installed")
    raise SystemExit(asyncio.run(main(parser.parse_args())))
