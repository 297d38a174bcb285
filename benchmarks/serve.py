"""Requests a second and their times: `comatch serve` beside a plain FastAPI endpoint.

    python benchmarks/serve.py RUN IMAGE --out results/serve/serve.json

Both serve the same classifier in processes of their own, one after the other, on the same machine
as the clients. The FastAPI endpoint is what one writes first: it decodes the upload with Pillow and
calls the classifier, in FastAPI's threads. Afterwards the memory of `comatch serve` is measured
over many requests.
"""

import argparse
import http.client
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

PLAIN = """
import io, sys, uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image
import comatch
classifier = comatch.load(sys.argv[1], device="cpu")
app = FastAPI()

@app.post("/predict")
def predict(image: UploadFile):
    found = classifier.predict(Image.open(io.BytesIO(image.file.read())))
    p = found.probabilities[0].tolist()
    shares = dict(zip(found.classes, p))
    return {"label": found.labels[0], "probability": max(p), "probabilities": shares}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""
BOUNDARY = "comatch-benchmark"


def start(kind: str, run: str, port: int) -> subprocess.Popen:
    """A server in a process of its own."""
    if kind == "comatch serve":
        words = ["-m", "comatch", "serve", run, "--port", str(port), "--device", "cpu"]
    else:
        words = ["-c", PLAIN, run, str(port)]
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)


class Client:
    """Sends the same image again and again over one connection."""

    def __init__(self, port: int, image: bytes) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="1"\r\n\r\n'
        self.body = head.encode() + image + f"\r\n--{BOUNDARY}--\r\n".encode()
        self.headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}

    def ask(self) -> float:
        """Send a request and return how long it took."""
        began = time.perf_counter()
        self.connection.request("POST", "/predict", self.body, self.headers)
        answer = self.connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}")
        return time.perf_counter() - began


def wait_for(port: int, image: bytes) -> None:
    for _ in range(600):
        try:
            Client(port, image).ask()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the server did not start")


def load(port: int, image: bytes, clients: int, requests: int) -> dict[str, float]:
    """So many requests, shared by so many clients that each wait for their answer."""
    times: list[float] = []

    def work(count: int) -> None:
        client = Client(port, image)
        times.extend([client.ask() for _ in range(count)])

    share = max(1, requests // clients)
    threads = [threading.Thread(target=work, args=[share]) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if len(times) != share * clients:
        raise RuntimeError("some requests failed")
    return {
        "clients": clients,
        "requests": len(times),
        "requests_per_second": round(len(times) / seconds, 1),
        "median_ms": round(1000 * statistics.median(times), 1),
        "p99_ms": round(1000 * statistics.quantiles(times, n=100)[98], 1),
    }


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process: unlike the times above, other work on the machine hardly adds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """The memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("run")
    options.add_argument("image", type=Path)
    options.add_argument("--requests", type=int, default=400, help="for each number of clients")
    options.add_argument("--memory", type=int, default=10_000, help="requests for the memory")
    options.add_argument("--port", type=int, default=8765)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    image, rows, memory = given.image.read_bytes(), [], []
    for kind in ("FastAPI", "comatch serve"):
        server = start(kind, given.run, given.port)
        try:
            wait_for(given.port, image)
            load(given.port, image, 8, 40)  # warm up
            for clients in (1, 8, 32):
                before = cpu_seconds(server.pid)
                row = {"server": kind, **load(given.port, image, clients, given.requests)}
                used = cpu_seconds(server.pid) - before
                rows.append({**row, "cpu_ms": round(1000 * used / row["requests"], 2)})
                print(rows[-1], flush=True)
            if kind == "comatch serve":
                for _ in range(10):
                    memory.append(round(resident(server.pid), 1))
                    load(given.port, image, 8, given.memory // 10)
                memory.append(round(resident(server.pid), 1))
                print("memory in MB:", memory)
        finally:
            server.terminate()
            server.wait()
    found = {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "machine": platform.machine(),
        "rows": rows,
        "memory_mb": memory,
        "memory_requests": given.memory,
    }
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
