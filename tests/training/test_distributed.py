"""Two processes do together what one does alone."""

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
from comatch.training import loop, progress
from helpers import TINY, TINY_WORDS, make_images

SCRIPT = Path(one_rank.__file__)
STEPS = 10
WORDS = ["train", "digits", "--labels", "20", "--steps", str(STEPS), "--device", "cpu"]
OPTIONS = {"labels": 20, "steps": STEPS, "device": "cpu", "progress": False}


def environment(**more):
    path = os.pathsep.join(map(str, (SCRIPT.parents[1], SCRIPT.parent)))
    plain = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "200"}
    return {**plain, "PYTHONWARNINGS": "default::UserWarning", **more}


def by_hand(*words, cwd, ranks=2):
    """Starts ranks without torchrun: exit code and complaints of each."""
    # They meet at a port that is ours already: one that only was free might be taken by then.
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


def by_torchrun(*words, cwd, restarts=0):
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


def assert_alone(said):
    """Nobody who parted left a thread of the group behind: Python's end may abort it."""
    if Path("/proc/self/task").exists():
        assert all("threads left: 1\n" in text for text in said), said


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Every case of `one_rank`, learned by two ranks: what each of them has at the end."""
    folder = tmp_path_factory.mktemp("learned")
    make_images(folder / "images-0")
    make_images(folder / "images-1", per_class=13)
    codes, _, said = by_hand("learn", folder, cwd=folder)
    assert codes == [0, 0], said
    return [torch.load(folder / f"rank-{rank}.pt") for rank in (0, 1)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two ranks that nothing disturbs, by the command of the documentation."""
    folder = tmp_path_factory.mktemp("whole")
    done = by_torchrun("-m", "comatch", *words("run"), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", done


@pytest.mark.slow
@pytest.mark.parametrize("case", dict(one_rank.cases()))
def test_ranks_hold_the_same(learned, case):
    """Weights, statistics, averages and memory: nothing is sent around, and nothing drifts."""
    (losses, state), (other_losses, other_state) = (rank[case] for rank in learned)
    assert torch.equal(losses, other_losses)
    assert losses.isfinite().all()
    for name, value in state.items():
        assert torch.equal(value, other_state[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in dict(one_rank.cases()) if case not in one_rank.DRAWS]
)
def test_two_ranks_learn_as_one_process(learned, case):
    """The same loss curve in float64, and the same memory row by row, around the ring's end."""
    what = {**dict(one_rank.cases())[case], "compiled": False}
    losses, state = one_rank.learn(**what)
    torch.testing.assert_close(learned[0][case][0], losses, rtol=1e-10, atol=1e-12)
    assert losses[-1] != losses[0]
    for name, value in learned[0][case][1].items():
        torch.testing.assert_close(value, state[name], rtol=1e-7, atol=1e-10, msg=name)


def test_every_parameter_has_a_gradient():
    """DDP waits for each of them."""
    for name in methods.METHODS:
        method = one_rank.build(name)
        method(next(one_rank.batches(method))).loss.backward()
        without = [n for n, p in method.named_parameters() if p.requires_grad and p.grad is None]
        assert not without, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("other images", "process 1 sees other images than process 0 (56 for training, not 54"),
        ("other settings", "process 1 has other settings than process 0"),
        ("uneven batch", "batch=9 cannot be shared evenly by 2 processes: --set batch=8"),
    ],
)
def test_ranks_that_do_not_fit_together(learned, case, told):
    for rank in learned:
        assert told in rank[case]


@pytest.mark.slow
def test_one_writer(whole):
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


@pytest.mark.slow
def test_ranks_share_the_test_part(whole):
    """Together they find what one process finds."""
    scores = comatch.evaluate(whole[0], device="cpu")
    summary = json.loads((whole[0] / "summary.json").read_text())
    assert summary["top1"] == scores.top1
    assert summary["calibration_error"] == pytest.approx(scores.calibration_error, abs=1e-6)
    assert scores.images % 2, "an even number would not show what is left over"


@pytest.mark.slow
def test_ranks_draw_other_numbers_for_other_images(whole):
    """One shuffle for all, and random numbers of each rank's own."""
    state = torch.load(whole[0] / "last.pt")
    assert not torch.equal(state["random"]["cpu"], state["others"][0]["random"]["cpu"])
    order = state["data"]["shuffle_u.order"]
    assert len(order.unique()) == len(order)


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_nothing_is_lost(whole, tmp_path):
    """SIGKILL after the first checkpoint, without --resume: torchrun restarts, the run goes on."""
    done = by_torchrun(SCRIPT, "killed", 3, *words("run"), cwd=tmp_path, restarts=1)
    assert done.returncode == 0, done.stderr
    assert "SIGKILL" in done.stderr or "-9" in done.stderr
    assert_same_runs(whole[0], tmp_path / "run")
    assert len(json.loads((tmp_path / "run/environment.json").read_text())["sessions"]) == 2


@pytest.fixture(scope="module")
def halted(tmp_path_factory):
    """Two ranks of which one was asked to stop, between two log points and two checkpoints."""
    folder = tmp_path_factory.mktemp("halted")
    codes, _, said = by_hand("stopped", 5, *words("run"), cwd=folder)
    assert codes == [130, 130], said
    assert sum(text.count("stopped after step 5") for text in said) == 1
    assert_alone(said)
    return folder / "run"


@pytest.mark.slow
def test_resuming_is_exact(whole, halted, tmp_path):
    shutil.copytree(halted, tmp_path / "run")
    codes, _, said = by_hand("plain", 0, *words("run"), "--resume", cwd=tmp_path)
    assert codes == [0, 0], said
    assert "warning" not in "".join(said)
    assert_alone(said)
    assert_same_runs(whole[0], tmp_path / "run")


@pytest.mark.slow
def test_one_process_goes_on_with_the_run_of_two(halted, tmp_path):
    shutil.copytree(halted, tmp_path / "run")
    with pytest.warns(UserWarning, match="saved by 2 processes and goes on with 1"):
        comatch.train("digits", **OPTIONS, settings=TINY, out=tmp_path / "run", resume=True)
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == STEPS
    before, after = ((run / "metrics.jsonl").read_bytes() for run in (halted, tmp_path / "run"))
    assert after.startswith(before)


@pytest.mark.slow
def test_two_processes_go_on_with_the_run_of_one(tmp_path, monkeypatch):
    class StopsAt(progress.StopRequest):
        looks = 0

        @property
        def asked(self):
            self.looks += 1
            return self.looks >= 5

        @asked.setter
        def asked(self, value):
            pass

    monkeypatch.setattr(progress, "StopRequest", StopsAt)
    with pytest.raises(loop.Interrupted):
        comatch.train("digits", **OPTIONS, settings=TINY, out=tmp_path / "run")
    codes, _, said = by_hand("plain", 0, *words("run"), "--resume", cwd=tmp_path)
    assert codes == [0, 0], said
    assert "".join(said).count("saved by 1 processes and goes on with 2") == 1
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
def test_a_mistake_is_told_once_and_nothing_is_touched(halted, tmp_path, monkeypatch):
    """Without --resume only that goes on which the same torchrun has begun: here, nothing."""
    shutil.copytree(halted, tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    codes, _, said = by_hand("plain", 0, *words("run"), cwd=tmp_path)
    assert codes == [2, 2]
    assert "".join(said).count("error: run is not empty: add --resume") == 1, said
    assert (tmp_path / "run/last.pt").read_bytes() == (halted / "last.pt").read_bytes()


def test_only_training_is_for_several(cli, monkeypatch):
    for name in launch.TOLD:
        monkeypatch.setenv(name, "2")
    code, _, err = cli("compare", "digits")
    assert code == 2
    assert not err  # the first of them says it
    monkeypatch.setenv("RANK", "0")
    code, _, err = cli("compare", "digits")
    assert "only `comatch train` works in several processes" in err


def test_in_one_process_it_is_the_identity():
    rows = torch.rand(3, 2)
    assert distributed.world() == 1
    assert distributed.rank() == 0
    for does_nothing in (distributed.gather, distributed.mean, distributed.from_first_rank):
        assert does_nothing(rows) is rows
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
        distributed.join()  # nobody else is there
        distributed.leave()
