# What people do with a checkout. Everything below works on a bare machine with Python >= 3.11 and a C++
# compiler: `make setup` builds .venv, and the other targets depend on it, but for `replay`, which needs less.
VENV := .venv
VLLM_VENV := .venv-vllm
CLIENTS_VENV := .venv-clients
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# The packages of a modelled replay only. A complete environment stays complete.
CORE := $(or $(wildcard $(STAMP)),$(VENV)/.core)
NATIVE := $(shell find csrc tests/csrc/softnic CMakeLists.txt -type f)
CXX_FILES := $(shell find csrc tests laminabench -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh')
# One more than this project's machines have cores: many tests wait for processes that they have started.
PYTEST_WORKERS ?= 3
# Some containers disable bytecode files: every test process would then compile torch's modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup test test-long test-all torture lint audit check format sanitize cuda gpu bare rdma-test vllm clients bench replay figures docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml $(wildcard ci/locked/*.txt) ci/setup.sh $(NATIVE)
	@ci/setup.sh $(VENV) all
	@touch $@

$(VENV)/.core: pyproject.toml $(wildcard ci/locked/*.txt) ci/setup.sh $(NATIVE)
	@ci/setup.sh $(VENV) core
	@touch $@

# A file's tests stay together: what they share (a Ray cluster, a browser, converted models) is made once.
# `test` is for while one works, `test-long` what that leaves out or draws fewer examples of, `test-all` both.
PYTEST := $(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder

test: export LAMINABENCH_SIM_EXAMPLES ?= 20
test: setup
	$(PYTEST) -m "not (long or outside)"

test-long: setup
	$(PYTEST) -m "long or outside or drawn"

test-all: setup
	$(PYTEST)

# Fault experiments in full, hours: docs/reliability.md. `make torture ONLY=kills-replay SEED=7 CASES=4`.
torture: setup
	TORTURE=1 $(BIN)/pytest -x --durations=0 tests/faults/test_full.py $(if $(ONLY),-k "$(ONLY)")

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python ci/errors.py --check
	$(BIN)/python ci/lines.py
	$(BIN)/python ci/words.py
	$(BIN)/python ci/waits.py
	$(BIN)/python ci/map.py --check
	$(BIN)/python ci/man.py --check
	$(BIN)/python ci/keywords.py --check
	$(BIN)/python ci/board.py --check
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

# Known vulnerabilities of the pinned versions; without a reachable index it prints that and succeeds.
audit: setup
	@$(BIN)/python ci/audit.py

# The project's own replays against their goldens, which `laminabench check --update` changes; and the model against
# measurements, which it may not be further off than before.
check: setup
	$(BIN)/laminabench check
	$(BIN)/laminabench validate --against results/validation/validation.json

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

sanitize: setup
	@ci/sanitize.sh $(VENV)

# Compiles the CUDA kernels as CI does; needs nvcc and no GPU.
cuda: setup
	@ci/check-cuda.sh $(VENV)

# All measurements of a machine with an NVIDIA GPU and nvcc, in ten minutes: results/<gpu>. Built for that GPU alone.
gpu:
	@MAKE="$(MAKE)" ci/gpu.sh $(VENV)

# The commands of README on a bare machine: a separate Debian that shares nothing with this one.
bare:
	@ci/bare.sh || [ $$? = 77 ]

# What needs an RDMA device, on soft-RoCE in virtual machines; says so and succeeds where these cannot be had.
rdma-test: setup
	@$(BIN)/python ci/rdma-vm test

# An environment of its own for the vLLM that Lamina is compared with (CPU build, 2.4 GB).
vllm: setup
	@$(BIN)/laminabench baseline setup vllm --cpu --into $(VLLM_VENV)

# aiperf, guidellm, openai and `vllm bench serve` drive our server, in an environment of their own (2.2 GB).
clients: setup
	@ci/clients.sh $(VENV) $(CLIENTS_VENV) $(VLLM_VENV)

bench: setup
	$(BIN)/laminabench bench attention
	$(BIN)/laminabench bench engine
	$(BIN)/laminabench bench engine --compare serial,rotational
	$(BIN)/laminabench bench prefill
	$(BIN)/python tools/bench.py products
	$(BIN)/laminabench bench fhbn
	$(BIN)/laminabench bench slab
	$(BIN)/laminabench bench traces
	$(BIN)/laminabench bench sim

# The project's main command and its baseline.
replay: $(CORE)
	$(BIN)/laminabench replay --trace azure-conv --system vllm
	$(BIN)/laminabench replay --trace azure-conv --system lamina

# Every figure and table of the papers, and PAPER.md: their claims next to our results.
figures: setup
	$(BIN)/laminabench figures all

# The documentation as a site, build/site: no warning, no dead link, nothing from the network. The notice that is turned off
# says that the theme will not follow mkdocs to its version 2; ci/constraints.txt pins both.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python ci/site_links.py build/site

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(CLIENTS_VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
