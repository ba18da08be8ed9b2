"""The simulator: inner steps of all runs of all draws of one data set, and the outer step on every lambda."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from inner_step import BETA1, BETA2, CLASSES, State, plain_update, residuals, residuals_kernel, triton, update_kernel
from run_list import Run, lambda_sources, weights
from torch import Tensor

RMS_ALPHA, RMS_EPS = 0.99, 1e-8
METRICS = ("train_loss", "valid_loss", "valid_acc", "test_loss", "test_acc", "y", "theta_norm", "lambda_norm")


@dataclass(frozen=True)
class Setting:
    """Scale of the pixels and the inner dynamics of one data set."""

    pixel_max: float
    lr: float
    inner_steps: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


class Data(NamedTuple):
    """x [D, N, d] with a constant last feature, y [D, N]; test x [M, d], y [M], and weights [D, M]."""

    x: Tensor
    y: Tensor
    xt: Tensor
    yt: Tensor
    test_weight: Tensor


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
            residuals_kernel[grid](
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
            update_kernel[(s.y.shape[0], blocks)](
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
        assert self.graph is not None
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
