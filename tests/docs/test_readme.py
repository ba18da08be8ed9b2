"""The README and Start show what their code prints, and lead to a tuned model of one's own in minutes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
START = ["first-model", "choosing", "results"]  # every page of Start with code
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def run(code: str, folder: Path) -> str:
    """Run a script in a new process, in a folder of its own, and return what it prints."""
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_digit(number: str) -> float:
    return 10.0 ** -len(number.partition(".")[2])


def assert_prints(printed: str, shown: str) -> None:
    """Compare words exactly, and numbers up to two units in the last digit, since CPUs round differently."""
    complaint = f"the page shows\n{shown}\nand its code prints\n{printed}"
    assert NUMBER.sub("#", " ".join(printed.split())) == NUMBER.sub("#", " ".join(shown.split())), complaint
    for own, other in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert abs(float(own) - float(other)) <= 2.001 * last_digit(other), complaint


@pytest.mark.parametrize("name", ["README.md", *(f"docs/start/{page}.md" for page in START)])
def test_a_page_shows_what_its_code_prints(name: str, tmp_path: Path) -> None:
    blocks = SHOWN.findall((ROOT / name).read_text(encoding="utf-8"))
    assert len(blocks) == (ROOT / name).read_text(encoding="utf-8").count("```python")
    assert any(shown for _, shown in blocks)
    code = "\nprint('<next>')\n".join(code for code, _ in blocks)
    outputs = run(code, tmp_path).split("<next>\n")
    for (_, shown), printed in zip(blocks, outputs, strict=True):
        if shown:
            assert_prints(printed, shown)


def test_a_wrong_output_is_noticed() -> None:
    with pytest.raises(AssertionError):
        assert_prints("loss 0.663", "loss 0.653")
    with pytest.raises(AssertionError):
        assert_prints("loss 0.663", "risk 0.663")
    assert_prints("loss   0.663", "loss 0.664")


def replace_line(code: str, start: str, new: str) -> str:
    """Replace the one line that begins with `start`."""
    lines = code.split("\n")
    (place,) = [number for number, line in enumerate(lines) if line.startswith(start)]
    return "\n".join([*lines[:place], new, *lines[place + 1 :]])


def own_table(path: Path) -> None:
    """Write the reader's own data: 200 rows with 12 columns and one of three classes."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(200, 12))
    scores = columns[:, :3] + 0.5 * rng.normal(size=(200, 3))
    np.savetxt(path, np.column_stack([columns, scores.argmax(1)]), delimiter=",")


def test_the_walk_from_the_readme_to_a_tuned_model_of_ones_own(tmp_path: Path) -> None:
    """A reader copies code of the README and of Start, and changes the lines of data, model and loss. Ten minutes."""
    began = time.monotonic()
    own_table(tmp_path / "own.csv")
    data = (
        "import numpy as np\n"
        "table = torch.tensor(np.loadtxt('own.csv', delimiter=',')).float()\n"
        "x, y = table[:, :-1], table[:, -1].long()"
    )
    network = "torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))"

    # 1. The README's first block, with three lines changed.
    first = SHOWN.findall(README)[0][0]
    first = replace_line(first, "x, y = ", data)
    first = replace_line(first, "model = ", f"model = {network}")
    first = replace_line(
        first, "result = ", "result = pt.tune(model, (x[:80], y[:80]), loss=torch.nn.functional.cross_entropy)"
    )
    first = first.replace('"loss", "gain"', '"accuracy", "gain"')
    printed = run(first + "\nprint('new rows', (model(x[80:]).argmax(1) == y[80:]).float().mean().item())", tmp_path)
    assert "is kept: accuracy" in printed
    assert float(printed.split("new rows")[1]) > 0.6, "three classes: guessing has a third"

    # 2. The same by hand, from the page of Start.
    page = (ROOT / "docs" / "start" / "first-model.md").read_text(encoding="utf-8")
    blocks = [code for code, _ in SHOWN.findall(page)]
    setup = blocks[0].split("inputs, labels")[0] + data + "\n"
    by_hand = next(code for code in blocks if "pt.Tuner(" in code)
    by_hand = replace_line(by_hand, "model = ", f"model = {network}")

    # 3. Save it, load it and predict, from the page about results.
    page = (ROOT / "docs" / "start" / "results.md").read_text(encoding="utf-8")
    keep = next(code for code, _ in SHOWN.findall(page) if "result.save" in code)
    keep = keep.replace("torch.nn.Linear(13, 3)", network).replace('per="tensor"', 'per="element"')
    predict = "print('loaded', (again.model.eval()(x[100:]).argmax(1) == y[100:]).float().mean().item())"
    printed = run("\n".join([setup, by_hand, "import tempfile", keep, predict]), tmp_path)
    assert "on the test set" in printed
    assert float(printed.split("loaded")[1]) > 0.6

    assert time.monotonic() - began < 600
