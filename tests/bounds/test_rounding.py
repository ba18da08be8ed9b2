"""What is printed is true as it stands: bounds are rounded up, confidences down."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import pactune as pt
from pactune import bounds
from pactune.bounds.rounding import round_down, round_up
from pactune.cli.app import app
from pactune.paper.certificates.page import table_rows


def counted(errors: int, rows: int, delta: float = 0.05) -> bounds.Certificate:
    evidence = bounds.Evidence(errors / rows, None, rows, 1)
    return pt.certify(bounds.CountedHoldOut(evidence, fresh=True), delta=delta)


@given(st.floats(-1e6, 1e6), st.integers(0, 12))
def test_rounded_text_is_on_its_side(value: float, places: int) -> None:
    assert float(round_down(value, places)) <= value <= float(round_up(value, places))
    assert float(round_up(value, places)) - value <= 1.01 * 10**-places + 1e-9


@pytest.mark.parametrize(("errors", "rows"), [(0, 10**6), (1, 3 * 10**6), (110, 1000), (37, 901), (7, 7)])
def test_a_printed_bound_is_not_below_the_bound(errors: int, rows: int) -> None:
    """A bound of 3e-6 was printed as "at most 0.0000"."""
    certificate = counted(errors, rows)
    found = re.search(r"at most ([\d.]+) with", str(certificate))
    assert found is not None
    assert float(found[1]) >= certificate.value > 0
    shown = re.search(r"mode hold-out; ([\d.]+) on", str(certificate))
    assert shown is not None
    assert float(shown[1]) >= certificate.empirical


@pytest.mark.parametrize(("delta", "text"), [(0.05, "0.95"), (0.07, "0.93"), (1e-9, "0.999999999"), (0.1, "0.9")])
def test_a_printed_confidence_is_not_above_the_confidence(delta: float, text: str) -> None:
    assert f"with probability {text}\n" in str(counted(1, 1000, delta))


@pytest.mark.parametrize("delta", [1e-13, 1e-17, 1e-300])
def test_no_confidence_is_one(delta: float) -> None:
    certificate = counted(1, 1000, delta)
    assert certificate.confidence < 1
    assert "with probability 0.999999999999\n" in str(certificate)


def test_a_bound_in_other_units_is_rounded_up_too() -> None:
    loss = bounds.ClippedCrossEntropy(0.3)
    certificate = pt.certify(bounds.CountedHoldOut(bounds.Evidence(0.1, None, 1000, 1), fresh=True, loss=loss))
    assert certificate.value > 0.3 * bounds.hold_out(0.1, 1000, 0.05)
    assert certificate.value == pytest.approx(0.3 * bounds.hold_out(0.1, 1000, 0.05), rel=1e-12)


def test_the_command_line_rounds_up() -> None:
    asked = ["certify", "hold-out", "--errors", "0", "--rows", "1000000", "--fresh"]
    text = CliRunner().invoke(app, asked, catch_exceptions=False).stdout
    value = json.loads(CliRunner().invoke(app, [*asked, "--format", "json"], catch_exceptions=False).stdout)["value"]
    assert 0 < value < 5e-5
    assert "at most 0.0001 with" in text


def test_the_tables_round_up() -> None:
    line = {"objective": "hyper-drift", "certificate": 0.12341, "valid_error": 0.10001, "test_error": 0.10001}
    study = {"kind": "drift", "rows": [line | {"log_ratio_per_row": 1e-9, "hold_out": 0.00001}]}
    (cells,) = table_rows({"study": study})
    assert cells[2:7] == ["0.1235", "0.1001", "0.0001", "0.1000", "0.0001"]


def test_a_lower_bound_is_rounded_down() -> None:
    for rows in range(10, 60):
        found = bounds.theorem_2_1(0.1, 1.0, bounds.PrivatePrior(0.3, 1e-3, rows))
        said = re.search(r"adds at least ([\d.]+) to", found.why)
        assert said is not None
        assert float(said[1]) <= found.least_added
