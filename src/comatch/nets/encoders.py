"""Recommended pre-trained encoders, and which of them can be had now.

All of them come from timm, with a licence that allows commercial use. Any other name of timm works
too. This module imports neither PyTorch nor timm before it needs them.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from comatch import compiler_cache, files

PROBE_SECONDS = 3.0  # that the model hub may take to answer
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # on the hub, by preference
LARGEST_INPUT = 288  # pixels: models made for larger images are used at `USUAL_INPUT`
USUAL_INPUT = 224


class Recommended(NamedTuple):
    """A pre-trained encoder."""

    name: str  # timm's
    image_size: int
    megabytes: int
    licence: str
    note: str


ENCODERS = {
    one.name: one
    for one in (
        Recommended("tf_efficientnet_lite0.in1k", 224, 19, "Apache-2.0", "default on a CPU"),
        Recommended("vit_small_patch14_dinov2.lvd142m", 224, 88, "Apache-2.0", "default on a GPU"),
        Recommended("vit_base_patch14_dinov2.lvd142m", 224, 346, "Apache-2.0", "for a GPU"),
        Recommended("convnext_tiny.in12k_ft_in1k", 224, 114, "Apache-2.0", ""),
    )
}
NONE = "none"  # instead of a name: random weights
ON_CPU, ON_GPU = "tf_efficientnet_lite0.in1k", "vit_small_patch14_dinov2.lvd142m"


def first_available(gpu: bool) -> Recommended | None:
    """The default encoder if its weights can be had, else a recommended one that is cached."""
    default = ENCODERS[ON_GPU if gpu else ON_CPU]
    if is_available(default.name):
        return default
    return next((one for one in ENCODERS.values() if is_cached(one.name)), None)


def is_available(name: str) -> bool:
    """Whether the weights are on this machine, or can be downloaded now."""
    return is_cached(name) or can_download(name)


def is_cached(name: str) -> bool:
    """Whether the weights are on this machine already."""
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(repository(name), file) for file in WEIGHT_FILES)
    return any(isinstance(path, str) for path in found)


def can_download(name: str) -> bool:
    """Whether the hub answers soon that it has the weights."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(repository(name), WEIGHT_FILES[0]), timeout=PROBE_SECONDS)
    except Exception:  # of the network, of the hub, or offline by choice
        return False
    return True


def repository(name: str) -> str:
    return f"timm/{name}"


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a recipe that uses this encoder, frozen. The name may lack timm's tag."""
    known = ENCODERS.get(name) or next(
        (one for one in ENCODERS.values() if one.name.split(".")[0] == name), None
    )
    full = known.name if known else name
    size = known.image_size if known else input_size(name)
    return {
        "net": full.split(".")[0],
        "init": f"timm:{full}",
        "image_size": size,
        "frozen": True,
    }


def input_size(name: str) -> int:
    """The image size of any model of timm."""
    import timm

    config = timm.models.get_pretrained_cfg(name)
    size = config.input_size[-1] if config else USUAL_INPUT
    return size if size <= LARGEST_INPUT else USUAL_INPUT


def licence(init: str) -> str:
    """Size and licence of weights of timm, as far as they are known."""
    name = init.partition(":")[2]
    if name in ENCODERS:
        return f"{ENCODERS[name].megabytes} MB, {ENCODERS[name].licence}"
    return "see the licence on its model card"


# ---------------------------------------------------------------------------- speed, measured


def rates_file() -> Path:
    return compiler_cache.folder() / "encoders.json"


def rates() -> dict[str, float]:
    """Views a second on this machine, of the encoders that were measured."""
    with suppress(OSError, ValueError):
        found = json.loads(rates_file().read_text())
        return {name: float(rate) for name, rate in found.items()}
    return {}


def store_rate(name: str, rate: float) -> None:
    with suppress(OSError):
        rates_file().parent.mkdir(parents=True, exist_ok=True)
        files.write_json(rates_file(), rates() | {name: round(rate, 1)})
