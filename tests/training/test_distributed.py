"""Two processes train together as one does alone."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import one_rank
import pytest
import torch
from test_resume import assert_same, state_of

import comatch
from comatch import distributed, launch, methods
from comatch.data import feature_store
from comatch.nets import build_encoder
from comatch.training import loop
from helpers import TINY, TINY_WORDS, interrupt_at, make_images

pytestmark = pytest.mark.slow

SCRIPT = Path(one_rank.__file__)
STEPS = 10
WORDS = ["train", "digits", "--labels", "20", "--steps", str(STEPS), "--device", "cpu"]
OPTIONS = {"labels": 20, "steps": STEPS, "device": "cpu", "progress": False}


def environment(**more):
    package = Path(comatch.__file__).parents[1]  # the ranks import the package that is tested here
    path = os.pathsep.join(map(str, (package, SCRIPT.parents[1], SCRIPT.parent)))
    plain = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "200"}
    return {**plain, "PYTHONWARNINGS": "default::UserWarning", **more}


def start_ranks(*words, cwd, ranks=2):
    """Start ranks without torchrun. Return their exit codes, outputs and errors."""
    # This process holds the port: another process could take one that was merely free.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    told["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *map(str, words)],
            cwd=cwd,
            env=environment(**told, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=180) for process in processes]
    return [p.returncode for p in processes], [s[0] for s in said], [s[1] for s in said]


def run_torchrun(*words, cwd, restarts=0):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += ["--nproc-per-node", "2", "--max-restarts", str(restarts)]
    return subprocess.run(
        [*start, *map(str, words)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
    )


def words(out):
    return [*WORDS, *TINY_WORDS, "--out", str(out)]


def assert_same_runs(one, other):
    for name in ("metrics.jsonl", "model.safetensors", "split.json", "config.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert_same(state_of(one), state_of(other))


def assert_no_threads_left(said):
    """A thread of the process group that outlives `leave` may abort the interpreter at its end."""
    if Path("/proc/self/task").exists():
        assert all("threads of the group left: 0\n" in text for text in said), said


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Every case of `one_rank` with two ranks: what each of them has at the end."""
    folder = tmp_path_factory.mktemp("learned")
    make_images(folder / "images-0")
    make_images(folder / "images-1", per_class=13)
    codes, _, said = start_ranks("learn", folder, cwd=folder)
    assert codes == [0, 0], said
    return [torch.load(folder / f"rank-{rank}.pt") for rank in (0, 1)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of two ranks, with the command of the documentation."""
    folder = tmp_path_factory.mktemp("whole")
    done = run_torchrun("-m", "comatch", *words("run"), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", done


@pytest.mark.parametrize("case", dict(one_rank.cases()))
def test_ranks_have_the_same_state(learned, case):
    """Weights, statistics, EMA and memory are equal without being broadcast."""
    (losses, state), (other_losses, other_state) = (rank[case] for rank in learned)
    assert torch.equal(losses, other_losses)
    assert losses.isfinite().all()
    for name, value in state.items():
        assert torch.equal(value, other_state[name]), name


@pytest.mark.parametrize(
    "case", [case for case in dict(one_rank.cases()) if case not in one_rank.DRAWS]
)
def test_two_ranks_learn_as_one_process(learned, case):
    """In float64: the same losses, and the same memory row by row, with a ring that wraps."""
    arguments = {**dict(one_rank.cases())[case], "compiled": False}
    losses, state = one_rank.learn(**arguments)
    torch.testing.assert_close(learned[0][case][0], losses, rtol=1e-10, atol=1e-12)
    assert losses[-1] != losses[0]
    for name, value in learned[0][case][1].items():
        torch.testing.assert_close(value, state[name], rtol=1e-7, atol=1e-10, msg=name)


def test_every_parameter_has_a_gradient():
    """DDP waits for the gradient of each."""
    for name in (*methods.METHODS, *methods.PRETRAINING):
        method = one_rank.build(name)
        method(next(one_rank.batches(method))).loss.backward()
        without = [n for n, p in method.named_parameters() if p.requires_grad and p.grad is None]
        assert not without, name


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("other images", "process 1 sees other images than process 0 (56 for training, not 54"),
        ("other settings", "process 1 has other settings than process 0"),
        ("uneven batch", "batch=9 cannot be shared evenly by 2 processes: --set batch=8"),
    ],
)
def test_ranks_that_do_not_fit_together(learned, case, message):
    for rank in learned:
        assert message in rank[case]


def test_only_the_first_rank_writes(whole):
    folder, done = whole
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines if '"train"' in line]
    assert steps == list(range(2, STEPS + 1, 2))
    assert done.stdout.count("run folder") == 1
    assert len([line for line in done.stderr.splitlines() if f"{STEPS}/{STEPS}" in line]) == 1
    assert len(list((folder / "tensorboard").iterdir())) == 1
    (session,) = json.loads((folder / "environment.json").read_text())["sessions"]
    assert session["ranks"] == 2
    assert len(torch.load(folder / "last.pt")["others"]) == 1
    assert comatch.load(folder).predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)).labels


def test_ranks_share_the_test_part(whole):
    """Their scores are those of a single process."""
    scores = comatch.evaluate(whole[0], device="cpu").scores
    summary = json.loads((whole[0] / "summary.json").read_text())
    assert summary["top1"] == scores.top1
    assert summary["calibration_error"] == pytest.approx(scores.calibration_error, abs=1e-6)
    assert scores.images % 2, "the images must not divide evenly among the ranks"


def test_ranks_share_the_order_and_draw_different_random_numbers(whole):
    state = torch.load(whole[0] / "last.pt")
    assert not torch.equal(state["random"]["cpu"], state["others"][0]["random"]["cpu"])
    order = state["data"]["shuffle_u.order"]
    assert len(order.unique()) == len(order)


def test_a_killed_rank_is_restarted_and_the_run_continues_exactly(whole, tmp_path):
    """SIGKILL after the first checkpoint, without --resume: torchrun restarts all ranks."""
    done = run_torchrun(SCRIPT, "killed", 3, *words("run"), cwd=tmp_path, restarts=1)
    assert done.returncode == 0, done.stderr
    assert "SIGKILL" in done.stderr or "-9" in done.stderr
    assert_same_runs(whole[0], tmp_path / "run")
    assert len(json.loads((tmp_path / "run/environment.json").read_text())["sessions"]) == 2


@pytest.fixture(scope="module")
def halted(tmp_path_factory):
    """A run of two ranks of which one was asked to stop, between two checkpoints."""
    folder = tmp_path_factory.mktemp("halted")
    codes, _, said = start_ranks("stopped", 5, *words("run"), cwd=folder)
    assert codes == [130, 130], said
    assert sum(text.count("stopped after step 5") for text in said) == 1
    assert_no_threads_left(said)
    return folder / "run"


def test_resuming_is_exact(whole, halted, tmp_path):
    shutil.copytree(halted, tmp_path / "run")
    codes, _, said = start_ranks("plain", 0, *words("run"), "--resume", cwd=tmp_path)
    assert codes == [0, 0], said
    assert "warning" not in "".join(said)
    assert_no_threads_left(said)
    assert_same_runs(whole[0], tmp_path / "run")


def test_one_process_resumes_the_run_of_two(halted, tmp_path):
    shutil.copytree(halted, tmp_path / "run")
    with pytest.warns(UserWarning, match="saved by 2 processes and continues with 1"):
        comatch.train("digits", **OPTIONS, settings=TINY, out=tmp_path / "run", resume=True)
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == STEPS
    before, after = ((run / "metrics.jsonl").read_bytes() for run in (halted, tmp_path / "run"))
    assert after.startswith(before)


def test_two_processes_resume_the_run_of_one(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 5)
    with pytest.raises(loop.Interrupted):
        comatch.train("digits", **OPTIONS, settings=TINY, out=tmp_path / "run")
    codes, _, said = start_ranks("plain", 0, *words("run"), "--resume", cwd=tmp_path)
    assert codes == [0, 0], said
    assert "".join(said).count("saved by 1 processes and continues with 2") == 1
    assert (tmp_path / "run" / "summary.json").exists()


def test_each_process_encodes_a_share_of_the_images(tmp_path, monkeypatch):
    monkeypatch.setenv("COMATCH_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    encoder = build_encoder("wrn-10-1", 8)
    torch.save(encoder.state_dict(), tmp_path / "encoder.pt")
    frozen = ["--init", tmp_path / "encoder.pt", "--set", "frozen=yes", "--set", "views=4"]
    codes, _, said = start_ranks("plain", 0, *words("run"), *frozen, cwd=tmp_path)
    assert codes == [0, 0], said
    (one,) = feature_store.stored(tmp_path / "cache" / "features")
    images = json.loads((tmp_path / "run/summary.json").read_text())
    train = images["labels"] + images["unlabelled"]
    assert one.views == 4 * train + 359  # and a view of each test image: each encoded once


def test_an_error_is_reported_once_and_the_run_stays_as_it_is(halted, tmp_path, monkeypatch):
    """A restart resumes only a run that the same torchrun started: here there is none."""
    shutil.copytree(halted, tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    codes, _, said = start_ranks("plain", 0, *words("run"), cwd=tmp_path)
    assert codes == [2, 2]
    assert "".join(said).count("error: run is not empty: add --resume") == 1, said
    assert (tmp_path / "run/last.pt").read_bytes() == (halted / "last.pt").read_bytes()


def test_only_train_works_in_several_processes(cli, monkeypatch):
    for name in launch.VARIABLES:
        monkeypatch.setenv(name, "2")
    code, _, err = cli("compare", "digits")
    assert code == 2
    assert not err  # the first process reports it
    monkeypatch.setenv("RANK", "0")
    code, _, err = cli("compare", "digits")
    assert "only `comatch train` and `comatch pretrain` run in several processes" in err


def test_one_process_is_the_identity():
    rows = torch.rand(3, 2)
    assert distributed.world() == 1
    assert distributed.rank() == 0
    for function in (distributed.gather, distributed.mean, distributed.from_first_rank):
        assert function(rows) is rows
    assert distributed.collect("a") == ["a"]
    assert distributed.share(6) == range(6)
    net = torch.nn.BatchNorm2d(3)
    assert distributed.wrap(net) is net
    one_rank.sync_batchnorm(net)
    assert type(net) is torch.nn.BatchNorm2d
    state = torch.get_rng_state()
    distributed.seed(3)
    assert torch.equal(state, torch.get_rng_state())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        distributed.join()
        distributed.leave()
