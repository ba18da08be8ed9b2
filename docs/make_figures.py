"""Draw the figures of docs/evidence/reproduction.md: `python docs/make_figures.py`.

They come from results/weight-decay/*.json and go into docs/evidence/images. Draw them again when a study there changes.
`python docs/make_numbers.py` does not draw them, because the bytes of a PNG differ between versions of matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from pactune.drawing import BLUE, GREEN, GREY, RED, Line, Panel, draw_panels, encode_figure
from pactune.paper.weight_decay.facts import pair_name
from pactune.paper.weight_decay.records import RunRecord, StudyRecord, read_studies
from pactune.paper.weight_decay.sections import study_section
from pactune.paper.weight_decay.setting import PAPER, paper_zeta
from pactune.paper.weight_decay.studies import Scale
from pactune.storage.files import make_folder, write_atomically
from pactune.tracking.status import ended_early

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "weight-decay"
IMAGES = ROOT / "docs" / "evidence" / "images"
PLAIN, ZERO, OFFLINE, ONLINE = "plain training", "ζ = 0", "Eq. 5 at the paper's ζ", "Eq. 5 online at the paper's ζ"
METHODS = {PLAIN: GREY, ZERO: RED, OFFLINE: BLUE, ONLINE: GREEN}  # the lines of `curves` and their colors
WIDTH, ROW, LEGEND_ROW = 8.6, 2.6, 0.2  # inches: of a figure, of a row of panels, of a row of the legend
LONG = 20  # characters; with a longer name there are three columns in the legend
PALETTE = 200  # colors of a file; all of them would make it three times as large


def curves(studies: Sequence[StudyRecord]) -> list[Panel]:
    """Return the panels of test accuracy against the outer step, one for each study of `table`."""
    shown = [_with_shown_runs(study) for study in _of("table", studies)]
    panels = _panels([study for study in shown if study.records], "test accuracy")
    return [panel._replace(title=_title(study, []), lines=_method_lines(study, panel)) for study, panel in panels]


def scans(studies: Sequence[StudyRecord]) -> list[Panel]:
    """Return the panels of test accuracy after the last outer step against ζ, one for each study of `scan`."""
    return [
        panel._replace(title=_title(study, _steps(study)), verticals=[(paper_zeta(*_pair(study)), "the paper's ζ")])
        for study, panel in _panels(_of("scan", studies), "test accuracy")
    ]


def correlations(studies: Sequence[StudyRecord]) -> list[Panel]:
    """Return the panels of generalisation error against regularizer, one for each study of `correlation`."""
    found = _panels(_of("correlation", studies), "test loss − validation loss")
    return [_with_scales(panel._replace(title=_title(study, _steps(study)))) for study, panel in found]


def figures(studies: Sequence[StudyRecord]) -> dict[str, Figure]:
    """Return the figures of the page by the stems of their files; a figure without a study is left out."""
    drawers = {"curves": (curves, _draw_curves), "scan": (scans, _draw_scan)}
    drawers |= {"correlation": (correlations, _draw_correlation)}
    found = {f"weight-decay-{part}": (panels(studies), draw) for part, (panels, draw) in drawers.items()}
    return {stem: draw(panels) for stem, (panels, draw) in found.items() if panels}


def write(studies: Sequence[StudyRecord], folder: Path) -> list[Path]:
    """Write the figures as PNG into a folder and return the files."""
    make_folder(folder, "the folder")
    files = {folder / f"{stem}.png": figure for stem, figure in figures(studies).items()}
    for file, figure in files.items():
        write_atomically(file, _with_fewer_colors(encode_figure(figure, ".png")))
    return list(files)


def _of(item: str, studies: Sequence[StudyRecord]) -> list[StudyRecord]:
    """Return the studies of a command that have begun: MNIST before CIFAR-10, then in the order of the paper."""
    pairs = sorted(PAPER, key=lambda pair: pair[1] != "mnist")
    found = [study for study in studies if study.item == item and any(run.rows for run in study.records)]
    return sorted(found, key=lambda study: pairs.index(_pair(study)) if _pair(study) in pairs else len(pairs))


def _pair(study: StudyRecord) -> tuple[str, str]:
    setting = study.records[0].setting
    return setting["model"], setting["data"]


def _panels(studies: Sequence[StudyRecord], y_title: str) -> list[tuple[StudyRecord, Panel]]:
    """Return studies with the panel of their sections in `pactune report` whose y axis has this title."""
    found = ((study, panel) for study in studies for panel in study_section(study).figures)
    return [(study, panel) for study, panel in found if panel.y_title.startswith(y_title)]


def _with_shown_runs(study: StudyRecord) -> StudyRecord:
    """Return a study with its runs at ζ = 0 and at the paper's ζ. Of the online ones it has those that are finished."""
    zetas = {online: paper_zeta(*_pair(study), online=online) for online in (False, True)}

    def is_shown(run: RunRecord) -> bool:
        zeta, online = run.cell["zeta"], run.setting["online"]
        if not online:
            return zeta in (0, zetas[online])
        finished = len(run.rows) >= study.settings["outer_steps"] or ended_early(run.end.get("status", ""))
        return zeta == zetas[online] and finished

    return study._replace(records=[run for run in study.records if is_shown(run)])


def _method_lines(study: StudyRecord, panel: Panel) -> list[Line]:
    """Return the lines of a panel with the names and the colors of their methods, in the order of these."""
    offline, online = (paper_zeta(*_pair(study), online=online) for online in (False, True))
    names = {PLAIN: PLAIN, ZERO: ZERO, f"ζ = {offline:g}": OFFLINE, f"ζ = {online:g}, online": ONLINE}
    lines = {names[line.label]: line for line in panel.lines}
    return [lines[name]._replace(label=name, color=color) for name, color in METHODS.items() if name in lines]


def _with_scales(panel: Panel) -> Panel:
    """Return a panel with logarithmic axes, where no value forbids it."""
    log_x = all(value > 0 for line in panel.lines for value in line.x)
    log_y = all(value > 0 for line in panel.lines for value in line.y)
    return panel._replace(log_x=log_x, log_y=log_y)


def _title(study: StudyRecord, words: Sequence[str]) -> str:
    """Return classifier and data set, and in a second line the draws and starts behind the means, and other words."""
    draws, inits = ({run.cell[key] for run in study.records if run.rows} for key in ("draw", "init"))
    over = [f"{len(draws)} draws" if len(draws) > 1 else f"draw {min(draws)}"]
    over += [f"{len(inits)} starts"] if len(inits) > 1 else []
    return f"{pair_name(study)}\n{', '.join([*over, *words])}"


def _steps(study: StudyRecord) -> list[str]:
    """Return words about the number of outer steps of the runs, where it is not the paper's."""
    counts = sorted({len(run.rows) for run in study.records if run.rows})
    if counts == [Scale().outer_steps]:
        return []
    ends = dict.fromkeys([counts[0], counts[-1]])
    return [f"after {' to '.join(map(str, ends))} outer steps"]


def _draw_curves(panels: Sequence[Panel]) -> Figure:
    return _with_shared_legend(draw_panels(panels))


def _draw_scan(panels: Sequence[Panel]) -> Figure:
    """Draw panels with points on the lines of Eq. 5 alone, because ζ = 0 has no place on the axis."""
    figure = draw_panels(panels)
    for line in _drawn_lines(figure):
        line.set(marker="o" if line.get_label() == "Eq. 5" else "None", markersize=4)
    return _with_shared_legend(figure)


def _draw_correlation(panels: Sequence[Panel]) -> Figure:
    """Draw panels with a color per ζ, the same in all of them: dark for small ζ, bright for large ζ."""
    from matplotlib import colormaps

    figure = draw_panels(panels)
    zetas = sorted({_zeta(line.label) for panel in panels for line in panel.lines})
    for line in _drawn_lines(figure):
        place = zetas.index(_zeta(str(line.get_label())))
        line.set_color(colormaps["viridis"](0.95 * place / len(zetas)))
    return _with_shared_legend(figure, order=_zeta)


def _drawn_lines(figure: Figure) -> list[Line2D]:
    return [line for axes in figure.axes for line in axes.lines]


def _zeta(label: str) -> float:
    return float(label.removeprefix("ζ = "))


def _with_shared_legend(figure: Figure, order: Callable[[str], float] | None = None) -> Figure:
    """Put one legend below all panels in place of one below each, and fit the figure to the width of a page.

    Args:
        figure: what `draw_panels` returns.
        order: gives the place of a name in the legend; by default names stand in the order of the panels.
    """
    entries = _legend_entries(figure)
    names = sorted(entries, key=order) if order else list(entries)
    columns = 3 if len(names) > 4 and max(map(len, names)) > LONG else 6
    grid = figure.axes[0].get_subplotspec()
    assert grid is not None  # `draw_panels` places its axes on a grid
    height = ROW * grid.get_gridspec().nrows + LEGEND_ROW * -(-len(names) // columns)
    figure.set_size_inches(WIDTH, height)
    handles = [entries[name] for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=8.5, frameon=False)
    return figure


def _legend_entries(figure: Figure) -> dict[str, Artist]:
    """Remove the legends of all panels and return what they name. Equal names share an entry."""
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is None:
            continue
        pairs = zip(legend.get_texts(), legend.legend_handles, strict=True)
        entries |= {text.get_text(): handle for text, handle in pairs if handle is not None}
        handles, names = axes.get_legend_handles_labels()  # the lines as they are now; only bands are not among them
        entries |= dict(zip(names, handles, strict=True))
        legend.remove()
    return entries


def _with_fewer_colors(png: bytes) -> bytes:
    """Return a PNG with a palette, which is a third as large."""
    from PIL import Image

    content = BytesIO()
    image = Image.open(BytesIO(png)).convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE)
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


if __name__ == "__main__":
    write(read_studies(RESULTS), IMAGES)
