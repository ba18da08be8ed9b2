"""What `pt.tune` is compared with on a GPU: one decay, chosen by folds. The script's parts run without a GPU."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pactune as pt
from pactune.paper.data import load_images

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield importlib.import_module("front_door_gpu")
    finally:
        sys.path.remove(str(SCRIPTS))


def test_the_optimizer_is_that_of_tune(script):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 3, generator=generator), torch.randint(0, 2, (8,), generator=generator)
    loss = nn.functional.cross_entropy
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(model.state_dict())
    hyper = pt.WeightDecay(model, per="global", init=0.5)
    problem = pt.Problem(model, hyper, train=(x, y), valid=(x, y), loss=loss)
    inner, outer = pt.SGD(0.1, momentum=0.9, decoupled=True), torch.optim.SGD(hyper.parameters(), lr=0.0)
    tuner = pt.Tuner(problem, inner=inner, inner_steps=7, outer=outer, objective=pt.ValidationRisk())
    tuner.fit(1, plain_steps=0, progress=False)
    optimizer = script.sgd(0.1, 0.5)(list(other.parameters()))
    for _ in range(7):
        optimizer.zero_grad()
        loss(other(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(other.weight, model.weight)


def test_decay_and_step_are_chosen_by_the_folds_alone(script):
    images, cpu = load_images("digits"), torch.device("cpu")
    x, y = (torch.cat(part) for part in zip(*images.draw(0, 40), strict=True))
    own, test = (script.on_device(pair, "linear", cpu) for pair in ((x, y), images.test))
    scale = script.TINY._replace(decays=(0.0, 1.0))
    records = script.train_all(scale, images, own, test, 0, 0.02)
    assert [len(same) for same in records] == [6, 6]
    assert records[1][5]["weight_norm"][-1] < records[0][5]["weight_norm"][-1]
    for same, accuracies in zip(records, ([0.5, 0.6], [0.9, 0.7]), strict=True):
        for fold in same[:5]:
            fold["test_accuracy"] = accuracies
    found = script.best_by_folds(records, scale)
    assert (found["decay"], found["steps"]) == (1.0, 20)
    assert found["accuracy"] == pytest.approx(100 * records[1][5]["test_accuracy"][0], abs=0.01)
