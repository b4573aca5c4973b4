"""The engine's process, from outside: started, heard out, ended."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection
from tempfile import TemporaryFile
from typing import IO, cast

from holdfast.errors import ModelRefusedError
from holdfast.models.embedded import engine
from holdfast.models.embedded.weights import EMBEDDED_MODEL

STOP_SECONDS = 5.0
HEALTH_POLL_SECONDS = 0.05
MAX_STDERR_TAIL_BYTES = 2_000


class EngineProcess:
    """Runs `engine.py`. Its methods wait, so they belong in a thread."""

    def __init__(self) -> None:
        self._errors = TemporaryFile()  # noqa: SIM115 - as long as the process
        # Threads that spin while they wait take the core from those that work.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            [sys.executable, "-P", str(engine.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it is still there."""
        return self._process.poll() is None

    def wait_until_ready(self, settings: Mapping[str, object]) -> str:
        """Return the address of the process once it has loaded the model and says that it is well."""
        # A process that has died already reads no more; its last words tell why.
        with suppress(OSError):
            self._input.write(json.dumps(dict(settings)).encode() + b"\n")
            self._input.flush()
        line = self._output.readline()
        url = str(json.loads(line)["url"]) if line else ""
        while not (url and _is_healthy(url)):
            if not line or not self.is_alive:
                problem = f"the engine ended with {self._process.wait()}: {self._last_error_line()}"
                raise ModelRefusedError(EMBEDDED_MODEL, problem, remedy="check the weights")
            time.sleep(HEALTH_POLL_SECONDS)
        return url

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def stop(self) -> None:
        """Let the process end by itself, and see that it does."""
        with suppress(OSError):
            self._input.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._errors.close()

    def _last_error_line(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - MAX_STDERR_TAIL_BYTES))
        said = self._errors.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(said) if line.strip()), "it gave no reason")


def _is_healthy(url: str) -> bool:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=STOP_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
