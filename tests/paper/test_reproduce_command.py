"""`pactune reproduce freedman` and `freedman-null` in their quick form: run folder, figures, what they must show."""

import json
import sys

import pytest

from pactune.cli import main
from pactune.paper.commands.reproduce import ITEMS, app

FIGURES = ("objective-chains", "objective-seeds", "validation-r2", "ablation")


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["pactune", *map(str, arguments)])
    status = 0
    try:
        main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    return status, capsys.readouterr().out


def test_list_has_every_command(monkeypatch, capsys):
    status, out = run(monkeypatch, capsys, "reproduce", "--list")
    assert status == 0
    assert {command.name for command in app.registered_commands} == {item.name for item in ITEMS}
    assert all(item.name in out for item in ITEMS)


def test_unknown_item_is_wrong_usage(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "reproduce", "nothing")[0] == 2
    assert run(monkeypatch, capsys, "reproduce")[0] == 2


@pytest.fixture(scope="module", params=["freedman", "freedman-null"])
def quick_run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pactune", "reproduce", request.param, "--quick", "--output", str(folder)])
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code
    return request.param, folder


def test_run_folder_is_complete(quick_run):
    _, folder = quick_run
    rows = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["start", "seed", "seed", "seed", "chains", "rate", "end"]
    assert rows[0]["versions"]["numpy"]
    assert rows[0]["settings"]["seeds"] == 3
    assert rows[-1]["status"] == "done"
    for name in FIGURES:
        assert (folder / f"{name}.png").stat().st_size > 10_000
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_results_show_what_they_must(quick_run):
    """The paper: Eq. 5 stops at the true features, Eq. 1 does not. Three data seeds here; the full form has twenty."""
    name, folder = quick_run
    results = json.loads((folder / "results.json").read_text())
    selection = results["selection"]
    assert selection["pac-bayes"]["selected"] == ([0, 0, 0] if name == "freedman-null" else [2, 2, 2])
    assert selection["pac-bayes"]["exact"] == 3
    assert min(selection["validation"]["selected"]) >= 9
    assert results["test_mse_below_validation"]["pac-bayes"] == 3
    if name == "freedman-null":
        assert results["correlation"]["pac-bayes"]["test_mse"]["mean"] > 0.8
        assert results["correlation"]["validation"]["test_mse"]["mean"] < -0.8
