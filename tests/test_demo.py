"""The demonstration's claims, on the bundled data."""

import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from decoupledgp import DecoupledGPRegressor, cli
from decoupledgp.cli import app
from decoupledgp.data import load_kin40k, make_sinc
from decoupledgp.demo import FIGURE_1, sinc_models
from decoupledgp.report.figures import Panel, draw_panels
from decoupledgp.report.metrics import coverage, gaussian_nll, nmse, score


def test_figure_1s_message():
    """Decoupled (100, 10) has nearly the error of shared 100, and far less than shared 10."""
    split = make_sinc(random_state=0)
    models = sinc_models(split, random_state=0)
    small, decoupled, large = (
        nmse(split.y_test, models[sizes].predict(split.X_test)) for sizes in FIGURE_1
    )
    assert decoupled < 2 * large
    assert decoupled < small / 4


def test_kin40k_with_the_papers_preset():
    """Test RMSE ≤ 0.26 with M_α = 4096, M_β = 128 and 700 iterations; the bound's error bars cover."""
    split = load_kin40k()
    scale = split.y_train.std()
    model = DecoupledGPRegressor(4096, 128, preset="paper", max_iter=700, random_state=0)
    model.fit(split.X_train, split.y_train / scale)
    scores = score(split.y_test / scale, *model.predict(split.X_test, return_std=True))
    assert model.n_mean_basis_ == 4096
    assert model.n_cov_basis_ == 128
    assert scores.rmse <= 0.26
    assert scores.nll < 0.1
    assert scores.coverage > 0.95


def test_kin40k_folds():
    split = load_kin40k(3)
    assert split.X_train.shape == (36_000, 8)
    assert split.X_test.shape == (4_000, 8)
    assert split.y_train.shape == (36_000,)
    with pytest.raises(ValueError, match="folds 0 to 9"):
        load_kin40k(10)


def test_command_line(tmp_path):
    """The real command in a process of its own, made short."""
    out = tmp_path / "new" / "folder"
    command = [sys.executable, "-m", "decoupledgp", "demo", "--max-iter", "3", "--out", str(out)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # the other core has tests of its own
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=alone)
    assert "decoupled, M_α = 4096, M_β = 128" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "calibrated" in line and "%" in line]
    nmse, nll, coverage = (float(cell.strip(" %")) for cell in row.split("│")[2:5])
    assert nmse < 0.01
    assert nll < -1
    assert 93 < coverage < 97
    assert "coverage" in done.stdout
    assert (out / "figure1.png").read_bytes().startswith(b"\x89PNG")


def test_command_line_errors_are_one_line(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    result = CliRunner().invoke(app, ["demo", "--out", str(file / "below")])
    assert result.exit_code == 2
    assert "cannot write" in result.output


def test_a_folder_that_cannot_be_written_to_is_noticed_first(tmp_path, monkeypatch):
    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cli, "TemporaryFile", refuse)
    monkeypatch.setattr("decoupledgp.demo.run_demo", lambda *_, **__: pytest.fail("it began"))
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert f"cannot write to {tmp_path}: Permission denied" in result.output


def test_metrics():
    y, mean, std = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 0.1])
    assert nmse(y, mean) == pytest.approx((1 / 3) / (2 / 3))
    assert coverage(y, mean, std) == pytest.approx(2 / 3)
    expected = np.mean([0, 0, 50]) + np.log(0.1) / 3 + 0.5 * np.log(2 * np.pi)
    assert gaussian_nll(y, mean, std) == pytest.approx(expected)
    two = np.stack([y, 10 * y], 1), np.stack([mean, 10 * y], 1)
    assert nmse(*two) == pytest.approx(0.25)


def test_panels(tmp_path):
    split = make_sinc(20)
    flat = np.zeros(len(split.X_test))
    draw_panels(split, [Panel("a", flat, flat + 1)], tmp_path / "deep" / "a.png")
    assert (tmp_path / "deep" / "a.png").exists()
