// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "verify/cli.hpp"
#include "verify/cli_executor.hpp"

namespace tokenview {

/// What `check --matrix` was asked for.
struct MatrixArguments {
  bool quick = true;
  std::vector<std::string> goldens;  // files
  std::string checkpoint;            // has the weights of files without any; empty: none
  std::vector<std::int64_t> tp, dp;  // empty: all
  std::vector<std::int64_t> tokens;  // prefixes alone; empty: cases, and prefixes where not quick
  std::vector<std::string> protocols, cases;
  std::optional<std::string> shard;  // "2/8"; empty: see share_of()
  std::vector<std::string> merge;    // files of parts: nothing is run
  ExecutorArguments executor;
  Rounding rounding = Rounding::hf;  // of bfloat16 files
  int num_threads = 1;               // on the CPU, with simulated ranks
  int verbosity = 0;
  OutputFormat format = OutputFormat::text;
};

/// Runs every parallel configuration of the golden files on simulated ranks, with numbers and with
/// views, or its part of them, and puts the parts together. Exit::match: every verdict is as
/// expected.
Exit run_matrix_check(const MatrixArguments& arguments);

}  // namespace tokenview
