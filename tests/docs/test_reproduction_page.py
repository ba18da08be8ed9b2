"""The tables of docs/evidence/reproduction.md are those of the committed results."""

import importlib
from pathlib import Path

import pytest

from pactune.paper.data import load_images
from pactune.paper.weight_decay import studies
from pactune.paper.weight_decay.cells import Execution
from pactune.paper.weight_decay.records import read_studies
from pactune.paper.weight_decay.setting import StudySetting

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module("make_reproduction")


def test_page_is_what_the_results_say(made):
    written = made.PAGE.read_text(encoding="utf-8")
    assert written == made.page(), "run `python docs/make_reproduction.py`"
    for name in made.tables([]):
        assert f"<!-- table {name} -->" in written


def test_tables_come_from_studies(made, tmp_path):
    setting, scale = StudySetting(data="digits", inner_steps=2), studies.Scale(outer_steps=2, inits=1)
    for study in (studies.table(setting, scale), studies.zeta_grid("scan", setting, scale, [0.0, 1e-6])):
        studies.run_study(study, tmp_path, load_images, Execution(progress=False))
    found = made.tables(read_studies(tmp_path))
    assert "| linear, digits | draw 0 |" in found["methods"]
    assert "of 1 |" in found["gains"]
    assert "### A scan over ζ (Figures C.17–C.19): linear, digits" in found["others"]
