"""The process that holds the model: llama.cpp's own server, on loopback, on a free port.

A process of its own, because loading holds the interpreter for as long as it takes, because what aborts inside
the engine must not take the conversation with it, and because memory comes back when it ends. It is run as a
script and imports nothing of the package. It reads its settings from the first line of its input, tells its
address in one line, and ends when its input ends: so it cannot outlive who started it.
"""

import importlib
import json
import os
import signal
import sys

PROMPT_CACHE_MIB = 256
"""How much of earlier prompts is kept, so that a conversation comes back from a summary without being read anew.
The engine's own default is 8 GiB."""


def serve() -> None:
    """Serve until the input ends."""
    # An interrupt at the terminal is for who started us; the end of the input follows in good time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What the engine prints goes with the errors; only we speak on the output.
    speaking = os.dup(sys.stdout.fileno())
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
    # A prompt that is too long is refused, never cut in silence.
    params.ctx_shift = False
    params.fit_params = False
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.sampling.temp = 0.0
    params.warmup = False
    params.verbosity = -1
    server = engine.Server(params)
    os.write(speaking, json.dumps({"url": server.listening_address}).encode() + b"\n")
    sys.stdin.read()
    # Nothing is worth waiting for: whoever would read an answer has gone.
    os._exit(0)


if __name__ == "__main__":
    serve()
