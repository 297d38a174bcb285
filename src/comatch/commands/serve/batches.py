"""Images of several requests are classified together, which is faster than one by one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from comatch.classifier import TrainedClassifier

BATCH = 32

Waiting = tuple[np.ndarray, "asyncio.Future[Tensor]"]


class BusyError(Exception):
    """More images are waiting than the server accepts."""


class Batches:
    """One thread runs the network, on all images that arrived in the meantime."""

    def __init__(self, classifier: TrainedClassifier, waiting: int) -> None:
        self.classifier = classifier
        self.queue: asyncio.Queue[Waiting] = asyncio.Queue(waiting)
        self.thread = ThreadPoolExecutor(1, "comatch-serve")

    async def predict(self, pixels: np.ndarray) -> Tensor:  # [3, S, S] -> [C]
        found: asyncio.Future[Tensor] = asyncio.get_running_loop().create_future()
        try:
            self.queue.put_nowait((pixels, found))
        except asyncio.QueueFull:
            raise BusyError from None
        return await found

    async def run(self) -> None:
        """Classify until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.queue.get()]
            while len(batch) < BATCH and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            batch = [one for one in batch if not one[1].done()]  # nobody waits for the others
            if not batch:
                continue
            pixels = torch.from_numpy(np.stack([pixels for pixels, _ in batch]))
            try:
                rows = await loop.run_in_executor(self.thread, self._predict, pixels)
            except Exception as error:  # of one batch: the server goes on
                for _, found in batch:
                    if not found.done():
                        found.set_exception(error)
                continue
            for (_, found), row in zip(batch, rows, strict=True):
                if not found.done():
                    found.set_result(row)

    def _predict(self, pixels: Tensor) -> Tensor:  # [n, 3, S, S] -> [n, C]
        return self.classifier.predict(pixels).probabilities
