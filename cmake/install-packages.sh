#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing to build tokenview on Debian 12 or Ubuntu 24.04. Without network or rights
# it names the missing packages; it asks for neither when nothing is missing.
set -euo pipefail

# Package, and a command or file that does as well when it came from elsewhere.
required=(
  g++:g++
  cmake:cmake
  ninja-build:ninja
  libeigen3-dev:/usr/include/eigen3/Eigen/Core
  libhdf5-dev:/usr/include/hdf5/serial/hdf5.h
  zlib1g-dev:/usr/include/zlib.h
  libboost-dev:/usr/include/boost/version.hpp
  libcli11-dev:/usr/include/CLI/CLI.hpp
  libfmt-dev:/usr/include/fmt/format.h
  nlohmann-json3-dev:/usr/include/nlohmann/json.hpp
)
# The build does without these: Boost.Test from headers, ucontext for Boost.Context, no property
# tests, no MPI, no validation of scenarios and reports against their schemas, no test of the page.
optional=(
  libboost-test-dev
  libboost-context-dev
  librapidcheck-dev
  libopenmpi-dev
  openmpi-bin
  python3-jsonschema
  libxml2-utils
  chromium
)

# is_there PACKAGE [COMMAND|/FILE]
is_there() {
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]] && return
  case "${2:-}" in
    "") false ;;
    /*) [[ -e "$2" ]] ;;
    *) command -v "$2" >/dev/null ;;
  esac
}

missing=()
for entry in "${required[@]}"; do
  is_there "${entry%%:*}" "${entry#*:}" || missing+=("${entry%%:*}")
done
missing_optional=()
for package in "${optional[@]}"; do
  is_there "$package" || missing_optional+=("$package")
done
wanted=("${missing[@]}" "${missing_optional[@]}")
[[ ${#wanted[@]} -gt 0 ]] || exit 0

# Nothing required is missing: the build goes on without the rest. Else: a clear end.
give_up() {
  if [[ ${#missing[@]} -eq 0 ]]; then
    echo "tokenview: $1; building without ${missing_optional[*]}" >&2
    exit 0
  fi
  echo "tokenview: $1. Missing packages (Debian and Ubuntu names): ${wanted[*]}" >&2
  exit 1
}

command -v apt-get >/dev/null || give_up "there is no apt-get to install packages with"
as_root=()
if [[ "$(id -u)" -ne 0 ]]; then
  command -v sudo >/dev/null || give_up "installing packages needs root or sudo"
  as_root=(sudo)
fi
echo "tokenview: installing ${wanted[*]}"
# Of the optional ones those that this system has: Ubuntu has no package chromium.
install() {
  local known=("${missing[@]}") package
  for package in "${missing_optional[@]}"; do
    if apt-cache show "$package" >/dev/null 2>&1; then known+=("$package"); fi
  done
  [[ ${#known[@]} -gt 0 ]] || return 0
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${known[@]}"
}
{ "${as_root[@]}" apt-get update -q && install; } || give_up "apt-get could not install packages"
