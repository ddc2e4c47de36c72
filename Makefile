# Everything on a fresh machine with Python and make:  make demo   make test
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo develop hooks test check tests test-oldest test-newest wheel-check format bench docs docs-check new-objective clean

demo: $(VENV)/.demo
	$(BIN)/closeknit demo --out demo

# the virtual environment with everything that the checks need
develop: $(VENV)/.dev

# before each commit, Git runs what .pre-commit-config.yaml lists
hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

test: $(VENV)/.dev
	$(MAKE) check

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -n auto

tests: $(VENV)/.dev
	$(PYTEST) -n auto $(PYTEST_OPTIONS)

# The tests with the oldest dependencies that pyproject.toml allows. Old packages warn about what newer versions of
# other packages have renamed; such a warning is no error of Closeknit, so warnings are only shown here.
test-oldest:
	$(MAKE) tests VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt PYTEST_OPTIONS="-W default"

# The tests with the newest versions of everything, which constraints.txt may not allow yet.
test-newest:
	$(MAKE) tests VENV=.venv-newest CONSTRAINTS=constraints-newest.txt

# The wheel and the source archive have everything in them, and the installed command runs.
wheel-check: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python .ci/check_wheel.py dist

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

# links, tables of settings and commands in the documents are right, and the pictures are those that `make docs` draws
docs-check: $(VENV)/.dev
	$(PYTEST) tests/test_docs.py

# torch comes first and alone: anything that asks for it later finds the pinned build in place
$(VENV)/.torch: $(CONSTRAINTS)
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
	rm -rf $(VENV) .venv-oldest .venv-newest dist demo runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
