"""Files of tensors. Reading one executes nothing in it, and notices damage by checksums.

PyTorch's own files have checksums, which `torch.load` does not look at. Safetensors files have
none, so those of a run carry one in their metadata.
"""

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

CHECKSUM = "checksum"


def to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file with a checksum."""
    whole = {name: value.contiguous().cpu() for name, value in tensors.items()}
    return save(whole, {CHECKSUM: checksum(whole)})


def read(path: Path) -> Any:
    """What is in a safetensors or PyTorch file. A damaged one can raise any error."""
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if (bad := archive.testzip()) is not None:
                raise ValueError(f"wrong checksum of {bad}")
    return torch.load(path, map_location="cpu", weights_only=True)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    content = path.read_bytes()  # safetensors itself opens no path that is not UTF-8
    tensors = load(content)
    length = int.from_bytes(content[:8], "little")
    expected = json.loads(content[8 : 8 + length]).get("__metadata__", {}).get(CHECKSUM)
    if expected not in (None, checksum(tensors)):
        raise ValueError("wrong checksum")
    return tensors


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of names, types, shapes and values."""
    crc = 0
    for name in sorted(tensors):
        value = tensors[name]
        crc = zlib.crc32(f"{name} {value.dtype} {list(value.shape)}".encode(), crc)
        crc = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"
