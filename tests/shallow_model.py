"""The embedded model with its first layers only.

Most tests of the embedded model are about its server: what it reads from its cache, what it bills, what it refuses.
They need its tokenizer and its context, not what thirty layers make of a prompt, which takes nearly all of the time.
"""

import struct
from pathlib import Path
from typing import IO, NamedTuple

LAYERS = 2
LAYER_COUNT_KEY = b"llama.block_count"
ALIGNMENT = 32
NUMBER_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


class Tensor(NamedTuple):
    name: bytes
    shape: bytes
    """The dimensions and the type, as they are written."""
    offset: int

    @property
    def is_kept(self) -> bool:
        """Whether it belongs to no layer, or to one of the first."""
        return not self.name.startswith(b"blk.") or int(self.name.split(b".")[1]) < LAYERS


def write_shallow_model(source: Path, target: Path) -> None:
    """Write a GGUF file that has only the first layers of another one."""
    with source.open("rb") as file:
        magic, version, tensor_count, key_count = struct.unpack("<4sIQQ", file.read(24))
        keys = b"".join(_read_key(file) for _ in range(key_count))
        tensors = [_read_tensor(file) for _ in range(tensor_count)]
        start = _aligned(file.tell())
        ends = [*(tensor.offset for tensor in tensors[1:]), source.stat().st_size - start]
        infos, blocks, offset = list[bytes](), list[bytes](), 0
        for tensor, end in zip(tensors, ends, strict=True):
            if tensor.is_kept:
                file.seek(start + tensor.offset)
                blocks.append(file.read(end - tensor.offset))
                infos.append(_string(tensor.name) + tensor.shape + struct.pack("<Q", offset))
                offset += len(blocks[-1])
    head = struct.pack("<4sIQQ", magic, version, len(infos), key_count) + keys + b"".join(infos)
    target.write_bytes(head.ljust(_aligned(len(head)), b"\0") + b"".join(blocks))


def _read_key(file: IO[bytes]) -> bytes:
    """Return a key with its value as they are written; the number of layers is ours."""
    name = _read_string(file)
    kind = file.read(4)
    value = _read_value(file, *struct.unpack("<I", kind))
    return _string(name) + kind + (struct.pack("<I", LAYERS) if name == LAYER_COUNT_KEY else value)


def _read_value(file: IO[bytes], kind: int) -> bytes:
    if kind == STRING:
        return _string(_read_string(file))
    if kind == ARRAY:
        head = file.read(12)
        item, count = struct.unpack("<IQ", head)
        return head + b"".join(_read_value(file, item) for _ in range(count))
    return file.read(NUMBER_SIZES[kind])


def _read_tensor(file: IO[bytes]) -> Tensor:
    name, rank = _read_string(file), file.read(4)
    shape = rank + file.read(8 * struct.unpack("<I", rank)[0] + 4)
    return Tensor(name, shape, struct.unpack("<Q", file.read(8))[0])


def _read_string(file: IO[bytes]) -> bytes:
    return file.read(struct.unpack("<Q", file.read(8))[0])


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
