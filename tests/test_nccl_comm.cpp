// SPDX-License-Identifier: Apache-2.0
// NCCL between the GPUs of this machine, a thread or a process each: every operation and the whole
// program against virtual ranks that share one GPU, and what happens when a rank is gone.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "comm_sim/transport/process_rank.hpp"
#include "comm_sim/transport/tcp_transport.hpp"
#include "device/device_info.hpp"
#include "device/nccl_world.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tests/boost_test.hpp"
#include "tests/host_comm_cases.hpp"
#include "tests/skip.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/executor.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
namespace cases = host_comm_cases;
using Claim = boost::test_tools::assertion_result;
using std::chrono::steady_clock;

std::int64_t gpus() {
  std::string reason;
  static const auto found = std::int64_t(devices(reason).size());
  return found;
}

struct RequireGpu {
  RequireGpu() {
    std::string reason;
    if (devices(reason).empty()) skip_program(reason);
    if (nccl_version().empty()) skip_program("built without NCCL");
  }
};

/// Cases for several GPUs are shown as skipped where there is one.
Claim are_several_gpus(boost::unit_test::test_unit_id) {
  Claim claim(gpus() >= 2);
  claim.message() << "there is one GPU";
  return claim;
}
boost::unit_test::precondition several_gpus() {
  return boost::unit_test::precondition(&are_several_gpus);
}

/// Operands on the GPU of one rank.
template <class T>
struct GpuOperands {
  using Ops = CudaOps<T>;
  using Tensor = DeviceMatrix<T>;
  const Ops& ops;
  std::int64_t rank;
  bool small_integers = false;  // of which every order has the same sum
  cases::Results<float> results = {};

  Tensor tensor(std::int64_t rows, std::int64_t cols) const {
    Matrix<float> x = cases::values_of<float>(rank, rows, cols);
    if (small_integers)
      for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = float((3 * rank + i) % 8);
    return ops.upload({x.data(), std::size_t(x.size())}, rows, cols);
  }
  typename Ops::Routing routing(std::int64_t rows) const {
    const auto x = cases::routing_of<float>(rank, rows);
    return ops.upload({x.weights.data(), std::size_t(x.weights.size())},
                      {x.ids.data(), std::size_t(x.ids.size())}, rows, x.ids.cols());
  }
  template <class X>
  void add(const DeviceMatrix<X>& x) {
    const std::vector<float> values = ops.download(x);
    results.tensors.push_back(Eigen::Map<const Matrix<float>>(values.data(), x.rows(), x.cols()));
  }
  void add(const typename Ops::Routing& x) {
    add(x.weights);
    const std::vector<std::int64_t> ids = ops.download(x.ids);
    results.ids.push_back(
        Eigen::Map<const Matrix<std::int64_t>>(ids.data(), x.ids.rows(), x.ids.cols()));
  }
};

template <class T>
constexpr Rounding rounding_of = std::is_same_v<T, float> ? Rounding::none : Rounding::hf;

/// What differs between `size` ranks over NCCL and virtual ranks; empty: nothing.
template <class T>
std::string unlike_virtual_ranks(std::int64_t size, const NcclOptions& options,
                                 bool small_integers = false) {
  const CudaOps<T> shared(0, rounding_of<T>);
  auto world = NcclWorld<CudaOps<T>>::of_threads(size, rounding_of<T>, options);
  for (const std::int64_t rows : cases::row_counts(size))
    for (const std::int64_t cols : {1, 5}) {
      const auto expected = run_ranks(shared, size, [&](auto& comm) {
        GpuOperands<T> made{shared, comm.rank(), small_integers};
        cases::every_operation(comm, made, rows, cols);
        return made.results;
      });
      std::vector<cases::Results<float>> found(static_cast<std::size_t>(size));
      world.run({.tp = size}, [&](auto& comms) {
        GpuOperands<T> made{world.ops(comms.at.world), comms.tp.rank(), small_integers};
        cases::every_operation(comms.tp, made, rows, cols);
        found[std::size_t(comms.at.world)] = made.results;
      });
      for (std::size_t rank = 0; rank < found.size(); ++rank)
        if (const auto problem = cases::first_difference(found[rank], expected[rank]);
            !problem.empty())
          return text("rank ", rank, ", rows ", rows, ", cols ", cols, ": ", problem);
    }
  return {};
}

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

/// The error of each of `size` ranks of `body(comms)`.
template <class Body>
std::vector<std::string> errors_of(NcclWorld<CudaOps<float>>& world, Body body) {
  std::vector<std::string> errors(static_cast<std::size_t>(world.size()), "none");
  try {
    world.run({.tp = world.size()}, [&](auto& comms) {
      try {
        body(comms);
      } catch (const Error& error) {
        errors[std::size_t(comms.at.world)] = error.what();
        throw;
      }
    });
  } catch (const Error&) {
  }
  return errors;
}

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireGpu);

BOOST_AUTO_TEST_CASE(a_group_of_one_gives_everything_back) {
  BOOST_TEST(unlike_virtual_ranks<float>(1, {}) == "");
}

BOOST_AUTO_TEST_CASE(more_ranks_than_gpus_are_refused_with_a_way_out) {
  BOOST_CHECK_EXCEPTION(NcclWorld<CudaOps<float>>::of_threads(gpus() + 1, Rounding::none),
                        ConfigError, [](const Error& error) {
                          return cases::expect_words(
                                     error.what(),
                                     {text(gpus() + 1, " ranks over NCCL: found ", gpus(), " GPU"),
                                      "--comm sim --device cuda"}) == "";
                        });
}

BOOST_TEST_DECORATOR(*several_gpus())
BOOST_DATA_TEST_CASE(two_ranks_are_virtual_ranks_to_the_bit, data::make({false, true}), compares) {
  BOOST_TEST(unlike_virtual_ranks<float>(2, {.compares_calls = compares}) == "");
  BOOST_TEST(unlike_virtual_ranks<__nv_bfloat16>(2, {.compares_calls = compares}) == "");
}

BOOST_AUTO_TEST_CASE(all_gpus_add_small_integers_as_virtual_ranks_do, *several_gpus()) {
  BOOST_TEST(unlike_virtual_ranks<float>(gpus(), {}, true) == "");
}

BOOST_AUTO_TEST_CASE(in_a_fixed_order_all_gpus_are_virtual_ranks_to_the_bit, *several_gpus()) {
  BOOST_TEST(unlike_virtual_ranks<float>(gpus(), {.fixed_order = true}) == "");
}

BOOST_AUTO_TEST_CASE(every_group_of_a_layout_has_its_ranks, *several_gpus()) {
  auto world = NcclWorld<CudaOps<float>>::of_threads(2, Rounding::none);
  for (const ParallelConfig& parallel :
       {ParallelConfig{.tp = 2}, ParallelConfig{.dp = 2}, ParallelConfig{.pp = 2}}) {
    const auto ranks_in = [](const CudaOps<float>& ops, auto& comms) {
      std::vector<std::vector<float>> all;
      const float mine[] = {float(comms.at.world)};
      for (auto* group : {&comms.tp, &comms.dp, &comms.ep, &comms.pp})
        all.push_back(ops.download(group->all_gather(ops.upload(mine, 1, 1), Axis::rows)));
      return all;
    };
    const CudaOps<float> shared;
    SimMesh simulated(parallel);
    const auto expected =
        simulated.run([&](const RankCoordinates&) -> const CudaOps<float>& { return shared; },
                      [&](auto& comms) { return ranks_in(shared, comms); });
    world.run(parallel, [&](auto& comms) {
      const auto found = ranks_in(world.ops(comms.at.world), comms);
      if (found != expected[std::size_t(comms.at.world)]) throw CommError("other members");
    });
  }
}

BOOST_AUTO_TEST_CASE(a_mismatch_names_all_ranks_on_every_rank, *several_gpus()) {
  auto world = NcclWorld<CudaOps<float>>::of_threads(2, Rounding::none);
  const auto errors = errors_of(world, [&](auto& comms) {
    const GpuOperands<float> made{world.ops(comms.at.world), comms.at.world};
    comms.tp.all_reduce(made.tensor(2 + comms.at.world, 4));
  });
  for (const std::string& error : errors)
    BOOST_TEST(cases::expect_words(error, {"collective mismatch on the group tp: ranks differ in "
                                           "the element count",
                                           "tp=0 (rank 0) call 1: all_reduce(float32 [2, 4])",
                                           "tp=1 (rank 1) call 1: all_reduce(float32 [3, 4])"}) ==
               "");
}

/// Without comparing calls: the others wait inside of a kernel.
BOOST_AUTO_TEST_CASE(a_failing_rank_ends_the_run_of_all_and_the_next_run_is_whole,
                     *several_gpus()) {
  auto world = NcclWorld<CudaOps<float>>::of_threads(2, Rounding::none, {.compares_calls = false});
  for (int round = 0; round < 2; ++round) {
    const auto start = steady_clock::now();
    const auto errors = errors_of(world, [&](auto& comms) {
      const CudaOps<float>& ops = world.ops(comms.at.world);
      const GpuOperands<float> made{ops, comms.at.world};
      ops.download(comms.tp.all_reduce(made.tensor(2, 4)));
      if (comms.at.world == 1) throw ShapeError("linear: a bad day");
      ops.download(comms.tp.all_reduce(made.tensor(2, 4)));
      comms.tp.barrier();
    });
    BOOST_TEST(errors[1] == "linear: a bad day");
    BOOST_TEST(cases::expect_words(errors[0], {"rank 1: ", "linear: a bad day"}) == "");
    BOOST_TEST(seconds_since(start) < 30);
    world.run({.tp = 2}, [&](auto& comms) {
      const CudaOps<float>& ops = world.ops(comms.at.world);
      const float one[] = {1};
      if (ops.download(comms.tp.all_reduce(ops.upload(one, 1, 1))) != std::vector<float>{2})
        throw CommError("1 + 1 is not 2");
    });
  }
}

namespace {

/// This program again, as one rank of two on TCP, running the case `name`; its output in `file`.
pid_t start_rank(std::int64_t rank, std::uint16_t port, const char* name, const std::string& file) {
  const pid_t process = fork();
  if (process != 0) return process;
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  const int out = open(file.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  const std::string selection = text("--run_test=", name);
  execl("/proc/self/exe", "test_nccl_comm", selection.c_str(), nullptr);
  _exit(127);
}

/// The output of both ranks.
std::vector<std::string> run_two_processes(const char* name) {
  const TemporaryFolder folder;
  static int next = 0;
  const auto port = std::uint16_t(20000 + (getpid() * 37 + 11 * next++) % 12000);
  pid_t processes[2];
  std::vector<std::string> files, outputs;
  for (int rank = 0; rank < 2; ++rank) {
    files.push_back(folder.file(text("rank", rank)));
    processes[rank] = start_rank(rank, port, name, files.back());
  }
  for (int rank = 0; rank < 2; ++rank) {
    int status = 0;
    waitpid(processes[rank], &status, 0);
    outputs.push_back(read_bytes(files[std::size_t(rank)]));
    if (WIFSIGNALED(status)) outputs.back() += text("signal ", WTERMSIG(status));
  }
  return outputs;
}

}  // namespace

/// Rank 1 is killed where rank 0 waits for it inside of a kernel.
BOOST_AUTO_TEST_CASE(rank_with_a_peer_that_dies, *boost::unit_test::disabled()) {
  const auto process = process_rank();
  const auto transport = tcp_transport(process->rank, process->size, meeting_place());
  auto world = NcclWorld<CudaOps<float>>::of_processes(*transport, int(process->local_rank),
                                                       Rounding::none, {.compares_calls = false});
  const auto errors = errors_of(world, [&](auto& comms) {
    const CudaOps<float>& ops = world.ops(comms.at.world);
    const float one[] = {1};
    ops.download(comms.tp.all_reduce(ops.upload(one, 1, 1)));
    if (comms.at.world == 1) raise(SIGKILL);
    ops.download(comms.tp.all_reduce(ops.upload(one, 1, 1)));
    comms.tp.barrier();
  });
  std::printf("rank 0 ended: %s\n", errors[0].c_str());
}

BOOST_AUTO_TEST_CASE(a_killed_process_ends_the_run_of_the_other, *several_gpus()) {
  const auto start = steady_clock::now();
  const auto outputs = run_two_processes("rank_with_a_peer_that_dies");
  BOOST_TEST(outputs[1].find("signal 9") != std::string::npos, outputs[1]);
  BOOST_TEST(outputs[0].find("rank 0 ended: rank 1: its process has ended") != std::string::npos,
             outputs[0]);
  BOOST_TEST(seconds_since(start) < 60);
}

namespace {

ParallelRun run_of(const ModelConfig& config, const ParallelConfig& parallel,
                   const std::string& protocol) {
  return {.config = config,
          .plan = plan_for(config, parallel, parse_protocol(protocol)),
          .inputs = inputs_of(parse_requests(parallel.dp == 2 ? "5/3" : "5", parallel.dp)),
          .draft_steps = 2};
}

/// The first tap that is not that of virtual ranks to the bit.
std::string unlike_virtual_run(const Executor& executor, const ParallelRun& run) {
  const SeededWeights weights(run.config, 7);
  Executor virtual_ranks = executor;
  virtual_ranks.comm = CommKind::sim;
  const NumberRunResult found = run_numbers_on(executor, run, weights);
  const NumberRunResult expected = run_numbers_on(virtual_ranks, run, weights);
  if (!found.error.empty() || !expected.error.empty()) return found.error + expected.error;
  for (std::size_t rank = 0; rank < expected.taps.size(); ++rank)
    for (const auto& [name, values] : expected.taps[rank].values)
      if (!cases::same(found.taps.at(rank).values.at(name), values))
        return text("rank ", rank, ": ", name);
  return expected.taps.front().values.empty() ? "nothing compared" : "";
}

const ParallelConfig two_ranks[] = {{.tp = 2, .enable_expert_parallel = true},
                                    {.dp = 2, .enable_expert_parallel = true},
                                    {.pp = 2}};

}  // namespace

BOOST_TEST_DECORATOR(*several_gpus())
BOOST_DATA_TEST_CASE(the_program_over_nccl_is_that_on_virtual_ranks_to_the_bit,
                     data::make({"S", "A", "D"}) * data::make({false, true}), protocol, bfloat16) {
  const Rounding rounding = bfloat16 ? Rounding::hf : Rounding::none;
  const ModelConfig config = *preset("qwen3.5-moe");
  for (const ParallelConfig& parallel : two_ranks)
    BOOST_TEST_CONTEXT("tp=" << parallel.tp << " dp=" << parallel.dp << " pp=" << parallel.pp)
  BOOST_TEST(
      unlike_virtual_run({.device = Device::cuda, .comm = CommKind::nccl, .rounding = rounding},
                         run_of(config, parallel, protocol)) == "");
}

BOOST_AUTO_TEST_CASE(rank_of_the_whole_program, *boost::unit_test::disabled()) {
  const ModelConfig config = *preset("qwen3.5-moe");
  for (const ParallelConfig& parallel : two_ranks)
    std::printf("%s\n", unlike_virtual_run({.device = Device::cuda, .comm = CommKind::nccl},
                                           run_of(config, parallel, "D"))
                            .c_str());
  std::printf("all compared\n");
}

BOOST_AUTO_TEST_CASE(the_program_in_two_processes_is_that_on_virtual_ranks_to_the_bit,
                     *several_gpus()) {
  for (const std::string& output : run_two_processes("rank_of_the_whole_program"))
    BOOST_TEST(output.find("\n\n\n\nall compared\n") != std::string::npos, output);
}

}  // namespace tokenview
