// SPDX-License-Identifier: Apache-2.0
// Communicators in host memory, between threads, against simulated ranks.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <mutex>

#include "comm_sim/sim_mesh.hpp"
#include "comm_sim/transport/thread_transport.hpp"
#include "tests/boost_test.hpp"
#include "tests/host_comm_cases.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

/// What was wrong on the ranks of `world`, one behind the other.
template <class Run>
std::string problems(ThreadWorld& world, Run run) {
  std::mutex mutex;
  std::string all;
  world.run([&](Transport& mine) {
    const std::string problem = run(mine);
    const std::lock_guard lock(mutex);
    if (!problem.empty()) all += text("rank ", mine.rank(), ": ", problem, '\n');
  });
  return all;
}

}  // namespace

BOOST_DATA_TEST_CASE(threads_do_what_every_host_communicator_must,
                     data::make({2, 3, 4, 8}) * data::xrange(host_comm_cases::all().size()), size,
                     number) {
  const auto& the_case = host_comm_cases::all()[number];
  ThreadWorld world(size);
  const std::string found = problems(world, the_case.run);
  BOOST_TEST(found.empty(), the_case.name << ": " << found);
}

BOOST_AUTO_TEST_CASE(a_group_of_one_is_the_simulators_too) {
  ThreadWorld world(1);
  BOOST_TEST(problems(world, [](Transport& mine) {
               return host_comm_cases::every_operation_is_the_simulators<float>(
                   mine, ReductionOrder::rank);
             }) == "");
}

BOOST_AUTO_TEST_CASE(a_mesh_has_the_simulators_groups) {
  const ParallelConfig parallel{.tp = 2, .dp = 3, .pp = 2};
  ThreadWorld world(parallel.world_size());
  const EigenOps<float> ops;
  const auto ranks_in = [](auto& comms) {
    std::vector<Matrix<float>> all;
    for (auto* group : {&comms.tp, &comms.dp, &comms.ep, &comms.pp})
      all.push_back(group->all_gather(
          Matrix<float>(Matrix<float>::Constant(1, 1, float(comms.at.world))), Axis::rows));
    return all;
  };
  SimMesh simulated(parallel);
  const auto expected = simulated.run(
      [&](const RankCoordinates&) -> const EigenOps<float>& { return ops; }, ranks_in);
  BOOST_TEST(problems(world, [&](Transport& mine) {
               std::vector<Matrix<float>> found;
               HostMesh mesh(mine, parallel);
               mesh.run([&](const RankCoordinates&) -> const EigenOps<float>& { return ops; },
                        [&](auto& comms) { found = ranks_in(comms); });
               for (std::size_t i = 0; i < found.size(); ++i)
                 if (!host_comm_cases::same(found[i], expected[std::size_t(mine.rank())][i]))
                   return text("group ", i, " differs");
               return std::string();
             }) == "");
}

BOOST_AUTO_TEST_CASE(another_number_of_ranks_than_the_transport_has_is_refused) {
  ThreadWorld world(2);
  BOOST_CHECK_EXCEPTION(HostMesh(world.end(0), {.tp = 4}), ConfigError, [](const Error& error) {
    return std::string(error.what()) == "dp x pp x tp = 1 x 1 x 4 are 4 ranks, found 2";
  });
}

}  // namespace tokenview
