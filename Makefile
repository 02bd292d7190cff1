# Everything a contributor types. Needs Go 1.26, make and a C compiler (for the
# race detector); `make help` lists the targets, the README says how to get the three.

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Go brings its own toolchain choice. The race detector alone needs cgo. All else is compiled as the gateway
# ships (scripts/build), without cgo and with its tag, so that no package is compiled for it once more.
export CGO_ENABLED = 0
TAGS = grpcnotrace
# Without the checkout's path in them, clones and worktrees share what was compiled.
export GOFLAGS := $(strip $(shell go env GOFLAGS 2>/dev/null) -trimpath)

# The modules that go.work joins, and all their packages.
MODULES  = . bench examples/analytics examples/execution examples/linearizer gateway weirgrpc weirkafka weirpgx weirredis
PACKAGES = $(patsubst ././...,./...,$(MODULES:%=./%/...))

# The compiler, vet, staticcheck and tests that simulate make much garbage, and keep little. Collected a quarter
# as often they take a fifth less of the processor's time. What runs before real servers collects as it ships.
SELDOM = 400

CACHE       := .cache
STATICCHECK := $(CACHE)/bin/staticcheck
H2SPEC      := $(CACHE)/bin/h2spec
RATELIMIT   := $(CACHE)/bin/ratelimit
NFPM        := $(CACHE)/bin/nfpm
KUBECTL     := $(CACHE)/bin/kubectl-validate
COMPOSE     := $(CACHE)/bin/compose
ACTIONLINT  := $(CACHE)/bin/actionlint
BIN         := bin/weir

# What `make run` passes to the binary: the demo, unless ARGS says otherwise.
ARGS ?= demo

VERSION ?= $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo devel)

FUZZTIME  ?= 30s
BENCHARGS ?=
BOARDARGS ?=

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "make %-22s %s\n", $$1, $$2}'

.PHONY: build
build: need-go ## build bin/weir, a static binary; needs no C compiler
	@mkdir -p bin
	scripts/build $(BIN) -ldflags "-s -w -X main.version=$(VERSION)"

.PHONY: run
run: build ## build and run the demo; make run ARGS="run --upstream http://127.0.0.1:3000" runs your own
	@exec $(BIN) $(ARGS)

# The servers are fetched while checks and unit tests compute. Nothing else runs beside the tests with real servers:
# simulations there saved no time, and disturbed them.
.PHONY: test
test: need-cc ## everything: checks, unit tests with -race, tests against real nginx, gunicorn, Redis, Envoy, PostgreSQL, MariaDB, Kafka and Prometheus
	@$(MAKE) --no-print-directory --output-sync=target -j 3 parts test-checked
	@$(MAKE) --no-print-directory test-integration
	@echo "all tests passed"

.PHONY: test-checked
test-checked: check
	@$(MAKE) --no-print-directory --output-sync=target test-race test-plain

.PHONY: test-short
test-short: need-cc check test-unit ## make test without the real servers

# The race detector makes a simulation ten times longer. The scoreboard's tests run without
# it. Of the others it sees what -short leaves; what that leaves out simulates, or counts many keys,
# on one goroutine, and runs without it: LONG here, the linearizer's plot in test-integration. What deptest,
# the simulator, the wait room and all controllers but Probe do has no goroutines: deps runs the first, and
# tests of the gates, the peers and weir sim run the others under it. The race detector does not see raw sockets at work,
# so their tests and Kafka's run once more without. The time-outs are for what hangs, on any machine.
# `make check` vets all packages with their tests, so go test does not do it once more. Without tables
# of symbols a test links in two thirds of the time; stack traces do not need them. Packages without
# tests are compiled by `make check`, and not once more for the race detector.
GOTEST = go test -vet=off -ldflags='-s -w' -timeout 30m
RACE   = CGO_ENABLED=1 $(GOTEST) -race $(PLAIN)
TESTED = go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $(PACKAGES)
LONG   = ./sim ./bench/internal/peers ./gateway/internal/cli ./gateway/internal/demo ./keyed ./limit ./quota

# For the race detector, large modules of others are compiled without optimizing: it sees the same of them in half
# of the compiler's time. All are compiled for it: beside a package that is not, encoding/json seems to race with itself.
PLAIN  = $(foreach m,github.com/jackc github.com/redis github.com/twmb k8s.io modernc.org,-gcflags=$m/...='-N -l')

# Tests with the race detector wait much, also the second that each process takes to end, and the others compute. So both
# run side by side. Those that take longest begin first.
FIRST = ./gateway/internal/server ./gateway/internal/kafka ./examples/linearizer ./gateway/internal/rpc ./weirhttp ./bench/internal/live

.PHONY: test-unit
test-unit: need-go
	@$(MAKE) --no-print-directory --output-sync=target -j 2 test-race test-plain

test-race test-plain: export GOGC = $(SELDOM)

.PHONY: test-race
test-race:
	$(RACE) -short -p 3 $(FIRST) $$($(TESTED) | grep -v -e '/weir/control$$' -e '/weir/sim$$' -e '/bench/internal/board$$' -e '/internal/deptest$$' -e '/internal/room$$')
	$(RACE) -run Probe ./control

.PHONY: test-plain
test-plain:
	$(GOTEST) -tags $(TAGS) ./bench/internal/board ./control ./gateway/internal/kafka ./internal/rawconn ./internal/room $(LONG)

# Without -race: the load generator shares the machine with what it loads.
# The packages of the gateway ran with it in test-unit. The suites wait for other
# processes most of the time, so they run side by side, and those that take longest begin first.
.PHONY: test-integration
test-integration: need-go parts
	$(GOTEST) -tags integration,$(TAGS) -count=1 -run '^TestDefinitions$$' ./gateway/internal/kafka/
	$(GOTEST) -tags integration,$(TAGS) -count=1 -p 3 -parallel 8 ./gateway/integration/ ./bench/kafka/ ./examples/linearizer/ ./weirkafka/ ./examples/analytics/ ./bench/sql/ ./weirredis/ ./examples/execution/ ./weirpgx/

.PHONY: test-redis
test-redis: need-go ## the tests of the store alone; make test-redis WEIR_REDIS_SERVER=/path/to/redis-server: against that one
	go test -tags integration -count=1 -parallel 8 -timeout 30m ./weirredis/

.PHONY: test-pgx
test-pgx: need-go parts ## pgx's own tests of pgxpool and stdlib, behind weirpgx and weirsql's connector; two minutes
	go test -tags 'integration suites' -count=1 -v -timeout 30m -run TestPgxSuites ./weirpgx/

.PHONY: test-kafka-suites
test-kafka-suites: need-go parts ## franz-go's own tests and Kafka's own, through the gateway and at the brokers; an hour
	@scripts/parts kafka-suites
	go test -tags 'integration suites' -count=1 -v -timeout 3h -run 'Suites$$' ./gateway/integration/

.PHONY: soak-envoy
soak-envoy: need-go parts ## 20 reloads and 5 drains of two gateways behind an Envoy, under load: none lost, none unseen; two minutes
	WEIR_LONG=1 go test -tags integration -count=1 -v -timeout 30m -run 'TestEnvoyReloadsAndDrains$$' ./gateway/integration/

.PHONY: soak-kafka
soak-kafka: need-go parts ## three brokers and two gateways restart in turn, under producers and consumers: nothing lost, doubled or out of order; two minutes
	WEIR_LONG=1 go test -tags integration -count=1 -v -timeout 30m -run 'TestKafkaClusterBehindTwoGateways$$' ./gateway/integration/

.PHONY: soak-http
soak-http: need-go ## clients, targets, Envoys and reloads at random, with the race detector: no slot is lost; eight minutes
	CGO_ENABLED=1 WEIR_LONG=1 go test -race -tags $(TAGS) -count=1 -v -timeout 30m -run 'TestChaos' ./gateway/internal/server/ ./gateway/internal/envoy/

.PHONY: soak-sql
soak-sql: need-go parts ## pools of a PostgreSQL used at random while connections are killed: no slot is lost; half a minute
	CGO_ENABLED=1 WEIR_LONG=1 go test -race -tags integration -count=1 -v -timeout 30m -run 'TestChaos' ./weirpgx/

.PHONY: parts
parts: servers $(H2SPEC) $(RATELIMIT) ## install the real servers that the integration tests run against

# First of the parts: it waits for the network, and the others compute.
.PHONY: servers
servers:
	@scripts/parts

.PHONY: check
check: fmt vet lint deps ## format, vet, lint, dependency directions

.PHONY: docs
docs: need-go ## write the generated pages of docs/reference, and the schema, anew
	go test ./gateway/internal/config -update
	go test ./gateway/internal/cli -run CommandsPage -update
	go test ./gateway/internal/demo -run ScreenOfTheDocs -update
	go test ./examples/textbook -update

.PHONY: fmt
fmt: need-go
	@bad=$$(gofmt -l .); \
	if [ -n "$$bad" ]; then echo "not formatted; run gofmt -w on:"; echo "$$bad"; exit 1; fi
	@echo "fmt: ok"

vet lint deps $(STATICCHECK) $(H2SPEC) $(RATELIMIT): export GOGC = $(SELDOM)
# They run beside the fetching of servers. Above this much memory each of them collects more often again.
vet lint deps $(STATICCHECK) $(H2SPEC) $(RATELIMIT): export GOMEMLIMIT = 1500MiB

# One benchmark has this client of Redis, and no test runs it: to be read, it need not be optimized.
vet lint: export GOFLAGS += '-gcflags=github.com/redis/go-redis/...=-N -l'

.PHONY: vet
vet: need-go
	go vet -tags integration,$(TAGS) $(PACKAGES)

# After vet: side by side, each would compile what both read.
lint deps: vet

.PHONY: lint
lint: $(STATICCHECK)
	$(STATICCHECK) -tags integration,$(TAGS) $(PACKAGES)

$(STATICCHECK): internal/tools/go.mod internal/tools/go.sum
	@mkdir -p $(@D)
	cd internal/tools && GOWORK=off go build -o $(abspath $@) honnef.co/go/tools/cmd/staticcheck

$(NFPM): internal/tools/go.mod internal/tools/go.sum
	@mkdir -p $(CACHE)/bin
	cd internal/tools && GOWORK=off go build -o $(abspath $@) github.com/goreleaser/nfpm/v2/cmd/nfpm

$(H2SPEC): internal/tools/go.mod internal/tools/go.sum
	@mkdir -p $(@D)
	cd internal/tools && GOWORK=off go build -o $(abspath $@) github.com/summerwind/h2spec/cmd/h2spec

$(ACTIONLINT): internal/tools/go.mod internal/tools/go.sum
	@mkdir -p $(@D)
	cd internal/tools && GOWORK=off go build -o $(abspath $@) github.com/rhysd/actionlint/cmd/actionlint

# It has a module of its own: what it brings is in no other.
$(RATELIMIT): internal/tools/ratelimit/go.mod internal/tools/ratelimit/go.sum
	@mkdir -p $(@D)
	cd internal/tools/ratelimit && GOWORK=off go build -o $(abspath $@) github.com/envoyproxy/ratelimit/src/service_cmd

$(KUBECTL): internal/tools/manifests/go.mod internal/tools/manifests/go.sum
	@mkdir -p $(@D)
	cd internal/tools/manifests && GOWORK=off go build -o $(abspath $@) sigs.k8s.io/kubectl-validate

$(COMPOSE): internal/tools/manifests/go.mod internal/tools/manifests/go.sum
	@mkdir -p $(@D)
	cd internal/tools/manifests && GOWORK=off go build -o $(abspath $@) github.com/compose-spec/compose-go/v2/cmd

.PHONY: deps
deps: need-go
	$(GOTEST) -count=1 ./internal/deptest
	@go mod verify >/dev/null
	@for m in $(MODULES); do \
		(cd $$m && GOWORK=off go mod tidy -diff) || { echo "$$m/go.mod: run go mod tidy there"; exit 1; }; \
	done
	@echo "deps: ok"

.PHONY: scoreboard
scoreboard: need-go ## simulate every scenario under every controller; BOARDARGS="-merge -controllers default": one column again
	go run ./bench/cmd/scoreboard $(BOARDARGS)

ORDERARGS ?=

.PHONY: goodput-plot
goodput-plot: need-go ## draw the README's picture: good answers against offered load, with weir and without
	go run ./bench/cmd/scoreboard -goodput docs/scoreboard/plots

.PHONY: belief-plot
belief-plot: need-go ## draw the picture of docs/explain/limiter.md: a belief that narrows
	go run ./bench/cmd/scoreboard -belief docs/scoreboard/plots

.PHONY: scoreboard-order
scoreboard-order: need-go ## simulate who goes first: priorities, fairness, exemption, nesting
	go run ./bench/cmd/scoreboard -group order $(ORDERARGS)

.PHONY: scoreboard-lag
scoreboard-lag: need-go ## simulate databases before a consumer that falls behind: one lag for all, damped, the largest first
	go run ./bench/cmd/scoreboard -group lag

PEERARGS ?=

.PHONY: scoreboard-order-peers
scoreboard-order-peers: need-go ## the same for other projects' limiters that rank or share; PEERARGS="-peers weir": one row of each table again
	go test ./bench/internal/peers -run '^TestOrder$$' -count 1 -v -timeout 1h -out $(CURDIR)/docs/scoreboard $(PEERARGS)

.PHONY: scoreboard-peers
scoreboard-peers: need-go ## run other projects' limiters before the same backends, most of an hour
	go test ./bench/internal/peers -run '^TestScoreboard$$' -count 1 -v -timeout 3h -out $(CURDIR)/docs/scoreboard $(PEERARGS)

LIVEARGS ?= -o docs/scoreboard

.PHONY: scoreboard-live
scoreboard-live: build ## the scoreboard on real servers, an hour; LIVEARGS=-quick: a minute, nothing written
	go run ./bench/cmd/live -weir $(BIN) $(LIVEARGS)

LIVEORDERARGS ?= -o docs/scoreboard

.PHONY: scoreboard-live-order
scoreboard-live-order: build ## who goes first, on real servers, 20 minutes; LIVEORDERARGS="-rows S15,S21": these alone, printed
	go run ./bench/cmd/live -weir $(BIN) -parts order -name live-order $(LIVEORDERARGS)

LIVEENVOYARGS ?= -name live-envoy -o docs/scoreboard

.PHONY: scoreboard-live-envoy
scoreboard-live-envoy: build parts ## the gateway behind an Envoy that asks it, beside itself and Envoy's own filter, on real servers, 16 minutes
	go run ./bench/cmd/live -weir $(BIN) -envoy .cache/bin/envoy -parts gateway,order -rows 2x,half,S12,S13 -guards fixed,weir,"weir behind Envoy",Envoy $(LIVEENVOYARGS)

CALLERSARGS ?=

.PHONY: live-callers
live-callers: build ## clients that cooperate, that do not, and both, before a gateway, half an hour; CALLERSARGS=-quick: a minute
	go run ./bench/cmd/callers -weir $(BIN) $(CALLERSARGS)

ANALYTICSARGS ?=

.PHONY: analytics
analytics: build parts ## an analytical service in a wave of heavy queries, twelve minutes; ANALYTICSARGS="-plot /tmp/plots -runs nothing,gateway"
	@go build -trimpath -o bin/analytics ./examples/analytics
	@exec bin/analytics $(ANALYTICSARGS)

SQLARGS ?=

.PHONY: bench-sql
bench-sql: need-go parts ## sizes and controllers before a real PostgreSQL, hours; SQLARGS="-workloads point -rounds 1", SQLARGS="-storm -window 8s"
	go run ./bench/sql $(SQLARGS)

BENCHKAFKAARGS ?=

.PHONY: bench-kafka
bench-kafka: build parts ## the gateway before a real Kafka beside a direct connection and nginx, ten minutes; BENCHKAFKAARGS="-parts plain -rounds 3"
	go run ./bench/kafka -weir $(BIN) $(BENCHKAFKAARGS)

EXECUTIONARGS ?= -plot bin/execution.svg

.PHONY: execution
execution: need-go parts ## a small database server with admission as in MongoDB, under three controllers, five minutes; EXECUTIONARGS="-serve 127.0.0.1:8017"
	@go build -trimpath -o bin/execution ./examples/execution
	@exec bin/execution $(EXECUTIONARGS)

LIVELINEARIZERARGS ?= -work 4ms

.PHONY: linearizer-live
linearizer-live: need-go parts ## an API before a consumer of Kafka, by the lag, by the drain, and without admission, five minutes
	@go build -trimpath -o bin/linearizer ./examples/linearizer
	@exec bin/linearizer live $(LIVELINEARIZERARGS)

KILLSARGS ?=

.PHONY: linearizer-kills
linearizer-kills: need-go parts ## kill 50 of its processes under load, and compare the store with the clients' log; KILLSARGS="-seed 7"
	@go build -trimpath -o bin/linearizer ./examples/linearizer
	@exec bin/linearizer kills $(KILLSARGS)

.PHONY: bench
bench: build $(RATELIMIT) ## measure the gates beside their peers, as ratios in one run
	go run ./bench/cmd/cost $(BENCHARGS)
	bench/internal/cost/callgrind.sh
	go run ./bench/gateway -weir $(BIN)
	@scripts/parts
	go run ./bench/redis
	go run ./bench/ratelimit -weir $(BIN)

.PHONY: fuzz
fuzz: need-go ## run each fuzz target for 30 s (FUZZTIME)
	@scripts/fuzz $(FUZZTIME)

.PHONY: dist
dist: need-go $(NFPM) ## build what is published into dist/: binaries, .deb, .rpm, images, list of modules, checksums
	@scripts/dist

.PHONY: test-dist
test-dist: need-go $(NFPM) test-manifests ## build dist/ twice, compare, and hold the sizes; as root on Debian: install the .deb and run the image
	@scripts/test-dist

.PHONY: newcomer
newcomer: need-go ## walk through the README on a fresh Debian, and print the seconds of each step; needs root
	@scripts/newcomer

.PHONY: test-manifests
test-manifests: $(KUBECTL) $(COMPOSE) $(ACTIONLINT) ## check the examples against the schemas of Kubernetes and Compose, and the workflows; builds their tools, minutes
	$(KUBECTL) --version 1.30 packaging/kubernetes
	$(COMPOSE) packaging/compose.yaml >/dev/null
	$(ACTIONLINT)
	@echo "manifests: ok"

.PHONY: test-release
test-release: need-go ## prepare a release from what is committed, and go install the gateway from it
	@scripts/test-release

SITE := $(CACHE)/site

.PHONY: site
site: $(SITE)/installed ## the docs as a site in dist/site (needs Python; Sphinx comes from PyPI, once)
	@$(SITE)/bin/sphinx-build -q -W --keep-going -c scripts/site -d $(SITE)/trees docs dist/site
	@cp dist/site/README.html dist/site/index.html
	@echo "open dist/site/index.html"

$(SITE)/installed: scripts/site/requirements.txt
	@rm -rf $(SITE)
	python3 -m venv $(SITE)
	$(SITE)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

.PHONY: clean
clean: ## remove what was built and installed here
	rm -rf bin dist $(CACHE)

.PHONY: need-go need-cc
need-go:
	@command -v go >/dev/null || { echo "weir needs Go 1.26: the first screen of the README says how to get it"; exit 1; }
need-cc: need-go
	@command -v "$$(go env CC | cut -d' ' -f1)" >/dev/null || { echo "the race detector needs a C compiler: apt-get install gcc libc6-dev"; exit 1; }
