"""The certificate studies in small: what shares δ, what is hidden when it is not fresh, and the page."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from pactune import bounds
from pactune.cli.app import app
from pactune.errors import CertificateError, DataError
from pactune.paper.certificates.grid import DIGITS, Grid, best, run_grid, start_at_zero, train_on
from pactune.paper.certificates.splits import FILES, read_mnist, split_digits, split_mnist

SMALL = Grid("small", (0.2, 0.5), (1.0,), (5, 10), models=2)


def test_a_row_per_declared_certificate_and_delta_is_shared() -> None:
    split, model = split_digits(200, 200, 0), nn.Linear(64, 10)
    rows = run_grid(SMALL, split, model, initial=start_at_zero(model))
    assert len(rows) == SMALL.size == 8
    for row in rows:
        share, n = SMALL.delta / 8, 200
        expected = bounds.path_bound(row["train_error"], row["log_ratio_per_row"] * n, n, share)
        assert row["certificate"] == pytest.approx(expected)
        fresh = row["posterior"] == "train"
        assert row["hold_out"] == (pytest.approx(bounds.hold_out(row["valid_error"], n, share)) if fresh else None)
        assert row["test_error"] <= row["certificate"]
    assert best(rows, "union")["certificate"] == min(r["certificate"] for r in rows if r["posterior"] == "union")


def test_a_sample_that_was_touched_is_no_hold_out() -> None:
    split, model = split_digits(200, 200, 0).centred_by("valid"), nn.Linear(64, 10)
    trained = train_on(model, split.valid, epochs=1, seed=0)
    small = replace(SMALL, posteriors=("train",))
    rows = run_grid(small, split, model, initial=lambda _: trained, prior_saw={"features": "valid", "initial": "valid"})
    assert all(row["hold_out"] is None for row in rows)


def test_a_start_that_has_seen_the_bound_sample_is_refused() -> None:
    split, model = split_digits(200, 200, 0), nn.Linear(64, 10)
    with pytest.raises(CertificateError, match="independent prior: the distribution of θ_0"):
        run_grid(SMALL, split, model, initial=start_at_zero(model), prior_saw={"initial": "train"})


def test_the_digits_reach_their_bar() -> None:
    """The bar is 0.27 at 700/700; one setting of the declared grid is enough, at the grid's share of δ."""
    split, model = split_digits(700, 700, 0).centred_by("valid"), nn.Linear(64, 10)
    one = Grid("one", (0.5,), (1.0,), (100,), posteriors=("union",), models=4, delta=DIGITS.delta / DIGITS.size)
    row = run_grid(one, split, model, initial=start_at_zero(model), prior_saw={"features": "valid"})[0]
    assert row["test_error"] < row["certificate"] <= 0.27


def test_centring_is_by_the_other_sample() -> None:
    split = split_digits(50, 60, 3)
    assert float(split.centred_by("valid").valid[0].mean(0).abs().max()) < 1e-5
    assert float(split.centred_by("train").valid[0].mean(0).abs().max()) > 1e-3


def test_mnist_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.integers(0, 255, s, dtype=np.uint8) for s in ((20, 28, 28), (20,), (5, 28, 28), (5,))]
    for i, (name, array) in enumerate(zip(FILES, arrays, strict=True)):
        head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
        content = head + array.tobytes()
        path = tmp_path / (f"{name}.gz" if i % 2 else name)
        path.write_bytes(gzip.compress(content) if i % 2 else content)
    x, y, test_x, test_y = read_mnist(tmp_path)
    torch.testing.assert_close(x[3], torch.from_numpy(arrays[0][3].reshape(-1) / 255).float())
    assert y.tolist() == arrays[1].tolist()
    assert (len(test_x), len(test_y)) == (5, 5)
    split = split_mnist(tmp_path, 12, 8, 0)
    assert (len(split.train[0]), len(split.valid[0])) == (12, 8)
    np.savez(tmp_path / "mnist.npz", x_train=arrays[0], y_train=arrays[1], x_test=arrays[2], y_test=arrays[3])
    assert torch.equal(read_mnist(tmp_path)[0], x)
    with pytest.raises(DataError, match="idx"):
        read_mnist(tmp_path / "nowhere")


@pytest.mark.slow
def test_reproduce_certificate(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        app,
        ["reproduce", "certificate", "--quick", "--output", str(tmp_path), "--format", "json"],
        catch_exceptions=False,
    )
    assert found.exit_code == 0, found.output
    lines = json.loads(found.stdout)
    assert {line["study"] for line in lines} >= {"digits, linear, raw", "digits, linear, centred"}
    assert all(line["certificate"] >= line["test_error"] for line in lines)
    assert "Certified error rates" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "results.json").read_text())["settings"]["quick"]
