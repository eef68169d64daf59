// SPDX-License-Identifier: Apache-2.0
#include "verify/cost.hpp"

#include <algorithm>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

constexpr const char* purposes[] = {"target layers", "target exit",     "MTP layer",
                                    "MTP exit",      "embedding",       "fc",
                                    "logits",        "expert dispatch", "row counts"};

const char* purpose_of(const CollectiveRecord& call) {
  const bool mtp = call.module.starts_with("mtp");
  if (call.module == "runner") return "row counts";
  if (call.group != "tp") return "expert dispatch";
  if (call.module.find(".layers.") != std::string::npos) return mtp ? "MTP layer" : "target layers";
  if (call.module.empty()) return "logits";
  if (call.op == "all_reduce") return "embedding";
  // The projection's blocks are joined before the layer, rows after it.
  if (!mtp) return "target exit";
  return "fc";
}

}  // namespace

const CostLine& Cost::line(const std::string& purpose) const {
  static const CostLine none;
  const auto found = std::ranges::find(lines, purpose, &CostLine::purpose);
  return found == lines.end() ? none : *found;
}

Cost cost_of(const ParallelRun& run, double element_bytes) {
  std::vector<CollectiveRecord> calls;
  ParallelRun counted = run;
  counted.collectives = &calls;
  const ViewRunResult result = run_views(counted, false);
  if (!result.error.empty()) throw CommError(result.error);

  Cost cost;
  for (const char* purpose : purposes) cost.lines.push_back({purpose, 0, 0});
  bool after_mtp_layer = false;
  for (const CollectiveRecord& call : calls) {
    std::string purpose = purpose_of(call);
    if (purpose == "MTP layer") after_mtp_layer = true;
    if (purpose == "embedding") after_mtp_layer = false;
    if (purpose == "fc" && after_mtp_layer) purpose = "MTP exit";
    CostLine& line = *std::ranges::find(cost.lines, purpose, &CostLine::purpose);
    line.calls += 1;
    line.bytes += call.elements * element_bytes;
  }
  std::erase_if(cost.lines, [](const CostLine& line) { return line.calls == 0; });
  return cost;
}

}  // namespace tokenview
