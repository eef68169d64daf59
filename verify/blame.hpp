// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verify/view_run.hpp"

namespace tokenview {

/// What a run hangs on.
struct Blame {
  std::optional<Finding> first;  // in program order over all ranks
  std::string stopped;           // what ended the run, where nothing was found before it
  std::string hangs_on;  // the collective, or where one is missing; the place, if it is none
};

/// Runs `run` on views and says what is to blame; nothing for a clean one.
std::optional<Blame> blame_of(const ParallelRun& run);

// For dumps whose program is not here: from what the ranks hold at each tap alone.

/// A view a rank of one tensor-parallel group, in rank order.
using GroupViews = std::vector<TokenView>;

/// What the views of a group are together: `full`, `full with pads`, `full in another order`,
/// `shard`, `shard in another order`, `partial`, `columns`, `x2`, `mixed rows`; of none of these,
/// `other rows`.
std::string placement_in_words(std::span<const TokenView> by_rank);

/// The move that brings a group from one placement, in those words, to another: "gather over tp and
/// trim to T", "all-reduce over tp". Empty: no single one does.
std::string move_between(const std::string& held, const std::string& required);

/// What the ranks of one group hold at a tap.
struct HeldTap {
  std::string name;                               // as of a NamedView: "target/model.norm"
  std::vector<std::optional<TokenView>> by_rank;  // nothing: it could not be told
  bool values_match = true;  // the rows, put together by their views, have the trusted values
};

/// For a tap's name what may be held there: any one of these.
using AllowedViews = std::map<std::string, std::vector<GroupViews>>;

/// What the protocol of `run` has at each of its named tensors, on the tp ranks of data-parallel
/// rank `dp`. Faults are left out. Empty where the protocol itself is wrong for these inputs.
AllowedViews allowed_views(const ParallelRun& run, std::int64_t dp = 0);

/// The same of every published protocol that is right for this model and these inputs: what may be
/// held where it is not known which one a dump is of. The plan of `run` gives the degrees alone.
AllowedViews allowed_by_any_protocol(const ParallelRun& run, std::int64_t dp = 0);

/// The first tap that leaves what is allowed.
struct TapBlame {
  std::size_t tap = 0;     // which of the taps
  std::int64_t rank = -1;  // the first with another view; -1: views are allowed and values differ
  std::string held;        // placement_in_words(), where the views of all ranks are known
  std::string held_rows;   // of all ranks: `[0,1][2,3]`, `[?]` of one that is not known
  std::string required;    // the nearest of what is allowed, likewise
  std::string required_rows;
  std::string after;   // the last tap before it that is as allowed; empty: none
  std::string repair;  // the move that is missing between the two; empty: no single one
};

/// The tap to blame; nothing where all are as allowed. Taps in program order. One of whose name
/// nothing is said in `allowed`, or of which no rank's view is known, is passed over. One whose
/// views are allowed and whose values are not the trusted ones is to blame as well.
std::optional<TapBlame> blame_taps(std::span<const HeldTap> taps, const AllowedViews& allowed);

/// "step0/mtp.norm: shard [0,1][2,3] where full [0,1,2,3][0,1,2,3] is required; right until
/// step0/mtp.fc. Missing: gather over tp and trim to T"
std::string to_string(const TapBlame& blame, const HeldTap& tap);

}  // namespace tokenview
