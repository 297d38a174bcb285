"""The label store: what was given is in the file, whatever others do with it."""

import csv
import multiprocessing
import os
import time

import pytest

from comatch.commands.label import store as module
from comatch.commands.label.store import LabelStore, class_name
from comatch.commands.suggest.table import NONE, SKIPPED, Mark
from comatch.data.labels_file import read_labels
from comatch.errors import UserError

NAMES = [f"{i}.jpg" for i in range(8)]


@pytest.fixture
def table(tmp_path):
    return tmp_path / "labels.csv"


def opened(table, names=NAMES):
    return LabelStore(table, table.parent, names)


def rows(table):
    with table.open(newline="") as file:
        return list(csv.reader(file))


def write(table, text):
    """As another program does, with an older time than that of files that may be half written."""
    table.write_text(text)
    past = time.time() - 60 + len(text)  # each text has a time of its own
    os.utime(table, (past, past))


def label(store, name, text, tab=""):
    store.mark({name: Mark(text)}, tab)


def test_a_label_is_in_the_file_at_once(table):
    store = opened(table)
    label(store, "3.jpg", "cat")
    assert rows(table) == [["path", "label"], ["3.jpg", "cat"]]
    assert opened(table).labels() == {"3.jpg": "cat"}


def test_training_reads_the_file(table):
    store = opened(table)
    store.mark({"1.jpg": Mark("", SKIPPED), "2.jpg": Mark("", NONE), "3.jpg": Mark("a, b")})
    assert read_labels(table) == [("3.jpg", "a, b")]


def test_statuses_are_kept(table):
    opened(table).mark({"1.jpg": Mark("", SKIPPED), "2.jpg": Mark("", NONE)})
    again = opened(table)
    assert again.of("1.jpg") == Mark("", SKIPPED)
    assert again.of("2.jpg") == Mark("", NONE)


def test_a_label_replaces_a_status(table):
    store = opened(table)
    store.mark({"1.jpg": Mark("", SKIPPED)})
    label(store, "1.jpg", "cat")
    assert opened(table).of("1.jpg") == Mark("cat")


@pytest.mark.parametrize(
    "text",
    [
        "image;class;who\n5.jpg;cat;anna\n1.jpg;;ben\n",
        "who\tlabel\tpath\nanna\tcat\t5.jpg\nben\t\t1.jpg\n",
    ],
)
def test_other_columns_rows_and_separators_stay(table, text):
    write(table, text)
    store = opened(table)
    label(store, "1.jpg", "dog")
    label(store, "2.jpg", "cat")
    found = table.read_text()
    assert "anna" in found
    assert "ben" in found
    assert found.splitlines()[0] == text.splitlines()[0]
    assert dict(read_labels(table)) == {"5.jpg": "cat", "1.jpg": "dog", "2.jpg": "cat"}


def test_rows_of_unknown_files_stay(table):
    write(table, "path,label\nelsewhere.jpg,owl\n")
    label(opened(table), "1.jpg", "cat")
    assert ["elsewhere.jpg", "owl"] in rows(table)


def test_names_are_found_in_any_spelling(table):
    write(table, "path,label\n./1.jpg,cat\n")
    store = opened(table)
    assert store.labels() == {"1.jpg": "cat"}
    label(store, "1.jpg", "dog")
    assert rows(table)[1:] == [["./1.jpg", "dog"]]


def test_a_picture_with_two_labels_has_none_until_it_gets_one(table):
    write(table, "path,label\n1.jpg,cat\n1.jpg,dog\n")
    store = opened(table)
    assert store.labels() == {}
    label(store, "1.jpg", "dog")
    assert rows(table)[1:] == [["1.jpg", "dog"]]


def test_rows_of_another_program_are_merged(table):
    store = opened(table)
    label(store, "1.jpg", "cat")
    write(table, "path,label\n1.jpg,cat\n2.jpg,dog\n")
    label(store, "3.jpg", "owl")
    assert dict(read_labels(table)) == {"1.jpg": "cat", "2.jpg": "dog", "3.jpg": "owl"}
    assert "labels.csv" in store.notice


def test_a_changed_label_is_taken_over(table):
    write(table, "path,label\n1.jpg,cat\n")
    store = opened(table)
    write(table, "path,label\n1.jpg,tiger\n")
    store.sync()
    assert store.labels() == {"1.jpg": "tiger"}


def test_an_old_copy_does_not_remove_labels(table):
    """A spreadsheet that was opened before saves its own rows over ours."""
    write(table, "path,label\n1.jpg,\n2.jpg,cat\n")
    store = opened(table)
    label(store, "1.jpg", "dog")
    label(store, "2.jpg", "owl")
    label(store, "3.jpg", "dog")
    write(table, "path,label\n1.jpg,\n2.jpg,cat\n4.jpg,eel\n")
    store.sync()
    wanted = {"1.jpg": "dog", "2.jpg": "owl", "3.jpg": "dog", "4.jpg": "eel"}
    assert dict(read_labels(table)) == store.labels() == wanted


@pytest.mark.parametrize("text", [None, "", "path,label\n"])
def test_a_deleted_or_emptied_file_is_written_again(table, text):
    write(table, "path,label\n1.jpg,cat\n")
    store = opened(table)
    label(store, "2.jpg", "dog")
    if text is None:
        table.unlink()
    else:
        write(table, text)
    label(store, "3.jpg", "owl")
    assert dict(read_labels(table)) == {"1.jpg": "cat", "2.jpg": "dog", "3.jpg": "owl"}


def test_a_half_written_file_is_waited_for(table):
    store = opened(table)
    label(store, "1.jpg", "cat")
    table.write_text("path,label\n1.jpg,cat\n2.jpg,do")  # now
    label(store, "3.jpg", "owl")
    assert store.pending
    assert table.read_text().endswith("do")  # not touched while the other program writes
    write(table, "path,label\n1.jpg,cat\n2.jpg,dog\n")
    store.sync()
    assert dict(read_labels(table)) == {"1.jpg": "cat", "2.jpg": "dog", "3.jpg": "owl"}
    assert not store.pending


def test_a_damaged_file_is_told_and_not_overwritten(table):
    store = opened(table)
    label(store, "1.jpg", "cat")
    write(table, "one,two,three\n1,2,3,4\n\n")
    label(store, "2.jpg", "dog")
    assert "labels.csv" in store.problem
    assert "\n" not in store.problem
    assert table.read_text().startswith("one,two")
    write(table, "path,label\n1.jpg,cat\n")
    store.sync()
    assert dict(read_labels(table)) == {"1.jpg": "cat", "2.jpg": "dog"}
    assert not store.problem


def test_a_full_disk_loses_nothing(table, monkeypatch):
    store = opened(table)
    label(store, "1.jpg", "cat")

    def full(path):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, "atomic_writer", full)
        label(store, "2.jpg", "dog")
        label(store, "3.jpg", "owl")
        assert "No space left" in store.problem
        assert len(store.pending) == 2
    assert rows(table)[1:] == [["1.jpg", "cat"]]
    store.sync()
    assert len(rows(table)) == 4
    assert not store.problem


def test_undo(table):
    store = opened(table)
    label(store, "1.jpg", "cat")
    store.mark({"1.jpg": Mark("dog"), "2.jpg": Mark("dog")})
    assert sorted(store.undo()) == ["1.jpg", "2.jpg"]
    assert opened(table).labels() == {"1.jpg": "cat"}
    store.undo()
    assert opened(table).labels() == {}
    assert store.undo() == []


def test_undo_is_of_the_own_tab_and_spares_later_changes(table):
    store = opened(table)
    label(store, "1.jpg", "cat", tab="a")
    label(store, "2.jpg", "dog", tab="b")
    store.mark({"3.jpg": Mark("cat"), "4.jpg": Mark("cat")}, tab="a")
    label(store, "4.jpg", "owl", tab="b")
    assert store.undo("a") == ["3.jpg"]
    assert store.labels() == {"1.jpg": "cat", "2.jpg": "dog", "4.jpg": "owl"}


def test_undo_wins_over_an_old_copy(table):
    store = opened(table)
    label(store, "1.jpg", "cat")
    store.undo()
    write(table, "path,label\n1.jpg,cat\n")
    store.sync()
    assert store.labels() == {}


def label_share(path, share):
    store = LabelStore(path, path.parent, [f"{i}.jpg" for i in range(60)])
    for i in range(share, 60, 3):
        label(store, f"{i}.jpg", f"class {share}")
    assert not store.problem


@pytest.mark.slow
def test_processes_that_write_at_the_same_time(table):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=label_share, args=(table, share)) for share in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert dict(read_labels(table)) == {f"{i}.jpg": f"class {i % 3}" for i in range(60)}


def test_versions_tell_what_changed(table):
    store = opened(table)
    label(store, "1.jpg", "cat")
    before = store.version
    label(store, "2.jpg", "dog")
    assert store.since(before) == {"2.jpg": Mark("dog")}
    assert store.since(store.version) == {}


def test_new_pictures_get_their_rows(table):
    write(table, "path,label\nnew.jpg,cat\n")
    store = opened(table)
    assert store.labels() == {}
    store.add_names(["new.jpg"])
    store.sync()
    assert store.labels() == {"new.jpg": "cat"}


@pytest.mark.parametrize(("text", "name"), [("  a   b ", "a b"), ("<b>ü</b>", "<b>ü</b>")])
def test_class_names_are_tidied(text, name):
    assert class_name(text) == name


@pytest.mark.parametrize("text", ["", "  ", "x" * 101, "unlabeled", "a\0b", "a\x07b"])
def test_impossible_class_names(text):
    with pytest.raises(UserError):
        class_name(text)
