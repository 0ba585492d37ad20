"""Saving harms no old file, whatever goes wrong."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from decoupledgp import DecoupledGPRegressor
from saved_models import assert_same_predictions, fitted, rows


@pytest.fixture(params=["nameless", "named"])
def way_to_write(request, monkeypatch):
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return request.param


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_failure_leaves_the_old_file_and_nothing_else(
    function, error, way_to_write, tmp_path, monkeypatch
):
    path = tmp_path / "model"
    model = fitted()
    model.save(path)
    old = path.read_bytes()

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(type(error)) as caught:
            model.partial_fit(*rows(seed=1)).save(path)
    if isinstance(error, OSError):
        assert "cannot save here (No space left)" in str(caught.value)
        assert caught.value.filename == str(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["model"]
    model.save(path)
    assert DecoupledGPRegressor.load(path).n_iter_ == model.n_iter_


def test_places_that_cannot_be_written_to(tmp_path):
    model = fitted()
    with pytest.raises(IsADirectoryError, match="add a file name"):
        model.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="create it first"):
        model.save(tmp_path / "nowhere" / "model")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="create it first"):
        model.save(tmp_path / "file" / "model")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do anything")
def test_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="cannot save here"):
        fitted().save(tmp_path / "model")
    tmp_path.chmod(0o700)


def test_permissions_and_links_are_kept(way_to_write, tmp_path):
    model = fitted()
    (tmp_path / "folder").mkdir()
    real, link = tmp_path / "folder" / "model", tmp_path / "latest"
    model.save(real)
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~current_umask()
    real.chmod(0o640)
    link.symlink_to(real)
    model.partial_fit(*rows(seed=1)).save(str(link))
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert DecoupledGPRegressor.load(real).n_iter_ == model.n_iter_


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


SAVE_FOREVER = """
import os, sys, time
from decoupledgp import DecoupledGPRegressor
from decoupledgp.storage import file

half_way, any_time = sys.argv[1:]
model = DecoupledGPRegressor.load(any_time)
write = file._write_and_sync

def stop_half_way(file, data):
    file.write(data[: len(data) // 2])
    file.flush()
    print(os.getpid(), flush=True)
    time.sleep(60)

def in_pieces(file, data):
    for k in range(0, len(data), 1000):
        file.write(data[k : k + 1000])
        file.flush()
    write(file, b"")

if os.fork() == 0:
    file._write_and_sync = stop_half_way
    model.save(half_way)
    os._exit(1)
file._write_and_sync = in_pieces
model.partial_fit([[0, 0, 0]], [0])
model.save(any_time)
print(os.getpid(), flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    model.save(any_time)
"""


def can_write_nameless(folder):
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
    except (AttributeError, OSError):
        return False
    return True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and forks are Unix")
def test_killed_processes_leave_a_whole_file(tmp_path):
    """One is killed in the middle of writing, another while it saves over and over."""
    model = fitted()
    paths = [tmp_path / way / "model" for way in ("half-way", "any time")]
    for path in paths:
        path.parent.mkdir()
        model.save(path)
    old = paths[0].read_bytes()
    process = subprocess.Popen([sys.executable, "-c", SAVE_FOREVER, *paths], stdout=subprocess.PIPE)
    processes = [int(process.stdout.readline()) for _ in paths]
    time.sleep(0.05)
    for number in processes:
        os.kill(number, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert paths[0].read_bytes() == old
    if can_write_nameless(tmp_path):
        assert os.listdir(paths[0].parent) == ["model"]
    survivor = DecoupledGPRegressor.load(paths[1])
    assert survivor.n_iter_ == model.n_iter_ + 1
    model.partial_fit([[0, 0, 0]], [0])
    assert_same_predictions(model, survivor, rows()[0])
