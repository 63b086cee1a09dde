# Every target does its own set-up: Python >= 3.10 and make are all that a machine needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# Both builds share what was read. -E reads every page anew: one kept from a failed build would not warn again.
SPHINX := $(BIN)/sphinx-build -q -W --keep-going -d docs/_build/doctrees

# Tests and pages start many processes: each loads what the first has compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: demo test nightly kernels mutations faults bench sample lint types docs wheel bounds peers newest clean help

demo: $(VENV)/.demo  ## run the demonstration (DEMO_ARGS="...")
	$(BIN)/python -m examples.demo $(DEMO_ARGS)

# To rewrite asserts takes each worker ten seconds: done for what fails, so that its values are shown.
test: $(VENV)/.test  ## run the tests (TEST_ARGS="...")
	$(BIN)/python -m pytest -n 2 --dist worksteal --assert=plain $(TEST_ARGS) || \
	{ $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(TEST_ARGS); exit 1; }

nightly: export SPECTRAL_PARAM_EXAMPLES = 20
nightly: $(VENV)/.test  ## run the tests with 20 times as many examples, and those that take long
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "" $(TEST_ARGS)

kernels: $(VENV)/.test  ## run the tests as on other processors, with other threads and seeds (KERNELS="-m kernels": a few)
	.ci/kernels $(BIN)/python $(KERNELS)

mutations: $(VENV)/.test  ## mutate what a change touches (MUTATIONS="--base main --minutes 10"; "latch gate": seeded faults)
	$(BIN)/python -m tests.mutations $(MUTATIONS)

faults: $(VENV)/.test  ## see that the tests find every seeded fault
	$(BIN)/python -m tests.mutations --seeded --jobs 2

bench: $(VENV)/.test  ## measure what has no number yet, or a stale one (BENCH_ARGS="cpu states")
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

sample: $(VENV)/.test  ## measure one in twenty results again and compare all but times (SAMPLE_ARGS="states")
	$(BIN)/python -m benchmarks $(SAMPLE_ARGS) --sample

lint: $(VENV)/.dev  ## check style, docstrings, formatting and workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/zizmor --offline --quiet .github

types: $(VENV)/.dev  ## check the types
	$(BIN)/mypy

# One thread: the tutorials are small, and a second thread would wait for whatever else the machine does.
docs: export OMP_NUM_THREADS = 1
docs: $(VENV)/.dev  ## build the documentation and run its examples
	rm -rf docs/tasks docs/tutorials  # Else a tutorial that has not changed does not run, though the library has.
	$(SPHINX) -E -b html docs docs/_build/html
	$(SPHINX) -b doctest docs docs/_build/doctest
	$(BIN)/python -m pytest -q tests/project/test_search.py  # It reads the index that was built.

wheel: $(VENV)/.dev  ## rehearse a release: build, check, use in an environment of its own (DIST=folder: keep what is built)
	.ci/wheel $(BIN)/python $(DIST)

# What touches numpy and scipy.
BOUNDS := tests/promises tests/internal/eigen tests/examples/test_scripts.py
# TORCH=torch==2.6.* takes the oldest torch.
bounds: TORCH := $(shell grep '^torch' constraints.txt)
bounds:  ## test with the oldest numpy and scipy that are supported (TORCH="torch==2.6.*": with the oldest torch, too)
	.ci/versions $(PYTHON) '$(TORCH)' 'numpy==1.26.*' 'scipy==1.12.*' -- $(BOUNDS)

# `-c constraints.txt` holds torch at the version that was tested, whatever the peers ask for.
peers:  ## test beside other packages: geotorch, scikit-learn, safetensors, accelerate, orthogonium, PEFT, python-control, PyTorch's own lists
	.ci/versions $(PYTHON) -c constraints.txt --group peers -- tests/peers tests/promises/analysis/test_h_infinity.py $(addprefix tests/promises/dynamics/,test_data.py test_states.py test_scikit_learn.py test_noise.py::test_pandas_frames_are_recordings_whose_columns_are_named)

newest:  ## test with the newest torch, numpy and scipy that the package index has
	.ci/versions $(PYTHON) --upgrade torch numpy scipy -- $(TEST_ARGS)

clean:  ## remove the environment, the caches and what was built
	rm -rf $(VENV) build dist docs/_build docs/tasks docs/tutorials .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamps: one for the demonstration, one for what uses the library, one for what checks it.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade 'pip>=25.1'  # The first that reads dependency groups.
	$(INSTALL) --no-compile -e . --group demo  # Most of torch's modules are never imported.
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(INSTALL) -e . --group test
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(INSTALL) -e . --group dev
	touch $@
