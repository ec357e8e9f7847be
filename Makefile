# Two commands for a newcomer, from a fresh clone: `make demo` and `make test`. Both set up all they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STORE ?= filesystem
PYTEST_ARGS ?=
DIST ?= dist
PIN := uv pip compile --universal --generate-hashes --no-header --no-annotate --python-version 3.11

# If an image sets this variable, each test process compiles the package to bytecode again, and each worker all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test pytest toolchain servers check types mypy pyright layers static unit core soak asan sbom sdist wheel wheels bench docs site pictures lock clean

help: ## say what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

KERNELS := $(wildcard $(foreach depth,* */*,tieredstore/$(depth)/*.p*x* tieredstore/$(depth)/*.h))
$(VENV)/installed: requirements.lock pyproject.toml setup.py scripts/wheels/uv.lock $(KERNELS)
	@scripts/check-prerequisites $(PYTHON)
	@$(PYTHON) -m scripts.environment
	@touch $@

# The demo's own installation, unless everything is installed already.
DEMO := $(or $(wildcard $(VENV)/installed),$(VENV)/demo-$(STORE))
$(VENV)/demo-filesystem: EXTRAS := query spark
$(VENV)/demo-s3: EXTRAS := query spark s3 servers
$(VENV)/demo-filesystem $(VENV)/demo-s3: requirements.lock pyproject.toml setup.py $(KERNELS)
	@scripts/check-prerequisites $(PYTHON)
	@$(PYTHON) -m scripts.environment $(EXTRAS)
	@touch $@

demo: $(DEMO) ## real Kafka segments into a store (STORE=filesystem or s3), back, and through Spark
	@$(BIN)/python -m scripts.toolchain demo
	$(BIN)/python examples/demo.py --store $(STORE)

test: check toolchain ## everything CI runs
	@$(MAKE) --no-print-directory --jobs 2 servers pytest
	@$(MAKE) --no-print-directory static
	@$(MAKE) --no-print-directory core

# Branch coverage of the product code must not fall below the floor in pyproject.toml. Many tests wait for a server or
# for Spark, so five workers keep two cores busy.
pytest: $(VENV)/installed
	$(BIN)/python -m pytest --numprocesses 5 -p tests.support.coverage --hypothesis-seed 0 --durations=40 $(PYTEST_ARGS)

# The type checkers take a core each.
static: toolchain
	@$(MAKE) --no-print-directory --jobs 2 pyright mypy layers

check: $(VENV)/installed ## lint, formatting and plain words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m scripts.plain_words --count

types: mypy pyright ## mypy and pyright, both strict

mypy: toolchain
	$(BIN)/mypy

pyright: toolchain
	$(BIN)/pyright

layers: $(VENV)/installed ## imports go down only
	$(BIN)/lint-imports

toolchain: $(VENV)/installed
	@$(BIN)/python -m scripts.toolchain test

servers: $(VENV)/installed ## the servers that the tests start
	@$(BIN)/python -m scripts.servers

unit: $(VENV)/installed ## the quick tests without a server, Spark, a sweep or random cases: 2 to 3 minutes
	$(BIN)/python -m pytest --numprocesses 3 -m "not (server or broker or spark or slow or soak or hypothesis or sweep)" $(PYTEST_ARGS)

core: toolchain ## the core's unit tests in a copy of the tree without the wings: a minute
	$(BIN)/python -m tests.support.core_alone --numprocesses 3 -m "not (server or broker or spark or slow or soak or hypothesis)"

soak: toolchain servers ## what make test has no time for
	TIEREDSTORE_SOAK=1 $(BIN)/python -m pytest --numprocesses 2 --timeout 3600 -o faulthandler_timeout=3000 -m "soak or hypothesis or slow or sweep" $(PYTEST_ARGS)
	$(BIN)/python -m tests.support.core_alone --numprocesses 2 -m "not (spark or soak)"

asan: $(VENV)/installed ## damaged batches, and files that change, against kernels built with AddressSanitizer
	tests/asan/run $(BIN)/python 10000

bench: toolchain servers ## benchmarks of the hot paths, JSON out, one after the other
	for name in transform fetch random backends decode catalog consumer ops spark compute pipelines pubsub restore uploader; do PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.bench_$$name || exit 1; done

sdist: $(VENV)/installed ## the source distribution of the last commit, the same bytes each time, in dist/
	$(BIN)/python -m scripts.sdist $(DIST)

# Build from the source distribution: a wheel of the working tree would also contain files that earlier builds left.
wheel: $(VENV)/installed ## a wheel of it for this kind of machine, which installs without a compiler, in dist/
	$(BIN)/python -m pip --disable-pip-version-check wheel --no-deps --no-build-isolation --wheel-dir $(DIST) \
		$$($(BIN)/python -m scripts.sdist $(DIST))

wheels: $(VENV)/wheels/installed ## wheels for Linux (glibc and musl, x86-64 and arm64), cross-compiled, in dist/
	@$(BIN)/python -m scripts.cross_wheels $(DIST)

sbom: $(VENV)/sbom/installed ## what requirements.lock pins as a software bill of materials (CycloneDX), in dist/
	@mkdir -p $(DIST)
	PYTHONPATH=$(VENV)/sbom $(BIN)/python -m cyclonedx_py requirements --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file $(DIST)/tieredstore.cdx.json requirements.lock

docs: $(VENV)/installed ## regenerate docs/reference, and the tables of options in other pages
	$(BIN)/python -m tests.support.reference
	$(BIN)/python -m tests.support.spark.option_tables
	$(BIN)/python -m scripts.room_map

# Packages in folders of their own, because tests and programs do not need them.
APART := $(VENV)/sbom/installed $(VENV)/site/installed $(VENV)/wheels/installed
$(APART): $(VENV)/%/installed: $(VENV)/installed scripts/wheels/%.lock
	rm -rf $(VENV)/$*
	$(BIN)/python -m pip --disable-pip-version-check install -q --no-deps --require-hashes --target $(VENV)/$* -r scripts/wheels/$*.lock
	@touch $@

site: $(VENV)/site/installed ## docs, pictures and the API as a site in build/site, readable offline; a broken link fails
	PYTHONPATH=$(VENV)/site:. $(BIN)/python -m sphinx -q -W --keep-going -b html -c scripts/site -d build/site-cache . build/site

pictures: $(VENV)/installed ## make docs/pictures again, out of real commands
	$(BIN)/python -m scripts.pictures

lock: ## pin the versions that CI tests (needs uv, and Maven for the jars of servers)
	$(PIN) pyproject.toml --extra dev --output-file requirements.lock
	for tool in go java node sbom site uv wheels; do $(PIN) --group $$tool --output-file scripts/wheels/$$tool.lock || exit 1; done
	$(BIN)/python -m scripts.jars

clean: ## forget the virtual environment and everything made
	rm -rf $(VENV) demo-out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
