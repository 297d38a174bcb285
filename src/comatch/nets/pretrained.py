"""Load pre-trained weights into a network, and report which tensors were not loaded.

The names in a file and in a network often differ. The rules for each name in the file:

    1. Prefixes in `WRAPPERS` are dropped one by one until the network has the name.
       If two names become the same, the shorter one is used.
    2. A name that the network does not have is not used: a classifier, a second network, a queue.
    3. A tensor of another shape is left out, and the network keeps its own.

The encoder loads each tensor that fits, including batch-norm statistics. A head is loaded
completely or not at all. `ALIASES` has the names of heads in published files: of MoCo v2, of the
authors of CoMatch, and of torchvision's classifiers. The published encoders of SimCLR (converted),
BYOL, SwAV, PIRL and PCL have torchvision's names, below other prefixes.
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
from torch import Tensor, nn

from comatch import weights as weights_file
from comatch.config import check_name
from comatch.errors import UserError, shortened
from comatch.nets import create, encoders

WRAPPERS = (
    *("module", "_orig_mod", "model", "net", "network", "backbone", "encoder"),
    "encoder_q",  # MoCo v2, PCL
    "_feature_blocks",  # PIRL in VISSL's layout
    "online_network",  # BYOL
)
INSIDE = (  # keys of the weights in a checkpoint
    *("state_dict", "model", "model_state_dict"),
    *("classy_state_dict", "base_model", "trunk"),  # PIRL in VISSL's layout
    "online_backbone",  # BYOL
)
IGNORED = "num_batches_tracked"  # has no effect, and older files do not have it
TIMM = "timm"
ALIASES = {
    "projector.layers.0.": ("fc.0.", "fc1."),  # MoCo v2, CoMatch
    "projector.layers.2.": ("fc.2.", "fc2."),
    "classifier.": ("fc.",),
}


# ------------------------------------------------------------------------ into a network


@dataclass(frozen=True)
class Loaded:
    """A report of what a network loaded, and what it did not."""

    source: str
    taken: int  # tensors of the encoder
    wanted: int
    heads: dict[str, str]  # for each head "loaded", or "new" with the reason
    left_out: list[str]  # of the encoder, with the reason
    unused: list[str]  # of the source, by the first part of their names

    def lines(self) -> list[str]:
        """One line of text, and a second one if something was not loaded."""
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
    net: nn.Module, weights: Mapping[str, Tensor], source: str, classifier: bool = False
) -> Loaded:
    """Load the weights that fit. It is an error, and changes nothing, if none fits the encoder.

    The classifier is loaded only with `classifier`, if it is known to be for the same classes.
    """
    match = Match(net, weights, classifier)
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
    """Which tensor of the source belongs to which tensor of the network, and whether it fits."""

    def __init__(self, net: nn.Module, weights: Mapping[str, Tensor], classifier: bool) -> None:
        self.own: dict[str, Tensor] = net.state_dict()
        self.weights = weights
        self.encoder = [
            name for name in self.own if name.startswith("encoder.") and not name.endswith(IGNORED)
        ]
        known = {name.removeprefix("encoder."): name for name in self.own}
        for ours, others in ALIASES.items():
            for name in self.own:
                if name.startswith(ours) and (classifier or ours != "classifier."):
                    for other in others:
                        known.setdefault(name.replace(ours, other, 1), name)
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
        """For each head of the network: "loaded", or "new" with the reason."""
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
        """One tensor that the encoder needs and one of the source, of the same name if possible."""
        wanted = next((name for name in self.encoder if name in self.found), self.encoder[0])
        there = self.found.get(wanted) or next(iter(self.weights))
        return (
            f"it needs {wanted.removeprefix('encoder.')} ({sides(self.own[wanted])}) and so on, "
            f"there is {there} ({sides(self.weights[there])}): "
            "use --set net=... for the net that these weights are of"
        )


# ------------------------------------------------------------------------- from a source


def is_timm(source: str) -> bool:
    """Whether this names weights of timm; everything else is a path."""
    return source == TIMM or source.startswith(f"{TIMM}:")


def name_of(source: str, net: str) -> str:
    """timm's name of the weights: NAME.TAG, or the net if none is given."""
    return source.partition(":")[2] or net


def read_file(path: Path) -> dict[str, Tensor]:
    """Tensors by name, from a state dict or a checkpoint that contains one. Nothing is executed."""
    try:
        content = weights_file.read(path)
    except Exception as error:  # an unknown file can cause any error
        raise UserError(f"{path} {refusal(error)}") from None
    weights = tensors(content)
    if not weights:
        raise UserError(
            f"{path} holds no state dict, neither plain nor under {' or '.join(INSIDE[:3])}: "
            "give another file, or of a run the folder"
        )
    return weights


def tensors(content: Any) -> dict[str, Tensor]:
    """The outermost dictionary that has tensors."""
    if not isinstance(content, Mapping):
        return {}
    here = {str(name): t for name, t in content.items() if isinstance(t, Tensor)}
    deeper = (tensors(content[key]) for key in INSIDE if key in content)
    return here or next((weights for weights in deeper if weights), {})


def seen_by_timm(name: str) -> Any:
    """The preprocessing of timm's weights (`mean`, `std`, `input_size`), or None if unknown."""
    import timm

    return timm.models.get_pretrained_cfg(name)


def check_timm(source: str, net: str) -> str:
    """The full name of timm's weights for this net. It is an error if they cannot be had.

    Without a network that shows within seconds. The hub itself would try again for a minute.
    """
    import timm

    name = name_of(source, net)
    if name.split(".")[0] != net:
        raise UserError(f"--init {source} is not for net={net}: use {TIMM}, or --set net=...")
    there = timm.list_pretrained(f"{net}.*")
    if not there:
        raise UserError(f"timm has no weights for net={net}: give a file or a run folder")
    if name != net:
        check_name(name, there, "weights of timm")
    config = seen_by_timm(name)
    repository = config.hf_hub_id  # None of a few, which timm gets from elsewhere
    full = f"{config.architecture}.{config.tag}"
    if repository == encoders.repository(full) and not encoders.is_available(full):
        raise UserError(
            f"the weights {full} are not on this machine, and {encoders.WEIGHT_FILES[0]} of "
            f"{repository} cannot be downloaded from the Hugging Face Hub: give a file of them, "
            "--init FILE"
        )
    return name


def read_timm(source: str, net: str, image_size: int) -> tuple[dict[str, Tensor], str]:
    """The weights that timm has for this net, and their full name; timm may download them."""
    name = check_timm(source, net)
    with silent_hub(), torch.random.fork_rng(devices=[]):  # keep the random state of the run
        try:
            encoder = create(name, image_size, pretrained=True)
        except Exception as error:  # from the network, the hub or the disk
            reason = first_line(error).split(". ")[0]
            raise UserError(
                f"timm cannot get its weights for {name} ({reason}): name a file of them with "
                "--init FILE"
            ) from None
    tag = getattr(encoder, "pretrained_cfg", {}).get("tag")
    return encoder.state_dict(), f"{TIMM}:{net}.{tag}" if tag else f"{TIMM}:{name}"


@contextmanager
def silent_hub() -> Iterator[None]:
    """Hide the hub's warnings about each failed attempt."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


# ----------------------------------------------------------------------------- messages


def plain(name: str) -> str:
    """A name without wrapper prefixes."""
    return re.sub(rf"^(({'|'.join(WRAPPERS)})\.)+", "", name)


def sides(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def grouped(names: set[str]) -> list[str]:
    """`encoder_k (159), queue`: the first parts of the names, and how many share each."""
    words = Counter(plain(n).split(".")[0] for n in sorted(names) if not n.endswith(IGNORED))
    return [word if count == 1 else f"{word} ({count})" for word, count in words.items()]


def refusal(error: Exception) -> str:
    """Why a file could not be read, and what to do."""
    code = re.search(r"GLOBAL ([\w.]+)", str(error))
    if code:
        return (
            f"holds more than weights ({code[1]}), and nothing in it is executed: "
            "save its state dict alone, where you trust it, and give that"
        )
    # The message of an unpickler is several lines long.
    detail = "" if isinstance(error, pickle.UnpicklingError) else f" ({first_line(error)})"
    return f"is no file of weights, or damaged{detail}: give another"


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
