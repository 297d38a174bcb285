"""Features of a frozen encoder instead of images.

Several views of each image are encoded once, before training, and every step draws among them: so a
step of the heads takes milliseconds. The heads see features after a `Projection`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from comatch.config import Config, setting
from comatch.data import features, views
from comatch.data.features import Encoder, Features
from comatch.data.feed import Draw, Feed, Watch
from comatch.data.order import Shuffler
from comatch.errors import UserError
from comatch.projection import Projection
from comatch.types import AllImages, Batch, Examples, Part

CHUNK = 8192  # rows that are projected at once
FITTED = 20_000  # images that the projection is fitted to
LARGEST = 32 * 10**9  # bytes of projected features


@dataclass(frozen=True)
class FeatureConfig(Config):
    """Views and features of a frozen encoder."""

    views: int | None = setting(
        None, "views of each image that are encoded; default: by view_budget", least=2, most=26
    )
    view_budget: int = setting(50_000, "views of all images, from 4 to 26 of each", least=1)
    view_seconds: float | None = setting(
        None, "seconds of encoding, then training begins with the views there are", above=0
    )
    components: int = setting(256, "principal components of the features", least=1)


class AsDrawn:
    """Features are views already: nothing is left to augment."""

    def __call__(self, x: Tensor, y: Tensor, u: Tensor, rows: Tensor) -> Batch:
        return Batch(x.float(), y, u.float().unbind(1), rows)

    def plain(self, images: Tensor) -> Tensor:
        return images.float()


class Cached(NamedTuple):
    """Projected features of the images of one part, on the device."""

    weak: Tensor  # [N, W, components] float16
    strong: Tensor  # [N, S, components]
    plain: Tensor  # [N, components]


class CachedFeatures(Feed):
    """Labelled and unlabelled images as features of their views.

    Ctrl-C stops the encoding, and the run goes on with the views there are. Its checkpoint has the
    projection and the number of views of each image, so a resumed run sees the same features.
    """

    views_x: Tensor  # [X] number of views of each labelled image
    views_u: Tensor  # [U]
    readable_x: Tensor  # [X] the row itself, or another one instead of an unreadable image
    readable_u: Tensor  # [U]
    labels_x: Tensor
    labels_u: Tensor
    tiny_batches = True

    def __init__(
        self,
        labelled: Part,
        unlabelled: Part,
        batch: int,
        mu: int,
        *,
        kinds: Sequence[str],
        encoder: Encoder,
        projection: Projection,
        config: FeatureConfig,
        device: torch.device,
    ) -> None:
        super().__init__(AsDrawn())
        self.parts = (labelled, unlabelled)
        self.kinds, self.encoder, self.config, self.device = tuple(kinds), encoder, config, device
        self.projection = projection
        for name, part in (("x", labelled), ("u", unlabelled)):
            rows = torch.arange(len(part))
            self.register_buffer(f"views_{name}", torch.zeros_like(rows))
            self.register_buffer(f"readable_{name}", rows)
            self.register_buffer(f"labels_{name}", part.labels, persistent=False)
        self.shuffle_x = Shuffler(len(labelled), batch)
        self.shuffle_u = Shuffler(len(unlabelled), batch * mu)
        self.cached_x: Cached | None = None
        self.cached_u: Cached | None = None
        self.to(device)

    # ------------------------------------------------------------------------------- encoding

    def prepare(self, watch: Watch) -> bool:
        """Encode the views, fit the projection, load the features; return False if stopped."""
        config, parts = self.config, [Features(part, self.encoder) for part in self.parts]
        resumed = bool(self.views_x.any())
        wanted = features.views_for(sum(map(len, parts)), config.views, config.view_budget)
        if resumed:
            wanted = int(torch.cat([self.views_x, self.views_u]).max())
        features.encode_all(parts, wanted, None if resumed else config.view_seconds, watch)
        counts = [features.count_views(part, wanted) for part in parts]
        if min(count[count > 0].min(initial=wanted) for count in counts) < 2 or (
            any(
                (count == 0).sum() > len(part.bad)
                for count, part in zip(counts, parts, strict=True)
            )
        ):
            return False  # stopped before every image had two views
        watch.go_on()
        if not resumed:
            self.views_x.copy_(torch.from_numpy(counts[0]))
            self.views_u.copy_(torch.from_numpy(counts[1]))
            self.replace_unreadable(parts)
            self.projection.fit(*sample(parts[0], parts[1]))
        self.cached_x = self.load(parts[0], self.views_x)
        self.cached_u = self.load(parts[1], self.views_u)
        return True

    def replace_unreadable(self, parts: Sequence[Features]) -> None:
        """Let another image stand in for each unreadable one: of the same class, if labelled."""
        for part, readable, labels in (
            (parts[0], self.readable_x, self.labels_x),
            (parts[1], self.readable_u, None),
        ):
            good = np.setdiff1d(np.arange(len(part)), list(part.bad))
            for row in part.bad:
                others = (
                    good if labels is None else good[(labels[good] == labels[row]).cpu().numpy()]
                )
                if not len(others):
                    name = part.part.names[row]
                    raise UserError(
                        f"the only labelled image of a class cannot be read ({name}: "
                        f"{part.bad[row]}): mend it or label another one"
                    )
                readable[row] = int(others[row % len(others)])

    @torch.no_grad()
    def load(self, part: Features, count: Tensor) -> Cached:
        """The projected features of all views of a part."""
        most = int(count.max()) if len(count) else 2
        weak, strong = views.of_kind(views.WEAK, most), views.of_kind(views.STRONG, most)
        k = self.projection.components
        size = 2 * len(part) * most * k
        if size > LARGEST:
            raise UserError(
                f"the features of {len(part):,} images with {most} views take {size / 1e9:.0f} GB: "
                f"use fewer views (--set views=...) or components"
            )
        found = [
            torch.zeros(len(part), len(numbers), k, dtype=torch.half, device=self.device)
            for numbers in (weak, strong)
        ]
        for begin in range(0, len(part), CHUNK):
            rows = slice(begin, begin + CHUNK)
            for target, numbers in zip(found, (weak, strong), strict=True):
                for place, view in enumerate(numbers):
                    raw, there = part.read(view, rows)
                    projected = self.projection(torch.from_numpy(raw).to(self.device))
                    target[rows, place] = projected.half() * torch.from_numpy(there)[:, None].to(
                        self.device
                    )
        return Cached(found[0], found[1], found[0][:, 0])

    def inputs(self, part: Part) -> Iterator[tuple[Tensor, Tensor]]:
        """The plain views of any part. Images that cannot be read are left out."""
        known = Features(part, self.encoder)
        features.encode_all([known], 1, shared=False)
        for begin in range(0, len(part), CHUNK):
            plain, there = known.read(views.PLAIN, slice(begin, begin + CHUNK))
            if there.any():
                rows = torch.from_numpy(np.flatnonzero(there)) + begin
                yield (
                    self.projection(torch.from_numpy(plain[there]).to(self.device)),
                    part.labels[rows],
                )

    # ------------------------------------------------------------------------------- drawing

    def before_step(self, step: int) -> None:
        self.shuffle_x.before_step(step)
        self.shuffle_u.before_step(step)

    def draw(self) -> Draw:
        assert self.cached_x
        assert self.cached_u
        x = self.readable_x.index_select(0, self.shuffle_x.draw())
        u = self.readable_u.index_select(0, self.shuffle_u.draw())
        drawn = [self.one_of(self.cached_u, self.views_u, u, kind) for kind in self.kinds]
        return Draw(
            self.one_of(self.cached_x, self.views_x, x, views.WEAK),
            self.labels_x.index_select(0, x),
            torch.stack(drawn, 1) if drawn else self.cached_u.plain.new_zeros(len(u), 0, 0),
            u,
            self.labels_u.index_select(0, u),
        )

    def one_of(self, cached: Cached, count: Tensor, rows: Tensor, kind: str) -> Tensor:
        """A random view of each row; a plain one if it has no strong one."""
        many = count.index_select(0, rows)
        weak, strong = (many + 3) // 2, (many - 2) // 2  # of the first views: 0, 1, 2, 4, ...
        weak = torch.where(many < 3, many, weak)
        if kind == views.WEAK or cached.strong.shape[1] == 0:
            return pick(cached.weak, rows, weak)
        drawn = pick(cached.strong, rows, strong.clamp(min=1))
        return torch.where((strong > 0)[:, None], drawn, pick(cached.weak, rows, weak))

    def everything(self) -> AllImages:
        """Of each image the mean over its weak views."""
        assert self.cached_x
        assert self.cached_u
        x = means(self.cached_x.weak, self.readable_x)
        u = means(self.cached_u.weak, self.readable_u)
        return AllImages(x, self.labels_x, u, self.labelled_views())

    def labelled_views(self) -> Iterator[Tensor]:
        """All views that every labelled image has [n, V, components], the plain one first."""
        assert self.cached_x
        fewest = int(self.views_x[self.readable_x].min())
        weak, strong = (len(views.of_kind(kind, fewest)) for kind in (views.WEAK, views.STRONG))
        for rows in self.readable_x.split(CHUNK):
            both = self.cached_x.weak[rows, :weak], self.cached_x.strong[rows, :strong]
            yield torch.cat(both, 1).float()

    def examples(self) -> Examples:
        """What an estimator is fitted to."""
        assert self.cached_u
        plain = self.cached_u.plain[self.readable_u].float()
        return Examples(torch.cat(list(self.labelled_views())), self.labels_x, plain)

    def counts(self) -> dict[str, float]:
        every = torch.cat([self.views_x, self.views_u])
        return {"views": every.float().mean().item(), "unreadable": int((every == 0).sum())}


def components(config: FeatureConfig, width: int, images: int) -> int:
    """The number of components: no more than the features and the images can have."""
    return max(1, min(config.components, width, 2 * images - 1))


def means(views: Tensor, rows: Tensor) -> Iterator[Tensor]:  # [N, V, k], [n] -> [n, k] in pieces
    return (views[some].float().mean(1) for some in rows.split(CHUNK))


def pick(cached: Tensor, rows: Tensor, count: Tensor) -> Tensor:  # [N, V, k] -> [n, k]
    """A random one of the first `count` views of each row."""
    drawn = (torch.rand(len(rows), device=rows.device) * count).long()
    place = rows * cached.shape[1] + torch.minimum(drawn, count - 1)
    return cached.flatten(0, 1).index_select(0, place)


def sample(*parts: Features) -> tuple[Tensor, Tensor]:
    """Plain and flipped views of some images, to fit the projection to."""
    found: list[list[Tensor]] = [[], []]
    step = max(1, sum(map(len, parts)) // FITTED)
    for part in parts:
        rows = slice(None, None, step)
        (plain, there), (flipped, also) = (part.read(view, rows) for view in (0, 1))
        good = there & also
        found[0].append(torch.from_numpy(plain[good]))
        found[1].append(torch.from_numpy(flipped[good]))
    return torch.cat(found[0]), torch.cat(found[1])
