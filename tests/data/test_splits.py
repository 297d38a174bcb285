"""Splits: balanced, decided by the seed, and restored exactly from their file."""

import dataclasses
import json

import pytest
import torch

from comatch.config import replace
from comatch.data import splits
from comatch.data.config import DataConfig
from comatch.errors import UserError
from comatch.training.recipe import Recipe
from comatch.types import UNLABELLED, Dataset, Files, Images


def dataset(per_class=(10, 12, 14), unlabelled=5, folds=()):
    labels = [c for c, n in enumerate(per_class) for _ in range(n)] + [UNLABELLED] * unlabelled
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    labels = torch.tensor(labels)[order]
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].repeat(1, 3, 2, 2)
    images = Images(images, labels, [f"p{i}" for i in range(len(labels))])
    return Dataset("toy", [f"c{i}" for i in range(len(per_class))], images, folds=list(folds))


def make(data, seed=0, **settings):
    return splits.make(data, DataConfig(**settings), seed)


def test_balanced_disjoint_and_complete():
    data = dataset()
    split = make(data, labels=6, validation=9)
    assert torch.bincount(data.train.labels[split.labelled]).tolist() == [2, 2, 2]
    assert torch.bincount(data.train.labels[split.validation]).tolist() == [3, 3, 3]
    rows = torch.cat([split.labelled, split.unlabelled, split.validation]).tolist()
    assert sorted(rows) == list(range(len(data.train)))


def test_labelled_images_are_left_out_of_the_unlabelled():
    data = dataset()
    split = make(data, labels=6)
    assert not set(split.labelled.tolist()) & set(split.unlabelled.tolist())


def test_the_seed_decides():
    data = dataset()
    first, again, other = (make(data, labels=6, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.labelled, again.labelled)
    assert not torch.equal(first.labelled, other.labelled)


def test_holding_out_validation_does_not_change_what_is_labelled():
    data = dataset()
    without, having = (make(data, labels=6, validation=v) for v in (0, 9))
    assert torch.equal(without.labelled, having.labelled)


def test_all_labels_are_used_when_no_number_is_given():
    data = dataset()
    assert len(make(data).labelled) == 36
    held_out = make(data, validation=0.5)
    assert len(held_out.labelled) == 36 - len(held_out.validation) == 18


@pytest.mark.parametrize(("share", "each"), [(0.01, 1), (0.1, 1), (0.25, 3), (0.5, 6), (0.83, 10)])
def test_a_share_is_the_same_number_of_each_class(share, each):
    """36 labelled images in three classes; the five unlabelled images do not count."""
    data = dataset()
    split = make(data, labels=share)
    assert torch.bincount(data.train.labels[split.labelled]).tolist() == [each] * 3
    assert split.origin == f"{each} a class ({share} of 36 labelled images in 3 classes), by seed"
    same = make(data, labels=3 * each)
    assert torch.equal(split.labelled, same.labelled)


def test_shares_of_imagenet_are_those_of_the_paper():
    """1,281,167 images in 1,000 classes; the test uses a tenth of both."""
    labels = torch.arange(128_117) % 100
    files = Files("", labels, [str(i) for i in range(len(labels))])
    data = Dataset("imagenet", [str(c) for c in range(100)], files)
    for share, each in ((0.01, 13), (0.1, 128)):
        assert len(make(data, labels=share).labelled) == 100 * each


def test_a_share_larger_than_a_class_is_an_error():
    with pytest.raises(UserError, match="class 'c0' has 10 labelled images, not 11"):
        make(dataset(), labels=0.9)


def test_the_origin_names_the_list():
    split = make(dataset(), labels_file="lists/1percent.txt")
    assert split.origin == "all 36 labels of 1percent.txt"
    split = make(dataset(), labels_file="lists/1percent.txt", labels=6)
    assert split.origin == "2 a class of 1percent.txt, by seed"


def test_files_have_a_fingerprint(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}").write_bytes(b"x" * i)
    files = Files(tmp_path, torch.arange(4), ["0", "1", "2", "3"])
    first = splits.fingerprint(files)
    assert splits.fingerprint(files) == first
    relabelled = dataclasses.replace(files, labels=torch.zeros(4, dtype=torch.long))
    assert splits.fingerprint(relabelled) != first
    (tmp_path / "2").write_bytes(b"another length")
    assert splits.fingerprint(files) != first
    (tmp_path / "2").unlink()  # a missing file is no error here
    assert splits.fingerprint(files) != first


def test_a_split_is_restored_from_its_file():
    data, config = dataset(), DataConfig(labels=6, validation=3)
    split = splits.make(data, config, seed=4)
    written = json.loads(json.dumps(splits.to_json(split, data)))
    assert set(written["validation"]) == {"images", "seed", "digest"}
    back = splits.restore(data, config, written)
    for field in ("labelled", "unlabelled", "validation"):
        assert torch.equal(getattr(split, field), getattr(back, field))
    assert set(written["labelled"].values()) == {"c0", "c1", "c2"}


def test_validation_images_listed_by_name_are_restored():
    """Older versions listed them by name."""
    data, config = dataset(), DataConfig(labels=6, validation=3)
    split = splits.make(data, config, seed=4)
    written = splits.to_json(split, data)
    names = [data.train.names[row] for row in split.validation.tolist()]
    written["validation"] = {name: data.classes[data.train.labels[int(name[1:])]] for name in names}
    back = splits.restore(data, config, json.loads(json.dumps(written)))
    assert torch.equal(back.validation, split.validation)
    assert torch.equal(back.unlabelled, split.unlabelled)


def test_a_changed_validation_draw_is_detected():
    data, config = dataset(), DataConfig(labels=6, validation=3)
    written = splits.to_json(splits.make(data, config, seed=4), data)
    written["validation"]["digest"] = "00000000"
    with pytest.raises(UserError, match="seed 4"):
        splits.restore(data, config, written)


@pytest.mark.parametrize("part", ["images", "labels", "names"])
def test_changed_data_is_detected(part):
    data, config = dataset(), DataConfig(labels=6)
    written = splits.to_json(splits.make(data, config, seed=4), data)
    changed = getattr(data.train, part)
    changed = ["other", *changed[1:]] if part == "names" else changed.clone()
    if part != "names":
        changed[0] += 1
    train = dataclasses.replace(data.train, **{part: changed})
    with pytest.raises(UserError, match="the data changed"):
        splits.restore(dataclasses.replace(data, train=train), config, written)


def test_split_seed_alone_decides_the_split():
    def split_of(data, **settings):
        recipe = replace(Recipe(), **settings)
        return splits.make(data, recipe.dataset, recipe.split_seed)

    data = dataset()
    first = split_of(data, labels=6, validation=3, seed=1)
    same, other = (
        split_of(data, labels=6, validation=3, seed=seed, split_seed=split)
        for seed, split in ((7, 1), (1, 7))
    )
    for part in ("labelled", "validation"):
        assert torch.equal(getattr(first, part), getattr(same, part))
        assert not torch.equal(getattr(first, part), getattr(other, part))
    folds = dataset(folds=([0, 1, 2], [3, 4, 5]))
    assert split_of(folds, labels=3, seed=0, split_seed=1).origin == "predefined fold 1"


def test_folds_partition_the_labels_and_change_nothing_else():
    data = dataset(per_class=(3, 12, 14))
    whole = make(data)
    parts = [make(data, fold=f"{part}/4") for part in range(1, 5)]
    asked = torch.cat([part.validation for part in parts])
    assert sorted(asked.tolist()) == sorted(whole.labelled.tolist())
    for part in parts:
        known = [row for row in whole.labelled.tolist() if row not in part.validation.tolist()]
        assert part.labelled.tolist() == known
        assert torch.equal(part.unlabelled, whole.unlabelled)
        assert torch.bincount(data.train.labels[part.labelled]).min() >= 2
        each = torch.bincount(data.train.labels[part.validation], minlength=3)
        assert (each - torch.tensor([3, 12, 14]) / 4).abs().max() < 1
        again = splits.restore(data, DataConfig(fold="1/4"), splits.to_json(part, data))
        assert torch.equal(again.validation, part.validation)
        assert torch.equal(again.labelled, part.labelled)


def test_a_fold_of_few_labels():
    """With two labels a class, one is left. One label a class cannot be divided."""
    data = dataset()
    halves = [make(data, labels=6, fold=f"{part}/2") for part in (1, 2)]
    for half in halves:
        assert torch.bincount(data.train.labels[half.labelled]).tolist() == [1, 1, 1]
    sixths = [make(data, labels=6, fold=f"{part}/6") for part in range(1, 7)]
    assert [len(part.validation) for part in sixths] == [1] * 6
    with pytest.raises(UserError, match="6 labels are too few for 7 parts"):
        make(data, labels=6, fold="1/7")
    with pytest.raises(UserError, match="class 'c0' has one labelled image"):
        make(data, labels=3, fold="1/3")


def test_predefined_folds_are_used_by_seed():
    data = dataset(folds=[[0, 1, 2], [3, 4, 5]])
    split = make(data, labels=3, seed=1)
    assert split.labelled.tolist() == [3, 4, 5]
    assert "fold 1" in split.origin
    assert "seed" in make(data, labels=3, seed=2).origin  # there is no such fold
    assert "seed" in make(data, labels=6, seed=1).origin  # another number of labels


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": 7}, "7 labels cannot be shared evenly by 3 classes: use --labels 6 or 9"),
        ({"labels": 2}, "use --labels 3"),
        ({"labels": 33}, "class 'c0' has 10 labelled images, not 11: use --labels 30"),
        ({"validation": 0.99}, "leaves no labelled image of class 'c0'"),
    ],
)
def test_impossible_splits_say_what_to_do(settings, message):
    with pytest.raises(UserError, match=message):
        make(dataset(), **settings)


def test_a_class_without_labels_is_an_error():
    with pytest.raises(UserError, match="class 'c1' has no labelled image"):
        make(dataset(per_class=(5, 0, 5)))
