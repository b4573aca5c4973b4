"""Builds the wheel and the sdist, installs each into a fresh environment, and tries what a new user would try.

python -m scripts.release_check [PYTHON…]

By default the Pythons that are declared in pyproject.toml and found on this machine. The artifacts are built from the
committed files and left in `dist`. Nothing of the working tree is on the path of what is tried: each environment is in
a folder of its own, and so are its home and its working directory.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from holdfast import __version__

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = "view,gateway"
"""The extras that are installed with the wheel: those of the tutorial and of the gateway page."""
SESSION = """
import asyncio
from holdfast import Session, govern

async def talk() -> None:
    async with Session.open("trip", store="sqlite:///tried.db", model="gpt-5") as session:
        for turn in range(60):
            await session.record([{"role": "user", "content": f"Question {turn} about the parser. " + "word " * 40}])
            await session.record([{"role": "assistant", "content": f"Answer {turn}. " + "word " * 40}])
        await session.record([{"role": "user", "content": "And now?"}])
        request = await session.prepare(2_000)
        assert request.tokens.total <= 2_000 and request.messages[-1]["content"] == "And now?"
        assert (await session.recall("Question 3 about the parser")).excerpts

asyncio.run(talk())
print(govern([{"role": "user", "content": "Hello"}], model="gpt-5").tokens.total, "tokens")
"""
MISSING_EXTRA = """
try:
    import holdfast.adapters.langchain
except ImportError as error:
    assert "pip install 'holdfast-context[langchain]'" in str(error), error
    print("names the missing extra")
"""


class CheckError(Exception):
    """Raised when something that a new user would try does not work."""


def run(command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it printed; raises `CheckError` with its output if it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CheckError(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def found_pythons(asked: Sequence[str]) -> list[str]:
    """Return the interpreters to try: those that were asked for, or the declared ones that are here."""
    if asked:
        return list(asked)
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    here = {number: next(filter(works, candidates(number)), None) for number in declared}
    for number in (number for number, python in here.items() if python is None):
        print(f"python{number} is not on this machine and is not tried")
    if not any(here.values()):
        raise CheckError("no interpreter to try: name one, such as PYTHONS=python3.11")
    return [python for python in here.values() if python]


def candidates(number: str) -> list[str]:
    """Return where an interpreter may be: on the path, or among those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [f"python{number}", *map(str, sorted(pyenv.glob(f"{number}.*/bin/python{number}")))]


def works(python: str) -> bool:
    """Return whether an interpreter is there and starts; a shim may name one that does not."""
    found = shutil.which(python)
    return found is not None and subprocess.run([found, "-V"], capture_output=True, check=False).returncode == 0


def build() -> list[Path]:
    """Build both artifacts and return them, the wheel first."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder) / "tools"
        run([sys.executable, "-m", "venv", tools], cwd=ROOT)
        run([bin_of(tools) / "python", "-m", "pip", "install", "--quiet", "build", "hatchling"], cwd=ROOT)
        run([bin_of(tools) / "python", "-m", "build", "--no-isolation", "--outdir", DIST, "."], cwd=ROOT)
    name = f"{PROJECT['name'].replace('-', '_')}-{__version__}"
    return [DIST / f"{name}-py3-none-any.whl", DIST / f"{name}.tar.gz"]


def bin_of(environment: Path) -> Path:
    """Return the folder with the programs of an environment."""
    return environment / ("Scripts" if os.name == "nt" else "bin")


def check_contents(wheel: Path, sdist: Path) -> None:
    """Check that each artifact has what it needs and nothing that is private to a machine."""
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    tracked = set(run(["git", "ls-files"], cwd=ROOT).splitlines())
    data = {name.removeprefix("src/") for name in tracked if name.startswith("src/holdfast/")}
    problems = [
        *(f"the wheel lacks {name}" for name in sorted(data - in_wheel)),
        *(
            f"the wheel has {name}, which is not tracked"
            for name in sorted(in_wheel - data)
            if ".dist-info/" not in name
        ),
        *(f"the sdist lacks {name}" for name in ("pyproject.toml", "LICENSE", "README.md") if name not in in_sdist),
        *(f"the sdist has {name}, which is not tracked" for name in sorted(untracked(in_sdist, tracked))),
    ]
    if problems:
        raise CheckError("\n".join(problems))


def untracked(names: set[str], tracked: set[str]) -> Iterator[str]:
    """Yield the files of a sdist that the repository does not have."""
    for name in names - {"", "PKG-INFO"}:
        if name not in tracked and not any(one.startswith(f"{name}/") for one in tracked):
            yield name


def try_artifact(artifact: Path, python: str, folder: Path) -> None:
    """Install an artifact into a fresh environment, and try it from the outside."""
    environment, home = folder / "environment", folder / "home"
    home.mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST", "VIRTUAL"))}
    env = {
        **kept,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "PYTHONWARNINGS": "error::DeprecationWarning:holdfast",
    }
    run([python, "-m", "venv", environment], cwd=folder)
    own = bin_of(environment)
    pip = [own / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, artifact], cwd=folder, env=kept)
    print(
        "  ", run([own / "holdfast", "--version"], cwd=home, env=env).strip(), "with nothing but what the library needs"
    )
    run([own / "holdfast"], cwd=home, env=env)
    run([own / "holdfast", "--help"], cwd=home, env=env)
    print("  ", run([own / "python", "-c", SESSION], cwd=home, env=env).strip())
    print("  ", run([own / "python", "-c", MISSING_EXTRA], cwd=home, env=env).strip())
    store = "sqlite:///tried.db"
    shown = run([own / "holdfast", "show", "trip", "--store", store], cwd=home, env=env)
    if "And now?" not in shown:
        raise CheckError(f"holdfast show says:\n{shown}")
    proof = run([own / "holdfast", "replay", "trip", "--verify", "--store", store], cwd=home, env=env)
    print("  ", proof.splitlines()[0])
    if artifact.suffix == ".whl":
        run([*pip, f"{artifact}[{EXTRAS}]"], cwd=folder, env=kept)
        export = home / "trip.html"
        run([own / "holdfast", "view", "trip", "--store", store, "--export", export], cwd=home, env=env)
        run([own / "python", "-c", "import holdfast.gateway"], cwd=home, env=env)
        described = json.loads(run([own / "holdfast", "sessions", "--json", "--store", store], cwd=home, env=env))
        print("  ", f"viewer and gateway load; {len(described) if isinstance(described, list) else 1} session listed")
    run([own / "python", "-m", "pip", "check"], cwd=folder, env=kept)


def main(asked: Sequence[str]) -> int:
    """Build, look inside, and try each artifact with each interpreter."""
    try:
        pythons = found_pythons(asked)
        wheel, sdist = build()
        check_contents(wheel, sdist)
        print(f"built {wheel.name} and {sdist.name}")
        for python in pythons:
            for artifact in (wheel, sdist):
                with tempfile.TemporaryDirectory() as folder:
                    print(f"{python}, {'wheel' if artifact is wheel else 'sdist'}:")
                    try_artifact(artifact, python, Path(folder))
    except CheckError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"all is well with {', '.join(pythons)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
