"""The classifiers: sizes, names, starts, and BatchNorm as the authors evaluate it."""

import pytest
import torch
from torch import nn

from pactune.paper.models import GroupedBatchNorm2d, make_model, resnet18, resnet34


def size(model):
    return sum(p.numel() for p in model.parameters())


def test_sizes_are_those_of_torchvision():
    """Its documentation gives 11,689,512 and 21,797,672 parameters with three channels and 1000 outputs."""
    assert size(resnet18()) == 11_689_512
    assert size(resnet34()) == 21_797_672
    assert size(resnet18(channels=1)) == 11_689_512 - 2 * 64 * 49
    assert size(make_model("linear", (1, 28, 28), seed=0)) == 7_850
    assert size(make_model("linear", (3, 32, 32), seed=0)) == 30_730


@pytest.mark.parametrize(("make", "blocks"), [(resnet18, (2, 2, 2, 2)), (resnet34, (3, 4, 6, 3))])
def test_state_dict_has_the_names_of_torchvision(make, blocks):
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = ["conv1.weight", *(f"bn1.{part}" for part in norm)]
    for stage, count in enumerate(blocks, start=1):
        for block in range(count):
            prefix = f"layer{stage}.{block}"
            for layer in (1, 2):
                expected += [f"{prefix}.conv{layer}.weight", *(f"{prefix}.bn{layer}.{part}" for part in norm)]
            if block == 0 and stage > 1:
                expected += [f"{prefix}.downsample.0.weight", *(f"{prefix}.downsample.1.{part}" for part in norm)]
    assert list(make().state_dict()) == [*expected, "fc.weight", "fc.bias"]


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32)])
def test_images_of_both_data_sets_go_through(channels, side):
    model = make_model("resnet18", (channels, side, side), seed=0)
    assert model(torch.rand(2, channels, side, side)).shape == (2, 1000)


@pytest.mark.usefixtures("rng_untouched")
def test_start_is_a_function_of_the_seed():
    one, same, other = (make_model("linear", (1, 28, 28), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)


@pytest.mark.parametrize("rows", [8, 11, 9, 3])
def test_grouped_norm_is_training_mode_on_small_batches(rows):
    """Groups of four; a rest of three stands alone, a single image joins the group before."""
    norm = GroupedBatchNorm2d(3, 4).double().eval()
    nn.init.uniform_(norm.weight)
    nn.init.normal_(norm.bias)
    plain = nn.BatchNorm2d(3).double()
    plain.load_state_dict(norm.state_dict())
    x = torch.randn(rows, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = {8: [4, 4], 11: [4, 4, 3], 9: [4, 5], 3: [3]}[rows]
    expected = torch.cat([plain(part) for part in x.split(parts)])
    assert torch.allclose(norm(x), expected, atol=1e-12)
    before = norm.running_mean.clone()
    norm(x)
    assert torch.equal(norm.running_mean, before)


def test_grouped_norm_trains_as_the_ordinary_one_does():
    norm, plain = GroupedBatchNorm2d(3, 4), nn.BatchNorm2d(3)
    x = torch.randn(10, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(norm(x), plain(x))
    assert torch.equal(norm.running_var, plain.running_var)
