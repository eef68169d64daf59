// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/config.hpp"

namespace tokenview {

/// One rank's ends of its groups; a mesh keeps them while the rank runs.
template <class Comm>
struct Comms {
  RankCoordinates at;
  Comm &tp, &dp, &ep, &pp;
};

}  // namespace tokenview
