# Tasks of this repository. `make` lists them.
#
# Targets with a family of tasks take WHAT=, a list of them: `make bench WHAT="http resp"`.

.DEFAULT_GOAL := help
.PHONY: help run setup test test-long bench lint openapi console console-pictures demo dist docker docker-test check-deploy version tag deny clean

CARGO ?= cargo
# Node, NATS and Python packages of tools/setup.sh.
export PATH := $(CURDIR)/target/tools/bin:$(PATH)

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build a release and serve on http://127.0.0.1:8080, data in ./data.
	$(CARGO) run --release --locked

setup: ## Install the tests' tools; `make test` does so, too.
	tools/setup.sh

test: ## Run all tests, or WHAT of: lint unit filter state log engine http resp project simulation crash process cluster linearizable redis clients console docs.
	tools/test.sh $(WHAT)

test-long: ## Run WHAT of the tests that take minutes to hours; tools/test-long.sh lists them.
	tools/test-long.sh $(WHAT)

bench: ## Run WHAT of the benchmarks; tools/bench.sh lists them.
	tools/bench.sh $(WHAT)

lint: ## Check format and lints of all packages; WHAT=openapi checks the OpenAPI document (npm).
	CUSTOM_LIBFUZZER_PATH=/nowhere/libfuzzer.a tools/lint.sh $(WHAT)

openapi: ## Write openapi/openapi.json from the code.
	$(CARGO) run --locked --quiet -- openapi > openapi/openapi.json.new
	mv openapi/openapi.json.new openapi/openapi.json

console: setup ## Build the console into assets/console; WHAT=pictures takes pictures, WHAT=cluster shows three real nodes.
	$(CARGO) test --locked --no-run --test process
	console/run.sh target/debug/cuckood $(or $(WHAT),build)

console-pictures: ## Take pictures of each page of the console in both languages, two widths and both themes into target/pictures.
	$(MAKE) console WHAT=pictures

demo: ## Send a million users and codes to a release build, kill and restart it; WHAT=cluster does so with three nodes.
	$(CARGO) build --release --locked --bin cuckood
	$(if $(filter cluster,$(WHAT)),deploy/cluster/demo.py target/release/cuckood "$$(tests/cluster/server.sh)",\
	    $(CARGO) run --release --locked --example demo -- target/release/cuckood)

dist: ## Build everything that a release contains into target/artifacts, or WHAT of: binary deb clients chart image sbom check.
	tools/dist.sh $(WHAT)

docker: ## Build the container image from source.
	docker build --tag cuckood .

docker-test: ## Build the container image with docker or buildah, and test it.
	tests/docker/run.sh

check-deploy: setup ## Check alerts, dashboard, unit, chart and Dockerfile (promtool, systemd, helm, hadolint).
	deploy/check.sh
	deploy/helm/check.sh

version: ## Set VERSION in all files that name it: make version VERSION=0.2.0.
	tools/version.sh $(VERSION)

tag: ## Check that TAG, such as v0.2.0, is the version of these sources, and that the changelog has its date.
	tools/version.sh $(TAG)

deny: ## Check licenses, sources and known vulnerabilities of all dependencies (cargo-deny; reads github.com).
	tools/dist/cargo.sh cargo-deny@0.20.2
	target/dist-tools/bin/cargo-deny --locked check $(DENY)

clean: ## Remove everything that was built.
	$(CARGO) clean
