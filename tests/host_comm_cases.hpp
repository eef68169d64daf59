// SPDX-License-Identifier: Apache-2.0
// What every communicator in host memory must do, whatever its transport: each function is run by
// all ranks of a world, and returns what was wrong on this one; empty: nothing. (Ranks may be
// threads or processes, where the macros of Boost.Test are out of place.)
#pragma once
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "comm_sim/run_ranks.hpp"
#include "comm_sim/transport/host_mesh.hpp"
#include "reference/tensor_bytes.hpp"

namespace tokenview::host_comm_cases {

template <class S>
using Routing = typename EigenOps<S>::Routing;

template <class T>
bool same(const Matrix<T>& a, const Matrix<T>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.size() == 0 || std::memcmp(a.data(), b.data(), std::size_t(a.size()) * sizeof(T)) == 0);
}

/// Values of all magnitudes, so that every order of a sum has bits of its own.
template <class S>
Matrix<S> values_of(std::int64_t rank, std::int64_t rows, std::int64_t cols) {
  std::mt19937_64 random(std::uint64_t(1000 * rank + 10 * rows + cols));
  Matrix<S> x(rows, cols);
  for (Eigen::Index i = 0; i < x.size(); ++i)
    x.data()[i] = S(std::ldexp(double(random() >> 11) * 0x1p-53 - 0.5, int(random() % 30)));
  return x;
}

template <class S>
Routing<S> routing_of(std::int64_t rank, std::int64_t rows) {
  Routing<S> x{values_of<S>(rank, rows, 3), {rows, 3}};
  for (Eigen::Index i = 0; i < x.ids.size(); ++i) x.ids.data()[i] = 100 * rank + i;
  return x;
}

/// Uneven rows of the ranks, some of them none.
inline std::vector<std::int64_t> uneven(std::int64_t size) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t rank = 0; rank < size; ++rank) sizes.push_back((3 * rank + 2) % 4);
  return sizes;
}

/// What one rank got out of every operation, one behind the other.
template <class S>
struct Results {
  std::vector<Matrix<S>> tensors;
  std::vector<Matrix<std::int64_t>> ids;
};

/// Makes the operands of one rank, and keeps what comes out, on the host.
template <class S>
struct HostOperands {
  using Tensor = Matrix<S>;
  std::int64_t rank;
  Results<S> results = {};

  Matrix<S> tensor(std::int64_t rows, std::int64_t cols) const {
    return values_of<S>(rank, rows, cols);
  }
  Routing<S> routing(std::int64_t rows) const { return routing_of<S>(rank, rows); }
  void add(Matrix<S> x) { results.tensors.push_back(std::move(x)); }
  void add(Routing<S> x) {
    add(std::move(x.weights));
    results.ids.push_back(std::move(x.ids));
  }
};

template <class Comm, class Operands>
void every_operation(Comm& comm, Operands& made, std::int64_t rows, std::int64_t cols) {
  const std::int64_t n = comm.size(), r = comm.rank();
  const std::vector<std::int64_t> sizes = uneven(n), even(std::size_t(n), rows);
  std::vector<std::int64_t> to, from;
  for (std::int64_t i = 0; i < n; ++i) {
    to.push_back((r + 2 * i) % 3);
    from.push_back((i + 2 * r) % 3);
  }
  const auto total = [](const std::vector<std::int64_t>& parts) {
    return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  };
  made.add(comm.all_reduce(made.tensor(rows, cols)));
  for (const Axis axis : {Axis::rows, Axis::cols})
    made.add(comm.all_gather(made.tensor(rows, cols), axis));
  made.add(comm.reduce_scatter(made.tensor(n * rows, cols), Axis::rows));
  made.add(comm.reduce_scatter(made.tensor(rows, n * cols), Axis::cols));
  for (const auto& parts : {sizes, even}) {
    made.add(comm.all_gather_v(made.tensor(parts[std::size_t(r)], cols), parts));
    made.add(comm.reduce_scatter_v(made.tensor(total(parts), cols), parts));
    made.add(comm.all_gather_v(made.routing(parts[std::size_t(r)]), parts));
  }
  made.add(comm.all_to_all(made.tensor(n * rows, cols)));
  made.add(comm.all_to_all_v(made.tensor(total(to), cols), to, from));
  made.add(comm.broadcast(made.tensor(rows, cols), n - 1));
  comm.barrier();
  made.add(comm.all_gather(made.routing(rows), Axis::rows));
  made.add(comm.all_to_all_v(made.routing(total(to)), to, from));
  made.add(comm.broadcast(made.routing(rows), 0));
  // A chain: each rank but the first passes on what it receives.
  auto baton = made.tensor(rows, cols);
  if (r > 0) baton = comm.template recv<typename Operands::Tensor>(r - 1);
  if (r + 1 < n) comm.send(baton, r + 1);
  made.add(std::move(baton));
}

/// The first of `found` that is not `expected` to the bit.
template <class S>
std::string first_difference(const Results<S>& found, const Results<S>& expected) {
  for (std::size_t i = 0; i < expected.tensors.size(); ++i)
    if (!same(found.tensors.at(i), expected.tensors[i])) return text("result ", i, " differs");
  for (std::size_t i = 0; i < expected.ids.size(); ++i)
    if (!same(found.ids.at(i), expected.ids[i])) return text("ids ", i, " differ");
  return {};
}

/// Rows with remainders of every kind over n ranks.
inline std::vector<std::int64_t> row_counts(std::int64_t n) {
  return {0, 1, n - 1, n, n + 1, 3 * n};
}

/// Bit for bit what simulated ranks give.
template <class S>
std::string every_operation_is_the_simulators(Transport& world, ReductionOrder order) {
  const EigenOps<S> ops;
  const std::int64_t n = world.size();
  std::string first_problem;  // told at the end: the other ranks count on this one's calls
  for (const std::int64_t rows : row_counts(n))
    for (const std::int64_t cols : {1, 5}) {
      const auto expected = run_ranks(
          ops, n,
          [&](auto& comm) {
            HostOperands<S> made{comm.rank()};
            every_operation(comm, made, rows, cols);
            return made.results;
          },
          "tp", order);
      HostOperands<S> made{world.rank()};
      run_rank(world, "a rank", [&] {
        const auto all = world.world();
        HostComm<EigenOps<S>> comm(ops, {world, "tp", {all.begin(), all.end()}}, order);
        every_operation(comm, made, rows, cols);
      });
      const auto& mine = expected[std::size_t(world.rank())];
      const std::string problem = first_difference(made.results, mine);
      if (first_problem.empty() && !problem.empty())
        first_problem = text("rows ", rows, ", cols ", cols, ": ", problem);
    }
  return first_problem;
}

/// The error of this rank of `body(comms)` in a world of tp = size; "none".
template <class Body>
std::string error_of(Transport& world, const ParallelConfig& parallel, Body body) {
  const EigenOps<float> ops;
  HostMesh mesh(world, parallel);
  try {
    mesh.run([&](const RankCoordinates&) -> const EigenOps<float>& { return ops; }, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

inline std::string expect_words(const std::string& found, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (found.find(word) == std::string::npos)
      return text("\"", word, "\" is not in \"", found, "\"");
  return {};
}

/// The last rank brings another shape: everybody is told what everybody called.
inline std::string a_mismatch_names_all_ranks_on_every_rank(Transport& world) {
  const std::int64_t last = world.size() - 1;
  const std::string error = error_of(world, {.tp = world.size()}, [&](auto& comms) {
    comms.tp.all_reduce(values_of<float>(0, comms.at.world == last ? 3 : 2, 4));
  });
  std::vector<std::string> words = {
      "collective mismatch on the group tp: ranks differ in the element count"};
  for (std::int64_t rank = 0; rank < world.size(); ++rank)
    words.push_back(text("tp=", rank, " (rank ", rank, ") call 1: all_reduce(float32 [",
                         rank == last ? 3 : 2, ", 4])"));
  return expect_words(error, words);
}

/// Two ranks that share both groups call in different ones.
inline std::string another_group_is_a_mismatch(Transport& world) {
  const std::string error = error_of(world, {.tp = world.size()}, [&](auto& comms) {
    auto& group = comms.at.world == 0 ? comms.ep : comms.tp;
    group.all_reduce(values_of<float>(0, 2, 4));
  });
  return expect_words(error, {"ranks differ in the group"});
}

/// One rank throws where the others wait for it: they end with its error.
inline std::string a_failing_rank_ends_the_run_of_all(Transport& world) {
  const std::string error = error_of(world, {.tp = world.size()}, [&](auto& comms) {
    if (comms.at.world == 1) throw ShapeError("linear: a bad day");
    comms.tp.all_reduce(values_of<float>(0, 2, 4));
    comms.tp.barrier();
  });
  return expect_words(error, {"linear: a bad day", world.rank() == 1 ? "tp=1" : "rank 1: tp=1"});
}

/// One rank returns where the others wait for it.
inline std::string a_rank_that_ends_early_is_named(Transport& world) {
  const std::string error = error_of(world, {.tp = world.size()}, [&](auto& comms) {
    if (comms.at.world == 1) return;
    comms.tp.barrier();
  });
  return expect_words(error, {"a rank has ended", "tp=1 (rank 1) has ended", "barrier()"});
}

/// A rank that computes for ever is waited for no longer than the limit.
inline std::string a_rank_that_does_not_come_is_waited_for_a_while(Transport& world) {
  world.set_limit(Transport::Seconds(0.2));
  const std::string error = error_of(world, {.tp = world.size()}, [&](auto& comms) {
    if (comms.at.world == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    comms.tp.barrier();
  });
  world.set_limit(Transport::default_limit);
  return expect_words(error, {"rank 1 sent nothing for 0.2 s"});
}

/// After a failed run the next one knows nothing of it.
inline std::string a_failed_run_leaves_nothing_behind(Transport& world) {
  if (const std::string problem = a_failing_rank_ends_the_run_of_all(world); !problem.empty())
    return problem;
  return every_operation_is_the_simulators<float>(world, ReductionOrder::rank);
}

/// A send meets a receive of another shape, or nobody; a receive meets the end of a run.
inline std::string a_receive_says_what_does_not_fit(Transport& world) {
  const std::string shape = error_of(world, {.tp = world.size()}, [&](auto& comms) {
    if (comms.at.world == 0) comms.tp.send(values_of<float>(0, 2, 4), 1);
    if (comms.at.world == 1) comms.tp.template recv<Matrix<float>>(0, 2, 5);
  });
  if (const std::string problem =
          expect_words(shape, {"rank 1 expects another shape than rank 0 sends", "send(float32",
                               "recv(float32 [2, 5], from 0)"});
      !problem.empty())
    return problem;
  const std::string ended = error_of(world, {.tp = world.size()}, [&](auto& comms) {
    if (comms.at.world == 1) comms.tp.template recv<Matrix<float>>(0);
  });
  if (const std::string problem = expect_words(ended, {"tp=0 (rank 0) has ended", "recv(float32"});
      !problem.empty())
    return problem;
  const std::string lost = error_of(world, {.tp = world.size()}, [&](auto& comms) {
    if (comms.at.world == 0) comms.tp.send(values_of<float>(0, 2, 4), 1);
  });
  return expect_words(lost,
                      {"rank 0 sent what rank 1 did not receive: call 1: send(float32 [2, 4]"});
}

struct Case {
  const char* name;
  std::function<std::string(Transport&)> run;
};
/// For two ranks and more.
inline const std::vector<Case>& all() {
  static const std::vector<Case> cases = {
      {"float32 in rank order",
       [](Transport& t) {
         return every_operation_is_the_simulators<float>(t, ReductionOrder::rank);
       }},
      {"float32 as a ring",
       [](Transport& t) {
         return every_operation_is_the_simulators<float>(t, ReductionOrder::ring);
       }},
      {"float32 as a tree",
       [](Transport& t) {
         return every_operation_is_the_simulators<float>(t, ReductionOrder::tree);
       }},
      {"float64 in rank order",
       [](Transport& t) {
         return every_operation_is_the_simulators<double>(t, ReductionOrder::rank);
       }},
      {"a mismatch names all ranks on every rank", a_mismatch_names_all_ranks_on_every_rank},
      {"another group is a mismatch", another_group_is_a_mismatch},
      {"a failing rank ends the run of all", a_failing_rank_ends_the_run_of_all},
      {"a rank that ends early is named", a_rank_that_ends_early_is_named},
      {"a rank that does not come is waited for a while",
       a_rank_that_does_not_come_is_waited_for_a_while},
      {"a failed run leaves nothing behind", a_failed_run_leaves_nothing_behind},
      {"a receive says what does not fit", a_receive_says_what_does_not_fit},
  };
  return cases;
}

}  // namespace tokenview::host_comm_cases
