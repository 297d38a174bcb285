"""The process that encodes and learns, as the server sees it."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

# Several threads make the small matrices here slower, above all beside the page. OpenVINO has its
# own threads.
ENVIRONMENT = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Background:
    """Starts the worker and keeps what it said last. Nothing here waits for it."""

    def __init__(
        self, root: Path, encoder: str | None = None, init: str | None = None, device: str = "auto"
    ) -> None:
        self.progress = [0, 0]  # pictures encoded, and in all
        self.order: list[int] = []
        self.order_version = 0
        self.model = b"null"  # JSON
        self.model_version = 0
        self.unread: dict[int, str] = {}
        self.problem = ""
        self.closed = False
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        here = str(Path(__file__).parents[3])  # so that the worker finds this package
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        arguments = (os.path.abspath(root), encoder, init, device)
        program = f"from comatch.commands.label import worker; worker.main(*{arguments!r})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **ENVIRONMENT},
        )
        self.outbox: list[dict[str, Any]] = []
        self.wake = threading.Condition()
        for work in (self._listen, self._talk):
            threading.Thread(target=work, daemon=True).start()

    def add_names(self, names: Sequence[str]) -> None:
        self._put({"names": list(names)})

    def set_marks(self, marks: Mapping[int, str | None]) -> None:
        """Labels by number of the picture; None for one that is skipped."""
        self._put({"marks": dict(marks)})

    def close(self) -> None:
        self.closed = True
        self.process.terminate()
        self.process.wait()

    def _put(self, message: dict[str, Any]) -> None:
        with self.wake:
            # Of marks that wait, only the last ones count.
            self.outbox = [one for one in self.outbox if "marks" not in one or "names" in message]
            self.outbox.append(message)
            self.wake.notify()

    def _talk(self) -> None:
        assert self.process.stdin
        with suppress(OSError):  # it has ended; `_listen` tells why
            while True:
                with self.wake:
                    while not self.outbox:
                        self.wake.wait()
                    messages, self.outbox = self.outbox, []
                for message in messages:
                    self.process.stdin.write(json.dumps(message) + "\n")
                self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._take(json.loads(line))
        self.process.wait()
        if not self.closed and not self.problem:
            self.problem = f"suggestions have stopped: {last_line(self.log)}"

    def _take(self, message: dict[str, Any]) -> None:
        if "progress" in message:
            self.progress = message["progress"]
        if "order" in message:
            self.order, self.order_version = message["order"], self.order_version + 1
        if "model" in message:
            self.model = json.dumps(message["model"]).encode()
            self.model_version += 1
        if "unread" in message:
            self.unread |= {int(number): why for number, why in message["unread"].items()}
        if "problem" in message:
            self.problem = f"no suggestions: {message['problem']}"


def last_line(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read()[-2000:].splitlines() if line.strip()]
    return lines[-1] if lines else "the process was ended"
