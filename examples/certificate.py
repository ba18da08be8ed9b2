"""Certificates in three ways
==========================

Certify the error rate on digits in all three modes, and see a mistake refused.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import pactune as pt
from pactune import bounds
from pactune.bounds.coupled_langevin import CoupledChains

pixels, labels = load_digits(return_X_y=True)
order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
x, y = torch.as_tensor(pixels, dtype=torch.float32)[order] / 16, torch.as_tensor(labels)[order]
train, valid, fresh = (x[:700], y[:700]), (x[700:1400], y[700:1400]), (x[1400:], y[1400:])

model = torch.nn.Linear(64, 10)
hyper = pt.WeightDecay(model, per="global")
problem = pt.Problem(model, hyper, train=train, valid=valid, loss=F.cross_entropy)
chain = CoupledChains(lr=0.5, inverse_temperature=700.0, steps=60)

print("-- train side: the prior is a chain on the validation images")
found = {}
claim = bounds.TrainSide(problem, chain, pt.Provenance().touch("prior hyper"), models=4)
found["train side"] = pt.certify(claim)
print(found["train side"])

tuner = pt.Tuner(
    problem,
    inner=pt.Langevin(lr=0.5, inverse_temperature=700.0),
    inner_steps=60,
    outer=torch.optim.Adam(hyper.parameters(), lr=0.003),
    objective=pt.HyperDrift("theory"),
)
result = tuner.fit(5, progress=False, plain_steps=0)

print("\n-- validation side: the decay was tuned on the validation images, and they certify it")
claim = bounds.ValidationSide(problem, chain, result.provenance, models=4, default_hyper=tuner.start_hyper)
found["validation side"] = pt.certify(claim)
print(found["validation side"])

print("\n-- hold-out: images that nothing has seen")
found["hold-out"] = pt.certify(bounds.HoldOut(result.model, fresh, result.provenance))
print(found["hold-out"])

print("\n-- a mistake: the validation images are no hold-out any more")
try:
    pt.certify(bounds.HoldOut(result.model, valid, result.provenance))
except pt.CertificateError as refusal:
    print(refusal)

# %%
# The three certificates beside the error rate on the rows they rest on.

figure, axes = plt.subplots()
axes.bar(list(found), [certificate.value for certificate in found.values()], color="0.8", label="certificate")
axes.plot(list(found), [certificate.empirical for certificate in found.values()], "o", label="on the bound sample")
axes.set(ylabel="error rate", title="Certificates at a confidence of 95 %")
axes.legend()
plt.show()
