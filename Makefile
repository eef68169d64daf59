# SPDX-License-Identifier: Apache-2.0
# The two commands of a fresh machine: each installs what is missing, builds, and runs.
.PHONY: verify test build packages clean

# The main job: the reference model against every recorded golden file.
verify: build
	build/release/tokenview check

# All tests.
test: build
	ctest --preset release

build: packages
	cmake --preset release
	cmake --build --preset release

packages:
	@cmake/install-packages.sh

clean:
	rm -rf build
