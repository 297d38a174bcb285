"""From a recipe, a data set and a split to everything that training needs, on one device."""

import functools
import hashlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from comatch import methods
from comatch.augment.batch import AugmentBatch
from comatch.augment.policies import Views
from comatch.config import values_of
from comatch.data import views
from comatch.data.cached_features import CachedFeatures, components
from comatch.data.features import Encoder
from comatch.data.feed import Feed
from comatch.data.resident import Resident
from comatch.data.splits import Split
from comatch.data.streaming import Streaming, in_pieces, side_for
from comatch.device import choose_precision
from comatch.methods import Method
from comatch.methods.distill import Distill
from comatch.nets import Network, WideResNet, build_encoder
from comatch.nets.engine import Engine
from comatch.nets.frozen import GivenFeatures, build_frozen
from comatch.nets.heads import WithHead
from comatch.nets.network import width_of
from comatch.nets.pretrained import Loaded
from comatch.nets.sync_batchnorm import sync_batchnorm
from comatch.training.checks import check
from comatch.training.init_weights import load_initial
from comatch.training.recipe import Recipe
from comatch.training.step import TrainStep
from comatch.training.trained import give_teacher
from comatch.types import Dataset, Files, Task


class Built(NamedTuple):
    """A run that is ready for its first step."""

    recipe: Recipe
    classes: list[str]
    method: Method
    feed: Feed
    step: TrainStep
    mean: Tensor  # [3]
    std: Tensor  # [3]
    whole: Network | None = None  # with the frozen encoder, whose features the method is given
    loaded: Loaded | None = None  # the initial weights, if they are not random

    @property
    def trained(self) -> Network:
        """The network from images to predictions that is saved."""
        evaluated = self.method.evaluated
        if self.whole is None:
            return evaluated
        self.whole.classifier, self.whole.projector = evaluated.classifier, evaluated.projector
        return self.whole


def build(recipe: Recipe, dataset: Dataset, split: Split, device: torch.device) -> Built:
    """Build method, feed and step."""
    model, size = recipe.model, recipe.dataset.image_size
    mean, std = (value.to(device) for value in normalisation(recipe, dataset))
    encoder = build_encoder_for(recipe)
    method = build_method(recipe, dataset, split, mean, std, encoder)
    if isinstance(method, Distill):
        give_teacher(method, recipe, dataset.classes)
    whole = whole_network(recipe, method, encoder) if model.frozen else None
    loaded = load_initial(net_of(encoder) if whole else method.net, model, size, dataset.classes)
    for average in method.networks[1:]:
        average.load_state_dict(method.net.state_dict())
    sync_batchnorm(method)
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    bf16 = choose_precision(recipe.precision, device) == "bf16"
    for net in method.networks:
        net.compute_dtype = torch.bfloat16 if bf16 else None
    if whole:
        feed: Feed = build_feature_feed(recipe, dataset, split, method, whole, mean, std)
    else:
        feed = build_feed(recipe, dataset, split, method, mean, std)
    step = TrainStep(method, feed, recipe, device)
    return Built(recipe, dataset.classes, method, feed, step, mean, std, whole, loaded)


def build_encoder_for(recipe: Recipe) -> nn.Module:
    model = recipe.model
    encoder = build_encoder(
        model.net,
        recipe.dataset.image_size,
        model.stem,
        model.norm_momentum,
        model.zero_last_gamma,
    )
    if isinstance(encoder, WideResNet):
        encoder.fused = model.fused
    if model.init_head_layers:
        encoder = WithHead(encoder, width_of(encoder), model.init_head_layers)
    return encoder


def build_method(
    recipe: Recipe,
    dataset: Dataset,
    split: Split,
    mean: Tensor,
    std: Tensor,
    encoder: nn.Module,
) -> Method:
    """The method with its network. Settings that do not fit method or data are an error."""
    model, optim = recipe.model, recipe.optim
    unlabelled = len(unlabelled_rows(recipe, split))
    task = Task(
        classes=len(dataset.classes) if recipe.uses_labels else 0,
        steps=optim.steps,
        epoch=max(1, unlabelled // (optim.batch * optim.mu)),
        unlabelled=unlabelled,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )
    if model.frozen:  # the method is given features
        images = len(split.labelled) + unlabelled
        encoder = GivenFeatures(components(recipe.features, width_of(encoder), images))
    method = methods.build(recipe.method, encoder, task)
    for net in method.networks:
        if recipe.uses_labels and net.projector:
            net.projector.set_activation(model.head_activation)
    check(recipe, method, dataset.train, len(split.unlabelled))
    return method


def whole_network(recipe: Recipe, method: Method, encoder: nn.Module) -> Network:
    """The frozen encoder, a projection, and the heads of the method."""
    evaluated = method.evaluated
    embedding_dim = evaluated.projector.width if evaluated.projector else 0
    with torch.random.fork_rng(devices=[]):  # its own heads are replaced
        whole = build_frozen(
            encoder,
            evaluated.classifier.in_features,
            method.classes,
            embedding_dim,
            recipe.model.head_activation,
        )
    return whole


def net_of(encoder: nn.Module) -> Network:
    """A network with this encoder, to load initial weights into the encoder."""
    with torch.random.fork_rng(devices=[]):
        return Network(encoder, classes=1)


def unlabelled_rows(recipe: Recipe, split: Split) -> Tensor:
    """The images that a step uses without labels; of some methods, labelled ones are among them."""
    too = methods.find(recipe.method.method).labelled_too
    return torch.cat([split.unlabelled, split.labelled]) if too else split.unlabelled


def build_feed(
    recipe: Recipe, dataset: Dataset, split: Split, method: Method, mean: Tensor, std: Tensor
) -> Feed:
    """The feed for these images: read from disk during training, or in device memory."""
    train, optim, device = dataset.train, recipe.optim, mean.device
    drawn = Views(**values_of(recipe.views), size=recipe.dataset.image_size)
    augment = AugmentBatch(method.views, drawn, mean, std)
    unlabelled, mu = unlabelled_rows(recipe, split), optim.mu
    if isinstance(train, Files):
        return Streaming(
            train.subset(split.labelled),
            train.subset(unlabelled if method.views else unlabelled[:0]),
            optim.batch,
            optim.mu if method.views else 0,
            augment,
            image_size=recipe.dataset.image_size,
            device=device,
            seed=recipe.seed,
            workers=recipe.streaming.workers,
            ahead=recipe.streaming.ahead,
        )
    if not method.views:  # the method uses no unlabelled image, and the feed cannot be empty
        unlabelled, mu = split.labelled[:1], 1
    parts = train.subset(split.labelled), train.subset(unlabelled), optim.batch, mu
    return Resident(*parts, augment).to(device)


def build_feature_feed(
    recipe: Recipe,
    dataset: Dataset,
    split: Split,
    method: Method,
    whole: Network,
    mean: Tensor,
    std: Tensor,
) -> Feed:
    """The feed of the features that the frozen encoder has of the images."""
    frozen: Any = whole.encoder
    unlabelled, mu = unlabelled_rows(recipe, split), recipe.optim.mu
    if not method.views:
        unlabelled, mu = split.labelled[:1], 1
    return CachedFeatures(
        dataset.train.subset(split.labelled),
        dataset.train.subset(unlabelled),
        recipe.optim.batch,
        mu,
        kinds=method.views,
        encoder=as_encoder(recipe, frozen.net, mean, std),
        projection=frozen.projection,
        config=recipe.features,
        device=mean.device,
    )


def feature_encoder(recipe: Recipe, dataset: Dataset, device: torch.device) -> Encoder:
    """The pre-trained encoder of a recipe with `init`, to encode images without training."""
    net = build_encoder_for(recipe)
    load_initial(net_of(net), recipe.model, recipe.dataset.image_size, dataset.classes)
    mean, std = (value.to(device) for value in normalisation(recipe, dataset))
    return as_encoder(recipe, net, mean, std)


def as_encoder(recipe: Recipe, net: nn.Module, mean: Tensor, std: Tensor) -> Encoder:
    """A network whose weights stay as they are, under its name in the feature cache."""
    size = recipe.dataset.image_size
    name = f"{recipe.model.net}-{size}px-{identity(net, mean, std)}"
    load = functools.cache(lambda: Engine(net, mean, std, size, mean.device))
    return Encoder(name, width_of(net), size, load)


def identity(net: nn.Module, mean: Tensor, std: Tensor) -> str:
    """A hash of the weights, of the normalisation and of how views are made.

    The features of another encoder, or of another version of it, are never used by mistake.
    """
    digest = hashlib.blake2b(f"{views.VERSION} {net}".encode(), digest_size=8)
    for tensor in (mean, std, *net.state_dict().values()):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def normalisation(recipe: Recipe, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, on a scale of 0 to 1: the recipe's, or measured."""
    mean, std = recipe.dataset.mean, recipe.dataset.std
    if mean is None or std is None:
        train, cpu = dataset.train, torch.device("cpu")
        some = train.subset(torch.arange(0, len(train), max(1, len(train) // 2_000)))
        size = recipe.dataset.image_size
        images = torch.cat([piece for piece, _ in in_pieces(some, size, cpu)])
        pixels = images.transpose(0, 1).flatten(1).double() / 255  # [3, n]
        mean = mean or tuple(pixels.mean(1).tolist())
        std = std or tuple(pixels.std(1).clamp(min=1e-3).tolist())
    return torch.tensor(mean), torch.tensor(std)


def description(run: Built) -> dict[str, Any]:
    """What is needed to use the trained network: model.json beside the weights."""
    projector = run.method.evaluated.projector
    projection = getattr(run.trained.encoder, "projection", None)
    model, size = run.recipe.model, run.recipe.dataset.image_size
    return {
        "net": model.net,
        "stem": model.stem,
        "image_size": size,
        "resize": side_for(size) if isinstance(run.feed, Streaming) else size,
        "embedding_dim": projector.width if projector and run.recipe.uses_labels else 0,
        "head_activation": model.head_activation,
        "head_layers": model.init_head_layers,
        "frozen": model.frozen,
        "components": projection.components if projection else 0,
        "classes": run.classes if run.recipe.uses_labels else [],
        "pretraining": "" if run.recipe.uses_labels else run.recipe.method_name,
        "mean": run.mean.tolist(),
        "std": run.std.tolist(),
        "preprocessing": "shorter side to resize, centre crop of image_size, "
        "(pixel / 255 - mean) / std",
    }
