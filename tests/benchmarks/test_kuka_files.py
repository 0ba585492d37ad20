"""The loader of the published KUKA files, on files of their layout."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper.data import Sources, load, split_rows
from benchmarks.paper.kuka_files import load_kuka_files


def table(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 28)).round(6)


def test_a_folder_of_text_csv_and_gzip_is_joined_by_name(tmp_path: Path):
    parts = [table(3, seed) for seed in range(4)]
    np.savetxt(tmp_path / "a.txt", parts[0])
    np.savetxt(tmp_path / "b.csv", parts[1], delimiter=",", header="q1 ...")
    np.savetxt(tmp_path / "c.txt.gz", parts[2])
    np.savetxt(tmp_path / "d.csv", parts[3])  # spaces in spite of its name
    (tmp_path / "readme.md").write_text("not data")
    X, Y = load_kuka_files(tmp_path)
    np.testing.assert_allclose(X, np.concatenate(parts)[:, :21])
    np.testing.assert_allclose(Y, np.concatenate(parts)[:, 21:])


def test_one_file_is_enough(tmp_path: Path):
    np.savetxt(tmp_path / "offline.txt", table(5))
    assert load_kuka_files(tmp_path / "offline.txt")[0].shape == (5, 21)


def test_errors_say_what_is_wrong(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="neither a file nor a folder"):
        load_kuka_files(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no file that ends in"):
        load_kuka_files(tmp_path)
    np.savetxt(tmp_path / "narrow.txt", table(3)[:, :27])
    with pytest.raises(ValueError, match="27 columns; the published files have 28"):
        load_kuka_files(tmp_path / "narrow.txt")
    gaps = table(3)
    gaps[1, 4] = np.nan
    np.savetxt(tmp_path / "gaps.txt", gaps)
    with pytest.raises(ValueError, match=r"1 rows .* \(first at row 1"):
        load_kuka_files(tmp_path / "gaps.txt")
    with gzip.open(tmp_path / "words.txt.gz", "wt") as file:
        file.write("not a number\n")
    with pytest.raises(ValueError, match="not a table of numbers"):
        load_kuka_files(tmp_path / "words.txt.gz")


def test_the_published_sets_are_never_made_up(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="--kuka1"):
        load("kuka1", 0, Sources(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"benchmarks\.generate\.walker2d"):
        load("mujoco1", 0, Sources(tmp_path))


def test_splits_are_standardised_by_their_training_rows(tmp_path: Path):
    np.savetxt(tmp_path / "all.txt", 3 + 2 * table(100))
    split = load("kuka2", 0, Sources(tmp_path, kuka2=tmp_path))
    assert split.X_train.shape == (90, 21)
    assert split.y_test.shape == (10, 7)
    for part in (split.X_train, split.y_train):
        np.testing.assert_allclose(part.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(part.std(0), 1)


def test_a_split_uses_every_row_once_and_repeats_by_seed():
    train, test = split_rows(1000, 3)
    assert len(train) == 900
    assert sorted([*train, *test]) == list(range(1000))
    np.testing.assert_array_equal(train, split_rows(1000, 3)[0])
    assert [len(part) for part in split_rows(1000, 3, 100)] == [90, 10]
