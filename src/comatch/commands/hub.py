"""Classifiers on the Hugging Face hub, in the layout of its model mixins.

    config.json          classes, sizes and preprocessing of the network, as in model.json
    model.safetensors    the weights
    README.md            the model card

Nothing in a repository is executed.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comatch.errors import UserError
from comatch.files import write_texts
from comatch.training.run_folder import Run, RunFolder, folder_of

PREFIX = "hf://"
CARD = "model_card.md"  # of a run folder, if there is one
USAGE = """```python
import comatch

classifier = comatch.load("hf://{repo}")
print(classifier.predict(["image.jpg"]).labels)
```"""


def push(run: str | Path | Run, repo: str, *, private: bool = False) -> str:
    """Upload the classifier of a run to the repository `owner/name`, and return its address.

    The account is that of `hf auth login` or of HF_TOKEN. A new repository is made if there is
    none; its files are replaced if there is one.
    """
    from huggingface_hub import HfApi

    source = folder_of(run)
    with tempfile.TemporaryDirectory() as folder, one_line_errors(f"cannot push {source.path}"):
        package(source, Path(folder), repo)
        hub = HfApi(library_name="comatch")
        address = hub.create_repo(repo, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repo, folder_path=folder, commit_message="Push a classifier")
    return str(address)


def download(name: str) -> RunFolder:
    """The files of `hf://owner/name` or `hf://owner/name@revision`, from the hub or its cache."""
    from huggingface_hub import snapshot_download

    repo, _, revision = name.removeprefix(PREFIX).partition("@")
    with one_line_errors(f"cannot load {name}"):
        found = snapshot_download(
            repo,
            revision=revision or None,
            allow_patterns=["config.json", "model.safetensors"],
            library_name="comatch",
        )
    return RunFolder(Path(found))


def package(run: RunFolder, folder: Path, repo: str) -> None:
    """Write the files of a repository."""
    run.read_weights()  # a damaged or missing file is found here, not by those who load it
    described = run.description()
    shutil.copyfile(run.weights, folder / "model.safetensors")
    write_texts(
        folder,
        {
            "config.json": json.dumps({**described, "library_name": "comatch"}, indent=2) + "\n",
            "README.md": card(run, described, repo),
        },
    )


def card(run: RunFolder, described: dict[str, Any], repo: str) -> str:
    """The model card: that of the run folder, or what is known of the run."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name="comatch",
        pipeline_tag="image-classification",
        tags=["comatch", "semi-supervised-learning"],
    )
    own = run.path / CARD
    body = own.read_text() if own.exists() else f"# {repo}\n\n{facts(run, described)}"
    return f"---\n{data.to_yaml()}\n---\n\n{body}\n\n## Use\n\n{USAGE.format(repo=repo)}\n"


def facts(run: RunFolder, described: dict[str, Any]) -> str:
    """Classes and settings, and the result if the run has finished."""
    lines = [
        f"An image classifier of {len(described['classes'])} classes, trained with comatch.",
        "",
        f"- network: {described['net']}, images of {described['image_size']} pixels",
    ]
    if run.summary.exists():
        summary = json.loads(run.summary.read_text())
        lines += [
            f"- method: {summary['method']}",
            f"- learned from {summary['labels']:,} labels and {summary['unlabelled']:,} "
            "unlabelled images",
        ]
        if "top1" in summary:
            lines.append(f"- test accuracy: {100 * summary['top1']:.1f} %")
    classes = json.dumps(described["classes"], ensure_ascii=False)
    return "\n".join([*lines, "", "Classes:", "", "```json", classes, "```"])


@contextmanager
def one_line_errors(what: str) -> Iterator[None]:
    """Errors of the hub in one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of the network, the hub, the account or the disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{what}: {reason}") from error
