"""What a gateway does before it serves, so that its first clients wait no longer than later ones."""

import json
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace

from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.planning.policy import PRESETS
from holdfast.stores.memory import MemoryStore

FIRST_CLIENTS = """
import asyncio, json
from holdfast import text
from holdfast.apps.gateway.recording.exchange import ClientRequest
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.stores.memory import MemoryStore

compiled = []
compile_pattern = text.compile_pattern
def noted(source, flags=0):
    compiled.append(source)
    return compile_pattern(source, flags)
text.compile_pattern = noted

async def main():
    recorder, before = Recorder(MemoryStore(), budget=1_000), []
    await recorder.warm_up()
    rehearsed, compacted = len(compiled), []
    del compiled[:]
    said = []
    for number in range(8):
        said.append({"role": "user", "content": f"{number}: " + "the birds of the harbor " * 30})
        body = json.dumps({"model": "gpt-5", "messages": said}).encode()
        headers = {"x-session-id": "one"}
        request = ClientRequest("openai-chat", "/v1/chat/completions", None, headers, body, "", "openai=http://a/v1")
        exchange = await recorder.receive(request)
        compacted.append(exchange.is_compacted)
        said.append({"role": "assistant", "content": f"Answer {number}."})
        exchange.feed(json.dumps({"choices": [{"index": 0, "message": said[-1], "finish_reason": "stop"}]}).encode())
        await exchange.finish("complete", 200)
    await recorder.close()
    print(json.dumps({"rehearsed": rehearsed, "compacted": compacted, "compiled": compiled}))

asyncio.run(main())
"""


def test_a_gateway_has_compiled_every_pattern_that_its_first_clients_need() -> None:
    command = [sys.executable, "-c", FIRST_CLIENTS]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)

    assert found["rehearsed"] > 10
    assert found["compacted"][0] is False
    assert found["compacted"][-1] is True
    assert found["compiled"] == []


SERVING = """
import asyncio, os, time
from contextlib import suppress
from pathlib import Path
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.stores.memory import MemoryStore

def priorities():
    for path in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            yield os.getpriority(os.PRIO_PROCESS, int(path.name))

async def main():
    await Recorder(MemoryStore()).warm_up()
    own, end = os.getpriority(os.PRIO_PROCESS, os.getpid()), time.monotonic() + 60
    # A thread that has done its work at a low priority may take some time to end.
    while {*priorities()} != {own} and time.monotonic() < end:
        pass
    print(len([*priorities()]), {*priorities()} == {own})

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives threads priorities of their own")
def test_no_thread_of_a_gateway_that_serves_has_a_low_priority() -> None:
    done = subprocess.run([sys.executable, "-c", SERVING], check=True, capture_output=True, text=True, timeout=120)
    count, are_as_the_program = done.stdout.split()

    assert int(count) > 1
    assert are_as_the_program == "True"


@pytest.mark.parametrize("policy", sorted(PRESETS))
async def test_a_rehearsal_reports_no_compaction_and_leaves_no_session(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporters: list[object] = []

    def get_tracer(*names: object) -> None:
        reporters.append(names)

    monkeypatch.setattr(trace, "get_tracer", get_tracer)
    store = MemoryStore()
    recorder = Recorder(store, policy=policy)

    await recorder.warm_up()

    assert (reporters, await store.sessions()) == ([], [])
    await recorder.close()
