// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace tokenview {

/// docs/protocols.md: every protocol side by side, from symbolic runs of this program, so that the
/// page cannot say what the program does not do. `tokenview --generate protocols` prints it.
std::string protocol_page();

}  // namespace tokenview
