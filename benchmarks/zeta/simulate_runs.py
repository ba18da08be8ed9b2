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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU uses the plain step
    triton = None

CLASSES = 10
BETA1, BETA2, ADAM_EPS = 0.9, 0.999, 1e-8
RMS_LR, RMS_ALPHA, RMS_EPS = 1e-2, 0.99, 1e-8
KINDS = "full:0/r0.1/r1/1e-6/3e-6/1e-5/3e-5/5e-3,plain,plain_all,joint5:0/r0.1/r1,plain-joint5,refit:0/r0.1/r1"
METRICS = ("train_loss", "valid_loss", "valid_acc", "test_loss", "test_acc", "y", "theta_norm", "lambda_norm")


@dataclass(frozen=True)
class Setting:
    """Scale of the pixels and the inner dynamics of one data set."""

    pixel_max: float
    lr: float
    inner_steps: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


SETTINGS = {
    "mnist": Setting(255.0, 1e-4, 1000),
    "cifar10": Setting(255.0, 1e-4, 1000),
    "cifar10-centred": Setting(255.0, 1e-4, 1000, (0.5,), (0.5,)),
    "cifar10-standard": Setting(255.0, 1e-4, 1000, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "digits": Setting(16.0, 1e-3, 100),
}


@dataclass(frozen=True)
class Run:
    """One run of every draw: which images train, tune and judge it."""

    kind: str
    fold: int
    zeta: float
    relative: bool
    outer_lr: float
    train: tuple[int, ...]
    valid: tuple[int, ...]
    held: tuple[int, ...]


class Data(NamedTuple):
    """x [D, N, d] with a constant last feature, y [D, N]; test x [M, d], y [M], and weights [D, M]."""

    x: Tensor
    y: Tensor
    xt: Tensor
    yt: Tensor
    test_weight: Tensor


class State(NamedTuple):
    """Everything an inner step changes; leading axes [D, R * 10, d] unless it says otherwise."""

    theta: Tensor
    m: Tensor
    v: Tensor
    x: Tensor
    y: Tensor  # [D * R, blocks]: sums of |Delta|^2
    powers: Tensor  # beta1^t, beta2^t in float64
    lam: Tensor
    rms: Tensor


def folds(images: range, k: int) -> list[tuple[int, ...]]:
    """K consecutive blocks; the images of a draw are already in random order."""
    return [tuple(int(i) for i in block) for block in np.array_split(np.array(images), k)]


def splits(kind: str) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """(train, valid, held) image numbers of every fold of one kind of run."""
    train, valid = range(50), range(50, 100)
    without = lambda images, held: tuple(i for i in images if i not in held)  # noqa: E731
    kind = kind.removeprefix("plain-")
    if kind in ("full", "plain"):
        return [(tuple(train), tuple(valid), ())]
    if kind == "swap":
        return [(tuple(valid), tuple(train), ())]
    if kind in ("plain_all", "refit"):
        return [(tuple(range(100)), tuple(valid), ())]
    if kind.startswith("cv"):
        return [(tuple(train), without(valid, h), h) for h in folds(valid, int(kind[2:]))]
    if kind.startswith("joint"):
        k = int(kind[5:])
        pairs = zip(folds(train, k), folds(valid, k), strict=True)
        return [(without(train, a), without(valid, b), a + b) for a, b in pairs]
    raise ValueError(f"unknown kind of run {kind!r}")


def list_runs(spec: str) -> list[Run]:
    """All runs of one draw from `KIND:ZETA/ZETA,KIND`; the plain kinds keep lambda at 0 and need no zeta.

    Kinds: full (50 + 50 images); cvK (a K-th of the validation images held out); jointK (a K-th of both held out);
    swap (the two parts change roles); plain, plain_all (all 100 images train), plain-jointK; refit (all 100 images
    train under the lambdas of the full run with the same zeta).
    """
    runs = []
    for part in spec.split(","):
        kind, _, zetas = part.partition(":")
        rate = 0.0 if kind.startswith("plain") else RMS_LR
        for zeta in (zetas or "0").split("/"):
            value, relative = float(zeta.removeprefix("r")), zeta.startswith("r")
            runs += [Run(kind, f, value, relative, rate, *split) for f, split in enumerate(splits(kind))]
    return runs


def lambda_sources(runs: list[Run]) -> tuple[list[int], list[int]]:
    """Positions of the refit runs and of the full runs whose lambdas they copy."""
    full = {(run.zeta, run.relative): k for k, run in enumerate(runs) if run.kind == "full"}
    refit = [k for k, run in enumerate(runs) if run.kind == "refit"]
    return refit, [full[runs[k].zeta, runs[k].relative] for k in refit]


def weights(runs: list[Run], part: str, images: int) -> Tensor:
    """[R, N] averaging weights of one part of the images."""
    table = torch.zeros(len(runs), images)
    for row, run in zip(table, runs, strict=True):
        chosen = list(getattr(run, part))
        if chosen:
            row[chosen] = 1.0 / len(chosen)
    return table


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


def residuals(logits: Tensor, y: Tensor, w_train: Tensor, w_valid: Tensor) -> Tensor:
    """[D, 2, R * 10, N]: weighted softmax minus one-hot, for the training and for the validation risk."""
    draws, _, images = logits.shape
    p = logits.view(draws, -1, CLASSES, images).softmax(2)
    p = p - torch.nn.functional.one_hot(y, CLASSES).transpose(1, 2)[:, None]
    both = torch.stack([p * w_train[None, :, None], p * w_valid[None, :, None]], 1)
    return both.view(draws, 2, -1, images)


def plain_update(s: State, grads: Tensor, lr: float) -> None:
    """In place: accumulate X and Y, one Adam step on the training risk, then the decoupled decay."""
    g_train, g_valid = grads[:, 0], grads[:, 1]
    runs = s.y.shape[0]
    delta = g_train + s.lam * s.theta - g_valid
    s.x.addcmul_(s.theta, delta)
    s.y[:, 0] += delta.reshape(runs, -1).square().sum(1)
    s.m.lerp_(g_train, 1 - BETA1)
    s.v.mul_(BETA2).addcmul_(g_train, g_train, value=1 - BETA2)
    c1, c2 = (1 - s.powers).float()
    s.theta.addcdiv_(s.m * (-lr / c1), s.v.sqrt() / c2.sqrt() + ADAM_EPS)
    s.theta.mul_(1 - lr * s.lam)


if triton is not None:

    @triton.jit
    def _residuals(logits, y, w_train, w_valid, out, R, N: tl.constexpr, NB: tl.constexpr):
        run = tl.program_id(0)
        d, r = run // R, run % R
        c = tl.arange(0, 16)[:, None]
        i = tl.arange(0, NB)[None, :]
        ok = (c < 10) & (i < N)
        z = tl.load(logits + run * 10 * N + c * N + i, mask=ok, other=float("-inf"))
        z = tl.where(i < N, z, 0.0)
        z = tl.where(c < 10, z, float("-inf"))
        e = tl.exp(z - tl.max(z, 0)[None, :])
        p = e / tl.sum(e, 0)[None, :]
        label = tl.load(y + d * N + i, mask=i < N, other=-1)
        p = tl.where(c == label, p - 1.0, p)
        wt = tl.load(w_train + r * N + i, mask=i < N, other=0.0)
        wv = tl.load(w_valid + r * N + i, mask=i < N, other=0.0)
        at = (d * 2 * R + r) * 10 * N + c * N + i
        tl.store(out + at, p * wt, mask=ok)
        tl.store(out + at + R * 10 * N, p * wv, mask=ok)

    @triton.jit
    def _update(theta, m, v, x, y, powers, lam, grads, R, size, blocks, lr, BLOCK: tl.constexpr):
        run = tl.program_id(0)
        block = tl.program_id(1)
        d, r = run // R, run % R
        k = block * BLOCK + tl.arange(0, BLOCK)
        ok = k < size
        at = run.to(tl.int64) * size + k
        g_at = (d * 2 * R + r).to(tl.int64) * size + k
        w = tl.load(theta + at, mask=ok, other=0.0)
        la = tl.load(lam + at, mask=ok, other=0.0)
        gt = tl.load(grads + g_at, mask=ok, other=0.0)
        gv = tl.load(grads + g_at + R.to(tl.int64) * size, mask=ok, other=0.0)
        delta = gt - gv + la * w
        tl.store(x + at, tl.load(x + at, mask=ok, other=0.0) + w * delta, mask=ok)
        y_at = y + run * blocks + block
        tl.store(y_at, tl.load(y_at) + tl.sum(delta * delta, 0))
        mm = 0.9 * tl.load(m + at, mask=ok, other=0.0) + 0.1 * gt
        vv = 0.999 * tl.load(v + at, mask=ok, other=0.0) + 0.001 * gt * gt
        tl.store(m + at, mm, mask=ok)
        tl.store(v + at, vv, mask=ok)
        c1 = (1.0 - tl.load(powers)).to(tl.float32)
        c2 = (1.0 - tl.load(powers + 1)).to(tl.float32)
        w = w - lr / c1 * mm / (tl.sqrt(vv) / tl.sqrt(c2) + 1e-8)
        tl.store(theta + at, w * (1.0 - lr * la), mask=ok)


class Simulator:
    """All runs of all draws of one data set; `outer_step` moves every lambda once and returns the record."""

    BLOCK = 1024

    def __init__(self, data: Data, runs: list[Run], theta: Tensor, setting: Setting) -> None:
        """Args: theta [D, 10, d], shared by the runs of a draw."""
        self.data, self.runs, self.setting = data, runs, setting
        device = theta.device
        draws, images = data.y.shape
        self.parts = [weights(runs, part, images).to(device) for part in ("train", "valid", "held")]
        self.zeta = torch.tensor([run.zeta for run in runs], device=device)[None, :, None, None]
        self.relative = torch.tensor([run.relative for run in runs], device=device)[None, :, None, None]
        self.refit, self.source = lambda_sources(runs)
        self.started = False
        self.outer_lr = torch.tensor([run.outer_lr for run in runs], device=device)[None, :, None, None]
        full = theta[:, None].repeat(1, len(runs), 1, 1).view(draws, len(runs) * CLASSES, -1)
        zeros = lambda: torch.zeros_like(full)  # noqa: E731
        self.fast = triton is not None and device.type == "cuda"
        blocks = -(-CLASSES * full.shape[-1] // self.BLOCK) if self.fast else 1
        y = torch.zeros(draws * len(runs), blocks, device=device)
        powers = torch.ones(2, dtype=torch.float64, device=device)
        self.betas = torch.tensor([BETA1, BETA2], dtype=torch.float64, device=device)
        self.state = State(full, zeros(), zeros(), zeros(), y, powers, zeros(), zeros())
        self.p = torch.empty(draws, 2, len(runs) * CLASSES, images, device=device)
        self.logits = torch.empty(draws, len(runs) * CLASSES, images, device=device)
        self.grads = torch.empty(draws, 2 * len(runs) * CLASSES, full.shape[-1], device=device)
        self.x_t = data.x.transpose(1, 2)
        self.graph: torch.cuda.CUDAGraph | None = None

    def gradients(self) -> Tensor:
        """[D, 2, R * 10, d]: gradients of the training and of the validation risk at the current theta."""
        draws, images = self.data.y.shape
        torch.bmm(self.state.theta, self.x_t, out=self.logits)
        if self.fast:
            block = triton.next_power_of_2(images)
            grid = (draws * len(self.runs),)
            _residuals[grid](
                self.logits, self.data.y, *self.parts[:2], self.p, len(self.runs), N=images, NB=block, num_warps=4
            )
        else:
            self.p.copy_(residuals(self.logits, self.data.y, *self.parts[:2]))
        torch.bmm(self.p.view(draws, -1, images), self.data.x, out=self.grads)
        return self.grads.view(draws, 2, -1, self.grads.shape[-1])

    def inner_step(self, force_plain: bool = False) -> None:
        """One step of every run, in place."""
        grads = self.gradients()
        s = self.state
        s.powers.mul_(self.betas)
        if self.fast and not force_plain:
            size = CLASSES * s.theta.shape[-1]
            blocks = s.y.shape[1]
            _update[(s.y.shape[0], blocks)](
                s.theta, s.m, s.v, s.x, s.y, s.powers, s.lam, grads, len(self.runs), size, blocks,
                self.setting.lr, BLOCK=self.BLOCK, num_warps=4,
            )  # fmt: skip
        else:
            plain_update(s, grads, self.setting.lr)

    def inner_steps(self, steps: int, chunk: int = 20) -> None:
        """`steps` inner steps, replayed from a captured graph of `chunk` steps on a GPU."""
        if not self.fast:
            for _ in range(steps):
                self.inner_step()
            return
        if self.graph is None:
            self._capture(chunk)
        for _ in range(steps // chunk):
            self.graph.replay()

    def _capture(self, chunk: int) -> None:
        saved = [t.clone() for t in self.state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.inner_step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(chunk):
                self.inner_step()
        for tensor, old in zip(self.state, saved, strict=True):
            tensor.copy_(old)

    def by_run(self, tensor: Tensor) -> Tensor:
        """[D, R * 10, d] seen as [D, R, 10, d]."""
        return tensor.view(len(self.data.y), len(self.runs), CLASSES, -1)

    def outer_step(self) -> tuple[Tensor, Tensor, Tensor]:
        """T inner steps, the record, then RMSprop on every lambda.

        Returns: metrics [D, R, len(METRICS)], per-image losses [D, R, N] and hits [D, R, N].
        """
        s = self.state
        s.x.zero_()
        s.y.zero_()
        self.inner_steps(self.setting.inner_steps)
        y = s.y.sum(1).view(len(self.data.y), len(self.runs))
        g_valid = self.by_run(self.gradients()[:, 1].contiguous())
        before_decay = self.by_run(s.theta) / (1 - self.setting.lr * self.by_run(s.lam))
        risk = -self.setting.lr * before_decay * g_valid
        root = y.sqrt()[..., None, None]
        path = torch.where(root > 0, self.by_run(s.x) / root, 0.0)
        if not self.started:
            balance = risk.flatten(2).norm(dim=2) / path.flatten(2).norm(dim=2)
            self.zeta = torch.where(self.relative, self.zeta * balance[..., None, None], self.zeta)
            self.started = True
        hyper = risk + self.zeta * path
        self.by_run(s.rms).mul_(RMS_ALPHA).addcmul_(hyper, hyper, value=1 - RMS_ALPHA)
        scale = 1 / (self.by_run(s.rms).sqrt() + RMS_EPS)
        record = self._record(y)
        self.by_run(s.lam).sub_(self.outer_lr * scale * hyper)
        self.by_run(s.lam)[:, self.refit] = self.by_run(s.lam)[:, self.source]
        return record

    def _record(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logp = self.by_run(self.logits).log_softmax(2)
        labels = self.data.y[:, None, None].expand(-1, len(self.runs), 1, -1)
        losses = -logp.gather(2, labels).squeeze(2)
        hits = (logp.argmax(2) == self.data.y[:, None]).float()
        mean = lambda values, part: (values * self.parts[part]).sum(2)  # noqa: E731
        sizes = [self.by_run(t).flatten(2).norm(dim=2) for t in (self.state.theta, self.state.lam)]
        rows = [mean(losses, 0), mean(losses, 1), mean(hits, 1), *self._test(), y, *sizes]
        return torch.stack(rows, 2), losses, hits

    def _test(self) -> tuple[Tensor, Tensor]:
        out = []
        for theta, weight in zip(self.state.theta, self.data.test_weight, strict=True):
            logits = (theta @ self.data.xt.T).view(len(self.runs), CLASSES, -1)
            label = self.data.yt[None, None].expand(len(self.runs), 1, -1)
            loss = logits.logsumexp(1) - logits.gather(1, label).squeeze(1)
            hit = (logits.argmax(1) == self.data.yt).float()
            out.append(torch.stack([(loss * weight).sum(1), (hit * weight).sum(1)]))
        both = torch.stack(out, 1)
        return both[0], both[1]


def check_fast_step(build: Callable[[], Simulator], steps: int = 50) -> None:
    """Print how far the fused kernels are from the plain step after a few steps with lambda != 0."""
    fast, plain = build(), build()
    noise = torch.randn_like(fast.state.lam)
    for sim in (fast, plain):
        sim.state.lam.copy_(noise)
    fast.inner_steps(steps, chunk=10)
    plain.fast = False
    for _ in range(steps):
        plain.inner_step(force_plain=True)
    for name in ("theta", "m", "v", "x"):
        a, b = getattr(fast.state, name), getattr(plain.state, name)
        print(f"  check {name}: relative difference {((a - b).norm() / b.norm()).item():.2e}")
    a, b = fast.state.y.sum(1), plain.state.y.sum(1)
    print(f"  check y: relative difference {((a - b).norm() / b.norm()).item():.2e}", flush=True)


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
