# `make help` lists the targets. Everything happens in .venv and build/; only python3 with venv, g++ and make are needed.
PYTHON ?= python3
TORCH ?= 2.11.0
VENV ?= .venv
BIN = $(VENV)/bin
BUILD = build/torch-$(TORCH)$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
# A CUDA toolkit of the system must not matter: it need not be the one that torch was built with.
HIDE_CUDA = env -u CUDA_HOME -u CUDA_PATH -u CUDACXX -u CPATH -u LIBRARY_PATH
PIP = $(BIN)/python -m pip --disable-pip-version-check
# Python compiles a module to .pyc at its first import. To compile all of torch at once takes 20 s.
INSTALL = $(PIP) install -q --no-compile
# By three equal signs pip finds this very build. By two it may prefer 2.13.0+cpu to 2.13.0.
EXACTLY = torch===
unexport PYTHONDONTWRITEBYTECODE
# Compiles what changed, in $(BUILD). CMake keeps the definitions of earlier calls there.
INSTALL_TRACEHOOK = $(HIDE_CUDA) PATH="$(abspath $(BIN)):$$PATH" $(INSTALL) --no-build-isolation \
    --config-settings=build-dir=$(BUILD) --config-settings=cmake.define.TRACEHOOK_HOOK=$(HOOK)
# A torch without CUDA has nothing to hook.
HOOK = $(if $(filter %+cpu,$(TORCH)),OFF,ON)
STAMP = $(VENV)/.tracehook-$(TORCH)

# docs/compatibility.md says why these: the torch with another NCCL group, the one that servers pin, the first that frees
# beside open pools, and one without CUDA; the wheel with each that has CUDA. What is left out of the tests does the same with every torch.
# KEEP= removes each venv when it has passed.
MATRIX ?= 2.15.0 2.14.1 2.13.0 2.13.0+cpu
MATRIX_WHEELS ?= 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0
MATRIX_TESTS_2.15.0 = tests/integration tests/rehearsal tests/emulator --deselect tests/rehearsal/test_killed_often.py \
    --deselect tests/emulator/test_windows.py --deselect tests/integration/test_documentation.py
MATRIX_TESTS_2.13.0 = tests/unit/test_calls.py tests/integration/test_hook_library.py tests/integration/test_build_hook.py \
    tests/emulator/test_ipc.py $(wildcard tests/rehearsal/test_symmetric_*.py) $(patsubst %,tests/rehearsal/test_%.py, \
    communicators_of_others windows_of_others pending torch_hook holes_of_torch observed expandable stand_aside failure_modes peers)
MATRIX_TESTS_2.14.1 = $(MATRIX_TESTS_2.13.0) tests/rehearsal/test_ends.py tests/rehearsal/test_in_modes.py
MATRIX_TESTS_2.13.0+cpu = tests/unit tests/audit/test_golden.py
KEEP ?= yes

.DEFAULT_GOAL := help
.PHONY: help build wheel one-wheel demo test coverage integrations frameworks aarch64 nccl-diff check tidy docs matrix release test-gpu sanitize bench lint clean
.NOTPARALLEL:

help: ## Show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# While torch is downloaded and unpacked, all but the hook library is compiled: that alone needs torch, and the next
# install adds it.
$(STAMP): HOOK = OFF
$(STAMP):
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "scikit-build-core>=0.11" "pybind11>=2.13" cmake ninja
	$(INSTALL) --no-warn-conflicts "$(EXACTLY)$(TORCH)" numpy & torch=$$!; \
	    $(INSTALL_TRACEHOOK) --no-deps --editable .; compiled=$$?; wait $$torch && exit $$compiled
	$(BIN)/python tracehook/cpp/torch/locate.py --package | xargs --no-run-if-empty $(INSTALL)
	touch $@

build: $(STAMP) ## Create .venv, install torch's CUDA build, compile; with all that the tests need
	$(INSTALL_TRACEHOOK) --config-settings=cmake.define.TRACEHOOK_TESTING=ON --editable ".[test]"

# The tools of `make lint`, `make check` and `make wheel`, in the versions that pyproject.toml names.
TOOLS = $(VENV)/.tracehook-tools
$(TOOLS): pyproject.toml $(STAMP)
	$(BIN)/python -c "import tomllib; \
	    print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['dev'], sep='\n')" | xargs $(INSTALL)
	touch $@

# A wheel's libraries are stripped. auditwheel finds out for which Linux they are, and takes in none of torch's.
PIP_WHEEL = -m pip --disable-pip-version-check wheel -q --no-build-isolation --no-deps --config-settings=install.strip=true
PACKED = PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --exclude 'libc10*.so' --exclude 'libtorch*.so' -w dist
# Of these versions of Python there is a wheel if they are here; for another machine, if there is a compiler for it.
PYTHONS ?= python3.11 python3.12 python3.13
HERE = $(shell uname -m)
MACHINES ?= $(HERE) aarch64
NATIVE = $(BIN)/python $(PYTHONS)

wheel: build $(TOOLS) ## dist/: wheels for each Python on x86-64 and aarch64 with all hook libraries, one without native parts, the sources
	rm -rf dist build/wheels && mkdir -p dist build/wheels
	for machine in $(sort $(MACHINES)); do for python in $(NATIVE); do \
	    $(MAKE) --no-print-directory one-wheel FOR=$$python MACHINE=$$machine || exit; done; done
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python $(PIP_WHEEL) -w dist . --config-settings=wheel.cmake=false \
	    --config-settings=wheel.py-api=py3 --config-settings=build-dir=build/wheel-pure
	$(BIN)/python -m build -q --sdist --no-isolation -o dist .
	$(BIN)/twine check --strict dist/*
	ls -l dist

# The first one of a machine, for the Python of .venv, has all native parts compiled; for one more Python only _core is.
VERSION_OF = "import sys; print('cp%d%d' % sys.version_info[:2])"
MACHINE = $(HERE)
CROSS = $(if $(filter-out $(HERE),$(MACHINE)),\
    --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE=$(CURDIR)/tracehook/cpp/$(MACHINE).cmake \
    --config-settings=cmake.define.PYTHON_MODULE_EXTENSION=.cpython-$${name#cp}-$(MACHINE)-linux-gnu.so)
one-wheel:
	@$(FOR) -c "import venv" 2> /dev/null || { echo "$(FOR) is not here: no wheel for it" >&2; exit 0; }; \
	$(if $(filter-out $(HERE),$(MACHINE)),command -v $(MACHINE)-linux-gnu-g++ > /dev/null || \
	    { echo "$(MACHINE)-linux-gnu-g++ is not here: no wheel for $(MACHINE)" >&2; exit 0; };) \
	name=$$($(FOR) -c $(VERSION_OF)); ls dist/*-$$name-*_$(MACHINE).whl > /dev/null 2>&1 && exit 0; \
	of=build/wheels/$$name-$(MACHINE) && first=build/wheels/first-$(MACHINE) && \
	if [ -d $$first ]; then \
	    builder=$$PWD/build/wheels/$$name native="FROM_WHEEL=$$PWD/$$first" && $(FOR) -m venv $$builder && \
	    $$builder/bin/python -m pip --disable-pip-version-check install -q --no-compile \
	        "scikit-build-core>=0.11" "pybind11>=2.13" cmake ninja; \
	else \
	    builder=$(abspath $(VENV)) native="TORCH_HEADERS=$$($(BIN)/python tracehook/cpp/torch/fetch_headers.py build/torch-headers)"; \
	fi && \
	$(HIDE_CUDA) _PYTHON_HOST_PLATFORM=linux-$(MACHINE) PATH="$$builder/bin:$$PATH" \
	    $$builder/bin/python $(PIP_WHEEL) -w $$of . --config-settings=build-dir=build/wheel-$$name-$(MACHINE) \
	    "--config-settings=cmake.define.TRACEHOOK_$$native" $(CROSS) && \
	$(PACKED) $$of/*.whl && { [ -d $$first ] || $(BIN)/python -m zipfile -e $$of/*.whl $$first; }

# As a user would: a clean venv with that torch and the wheel alone, a self-test and four ranks in rehearsal, nothing
# found by the audit. `make wheel-2.15.0 PYTHON=python3.13` takes the wheel for that Python.
# Of a torch without CUDA there is no log of the demo.
wheel-%:
	@ls dist/tracehook-*-manylinux*.whl > /dev/null 2>&1 || { echo "dist has no wheel: make wheel comes first" >&2; exit 2; }
	rm -rf .venvs/wheel-$* && $(PYTHON) -m venv .venvs/wheel-$*
	.venvs/wheel-$*/bin/python -m pip --disable-pip-version-check install -q "$(EXACTLY)$*" numpy \
	    "$$(ls $(CURDIR)/dist/tracehook-*-$$(.venvs/wheel-$*/bin/python -c $(VERSION_OF))-manylinux*_$(HERE).whl)[audit]"
	cd .venvs/wheel-$* && PATH="$$PWD/bin:$$PATH" && \
	    $(if $(filter %+cpu,$*),true,bin/tracehook rehearse --devices 1 -- tracehook doctor) && \
	    bin/python $(CURDIR)/examples/demo.py logs && \
	    $(if $(filter %+cpu,$*),true,bin/tracehook audit logs && rm -rf ../logs && cp -r logs ../logs)
	$(if $(KEEP),,rm -rf .venvs/wheel-$*)

# Without torch, and without anything native: on the logs that the demo of a wheel has left.
wheel-readers:
	@ls -d .venvs/logs > /dev/null 2>&1 || { echo "no logs of a demo: make wheel-2.11.0 comes first" >&2; exit 2; }
	rm -rf .venvs/readers && $(PYTHON) -m venv .venvs/readers
	.venvs/readers/bin/python -m pip --disable-pip-version-check install -q --no-compile \
	    "$$(ls $(CURDIR)/dist/tracehook-*-py3-none-any.whl)[audit,metrics]"
	cd .venvs/readers && PATH="$$PWD/bin:$$PATH" bin/python $(CURDIR)/tests/support/readers.py ../logs
	$(if $(KEEP),,rm -rf .venvs/readers)

# A program that uses every public name, with the types that the installed wheel has.
wheel-types: WITH = 2.11.0
wheel-types:
	rm -rf .venvs/types && $(PYTHON) -m venv .venvs/types
	.venvs/types/bin/python -m pip --disable-pip-version-check install -q --no-compile mypy==2.4.1 "$(EXACTLY)$(WITH)" \
	    "$$(ls $(CURDIR)/dist/tracehook-*-$$(.venvs/types/bin/python -c $(VERSION_OF))-manylinux*_$(HERE).whl)[metrics]"
	cd .venvs/types && bin/mypy --strict --config-file= $(CURDIR)/tests/support/public_face.py
	$(if $(KEEP),,rm -rf .venvs/types)

demo: $(STAMP) ## The main job: 4 ranks on emulated devices, a table per rank, an audit (TORCH=2.15.0 for another torch)
	$(INSTALL_TRACEHOOK) --editable ".[audit]"
	rm -rf demo-logs
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python examples/demo.py demo-logs

# More than there are cores: a third of the time a test waits.
test: build ## All tests that need no GPU
	$(BIN)/python -m pytest -n "$$((2 * $$(nproc)))" tests

coverage: build ## The same, and how many of tracehook's Python statements they reach in their own processes
	$(BIN)/python -m pytest -n "$$((2 * $$(nproc)))" --cov=tracehook --cov-report= tests
	@echo "coverage: $$($(BIN)/coverage report --format=total) % (Python, without the processes that tests start)"

integrations: build ## SGLang, vLLM, Megatron, nccl4py, CuPy in rehearsal; faults of nvidia-resiliency-ext (fetches 460 MB, keeps 50)
	$(BIN)/python tests/servers/fetch.py build/servers
	$(BIN)/python -m pytest -n 2 tests/servers

# A venv that sees the packages of .venv keeps torch on the disk once. ONLY="ray torch": rows with one of these words.
frameworks: build ## Megatron, torchtitan, DeepSpeed, Ray ... train on four ranks in rehearsal (keeps 770 MB)
	$(BIN)/python tests/frameworks/install.py build/frameworks/venv
	$(BIN)/python tests/frameworks/run.py build/frameworks/venv build/frameworks/runs $(ONLY)

aarch64: build ## Compiled for aarch64 and tried under QEMU (tests/aarch64/run.py says what it needs; keeps 5 GB)
	$(BIN)/python tests/aarch64/run.py build/aarch64

nccl-diff: $(STAMP) ## What tracehook does not know of a version of NCCL (NCCL=2.32.3 SINCE=2.28.9 RECORD=yes; fetches 300 MB)
	PYTHONPATH=tests $(BIN)/python -m support.nccl_diff $(or $(NCCL),$(error name a version: make nccl-diff NCCL=2.32.3)) \
	    $(if $(SINCE),--since $(SINCE)) $(if $(RECORD),--record)

check: build $(TOOLS) ## In two minutes: one test of every kind, types, and the linter on what changed
	FILES="$$(git diff --name-only --diff-filter=d HEAD -- '*.py')"; \
	    if [ -n "$$FILES" ]; then $(BIN)/ruff check $$FILES && $(BIN)/ruff format --check $$FILES; fi
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 -m smoke tests

# The build compiles many sources at once; so each is read once here, too. Not yet those of the rehearsal.
tidy: build $(TOOLS) ## clang-tidy (.clang-tidy) reads the C++ of the package, in a minute
	$(BIN)/python -c "import json; \
	    print(*{each['file'] for each in json.load(open('$(BUILD)/compile_commands.json'))}, sep='\n')" | \
	    grep -v -e /rehearsal/ -e /tests/ -e harness | \
	    xargs -P 2 -n 3 $(BIN)/clang-tidy -p $(BUILD) --quiet

# MkDocs reads the pages and the source, so it needs neither torch nor anything that is compiled.
DOCS = $(VENV)/.tracehook-docs
$(DOCS): pyproject.toml
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import tomllib; \
	    print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" | xargs $(INSTALL)
	touch $@

docs: $(DOCS) ## The site of the pages, in site/; a dead link, anchor or name is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

matrix: $(MATRIX:%=matrix-%) wheel $(MATRIX_WHEELS:%=wheel-%) wheel-readers wheel-types ## What is promised for other versions of torch, each in a venv of its own

TRY = $(MAKE) build TORCH=$(1) VENV=.venvs/$(1) && \
    .venvs/$(1)/bin/python -m pytest -n 2 $(MATRIX_TESTS_$(1)) && \
    $(MAKE) demo TORCH=$(1) VENV=.venvs/$(1)$(if $(KEEP),, && rm -rf .venvs/$(1) build/torch-$(1)*)

matrix-%:
	$(call TRY,$*)

# pip finds a torch without CUDA only where its settings name a place that has one.
matrix-%+cpu: $(STAMP)
	if $(INSTALL) --dry-run --no-deps "$(EXACTLY)$*+cpu"; then $(call TRY,$*+cpu); \
	    else echo "pip finds no torch $*+cpu here: what is promised for a torch without CUDA was not looked at" >&2; fi

release: ## What a release needs: one version in the changelog and the package, no open change, then lint, docs, tests, wheels
	@version=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' tracehook/__init__.py); \
	    test "$$(sed -n 's/^## \([0-9.]*\) .*/\1/p' CHANGELOG.md | head -1)" = "$$version" || \
	        { echo "the newest version of CHANGELOG.md is not $$version" >&2; exit 2; }; \
	    test -z "$$(git status --porcelain)" || { echo "there are changes that are not committed" >&2; exit 2; }; \
	    test -z "$$(git tag --list "v$$version")" || { echo "there is a tag v$$version" >&2; exit 2; }; \
	    command -v aarch64-linux-gnu-g++ > /dev/null || { echo "aarch64-linux-gnu-g++ is not here: install it for the wheels" >&2; exit 2; }
	$(MAKE) lint docs test wheel $(MATRIX_WHEELS:%=wheel-%) wheel-readers wheel-types
	@echo "dist/ has all wheels; now: git tag v$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' tracehook/__init__.py) and twine upload dist/*"

test-gpu: build ## The tests that need real devices
	$(BIN)/python -m pytest -m gpu tests/gpu

sanitize: ## The registrar's stress test under ThreadSanitizer and AddressSanitizer (g++ only)
	$(MAKE) -C tests/cpp -j "$$(nproc)" programs
	$(MAKE) -C tests/cpp

bench: build ## Ratios, measured side by side on emulated devices
	$(BIN)/python benchmarks/run.py

lint: build $(TOOLS) ## Formatters, linters, types
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pre-commit run --all-files

clean: ## Remove what was built (not .venv)
	rm -rf build demo-logs site
