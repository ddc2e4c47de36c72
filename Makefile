# Everything on a fresh machine with Python and make:  make demo   make test
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check format bench docs new-objective clean

demo: $(VENV)/.demo
	$(BIN)/closeknit demo --out demo

test: $(VENV)/.dev
	$(MAKE) check

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# without arguments: on a CPU in some minutes each; what needs more says so and is left out
bench: $(VENV)/.dev
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.dev
	$(BIN)/python docs/make.py

# make new-objective NAME=angular_margin: starts a new objective (docs/add-an-objective.md)
new-objective:
	$(PYTHON) tools/new_objective.py $(NAME)

# torch comes first and alone: anything that asks for it later finds the pinned build in place
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[offline,plots]'
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) demo runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
