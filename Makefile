# Entry points. Each target that needs tools checks for them first; see scripts/setup.
SHELL := /bin/bash
# rustup's usual place, for shells that have not sourced its environment file.
export PATH := $(PATH):$(HOME)/.cargo/bin
FUZZ_SECONDS ?= 60
MINUTES ?= 30

.DEFAULT_GOAL := help
.PHONY: help demo check test test-long bench storebench build lint install packages docs release deny fuzz proof soak compat clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|'

build: ## build libduralite.so, its preload library, duralite and duralite-archive into target/release
	@scripts/setup build
	cargo build --release -p duralite -p duralite-preload -p duralite-cli -p duralite-sidecar

# Optimised as a whole and with debug information, a program takes longer to build than to show.
demo: export CARGO_PROFILE_RELEASE_LTO = off
demo: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = 16
demo: export CARGO_PROFILE_RELEASE_DEBUG = 0
# The demonstration measures the system's SQLite. The one that is in `duralite` takes most of the time to build.
QUICK_SQLITE := --config 'profile.release.package.libsqlite3-sys.opt-level = 1'
demo: ## the main job on real input, with a kill -9 in the middle; table and out/demo.svg
	@scripts/setup demo
	cargo build --release -p duralite -p duralite-cli -p duralite-bank $(QUICK_SQLITE)
	cargo build --release -p duralite-demo
	cargo run --release --quiet -p duralite-demo
	@$${CARGO_TARGET_DIR:-target}/release/bank 1

test: ## the lints and the tests to run before a commit; the last line counts them
	@scripts/setup test
	@scripts/test short

test-long: ## all other tests: every engine, aarch64, programs of others, packages, fuzzing
	@scripts/setup test-long
	@scripts/test long

bench: ## the measurements into docs/benchmarks.md, docs/bench/*.csv and *.svg
	@scripts/setup bench
	@scripts/bench

storebench: ## the store's measurements, beside other stores, into docs/store/benchmarks.md and docs/store/bench/*.csv
	@scripts/setup bench
	@scripts/storebench

packages: ## every package, into out/packages, each tested in an empty environment
	@scripts/setup packages
	@id=$${DURALITE_BUILD_ID:-$$(git describe --always --dirty)} && unset DURALITE_BUILD_ID && \
		DURALITE_BUILD_ID=$$id cargo build --release -p duralite -p duralite-preload -p duralite-cli -p duralite-sidecar && \
		PACKAGES_BUILD_ID=$$id scripts/packages/run

docs: ## the documentation as a site with a search, into out/book
	@scripts/setup docs
	@scripts/docs

release: packages ## the packages with checksums, bill of materials and notes, into out/release
	@scripts/setup release
	@scripts/release

deny: ## licences, sources and advisories of all dependencies (deny.toml)
	@scripts/setup release
	@scripts/deny

install: ## what `make build` left, below $(DESTDIR)$(PREFIX)
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/install

check: ## format, lints, and unit tests of what has changed, while you work
	@scripts/setup lint
	@scripts/check

lint: ## formatting and clippy, warnings as errors
	@scripts/setup lint
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

fuzz: ## fuzz every decoder, the engines and recovery for FUZZ_SECONDS (default 60)
	@scripts/setup fuzz
	@scripts/fuzz $(FUZZ_SECONDS)

proof: ## all evidence for durability at length (half an hour and more); tables into docs/fault-model.md
	@scripts/setup proof
	cargo build --release -p duralite -p duralite-cli -p duralite-proof
	@scripts/proof

compat: ## the tests of CPython, SQLAlchemy, Django and peewee on Duralite, beside stock SQLite (an hour)
	@scripts/setup compat
	cargo build --release -p duralite
	@scripts/compat

soak: ## processes that fork, are killed and stopped share a database for MINUTES (default 30)
	@scripts/setup build
	@scripts/soak $(MINUTES)

clean: ## remove everything built
	rm -rf target fuzz/target out python/src/duralite/libduralite.so
