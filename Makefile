# Verbs over Meson and Ninja, for those who don't want to remember them. `make help` lists them.
.POSIX:
CC = gcc

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

build: ## build/: optimised, with checks and symbols
	@test -f build/build.ninja || CC=$(CC) meson setup build
	@ninja -C build

release: ## build-release/: as users get it
	@test -f build-release/build.ninja || CC=$(CC) meson setup build-release --buildtype=release
	@ninja -C build-release

test: ## everything that must pass (scripts/test.sh; about ten minutes on two cores)
	@scripts/test.sh

check: build ## the quick part: house rules and the tests, without sanitizers
	@scripts/test.sh quick

asan: ## the tests under ASan and UBSan (clang), in build-asan/
	@test -f build-asan/build.ninja || CC=clang-14 meson setup build-asan -Dbuildtype=debug -Doptimization=1 \
	  -Db_lundef=false -Db_sanitize=address,undefined -Dc_args=-fno-sanitize-recover=all
	@LSAN_OPTIONS=suppressions=$$PWD/scripts/lsan.supp:print_suppressions=0 \
	  meson test -C build-asan --print-errorlogs --timeout-multiplier 6

tsan: ## the tests under TSan (clang), in build-tsan/
	@test -f build-tsan/build.ninja || CC=clang-14 meson setup build-tsan -Dbuildtype=debug -Doptimization=1 \
	  -Db_lundef=false -Db_sanitize=thread -Dmpi=disabled
	@setarch -R meson test -C build-tsan --print-errorlogs --timeout-multiplier 10

fuzz: ## every fuzz target for a minute (scripts/fuzz.sh TARGET SECONDS for one)
	@scripts/fuzz.sh

bench: release ## the micro-benchmarks
	@meson test -C build-release --benchmark --verbose --num-processes 1

format: ## lay out all C as .clang-format says
	@scripts/check_format.sh --fix

demo: ## fetch a small model and ask it something, on one rank and on two
	@scripts/demo.sh

clean: ## remove every build folder (build*/) and output/
	@rm -rf build build-* output

.PHONY: help build release test check asan tsan fuzz bench format demo clean
