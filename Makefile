# Two commands for a newcomer: make demo, make test. Each sets up .venv first.
PYTHON ?= python3
# The versions of the packages: a file of constraints/. The others than `current` are those of Kaggle's and Colab's images
# and the oldest that are supported, each in an environment of its own without a GPU.
STACK ?= current
VENV ?= $(if $(filter current,$(STACK)),.venv,.stacks/$(STACK))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests of every package, one tiny run and one resumed run.
QUICK := tests/base tests/hardware tests/recipe tests/planning/estimate $(wildcard tests/planning/test_*.py) \
  $(addprefix tests/training/,checkpoint data engine run_directory session test_loop.py) tests/invariants/test_resume.py tests/test_names.py \
  tests/test_design.py

# Several processes, recipes, library trainers, export and resume. Processes are forked from young ones: two of them ended
# with SIGSEGV once, with Kaggle's versions, after their parent had run 2,500 other tests.
VERSIONS := tests/invariants/test_sharded.py tests/recipes tests/integrations tests/techniques tests/base/packages \
  tests/training/engine $(wildcard tests/training/test_*.py) tests/training/checkpoint/test_light.py \
  tests/invariants/test_resume.py tests/runs/export/test_export.py tests/test_examples.py tests/test_version_0_1_0.py \
  tests/planning/simulator tests/runs/rehearse

# Images of containers often set it. Each of the hundreds of processes of the tests would compile all modules.
unexport PYTHONDONTWRITEBYTECODE

# The sequences of faults of `make faults`, which is a part of `make soak`.
SEEDS ?= 0:2000

.PHONY: demo demo-kaggle quick test lint types contract unit versions lab laboratory soak faults site docs-test benchmarks claims release-check clean

$(STAMP): pyproject.toml constraints/$(STACK).txt constraints/environment.sh constraints/stub_cuda.py
ifeq ($(STACK),current)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints/current.txt --editable '.[all,dev]'
else
	constraints/environment.sh $(STACK) $(VENV)
endif
	touch $@

# Plan for a T4, train here on the CPU until the session's limit, continue in a second process, draw the report.
demo: $(STAMP)
	@rm -rf runs/demo
	$(BIN)/shoestring plan temporal --on kaggle-t4
	$(BIN)/shoestring train temporal --run runs/demo --set epochs=120 --set patience=120 --limit 45s
	$(BIN)/shoestring train temporal --run runs/demo
	$(BIN)/shoestring report runs/demo

# Two runs on a Kaggle of this machine, interrupted by the limits of sessions; five to ten minutes (docs/guides/kaggle_demo.md).
demo-kaggle: $(STAMP)
	$(BIN)/python benchmarks/kaggle/demo.py

# What to run after each change: most mistakes fail here.
quick: lint types contract
	$(BIN)/python -m pytest -n 2 $(QUICK)

# The code is checked once, with the tools of the current stack; the tests run with each.
test: $(if $(filter current,$(STACK)),lint types contract) unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy --num-workers 2

contract: $(STAMP)
	$(BIN)/lint-imports

unit: $(STAMP)
	$(BIN)/python -m pytest -n 2

# The tests of what the versions of torch and of the libraries change, for the other stacks.
versions: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(VERSIONS)

# What runs on a GPU, on a simulated one with Kaggle's versions: make lab [ONLY="tests/lab/FILE ..."]; QUICK=1: what CI runs.
lab:
	$(MAKE) STACK=kaggle laboratory

laboratory: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.rehearse.simulated -- -m pytest -n 2 --dist loadfile \
	  $(if $(QUICK),,-m 'slow or not slow') $(or $(ONLY),tests/lab)

# The long form of the proofs that `make test` holds in short.
soak: $(STAMP)
	SHOESTRING_SOAK=1 $(BIN)/python -m pytest -m 'slow or not slow' tests/invariants tests/crash
	$(BIN)/python -m pytest -n 2 -m slow --ignore tests/crash --ignore tests/invariants --ignore tests/lab
	$(MAKE) faults

# Runs disturbed by random sequences of faults. It can be stopped; the next call continues with the seeds that are missing
# in build/faults.json. The files of sequences that fail are in build/faults.
faults: $(STAMP)
	mkdir -p build
	$(BIN)/python -m benchmarks.faults --seeds $(SEEDS) --json build/faults.json --folder build/faults

# The documentation, into build/site; it needs no server and no network.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Rerun what the documentation quotes and rewrite its tables: make benchmarks [ONLY="NAME ..."] [DATA=FOLDER].
benchmarks: $(STAMP)
	$(BIN)/python -m benchmarks run $(ONLY) $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks tables

# Rerun the plans and estimates that the documentation quotes, at most ten minutes, and write their numbers on its pages;
# make claims CHECK=1 lists the values that differ from the committed ones instead.
claims: $(STAMP)
ifdef CHECK
	$(BIN)/python -m benchmarks.claims --check
else
	$(BIN)/python -m benchmarks run claims
	$(BIN)/python -m benchmarks tables
endif

# Every command and script of the documentation; `make test` executes the quick ones.
docs-test: $(STAMP)
	SHOESTRING_DOCS=1 $(BIN)/python -m pytest -n 2 -m 'slow or not slow' tests/docs

# Build the distributions into dist, and try the wheel in new environments, with torch and without it.
release-check:
	PYTHON=$(PYTHON) .github/check_release.sh dist

clean:
	rm -rf .venv .stacks runs build
