"""Chains over several processes
=============================

The same numbers, each process with its share of the chains.

Alone: `python distributed_chains.py`. On two processes: `torchrun --nproc-per-node 2 distributed_chains.py`. With GPUs
each process takes one. Every rank builds the same problem and ends with the same model and λ; the first one prints.
"""

import os

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch.nn import functional as F

import pactune as pt

device = torch.device("cpu")
if "RANK" in os.environ:  # started by torchrun
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

torch.manual_seed(0)  # the same data and model on every rank
x = torch.randn(560, 20)
y = x[:, :2].sum(1, keepdim=True) + torch.randn(560, 1)
x, y, model = x.to(device), y.to(device), torch.nn.Linear(20, 1).to(device)

hyper = pt.WeightDecay(model, per="element")
problem = pt.Problem(model, hyper, train=(x[:30], y[:30]), valid=(x[30:60], y[30:60]), loss=F.mse_loss)
tuner = pt.Tuner(
    problem,
    inner=pt.Langevin(lr=0.05, inverse_temperature=300.0),
    inner_steps=10,
    outer=torch.optim.Adam(hyper.parameters(), lr=0.1),
    objective=pt.PACBayes(zeta="theory"),
    hypergradient=pt.Windowed(10),
    path_hypergradient=pt.Windowed(10),
    chains=8,
    restart=True,
    parallel=pt.Parallel(),
)
result = tuner.fit(outer_steps=8, test=(x[60:], y[60:]))
if tuner.ranks.leader:
    for row in result.rows[::7]:
        print(f"outer step {row['outer_step']}: J {row['objective']:.4f}, risk on test {row['test_risk']:.4f}")
    figure, axes = plt.subplots()
    axes.plot(result.history["outer_step"], result.history["objective"])
    axes.set(xlabel="outer step", ylabel="J", title="Eight chains")
    axes.locator_params(axis="x", integer=True)
    plt.show()
if dist.is_initialized():
    dist.barrier()  # no rank leaves while another still sends
    dist.destroy_process_group()
