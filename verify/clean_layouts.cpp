// SPDX-License-Identifier: Apache-2.0
#include "verify/clean_layouts.hpp"

#include <algorithm>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/golden_case.hpp"
#include "verify/placed_tap.hpp"
#include "verify/tap_order.hpp"
#include "verify/view_run.hpp"

namespace tokenview {
namespace {

CleanLayout layout_of(const ViewRunResult& run, const ParallelConfig& parallel,
                      const std::vector<GoldenInputs>& inputs) {
  CleanLayout layout;
  for (const NamedView& view : run.views) {
    std::vector<TokenView>& of_world = layout.views[view.name];
    of_world.resize(std::size_t(parallel.world_size()));
    for_each_holder(view, parallel, [&](const RankCoordinates& at, const ViewOps::Tensor& held) {
      of_world[std::size_t(at.world)] = as_in_files(held, view.name, inputs);
    });
  }
  return layout;
}

}  // namespace

TokenView as_in_files(TokenView view, const std::string& tap,
                      const std::vector<GoldenInputs>& inputs) {
  if (tap_place(tap).pass <= 0) return view;
  Rows requests;
  for (std::int64_t i = 0; i < view.rows.size(); ++i) {
    RowRun row = view.rows.at(i);
    if (row.kind == RowKind::token) {
      const std::vector<std::int32_t>& starts = inputs[std::size_t(row.dp)].query_start_loc;
      row.first = std::int32_t(std::ranges::upper_bound(starts, row.first) - starts.begin()) - 1;
    }
    requests.append(row);
  }
  view.rows = requests;
  return view;
}

const TokenView* CleanLayout::find(const std::string& tap, std::int64_t world) const {
  const auto found = views.find(tap);
  return found == views.end() ? nullptr : &found->second[std::size_t(world)];
}

std::vector<CleanLayout> clean_layouts(const ModelConfig& config, const ParallelConfig& parallel,
                                       const std::vector<GoldenInputs>& inputs,
                                       std::int64_t draft_steps) {
  std::vector<CleanLayout> layouts;
  for (const ProtocolId protocol : all_protocols()) {
    try {
      require_simulable(config, parallel, draft_steps);
      ParallelRun run{.config = config,
                      .plan = plan_for(config, parallel, protocol),
                      .draft_steps = std::size_t(draft_steps)};
      for (const GoldenInputs& of_dp : inputs) {
        auto [context, step] = case_batches(of_dp);
        run.inputs.push_back({std::move(context), std::move(step)});
      }
      const ViewRunResult views = run_views(run, true);
      if (!views.clean()) continue;
      CleanLayout layout = layout_of(views, parallel, inputs);
      if (std::ranges::any_of(
              layouts, [&](const CleanLayout& other) { return other.views == layout.views; }))
        continue;
      layout.protocol = to_string(protocol);
      layouts.push_back(std::move(layout));
    } catch (const ConfigError&) {  // another model's protocol, or ranks that it does not take
    }
  }
  return layouts;
}

}  // namespace tokenview
