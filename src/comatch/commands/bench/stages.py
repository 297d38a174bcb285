"""The time of a training step and of its stages.

Four prefixes of the step are timed beside the whole step: up to the augmentation, the forward pass,
the loss and the backward pass. A stage takes the difference between two consecutive prefixes, so
the stages sum to the step. Where the step is a captured CUDA graph, each prefix is captured too.

The cost of the loss (memory bank, graph, loss terms) in both directions is the difference between
the prefix up to the backward pass and forward and backward of the network alone.
"""

import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from comatch.data.features import Unwatched
from comatch.data.splits import Split
from comatch.data.streaming import Streaming
from comatch.device import free_memory, peak_memory_mb, synchronize
from comatch.training.build import Built, build
from comatch.training.capture import EAGER_STEPS, Captured
from comatch.training.recipe import Recipe
from comatch.types import Batch, Dataset

PREFIXES = ("augment", "forward", "loss", "backward")  # each is named after its last stage
LAST = "update"  # gradient norm, optimiser, EMA, memory bank, metrics
NETWORK = "network"  # forward and backward of the network alone
REPETITIONS = 11
REPETITION_SECONDS = 0.2  # the steps of one repetition take about as long, by default
MOST_STEPS = 200
STREAMED_STEPS = 20  # consecutive steps that read their images

Work = Callable[[], object]
Report = Callable[[str], object]


def silent(text: str) -> None:
    """Report nothing."""


def build_prepared(recipe: Recipe, dataset: Dataset, split: Split, device: torch.device) -> Built:
    """A run whose next step can be taken."""
    run = build(recipe, dataset, split, device)
    run.feed.prepare(Unwatched())
    return run


def time_step(
    make: Callable[[], Built],
    device: torch.device,
    steps: int | None = None,
    prefixes: tuple[str, ...] = PREFIXES,
    report: Report = silent,
) -> dict[str, Any]:
    """Time, stages and memory of the step as training takes it."""
    free_memory(device)
    report("first step")
    began = time.perf_counter()
    run = make()
    calls = itertools.count()

    def whole() -> None:
        run.step(next(calls))

    whole()
    startup = synchronize(device) - began
    report("warming up")
    for _ in range(EAGER_STEPS + 3 if device.type == "cuda" else 1):  # until it is captured
        whole()
    steps = steps or calls_per_repetition(whole, device)
    engine = engine_of(run)
    if isinstance(run.feed, Streaming):
        prefixes = ()  # they would be those of a step on images in memory
    peak = peak_memory_mb(device)  # before the prefixes, which take memory of their own
    names = (*prefixes, NETWORK) if "backward" in prefixes else prefixes
    works = dict(prefixes_of(run, engine, names, calls, report))
    report(f"timing {REPETITIONS} x {steps} steps")
    times = time_alternately({**works, LAST: whole}, steps, device)

    ms, views = statistics.median(times[LAST]), views_of(run)
    feed: Any = run.feed
    result: dict[str, Any] = {
        "engine": engine,
        "precision": "bf16" if run.method.net.compute_dtype == torch.bfloat16 else "fp32",
        "classes": run.method.classes,
        "labelled": feed.shuffle_x.rows,
        "unlabelled": feed.shuffle_u.rows if run.method.views else 0,
        "views": views,
        "steps": steps,
        "repetitions": REPETITIONS,
        "startup_seconds": startup,
        "ms": ms,
        "ms_range": [min(times[LAST]), max(times[LAST])],
        "images_per_s": 1000 * views / ms,
        "peak_memory_mb": peak,
    }
    if prefixes:
        result["stages_ms"] = stages_of(times, prefixes)
    if "backward" in times and NETWORK in times:
        loss = statistics.median(times["backward"]) - statistics.median(times[NETWORK])
        result |= {"loss_ms": max(0.0, loss), "loss_share": max(0.0, loss) / ms}
    if isinstance(run.feed, Streaming):
        report("timing steps that read their images")
        result |= time_streamed(run, run.feed, calls, device)
        run.feed.reader.close()
    return result


def time_streamed(
    run: Built, feed: Streaming, calls: Iterator[int], device: torch.device
) -> dict[str, float]:
    """Time of consecutive steps that read their images, their wait, and steps without reading.

    In `time_step` each repetition begins with batches that were read while other work was timed.
    Consecutive steps have no such start. The wait is the time in which the device is idle: from the
    end of a step until all images of the next are copied. Reading can also slow a step without
    waiting, as decoding takes a part of the device.
    """
    count = STREAMED_STEPS if device.type == "cuda" else 3

    def consecutive(work: Work) -> float:
        for _ in range(2 * feed.ahead + 2):  # use up the batches that were read before
            work()
        began = synchronize(device)
        for _ in range(count):
            work()
        return 1000 * (synchronize(device) - began) / count

    ends, ready = [timestamp(device)], list[Timestamp]()

    def whole() -> None:
        feed.before_step(next(calls))
        ready.append(timestamp(device))
        run.step.run()
        ends.append(timestamp(device))

    streamed, same = consecutive(whole), consecutive(run.step.run)
    waits = [ms_between(*pair, device) for pair in zip(ends, ready, strict=False)]
    return {
        "streamed_ms": streamed,
        "same_ms": same,
        "waited_ms": statistics.mean(waits[-count:]),
    }


def views_of(run: Built) -> int:
    """Images that the network sees in a step: B labelled, and muB for each declared view."""
    optim = run.recipe.optim
    return optim.batch * (1 + optim.mu * len(run.method.views))


def engine_of(run: Built) -> str:
    """The engine in use. A step that could not be captured runs compiled."""
    if isinstance(run.step.run, Captured) and run.step.run.graph is None:
        return "compiled"
    return run.step.engine


# ---------------------------------------------------------------------------------- prefixes


def prefixes_of(
    run: Built, engine: str, names: tuple[str, ...], calls: Iterator[int], report: Report
) -> Iterator[tuple[str, Work]]:
    """The prefixes of the step with these names, as functions.

    Gradients are on, as in training, and nothing is kept after a call. A prefix that cannot be
    timed is left out with a warning; its stage is then part of the next.
    """
    step, method = run.step, run.method
    net = method.net if engine == "eager" else torch.compile(method.net)

    def augment() -> Batch:
        return run.feed.next()[0]

    def forward() -> object:
        batch = augment()
        return net(torch.cat([batch.x, *batch.u]))

    def backward() -> None:
        batch = augment()
        step.optimizer.zero_grad(set_to_none=True)
        step.forward(batch).loss.backward()

    def network() -> None:
        batch = augment()
        step.optimizer.zero_grad(set_to_none=True)
        out = net(torch.cat([batch.x, *batch.u]))
        (out.logits.sum() + out.embedding.sum()).backward()

    works: dict[str, Work] = {
        "augment": augment,
        "forward": forward,
        "loss": lambda: step.forward(augment()),
        "backward": backward,
        NETWORK: network,
    }
    # The prefixes never run at the same time, so their graphs share one memory pool.
    shared = (torch.cuda.Stream(), torch.cuda.graph_pool_handle()) if engine == "captured" else None
    for name in names:
        report(f"preparing the stage '{name}'")
        try:
            yield name, repeatable(works[name], lambda: run.feed.before_step(next(calls)), shared)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].split(". ")[0]  # its first sentence
            warnings.warn(f"the stage '{name}' cannot be timed alone: {reason}", stacklevel=2)


def repeatable(work: Work, before: Work, shared: tuple[Any, Any] | None) -> Work:
    """`before`, then `work`: directly, or captured once as a CUDA graph and replayed.

    `before` may start a new pass over the data, which is work of the host and cannot be captured.
    """

    def call() -> None:
        before()
        run()

    run = work
    if shared is None:
        call()  # the first call may compile
        return call
    stream, pool = shared
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(EAGER_STEPS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    run = graph.replay
    return call


def stages_of(times: dict[str, list[float]], prefixes: tuple[str, ...]) -> dict[str, float]:
    """Milliseconds of each stage: the differences between consecutive prefixes."""
    ends: dict[str, float] = {}
    label: list[str] = []
    for name in (*prefixes, LAST):
        label.append(name)
        if name in times:
            ends[" + ".join(label)] = statistics.median(times[name])
            label = []
    # Noise can make a prefix slower than a longer one. Then it takes the time of the longer one.
    limit = float("inf")
    for name in reversed(ends):
        ends[name] = limit = min(ends[name], limit)
    return {
        name: end - before
        for (name, end), before in zip(ends.items(), [0.0, *ends.values()], strict=False)
    }


# ------------------------------------------------------------------------------------ timing

Timestamp = torch.cuda.Event | float


def timestamp(device: torch.device) -> Timestamp:
    """The time at which the device finishes its present work; does not wait for it."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def ms_between(begin: Any, end: Any, device: torch.device) -> float:
    """Milliseconds between two timestamps that the device has passed."""
    return begin.elapsed_time(end) if device.type == "cuda" else 1000 * (end - begin)


def ms_per_call(work: Work, calls: int, device: torch.device) -> float:
    """Milliseconds of one call, by the clock of the device if it has one."""
    if device.type == "cuda":
        work()  # keeps the GPU busy while the first timed call is launched
    begin = timestamp(device)
    for _ in range(calls):
        work()
    end = timestamp(device)
    synchronize(device)
    return ms_between(begin, end, device) / calls


def time_alternately(
    works: dict[str, Work], calls: int, device: torch.device
) -> dict[str, list[float]]:
    """Milliseconds of each, in turns: a disturbance of the machine then affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPETITIONS):
        for name, work in works.items():
            times[name].append(ms_per_call(work, calls, device))
    return times


def calls_per_repetition(work: Work, device: torch.device) -> int:
    """The number of calls that takes about `REPETITION_SECONDS`."""
    synchronize(device)
    ms = ms_per_call(work, 1, device)
    return max(1, min(MOST_STEPS, round(1000 * REPETITION_SECONDS / ms)))
