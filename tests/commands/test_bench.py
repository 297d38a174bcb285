"""`comatch bench`: its counts, its times, its tables and its command line."""

import itertools
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from comatch import recipes
from comatch.commands import bench
from comatch.commands.bench import encoding, limits, stages
from comatch.config import replace
from comatch.data.image_folder import folder
from comatch.device import choose_precision
from comatch.errors import UserError
from comatch.training.build import build
from helpers import TINY, TINY_WORDS, make_images

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
QUICK = ["--device", "cpu", "--steps", 1, *TINY_WORDS]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Short repetitions: no test depends on the precision of a time."""
    monkeypatch.setattr(stages, "REPETITIONS", 2)
    monkeypatch.setattr(stages, "REPETITION_SECONDS", 0.001)


def tiny_recipe(method="comatch", **settings):
    tiny = {k: v for k, v in TINY.items() if method == "comatch" or k != "bank_size"}
    return replace(recipes.get("digits", method), **{**tiny, **settings})


def measured(method="comatch", device=CPU, **settings):
    recipe = tiny_recipe(method, **settings)
    return bench.measure(recipe, *bench.random_images(recipe, 10), device, steps=1)


# ------------------------------------------------------------------------------------- stages


@pytest.mark.parametrize(("method", "views"), [("comatch", 10 + 3 * 20), ("supervised", 10)])
def test_stages_sum_to_the_step(method, views):
    result = measured(method)
    assert list(result["stages_ms"]) == ["augment", "forward", "loss", "backward", "update"]
    assert min(result["stages_ms"].values()) >= 0
    assert sum(result["stages_ms"].values()) == pytest.approx(result["ms"], rel=1e-3)
    low, high = result["ms_range"]
    assert low <= result["ms"] <= high
    assert result["loss_share"] == pytest.approx(result["loss_ms"] / result["ms"], abs=1e-3)
    assert result["views"] == views
    assert result["images_per_s"] == pytest.approx(1000 * views / result["ms"], rel=1e-3)
    assert result["tflop_per_s"] == pytest.approx(result["gflop"] / result["ms"], rel=1e-3)
    assert result["tb_per_s"] == pytest.approx(result["least_traffic_gb"] / result["ms"], rel=1e-3)
    reference = result["reference"]
    assert reference["ratio"] == pytest.approx(reference["ms"] / result["ms"], rel=1e-3)
    assert "stages_ms" not in reference
    assert (result["engine"], result["precision"]) == ("eager", choose_precision("auto", CPU))
    assert result["startup_seconds"] > 0
    assert result["peak_memory_mb"] > 0
    assert result["ceilings"]["tflop_per_s"] > 0
    assert result["ceilings"]["tb_per_s"] > 0


def test_a_stage_is_the_difference_of_two_prefixes():
    prefixes = ("a", "b", "c")
    times = {"a": [1.0, 9.0, 2.0], "b": [3.0], "c": [6.0], stages.LAST: [10.0]}
    assert stages.stages_of(times, prefixes) == {"a": 2.0, "b": 1.0, "c": 3.0, "update": 4.0}
    # Noise makes no stage negative and does not change the whole step.
    times = {"a": [2.0], "b": [12.0], "c": [6.0], stages.LAST: [5.0]}
    assert stages.stages_of(times, prefixes) == {"a": 2.0, "b": 3.0, "c": 0.0, "update": 0.0}
    # A stage that cannot be timed alone is part of the next.
    times = {"a": [2.0], "c": [6.0], stages.LAST: [7.0]}
    assert stages.stages_of(times, prefixes) == {"a": 2.0, "b + c": 4.0, "update": 1.0}


def test_a_prefix_that_cannot_be_timed_is_left_out_with_a_warning():
    class Failing(nn.Module):
        def forward(self, images):
            raise RuntimeError("not like this\nand a long story")

    recipe = tiny_recipe()
    run = build(recipe, *bench.random_images(recipe, 10), CPU)
    run.method.net = Failing()
    with pytest.warns(UserWarning, match="'forward' cannot be timed alone: not like this$"):
        made = dict(
            stages.prefixes_of(
                run, "eager", ("augment", "forward"), itertools.count(), stages.silent
            )
        )
    assert list(made) == ["augment"]


def test_each_call_of_a_prefix_draws_the_next_batch(monkeypatch):
    """A pass of one batch is shuffled anew for each call."""
    monkeypatch.setattr(bench, "BATCHES_A_PASS", 1)
    recipe = tiny_recipe()
    run = build(recipe, *bench.random_images(recipe, 10), CPU)
    made = dict(stages.prefixes_of(run, "eager", stages.PREFIXES, itertools.count(), stages.silent))
    stages.time_alternately(made, 3, CPU)
    assert run.feed.shuffle_u.cursor == len(run.feed.shuffle_u.order) == 20


def test_prefixes_are_timed_alternately():
    calls = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = stages.time_alternately(works, 2, CPU)
    assert calls == ["a", "a", "b", "b"] * 2
    assert statistics.median(times["a"]) >= 0


# ------------------------------------------------------- reference implementation and limits

# Layers of wrn-10-1 on images of 8 x 8: width in, width out, kernel, side in, side out.
LAYERS = [
    (3, 16, 3, 8, 8),
    *[(16, 16, 3, 8, 8)] * 2,
    *[(16, 32, 3, 8, 4), (32, 32, 3, 4, 4), (16, 32, 1, 8, 4)],
    *[(32, 64, 3, 4, 2), (64, 64, 3, 2, 2), (32, 64, 1, 4, 2)],
    (64, 10, 1, 1, 1),  # the classifier
]


def test_operations_and_minimum_traffic_by_hand():
    recipe, n = tiny_recipe("supervised"), 10
    operations = moved = 0
    for i, (width_in, width, kernel, side_in, side) in enumerate(LAYERS):
        read, written = n * width_in * side_in**2, n * width * side**2
        # Forward, the weights' gradient, and the input's gradient except for the images.
        operations += (2 if i == 0 else 3) * 2 * written * width_in * kernel**2
        moved += (2 if i == 0 else 3) * read + 2 * written
    counted = limits.count(limits.build_reference(recipe, *bench.random_images(recipe, 10), CPU))
    assert counted == (operations, moved)


def test_operations_do_not_depend_on_the_precision_but_bytes_do():
    plain, low = (measured("supervised", precision=kind) for kind in ("fp32", "bf16"))
    assert low["precision"] == "bf16"
    assert low["reference"]["precision"] == "fp32"
    assert low["gflop"] == plain["gflop"]
    assert low["least_traffic_gb"] == pytest.approx(plain["least_traffic_gb"] / 2, rel=1e-3)


def test_the_reference_is_eager_float32_and_contiguous():
    recipe = tiny_recipe(precision="bf16", engine="compiled")
    data = bench.random_images(recipe, 10)
    reference = limits.build_reference(recipe, *data, CPU)
    assert (reference.recipe.engine, reference.recipe.precision) == ("eager", "fp32")
    assert stages.engine_of(reference) == "eager"
    assert reference.method.net.compute_dtype is None
    for parameter in reference.method.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.is_contiguous()
    reference.step(0)
    batches = []
    for run in (reference, build(replace(recipe, engine="eager"), *data, CPU)):
        torch.manual_seed(1)
        run.feed.before_step(0)
        batches.append(run.feed.next()[0])
    contiguous, other = batches
    for a, b in zip([contiguous.x, *contiguous.u], [other.x, *other.u], strict=True):
        assert a.is_contiguous()
        assert torch.allclose(a, b.float(), atol=0.05)  # only the memory format differs


def test_a_reference_out_of_memory_is_reported(monkeypatch):
    def no_room(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench, "build_reference", no_room)
    result = measured("supervised")
    assert result["reference"] == {"error": "out of memory"}
    assert "tflop_per_s" not in result
    assert result["ms"] > 0


# ----------------------------------------------------------------------------- cost as work grows


def grown(vary, **settings):
    return bench.run(tiny_recipe(**settings), bench.random_images, CPU, vary=vary, steps=1)


def test_vary_gives_a_row_for_each_value():
    record = grown("mu=1,2,4")
    assert record["vary"] == "mu"
    assert [row["value"] for row in record["rows"]] == [1, 2, 4]
    assert [row["views"] for row in record["rows"]] == [10 + 3 * 10 * mu for mu in (1, 2, 4)]
    for row in record["rows"]:
        assert row["relative"] == pytest.approx(row["ms"] / record["rows"][0]["ms"], abs=1e-3)
        assert row["loss_share"] == pytest.approx(row["loss_ms"] / row["ms"], abs=1e-3)


def test_classes_and_settings_of_the_method_can_be_varied():
    assert [row["classes"] for row in grown("classes=2,30")["rows"]] == [2, 30]
    assert [row["value"] for row in grown("bank_size=60,100_000")["rows"]] == [60, 100_000]
    recipe = tiny_recipe()
    run = build(recipe, *bench.random_images(recipe, 30), CPU)
    assert run.method.net.classifier.out_features == 30
    assert run.method.bank_p.rows.shape == (60, 30)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate ..."),
        MemoryError(),
    ],
)
def test_a_value_out_of_memory_is_a_row(monkeypatch, error):
    def small_machine(recipe, *rest):
        if recipe.optim.mu > 2:
            raise error
        return build(recipe, *rest)

    monkeypatch.setattr(bench, "build_prepared", small_machine)
    small, large, again = grown("mu=1,3,2")["rows"]
    assert large == {"value": 3, "error": "out of memory"}
    assert small["relative"] == 1
    assert "ms" in again
    with pytest.raises(UserError, match="none of the values could be measured: out of memory"):
        grown("mu=3,4")


def test_another_error_is_not_taken_for_too_little_memory(monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(bench, "build_prepared", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        grown("mu=1,2")


# ------------------------------------------------------------------------------- the command line


def test_the_table_shows_what_the_file_records(cli, tmp_path):
    code, out, err = cli("bench", *QUICK, "--json", "bench.json")
    assert code == 0, err
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["environment"]["command"].startswith("comatch bench --device cpu")
    assert record["environment"]["packages"]["torch"] == torch.__version__.split("+")[0]
    assert record["environment"]["device"].startswith("CPU")
    assert "git" in record["environment"]
    assert record["recipe"]["method"]["name"] == "comatch"
    assert record["recipe"]["mu"] == TINY["mu"]
    assert record["data"] == "random images"
    for name, ms in record["results"]["stages_ms"].items():
        assert f"{name} " in out
        assert f"{ms:,.2f}" in out
    for word in (
        "comatch with wrn-10-1 on random images of 8 pixels",
        "images/s",
        f"{record['results']['images_per_s']:,.0f}",
        "peak memory",
        "start-up",
        f"{record['results']['reference']['ratio']:.2f} times this step",
        "TFLOP/s",
        "TB/s, minimum traffic",
        "copy of 256 MiB",
    ):
        assert word in out, word


def test_real_images_leave_no_path_in_the_file(cli, tmp_path):
    images = make_images(tmp_path / "private" / "images")
    words = ["bench", "--recipe", "folder", *QUICK, "--set", "mu=1", "--no-reference"]
    code, out, err = cli(*words, "--set", f"data={images}", "--json", "bench.json")
    assert code == 0, err
    assert "on images of 8 pixels" in out
    assert "reference" not in out
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["results"]["classes"] == 2
    assert record["results"]["labelled"] == 24
    del record["environment"]["command"]
    assert str(tmp_path) not in json.dumps(record)


def test_vary_on_the_command_line(cli):
    words = ["bench", *QUICK, "--data-dir", "none", "--vary"]
    code, out, err = cli(*words, "batch=10,700")
    assert code == 0, err
    assert "on digits of 8 pixels" in out
    assert "a step takes 1400 unlabelled images (batch 700 x mu 2) and there are 1398" in err


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--recipe", "cifar"], ["unknown recipe", "did you mean 'cifar10'"]),
        (["--method", "comach"], ["unknown method", "did you mean 'comatch'"]),
        (["--set", "alhpa=1"], ["unknown setting", "did you mean 'alpha'"]),
        (["--vary", "bnak_size=1,2"], ["unknown setting", "did you mean 'bank_size'"]),
        (["--vary", "clases=1,2"], ["did you mean 'classes'"]),
        (["--vary", "mu"], ["--vary mu", "key=value,value"]),
        (["--vary", "mu="], ["key=value,value"]),
        (["--vary", "mu=1,two"], ["mu takes a whole number"]),
        (["--vary", "mu=1,0"], ["mu=0: must be at least 1"]),
        (["--vary", "classes=10,1"], ["at least 2"]),
        (["--vary", "classes=ten"], ["whole numbers"]),
        (["--vary", "classes=2,3", "--data-dir", "d"], ["leave --data-dir out"]),
        (["--classes", "5", "--data-dir", "d"], ["leave --data-dir out"]),
        (["--classes", "1"], ["must be at least 2"]),
        (["--steps", "0"], ["must be at least 1"]),
        (["--device", "tpu"], ["unknown device"]),
        (["--recipe", "folder", "--data-dir", "d"], ["needs data"]),
        (["--json", "no/such/bench.json"], ["there is no folder no/such"]),
    ],
)
def test_invalid_options(cli, words, fragments):
    code, _, err = cli("bench", "--device", "cpu", *words)
    lines = [line for line in err.splitlines() if line.strip()]
    assert code == 2, err
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    for fragment in fragments:
        assert fragment in lines[0]


@pytest.mark.cuda
@pytest.mark.parametrize("method", ["comatch", "supervised"])
def test_the_captured_step_and_its_captured_prefixes(method):
    result = measured(method, device=torch.device("cuda"))
    assert (result["engine"], result["precision"]) == ("captured", "bf16")
    assert list(result["stages_ms"]) == ["augment", "forward", "loss", "backward", "update"]
    assert sum(result["stages_ms"].values()) == pytest.approx(result["ms"], rel=1e-3)
    assert result["reference"]["engine"] == "eager"
    assert result["reference"]["fp32_convolutions"] == torch.backends.cudnn.conv.fp32_precision
    assert "bf16" in result["ceilings"]["product"]
    assert result["ceilings"]["tflop_per_s"] > result["tflop_per_s"]


def test_a_record_without_counts_or_memory_is_still_a_table(cli, tmp_path):
    """The reference did not fit into memory, and the system does not report peak memory."""
    record = json.loads((Path(__file__).parents[2] / "benchmarks/digits-cpu.json").read_text())
    for key in ("gflop", "tflop_per_s", "least_traffic_gb", "tb_per_s"):
        del record["results"][key]
    record["results"] |= {"reference": {"error": "out of memory"}, "peak_memory_mb": None}
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    code, table, _ = cli("report", "--markdown", str(path))
    assert code == 0
    assert "TFLOP/s" not in table
    assert "| peak memory | unknown |" in table


# ------------------------------------------------------------------------- reading images


@pytest.fixture
def jpegs(tmp_path, monkeypatch):
    """A folder of JPEGs; each stage is timed for a batch or two."""
    monkeypatch.setattr(bench.images, "SECONDS", 0.01)
    monkeypatch.setattr(bench.images, "WARM_UP", 1)
    random = np.random.default_rng(0)
    for i in range(24):
        path = tmp_path / "jpegs" / "train" / f"c{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "jpegs"


FROM_DISK = ["--device", "cpu", "--set", "image_size=16", "--set", "batch=2", "--set", "mu=3"]


def test_images_from_disk(jpegs, cli, tmp_path):
    code, out, err = cli("bench", "--data", jpegs, "--workers", 2, "--json", "b.json", *FROM_DISK)
    assert code == 0, err
    record = json.loads((tmp_path / "b.json").read_text())
    result = record["images"]
    stages = ["read", "read, decode", "read, decode, one view", "read, decode, 3 views"]
    assert list(result["images_per_s"]) == stages
    assert min(result["images_per_s"].values()) > 0
    ratio = result["images_per_s"]["read, decode, one view"] / result["plain"]["images_per_s"]
    assert result["ratio"] == pytest.approx(ratio, rel=1e-3)
    assert result["memory_mb"]["peak"] >= result["memory_mb"]["streaming"] > 0
    assert (result["workers"], result["files"], result["batch"]) == (2, 24, 8)
    assert str(jpegs) not in json.dumps({**record, "environment": None})
    for fragment in ("24 images of jpegs", "plain DataLoader", "ratio for one view", "MiB"):
        assert fragment in out
    code, out, _ = cli("report", "--markdown", "b.json")
    assert code == 0
    assert "| read, decode |" in out
    assert "times** |" in out


def test_a_damaged_image_stops_only_the_plain_loader(jpegs, cli, monkeypatch):
    monkeypatch.setattr(bench.images, "PLAIN_BATCH", 1000)  # one batch has all images
    (jpegs / "train" / "c0" / "x.jpg").write_bytes(b"")
    for i in range(80):  # so that less than one in a hundred is damaged
        (jpegs / "train" / "c1" / f"more{i}.jpg").write_bytes(
            (jpegs / "train" / "c1" / "1.jpg").read_bytes()
        )
    code, out, err = cli("bench", "--data", jpegs, "--workers", 1, *FROM_DISK)
    assert code == 0, err
    assert "ratio for one view" not in out


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["--data", "nowhere"], "nowhere does not exist"),
        (["--data", ".", "--vary", "mu=1"], "leave --vary"),
        (["--data", ".", "--workers", 0], "--workers 0"),
        (["--workers", 2], "--workers is for --data"),
    ],
)
def test_invalid_options_for_a_folder(cli, words, fragment):
    code, _, err = cli("bench", *words)
    assert code == 2
    assert fragment in err


def test_a_step_on_streamed_images(jpegs, cli, tmp_path):
    words = [*QUICK, "--no-reference", "--set", f"data={jpegs}", "--set", "stream=yes"]
    code, out, err = cli(
        "bench",
        "--recipe",
        "folder",
        *words,
        "--set",
        "labels=4",
        "--set",
        "batch=2",
        "--json",
        "b.json",
    )
    assert code == 0, err
    result = json.loads((tmp_path / "b.json").read_text())["results"]
    assert 0 < result["waited_ms"] < result["streamed_ms"]
    assert "stages_ms" not in result
    assert "wait for images" in out


def test_the_benchmark_of_encoding_reads_views_of_files(tmp_path):
    """Through worker processes, which refuse a file that is not the one that was asked for."""
    make_images(tmp_path / "images", per_class=50, unlabelled=20)
    files = folder(tmp_path / "images", 16, progress=False, stream="yes").train
    views = encoding.first_views(files, 110, 16)
    assert views.shape == (110, 3, 16, 16)
    assert views.float().std() > 0
