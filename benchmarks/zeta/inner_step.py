"""One inner step of all runs: the softmax residuals and the Adam update, in torch and as fused Triton kernels."""

from typing import NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU uses the plain step
    triton = None

CLASSES = 10
BETA1, BETA2, ADAM_EPS = 0.9, 0.999, 1e-8


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
    def residuals_kernel(logits, y, w_train, w_valid, out, R, N: tl.constexpr, NB: tl.constexpr):
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
    def update_kernel(theta, m, v, x, y, powers, lam, grads, R, size, blocks, lr, BLOCK: tl.constexpr):
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

else:
    residuals_kernel = update_kernel = None
