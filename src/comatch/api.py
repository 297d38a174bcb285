"""Train, load and evaluate, as functions. `comatch` offers them beside those of other commands.

run = comatch.train("digits", labels=40)
classifier = comatch.load(run)
classifier.predict(["a.png", "b.jpg"]).labels
"""

from functools import partial
from pathlib import Path
from typing import Any

from comatch import distributed, evaluation, launch, planning
from comatch.classifier import Classifier, load_classifier
from comatch.device import choose_device
from comatch.errors import UserError
from comatch.files import read_json
from comatch.planning import Request, as_request, load_dataset
from comatch.training.init_weights import check_exists
from comatch.training.loop import fit
from comatch.training.progress import TrainingBar
from comatch.training.run_folder import Run, RunFolder, folder_of


def train(
    data: str | Path | Request | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    **options: Any,
) -> Run:
    """Train a classifier and return its run folder.

    `data` is the name of a data set, the path of a folder of images, or a whole `Request`;
    `options` are the other fields of a `Request`: labels=40, method="fixmatch", ... The run folder
    `out` must be empty. With `resume`, an unfinished run in it is continued, and a finished one
    returned. Under torchrun, all processes train one classifier, and a run that torchrun starts
    again is continued.
    """
    request = as_request(data, options)
    distributed.join()
    restarted = not launch.several() and launch.restarts() > 0
    call = f"folder of {(request.data, request.labels, request.method, request.seed, out)}"
    started = distributed.published_value(call)  # the folder that was used before a restart
    out, resume = started or out, resume or restarted or started is not None
    device = choose_device(request.device)
    folder = RunFolder(Path(out)) if out else None
    if folder is None or not (resume and folder.exists()):
        recipe = planning.plan(request, device)
        folder = folder or planning.default_folder(recipe, resume)
    if resume and folder.exists():
        recipe = folder.recipe()
        planning.check_same(folder, recipe, request)
        if folder.finished():
            return Run(folder.path, read_json(folder.summary))
        home = Path(request.data_dir) if request.data_dir else folder.data_dir()
    else:
        folder.check_free()
        check_exists(recipe.model.init)
        home = Path(request.data_dir or "data")

    distributed.publish(call, str(folder.path))
    show = request.progress and distributed.rank() == 0
    dataset = load_dataset(recipe.dataset, recipe.streaming, home, show)
    return Run(
        folder.path,
        fit(folder, recipe, dataset, device, home, partial(TrainingBar, show=show)),
    )


def load(run: str | Path | Run, device: str = "auto") -> Classifier:
    """The classifier of a run. Nothing in its folder is executed."""
    return load_classifier(folder_of(run), choose_device(device))


def evaluate(
    run: str | Path | Run, *, data_dir: str | Path | None = None, device: str = "auto"
) -> evaluation.Scores:
    """Scores of a run's classifier on the test part of its data."""
    folder = folder_of(run)
    classifier = load(run, device)
    config, streaming = folder.data_config()
    home = Path(data_dir) if data_dir else folder.data_dir()
    dataset = load_dataset(config, streaming, home)
    if dataset.test is None:
        raise UserError(
            f"{config.data} has no test part: add a folder 'test' with labelled images, or "
            "cross-validate on the labels (--folds 4)"
        )
    return evaluation.score_part(
        dataset.test,
        lambda images: classifier.predict(images).probabilities,
        len(classifier.classes),
        classifier.image_size,
        classifier.mean.device,
    )
