// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <iosfwd>

#include "verify/report.hpp"
#include "verify/view_run.hpp"

namespace tokenview {

/// The rows of every rank at every named tensor, one line each, in program order:
/// `model.layers.0.mlp  [0,1,2][3,4,5][6,7,8][9,PAD,PAD]`, with what a value misses behind it;
/// `[0,1,2] on all 4` where all ranks hold the same rows.
/// In colour pads are dim and mixtures red.
void print_views(std::ostream& out, const ViewRunResult& result, bool colour = false);

/// The rows of all ranks as a map: `[0,1,2][3,4,5][6,7,8][9,PAD,PAD]`.
std::string row_map(const NamedView& view);

/// The first findings, one line each, and how many more there are.
void print_findings(std::ostream& out, const ViewRunResult& result, std::size_t most = 20);

/// "tp=4 dp=1 ep", with pp where there are stages.
std::string in_words(const ParallelConfig& parallel);

/// What every rank held at every named tensor, and the collectives between them, in program order:
/// records of the kinds "view" and "collective".
std::vector<ReportRecord> view_records(const ViewRunResult& result);

/// A tensor of one data-parallel rank beside the trusted one, as a record of kind "tap". `name` has
/// its pass: "target/model.norm". Metric, observed and allowed are the caller's.
ReportRecord tap_record(const std::string& name, std::int64_t dp, bool failed,
                        const std::vector<double>& row_ratios);

/// A finding as a record of kind "finding"; the same of a run of views, with the tensor that was
/// named last before it.
ReportRecord finding_record(const Finding& finding);
ReportRecord finding_record(const Finding& finding, const ViewRunResult& result);

}  // namespace tokenview
