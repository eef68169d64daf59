// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace tokenview {

/// What the environment says of the process: one rank of several, or on its own.
struct ProcessRank {
  enum class Launcher { mpirun, torchrun } launcher;
  std::int64_t rank, size;
  std::int64_t local_rank;  // on its machine: which GPU
};

/// The rank that mpirun (OMPI_COMM_WORLD_RANK and _SIZE, or PMI_RANK and _SIZE) or torchrun (RANK
/// and WORLD_SIZE) gave this process; mpirun's where both are set. Nothing where neither is. Throws
/// UsageError for values that make no sense.
std::optional<ProcessRank> process_rank();

/// Where the ranks of torchrun meet: MASTER_ADDR and MASTER_PORT. Throws UsageError where one is
/// not set.
struct MeetingPlace {
  std::string host;
  std::uint16_t port = 0;
};
MeetingPlace meeting_place();

}  // namespace tokenview
