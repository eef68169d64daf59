// SPDX-License-Identifier: Apache-2.0
#include "verify/cli_checkpoint.hpp"

#include <vector>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "verify/cli.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/report.hpp"

namespace tokenview {

std::unique_ptr<const Checkpoint> opened_checkpoint(const std::string& folder) {
  if (folder.empty()) return nullptr;
  auto checkpoint = std::make_unique<const Checkpoint>(folder);
  std::vector<std::string> unused;
  for (const auto& [module, count] : checkpoint->unused())
    unused.push_back(text(plural(count, "tensor"), " of ", printable(module)));
  if (!unused.empty())
    print_note(text(printable(folder), ": not of the text model, and not used: ", joined(unused)));
  return checkpoint;
}

}  // namespace tokenview
