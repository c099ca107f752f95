# make up      set this machine up, build what is missing, start TClone, print its address and (the first time) the password
# make test    the same set-up plus what tests need, then every test
# make down    stop TClone and remove its workspaces
# make bench   benchmarks
# make bench-stream   the portal's streams beside other proxies
# make bench-agents   agents that try before they decide, over forks and over fresh containers
# make soak    fork one desktop 500 times on a busy machine (15 minutes)
# make clean   remove what was built here; workspaces, images and settings in TCLONE_DATA stay
SHELL := /bin/bash
VENV ?= $(CURDIR)/.venv
PYTHON := $(VENV)/bin/python
TCLONE := $(VENV)/bin/tclone
IMAGE ?= webtop-xfce
# Images are built once for all test runs, here.
TCLONE_TEST_CACHE ?= /var/cache/tclone
TESTS ?= tests
PYTEST_ARGS ?=
export TCLONE_VENV := $(VENV)

help:
	@sed -n 's/^# //p' Makefile | head -8

up: setup
	$(TCLONE) up --detach --image $(IMAGE)

down:
	$(TCLONE) down

setup: packages venv bytecode native web link

packages:
	@scripts/setup packages
packages-test: packages
	@scripts/setup packages-test

venv: $(VENV)/.stamp
venv-test: $(VENV)/.stamp-test
$(VENV)/.stamp: requirements.lock pyproject.toml scripts/setup | packages
	@scripts/setup venv
	@touch $@
$(VENV)/.stamp-test: $(VENV)/.stamp requirements-test.lock | packages-test
	@scripts/setup venv-test
	@touch $@

bytecode: venv
	@scripts/setup bytecode

# Its own makefile knows what is out of date.
native: packages
	@$(MAKE) --question -C native >/dev/null 2>&1 || echo "tclone set-up: building the fork program" >&2
	@$(MAKE) --silent --no-print-directory -C native V=quiet

web: static/vendor/.stamp
static/vendor/.stamp: scripts/vendor.py scripts/web/package.json scripts/web/package-lock.json | packages
	@if scripts/setup web; then touch $@; else echo "tclone set-up: no terminal in the portal's pages for now; 'make web' tries again" >&2; fi

link: venv
	@scripts/setup link

judges: packages
	@scripts/setup judges

clients: packages
	@scripts/setup clients

rivals: packages
	@scripts/setup rivals

test-setup: packages-test venv-test bytecode native web judges clients rivals

test: test-setup
	TCLONE_CACHE=$(TCLONE_TEST_CACHE) $(PYTHON) scripts/suite.py $(TESTS) -- $(PYTEST_ARGS)

bench: test-setup
	TCLONE_CACHE=$(TCLONE_TEST_CACHE) $(PYTHON) bench/fork.py

bench-stream: test-setup
	@scripts/setup rivals
	TCLONE_CACHE=$(TCLONE_TEST_CACHE) $(PYTHON) bench/stream.py

bench-agents: test-setup
	TCLONE_CACHE=$(TCLONE_TEST_CACHE) $(PYTHON) bench/osworld.py

soak: test-setup
	TCLONE_CACHE=$(TCLONE_TEST_CACHE) $(PYTHON) bench/soak.py

clean:
	rm -rf .pytest_cache test-artifacts tclone.egg-info static/vendor
	[ ! -f native/Makefile ] || $(MAKE) --no-print-directory -C native clean
	find engine portal tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help up down setup packages packages-test venv venv-test bytecode native web link judges clients rivals test-setup test bench bench-stream bench-agents soak clean
