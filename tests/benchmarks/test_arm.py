"""Our arm of the public cost-per-solved-task harness, held to that harness's interface, without a model or a grader."""

import importlib.util
import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import ROOT
from holdfast.apps.cli.wrap import RUN_HOLDFAST
from holdfast.testing.endpoint import ScriptedEndpoint, http_response
from tests.gateway.serving import ask

ANSWER = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "Done."}],
    "usage": {"input_tokens": 9, "output_tokens": 2},
}
QUESTION = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Solve it."}]}


@dataclass
class RunContext:
    """What the harness hands to `start_run`."""

    upstream_base_url: str
    run_dir: str
    run_id: str


class ProxyArm:
    """What the harness gives an arm: a proxy that Claude Code is pointed at."""

    kind = "proxy"


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    registered: dict[str, Callable[[], Any]] = {}

    def register(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        return partial(registered.setdefault, name)

    harness = types.ModuleType("bench.arm")
    vars(harness).update(ProxyArm=ProxyArm, register=register)
    monkeypatch.setitem(sys.modules, "bench", types.ModuleType("bench"))
    monkeypatch.setitem(sys.modules, "bench.arm", harness)
    program = tmp_path / "holdfast"
    program.write_text(f"#!{sys.executable}\n{RUN_HOLDFAST}\n")
    program.chmod(0o700)
    monkeypatch.setenv("HOLDFAST_BIN", str(program))
    for name in ("HOLDFAST_BASE_URL", "HOLDFAST_BUDGET", "HOLDFAST_POLICY"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("arm_under_test", ROOT / "benchmarks/arms/holdfast.py")
    assert spec
    assert spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return registered["holdfast"]()


async def test_a_task_has_a_gateway_of_its_own_that_ends_with_it(
    arm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_BUDGET", "60000")
    async with ScriptedEndpoint([http_response(200, ANSWER)]) as usage_gateway:
        context = RunContext(usage_gateway.url.removesuffix("/v1"), str(tmp_path / "task"), "task_run_holdfast")

        url = arm.start_run(context)
        seen = await ask(url, "POST", "/v1/messages", json.dumps(QUESTION).encode(), **{"x-ccb-run-id": context.run_id})
        arm.end_run()

    assert (arm.name, arm.kind, arm.model_base_url()) == ("holdfast", "proxy", "")
    assert (seen.status, json.loads(seen.body)["content"], seen.header("x-holdfast-budget")) == (
        200,
        ANSWER["content"],
        "60000",
    )
    assert [(one.headers["x-ccb-run-id"], one.body) for one in usage_gateway.requests] == [(context.run_id, QUESTION)]
    with pytest.raises(ConnectionRefusedError):
        await ask(url, "GET", "/health")
    assert arm.ledger_path() == str(tmp_path / "task/holdfast-ledger.jsonl")
    assert arm.ledger_summary(context.run_id) == {
        "holdfast_version": "",
        "budget": "60000",
        "sessions": 1,
        "messages": 2,
        "compactions": 0,
    }


def test_an_arm_is_ready_when_its_program_answers(arm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert arm.ready() == (True, f"ok ({arm.holdfast_version})")
    assert arm.holdfast_version.startswith("holdfast ")

    monkeypatch.setenv("HOLDFAST_BIN", "no-such-program")
    assert arm.ready() == (
        False,
        "no program 'holdfast' on the path; install holdfast-context[gateway], or set HOLDFAST_BIN",
    )

    monkeypatch.setenv("HOLDFAST_BASE_URL", "http://127.0.0.1:9/")
    assert arm.ready() == (
        False,
        "no holdfast gateway answers at http://127.0.0.1:9; start one: holdfast gateway",
    )


def test_a_gateway_that_does_not_start_says_why(arm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POLICY", "nobody")

    with pytest.raises(RuntimeError, match=r"the gateway did not start: holdfast: .*nobody"):
        arm.start_run(RunContext("http://127.0.0.1:9", str(tmp_path / "task"), "run"))
