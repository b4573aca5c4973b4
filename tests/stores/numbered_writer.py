"""Processes that record numbered messages, each under a name, and report the result of each message.

    numbered_writer.py URL MAX_FILE_BYTES NAME=DESCRIPTOR...

Every name is a separate process, which communicates through its socket. An input line is the number of messages to
record. An output line is a message and the position at which it was acknowledged, or an error, which ends the batch:
the next batch begins with the same message. In the first batch no file may grow beyond a size, unless that is 0. A
process ends when its socket is closed.
"""

import asyncio
import json
import os
import random
import resource
import socket
import sys
from contextlib import suppress

from holdfast import HoldfastError, Session
from holdfast.testing.chat import JsonMessage, user_message

SIZES = (100, 40, 2_000, 9_000)
"""Bytes of noise in a message, in turn; the largest message becomes a blob."""


def numbered(name: str, number: int) -> JsonMessage:
    """Return a message that hardly compresses, so that it takes space on the disk."""
    noise = random.Random(f"{name} {number}").randbytes(SIZES[number % len(SIZES)])
    return user_message(f"{name} {number} {noise.hex()}")


def limit_files(max_bytes: int) -> None:
    """Limit the size of files; only the soft limit, so that 0 can lift it again."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes or hard, hard))


async def write(url: str, max_file_bytes: int, name: str, descriptor: int) -> None:
    with socket.socket(fileno=descriptor).makefile("rw") as talk:

        def tell(line: object) -> None:
            talk.write(f"{json.dumps(line)}\n")
            talk.flush()

        async with Session.open("shared", store=url) as session:
            tell("ready")
            number, limit = 0, max_file_bytes
            while turn := talk.readline():
                limit_files(limit)
                limit = 0
                for _ in range(int(turn)):
                    message = numbered(name, number)
                    try:
                        positions = await session.record([message])
                    except HoldfastError as error:
                        tell({"error": type(error).__name__, "problem": str(error)})
                        break
                    tell({"position": positions.start, "message": message})
                    number += 1


def main(url: str, max_file_bytes: str, *writers: str) -> None:
    # Forked before there is any thread: ten processes for the price of one start.
    own = next((writer for writer in writers[1:] if not os.fork()), writers[0])
    name, _, descriptor = own.partition("=")
    asyncio.run(write(url, int(max_file_bytes), name, int(descriptor)))
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
