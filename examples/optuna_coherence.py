"""Optuna with Eq. 5 as its objective
==================================

A training loop of your own, a monitor in it, and a study over it.

The loop yields `(monitor, validation risk, learning rate)` after each epoch. `CoherenceObjective` reports Eq. 5, and
the pruner may end a trial. `best_trial` then chooses among the same trials by the validation loss alone (ζ = 0) and by
Eq. 5 at two ζ. The theory's ζ picks a run that hardly trained, and over many draws Eq. 5 did not choose better models
in such a search: docs/evidence/gains.md has the intervals and the reason.
"""

import matplotlib.pyplot as plt
import optuna
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import pactune as pt
from pactune.integrations.optuna import CoherenceObjective, best_trial, score

x, y = load_digits(return_X_y=True)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]
train_x, train_y, valid, test = x[:100], y[:100], (x[100:120], y[100:120]), (x[120:], y[120:])


def train(trial):
    lr = trial.suggest_float("lr", 1e-2, 1.0, log=True)
    decay = trial.suggest_float("weight_decay", 1e-5, 1e-1, log=True)
    torch.manual_seed(trial.number)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=decay)
    monitor = pt.CoherenceMonitor(model, F.cross_entropy, weight_decay=optimizer)
    for _ in range(trial.suggest_int("epochs", 2, 30, log=True)):
        for rows in torch.randperm(100).split(20):
            optimizer.zero_grad()
            F.cross_entropy(model(train_x[rows]), train_y[rows]).backward()
            monitor.step(None, valid)  # the training gradient is in .grad; one validation gradient more
            optimizer.step()
        with torch.no_grad():
            risk = F.cross_entropy(model(valid[0]), valid[1]).item()
            trial.set_user_attr("test error", (model(test[0]).argmax(1) != test[1]).float().mean().item())
        yield monitor, risk, lr


optuna.logging.set_verbosity(optuna.logging.WARNING)
pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
study.optimize(CoherenceObjective(train, zeta=0.01), n_trials=20)

pruned = sum(trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials)
print(f"{len(study.trials)} trials, {pruned} of them pruned")
for name, zeta in (("validation loss alone", 0.0), ("Eq. 5, ζ = 0.01", 0.01), ("Eq. 5, theory", "theory")):
    chosen = best_trial(study, zeta=zeta)
    found = score(chosen, zeta=zeta)
    print(
        f"by {name}: trial {chosen.number}, validation risk {found['valid_risk']:.3f}, √Y {found['regularizer']:.1f}, "
        f"objective {found['objective']:.3f}, test error {chosen.user_attrs['test error']:.3f}"
    )

# %%
# Long runs have a large √Y and a small test error, so a large ζ chooses runs that hardly trained.

figure, axes = plt.subplots()
done = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
roots = [score(trial, zeta=0.0)["regularizer"] for trial in done]
axes.plot(roots, [trial.user_attrs["test error"] for trial in done], "o")
axes.set(xlabel="√Y at the end of a trial", ylabel="test error", title="Trials that were not pruned")
plt.show()
