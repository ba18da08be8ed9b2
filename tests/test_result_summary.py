"""`summary`, `best`, and what results, problems and tuners say of themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def made(model: nn.Module | None = None, **settings: Any) -> pt.Tuner:
    torch.manual_seed(0)
    model = nn.Linear(4, 3) if model is None else model
    hyper = pt.WeightDecay(model)
    names = ("data", "folds", "refit", "tasks", "tasks_per_step")
    data = {name: settings.pop(name) for name in names if name in settings}
    problem = pt.Problem(model, hyper, loss=cross_entropy, **(data or {"train": rows(12, 1), "valid": rows(10, 2)}))
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    chosen = {"inner": pt.SGD(lr=0.1), "inner_steps": 3, "objective": pt.PACBayes(1e-3), **settings}
    return pt.Tuner(problem, outer=outer, **chosen)


@pytest.fixture(scope="module")
def result() -> pt.Result:
    return made().fit(3, test=rows(9, 3), keep="best-objective", progress=False)


def test_the_summary_says_it_all_in_words(result: pt.Result) -> None:
    first, second, titles, *numbers, verdict = result.summary().splitlines()
    assert first == f"completed after 3 outer steps in {result.rows[-1]['seconds']:.1f} s"
    assert second == f"kept: step {result.kept_step} of the tuned run, ζ = 0.001"
    assert titles.split("  ")[-1].strip() == f"kept (step {result.kept_step})"
    accuracy = next(line for line in numbers if line.startswith("test accuracy"))
    found = [float(word) for word in accuracy.split()[2:]]
    shown = [result.rows[0], result.plain_rows[-1], result.kept]
    assert found == pytest.approx([row["test_accuracy"] for row in shown], abs=1e-3)
    assert [line.split("  ")[0] for line in numbers][:2] == ["training risk", "training accuracy"]
    assert verdict == result.verdict
    assert len({len(line) for line in (titles, *numbers)}) == 1


def test_a_plain_run_and_no_run(result: pt.Result) -> None:
    plain = replace(result, kept_run="plain", kept_step=2)
    assert "kept: step 2 of plain training, with λ where it started" in plain.summary()
    assert plain.best["run"] == "plain"
    nothing = replace(result, rows=[], plain_rows=[], kept_step=0, status="interrupted", verdict="")
    assert nothing.best == {}
    assert nothing.summary() == (
        "interrupted by Ctrl-C after 0 outer steps\nno outer step is kept: the model and λ are where they started"
    )
    assert "<table>" not in nothing._repr_html_()


@pytest.mark.parametrize("name", ["plain training", "one decay"])
def test_after_tune_a_run_with_fixed_hyperparameters_has_the_name_of_its_procedure(
    result: pt.Result, name: str
) -> None:
    comparison = [{"model": other, "kept": other == name} for other in ("plain training", "one decay")]
    rows = [{**row, "seconds": 0.3} for row in result.plain_rows]
    fixed = replace(result, rows=[], plain_rows=rows, kept_run="plain", kept_step=2, comparison=comparison)
    first, second, titles, *_ = fixed.summary().splitlines()
    assert first == "completed after 3 outer steps in 0.3 s"
    assert second == f"kept: step 2 of {name}"
    assert titles.strip() == "kept (step 2)"
    page = fixed._repr_html_()
    assert f"kept: step 2 of {name}</p>" in page
    assert "<tr><th></th><th>kept (step 2)</th></tr>" in page


def test_after_tune_the_run_beside_the_tuned_one_is_not_called_plain_training(result: pt.Result) -> None:
    comparison = [{"model": "plain training", "kept": False}, {"model": "the tuned model", "kept": True}]
    tuned = replace(result, comparison=comparison, verdict="")
    _, second, titles, *_ = tuned.summary().splitlines()
    assert second == f"kept: step {result.kept_step} of the tuned model"
    assert "λ fixed (step 3)" in titles
    assert "plain training" not in titles + tuned._repr_html_()


def test_best_is_the_kept_row(result: pt.Result) -> None:
    row = result.rows[result.kept_step - 1]
    assert result.best == {**row, "run": "tuned", "zeta": 1e-3}
    assert {"outer_step", "risk", "regularizer", "valid_accuracy", "zeta"} <= result.best.keys()


def test_repr_is_one_short_line(result: pt.Result) -> None:
    text = repr(result)
    assert "\n" not in text
    assert len(text) < 300
    assert text.startswith("Result(status='completed', outer_steps=3, kept_run='tuned'")


def test_html_is_a_small_table_without_code(result: pt.Result) -> None:
    evil = "<script>alert(1)</script>"
    row = {**result.rows[0], f"valid_{evil}": 1.0}
    page = replace(result, rows=[row], kept_step=1, verdict=evil)._repr_html_()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 2
    assert page.count("<tr>") == 1 + sum(name.startswith(("train_", "valid_", "test_")) for name in row)


def test_a_problem_says_what_it_holds() -> None:
    both = "model=Linear with 15 parameters, hyper=WeightDecay with 15 hyperparameters"
    tensors = "(values.bias: 3, values.weight: 12)"
    assert repr(made().problem) == f"Problem({both} {tensors}, train=12 rows, valid=10 rows)"
    folds = repr(made(data=rows(20, 1), folds=4).problem)
    assert folds.endswith("data=20 rows in 4 folds and a refit)")
    assert repr(made(data=rows(20, 1), folds=4, refit=False).problem).endswith("in 4 folds)")
    pairs = [(rows(6, 1), rows(5, 2)), (rows(6, 3), rows(5, 4))]
    assert repr(made(tasks=pairs).problem).endswith("tasks=2, the first with train=6 rows, valid=5 rows)")
    drawn = made(tasks=pairs, tasks_per_step=1, restart=True)
    assert "tasks=1 drawn at every outer step, " in repr(drawn.problem)
    deep = made(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))))
    assert "… 6 tensors)" in repr(deep.problem)


def test_a_tuner_says_what_it_holds() -> None:
    text = repr(made(chains=2, seed=7, engine="eager"))
    assert text.startswith("Tuner(\n    problem=Problem(model=Linear with 15 parameters")
    for words in (
        "inner=SGD(lr=0.1",
        "inner_steps=3,",
        "outer=SGD(lr=0.1),",
        "objective=PACBayes(zeta=0.001",
        "hypergradient=Truncated(k=1),",
        "path_hypergradient=Truncated(k=0),",
        "chains=2,",
        "seed=7,",
        "engine=Eager,",
    ):
        assert f"    {words}" in text, words
