"""Features instead of images: what a frozen encoder said of a few views of each.

An encoder that does not learn says the same of the same view every time. So some views of each
image are looked at before the first step, and every step draws among those: the heads then learn
in milliseconds a step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from comatch.data.resident import Draw, Resident
from comatch.errors import UserError
from comatch.types import Images

LARGEST = 8e9  # bytes of features


class CachedFeatures(Resident):
    """Labelled and unlabelled images with the features of their views, on one device."""

    features_x: Tensor  # [X, kept, width]            of the labelled view
    features_u: Tensor  # [kinds, U, kept, width]     of each kind of view

    def __init__(
        self,
        labelled: Images,
        unlabelled: Images,
        batch: int,
        mu: int,
        *,
        labelled_view: str,
        views: Sequence[str],
        kept: int,
        width: int,
    ) -> None:
        super().__init__(labelled, unlabelled, batch, mu)
        self.labelled_view, self.views, self.kept = labelled_view, tuple(views), kept
        self.kinds = sorted(set(views))  # one may be declared twice, and is drawn twice
        shape_x = (len(labelled), kept, width)
        shape_u = (len(self.kinds), len(unlabelled), kept, width)
        size = 2 * (len(self.kinds) * len(unlabelled) + len(labelled)) * kept * width
        if size > LARGEST:
            raise UserError(
                f"the features of {kept} views of {len(unlabelled)} images would take "
                f"{size / 1e9:.0f} GB: --set kept_views={max(1, int(kept * LARGEST / size))}, "
                "or fewer images"
            )
        for name, shape in (("features_x", shape_x), ("features_u", shape_u)):
            empty = torch.zeros(shape, dtype=torch.half)
            self.register_buffer(name, empty, persistent=False)

    def passes(self) -> list[tuple[str, int]]:
        """What is to be computed of every image: kinds of views, and the number of each."""
        kinds = sorted({self.labelled_view, *self.kinds})
        return [(kind, number) for kind in kinds for number in range(self.kept)]

    def keep(self, kind: str, number: int, features: Tensor) -> None:  # [X + U, width]
        x, u = features.split([len(self.labels_x), len(self.labels_u)])
        if kind == self.labelled_view:
            self.features_x[:, number] = x
        if kind in self.kinds:
            self.features_u[self.kinds.index(kind), :, number] = u

    def as_labelled(self) -> Tensor:  # [n, width]
        """Images as labelled ones are seen: some of the views that are kept."""
        seen = [self.features_x.flatten(0, 1)]
        if self.labelled_view in self.kinds:
            seen.append(self.features_u[self.kinds.index(self.labelled_view), :, 0])
        return torch.cat(seen)

    def draw(self) -> Draw:
        x, u = self.shuffle_x.draw(), self.shuffle_u.draw()
        views = [self._one_of(self.features_u[self.kinds.index(kind)], u) for kind in self.views]
        return Draw(
            self._one_of(self.features_x, x),
            self.labels_x.index_select(0, x),
            torch.stack(views, 1) if views else self.features_x.new_zeros(len(u), 0, 0),
            u,
            self.labels_u.index_select(0, u),
        )

    def _one_of(self, features: Tensor, rows: Tensor) -> Tensor:  # [n, width]
        """Any of the views that are kept of each of these rows."""
        drawn = rows * self.kept + torch.randint(self.kept, (len(rows),), device=rows.device)
        return features.flatten(0, 1).index_select(0, drawn)
