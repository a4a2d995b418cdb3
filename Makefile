# Two commands on a fresh clone: make run, make test. Both build .venv first, and again only when the pins change.
PYTHON ?= python3
BIN := .venv/bin
PINS := $(shell sed -n '/^requires-python/,/^\[tool.hatch/p' pyproject.toml | cat - constraints.txt | cksum | cut -d' ' -f1)
READY := .venv/pins-$(PINS)

unexport PYTHONDONTWRITEBYTECODE  # with it, every process of a test compiles the package again

PYTEST := $(BIN)/python -m pytest
PROCESSES := tests/test_tutorial.py tests/launch tests/fleet  # where the tests with processes are, and nothing slow to import
NONE_IS_FINE := || test $$? -eq 5  # 5: ARGS selects none of these

.PHONY: run test test-fleet test-parts soak lint docs
run: $(READY)  ## the main job: SOFed on the embedded dataset; ARGS="policy=fifo rounds=5"
	$(BIN)/sofed run $(ARGS)

test: $(READY)  ## everything CI checks
	$(MAKE) --jobs=3 --output-sync=line --no-print-directory lint test-fleet test-parts  # a fleet mostly waits
	$(PYTEST) -m flower -n 2 $(or $(ARGS),$(PROCESSES)) $(NONE_IS_FINE)

test-fleet: $(READY)
	$(PYTEST) -m fleet $(or $(ARGS),$(PROCESSES)) $(NONE_IS_FINE)

test-parts: $(READY)
	nice -n 19 $(PYTEST) -m "not (flower or fleet or soak)" -n 3 $(ARGS) $(NONE_IS_FINE)

soak: $(READY)  ## what takes too long for every commit
	$(PYTEST) -m soak -s $(ARGS)

docs: $(READY)  ## what is generated from the code and from conf/
	$(BIN)/sofed config --markdown > docs/configuration.md

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
	@echo "building .venv: about two minutes, once"
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[simulation,report,tracking,camera,dp,export,dev]'
	@touch $@
