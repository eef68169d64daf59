// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

namespace tokenview {

/// The files of verify/report_page, embedded when the program is built (cmake/embed_files.cmake).
extern const std::string_view report_page_html, report_page_css, report_page_js;

}  // namespace tokenview
