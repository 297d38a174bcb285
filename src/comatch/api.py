"""Train, pre-train, load and evaluate, as functions.

`comatch` offers them beside those of other commands.

run = comatch.train("digits", labels=40)
classifier = comatch.load(run)
classifier.predict(["a.png", "b.jpg"]).labels
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from comatch import distributed, evaluation, launch, methods, planning
from comatch.classifier import TrainedClassifier, load_classifier
from comatch.commands import hub
from comatch.data import in_memory
from comatch.data.image_folder import labelled_files
from comatch.data.streaming import in_pieces
from comatch.device import choose_device
from comatch.errors import UserError
from comatch.evaluation import Evaluation
from comatch.files import check_run_folder, read_summary
from comatch.planning import Request, as_request, load_dataset
from comatch.training.init_weights import check_available
from comatch.training.loop import Interrupted, fit
from comatch.training.progress import TrainingBar
from comatch.training.run_folder import NothingToResumeError, Run, RunFolder, folder_of
from comatch.types import Part


def train(
    data: Any = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    pretrain: str | None = None,
    pretrain_steps: int | None = None,
    **options: Any,
) -> Run:
    """Train a classifier and return its run folder.

    `data` is the name of a data set, the path of a folder of images, images given in Python
    ((paths, labels), (array, labels), a pandas table, a PyTorch or Hugging Face dataset; -1 or
    None as the label of an unlabelled image), or a whole `Request`;
    `options` are the other fields of a `Request`: labels=40, method="fixmatch", ... The run folder
    `out` must be empty. With `resume`, the unfinished run in it is continued, and a finished one
    returned; it is an error if there is none. Under torchrun, all processes train one classifier,
    and a run that torchrun starts again is continued.

    With `pretrain`, a method without labels, the network learns without labels first: in the folder
    `pretraining` of the run folder. `resume` continues whichever was stopped.
    """
    request = as_request(data, options)
    if pretrain is not None:
        request, out = pretrain_first(request, out, resume, pretrain, pretrain_steps)
    return run_training(request, out, resume)


def pretrain_first(
    request: Request, out: str | Path | None, resume: bool, method: str, steps: int | None
) -> tuple[Request, Path]:
    """Pre-train the network that a request trains; return the request that starts from it."""
    distributed.join()
    if request.init or request.encoder not in (None, "none"):
        raise UserError("--pretrain starts from random weights: leave --init and --encoder out")
    request = replace(request, encoder="none")
    folder = planning.pretraining_folder(request, out, resume)
    first = planning.pretraining_request(request, method, steps)
    again = resume and RunFolder(folder).exists()
    if not again and not launch.restarts():
        RunFolder(folder.parent).check_free()
    try:
        run_training(first, folder, again, pretraining=True)
    except Interrupted as stop:
        raise Interrupted(stop.step, folder.parent) from None
    return replace(request, init=folder), folder.parent


def pretrain(
    data: str | Path | Request | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    **options: Any,
) -> Run:
    """Learn an encoder from images without labels and return its run folder.

    The arguments are those of `train`. `comatch.train(data, init=run.path)` continues with labels.
    """
    return run_training(as_request(data, options), out, resume, pretraining=True)


def run_training(
    request: Request, out: str | Path | None, resume: bool, pretraining: bool = False
) -> Run:
    """Train or pre-train: start, continue, or return what is finished."""
    distributed.join()
    restarted = not launch.several() and launch.restarts() > 0
    call = f"folder of {(request.data, request.labels, request.method, request.seed, out)}"
    started = distributed.published_value(call)  # the folder that was used before a restart
    out, again = started or out, restarted or started is not None
    device = choose_device(request.device)
    folder = RunFolder(Path(out)) if out else None
    if folder is None or not ((resume or again) and folder.exists()):
        recipe = planning.plan(request, device, pretraining)
        folder = folder or planning.default_folder(recipe, resume or again)
    if (resume or again) and folder.exists():
        recipe = folder.recipe()
        methods.check_kind(recipe.method.method, pretraining)
        planning.check_same(folder, recipe, request)
        if folder.finished():
            return Run(folder.path, read_summary(folder.summary))
        home = Path(request.data_dir) if request.data_dir else folder.data_dir()
    elif resume and not again and not (folder.path.exists() and request.data):
        raise NothingToResumeError(folder)
    else:
        folder.check_free()
        check_available(recipe.model)
        home = Path(request.data_dir or "data")

    distributed.publish(call, str(folder.path))
    show = request.progress and distributed.rank() == 0
    dataset = load_dataset(recipe.reading, home, show, request.strict, request.given)
    summary = None
    if show and not folder.exists():
        summary = planning.summarise(dataset, folder.split_for(recipe, dataset), recipe)
    bar = partial(TrainingBar, show=show, summary=summary)
    return Run(folder.path, fit(folder, recipe, dataset, device, home, bar))


def load(run: str | Path | Run, device: str = "auto") -> TrainedClassifier:
    """The classifier of a run, or of `hf://owner/name` on the Hugging Face hub.

    Nothing in its folder is executed.
    """
    if isinstance(run, str) and run.startswith(hub.PREFIX):
        return load_classifier(hub.download(run), choose_device(device))
    folder = folder_of(run)
    check_run_folder(folder.path)
    return load_classifier(folder, choose_device(device))


def evaluate(
    run: str | Path | Run,
    images: Any = None,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
) -> Evaluation:
    """Evaluate a run's classifier on the test part of its data, or on other labelled images.

    `images` is a folder with sub-folders named after the classes or a labels.csv, or images with
    labels as for `train`.
    """
    classifier = load(run, device)
    size, side = classifier.image_size, classifier.resize
    if images is None:
        part = test_part(run, data_dir)
    elif isinstance(images, str | Path):
        part = labelled_files(Path(images), classifier.classes)
    else:
        part = in_memory.read_labelled(images, classifier.classes, side, size)
    classifier.expect(len(part))
    return evaluation.evaluate(
        part,
        lambda part: in_pieces(part, size, classifier.mean.device, side=side),
        lambda images: classifier.predict(images).probabilities,
        classifier.classes,
    )


def test_part(run: str | Path | Run, data_dir: str | Path | None) -> Part:
    """The test part of a run's data."""
    folder = folder_of(run)
    reading = folder.reading()
    home = Path(data_dir) if data_dir else folder.data_dir()
    test = load_dataset(reading, home).test
    if test is None:
        raise UserError(
            f"{reading.dataset.data} has no test part: name a folder of labelled images, or "
            "cross-validate on the labels (--folds 4)"
        )
    return test
