"""The process that holds the model: llama.cpp's server, on loopback, on a free port.

It is a separate process because loading blocks the interpreter, because an abort inside the engine must not end the
conversation, and because its memory is freed when it ends. It runs as a script and imports nothing of the package. It
reads its settings from the first line of stdin, prints its address in one line, and exits when stdin is closed, so it
cannot outlive its parent.
"""

import importlib
import json
import os
import signal
import sys

PROMPT_CACHE_MIB = 256
"""The cache of earlier prompts, so that a conversation continues after a summary without being processed again.
The engine's default is 8 GiB."""


def serve() -> None:
    """Serve until stdin is closed."""
    # An interrupt at the terminal is for the parent; it closes our stdin when it exits.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The output of the engine goes to stderr; stdout carries only our address.
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    settings = json.loads(sys.stdin.readline())
    engine = importlib.import_module("xllamacpp")
    params = engine.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False
    params.n_ctx = settings["n_ctx"]
    params.n_parallel = 1
    # A prompt that is too long is refused, never truncated silently.
    params.ctx_shift = False
    params.fit_params = False
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.sampling.temp = 0.0
    params.warmup = False
    params.verbosity = -1
    server = engine.Server(params)
    os.write(output, json.dumps({"url": server.listening_address}).encode() + b"\n")
    sys.stdin.read()
    # The parent has exited, so there is nothing to finish.
    os._exit(0)


if __name__ == "__main__":
    serve()
