"""Settings of the suite, what it consists of, and the embedded model for the tests that want a real one."""

import asyncio
import gc
import os
import re
import signal
import tempfile
from multiprocessing.forkserver import _forkserver
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.apps.settings.schema import SETTING_DECLARATIONS
from holdfast.errors import ModelError
from holdfast.models.embedded.weights import fetch_file
from tests.shallow_model import write_shallow_model

# A share of what `make torture` does by the million; --hypothesis-profile=long takes twenty times as many.
settings.register_profile("suite", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("suite"), max_examples=1_000)
settings.register_profile("same-examples", settings.get_profile("suite"), derandomize=True)  # for `make mutation`
settings.load_profile("suite")

# Whoever runs the suite may have settings of his own: no test sees them.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
for declaration in SETTING_DECLARATIONS.values():
    for variable in declaration.variables:
        os.environ.pop(variable, None)

# Nor those that he has for others: keys and addresses of providers, proxies, a database server, colors.
OTHERS = re.compile(
    r".+_(API_KEY|BASE_URL|PROXY)|(PG|OTEL_|OLLAMA_|COPILOT_|FASTMCP_).+|HOLDFAST_(HOME|CONTROL_TOKEN|KEY_.+)"
    r"|NO_COLOR|FORCE_COLOR|CLICOLOR.*|COLORFGBG|COLUMNS|LINES|PYTHONIOENCODING|SSL_CERT_(FILE|DIR)",
    re.IGNORECASE,
)
OUTSIDE = {name: os.environ.pop(name) for name in [*os.environ] if OTHERS.fullmatch(name)}

# Files that tests make are readable for others, where nothing of ours says otherwise, also for who has a strict umask.
os.umask(0o022)

# A shell starts what it runs in the background with Ctrl-C ignored, and every program inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test talks to anybody outside of this machine. The system's certificates, which each client and each gateway that
# starts would read, take 50 ms of processor time; the one in this file belongs to nobody.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("no_authority.pem"))
os.environ["SSL_CERT_DIR"] = "/nonexistent"

# Hundreds of stores would wait for the disk. A run writes some 200 MB, and the last three are kept.
MEMORY_DISK, MIN_FREE_BYTES = Path("/dev/shm"), 4 << 30  # noqa: S108
if os.access(MEMORY_DISK, os.W_OK):
    disk = os.statvfs(MEMORY_DISK)
    if disk.f_bavail * disk.f_frsize >= MIN_FREE_BYTES and not disk.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("TMPDIR", str(MEMORY_DISK))
        tempfile.tempdir = None  # read again


# `make browser` runs these, with what only they need.
collect_ignore = [] if os.environ.get("HOLDFAST_BROWSER") else ["browser"]

# All that the frameworks of the adapters bring stays until the end: nothing in it is worth looking at, now or later.
gc.disable()

COLLECTED = pytest.StashKey[list[pytest.Item]]()


LONG_FILES = ("test_linear_text.py", "test_embedded_model.py")
"""Whose tests take longest: they start first, so that no core waits for the other at the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember what was collected before anything is deselected: the checklist wants to know of every test."""
    config.stash[COLLECTED] = list(items)
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


def pytest_collection_finish() -> None:
    """Let the garbage collector work from here on, on what the tests make."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """End the server that forks programs, if one was started: it writes what was measured of it when it ends."""
    _forkserver._stop()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture(scope="session")
def collected(pytestconfig: pytest.Config) -> list[pytest.Item]:
    """Return every test of this run, those that are not to be run too."""
    return pytestconfig.stash[COLLECTED]


@pytest.fixture(scope="session")
def weights() -> Path:
    """Return the embedded model's weights; fetched once for all workers, which wait for each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE")
        patch.delenv("SSL_CERT_DIR")
        for name, value in OUTSIDE.items():
            patch.setenv(name, value)
        try:
            return asyncio.run(fetch_file())
        except ModelError as error:
            pytest.skip(f"the embedded model's weights cannot be had here: {error}")


@pytest.fixture(scope="session")
def shallow_weights(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return weights of its first layers: for tests of the server, to which it does not matter what the model says."""
    path = tmp_path_factory.mktemp("model") / "shallow.gguf"
    write_shallow_model(weights, path)
    return path
