# make demo    install into .venv and run the main job on the recorded example
# make test    run the tests on the installed package      (ARGS=... is handed to pytest)
# make lint    ruff, and mypy on the installed package
# make bench   measure reading and simulating
# make dev     an editable environment for contributors in .venv-dev
# make clean   remove all of the above
# Needs python3 (3.11 or newer), python3-venv and make; the rest comes from the package index.

PYTHON ?= python3
ARGS ?=
EXAMPLE := examples/ddp_gloo_2ranks

PIP := -m pip --disable-pip-version-check -qq
FOLDERS := base calibration configs converters graph reports simulator sweeps utility whatif
# Folders are listed with their files: theirs is the time stamp that changes when a file goes.
SOURCES := pyproject.toml LICENSE README.md \
    $(shell find $(FOLDERS) -name __pycache__ -prune -o ! -name '*.pyc' -print)

.DEFAULT_GOAL := demo
.PHONY: demo test lint bench dev clean

demo: .venv/.installed
	.venv/bin/whatif utility --trace $(EXAMPLE)
	.venv/bin/whatif sweep --trace $(EXAMPLE) --resource scaleup_bw

# Not `python -m pytest`: that would import the folder whatif/ instead of the package.
test: .venv/.installed-dev
	.venv/bin/pytest $(ARGS)

# mypy runs elsewhere, for the same reason.
lint: .venv/.installed-dev
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	cd .venv && bin/mypy --config-file ../pyproject.toml

bench: .venv/.installed-dev
	set -e; for script in benchmarks/bench_*.py; do .venv/bin/python $$script; done

# Strict: a tree of links, which type checkers and editors can follow. New and removed files
# need a new `make dev`.
dev: .venv-dev/bin/pip
	.venv-dev/bin/python $(PIP) install --config-settings editable_mode=strict --editable '.[dev]'
	@echo "Ready: .venv-dev/bin/whatif, .venv-dev/bin/pytest"

clean:
	rm -rf .venv .venv-dev build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/.installed: $(SOURCES) | .venv/bin/pip
	@echo "Installing into .venv (a minute or two the first time)"
	@rm -rf $(STALE)
	@.venv/bin/python $(PIP) install .
	@rm -rf $(STALE)
	@touch $@

.venv/.installed-dev: $(SOURCES) | .venv/bin/pip
	@echo "Installing with the development tools into .venv (a minute or two the first time)"
	@rm -rf $(STALE)
	@.venv/bin/python $(PIP) install '.[dev]'
	@rm -rf $(STALE)
	@touch .venv/.installed $@

# What setuptools leaves from one build it would ship with the next, modules since removed too.
STALE := build/lib build/bdist.*

.venv/bin/pip .venv-dev/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(@:/bin/pip=)
