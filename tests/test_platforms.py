"""The library imports where the modules of Linux and macOS do not exist."""

import subprocess
import sys

IMPORT_EVERYTHING = """
import builtins, importlib, os, pkgutil, sys

ABSENT = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
real_import = builtins.__import__

def portable_import(name, globals=None, *rest, **named):
    if name.partition(".")[0] in ABSENT and str((globals or {}).get("__name__")).startswith("holdfast"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return real_import(name, globals, *rest, **named)

builtins.__import__ = portable_import
for absent in ("fork", "geteuid", "getuid", "killpg", "register_at_fork", "setsid"):
    delattr(os, absent)

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


def test_every_module_can_be_imported_without_the_modules_of_unix() -> None:
    answer = subprocess.run([sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, check=False)

    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
