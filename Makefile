# calserve: every job has a target. `make serve` and `make test` need Python 3.11+, make and a package index.
PYTHON ?= python3
VENV   ?= .venv
MODELS ?= models
MODEL  ?= smollm2-135m
HOST   ?= 127.0.0.1
PORT   ?= 8000
ARGS   ?=
# make soak: virtual hours. make fuzz: examples of each property, where 100 are usual
HOURS  ?= 24
EXAMPLES ?= 4000
# make fuzz: seconds of the coverage-guided run over the package reader
FUZZ_SECONDS ?= 600

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help serve test lint bench sim soak fuzz docs clean
.DEFAULT_GOAL := help

help:
	@echo "make serve   install, fetch and pack the default model, serve it (HOST=$(HOST) PORT=$(PORT))"
	@echo "make test    set up and run the whole suite"
	@echo "make lint    format check, lint, strict types"
	@echo "make bench   served against raw loop and peers, one interleaved run"
	@echo "make sim     200 seeds of the simulation, 4 virtual minutes each (ARGS for calserve soak)"
	@echo "make soak    $(HOURS) virtual hours under faults; record and report in build/soak/ (ARGS='--seed N', HOURS=)"
	@echo "make fuzz    long runs of the property tests, request bodies and packages (EXAMPLES=$(EXAMPLES))"
	@echo "make docs    write docs/package.md, fault-plan.md and board-profile.md anew from schemas and rules"
	@echo "make clean   remove the environment and caches (models/ stays)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "calserve needs Python 3.11 or newer; set PYTHON="; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "could not make $(VENV); on Debian install python3-venv"; exit 1; }

# Torch is for tests and for Hugging Face sources alone. Where pip finds its CPU build (PIP_EXTRA_INDEX_URL or
# PIP_FIND_LINKS) that is taken; the usual index has a build with CUDA, several times as large.
# Stamps hold what is installed, so that a second start installs and fetches nothing.
$(VENV)/.serve-stamp: pyproject.toml | $(BIN)/python
	@echo "installing calserve into $(VENV) (some 640 MB on disk, once)"
	$(PIP) install -q -e '.[pack-gguf]'
	@touch $@

$(VENV)/.test-stamp: pyproject.toml | $(BIN)/python
	@echo "installing calserve and its test tools into $(VENV) (some 1.8 GB with torch, minutes, once)"
	$(PIP) install -q -e '.[pack,sign,test,lint]'
	@touch $@ $(VENV)/.serve-stamp

$(MODELS)/$(MODEL)/checksums.sha256: | $(VENV)/.serve-stamp
	@source=$$($(BIN)/calserve pull $(MODEL) --cache $(MODELS)/sources) && \
	  $(BIN)/calserve pack "$$source" -o $(MODELS)/$(MODEL) --alias $(MODEL)

serve: $(VENV)/.serve-stamp $(MODELS)/$(MODEL)/checksums.sha256
	@exec $(BIN)/calserve serve --model $(MODELS)/$(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

# Fast tests first; slow ones only when those passed.
test: $(VENV)/.test-stamp lint
	$(BIN)/python -m pytest -m 'not slow' $(ARGS)
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(VENV)/.test-stamp
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy

bench: $(VENV)/.test-stamp $(MODELS)/$(MODEL)/checksums.sha256
	@source=$$($(BIN)/calserve pull $(MODEL) --cache $(MODELS)/sources) && \
	  $(BIN)/calserve bench --model $(MODELS)/$(MODEL) --source "$$source" $(ARGS)

sim: $(VENV)/.serve-stamp
	@exec $(BIN)/calserve soak --minutes 4 --seed 1 --seeds 200 --jobs 2 --min-requests 100 \
	  --records build/sim $(ARGS)

# The record stands from the first moment; what the run told lies beside it.
soak: $(VENV)/.serve-stamp
	@mkdir -p build/soak
	@$(BIN)/calserve soak --hours $(HOURS) --record build/soak/record.json --records build/soak $(ARGS) \
	  > build/soak/report.txt; code=$$?; cat build/soak/report.txt; exit $$code

fuzz: $(VENV)/.test-stamp
	CALSERVE_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --hypothesis-profile fuzz \
	  tests/props/test_engine_machine.py tests/props/test_kv_machine.py tests/api/test_api_fuzz.py \
	  tests/package/test_hostile.py $(ARGS)
	$(PIP) install -q -e '.[fuzz]'
	$(BIN)/python tests/package/fuzz_reader.py -max_total_time=$(FUZZ_SECONDS)

docs: $(VENV)/.serve-stamp
	$(BIN)/python -m calserve.package.document > docs/package.md
	$(BIN)/python -m calserve.runtime.sim.fault_document > docs/fault-plan.md
	$(BIN)/python -m calserve.runtime.sim.profile_document > docs/board-profile.md

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
