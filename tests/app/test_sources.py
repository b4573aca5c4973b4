"""Settings come from six places, the later counts, and each remembers which."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from holdfast.apps.settings.build import compaction_from
from holdfast.apps.settings.paths import find_paths
from holdfast.apps.settings.settings import Settings, SettingSource
from holdfast.apps.settings.sources import load_settings
from holdfast.core.planning.rules.clip_tool_outputs import KeepHeads
from holdfast.core.planning.rules.co_cli import CoCliCompaction
from holdfast.errors import SettingsError

Setup = Callable[..., Settings]


def test_a_machine_without_settings_talks_to_the_embedded_model(settings: Setup, home: Path) -> None:
    plain = settings()

    assert (plain.model, plain.preset, plain.store) == ("embedded", "default", f"sqlite:///{home}/chats.db")
    assert plain.source("model") == SettingSource("default")
    assert plain.source("max_steps") == SettingSource("preset", "default")
    assert (plain.notes, plain.problems) == ((), ())


def test_the_later_of_six_places_counts(settings: Setup, home: Path, project: Path) -> None:
    given = {
        "user": f"max_steps = 1\ntrust = ['{project}']",
        "config_json": '{"agent_max_steps": 2}',
        "project_file": "max_steps = 3",
        "environ": {"HOLDFAST_MAX_STEPS": "4"},
        "flags": {"max_steps": "5"},
    }
    expected = [
        (1, f"{home}/holdfast.toml:1"),
        (2, f"{project}/config.json:1"),
        (3, f"{project}/holdfast.toml:1"),
        (4, "$HOLDFAST_MAX_STEPS"),
        (5, "--max-steps"),
    ]

    seen = [settings(**dict(list(given.items())[:count])) for count in range(1, len(given) + 1)]
    changed = seen[-1].with_change("max_steps", "6")

    assert [(one.max_steps, str(one.source("max_steps"))) for one in seen] == expected
    assert (changed.max_steps, str(changed.source("max_steps"))) == (6, "changed in this session")


@pytest.mark.parametrize(
    ("environ", "user", "data"),
    [
        ({"HOLDFAST_HOME": "/h"}, "/h/holdfast.toml", "/h"),
        ({"XDG_CONFIG_HOME": "/x"}, "/x/holdfast/holdfast.toml", "~/.holdfast"),
        ({}, "~/.config/holdfast/holdfast.toml", "~/.holdfast"),
    ],
)
def test_the_users_folder_is_one_and_can_be_moved(environ: Mapping[str, str], user: str, data: str) -> None:
    found = find_paths(environ, Path("/"))

    assert (found.user_file, found.data_folder) == (Path(user).expanduser(), Path(data).expanduser())


def test_the_project_is_found_from_a_folder_inside_and_not_beyond_its_root(project: Path, home: Path) -> None:
    inside = project / "src" / "deep"
    inside.mkdir(parents=True)
    (project / "holdfast.toml").write_text("max_steps = 7")
    (project.parent / "holdfast.toml").write_text("max_steps = 8")
    environ = {"HOLDFAST_HOME": str(home)}

    assert load_settings(cwd=inside, environ=environ).max_steps == 7
    (project / "holdfast.toml").unlink()
    assert load_settings(cwd=inside, environ=environ).max_steps == 50


@pytest.mark.seed("A-41")
@pytest.mark.seed("A-42")
@pytest.mark.seed("A-43")
def test_co_cli_has_its_three_settings_under_their_own_names(settings: Setup) -> None:
    plain = settings("preset = 'co-cli'")
    said = settings(
        "preset = 'co-cli'\ntool_output_trim_chars = 500\nmax_history_messages = 10\nsummarization_model = 'test'"
    )
    variables = {
        "CO_CLI_TOOL_OUTPUT_TRIM_CHARS": "0",
        "CO_CLI_MAX_HISTORY_MESSAGES": "0",
        "CO_CLI_SUMMARIZATION_MODEL": "",
    }
    off = settings(environ=variables)

    assert [
        (one.tool_output_trim_chars, one.max_history_messages, one.summarization_model) for one in (plain, said, off)
    ] == [
        (2_000, 40, ""),
        (500, 10, "test"),
        (0, 0, ""),
    ]
    assert str(off.source("max_history_messages")) == "$CO_CLI_MAX_HISTORY_MESSAGES"


@pytest.mark.seed("A-41", "A-42", "A-43")
def test_co_clis_variables_are_in_the_policy_and_the_summarizer_that_a_session_gets(settings: Setup) -> None:
    variables = {
        "CO_CLI_TOOL_OUTPUT_TRIM_CHARS": "500",
        "CO_CLI_MAX_HISTORY_MESSAGES": "10",
        "CO_CLI_SUMMARIZATION_MODEL": "test",
    }

    found = settings("preset = 'co-cli'\nmodel = 'openai:gpt-5'", environ=variables)
    how = compaction_from(found, "s1")

    assert (found.effective_policy.outputs, found.effective_policy.compaction) == (
        KeepHeads(max_chars=500),
        CoCliCompaction(max_messages=10),
    )
    assert (how.automatic, how.manual) == ("test", "openai:gpt-5")


@pytest.mark.seed("D-6")
@pytest.mark.seed("D-7")
def test_cowagent_has_its_three_settings_in_a_config_json(settings: Setup, project: Path) -> None:
    theirs = '{"model": "x", "api_key": "no business of ours",\n "agent_max_steps": 30, "agent_max_context_turns": 40}'
    plain = settings(f"preset = 'cowagent'\ntrust = ['{project}']")
    said = settings(config_json=theirs)

    assert [(one.max_context_tokens, one.max_context_turns, one.max_steps) for one in (plain, said)] == [
        (50_000, 20, 15),
        (50_000, 40, 30),
    ]
    assert said.source("agent_max_steps").line == 2
    assert said.model == "embedded"


def test_a_key_of_a_config_json_that_is_no_setting_is_a_note_and_no_problem(settings: Setup, project: Path) -> None:
    found = settings(config_json='{"agent_max_stepss": 3, "agent_max_steps": 2}')

    assert (found.max_steps, found.problems) == (2, ())
    assert found.notes == (
        f"ignored: {project}/config.json:1: agent_max_stepss: is not a setting; did you mean 'agent_max_steps'?",
    )


@pytest.mark.seed("C-21")
def test_copilots_thresholds_come_from_its_own_variables(settings: Setup) -> None:
    variables = {"COPILOT_BACKGROUND_COMPACTION_THRESHOLD": "0.5", "COPILOT_BUFFER_EXHAUSTION_THRESHOLD": "70%"}

    said = settings("preset = 'copilot'", environ=variables)

    assert (said.background_compaction_threshold, said.buffer_exhaustion_threshold) == (0.5, 0.7)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("\n\nmodle = 'x'", 3, "modle: is not a setting; did you mean 'model'?"),
        ("max_steps = 'x'", 1, "max_steps: must be a whole number from 1 to 1,000,000, or 0 for none, not 'x'"),
        ("preset = 'cowagnt'", 1, "preset: 'cowagnt' is not known; did you mean 'cowagent'?"),
        (f"max_steps = 0x{'f' * 5_000}", 1, "max_steps: must be a whole number from 1 to 1,000,000, or 0 for none, "
         "not a number of thousands of digits"),
        ("approve = 3", 1, "approve: must be on or off (true or false in a file), not 3"),
        ("tools = ['reed']", 1, "tools: 'reed' is not known; did you mean 'read'?"),
        ("system = 'x.md'", 1, "system: there is no file HOME/x.md; check the path"),
        ("store = 'a.db'", 1, "store: must be one of memory://, sqlite:///file or postgresql://…, not 'a.db'"),
        ("budget = 99\nmax_context_tokens = 9", 2, "max_context_tokens: is another name of budget; keep one of them"),
        ("[mcp.files]\nargs = []", 1, 'mcp.files: needs either command = "…" or url = "…"'),
        ("[mcp.files]\nurl = 'x'", 2, "mcp.files.url: must be an http:// or https:// address, not 'x'"),
        ("[mcp.files]\ncommand = 'x'\n[mcp.files.env]\nA = 1", 4, "mcp.files.env.A: must be a text, not 1"),
        ("[models.'a-9.5']\nwindow = 'x'", 2, "models.a-9.5.window: must be a whole number of tokens, not 'x'"),
        ("[hooks]\npre_compakt = []", 2, "hooks.pre_compakt: is not a setting; did you mean 'pre_compact'?"),
        (
            "[hooks]\npre_compact = 7",
            2,
            'hooks.pre_compact: must be a list of commands such as [["notify", "--quiet"]], not 7',
        ),
        ("[hooks]\npre_compact = [[]]", 2, 'hooks.pre_compact: [] is not a command; write it as ["notify", "--quiet"]'),
        ("[hooks]\ntimeout_seconds = 0", 2, "hooks.timeout_seconds: must be a number above 0, not 0"),
        ("hooks = 1", 1, "hooks: must be a table, not 1"),
        ("memory = ['notes']", 1, "memory: must be the path of a folder, or off, not ['notes']"),
        ("boards.off = true", 1, "boards: must be the path of a folder, or off, not {'off': True}"),
        ("checkpoints = []", 1, "checkpoints: must be the path of a folder, or off, not []"),
        (f"preset = 0x{'f' * 5_000}", 1, "preset: a number of thousands of digits is not known; choose one of: "
         "default, co-cli, inkeep, copilot, cowagent"),
        (f"hooks = 0x{'f' * 5_000}", 1, "hooks: must be a table, not a number of thousands of digits"),
        ("x_api_key = ''", 1, "x_api_key: is not a setting; keys are read from the environment, such as "
         "$OPENAI_API_KEY, and never from a file"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named_by_its_line(
    text: str, line: int, problem: str, settings: Setup, home: Path
) -> None:
    with pytest.raises(SettingsError) as wrong:
        settings(text)

    assert str(wrong.value) == f"{home}/holdfast.toml:{line}: {problem.replace('HOME', str(home))}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = [\n 1,", 3),
        ("a = 1\nx = 'a\n\n", 2),
        ("\na =", 2),
        ("a = 1\na = 2", 2),
        ("[a]\n[a]", 2),
        (f"\na = {'[' * 5_000}", 2),
        (f"a = {'9' * 5_000}", 1),
    ],
)
def test_a_file_that_is_no_toml_is_named_by_its_line(text: str, line: int, settings: Setup, home: Path) -> None:
    with pytest.raises(SettingsError) as wrong:
        settings(text)

    assert str(wrong.value).startswith(f"{home}/holdfast.toml:{line}: the file: cannot be read as TOML: ")
    assert "(at " not in str(wrong.value)


@pytest.mark.parametrize("key", ["models", "model", "nothing"])
def test_tables_of_a_strangers_project_that_lie_thousands_deep_are_one_problem(
    key: str, settings: Setup, project: Path
) -> None:
    found = settings(project_file=f"max_steps = 3\n{key}.{'a.' * 5_000}a = 1", is_tolerant=True)

    assert [str(one) for one in found.problems] == [
        f"{project}/holdfast.toml: the file: has more than 32 tables or lists within each other; no setting needs more "
        "than a few"
    ]


def test_a_file_that_is_no_text_or_cannot_be_read_is_named(settings: Setup, home: Path, project: Path) -> None:
    (home / "holdfast.toml").write_bytes(b"model = 'x'\n\xff\n")
    (project / "holdfast.toml").mkdir()

    found = settings(config_json='{"agent_max_steps": 1,\n?}', is_tolerant=True)

    assert [str(one).partition(": ")[0] for one in found.problems] == [
        f"{home}/holdfast.toml:2",
        f"{project}/config.json:2",
    ]


def test_a_file_that_is_too_large_or_never_ends_is_named_and_not_read(
    settings: Setup, home: Path, project: Path
) -> None:
    os.mkfifo(home / "holdfast.toml")
    with (project / "holdfast.toml").open("wb") as sparse:
        sparse.truncate(64 * 1_024**3)

    found = settings(is_tolerant=True)

    assert [str(one) for one in found.problems] == [
        f"{home}/holdfast.toml: the file: cannot be read: it is a pipe; check its permissions, or move it away",
        f"{project}/holdfast.toml: the file: cannot be read: it has more than 1,000,000 bytes; "
        "check its permissions, or move it away",
    ]


def test_a_file_that_is_linked_to_the_null_device_is_an_empty_one(settings: Setup, home: Path) -> None:
    (home / "holdfast.toml").symlink_to(os.devnull)

    assert settings().problems == ()


def test_whoever_is_tolerant_hears_of_everything_and_goes_on(settings: Setup) -> None:
    found = settings("modle = 'x'\nmax_steps = 0\npreset = 'no'", environ={"HOLDFAST_TOOLS": "fly"}, is_tolerant=True)

    assert [one.setting for one in found.problems] == ["modle", "preset", "$HOLDFAST_TOOLS"]
    assert (found.preset, found.max_steps, found.tools) == ("default", None, ("read", "edit", "run", "plan"))


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("HOLDFAST_MAX_STEPS", "many", "$HOLDFAST_MAX_STEPS: must be a whole number"),
        ("CO_CLI_MAX_HISTORY_MESSAGES", "-1", "$CO_CLI_MAX_HISTORY_MESSAGES: must be a whole number"),
        ("HOLDFAST_MAX_CONTEXT_TOKENS", "9" * 5_000, "$HOLDFAST_MAX_CONTEXT_TOKENS: must be a whole number"),
        ("HOLDFAST_MODEL", "a\nb", "$HOLDFAST_MODEL: must be a text, not 'a\\nb'"),
        ("HOLDFAST_MCP", "x", "$HOLDFAST_MCP: is a table"),
        ("HOLDFAST_SYSTEM", "x" * 5_000, "$HOLDFAST_SYSTEM: there is no file"),
    ],
)
def test_what_is_wrong_in_a_variable_is_named_by_it(variable: str, text: str, problem: str, settings: Setup) -> None:
    with pytest.raises(SettingsError) as wrong:
        settings(environ={variable: text})

    assert str(wrong.value).startswith(problem)


def test_a_variable_that_is_empty_or_nearly_a_setting_is_no_error(settings: Setup) -> None:
    found = settings(environ={"HOLDFAST_MODEL": "", "HOLDFAST_MODLE": "x", "HOLDFAST_KILLS": "9", "NO_COLOR": "1"})

    assert (found.model, found.colour) == ("embedded", "never")
    assert found.notes == ("$HOLDFAST_MODLE is not a setting; did you mean $HOLDFAST_MODEL?",)


def test_what_looks_like_a_key_in_a_file_is_warned_of_and_not_shown(settings: Setup, home: Path) -> None:
    found = settings("[mcp.web]\nurl = 'https://x'\nheaders.Authorization = 'Bearer abcdefgh12345'")

    assert found.notes == (
        f"{home}/holdfast.toml:1: mcp.web.headers.Authorization looks like a key or a password; "
        "keep it in the environment, and write ${NAME} here",
    )
    assert "abcdefgh12345" not in repr([row.text for row in found.rows()])


def test_a_password_of_the_store_in_a_file_is_warned_of_whatever_it_looks_like(settings: Setup, home: Path) -> None:
    found = settings("store = 'postgresql://me:$hunter2@db/x'")

    assert found.notes == (f"{home}/holdfast.toml:1: store looks like a key or a password; keep it in the environment",)


def test_a_setting_that_the_preset_knows_nothing_of_has_no_effect_and_says_so(settings: Setup, home: Path) -> None:
    found = settings("preset = 'co-cli'\ncompression_threshold = 0.4")

    row = next(row for row in found.rows() if row.name == "compression_threshold")
    assert row.note == "no effect with preset co-cli"
    assert found.notes == (f"{home}/holdfast.toml:2: compression_threshold has no effect with preset co-cli",)
    assert found.with_change("preset", "inkeep").notes == ()


DANGEROUS = """
model = "https://elsewhere.example/v1#m"
store = "postgresql://elsewhere.example/db"
checkpoints = "../outside"
allow = ["rm"]
trust = ["/"]
retention_days = 1
max_steps = 3
[mcp.files]
command = "evil"
[hooks]
pre_compact = ["evil"]
"""


def test_a_project_that_is_not_trusted_runs_nothing_and_sends_nothing(settings: Setup, project: Path) -> None:
    found = settings(project_file=DANGEROUS)

    left_out = [note.split(": ")[1].split()[0] for note in found.notes]
    assert left_out == ["model", "store", "checkpoints", "allow", "trust", "retention_days", "mcp", "hooks"]
    assert (found.model, found.allow, dict(found.mcp), found.hooks.pre_compact) == ("embedded", (), {}, ())
    assert found.max_steps == 3
    assert found.notes[0].endswith(f"to trust this project: holdfast config trust +{project} --user")


def test_a_project_that_the_user_trusts_may_do_what_it_says(settings: Setup, project: Path) -> None:
    found = settings(f"trust = ['{project.parent}']", DANGEROUS)

    assert found.notes == ()
    assert (found.model, found.mcp["files"].command) == ("https://elsewhere.example/v1#m", "evil")
    assert found.source("mcp.files").line == 9


def test_a_project_that_is_not_trusted_deletes_nothing_by_its_preset_or_rules(settings: Setup, project: Path) -> None:
    (project / "rules.toml").write_text("retention_days = 1")

    by_preset = settings(project_file="preset = 'cowagent'")
    by_rules = settings(project_file="policy = 'rules.toml'")
    trusted = settings(f"trust = ['{project}']")
    by_the_user = settings("preset = 'cowagent'", project_file="max_steps = 3")

    assert [one.effective_policy.retention_days for one in (by_preset, by_rules, trusted, by_the_user)] == [
        None,
        None,
        1,
        30,
    ]
    assert by_preset.notes == (
        f"{project}/holdfast.toml:1: preset is ignored, because an untrusted project may not set it; "
        f"to trust this project: holdfast config trust +{project} --user",
    )


def test_a_link_out_of_a_project_is_seen_through(settings: Setup, project: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("secret")
    (project / "system.md").symlink_to(tmp_path / "secret.md")

    found = settings(project_file="system = 'system.md'\nstore = 'memory://'")

    assert (found.system, len(found.notes)) == (None, 2)


def test_odd_machines_have_settings_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(Path, "home", _nowhere)

    assert load_settings(environ={}).model == "embedded"
    assert load_settings(environ={"HOLDFAST_HOME": "~nobody/here"}, cwd=tmp_path / ("x" * 5_000)).model == "embedded"


def _nowhere() -> Path:
    raise RuntimeError


def test_a_trusted_project_may_settle_what_stays_on_this_machine_and_in_it(settings: Setup, project: Path) -> None:
    (project / "rules.toml").write_text("compaction.hard_share = 0.9")
    found = settings(
        f"trust = ['{project}']",
        project_file="model = 'http://127.0.0.1:8080/v1#m'\nstore = 'sqlite:///a.db'\npolicy = 'rules.toml'",
    )

    assert found.notes == ()
    assert (found.store, found.buffer_exhaustion_threshold) == (f"sqlite:///{project}/a.db", 0.9)
    assert str(found.source("buffer_exhaustion_threshold")) == f"policy {project}/rules.toml"


def test_tables_of_two_files_are_put_together_by_name(settings: Setup, project: Path) -> None:
    found = settings(
        f"trust = ['{project}']\n[mcp.a]\ncommand = 'one'\n[mcp.b]\ncommand = 'two'", "[mcp.b]\nurl = 'http://x'"
    )

    assert {name: str(server) for name, server in found.mcp.items()} == {"a": "one", "b": "http://x"}
    assert [found.source(key).kind for key in ("mcp.a", "mcp.b", "mcp")] == ["user", "project", "project"]


def test_a_server_takes_its_keys_from_the_environment(settings: Setup) -> None:
    server = settings("[mcp.web]\nurl = 'https://x'\nheaders.Authorization = 'Bearer ${TOKEN}'").mcp["web"]

    assert server.with_environment({"TOKEN": "secret"}).headers == {"Authorization": "Bearer secret"}
    with pytest.raises(SettingsError, match=r"mcp\.web: needs \$TOKEN, which is not set"):
        server.with_environment({})


def test_a_policy_of_the_gateway_is_found_beside_the_file_that_names_it(
    settings: Setup, home: Path, project: Path
) -> None:
    found = settings("gateway_policies = ['coding=rules/coding.toml', ' talk = /srv/talk.toml']")

    assert found.gateway_policies == (f"coding={home}/rules/coding.toml", "talk=/srv/talk.toml")
    assert settings(f"trust = ['{project}']", "gateway_policies = ['a=a.toml']").gateway_policies == (
        f"a={project}/a.toml",
    )


UPSTREAMS = 'must be a list of texts NAME=URL such as ["openai=http://127.0.0.1:8000/v1"], not '
POLICIES = 'must be a list of texts NAME=FILE such as ["coding=~/coding.toml"], not '


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("gateway_upstreams = ['x=y']", f"gateway_upstreams: {UPSTREAMS}'x=y'"),
        ("gateway_upstreams = ['http://h/v1']", f"gateway_upstreams: {UPSTREAMS}'http://h/v1'"),
        ("gateway_upstreams = ['x=http://h/v1?a=b']", f"gateway_upstreams: {UPSTREAMS}'x=http://h/v1?a=b'"),
        (
            "gateway_upstreams = ['x=http://ada:marmalade-7f@h/v1']",
            "gateway_upstreams: the URL of 'x' has a password; set $X_API_KEY instead",
        ),
        ("gateway_policies = ['=rules.toml']", f"gateway_policies: {POLICIES}'=rules.toml'"),
        ('gateway_policies = ["a=\\u0000"]', f"gateway_policies: {POLICIES}'a=\\x00'"),
    ],
)
def test_a_wrong_value_of_the_gateway_is_named_by_its_line(home: Path, line: str, problem: str) -> None:
    (home / "holdfast.toml").write_text(f"max_steps = 7\n{line}\n")

    with pytest.raises(SettingsError) as wrong:
        load_settings(cwd=home, environ={"HOLDFAST_HOME": str(home)})

    assert str(wrong.value) == f"{home}/holdfast.toml:2: {problem}"
