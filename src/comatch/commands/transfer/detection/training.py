"""Training of a detector on COCO, and its score at the end."""

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import update_bn
from torchvision.models.detection import MaskRCNN

from comatch import files
from comatch.commands.transfer.detection import coco
from comatch.commands.transfer.detection.coco import CocoPart
from comatch.commands.transfer.detection.setting import Setting
from comatch.config import require
from comatch.data.image_workers import default_workers
from comatch.device import peak_memory_mb
from comatch.errors import UserError, shortened
from comatch.training import checkpoint
from comatch.training.journal import Journal
from comatch.training.loop import Interrupted, stop_on_bad_numbers
from comatch.training.meter import Meter, averages
from comatch.training.optim import gradient_norm, groups_of
from comatch.training.progress import OpenBar, watched
from comatch.training.run_folder import RunFolder
from comatch.training.signals import stoppable

LOG_EVERY = 20  # steps
LOWER_LR_HINT = "a smaller --batch, which also lowers the learning rate, with another --out"


class FineTuning:
    """A run: its detector and everything that the next step depends on."""

    def __init__(
        self,
        folder: RunFolder,
        setting: Setting,
        model: MaskRCNN,
        device: torch.device,
        workers: int | None = None,
    ) -> None:
        self.folder, self.setting = folder, setting
        self.model, self.device = model.to(device), device
        self.workers = default_workers() if workers is None else workers
        groups = groups_of(model, setting.weight_decay, decay_norms=False)
        self.optimizer = torch.optim.SGD(groups, lr=setting.lr, momentum=setting.momentum)
        self.parameters = list(model.parameters())
        self.meter = Meter()
        self.unread: set[str] = set()  # images that cannot be read, and why
        self.done, self.seconds, self.position = 0, 0.0, 0

    def fit(
        self, part: CocoPart, open_bar: OpenBar, save_every: int, notes: Sequence[str] = ()
    ) -> None:
        """Train until the last step, from the last checkpoint if there is one."""
        self.restore()
        began, last = time.perf_counter() - self.seconds, self.setting.steps
        title = f"Mask R-CNN {self.setting.schedule}"
        with (
            Journal(self.folder.path, self.position, self.done) as journal,
            open_bar(title, last, self.done) as bar,
            stoppable() as stop,
        ):
            for line in notes:
                bar.say(line)
            for images, targets in self.batches(part, range(self.done, last)):
                lr = self.step(images, targets)
                # At each step, because torchvision fails with another message on such weights.
                stop_on_bad_numbers(self.meter, self.done, self.folder, LOWER_LR_HINT)
                stopping = stop.asked
                bar.advance(self.done)
                if self.done == last or self.done % LOG_EVERY == 0:
                    means = averages(self.meter.read()) | {"lr": lr, "unread": len(self.unread)}
                    journal.write(self.done, "train", means)
                    bar.show(self.done, means)
                self.position, self.seconds = journal.position(), time.perf_counter() - began
                if self.done == last or self.done % save_every == 0 or stopping:
                    self.save()
                if stopping and self.done < last:
                    raise Interrupted(self.done, self.folder.path)

    def step(self, images: list[Tensor], targets: list[dict[str, Tensor]]) -> float:
        """Take one step of SGD; return its learning rate."""
        lr = self.setting.lr_at(self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()
        losses: dict[str, Tensor] = self.model(images, targets)
        loss = torch.stack(list(losses.values())).sum()
        self.optimizer.zero_grad()
        loss.backward()
        norm = gradient_norm(self.parameters)
        self.optimizer.step()
        self.done += 1
        self.meter.add(
            {
                "steps": torch.ones_like(norm),
                "finite_steps": (norm + loss.detach()).isfinite(),
                "loss": loss.detach(),
                "gradient_norm": norm,
                **{name: value.detach() for name, value in losses.items()},
            }
        )
        return lr

    def batches(
        self, part: CocoPart, steps: range
    ) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
        """Images and targets on the device. Images that cannot be read are left out."""
        batch, seed = self.setting.batch, self.setting.seed
        for examples in coco.batches(part, batch, seed, steps, self.workers):
            self.unread |= {one.why for one in examples if one.image is None}
            read = [(one.image, one.target) for one in examples if one.image is not None]
            require(bool(read), f"no image of a whole batch can be read ({examples[0].why})")
            images = [self.pixels(image) for image, _ in read]
            yield images, [{k: v.to(self.device) for k, v in target.items()} for _, target in read]

    def pixels(self, image: Tensor) -> Tensor:  # [3, H, W]
        return image.to(self.device).float() / 255

    # ----------------------------------------------------------------------------- scoring

    def summarise(self, train: CocoPart, test: CocoPart, progress: bool) -> dict[str, Any]:
        """Score the detector and write the summary."""
        began, setting = time.perf_counter(), self.setting
        self.model.backbone.bf16 = False  # scored in full precision, as classifiers are
        self.measure_norms(train, progress)
        scores, unread = self.score(test, progress)
        with Journal(self.folder.path, self.position, self.done) as journal:
            known = {name: value for name, value in scores.items() if value is not None}
            journal.write(self.done, "eval", known)
        for what, left in (("train2017", sorted(self.unread)), ("val2017", unread)):
            if left:
                some = shortened(left, between="; ")
                warnings.warn(f"{len(left)} of {what} were left out ({some})", stacklevel=2)
        summary = {
            "data": "coco",
            "start": setting.start,
            "net": setting.net,
            "schedule": setting.schedule,
            "seed": setting.seed,
            **scores,
            "checkpoint": "last",
            "steps": setting.steps,
            "batch": setting.batch,
            "seconds": round(self.seconds + time.perf_counter() - began, 2),
            "peak_memory_mb": peak_memory_mb(self.device),
            "unread": {"train2017": len(self.unread), "val2017": len(unread)},
        }
        files.write_json(self.folder.summary, summary)
        return summary

    @torch.no_grad()
    def measure_norms(self, part: CocoPart, progress: bool) -> None:
        """Replace batch norm's running means by means over many batches.

        Detectron2 calls this precise batch norm.
        """
        first, many = self.setting.steps, self.setting.norm_batches
        self.model.train()
        batches = watched(
            self.batches(part, range(first, first + many)), "batch norm", many, progress
        )
        padded = (self.model.transform(images)[0].tensors for images, _ in batches)
        if many:
            update_bn(padded, self.model.backbone)

    @torch.no_grad()
    def score(self, part: CocoPart, progress: bool) -> tuple[dict[str, float | None], list[str]]:
        """Average precision, and the images that could not be read."""
        self.model.eval()
        detections, ids, unread = list[coco.Detection](), list[int](), list[str]()
        every = coco.one_by_one(part, self.workers)
        for one in watched(every, "scoring", len(part), progress):
            if one.image is None:
                unread.append(one.why)
                continue
            (output,) = self.model([self.pixels(one.image)])
            detections += coco.to_detections(output, one.id, part.categories)
            ids.append(one.id)
        require(bool(ids), f"no image of {part.folder} can be read ({shortened(unread, 1)})")
        return coco.score(part, detections, ids), unread

    # -------------------------------------------------------------------------- checkpoint

    def save(self) -> None:
        state = {
            "step": self.done,
            "seconds": self.seconds,
            "journal": self.position,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "meter": self.meter.state_dict(),
            "unread": sorted(self.unread),
            "random": checkpoint.random_state(),
        }
        checkpoint.save(self.folder.checkpoint, state)

    def restore(self) -> None:
        """Restore the last checkpoint, if there is one."""
        path = self.folder.checkpoint
        if not path.exists():
            return
        state = checkpoint.load(path)
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.meter.load_state_dict(state["meter"], self.device)
            self.unread = set(state["unread"])
            checkpoint.set_random_state(state["random"])
            self.done, self.seconds = state["step"], state["seconds"]
            self.position = state["journal"]
        except (KeyError, RuntimeError, ValueError):
            raise UserError(
                f"{path} is of another version or another run: start with another --out"
            ) from None
