# SPDX-License-Identifier: Apache-2.0
# The two commands of a fresh machine: each installs what is missing, builds, and runs.
.PHONY: verify test configure clean

# The main job: the reference model, and every parallel layout of it, against the recorded golden files.
verify: configure
	cmake --build --preset release --target tokenview_cli
	build/release/tokenview check
	build/release/tokenview check --matrix

# All tests.
test: configure
	cmake --build --preset release
	ctest --preset release

configure:
	@cmake/install-packages.sh
	cmake --preset release

clean:
	rm -rf build
