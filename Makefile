# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types check docs bench bench-bilevel bench-gpu bench-gpu-table bench-memory bench-peers bench-scaling bench-selection bench-steps bench-unroll faults build clean

# torch comes first: the build that constraints.txt names, before anything asks for a range of versions.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@ $(DEMO_STAMP)

# The demo needs a few of the packages only, so that it starts soon in a fresh checkout.
$(DEMO_STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[cli,report,sklearn]'
	touch $@

demo: $(DEMO_STAMP)
	$(BIN)/pactune demo

test: lint types
	$(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The library is checked strictly, the scripts around it for calls that it does not understand.
SCRIPTS := $(wildcard benchmarks/*.py benchmarks/*/*.py docs/*.py docs/claims/*.py)
types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/mypy --config-file= --check-untyped-defs --ignore-missing-imports $(SCRIPTS)

# For daily work: the tests of the core without the slow ones. pytest prints how long they took.
check: $(STAMP)
	$(PYTEST) -m 'not slow' tests/test_*.py

bench: bench-memory bench-scaling bench-selection bench-steps bench-unroll

bench-steps: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/steps.py

# Every number of a GPU in the docs: the speeds first, then the runs of the paper's experiments, which take hours.
bench-gpu: $(STAMP)
	-$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/gpu.py
	$(BIN)/python benchmarks/mini_batches_gpu.py --output benchmarks/results/mini_batches.json
	$(BIN)/python benchmarks/peers/meta_weight_net_gpu.py
	$(BIN)/python benchmarks/auto_zeta.py --device cuda --models 'linear 784-10' --outer-steps 20 5 --inner-steps 100 1000
	for draw in 0 1 2; do $(BIN)/python benchmarks/front_door_gpu.py --draw $$draw --output front_door_resnet18.json; done
	$(MAKE) bench-gpu-table

# ResNets of the paper's experiments, and the ways beside them. Finished runs in runs/ are not made again.
WAYS := one-half:0-2:0,0.1,0.3,1,3,10 one-all:0-2:0,0.1,0.3,1,3,10 folds:0-2 eq5-0.1:0-2 eq5-0.3:0-2
bench-gpu-table: $(STAMP)
	for row in resnet18-mnist resnet18-cifar10 resnet34-mnist resnet34-cifar10; do $(BIN)/python benchmarks/table_gpu.py $$row --export results/weight-decay; done
	$(BIN)/python benchmarks/table_gpu.py resnet18-mnist --kinds online --export results/weight-decay
	$(BIN)/python benchmarks/scan_gpu.py resnet18-mnist --export results/weight-decay
	for way in $(WAYS); do $(BIN)/python benchmarks/ways_gpu.py $$way --outer-steps 30 --export results/weight-decay; done
	$(BIN)/python benchmarks/ways_gpu.py drift:0-2 zero-clamped-0.01:0-2 zero-clamped-0.1:0-2 --export results/weight-decay
	for data in mnist cifar10; do $(BIN)/python benchmarks/decay_ways.py $$data --device cuda; done

bench-memory: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/memory.py

bench-scaling: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scaling.py

# The peers are optional: what does not install is left out of the table with the reason.
bench-unroll: $(STAMP)
	-$(PIP) -e '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/unroll_peers.py

# One process per comparison. The peers are optional: what does not install is named in the results.
bench-peers: $(STAMP)
	-$(PIP) -e '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/peers/run_all.py

bench-bilevel: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bilevel/run.py --problem regularization
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bilevel/run.py --problem cleaning

bench-selection: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/selection.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/selection_tables.py

faults: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/faults.py --kills 60 --output benchmarks/results/faults.json

build: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build

# The site, with docs/_build/html/index.html as its first page. PACTUNE_GALLERY=0 leaves the examples unrun.
docs: $(STAMP)
	$(BIN)/python docs/make_numbers.py
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) docs/_build docs/gallery docs/reference/generated build dist
