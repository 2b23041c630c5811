# Every target sets itself up in a fresh clone: a virtual environment in .venv with pinned dependencies.
# Needs Python 3.10 or later, g++ 10 or later and make; a GPU is used where there is one.

PY := PYTHONPATH=src .venv/bin/python
# Two workers: the heavy tests are compilers, which want a gigabyte each.
WORKERS ?= 2
# Tests take from milliseconds to minutes: a worker that has none left takes some of another's.
SPREAD := -n $(WORKERS) --dist worksteal

.PHONY: demo test built quick exhaustive torches accept gallery pictures lint gpu setup clean help

help:
	@echo "make demo    fuse one of the problems and prove the result, in the simulator if there is no GPU"
	@echo "make test    linters, types and all tests that need no GPU"
	@echo "make quick   linters, types and the tests that take seconds"
	@echo "make exhaustive   what only repeats or enlarges the tests: more files, more problems, more random graphs"
	@echo "make torches      fuse every problem with other versions of torch, TORCH=\"2.7.1 2.11.0\", and prove what differs"
	@echo "make accept       take what fusing the problems gives now as what it should give"
	@echo "make gallery      fuse, prove and show the reference problems again, in gallery/"
	@echo "make pictures     the pictures of pages in docs/pictures (needs Chromium)"
	@echo "make gpu     the tests that need a GPU"
	@echo "make lint    linters and types alone"
	@echo "make setup   only the virtual environment"
	@echo "make clean   remove everything that was built here"

setup: .venv/.stamp

.venv/.stamp: pyproject.toml constraints.txt tools/setup.sh
	@tools/setup.sh

demo: setup
	@mkdir -p build
	$(PY) -m crucible fuse problems/conv_transpose2d_gelu_group_norm.py --explain \
		-o build/conv_transpose2d_gelu_group_norm_new.py

lint: setup
	$(PY) -m ruff check .
	$(PY) -m mypy

# The simulator's libraries are built beside the linters: they would keep both workers waiting.
test: setup
	@$(MAKE) --no-print-directory -j 2 lint built
	$(PY) -m pytest $(SPREAD) --durations=25 -m "not gpu and not exhaustive"

built: setup
	$(PY) -m crucible.build.prebuilt

quick: lint
	$(PY) -m pytest $(SPREAD) -m "quick and not gpu"

exhaustive: setup
	$(PY) -m pytest $(SPREAD) -m exhaustive

torches: setup
	$(PY) tools/other_torches.py $(TORCH)

accept: setup
	$(PY) tests/fuse/accepted.py

gallery: setup
	$(PY) tools/make_gallery.py

pictures: setup
	$(PY) tools/screenshots.py

gpu: setup
	$(PY) -m pytest -m gpu

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .scratch build src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
