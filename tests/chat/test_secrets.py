"""No key is written to a screen or a file, only the owner can read our files, and nothing listens beyond loopback.

There are keys in the environment (and so in a header), in a settings file, where they do not belong, and in a tool's
result. The provider's error repeats the first. The tests search everything that was written.
"""

import json
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.testing.endpoint import http_response, text_stream, tool_call_stream
from tests.chat.conftest import Served
from tests.programs import run_program

ENVIRONMENT_KEY = "sk-proj-Env1ronment0Key7x9Q2"
SETTINGS_KEY = "sk-proj-Sett1ngs0Key5m3W8zz"
TOOL_KEY = "ghp_T00lTextKey4b6N1cc9LmQ"
LISTENING = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.fixture
def keyed(env: dict[str, str]) -> dict[str, str]:
    """The environment of a user with a key, and another key in a settings file."""
    home = Path(env["HOLDFAST_HOME"])
    home.mkdir(mode=0o700)
    (home / "holdfast.toml").write_text(f'api_key = "{SETTINGS_KEY}"\nmemory = "daily"\n')
    (home / "holdfast.toml").chmod(0o600)
    return {**env, "OPENAI_API_KEY": ENVIRONMENT_KEY}


def ran(env: dict[str, str], folder: Path, *arguments: str, said: str = "") -> str:
    """Run the program to its end, and return its output."""
    done = run_program(*arguments, env=env, folder=folder, said=said)
    return done.stdout + done.stderr


def written(home: Path, key: str) -> list[str]:
    """Return the files that hold a key."""
    files = [path for path in home.rglob("*") if path.is_file() and path.name != "holdfast.toml"]
    return sorted(path.name for path in files if key.encode() in path.read_bytes())


def open_to_others(home: Path) -> list[str]:
    """Return the files and folders that users other than the owner may access."""
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if stat.S_IMODE(path.stat().st_mode) & 0o077)


def test_no_key_is_written_where_nobody_asked_for_it(served: Served, keyed: dict[str, str], folder: Path) -> None:
    home = Path(keyed["HOLDFAST_HOME"])
    (folder / "notes.txt").write_text(f"token: {TOOL_KEY}")
    refusal = {"error": {"message": f"Incorrect API key provided: {ENVIRONMENT_KEY}", "code": "invalid_api_key"}}
    served.script += [
        tool_call_stream(("read_file", {"path": "notes.txt"})),
        text_stream("I have read it. " + "The tide turns at four. " * 200),
        http_response(401, refusal),
    ]
    talk = "Read notes.txt.\nAnd now?\n/context\n/clear\n"

    shown = ran(keyed, folder, "chat", "--model", served.model, said=talk)
    told = [ran(keyed, folder, *command) for command in (["doctor"], ["config", "--json"])]

    everything = "\n".join([shown, *told])
    assert "Incorrect API key provided" in shown
    assert [key for key in (ENVIRONMENT_KEY, SETTINGS_KEY, TOOL_KEY) if key in everything] == []
    assert (written(home, ENVIRONMENT_KEY), written(home, SETTINGS_KEY)) == ([], [])
    assert [name for name in written(home, TOOL_KEY) if not name.startswith("chats.db")] == []
    assert open_to_others(home) == []


def listeners(pid: int) -> list[str]:
    """Return the addresses at which a process and those it started listen."""
    found: list[str] = []
    children = (Path(f"/proc/{pid}/task/{pid}/children").read_text()).split()
    for one in [pid, *map(int, children)]:
        links: list[str] = []
        with suppress(FileNotFoundError):  # what it started has ended
            for path in Path(f"/proc/{one}/fd").iterdir():
                with suppress(FileNotFoundError):  # it has closed this one
                    links.append(path.readlink().name)
        inodes = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}
        for table in ("tcp", "tcp6"):
            rows = [line.split() for line in Path(f"/proc/{one}/net/{table}").read_text().splitlines()[1:]]
            found += [row[1].partition(":")[0] for row in rows if row[3] == LISTENING and row[9] in inodes]
    return found


def test_nothing_listens_beyond_loopback(served: Served, keyed: dict[str, str], folder: Path) -> None:
    heard: list[list[str]] = []
    started: list[int] = []

    def answer(_: str) -> str:
        heard.append(listeners(*started))
        return "yes"

    served.answer = answer
    command = ["chat", "--model", served.model, "-p", "--json"]

    program = run_program(*command, env=keyed, folder=folder, said="Is anybody listening?", on_start=started.append)

    assert json.loads(program.stdout.splitlines()[-1])["outcome"] == "done"
    assert [address for address in heard[0] if address not in LOOPBACK] == []
