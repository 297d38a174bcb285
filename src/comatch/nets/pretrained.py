"""Pre-trained weights into a network: what fits is taken, and a report says what did not.

A file and a network seldom agree on names. The rule, for each name of the file:

    1. Words of `WRAPPERS` are dropped from its front, one by one, until the network knows the rest.
       Where two names come to the same, the shorter one counts.
    2. A name that the network never knows is not used: a classifier, a second network, a queue.
    3. A tensor of another shape is left out, and the network keeps what it had.

The encoder takes each tensor that fits, batch-norm statistics among them; a head is taken whole or
not at all. MoCo v2 calls the two layers of its projection fc.0 and fc.2.
"""

import logging
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from comatch.config import check_name
from comatch.errors import UserError, shortened
from comatch.nets import create
from comatch.nets.network import Network

WRAPPERS = ("module", "_orig_mod", "model", "net", "network", "backbone", "encoder", "encoder_q")
INSIDE = ("state_dict", "model", "model_state_dict")  # where a checkpoint keeps its weights
UNCOUNTED = "num_batches_tracked"  # of no consequence, and older files have none
TIMM = "timm"


# ------------------------------------------------------------------------- into the network


@dataclass(frozen=True)
class Loaded:
    """What a network took from somewhere, and what it did not."""

    source: str
    taken: int  # tensors of the encoder
    wanted: int
    heads: dict[str, str]  # for each head "loaded", or "new" and why
    left_out: list[str]  # of the encoder, with the reason
    unused: list[str]  # of the source, by the first word of their names

    def lines(self) -> list[str]:
        """For a person: one line, and a second one if something did not go in."""
        heads = "".join(f", {head} {what}" for head, what in self.heads.items())
        first = f"began from {self.source}: {self.taken} of {self.wanted} encoder tensors{heads}"
        rest = []
        if self.left_out:
            rest.append(f"left out: {shortened(self.left_out)}")
        if self.unused:
            rest.append(f"not used: {shortened(self.unused, 5)}")
        return [first, "; ".join(rest)] if rest else [first]

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "encoder": {"taken": self.taken, "wanted": self.wanted},
            **self.heads,
            "left_out": shortened(self.left_out, 20),
            "unused": shortened(self.unused, 20),
        }


@torch.no_grad()
def fill(
    net: Network, weights: Mapping[str, Tensor], source: str, classifier: bool = False
) -> Loaded:
    """Puts the weights that fit into the network; with none for its encoder, nothing is changed.

    The classifier begins anew unless it is known to be for the same classes.
    """
    match = Match(net, weights)
    missing = [name for name in match.encoder if not match.fits(name)]
    if len(missing) == len(match.encoder):
        raise UserError(f"nothing of {source} fits the encoder: {match.example()}")
    heads = match.heads(classifier)
    for name, value in match.own.items():
        if match.fits(name) and heads.get(name.split(".")[0], "loaded") == "loaded":
            value.copy_(weights[match.found[name]])
    return Loaded(
        source,
        len(match.encoder) - len(missing),
        len(match.encoder),
        heads,
        [f"{name.removeprefix('encoder.')} ({match.why_not(name)})" for name in missing],
        grouped(set(weights) - set(match.found.values())),
    )


class Match:
    """Which tensor of a source belongs to which of a network, and whether it fits."""

    def __init__(self, net: Network, weights: Mapping[str, Tensor]) -> None:
        self.own: dict[str, Tensor] = net.state_dict()
        self.weights = weights
        self.encoder = [
            name
            for name in self.own
            if name.startswith("encoder.") and not name.endswith(UNCOUNTED)
        ]
        known = {name.removeprefix("encoder."): name for name in self.own}
        for name in self.own:
            if name.startswith("projector.layers."):
                known.setdefault(name.replace("projector.layers.", "fc."), name)  # MoCo v2
        self.found: dict[str, str] = {}  # the network's name -> the source's
        for name in sorted(weights, key=len):
            rest = name
            while rest not in known and rest.partition(".")[0] in WRAPPERS:
                rest = rest.partition(".")[2]
            if rest in known:
                self.found.setdefault(known[rest], name)

    def fits(self, name: str) -> bool:
        return name in self.found and self.there(name).shape == self.own[name].shape

    def there(self, name: str) -> Tensor:
        return self.weights[self.found[name]]

    def why_not(self, name: str) -> str:
        if name not in self.found:
            return "not in it"
        return f"{sides(self.there(name))} in it, {sides(self.own[name])} here"

    def heads(self, classifier: bool) -> dict[str, str]:
        """Of the heads that the network has: loaded, or new and why."""
        verdicts: dict[str, str] = {}
        for head in ("projector", "classifier"):
            names = [name for name in self.own if name.startswith(f"{head}.")]
            strange = [name for name in names if not self.fits(name)]
            if head == "classifier" and not classifier:
                there = any(name in self.found for name in names)
                verdicts[head] = "new (not known to be for these classes)" if there else "new"
            elif strange:
                verdicts[head] = f"new ({self.why_not(strange[0])})"
            elif names:
                verdicts[head] = "loaded"
        return verdicts

    def example(self) -> str:
        """What is needed and what there is: of the same name, if one is."""
        wanted = next((name for name in self.encoder if name in self.found), self.encoder[0])
        there = self.found.get(wanted) or next(iter(self.weights))
        return (
            f"it needs {wanted.removeprefix('encoder.')} ({sides(self.own[wanted])}) and so on, "
            f"there is {there} ({sides(self.weights[there])}): "
            "use --set net=... for the net that these weights are of"
        )


# -------------------------------------------------------------------------- out of a source


def is_timm(source: str) -> bool:
    """Whether this is a name of timm's; everything else is a path."""
    return source == TIMM or source.startswith(f"{TIMM}:")


def name_of(source: str, net: str) -> str:
    """What timm calls these weights: NAME.TAG, or the net where none is said."""
    return source.partition(":")[2] or net


def read_file(path: Path) -> dict[str, Tensor]:
    """Tensors by name, from a state dict or a checkpoint with one in it. Nothing is executed."""
    try:
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a stranger's file may fail in any way
        raise UserError(f"{path} {refusal(error)}") from None
    weights = tensors(content)
    if not weights:
        raise UserError(
            f"{path} holds no state dict, neither plain nor under {' or '.join(INSIDE)}: "
            "give another file, or of a run the folder"
        )
    return weights


def tensors(content: Any) -> dict[str, Tensor]:
    """The first dictionary with tensors, from the outside to the inside."""
    if not isinstance(content, Mapping):
        return {}
    here = {str(name): t for name, t in content.items() if isinstance(t, Tensor)}
    deeper = (tensors(content[key]) for key in INSIDE if key in content)
    return here or next((weights for weights in deeper if weights), {})


def seen_by_timm(name: str) -> Any:
    """How these weights of timm's saw images (`mean`, `std`, `input_size`); none: not known."""
    import timm

    return timm.models.get_pretrained_cfg(name)


def read_timm(source: str, net: str, image_size: int) -> tuple[dict[str, Tensor], str]:
    """The weights that timm has for this net, and their full name; timm may download them."""
    import timm

    name = name_of(source, net)
    if name.split(".")[0] != net:
        raise UserError(f"--init {source} is not for net={net}: use {TIMM}, or --set net=...")
    there = timm.list_pretrained(f"{net}.*")
    if not there:
        raise UserError(f"timm has no weights for net={net}: give a file or a run folder")
    if name != net:
        check_name(name, there, "weights of timm")
    with silent_hub(), torch.random.fork_rng(devices=[]):  # no draw here may change the run
        try:
            encoder = create(name, image_size, pretrained=True)
        except Exception as error:  # of the network, of the hub or of the disk
            reason = first_line(error).split(". ")[0]
            raise UserError(
                f"timm cannot get its weights for {name} ({reason}): without a network, "
                "fetch them elsewhere and give the file"
            ) from None
    tag = getattr(encoder, "pretrained_cfg", {}).get("tag")
    return encoder.state_dict(), f"{TIMM}:{net}.{tag}" if tag else f"{TIMM}:{name}"


@contextmanager
def silent_hub() -> Iterator[None]:
    """Where there is no network, the hub tells of each of its attempts: the outcome is enough."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


# ---------------------------------------------------------------------------- in plain words


def plain(name: str) -> str:
    """A name without the words that only wrap it."""
    return re.sub(rf"^(({'|'.join(WRAPPERS)})\.)+", "", name)


def sides(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def grouped(names: set[str]) -> list[str]:
    """`encoder_k (159), queue`: first words, and how many begin with each."""
    words = Counter(plain(n).split(".")[0] for n in sorted(names) if not n.endswith(UNCOUNTED))
    return [word if count == 1 else f"{word} ({count})" for word, count in words.items()]


def refusal(error: Exception) -> str:
    """Why a file could not be read, and what to do."""
    code = re.search(r"GLOBAL ([\w.]+)", str(error))
    if code:
        return (
            f"holds more than weights ({code[1]}), and nothing in it is executed: "
            "save its state dict alone, where you trust it, and give that"
        )
    # An unpickler explains itself at length.
    detail = "" if isinstance(error, pickle.UnpicklingError) else f" ({first_line(error)})"
    return f"is no file of weights, or damaged{detail}: give another"


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
