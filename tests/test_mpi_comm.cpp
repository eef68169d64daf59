// SPDX-License-Identifier: Apache-2.0
// Run by mpirun: communicators over MPI against simulated ranks, and the whole program over them.
// Every process runs every case.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <csignal>
#include <cstdlib>

#include "comm_sim/transport/process_rank.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tests/boost_test.hpp"
#include "tests/host_comm_cases.hpp"
#include "tests/skip.hpp"
#include "verify/executor.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

struct RequireProcesses {
  RequireProcesses() {
    if (!process_rank()) skip_program("not started by mpirun");
  }
};

/// Layouts of all processes.
std::vector<ParallelConfig> layouts_of(std::int64_t size) {
  std::vector<ParallelConfig> layouts = {{.tp = size, .enable_expert_parallel = true},
                                         {.dp = size, .enable_expert_parallel = true}};
  if (size % 2 == 0) layouts.push_back({.tp = size / 2, .dp = 2, .enable_expert_parallel = true});
  if (size % 2 == 0) layouts.push_back({.tp = size / 2, .pp = 2});
  return layouts;
}

/// Five rows on one data-parallel rank, four on the next, and so on.
std::string requests_of(std::int64_t dp) {
  std::string words;
  for (std::int64_t rank = 0; rank < dp; ++rank) words += text(rank == 0 ? "" : "/", 5 - rank % 4);
  return words;
}

std::string in_words(const ParallelConfig& parallel) {
  return text("tp=", parallel.tp, " dp=", parallel.dp, " pp=", parallel.pp);
}

/// The first tap that is not that of the simulator to the bit.
std::string first_difference(const NumberRunResult& found, const NumberRunResult& expected) {
  if (found.error != expected.error)
    return text("error \"", found.error, "\", expected \"", expected.error, "\"");
  for (std::size_t rank = 0; rank < expected.taps.size(); ++rank) {
    const RankTaps &a = found.taps.at(rank), &b = expected.taps[rank];
    if (a.values.size() != b.values.size() || a.ids.size() != b.ids.size())
      return text("rank ", rank, ": ", a.values.size(), " taps, expected ", b.values.size());
    for (const auto& [name, values] : b.values)
      if (!host_comm_cases::same(a.values.at(name), values)) return text("rank ", rank, ": ", name);
    for (const auto& [name, ids] : b.ids)
      if (!host_comm_cases::same(a.ids.at(name), ids)) return text("rank ", rank, ": ", name);
  }
  return expected.taps.front().values.empty() ? "nothing compared" : "";
}

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireProcesses);

BOOST_DATA_TEST_CASE(processes_do_what_every_host_communicator_must,
                     data::xrange(host_comm_cases::all().size()), number) {
  const auto& the_case = host_comm_cases::all()[number];
  const std::string problem = the_case.run(process_world());
  BOOST_TEST(problem == "", the_case.name << ": " << problem);
}

BOOST_DATA_TEST_CASE(the_program_over_mpi_is_that_on_simulated_ranks_to_the_bit,
                     data::make({"S", "A", "D"}) * data::make({false, true}), protocol, wide) {
  const ModelConfig config = *preset("qwen3.5-moe");
  const SeededWeights weights(config, 7);
  for (const ParallelConfig& parallel : layouts_of(process_world().size())) {
    const ParallelRun run{
        .config = config,
        .plan = plan_for(config, parallel, parse_protocol(protocol)),
        .inputs = inputs_of(parse_requests(requests_of(parallel.dp), parallel.dp)),
        .draft_steps = 2};
    const NumberRunResult found =
        run_numbers_on({.comm = CommKind::mpi, .wide = wide}, run, weights);
    const NumberRunResult expected = run_numbers_on({.wide = wide}, run, weights);
    BOOST_TEST(first_difference(found, expected) == "", in_words(parallel));
  }
}

BOOST_AUTO_TEST_CASE(another_number_of_ranks_than_processes_is_refused) {
  const ModelConfig config = *preset("qwen3.5-moe");
  const SeededWeights weights(config, 7);
  const ParallelConfig one;
  const ParallelRun run{.config = config,
                        .plan = plan_for(config, one, ProtocolId::S),
                        .inputs = inputs_of(parse_requests("5", 1))};
  BOOST_CHECK_THROW(run_numbers_on({.comm = CommKind::mpi}, run, weights), ConfigError);
}

/// Not among the others: mpirun must end, with an error.
BOOST_AUTO_TEST_CASE(a_process_that_dies_ends_them_all, *boost::unit_test::disabled()) {
  Transport& world = process_world();
  host_comm_cases::error_of(world, {.tp = world.size()}, [&](auto& comms) {
    comms.tp.barrier();
    if (world.rank() == 1) std::raise(SIGKILL);
    comms.tp.barrier();
  });
}

}  // namespace tokenview
