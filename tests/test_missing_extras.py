"""A part of Holdfast whose packages are not installed says which extra has them."""

import importlib
import subprocess
import sys

import pytest

from holdfast.errors import HoldfastError, MissingExtraError

PARTS = {
    "holdfast.adapters.claude_agent_sdk": (
        "claude_agent_sdk",
        "claude-agent-sdk",
        "the adapter for the Claude Agent SDK",
    ),
    "holdfast.adapters.google_adk": ("google", "google-adk", "the adapter for Google ADK"),
    "holdfast.adapters.langchain": ("langchain", "langchain", "the adapter for LangChain"),
    "holdfast.adapters.openai_agents": ("agents", "openai-agents", "the adapter for the OpenAI Agents SDK"),
    "holdfast.adapters.pydantic_ai": ("pydantic_ai", "pydantic-ai", "the adapter for pydantic-ai"),
    "holdfast.apps.viewer": ("jinja2", "view", "the viewer"),
    "holdfast.apps.mcp": ("mcp", "mcp", "holdfast mcp"),
    "holdfast.gateway": ("starlette", "gateway", "the gateway"),
    "holdfast.stores.postgres_pool": ("psycopg", "postgres", "PostgreSQL"),
}


@pytest.mark.parametrize("module", PARTS)
def test_a_part_whose_packages_are_missing_names_the_extra_that_has_them(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra, part = PARTS[module]
    for name in [*sys.modules]:
        if f"{name}.".startswith((f"{package}.", f"{module}.", "holdfast.apps.gateway.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # what Python takes for a module that cannot be imported

    with pytest.raises(MissingExtraError) as failure:
        importlib.import_module(module)

    problem = failure.value.__cause__
    assert str(failure.value) == (f"{part} needs more packages ({problem}): pip install 'holdfast-context[{extra}]'")
    assert failure.value.extra == extra
    assert isinstance(failure.value, HoldfastError)
    assert isinstance(failure.value, ImportError)


COMMANDS = {
    "chat -p hello": ("pydantic_ai", "holdfast chat needs more packages (No module named 'pydantic_ai')", "chat"),
    "gateway": (
        "starlette",
        "the gateway needs more packages (import of starlette halted; None in sys.modules)",
        "gateway",
    ),
    "mcp": ("mcp", "holdfast mcp needs more packages (import of mcp halted; None in sys.modules)", "mcp"),
    "view": ("uvicorn", "the viewer needs more packages (import of uvicorn halted; None in sys.modules)", "view"),
}
WITHOUT_PACKAGE = """
import sys
sys.modules[sys.argv[1]] = None
del sys.argv[1]
from holdfast.apps.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_packages_are_missing_names_its_extra(command: str) -> None:
    package, problem, extra = COMMANDS[command]

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE, package, *command.split(), "--store", "memory://"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"holdfast: {problem}: pip install 'holdfast-context[{extra}]'\n"
