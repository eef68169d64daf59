// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/transport/process_rank.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

std::int64_t number(const char* name, std::int64_t least, std::int64_t most) {
  const char* const value = variable(name);
  if (value == nullptr) throw UsageError(text(name, ": is not set, expected a number"));
  const std::string_view word(value);
  std::int64_t found = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), found);
  if (error != std::errc() || end != word.data() + word.size() || found < least || found > most)
    throw UsageError(
        text(name, ": found \"", word, "\", expected a number from ", least, " to ", most));
  return found;
}

ProcessRank rank_from(ProcessRank::Launcher launcher, const char* rank, const char* size,
                      const char* local_rank) {
  constexpr std::int64_t most_ranks = 65536;
  ProcessRank found{launcher, 0, number(size, 1, most_ranks), 0};
  found.rank = number(rank, 0, found.size - 1);
  found.local_rank = variable(local_rank) == nullptr ? 0 : number(local_rank, 0, found.size - 1);
  return found;
}

}  // namespace

std::optional<ProcessRank> process_rank() {
  using enum ProcessRank::Launcher;
  if (variable("OMPI_COMM_WORLD_SIZE") != nullptr)
    return rank_from(mpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                     "OMPI_COMM_WORLD_LOCAL_RANK");
  if (variable("PMI_SIZE") != nullptr)
    return rank_from(mpirun, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID");
  if (variable("RANK") != nullptr || variable("WORLD_SIZE") != nullptr)
    return rank_from(torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK");
  return std::nullopt;
}

MeetingPlace meeting_place() {
  const char* const host = variable("MASTER_ADDR");
  if (host == nullptr) throw UsageError("MASTER_ADDR: is not set, expected the machine of rank 0");
  auto port = number("MASTER_PORT", 1, 65534);
  // torchrun may keep a store of its own at that port, and says so.
  const char* const store = variable("TORCHELASTIC_USE_AGENT_STORE");
  if (store != nullptr && std::string_view(store) == "True") ++port;
  return {host, std::uint16_t(port)};
}

}  // namespace tokenview
