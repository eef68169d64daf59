# SPDX-License-Identifier: Apache-2.0
# The two commands of a fresh machine: each installs what is missing, builds, and runs.
.PHONY: verify test configure clean

# The main job: the reference model, and every parallel layout of it, against the recorded golden files.
# The verdict is that of the report, which has what both found.
verify: configure
	cmake --build --preset release --target tokenview_cli
	@mkdir -p build/report
	-build/release/tokenview check -v --format jsonl > build/report/check.jsonl
	-build/release/tokenview check --matrix -v --format jsonl > build/report/matrix.jsonl
	build/release/tokenview report build/report/check.jsonl build/report/matrix.jsonl \
	  --html build/report/index.html --junit build/report/junit.xml
	@echo "The page: build/report/index.html"

# All tests.
test: configure
	cmake --build --preset release
	ctest --preset release

configure:
	@cmake/install-packages.sh
	cmake --preset release

clean:
	rm -rf build
