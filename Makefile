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

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help serve test lint bench sim soak fuzz clean
.DEFAULT_GOAL := help

help:
	@echo "make serve   install, fetch and pack the default model, serve it (HOST=$(HOST) PORT=$(PORT))"
	@echo "make test    set up and run the whole suite"
	@echo "make lint    format check, lint, strict types"
	@echo "make bench   served against raw loop and peers, one interleaved run"
	@echo "make sim     200 seeds of the simulation, 4 virtual minutes each (ARGS for calserve soak)"
	@echo "make soak    $(HOURS) virtual hours under faults; record and report in build/soak/ (ARGS='--seed N', HOURS=)"
	@echo "make fuzz    long runs of the property tests and of request bodies (EXAMPLES=$(EXAMPLES))"
	@echo "make clean   remove the environment and caches (models/ stays)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "calserve needs Python 3.11 or newer; set PYTHON="; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "could not make $(VENV); on Debian install python3-venv"; exit 1; }

# Stamps hold what is installed, so that a second start installs and fetches nothing.
$(VENV)/.serve-stamp: pyproject.toml | $(BIN)/python
	@echo "installing calserve into $(VENV) (some 250 MB, once)"
	$(PIP) install -q -e '.[pack]'
	@touch $@

$(VENV)/.test-stamp: pyproject.toml | $(BIN)/python
	@echo "installing calserve and its test tools into $(VENV) (once)"
	$(PIP) install -q -e '.[pack,test,lint]'
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
	  tests/props/test_engine_machine.py tests/props/test_kv_machine.py tests/api/test_api_fuzz.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
