"""Simulate many tuning runs of a linear classifier at once and record what a rule for zeta could look at.

Every run has its own per-element weight decay, its own zeta and its own split of its draw's 100 images; the softmax
gradients are in closed form, so that one inner step of all runs is two matrix products and two fused kernels.

    python simulate_runs.py --data data --out recorded --kinds full:0/r0.1/1e-6,plain,joint5:0/r0.1

`r0.1` is relative: 0.1 times the zeta at which, in the run's first outer step, the hypergradients of the validation
risk and of the regularizer have the same norm.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from inner_step import CLASSES
from run_list import KINDS, Run, list_runs
from simulator import METRICS, Data, Setting, Simulator, check_fast_step
from torch import Tensor

SETTINGS = {
    "mnist": Setting(255.0, 1e-4, 1000),
    "cifar10": Setting(255.0, 1e-4, 1000),
    "cifar10-centred": Setting(255.0, 1e-4, 1000, (0.5,), (0.5,)),
    "cifar10-standard": Setting(255.0, 1e-4, 1000, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "digits": Setting(16.0, 1e-3, 100),
}


def load(path: Path, setting: Setting, device: torch.device) -> Data:
    """Pixels to [0, 1], a constant feature for the bias, zero padding to a multiple of 32 features."""
    raw = np.load(path)

    def features(images: np.ndarray) -> Tensor:
        x = torch.from_numpy(images).to(device).float() / setting.pixel_max
        mean, std = (torch.tensor(v, device=device)[:, None] for v in (setting.mean, setting.std))
        x = ((x.unflatten(-1, (len(mean), -1)) - mean) / std).flatten(-2)
        width = -(-(x.shape[-1] + 1) // 32) * 32
        out = torch.zeros(*x.shape[:-1], width, device=device)
        out[..., : x.shape[-1]] = x
        out[..., x.shape[-1]] = 1.0
        return out

    y, yt = (torch.from_numpy(raw[k].astype(np.int64)).to(device) for k in ("y", "yt"))
    test_weight = torch.ones(len(y), len(yt), device=device)
    if "index" in raw:
        test_weight.scatter_(1, torch.from_numpy(raw["index"]).to(device), 0.0)
    return Data(features(raw["x"]), y, features(raw["xt"]), yt, test_weight / test_weight.sum(1, keepdim=True))


def initialise(data: Data, features: int, draws: list[int]) -> Tensor:
    """[D, 10, d]: nn.Linear's initialisation (weight and bias uniform in +-1/sqrt(features)), one per draw."""
    theta = torch.zeros(len(draws), CLASSES, data.x.shape[-1])
    bound = 1 / math.sqrt(features)
    for k, draw in enumerate(draws):
        noise = torch.rand(CLASSES, features + 1, generator=torch.Generator().manual_seed(draw))
        theta[k, :, : features + 1] = (2 * noise - 1) * bound
    return theta.to(data.x.device)


def initial_risk(data: Data, theta: Tensor) -> Tensor:
    """[D]: mean loss of the untrained classifier on the 50 validation images."""
    logits = torch.bmm(theta, data.x[:, 50:].transpose(1, 2))
    return torch.nn.functional.cross_entropy(logits, data.y[:, 50:], reduction="none").mean(1)


def simulate(name: str, args: argparse.Namespace, runs: list[Run], deadline: float) -> None:
    """One data set: all outer steps, then `NAME.npz` (metrics) and `NAME_images.npz` (losses of single images)."""
    setting, device = SETTINGS[name], torch.device(args.device)
    path = args.data / f"{name.split('-')[0]}.npz"
    raw = np.load(path)
    data = load(path, setting, device)
    theta = initialise(data, raw["x"].shape[-1], [int(d) for d in raw["draws"]])
    if device.type == "cuda":
        check_fast_step(lambda: Simulator(data._replace(x=data.x[:2], y=data.y[:2]), runs[:7], theta[:2], setting))
    first = initial_risk(data, theta).cpu().numpy()
    sim = Simulator(data, runs, theta, setting)
    metrics, losses, hits = [], [], []
    start = time.time()
    keep = torch.tensor([[i in run.held for i in range(data.y.shape[1])] for run in runs], device=device)
    for step in range(args.outer_steps):
        record, loss, hit = sim.outer_step()
        metrics.append(record.float().cpu().numpy())
        losses.append(loss[:, keep].half().cpu().numpy())
        hits.append(hit[:, keep].bool().cpu().numpy())
        spent = time.time() - start
        if step in (0, 1, 4) or step % 25 == 24:
            print(f"{name} outer {step + 1}: {spent:.1f} s", flush=True)
        if time.time() > deadline:
            print(f"{name}: stopped at the deadline after {step + 1} outer steps", flush=True)
            break
    fields = [("kind", "U12"), ("fold", "i4"), ("zeta", "f8"), ("relative", "?")]
    spec = np.array([(r.kind, r.fold, r.zeta, r.relative) for r in runs], dtype=fields)
    args.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        args.out / f"{name}.npz", metrics=np.stack(metrics, 2), names=METRICS, runs=spec, draws=raw["draws"],
        initial_risk=first,
    )  # fmt: skip
    if keep.any():
        image = np.array([(k, i) for k, run in enumerate(runs) for i in sorted(run.held)])
        stacked = np.stack(hits, 1)
        np.savez_compressed(
            args.out / f"{name}_images.npz", losses=np.stack(losses, 1), hits=np.packbits(stacked, axis=-1),
            run_image=image.astype(np.int16),
        )  # fmt: skip


def main() -> None:
    """Read the arguments and go through the data sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--names", default="digits,mnist,cifar10")
    parser.add_argument("--kinds", default=KINDS, help=list_runs.__doc__)
    parser.add_argument("--outer-steps", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop and save before this much time has gone")
    args = parser.parse_args()
    deadline = time.time() + args.seconds
    runs = list_runs(args.kinds)
    print(f"{len(runs)} runs per draw", flush=True)
    for name in args.names.split(","):
        simulate(name, args, runs, deadline)


if __name__ == "__main__":
    main()
