// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace tokenview {

/// True when the bytes are UTF-8 as RFC 3629 has it: no overlong form, no surrogate.
bool is_utf8(const std::string& bytes);

/// `raw` for a message of one line: control characters and bytes that are not UTF-8 as \xNN, and
/// no more than about 200 characters of it.
std::string printable(const std::string& raw);

}  // namespace tokenview
