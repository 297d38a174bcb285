"""Figures from metrics.jsonl: their lines, their values, and their files."""

import json
import statistics
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from comatch import recipes
from comatch.commands.report import runs
from comatch.commands.reproduce import curves, figures
from comatch.config import replace, settings_of, to_json
from comatch.errors import UserError
from comatch.figures import save


def make_run(path, method="comatch", seed=0, steps=100, at=lambda step: step / 1000, **settings):
    """A run folder with metrics every ten steps and an evaluation every twenty."""
    path.mkdir(parents=True)
    recipe = replace(recipes.get("digits", method), seed=seed, **settings)
    (path / "config.json").write_text(json.dumps({"recipe": to_json(recipe), "data_dir": "data"}))
    lines = []
    for step in range(10, steps + 1, 10):
        values = {"loss": 1.0}
        if method != "supervised":
            values["confident"] = at(step)
        if method != "supervised" and step > 10:  # no pseudo-label is confident at first
            values["pseudo_accuracy"] = 1 - at(step)
        lines.append({"step": step, "kind": "train", **values})
        if step % 20 == 0:
            lines.append({"step": step, "kind": "eval", "top1": 2 * at(step), "top5": 1.0})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "metrics.jsonl").write_text(text)
    return path


def drawn(figure):
    """Title of each panel, with the lines in it that have points."""
    return {
        axes.get_title(loc="left"): [line for line in axes.get_lines() if len(line.get_xdata())]
        for axes in figure.axes
    }


def names(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()], legend.get_title().get_text()


# --------------------------------------------------------------------------------- training


def test_three_panels_of_one_run(tmp_path):
    figure = figures.curves(curves.read([make_run(tmp_path / "a")]))
    panels = drawn(figure)
    assert list(panels) == list(figures.TITLES.values())
    right, confident, test = (line for (line,) in panels.values())
    assert list(right.get_xdata()) == list(range(20, 101, 10))
    assert list(confident.get_ydata()) == [step / 1000 for step in range(10, 101, 10)]
    assert list(test.get_xdata()) == [20, 40, 60, 80, 100]
    assert list(test.get_ydata()) == [2 * step / 1000 for step in (20, 40, 60, 80, 100)]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert names(figure) == (["comatch"], "seed 0")


def test_seeds_of_one_setting_are_a_mean_with_a_band(tmp_path):
    for seed, factor in enumerate((1, 2, 4)):
        make_run(tmp_path / str(seed), seed=seed, at=lambda step, f=factor: f * step / 1000)
    (curve,) = curves.read([tmp_path])
    assert curve.seeds == [0, 1, 2]
    line = curve.lines["confident"]
    values = [0.05, 0.1, 0.2]  # at step 50
    assert line.mean[4] == pytest.approx(statistics.mean(values))
    assert line.std[4] == pytest.approx(statistics.stdev(values))
    figure = figures.curves([curve])
    assert all(len(axes.collections) == 1 for axes in figure.axes)
    assert names(figure) == (["comatch"], "line: mean over 3 seeds; band: deviation")


def test_an_unfinished_run(tmp_path):
    make_run(tmp_path / "0", seed=0)
    short = make_run(tmp_path / "1", seed=1, steps=40, at=lambda step: 3 * step / 1000)
    with (short / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "kind": "tra')  # it is being written just now
    (curve,) = curves.read([tmp_path / "0", short])
    line = curve.lines["confident"]
    assert line.steps == list(range(10, 101, 10))
    assert line.mean[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.05])
    assert [std is None for std in line.std] == [False] * 4 + [True] * 6
    figures.curves([curve])


def test_each_method_is_a_line(tmp_path):
    for method in ("comatch", "fixmatch", "supervised"):
        make_run(tmp_path / method, method)
    make_run(tmp_path / "more", "comatch", seed=3, alpha=0.5, data=str(tmp_path / "mine"))
    figure = figures.curves(curves.read([tmp_path]))
    assert names(figure)[0] == [
        "comatch, data=digits, alpha=0.9 (seed 0)",
        "fixmatch (seed 0)",
        "comatch, data=mine, alpha=0.5 (seed 3)",
        "supervised (seed 0)",
    ]
    right, confident, test = drawn(figure).values()
    assert (len(right), len(confident), len(test)) == (3, 3, 4)
    assert len({line.get_color() for line in test}) == 4


def test_settings_that_do_not_change_the_result_are_ignored(tmp_path):
    assert set(runs.INCIDENTAL) <= {"name", *settings_of(recipes.get("digits"))}
    make_run(tmp_path / "0", seed=0, precision="fp32", engine="eager")
    make_run(tmp_path / "1", seed=1, precision="bf16", log_every=7)
    (curve,) = curves.read([tmp_path])
    assert curve.seeds == [0, 1]


def test_without_pseudo_labels_there_is_one_panel(tmp_path):
    figure = figures.curves(curves.read([make_run(tmp_path / "a", "supervised")]))
    assert list(drawn(figure)) == ["Test accuracy"]


def test_many_points_are_averaged(tmp_path):
    (curve,) = curves.read([make_run(tmp_path / "a", steps=70_000, at=lambda step: step / 1e6)])
    line = curve.lines["confident"]
    assert len(line.steps) <= curves.MOST
    assert line.steps[-1] == 70_000
    width = 7000 // len(line.steps) + (7000 % len(line.steps) > 0)
    assert line.mean[0] == pytest.approx(statistics.mean(range(10, 10 * width + 1, 10)) / 1e6)
    figure = figures.curves([curve])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_xlabel() == "steps (thousands)"
    assert "60" in [label.get_text() for label in axes.get_xticklabels()]


def test_more_lines_than_colours_get_other_dashes(tmp_path):
    for number in range(9):
        make_run(tmp_path / str(number), lr=0.1 + number)
    test = drawn(figures.curves(curves.read([tmp_path])))["Test accuracy"]
    assert len({(line.get_color(), line.get_linestyle()) for line in test}) == 9


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "metrics.jsonl").unlink(), "has no metrics.jsonl"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "has no metric to draw yet"),
        (lambda run: (run / "metrics.jsonl").write_text("no\n"), "was not written by comatch"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n"), "cannot be read"),
        (lambda run: (run / "config.json").unlink(), "is not a run folder"),
        (lambda run: run.rename(run.with_name("b")), "there is no folder"),
        (lambda run: make_run(run.parent / "b"), "has seed 0 twice"),
    ],
)
def test_mistakes_are_one_line(tmp_path, cli, damage, message):
    run = make_run(tmp_path / "a")
    damage(run)
    words = [run, tmp_path / "b"] if (tmp_path / "b").exists() and run.exists() else [run]
    code, out, err = cli("reproduce", "curves", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


# ------------------------------------------------------------------------------------ files


def is_image(path):
    if path.suffix == ".svg":
        return ElementTree.parse(path).getroot().tag.endswith("svg")
    with Image.open(path) as image:
        image.load()
        return image.format == "PNG" and min(image.size) > 400 and image.getextrema() != ()


def test_the_command_writes_both_files(tmp_path, cli):
    make_run(tmp_path / "run")
    for stem, written in (("deep/figure", "deep/figure"), ("other.svg", "other")):
        code, out, err = cli("reproduce", "curves", "run", "--out", stem)
        assert code == 0, err
        for suffix in (".png", ".svg"):
            path = tmp_path / f"{written}{suffix}"
            assert str(path.relative_to(tmp_path)) in out
            assert is_image(path)
    for title in figures.TITLES.values():
        assert f"<!-- {title} -->" in (tmp_path / "other.svg").read_text()


def test_the_files_are_reproducible(tmp_path):
    make_run(tmp_path / "run")
    for name in ("a", "b"):
        save(figures.curves(curves.read([tmp_path / "run"])), tmp_path / name)
    for suffix in (".png", ".svg"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    figure = figures.curves(curves.read([make_run(tmp_path / "run")]))
    with pytest.raises(UserError, match="cannot write"):
        save(figure, tmp_path / "file" / "figure")


# -------------------------------------------------------------------------------- ablations


def test_a_panel_for_each_parameter(tmp_path):
    panels = [
        figures.Panel("a", [0.8, 0.9, 1.0], [(0.5, 0.1), (0.6, 0.2), None], 0.9),
        figures.Panel("b", [1, 10, 100], [None, (0.6, 0.2), (0.7, 0.1)], 10, logarithmic=True),
        figures.Panel("c", [1, 2], [None, None], 1),
    ]
    figure = figures.ablations(panels)
    first, second, third = figure.axes
    (bars,) = first.containers
    assert list(bars.lines[0].get_xdata()) == [0.8, 0.9]
    assert list(bars.lines[0].get_ydata()) == [0.5, 0.6]
    segments = bars.lines[2][0].get_segments()
    assert [tuple(segment[:, 1]) for segment in segments] == [
        pytest.approx((0.4, 0.6)),
        pytest.approx((0.4, 0.8)),
    ]
    assert [axes.get_xscale() for axes in figure.axes] == ["linear", "log", "linear"]
    assert [text.get_text() for text in third.texts] == ["not run"]
    for axes, panel in zip(figure.axes, panels, strict=True):
        assert panel.default in [line.get_xdata()[0] for line in axes.get_lines()]
        low, high = axes.get_xlim()
        assert low < min(panel.values) < max(panel.values) < high
    assert second.get_ylim() == first.get_ylim()
    assert set(names(figure)[0]) == {"mean ± deviation", "the recipe's value"}
    for path in save(figure, tmp_path / "x"):
        assert is_image(path)
