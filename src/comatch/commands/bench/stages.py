"""The time of a step, and of its stages by cutting it off.

The step up to its augmentation, up to the network's output, up to the loss, up to the gradient,
and whole: each is timed by itself, on a GPU captured as a CUDA graph wherever the step is. What a
cut takes longer than the one before is its stage, so the stages sum to the step. What the loss (its
memory bank and its graph) costs in both directions is known from a step without any.
"""

import gc
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from comatch.data.streaming import Streaming
from comatch.training.build import Assembly
from comatch.training.loop import peak_memory_mb, wait_for
from comatch.training.step import EAGER_STEPS
from comatch.types import Batch

CUTS = ("augment", "forward", "loss", "backward")  # then the whole step, whose last stage is:
LAST = "update"  # gradient norm, SGD, averaged weights, memory bank, metrics
NETWORK = "network"  # forward and backward of the network alone: what is missing is the loss
REPETITIONS = 11
FILLED = 0.2  # seconds that the timed steps of one repetition fill, unless told how many
MOST_STEPS = 200
IN_A_ROW = 20  # steps that read their images

Work = Callable[[], object]
Say = Callable[[str], object]


def silent(text: str) -> None:
    """For those who do not want to know what is going on."""


def time_step(
    make: Callable[[], Assembly],
    device: torch.device,
    steps: int | None = None,
    cuts: tuple[str, ...] = CUTS,
    say: Say = silent,
) -> dict[str, Any]:
    """The step as training takes it: its time, what each stage adds to it, its memory."""
    free(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    say("first step")
    began = time.perf_counter()
    run = make()
    calls = itertools.count()

    def whole() -> None:
        run.step(next(calls))

    whole()
    startup = wait_for(device) - began
    say("warming up")
    for _ in range(EAGER_STEPS + 3 if device.type == "cuda" else 1):  # until it is captured
        whole()
    steps = steps or calls_to_fill(whole, device)
    engine = engine_of(run)
    if isinstance(run.data, Streaming):
        cuts = ()  # its stages are those of a step on images in memory
    peak = peak_memory_mb(device)  # before the cuts, which take memory of their own
    names = (*cuts, NETWORK) if "backward" in cuts else cuts
    parts = dict(cut(run, engine, names, calls, say))
    say(f"timing {REPETITIONS} x {steps} steps")
    times = time_parts({**parts, LAST: whole}, steps, device)

    ms, views = statistics.median(times[LAST]), views_of(run)
    result: dict[str, Any] = {
        "engine": engine,
        "precision": "bf16" if run.method.net.compute_dtype == torch.bfloat16 else "fp32",
        "classes": run.method.classes,
        "labelled": run.data.shuffle_x.rows,
        "unlabelled": run.data.shuffle_u.rows if run.method.views else 0,
        "views": views,
        "steps": steps,
        "repetitions": REPETITIONS,
        "startup_seconds": startup,
        "ms": ms,
        "ms_range": [min(times[LAST]), max(times[LAST])],
        "images_per_s": 1000 * views / ms,
        "peak_memory_mb": peak,
    }
    if cuts:
        result["stages_ms"] = stages_of(times, cuts)
    if "backward" in times and NETWORK in times:
        loss = statistics.median(times["backward"]) - statistics.median(times[NETWORK])
        result |= {"loss_ms": max(0.0, loss), "loss_share": max(0.0, loss) / ms}
    if isinstance(run.data, Streaming):
        say("timing steps that read their images")
        result |= time_streamed(run, run.data, calls, device)
        run.data.reader.close()
    return result


def time_streamed(
    run: Assembly, feed: Streaming, calls: Iterator[int], device: torch.device
) -> dict[str, float]:
    """Steps in a row that read their images, how long they wait, and steps on the same ones.

    Each repetition above began with batches that were prepared while other things were timed; in a
    row that is so no longer. A step waits while the device has nothing to do, from the end of the
    one before until all images are there, copying them included. Whatever else reading costs is
    that decoding takes some of the device.
    """
    count = IN_A_ROW if device.type == "cuda" else 3

    def in_a_row(work: Work) -> float:
        for _ in range(2 * feed.ahead + 2):  # what was prepared is used up
            work()
        began = wait_for(device)
        for _ in range(count):
            work()
        return 1000 * (wait_for(device) - began) / count

    ends, ready = [clock(device)], list[Clock]()

    def whole() -> None:
        feed.before_step(next(calls))
        ready.append(clock(device))
        run.step._go()
        ends.append(clock(device))

    streamed, same = in_a_row(whole), in_a_row(run.step._go)
    gaps = [between(*pair, device) for pair in zip(ends, ready, strict=False)]
    return {
        "streamed_ms": streamed,
        "same_ms": same,
        "waited_ms": statistics.mean(gaps[-count:]),
    }


def views_of(run: Assembly) -> int:
    """Images that the network sees in a step: B labelled, and muB for each declared view."""
    recipe = run.step.recipe
    return recipe.batch * (1 + recipe.mu * len(run.method.views))


def engine_of(run: Assembly) -> str:
    """The engine that is really at work: capturing may have been given up."""
    captured = run.step.engine == "captured"
    given_up = captured and getattr(run.step._go, "graph", None) is None
    return "compiled" if given_up else run.step.engine


# ---------------------------------------------------------------------------------- the cuts


def cut(
    run: Assembly, engine: str, names: tuple[str, ...], calls: Iterator[int], say: Say
) -> Iterator[tuple[str, Work]]:
    """The step cut off after each of these stages, ready to be called again and again.

    Gradients are on, as in training, and nothing outlives a call. A cut that cannot be made alone
    is left out: its stage is then part of the next.
    """
    step, method = run.step, run.method
    net = method.net if engine == "eager" else torch.compile(method.net)

    def augment() -> Batch:
        return step.draw()[0]

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
    # The cuts never run at the same time, so one memory serves them all.
    shared = (torch.cuda.Stream(), torch.cuda.graph_pool_handle()) if engine == "captured" else None
    for name in names:
        say(f"preparing the stage '{name}'")
        try:
            yield name, repeatable(works[name], lambda: run.data.before_step(next(calls)), shared)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].split(". ")[0]  # its first sentence
            warnings.warn(f"the stage '{name}' cannot be timed alone: {reason}", stacklevel=2)


def repeatable(work: Work, before: Work, shared: tuple[Any, Any] | None) -> Work:
    """`work` with a batch of its own at each call: as it is, or recorded once and replayed."""

    def call() -> None:
        before()  # shuffles where a pass ends: on the host, so outside of what is captured
        again()

    again = work
    if shared is None:
        call()  # compiles, if anything does
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
    again = graph.replay
    return call


def stages_of(times: dict[str, list[float]], cuts: tuple[str, ...]) -> dict[str, float]:
    """What each cut takes longer than the one before; together they are the step."""
    ends: dict[str, float] = {}
    label: list[str] = []
    for name in (*cuts, LAST):
        label.append(name)
        if name in times:
            ends[" + ".join(label)] = statistics.median(times[name])
            label = []
    # A part is never slower than the whole: where noise says so, the whole is believed.
    limit = float("inf")
    for name in reversed(ends):
        ends[name] = limit = min(ends[name], limit)
    return {
        name: end - before
        for (name, end), before in zip(ends.items(), [0.0, *ends.values()], strict=False)
    }


# ---------------------------------------------------------------------------------- the clock

Clock = torch.cuda.Event | float


def clock(device: torch.device) -> Clock:
    """When the device is done with what it was told so far; asked without waiting for it."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(begin: Any, end: Any, device: torch.device) -> float:
    """Milliseconds between two times, once the device has reached both."""
    return begin.elapsed_time(end) if device.type == "cuda" else 1000 * (end - begin)


def stopwatch(work: Work, calls: int, device: torch.device) -> float:
    """Milliseconds a call, by the device's own clock where it has one."""
    if device.type == "cuda":
        work()  # the device is busy with this one while the first that counts is launched
    begin = clock(device)
    for _ in range(calls):
        work()
    end = clock(device)
    wait_for(device)
    return between(begin, end, device) / calls


def time_parts(parts: dict[str, Work], calls: int, device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of each part, in turns: whatever disturbs the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(REPETITIONS):
        for name, work in parts.items():
            times[name].append(stopwatch(work, calls, device))
    return times


def calls_to_fill(work: Work, device: torch.device) -> int:
    """As many calls as take about `FILLED` seconds."""
    wait_for(device)
    return max(1, min(MOST_STEPS, round(1000 * FILLED / stopwatch(work, 1, device))))


def free(device: torch.device) -> None:
    """Nothing of what was measured before is in the way of what comes."""
    gc.collect()
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
