// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "comm_sim/run_ranks.hpp"
#include "reference/eigen_ops.hpp"
#include "tests/boost_test.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Ops = EigenOps<float>;
using Comm = SimComm<Ops>;

/// Small whole numbers, no two alike: sums are exact in every order, and a part out of place shows.
Matrix<float> numbered(std::int64_t rows, std::int64_t cols, int rank) {
  Matrix<float> x(rows, cols);
  for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = float((1 + rank) * 1000 + i);
  return x;
}

const auto group_sizes = data::make({1, 2, 3, 5, 8});
const auto orders = data::xrange(3);  // as ReductionOrder

/// The message of the error that `run` throws.
template <class Run>
std::string message_of(Run run) {
  try {
    run();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no CommError";
}

bool has(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

BOOST_DATA_TEST_CASE(all_reduce_gives_every_rank_the_sum, group_sizes* orders, size, order) {
  const auto results = run_ranks(
      Ops{}, size, [](Comm& comm) { return comm.all_reduce(numbered(7, 3, int(comm.rank()))); },
      "tp", ReductionOrder(order));
  Matrix<float> sum = Matrix<float>::Zero(7, 3);
  for (int rank = 0; rank < size; ++rank) sum += numbered(7, 3, rank);
  for (const auto& result : results) BOOST_TEST((result == sum));
}

BOOST_DATA_TEST_CASE(all_gather_joins_in_rank_order, group_sizes, size) {
  const auto results = run_ranks(Ops{}, size, [](Comm& comm) {
    return comm.all_gather(numbered(2, 3, int(comm.rank())), Axis::rows);
  });
  for (const auto& result : results) {
    BOOST_TEST(result.rows() == 2 * size);
    for (int rank = 0; rank < size; ++rank)
      BOOST_TEST((result.middleRows(2 * rank, 2) == numbered(2, 3, rank)));
  }
}

BOOST_DATA_TEST_CASE(reduce_scatter_then_all_gather_is_all_reduce, group_sizes* orders, size,
                     order) {
  for (const Axis axis : {Axis::rows, Axis::cols})
    run_ranks(
        Ops{}, size,
        [axis, size = size](Comm& comm) {
          const Matrix<float> x = numbered(3 * size, 2 * size, int(comm.rank()));
          const Matrix<float> part = comm.reduce_scatter(x, axis);
          BOOST_TEST((comm.all_gather(part, axis) == comm.all_reduce(x)));
          return 0;
        },
        "tp", ReductionOrder(order));
}

BOOST_AUTO_TEST_CASE(each_order_adds_as_it_says) {
  // 2^24 + 1 is not a float: where the ones are added tells the order.
  const auto value = [](std::int64_t rank) {
    return Matrix<float>(Matrix<float>::Constant(4, 1, rank == 0 ? 16777216.0f : 1.0f));
  };
  const auto sum = [&](ReductionOrder order) {
    return run_ranks(
        Ops{}, 4, [&](Comm& comm) { return comm.all_reduce(value(comm.rank())); }, "tp", order)[0];
  };
  BOOST_TEST(sum(ReductionOrder::rank)(0, 0) == 16777216.0f);  // every one is lost
  BOOST_TEST(sum(ReductionOrder::tree)(0, 0) == 16777218.0f);  // (big + 1) + (1 + 1)
  const Matrix<float> ring = sum(ReductionOrder::ring);        // row c begins at rank c + 1
  BOOST_TEST(ring(0, 0) == 16777220.0f);                       // 1 + 1 + 1 + big, to even
  BOOST_TEST(ring(3, 0) == 16777216.0f);                       // big + 1 + 1 + 1
}

BOOST_AUTO_TEST_CASE(a_different_operation_is_named_on_every_rank) {
  const std::string message = message_of([] {
    run_ranks(Ops{}, 3, [](Comm& comm) {
      ModulePath module;
      module.push("model");
      module.push("layers", comm.rank());
      comm.locate(module);
      const Matrix<float> x = numbered(3, 2, 0);
      return comm.rank() == 1 ? comm.all_gather(x, Axis::rows) : comm.all_reduce(x);
    });
  });
  BOOST_TEST(has(message, "ranks differ in the operation"), message);
  BOOST_TEST(has(message, "tp=0 (rank 0) call 1: all_reduce(float32 [3, 2]) in model.layers.0"),
             message);
  BOOST_TEST(
      has(message, "tp=1 (rank 1) call 1: all_gather(float32 [3, 2], rows) in model.layers.1"),
      message);
}

BOOST_AUTO_TEST_CASE(a_different_element_count_is_refused) {
  const std::string message = message_of([] {
    run_ranks(Ops{}, 2, [](Comm& comm) {
      return comm.all_gather(numbered(2 + comm.rank(), 2, 0), Axis::rows);
    });
  });
  BOOST_TEST(has(message, "ranks differ in the element count"), message);
}

BOOST_AUTO_TEST_CASE(reduce_scatter_of_rows_that_do_not_divide_is_refused) {
  const std::string message = message_of([] {
    run_ranks(Ops{}, 4,
              [](Comm& comm) { return comm.reduce_scatter(numbered(10, 2, 0), Axis::rows); });
  });
  BOOST_TEST(has(message, "reduce_scatter of 10 rows over 4 ranks: not divisible"), message);
}

BOOST_AUTO_TEST_CASE(a_missing_caller_is_a_deadlock_that_names_everybody) {
  const std::string message = message_of([] {
    run_ranks(Ops{}, 3, [](Comm& comm) {
      const Matrix<float> x = numbered(3, 2, 0);
      return comm.rank() == 2 ? x : comm.all_reduce(x);
    });
  });
  BOOST_TEST(has(message, "deadlock: no rank can go on"), message);
  BOOST_TEST(has(message, "tp=0 (rank 0) call 1: all_reduce"), message);
  BOOST_TEST(has(message, "tp=2 (rank 2) has ended after 0 calls"), message);
}

BOOST_AUTO_TEST_CASE(a_cycle_of_waits_is_a_deadlock) {
  World world(2);
  Group first(world, "tp", {0, 1}), second(world, "dp", {0, 1});
  const Ops ops;
  const std::string message = message_of([&] {
    world.run([&](std::int64_t rank) {
      SimComm<Ops> tp(ops, first, rank), dp(ops, second, rank);
      const Matrix<float> x = numbered(2, 2, 0);
      if (rank == 0)
        tp.all_reduce(x);
      else
        dp.all_reduce(x);
    });
  });
  BOOST_TEST(has(message, "tp=0 (rank 0) call 1"), message);
  BOOST_TEST(has(message, "dp=1 (rank 1) call 1"), message);
  BOOST_TEST(has(message, "is elsewhere after 0 calls"), message);
}

BOOST_AUTO_TEST_CASE(the_error_of_a_rank_reaches_the_caller_and_strands_nobody) {
  int unwound = 0;
  struct Guard {
    int& count;
    ~Guard() { ++count; }
  };
  BOOST_CHECK_EXCEPTION(run_ranks(Ops{}, 4,
                                  [&](Comm& comm) {
                                    const Guard guard{unwound};
                                    if (comm.rank() == 2) throw ShapeError("no such shape");
                                    return comm.all_reduce(numbered(4, 4, 0));
                                  }),
                        ShapeError, [](const ShapeError& error) {
                          return std::string(error.what()) == "tp=2: no such shape";
                        });
  BOOST_TEST(unwound == 4);
}

BOOST_AUTO_TEST_CASE(sub_groups_meet_independently) {
  World world(4);
  Group even(world, "tp", {0, 2}), odd(world, "tp", {1, 3});
  const Ops ops;
  std::vector<float> sums(4);
  world.run([&](std::int64_t rank) {
    SimComm<Ops> comm(ops, rank % 2 == 0 ? even : odd, rank);
    const Matrix<float> mine = Matrix<float>::Constant(1, 1, float(rank));
    sums[std::size_t(rank)] = comm.all_reduce(mine)(0, 0);
  });
  BOOST_TEST(sums == (std::vector<float>{2, 4, 2, 4}), boost::test_tools::per_element());
}

}  // namespace tokenview
