"""The example runs and finds what it says."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "feature_selection.py"


def test_feature_selection_example(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "features:" in line}
    assert "3 features" in lines["ebic"]
    assert "3 features" in lines["pac-bayes"]
    assert int(lines["validation"].split(" features:")[0].split()[-1]) > 15
