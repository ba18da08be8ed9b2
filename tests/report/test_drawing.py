"""Panels as figures: the labels of logarithmic axes."""

from __future__ import annotations

import pytest

from pactune.drawing import Line, Panel, draw_panels


@pytest.mark.parametrize(("largest", "plain"), [(24.0, ["2", "5", "10", "20"]), (5e4, [])])
def test_an_axis_of_few_decades_has_plain_labels_between_them(largest: float, plain: list[str]) -> None:
    values = [1.5, largest]
    figure = draw_panels([Panel("a", "x", "y", [Line("b", values, values)], log_x=True, log_y=True)])
    figure.canvas.draw()
    (axes,) = figure.axes
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        pairs = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
        shown = [label.get_text() for place, label in pairs if low <= place <= high]
        assert [text for text in shown if text.isdigit()] == plain
        assert len(shown) >= 4
        assert not any(label.get_text() for label in axis.get_minorticklabels())
