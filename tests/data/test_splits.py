"""Who may see which label: balanced, by seed, the same again from what was written down."""

import dataclasses
import json

import pytest
import torch

from comatch.config import Recipe, replace
from comatch.data import splits
from comatch.errors import UserError
from comatch.types import UNLABELLED, Dataset, Files, Images


def dataset(per_class=(10, 12, 14), unlabelled=5, folds=()):
    labels = [c for c, n in enumerate(per_class) for _ in range(n)] + [UNLABELLED] * unlabelled
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    labels = torch.tensor(labels)[order]
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].repeat(1, 3, 2, 2)
    images = Images(images, labels, [f"p{i}" for i in range(len(labels))])
    return Dataset("toy", [f"c{i}" for i in range(len(per_class))], images, folds=list(folds))


def test_balanced_disjoint_and_complete():
    data = dataset()
    split = splits.make(data, Recipe(labels=6, validation=9))
    assert torch.bincount(data.train.labels[split.labelled]).tolist() == [2, 2, 2]
    assert torch.bincount(data.train.labels[split.validation]).tolist() == [3, 3, 3]
    rows = torch.cat([split.labelled, split.unlabelled, split.validation]).tolist()
    assert sorted(rows) == list(range(len(data.train)))


def test_labelled_images_are_left_out_of_the_unlabelled_unless_asked():
    data = dataset()
    apart = splits.make(data, Recipe(labels=6))
    assert not set(apart.labelled.tolist()) & set(apart.unlabelled.tolist())
    together = splits.make(data, Recipe(labels=6, labelled_too=True))
    assert set(together.labelled.tolist()) <= set(together.unlabelled.tolist())


def test_the_seed_decides():
    data = dataset()
    first, again, other = (splits.make(data, Recipe(labels=6, seed=s)) for s in (1, 1, 2))
    assert torch.equal(first.labelled, again.labelled)
    assert not torch.equal(first.labelled, other.labelled)


def test_holding_out_validation_does_not_change_what_is_labelled():
    data = dataset()
    without, having = (splits.make(data, Recipe(labels=6, validation=v)) for v in (0, 9))
    assert torch.equal(without.labelled, having.labelled)


def test_all_labels_are_used_when_no_number_is_given():
    data = dataset()
    assert len(splits.make(data, Recipe()).labelled) == 36
    held_out = splits.make(data, Recipe(validation=0.5))
    assert len(held_out.labelled) == 36 - len(held_out.validation) == 18


@pytest.mark.parametrize(("share", "each"), [(0.01, 1), (0.1, 1), (0.25, 3), (0.5, 6), (0.83, 10)])
def test_a_share_is_the_same_number_of_each_class(share, each):
    """Of 36 labelled images in three classes; the five without a label do not count."""
    data = dataset()
    split = splits.make(data, Recipe(labels=share))
    assert torch.bincount(data.train.labels[split.labelled]).tolist() == [each] * 3
    assert split.origin == f"{each} a class ({share} of 36 labelled images in 3 classes), by seed"
    same = splits.make(data, Recipe(labels=3 * each))
    assert torch.equal(split.labelled, same.labelled)


def test_shares_of_imagenet_are_those_of_the_paper():
    """1,281,167 images in 1,000 classes; a tenth of them will do."""
    labels = torch.arange(128_117) % 100
    files = Files("", labels, [str(i) for i in range(len(labels))])
    data = Dataset("imagenet", [str(c) for c in range(100)], files)
    for share, each in ((0.01, 13), (0.1, 128)):
        assert len(splits.make(data, Recipe(labels=share)).labelled) == 100 * each


def test_a_share_that_a_class_does_not_have():
    with pytest.raises(UserError, match="class 'c0' has 10 labelled images, not 11"):
        splits.make(dataset(), Recipe(labels=0.9))


def test_a_list_is_named():
    split = splits.make(dataset(), Recipe(labels_file="lists/1percent.txt"))
    assert split.origin == "all 36 labels of 1percent.txt"
    split = splits.make(dataset(), Recipe(labels_file="lists/1percent.txt", labels=6))
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
    (tmp_path / "2").unlink()  # is no error here
    assert splits.fingerprint(files) != first


def test_a_split_comes_back_from_its_file():
    data, recipe = dataset(), Recipe(labels=6, validation=3, seed=4)
    split = splits.make(data, recipe)
    written = json.loads(json.dumps(splits.to_json(split, data)))
    back = splits.restore(data, replace(recipe, seed=99), written)  # the file decides, not the seed
    for field in ("labelled", "unlabelled", "validation"):
        assert torch.equal(getattr(split, field), getattr(back, field))
    assert set(written["labelled"].values()) == {"c0", "c1", "c2"}


@pytest.mark.parametrize("part", ["images", "labels", "names"])
def test_changed_data_is_noticed(part):
    data, recipe = dataset(), Recipe(labels=6)
    written = splits.to_json(splits.make(data, recipe), data)
    changed = getattr(data.train, part)
    changed = ["other", *changed[1:]] if part == "names" else changed.clone()
    if part != "names":
        changed[0] += 1
    train = dataclasses.replace(data.train, **{part: changed})
    with pytest.raises(UserError, match="the data changed"):
        splits.restore(dataclasses.replace(data, train=train), recipe, written)


def test_a_seed_of_its_own_decides_the_split_alone():
    data = dataset()
    first = splits.make(data, Recipe(labels=6, validation=3, seed=1))
    same, other = (
        splits.make(data, Recipe(labels=6, validation=3, seed=seed, split_seed=split))
        for seed, split in ((7, 1), (1, 7))
    )
    for part in ("labelled", "validation"):
        assert torch.equal(getattr(first, part), getattr(same, part))
        assert not torch.equal(getattr(first, part), getattr(other, part))
    folds = dataset(folds=([0, 1, 2], [3, 4, 5]))
    assert splits.make(folds, Recipe(labels=3, seed=0, split_seed=1)).origin == "predefined fold 1"


def test_folds_share_out_the_labels_and_change_nothing_else():
    data = dataset(per_class=(3, 12, 14))
    whole = splits.make(data, Recipe())
    parts = [splits.make(data, Recipe(fold=f"{part}/4")) for part in range(1, 5)]
    asked = torch.cat([part.validation for part in parts])
    assert sorted(asked.tolist()) == sorted(whole.labelled.tolist())
    for part in parts:
        known = [row for row in whole.labelled.tolist() if row not in part.validation.tolist()]
        assert part.labelled.tolist() == known
        assert torch.equal(part.unlabelled, whole.unlabelled)
        assert torch.bincount(data.train.labels[part.labelled]).min() >= 2
        each = torch.bincount(data.train.labels[part.validation], minlength=3)
        assert (each - torch.tensor([3, 12, 14]) / 4).abs().max() < 1
        again = splits.restore(data, Recipe(fold="1/4"), splits.to_json(part, data))
        assert torch.equal(again.validation, part.validation)
        assert torch.equal(again.labelled, part.labelled)


def test_a_fold_of_few_labels():
    """Two of a class: one is left. One of a class, or more parts than labels, cannot be."""
    data = dataset()
    halves = [splits.make(data, Recipe(labels=6, fold=f"{part}/2")) for part in (1, 2)]
    for half in halves:
        assert torch.bincount(data.train.labels[half.labelled]).tolist() == [1, 1, 1]
    sixths = [splits.make(data, Recipe(labels=6, fold=f"{part}/6")) for part in range(1, 7)]
    assert [len(part.validation) for part in sixths] == [1] * 6
    with pytest.raises(UserError, match="6 labels are too few for 7 parts"):
        splits.make(data, Recipe(labels=6, fold="1/7"))
    with pytest.raises(UserError, match="class 'c0' has one labelled image"):
        splits.make(data, Recipe(labels=3, fold="1/3"))


def test_predefined_folds_are_used_by_seed():
    data = dataset(folds=[[0, 1, 2], [3, 4, 5]])
    split = splits.make(data, Recipe(labels=3, seed=1))
    assert split.labelled.tolist() == [3, 4, 5]
    assert "fold 1" in split.origin
    assert "seed" in splits.make(data, Recipe(labels=3, seed=2)).origin  # there is no such fold
    assert "seed" in splits.make(data, Recipe(labels=6, seed=1)).origin  # another number of labels


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(labels=7), "7 labels cannot be shared evenly by 3 classes: use --labels 6 or 9"),
        (Recipe(labels=2), "use --labels 3"),
        (Recipe(labels=33), "class 'c0' has 10 labelled images, not 11: use --labels 30"),
        (Recipe(validation=0.99), "leaves no labelled image of class 'c0'"),
    ],
)
def test_impossible_splits_say_what_to_do(recipe, message):
    with pytest.raises(UserError, match=message):
        splits.make(dataset(), recipe)


def test_a_class_without_labels_is_an_error():
    with pytest.raises(UserError, match="class 'c1' has no labelled image"):
        splits.make(dataset(per_class=(5, 0, 5)), Recipe())
