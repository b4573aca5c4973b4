"""The library imports where the modules of Linux and macOS do not exist."""

import os
import subprocess
import sys
from pathlib import Path

from holdfast.session.log.leases import is_process_running

IMPORT_EVERYTHING = """
import builtins, importlib, os, pkgutil, signal, sys

ABSENT = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
real_import = builtins.__import__

def portable_import(name, globals=None, *rest, **named):
    if name.partition(".")[0] in ABSENT and str((globals or {}).get("__name__")).startswith("holdfast"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return real_import(name, globals, *rest, **named)

builtins.__import__ = portable_import
for absent in ("fork", "geteuid", "getuid", "killpg", "register_at_fork", "setsid"):
    delattr(os, absent)
for absent in ("SIGHUP", "SIGKILL", "SIGUSR1", "pthread_sigmask"):
    delattr(signal, absent)

import holdfast

for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if module.name.startswith("holdfast.adapters."):
        continue  # their frameworks take seconds to load, and they import nothing of the system
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        if type(error).__name__ != "MissingExtraError":
            print(module.name, error)
    except AttributeError as error:
        print(module.name, error)
"""


KEEP_A_CONVERSATION = (
    IMPORT_EVERYTHING.partition("import holdfast\n")[0]
    + """
import asyncio
from holdfast import Session

async def talk():
    async with Session.open("c", store="sqlite:///c.db", model="gpt-5") as session:
        for number in range(20):
            await session.record([{"role": "user", "content": f"question {number} " + "word " * 80}])
            await session.record([{"role": "assistant", "content": "an answer"}])
        await session.record([{"role": "user", "content": "and now?"}])
        request = await session.prepare(1_000)
        return request.tokens.total <= 1_000, (await session.recall("question 3")).excerpts[0].ref

print(asyncio.run(talk()))
"""
)


def test_a_conversation_is_kept_compacted_and_recalled_without_the_modules_of_unix(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", KEEP_A_CONVERSATION], capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "(True, '#6')\n", "")


def test_a_process_that_runs_is_told_from_one_that_has_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert (is_process_running(os.getppid()), is_process_running(ended.pid)) == (True, False)


def test_every_module_can_be_imported_without_the_modules_of_unix() -> None:
    answer = subprocess.run([sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, check=False)

    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
