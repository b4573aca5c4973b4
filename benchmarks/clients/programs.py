"""The clients, and how each is driven without an account: a turn, a resumed turn, a fork, its own compaction."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Arguments: TypeAlias = Sequence[str]


def _no_files(_: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One client."""

    name: str
    packages: Arguments
    """What npm installs, or pip where `is_python`."""
    command: Arguments
    """The program, below the folder it was installed in."""
    environment: Callable[[str], Mapping[str, str]]
    """By the address of the gateway."""
    first: Callable[[str], Arguments]
    """The arguments of a first turn, by its prompt."""
    resume: Callable[[str], Arguments]
    files: Callable[[str], Mapping[str, str]] = _no_files
    """Settings in the home folder, by the address of the gateway."""
    fork: Callable[[str], Arguments] | None = None
    compact: Arguments | None = None
    """A turn that only compacts."""
    compacting: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment in which the next turn compacts first."""
    compacting_arguments: Arguments = ()
    compacting_words: int = 0
    """How long the prompt is at which the client compacts."""
    compacting_files: Callable[[str], Mapping[str, str]] | None = None
    growing_arguments: Arguments = ()
    """Arguments with which the client does not shorten its list by itself."""
    has_agents: bool = False
    has_tools: bool = True
    is_python: bool = False
    is_rewound_each_turn: bool = False
    """Whether the client puts new messages into the middle of its list, which is a rewind each time."""


def _opencode_config(url: str, context: int) -> str:
    limits = {"limit": {"context": context, "output": 4000}}
    options = {"baseURL": f"{url}/v1", "apiKey": "x"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m": limits, "s": {}}}
    config = {"model": "local/m", "small_model": "local/s", "autoupdate": False, "share": "disabled"}
    return json.dumps(config | {"provider": {"local": provider}})


def _codex(url: str) -> Arguments:
    provider = f'{{name="local",base_url="{url}/v1",env_key="K",wire_api="responses"}}'
    return [
        "--skip-git-repo-check",
        "-m",
        "gpt-5.1-codex",
        "-c",
        "model_provider=local",
        "-c",
        f"model_providers.local={provider}",
    ]


def _gemini_settings(threshold: float) -> str:
    settings: dict[str, object] = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    settings |= {"privacy": {"usageStatisticsEnabled": False}, "model": {"compressionThreshold": threshold}}
    return json.dumps(settings)


def _pi_models(url: str, window: int) -> str:
    model = {"id": "m", "contextWindow": window, "maxTokens": 4000}
    local = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "x", "models": [model]}
    return json.dumps({"providers": {"local": local}})


def _kimi_config(url: str, window: int) -> str:
    provider = f'[providers.local]\ntype = "openai"\nbase_url = "{url}/v1"\napi_key = "x"\n'
    return f'default_model = "m"\n{provider}[models.m]\nprovider = "local"\nmodel = "m"\nmax_context_size = {window}\n'


CLAUDE_ENVIRONMENT = {
    "ANTHROPIC_AUTH_TOKEN": "x",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",
}
COPILOT_ENVIRONMENT = {"COPILOT_OFFLINE": "true", "COPILOT_PROVIDER_API_KEY": "x", "COPILOT_MODEL": "gpt-5.1"}


def _copilot(name: str, **environment: str) -> Program:
    is_anthropic = environment.get("COPILOT_PROVIDER_TYPE") == "anthropic"
    return Program(
        name=name,
        packages=["@github/copilot@1.0.102"],
        command=["node_modules/.bin/copilot"],
        environment=lambda url: (
            COPILOT_ENVIRONMENT | {"COPILOT_PROVIDER_BASE_URL": url if is_anthropic else f"{url}/v1"} | environment
        ),
        first=lambda prompt: ["-p", prompt, "--allow-all-tools"],
        resume=lambda prompt: ["--continue", "-p", prompt, "--allow-all-tools"],
        compacting={"COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "20000"},
        compacting_words=6_000,
    )


def _claude_code(name: str, model: str | None = "claude-sonnet-4-5", **environment: str) -> Program:
    """Return Claude Code; without a model it takes its own default, to which it sends system messages in the list."""
    named = {} if model is None else {"ANTHROPIC_MODEL": model}
    return Program(
        name=name,
        packages=["@anthropic-ai/claude-code@2.1.325"],
        command=["node_modules/.bin/claude"],
        environment=lambda url: CLAUDE_ENVIRONMENT | {"ANTHROPIC_BASE_URL": url} | named | environment,
        first=lambda prompt: ["-p", prompt],
        resume=lambda prompt: ["-p", "-c", prompt],
        fork=lambda prompt: ["-p", "-c", "--fork-session", prompt],
        compact=["-p", "-c", "/compact"],
        has_agents=True,
    )


def _gemini_cli(name: str, model: Arguments) -> Program:
    """Return the Gemini CLI; without a model it has one chosen before each turn, by a call of its own."""
    return Program(
        name=name,
        packages=["@google/gemini-cli@0.61.0"],
        command=["node_modules/.bin/gemini"],
        environment=lambda url: {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "x"},
        files=lambda _: {".gemini/settings.json": _gemini_settings(0.9)},
        compacting_files=lambda _: {".gemini/settings.json": _gemini_settings(0.0001)},
        first=lambda prompt: [*model, "--skip-trust", "-y", "-p", prompt],
        resume=lambda prompt: [*model, "--skip-trust", "-y", "-r", "latest", "-p", prompt],
    )


PROGRAMS = (
    _claude_code("claude-code"),
    _claude_code("claude-code-default-model", model=None),
    _claude_code("claude-code-hints", CLAUDE_CODE_GATEWAY_HINT_HEADERS="1"),
    Program(
        name="codex",
        packages=["@openai/codex@0.166.0"],
        command=["node_modules/.bin/codex"],
        environment=lambda url: {"K": "x", "GATEWAY": url},
        first=lambda prompt: ["exec", "-s", "read-only", "@codex", prompt],
        resume=lambda prompt: ["exec", "resume", "--last", "@codex", prompt],
        compacting_arguments=["-c", "model_auto_compact_token_limit=5"],
    ),
    _copilot("copilot"),
    _copilot("copilot-responses", COPILOT_PROVIDER_WIRE_API="responses"),
    _copilot("copilot-anthropic", COPILOT_PROVIDER_TYPE="anthropic", COPILOT_MODEL="claude-sonnet-4.5"),
    _gemini_cli("gemini-cli", ["-m", "gemini-2.5-pro"]),
    _gemini_cli("gemini-cli-default-model", []),
    Program(
        name="opencode",
        packages=["opencode-ai@1.18.18"],
        command=["node_modules/.bin/opencode"],
        environment=lambda url: {
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_CONFIG_CONTENT": _opencode_config(url, 32_000),
        },
        first=lambda prompt: ["run", "-m", "local/m", prompt],
        resume=lambda prompt: ["run", "-m", "local/m", "-c", prompt],
        fork=lambda prompt: ["run", "-m", "local/m", "-c", "--fork", prompt],
        compacting={"OPENCODE_CONFIG_CONTENT": "@opencode"},
        compacting_words=6_000,
        has_agents=True,
    ),
    Program(
        name="pi",
        packages=["@earendil-works/pi-coding-agent@0.74.2"],
        command=["node_modules/.bin/pi"],
        environment=lambda _: {"PI_OFFLINE": "1"},
        files=lambda url: {".pi/agent/models.json": _pi_models(url, 32_000)},
        compacting_files=lambda url: {
            ".pi/agent/models.json": _pi_models(url, 22_000),
            ".pi/agent/settings.json": json.dumps({"compaction": {"keepRecentTokens": 20}}),
        },
        compacting_words=6_000,
        first=lambda prompt: ["--provider", "local", "--model", "m", "-p", prompt],
        resume=lambda prompt: ["--provider", "local", "--model", "m", "-c", "-p", prompt],
    ),
    Program(
        name="kimi",
        packages=["@moonshot-ai/kimi-code@2.1.0", "node@24"],
        command=["node_modules/.bin/node", "node_modules/.bin/kimi"],
        environment=lambda _: {},
        files=lambda url: {".kimi-code/config.toml": _kimi_config(url, 32_000)},
        compacting_files=lambda url: {".kimi-code/config.toml": _kimi_config(url, 30_000)},
        compacting_words=6_000,
        first=lambda prompt: ["-p", prompt],
        resume=lambda prompt: ["-c", "-p", prompt],
        has_agents=True,
    ),
    Program(
        name="qwen",
        packages=["@qwen-code/qwen-code@0.15.10"],
        command=["node_modules/.bin/qwen"],
        environment=lambda url: {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "x", "OPENAI_MODEL": "m"},
        first=lambda prompt: ["--auth-type", "openai", "-y", "-p", prompt],
        resume=lambda prompt: ["--auth-type", "openai", "-y", "-c", "-p", prompt],
        compact=["--auth-type", "openai", "-y", "-c", "-p", "/compress"],
    ),
    Program(
        name="continue",
        packages=["@continuedev/cli@1.5.47"],
        command=["node_modules/.bin/cn"],
        environment=lambda _: {"CONTINUE_TELEMETRY_ENABLED": "0"},
        files=lambda url: {
            "config.yaml": "name: local\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: m\n    provider: openai\n"
            f"    model: gpt-4o\n    apiBase: {url}/v1\n    apiKey: x\n"
        },
        first=lambda prompt: ["-p", prompt, "--config", "@home/config.yaml", "--auto"],
        resume=lambda prompt: ["--resume", "-p", prompt, "--config", "@home/config.yaml", "--auto"],
    ),
    Program(
        name="aider",
        packages=["aider-chat==0.86.2"],
        command=["bin/aider"],
        environment=lambda url: {
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": "x",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        first=lambda prompt: ["@aider", "--message", prompt],
        resume=lambda prompt: ["@aider", "--restore-chat-history", "--message", prompt],
        growing_arguments=["--max-chat-history-tokens", "100000"],
        has_tools=False,
        is_python=True,
        is_rewound_each_turn=True,
    ),
)
AIDER = (
    "--model", "openai/m", "--no-git", "--yes-always", "--no-show-model-warnings", "--no-check-update",
    "--analytics-disable", "--no-gitignore", "--no-stream",
)  # fmt: skip


def arguments_of(given: Arguments, *, url: str, home: str, extra: Arguments = ()) -> list[str]:
    """Return the arguments of a run, with what they stand for."""
    found: list[str] = []
    for one in given:
        match one:
            case "@codex":
                found += [*_codex(url), *extra]
            case "@aider":
                found += AIDER
            case _:
                found.append(one.replace("@home", home))
    return found


def environment_of(program: Program, url: str, *, is_compacting: bool) -> dict[str, str]:
    """Return the environment of a run."""
    found = dict(program.environment(url))
    for name, value in program.compacting.items() if is_compacting else ():
        found[name] = _opencode_config(url, 16_000) if value == "@opencode" else value
    return found
