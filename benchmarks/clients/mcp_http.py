"""Let the real Claude Code and the real Codex recall over streamable HTTP what they have said through a gateway.

    python -m benchmarks.clients.mcp_http [--only codex] [--folder FOLDER]

Each says a sentence through a gateway. In another conversation the upstream double calls `recall` of the MCP server at
the gateway's port, first without a token: then the client must not get the tools. The check holds if the next request
carries the sentence in the result of the call.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from benchmarks.clients.__main__ import Step, install, place_of, run_step, serve_app
from benchmarks.clients.programs import PROGRAMS, Program
from benchmarks.clients.rounds import TOKEN, GatewayProcess
from benchmarks.clients.upstream import UpstreamDouble
from holdfast.stores.base import iter_sessions
from holdfast.stores.open import open_store
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events
from holdfast.wire.answers import Wire

SENTENCE, USE_RECALL, SERVER = "My boat is called Kittiwake", "use-recall", "holdfast"
WIRES: Mapping[str, Wire] = {"claude-code": "anthropic", "codex": "openai-responses"}


class RecallingDouble(UpstreamDouble):
    """An upstream double whose model calls `recall` of the MCP server when it is told to."""

    conversation = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        body = await request.read()
        is_answered = b"function_call_output" in body or b'"tool_result"' in body
        if USE_RECALL.encode() not in body or is_answered or request.path.endswith("count_tokens"):
            return await super().serve(request)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        wire: Wire = "anthropic" if request.path.endswith("/messages") else "openai-responses"
        arguments = {"conversation": self.conversation, "query": "boat"}
        name = f"mcp__{SERVER}__recall" if wire == "anthropic" else "recall"
        for kind, event in stream_events(wire, ProviderReply(tool=name, arguments=arguments), 1):
            # Codex has the tools of a server in a namespace of their own.
            named = json.dumps(event).replace('"name": "recall"', f'"name": "recall", "namespace": "mcp__{SERVER}"')
            await response.write(event_bytes(kind, json.loads(named)))
        return response


def recalling_arguments(program: Program, url: str) -> Sequence[str]:
    """Return the arguments of a turn with the MCP server of a gateway."""
    if program.name == "codex":
        server = f'{{url="{url}/mcp",bearer_token_env_var="HOLDFAST_CONTROL_TOKEN",required=true}}'
        return ["exec", "-s", "read-only", "@codex", "-c", f"mcp_servers.{SERVER}={server}", USE_RECALL]
    headers = {"Authorization": "Bearer ${HOLDFAST_CONTROL_TOKEN}"}
    servers = {"mcpServers": {SERVER: {"type": "http", "url": f"{url}/mcp", "headers": headers}}}
    allowed = ["--strict-mcp-config", "--allowedTools", f"mcp__{SERVER}__recall"]
    return ["-p", USE_RECALL, "--mcp-config", json.dumps(servers), *allowed]


async def recalls(program: Program, place: Path, token: str) -> str:
    """Let a client say something and recall it elsewhere; return what the call returned."""
    async with AsyncExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-mcp-")))
        store_url = f"sqlite:///{work}/store.db"
        double = RecallingDouble("a.txt")
        upstream = await serve_app(stack, double.app())
        gateway = GatewayProcess(f"{Path(sys.executable).parent / 'holdfast'} gateway", store_url, upstream)
        await gateway.start()
        stack.push_async_callback(gateway.end)
        environment = {**program.environment(gateway.url), "HOLDFAST_CONTROL_TOKEN": token}

        def own_environment(_url: str) -> Mapping[str, str]:
            return environment

        program = replace(program, environment=own_environment)
        await run_step(
            program, Step("alpha", SENTENCE, program.first(SENTENCE)), url=gateway.url, work=work, place=place
        )
        store = open_store(store_url)
        double.conversation = next(iter([info.id async for info in iter_sessions(store)]))
        await store.close()
        step = Step("beta", USE_RECALL, recalling_arguments(program, gateway.url))
        await run_step(program, step, url=gateway.url, work=work, place=place)
        requests = [one.body.decode() for one in double.received if USE_RECALL in one.body.decode()]
    return requests[-1] if requests else ""


async def main(options: argparse.Namespace) -> int:
    """Run both clients, and return 0 if each recalled what it said, with the token only."""
    chosen = options.only.split(",") if options.only else list(WIRES)
    wrong = 0
    for program in (one for one in PROGRAMS if one.name in chosen):
        folder: Path = options.folder.absolute()
        if problem := await install(program, folder):
            print(f"{program.name}: {problem}")
            wrong += 1
            continue
        found = await recalls(program, place_of(program, folder), TOKEN)
        refused = await recalls(program, place_of(program, folder), "another")
        is_right = SENTENCE in found and SENTENCE not in refused
        print(f"{program.name}: {'recalled what it had said, with the token only' if is_right else 'WRONG'}")
        if not is_right:
            print(found[-2_000:], refused[-500:], sep="\n---\n", file=sys.stderr)
        wrong += not is_right
    return int(bool(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="claude-code or codex")
    installed = Path(os.environ.get("HOLDFAST_CLIENTS") or Path.home() / ".cache/holdfast-clients")
    parser.add_argument("--folder", type=Path, default=installed, help="where the clients are installed")
    raise SystemExit(asyncio.run(main(parser.parse_args())))
