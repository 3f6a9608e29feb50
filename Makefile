# `make help` lists the targets. Everything happens in .venv and build/; only python3 with venv, g++ and make are needed.
PYTHON ?= python3
TORCH ?= 2.11.0
VENV ?= .venv
BIN = $(VENV)/bin
# The CUDA major of each torch, for the header packages of that toolkit (torch's own requirements bring the rest).
CUDA_CRT ?= nvidia-cuda-crt==13.0.*
# A CUDA toolkit of the system must not matter: it need not be the one that torch was built with.
HIDE_CUDA = env -u CUDA_HOME -u CUDA_PATH -u CUDACXX -u CPATH -u LIBRARY_PATH
PIP = $(BIN)/python -m pip --disable-pip-version-check
STAMP = $(VENV)/.tracehook-$(TORCH)

.DEFAULT_GOAL := help
.PHONY: help build demo test test-gpu sanitize bench lint clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP):
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q "torch==$(TORCH)" "$(CUDA_CRT)" numpy
	$(PIP) install -q "scikit-build-core>=0.11" "pybind11>=2.13" cmake ninja
	touch $@

build: $(STAMP) ## Create .venv, install torch's CUDA build, compile
	$(HIDE_CUDA) PATH="$(abspath $(BIN)):$$PATH" $(PIP) install -q --no-build-isolation --editable ".[test]"

demo: build ## The main job: 4 ranks on emulated devices, a table per rank
	rm -rf demo-logs
	$(BIN)/tracehook rehearse --devices 4 --log demo-logs -- \
	    $(BIN)/torchrun --standalone --nproc-per-node 4 examples/tour.py

test: build ## All tests that need no GPU
	$(BIN)/python -m pytest -n 2 tests

test-gpu: build ## The tests that need real devices
	$(BIN)/python -m pytest -m gpu tests/gpu

sanitize: ## The registrar's stress test under ThreadSanitizer and AddressSanitizer (g++ only)
	$(MAKE) -C tests/cpp

bench: build ## Ratios, measured side by side on emulated devices
	$(BIN)/python benchmarks/run.py

lint: build ## Formatters, linters, types
	$(PIP) install -q --no-build-isolation --editable ".[dev]"
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pre-commit run --all-files

clean: ## Remove what was built (not .venv)
	rm -rf build demo-logs
