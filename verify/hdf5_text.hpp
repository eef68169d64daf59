// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace tokenview {

/// True when the bytes are UTF-8 as RFC 3629 has it: no overlong form, no surrogate.
bool is_utf8(const std::string& bytes);

/// `raw` on one line, shown as it is: control characters of ASCII and bytes that are not UTF-8 as
/// \xNN; as \uNNNN those of Unicode (U+0080 to U+009F), line and paragraph separators, and what
/// turns the direction of the text around it (U+202A to U+202E, U+2066 to U+2069).
std::string escaped(const std::string& raw);

/// The same for a message: no more than about 200 characters of it.
std::string printable(const std::string& raw);

}  // namespace tokenview
