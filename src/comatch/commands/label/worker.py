"""Encodes pictures and learns from labels, in a process of its own beside the page.

It is given lines of JSON and writes lines of JSON:

    names     names of more pictures; the first one has number 0
    marks     all pictures with a mark: their number, and their label or null without one

    progress  [pictures encoded, pictures]
    unread    numbers of pictures that cannot be read, and why
    order     numbers of the pictures to label next
    model     what a classifier of the labels says of each picture
    problem   why nothing can be learned

It ends when its input ends, so it never outlives the page.
"""

import functools
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from comatch.errors import UserError

FIRST, MORE = 200, 1000  # pictures that are encoded before the first suggestions, and at a time
AT_ONCE = 40  # suggestions that cover the folder
SUGGESTED = 200
GROWTH = 1.5  # of the pictures encoded, until suggestions are made again


class Worker:
    def __init__(
        self,
        root: Path,
        encoder: str | None,
        init: str | None,
        device: str,
        send: Callable[..., None],
    ) -> None:
        self.root, self.wanted, self.device, self.send = root, (encoder, init), device, send
        self.inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.names: list[str] = []
        self.marks: dict[int, str | None] = {}
        self.waiting: list[int] = []  # not yet encoded
        self.rows: list[int] = []  # pictures with features, in the order of encoding
        self.features: list[np.ndarray] = []
        self.done = 0
        self.suggested_at = 0  # how many were encoded when the last suggestions were made
        self.new_marks = False
        self.components = np.empty((0, 0), np.float32)  # of the features

    def run(self) -> None:
        self.receive(wait=True)
        from comatch.commands.suggest.features import encoder_of, recipe_for
        from comatch.device import choose_device

        device = choose_device(self.device)
        recipe = recipe_for(self.root, *self.wanted, device)
        encoder = encoder_of(recipe, self.root, self.names, device)
        self.encoder = encoder._replace(load=functools.cache(encoder.load))
        while True:
            for _ in self.encode():
                self.receive()
                self.learn()
            self.learn(rest=True)
            if not self.waiting:
                self.receive(wait=True)

    def receive(self, wait: bool = False) -> None:
        """Take over everything that was sent."""
        while wait or not self.inbox.empty():
            message, wait = self.inbox.get(), False
            if names := message.get("names"):
                numbers = range(len(self.names), len(self.names) + len(names))
                self.names += names
                # In random order: the first ones stand for all.
                self.waiting += np.random.default_rng(0).permutation(numbers).tolist()
                self.send(progress=[self.done, len(self.names)])
            if (marks := message.get("marks")) is not None:
                self.marks = {int(number): label for number, label in marks.items()}
                self.new_marks = True

    def encode(self) -> Iterator[None]:
        """Encode some pictures that wait; stop in between for other work."""
        from comatch.commands.suggest.features import plain_features

        count = MORE if self.rows else FIRST
        some, self.waiting = self.waiting[:count], self.waiting[count:]
        for found in plain_features(self.root, self.names, some, self.encoder):
            self.done += found.done
            self.send(progress=[self.done, len(self.names)])
            if found.bad:
                self.send(unread={str(row): why for row, why in found.bad.items()})
            if found.rows:
                self.rows += found.rows
                self.features.append(found.features)
            yield

    def learn(self, rest: bool = False) -> None:
        """Suggest, train and predict, if something is new."""
        encoded = len(self.rows)
        enough = encoded >= max(min(FIRST, len(self.names)), GROWTH * self.suggested_at)
        complete = rest and not self.waiting and encoded > self.suggested_at
        if not encoded or not (enough or complete or (self.new_marks and self.suggested_at)):
            return
        model, order = self.study()
        self.send(order=order)
        if model:
            self.send(model=model)
        if enough or complete:
            self.suggested_at = encoded
        self.new_marks = False

    def reduced(self) -> np.ndarray:
        """Principal components of the features, computed anew when there are more pictures."""
        from comatch.commands.suggest.features import compressed

        if len(self.components) != len(self.rows):
            self.features = [np.concatenate(self.features)]
            self.components = compressed(self.features[0])
        return self.components

    def study(self) -> tuple[dict[str, Any] | None, list[int]]:
        """What a classifier of the labels says, and the pictures to label next."""
        from comatch.commands.suggest import learner, selection

        reduced = self.reduced()
        near = reduced[:, : selection.COMPONENTS]
        classes = sorted({label for label in self.marks.values() if label})
        labels = np.array([number_in(classes, self.marks.get(row)) for row in self.rows])
        taken = [place for place, row in enumerate(self.rows) if row in self.marks]
        present = len(set(labels[labels >= 0].tolist()))
        if present < 2:
            first = selection.typical(near, AT_ONCE, taken)
            order = first + selection.typical(near, SUGGESTED - len(first), [*taken, *first])
            return None, [self.rows[place] for place in order]
        guess = learner.predict(reduced, labels, len(classes))
        order = selection.uncertain(near, guess, labels, AT_ONCE, taken)
        order += selection.typical(near, SUGGESTED - len(order), [*taken, *order])
        two = np.sort(guess, 1)[:, -2:]
        model = {
            "classes": classes,
            "numbers": self.rows,
            "guess": guess.argmax(1).tolist(),
            "probability": np.round(two[:, -1], 3).tolist(),
            "margin": np.round(two[:, -1] - two[:, 0], 3).tolist(),
            "labels": int((labels >= 0).sum()),
        }
        return model | self.checked(reduced, labels), [self.rows[place] for place in order]

    def checked(self, reduced: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """The accuracy on labels that the classifier did not have, and those it contradicts."""
        from comatch.commands.suggest import learner
        from comatch.evaluation.accuracy import interval

        checked = learner.cross_validate(reduced, labels)
        if checked is None:
            return {"accuracy": None, "contradicted": []}
        images = len(checked.rows)
        low, high = interval(checked.right / images, images)
        predicted = dict(zip(checked.rows.tolist(), checked.predicted.tolist(), strict=True))
        return {
            "accuracy": {
                "share": checked.right / images,
                "low": low,
                "high": high,
                "images": images,
                "folds": checked.folds,
            },
            "contradicted": [
                [self.rows[place], int(predicted[place])]
                for place in learner.contradicted(checked, labels)
            ],
        }


def number_in(classes: list[str], label: str | None) -> int:
    return classes.index(label) if label else -1


def listen(worker: Worker) -> None:
    for line in sys.stdin:
        worker.inbox.put(json.loads(line))
    os._exit(0)


def main(root: str, encoder: str | None, init: str | None, device: str) -> None:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints does not disturb the page
    os.nice(10)  # the page comes first

    def send(**message: Any) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    worker = Worker(Path(root), encoder, init, device, send)
    threading.Thread(target=listen, args=(worker,), daemon=True).start()
    try:
        worker.run()
    except UserError as error:
        send(problem=str(error))
