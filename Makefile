# Each target makes its own environment first; nothing needs to be installed by hand.
# Benchmarks read their tables from the folder DATA (benchmarks/README.md says what it holds).
PYTHON ?= python3
DATA ?= ../shared/data
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench bench-kin40k bench-step bench-scaling bench-predict bench-systems bench-costs bench-peers bench-uci bench-selection bench-smoothness bench-online bench-complexity paper paper-quick robots clean

demo: $(READY)            ## train on bundled data, print the comparison, draw figure 1
	$(BIN)/decoupledgp demo --out out

test: $(READY)            ## all tests, on two cores
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)            ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: bench-kin40k bench-step bench-scaling bench-predict bench-systems bench-costs bench-peers bench-uci bench-selection bench-smoothness bench-online bench-complexity  ## the numbers of the README and docs, but the paper's experiments

bench-kin40k: $(READY)    ## accuracy, likelihood and coverage on kin40k
	$(BIN)/python -m benchmarks.kin40k --seeds 0 1

bench-step: $(READY)      ## a step against autograd, torch.compile and the floor
	$(BIN)/python -m benchmarks.step

bench-scaling: $(READY)   ## time and memory of a step against M_α
	$(BIN)/python -m benchmarks.scaling --out out

bench-predict: $(READY)   ## prediction latency and throughput, import time
	$(BIN)/python -m benchmarks.predict

bench-systems: $(READY)   ## the five systems and three families on kin40k
	$(BIN)/python -m benchmarks.systems

bench-costs: $(READY)     ## what a step of every system costs as its basis grows
	$(BIN)/python -m benchmarks.costs

bench-peers: $(BENCH_READY)  ## beside GPyTorch, scikit-learn and XGBoost at equal time; needs a data folder; goes on where it stopped
	$(BIN)/python -m benchmarks.peers --data $(DATA) --seconds 15

bench-selection: $(READY) ## which rows should become functions; needs a data folder
	$(BIN)/python -m benchmarks.selection --data $(DATA) --sets kin40k

bench-smoothness: $(READY) ## the chosen kernel against SE at equal time; needs a data folder
	$(BIN)/python -m benchmarks.smoothness --data $(DATA)

bench-online: $(READY)    ## a stream against a refit
	$(BIN)/python -m benchmarks.online

bench-complexity: $(READY) ## time and memory of every system against every size, beside the paper's table 1
	$(BIN)/python -m benchmarks.complexity --out out/complexity

paper: $(READY)           ## the paper's experiments at its sizes (days; goes on where it stopped), and the report
	$(BIN)/python -m benchmarks.paper --data $(DATA); \
	status=$$?; $(BIN)/python -m benchmarks.paper --report out/paper && exit $$status

paper-quick: $(READY)     ## the same at small sizes, in minutes
	$(BIN)/python -m benchmarks.paper --data $(DATA) --quick; \
	status=$$?; $(BIN)/python -m benchmarks.paper --quick --report out/paper-quick && exit $$status

robots: $(READY)          ## make the simulated robot data in out/data (installs gymnasium and MuJoCo)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[robots]'
	$(BIN)/python -m benchmarks.generate.walker2d
	$(BIN)/python -m benchmarks.generate.kuka

bench-uci: $(BENCH_READY)    ## the defaults on every set of uci10 and uci20; needs a data folder
	$(BIN)/python -m benchmarks.uci --data $(DATA)

clean:
	rm -rf $(VENV) out

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[dev]'
	touch $(READY)

# The other libraries of the comparisons; tests do not need them.
$(BENCH_READY): $(READY)
	$(INSTALL) -e '.[dev,bench]'
	touch $(BENCH_READY)
