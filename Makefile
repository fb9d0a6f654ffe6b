# blockstream-tui: `make run` shows it at work, `make test` checks everything. `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
.SUFFIXES:
.NOTPARALLEL:

BIN := $(or $(CARGO_TARGET_DIR),target)/debug/blockstream-tui
DEMO := --model .demo/SmolLM2-135M-Instruct --profile assets/demo/demo.toml
NO_TORCH := --no-default-features --features tui
# Programs without libtorch lie in a folder of their own: target/debug keeps its engine at every moment. Packages are
# compiled once for both, because the network stays in: without it most of them have other features. Clippy leaves it out.
BUILD_DIR := $(or $(CARGO_TARGET_DIR),target)
NO_TORCH_DIR := $(BUILD_DIR)/no-torch
# nextest runs no doc tests, and is not required.
TESTS := $(if $(shell command -v cargo-nextest),cargo nextest run,cargo test --lib --bins --tests --examples)

# $(call stage,NAME,COMMAND) prints NAME, runs COMMAND and says how long it took.
stage = @echo; echo "== $(1)"; SECONDS=0; $(2); echo "== $(1): $${SECONDS} s"
# $(call if_installed,PROGRAM,COMMAND) runs COMMAND where PROGRAM is installed.
if_installed = if command -v $(1) >/dev/null; then $(2); else echo "skipped: $(1) is not installed"; fi

.PHONY: help setup build demo run test format lint docs unit licences spelling clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: ## fetch libtorch into .libtorch/ (once; LIBTORCH=dir uses your own, TORCH=cpu or cuda chooses)
	$(call stage,set-up,.config/libtorch.sh)

build: setup
	$(call stage,build,cargo build --locked)

demo: build ## make the demo's model in .demo/ (once)
	$(call stage,demo model,.config/demo-model.sh $(BIN))

run: demo ## open the workbench on the demo; without a terminal, run the demo's script
	@if [ -t 0 ] && [ -t 1 ] && [ "$${TERM:-dumb}" != dumb ]; then \
	  code=0; $(BIN) $(DEMO) || code=$$?; \
	  if [ $$code = 4 ]; then echo "stopped early, saved"; else exit $$code; fi; \
	else \
	  touch .demo/started; \
	  $(BIN) --script assets/demo/demo.script $(DEMO); \
	  find results -mindepth 2 -maxdepth 2 -name report.md -newer .demo/started -printf 'report: %p\n'; \
	fi

test: format licences spelling lint docs unit ## run every check that CI runs

format:
	$(call stage,format,cargo fmt --all --check)

lint: setup
	$(call stage,clippy,cargo clippy --locked --all-targets -- -D warnings)
	$(call stage,clippy without libtorch,cargo clippy --locked --all-targets $(NO_TORCH) -- -D warnings)

docs: setup
	$(call stage,documentation,RUSTDOCFLAGS="-D warnings" cargo doc --locked --lib --no-deps)

unit: demo
	$(call stage,tests without libtorch,CARGO_TARGET_DIR=$(NO_TORCH_DIR) CARGO_BUILD_BUILD_DIR=$(BUILD_DIR) CARGO_PROFILE_DEV_OPT_LEVEL=1 $(TESTS) --locked $(NO_TORCH) --features hub)
	$(call stage,doc tests,cargo test --locked --doc)
	$(call stage,tests,$(TESTS) --locked)

licences:
	$(call stage,licences and sources,$(call if_installed,cargo-deny,cargo deny check bans licenses sources))

spelling:
	$(call stage,spelling,$(call if_installed,typos,typos))

clean: ## remove what was built and the demo's model; .libtorch/ and results/ stay
	cargo clean
	rm -rf .demo
