"""One rank of the tests: `python one_rank.py JOB ...`, started by torchrun or directly."""

import os
import signal
import sys
from pathlib import Path

import torch

from comatch import distributed, methods
from comatch.nets import build_encoder
from comatch.nets.sync_batchnorm import sync_batchnorm
from comatch.training import signals, state
from comatch.types import Batch, Task
from helpers import SMALL, random_batches

CLASSES, B, MU, STEPS = 4, 4, 2, 6
TASK = Task(CLASSES, steps=STEPS, unlabelled=20, epoch=2)
# Forward draws random numbers, different on each rank.
DRAWS = {"mixmatch", "remixmatch", "vat", "moco_v2", "pirl", "pcl"}
# A bank that wraps around and a threshold that some images pass.
SETTINGS = {
    "comatch": {"bank_size": 20, "threshold": 0.4, "alignment_window": 3, "edge_threshold": 0.2},
    "comatch_momentum": {"bank_size": 20, "threshold": 0.4, "alignment_window": 3},
    "fixmatch": {"threshold": 0.4},
    "fixmatch_da": {"threshold": 0.4, "alignment_window": 3},
    "uda": {"threshold": 0.4},
    **SMALL,
}


def build(name, **settings):
    torch.manual_seed(0)
    config = methods.find(name).Config(**{**SETTINGS.get(name, {}), **settings})
    method = methods.build(config, build_encoder("wrn-10-1", 8), TASK).double()
    sync_batchnorm(method)
    return method


def batches(method):
    """This rank's part of the batches, which are the same in every process."""
    labelled = B if method.uses_labels else 0
    some, more = distributed.share(labelled), distributed.share(B * MU)
    whole = random_batches(STEPS, labelled, B * MU, len(method.views), CLASSES, TASK.unlabelled)
    for x, y, u, rows in whole:
        yield Batch(x[some], y[some], tuple(view[more] for view in u), rows[more])


def learn(name, compiled=False, **settings):
    """The loss of every step, and the state of the method at the end."""
    method = build(name, **settings)
    module = torch.compile(method, backend="aot_eager", fullgraph=True) if compiled else method
    forward = distributed.wrap(module)
    losses = []
    for batch in batches(method):
        method.zero_grad()
        step = forward(batch)
        step.loss.backward()
        with torch.no_grad():
            for p in method.parameters():
                if p.grad is not None:
                    p.sub_(0.05 * p.grad)
        method.after_step(step.remember)
        losses.append(distributed.mean(step.loss.detach()))
    return torch.stack(losses), {k: v.clone() for k, v in method.state_dict().items()}


def cases():
    """The name of each case and its arguments to `learn`."""
    yield from ((name, {"name": name}) for name in (*methods.METHODS, *methods.PRETRAINING))
    yield "comatch, graph of the paper", {"name": "comatch", "graph": "paper"}
    yield "comatch, adaptive", {"name": "comatch", "selection": "adaptive", "selection_decay": 0.7}
    yield "comatch_momentum, compiled", {"name": "comatch_momentum", "compiled": True}


def learn_all(folder):
    """Every case, and the errors of ranks that do not fit together."""
    import comatch
    from helpers import TINY

    distributed.join()
    rank = distributed.rank()
    result = {case: learn(**arguments) for case, arguments in cases()}
    for case, data, change in (
        ("other images", f"images-{rank}", {}),
        ("other settings", "images-0", {"lr": 0.03 + rank}),
        ("uneven batch", "images-0", {"batch": 9}),
    ):
        try:
            settings = {**TINY, **change}
            comatch.train(folder / data, steps=2, settings=settings, out=folder / case)
            result[case] = "nothing"
        except comatch.errors.UserError as error:
            result[case] = str(error)
    torch.save(result, folder / f"rank-{rank}.pt")
    distributed.leave()


def killed(after):
    """The command line. Rank 1 is killed right after a checkpoint, once."""
    save = state.save

    def save_and_die(folder, run, step, *rest):
        save(folder, run, step, *rest)
        if step == after and distributed.rank() == 1:
            assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
            os.kill(os.getpid(), signal.SIGKILL)

    state.save = save_and_die


def stopped(after):
    """The command line. Rank 1 alone is asked to stop."""

    class StopsAt(signals.StopRequest):
        questions = 0

        @property
        def asked(self):
            self.questions += 1
            return distributed.rank() == 1 and self.questions >= after

        @asked.setter
        def asked(self, value):
            pass

    signals.StopRequest = StopsAt


def group_threads():
    """The process group's own threads, by their names: libraries may have started others."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def count_threads():
    """Print how many threads of the process group are left after `leave`."""
    leave = distributed.leave

    def leave_and_count():
        assert group_threads() or not Path("/proc/self/task").exists()
        leave()
        print(f"threads of the group left: {len(group_threads())}", file=sys.stderr)

    distributed.leave = leave_and_count


if __name__ == "__main__":
    job, number, *words = sys.argv[1:]
    if job == "learn":
        learn_all(Path(number))
    else:
        {"killed": killed, "stopped": stopped, "plain": lambda _: None}[job](int(number))
        count_threads()
        from comatch.cli import main

        sys.argv = ["comatch", *words]
        main()
