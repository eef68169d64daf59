// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include "comm_sim/array_ops.hpp"
#include "comm_sim/run_ranks.hpp"
#include "comm_sim/sim_mesh.hpp"
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

// All-to-all, broadcast, barrier.

/// Rows that rank `from` sends to rank `to`: some of them none.
std::int64_t rows_between(std::int64_t from, std::int64_t to) { return (from + 2 * to) % 3; }

BOOST_DATA_TEST_CASE(all_to_all_v_hands_each_part_to_its_rank, group_sizes, size) {
  run_ranks(Ops{}, size, [size = size](Comm& comm) {
    const std::int64_t me = comm.rank();
    std::vector<std::int64_t> to, from;
    for (std::int64_t i = 0; i < size; ++i) {
      to.push_back(rows_between(me, i));
      from.push_back(rows_between(i, me));
    }
    const auto sent = [&](std::int64_t rank) {
      std::int64_t rows = 0;
      for (std::int64_t i = 0; i < size; ++i) rows += rows_between(rank, i);
      return numbered(rows, 2, int(rank));
    };
    const Matrix<float> received = comm.all_to_all_v(sent(me), to, from);
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      std::int64_t begin = 0;
      for (std::int64_t j = 0; j < me; ++j) begin += rows_between(i, j);
      const std::int64_t rows = from[std::size_t(i)];
      BOOST_TEST((received.middleRows(at, rows) == sent(i).middleRows(begin, rows)));
      at += rows;
    }
    BOOST_TEST(received.rows() == at);
    return 0;
  });
}

BOOST_DATA_TEST_CASE(all_to_all_transposes_the_parts, group_sizes, size) {
  run_ranks(Ops{}, size, [size = size](Comm& comm) {
    const Matrix<float> received = comm.all_to_all(numbered(2 * size, 3, int(comm.rank())));
    for (int i = 0; i < size; ++i)
      BOOST_TEST((received.middleRows(2 * i, 2) ==
                  numbered(2 * size, 3, i).middleRows(2 * comm.rank(), 2)));
    return 0;
  });
}

BOOST_DATA_TEST_CASE(broadcast_gives_every_rank_the_roots_value, group_sizes, size) {
  for (int root = 0; root < size; ++root)
    for (const auto& result : run_ranks(Ops{}, size, [&](Comm& comm) {
           return comm.broadcast(numbered(3, 2, int(comm.rank())), root);
         }))
      BOOST_TEST((result == numbered(3, 2, root)));
}

BOOST_AUTO_TEST_CASE(nobody_leaves_a_barrier_before_all_have_come) {
  std::vector<std::int64_t> order;
  run_ranks(Ops{}, 3, [&](Comm& comm) {
    order.push_back(comm.rank());
    comm.barrier();
    order.push_back(10 + comm.rank());
    comm.barrier();
    return 0;
  });
  std::ranges::sort(order.begin(), order.begin() + 3);
  std::ranges::sort(order.begin() + 3, order.end());
  BOOST_TEST(order == (std::vector<std::int64_t>{0, 1, 2, 10, 11, 12}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_routing_moves_as_a_tensor_does) {
  const auto routing = [](std::int64_t rank) {
    Ops::Routing of_rank;
    of_rank.weights = numbered(4, 2, int(rank));
    of_rank.ids = of_rank.weights.cast<std::int64_t>();
    return of_rank;
  };
  const auto is = [](const Ops::Routing& found, const Matrix<float>& expected) {
    return found.weights == expected &&
           found.ids == Matrix<std::int64_t>(expected.cast<std::int64_t>());
  };
  run_ranks(Ops{}, 2, [&](Comm& comm) {
    const Ops::Routing mine = routing(comm.rank());
    Matrix<float> exchanged(4, 2);
    exchanged << numbered(4, 2, 0).middleRows(2 * comm.rank(), 2),
        numbered(4, 2, 1).middleRows(2 * comm.rank(), 2);
    BOOST_TEST(is(comm.all_to_all(mine), exchanged));
    BOOST_TEST(is(comm.all_to_all_v(mine, {2, 2}, {2, 2}), exchanged));
    BOOST_TEST(is(comm.broadcast(mine, 1), numbered(4, 2, 1)));
    if (comm.rank() == 0)
      comm.send(mine, 1);
    else
      BOOST_TEST(is(comm.recv<Ops::Routing>(0, 4, 2), numbered(4, 2, 0)));
    return 0;
  });
}

BOOST_DATA_TEST_CASE(zero_rows_pass_through_every_operation, group_sizes* orders, size, order) {
  const auto results = run_ranks(
      Ops{}, size,
      [size = size](Comm& comm) {
        const Matrix<float> none(0, 3);
        const std::vector<std::int64_t> zeros(static_cast<std::size_t>(size));
        std::int64_t rows = 0;
        for (const Matrix<float>& result :
             {comm.all_reduce(none), comm.all_gather(none, Axis::rows),
              comm.reduce_scatter(none, Axis::rows), comm.all_gather_v(none, zeros),
              comm.reduce_scatter_v(none, zeros), comm.all_to_all(none),
              comm.all_to_all_v(none, zeros, zeros), comm.broadcast(none, 0)}) {
          BOOST_TEST(result.cols() == 3);
          rows += result.rows();
        }
        return rows;
      },
      "tp", ReductionOrder(order));
  for (const std::int64_t rows : results) BOOST_TEST(rows == 0);
}

// Send and receive.

BOOST_AUTO_TEST_CASE(a_received_value_is_the_sent_one_whoever_comes_first) {
  run_ranks(Ops{}, 3, [](Comm& comm) {
    // 0 sends before 1 receives; 2 receives before 1 sends.
    if (comm.rank() == 0) comm.send(numbered(2, 3, 7), 1);
    if (comm.rank() == 1) {
      const Matrix<float> x = comm.recv<Matrix<float>>(0, 2, 3);
      BOOST_TEST((x == numbered(2, 3, 7)));
      comm.send(numbered(1, 1, 8), 2);
    }
    if (comm.rank() == 2) BOOST_TEST((comm.recv<Matrix<float>>(1) == numbered(1, 1, 8)));
    return comm.all_reduce(numbered(1, 1, 0));
  });
}

BOOST_AUTO_TEST_CASE(values_between_two_ranks_keep_their_order) {
  run_ranks(Ops{}, 2, [](Comm& comm) {
    for (int i = 0; i < 5; ++i)
      if (comm.rank() == 0)
        comm.send(numbered(1, 2, i), 1);
      else
        BOOST_TEST((comm.recv<Matrix<float>>(0) == numbered(1, 2, i)));
    return 0;
  });
}

BOOST_AUTO_TEST_CASE(a_value_reaches_the_rank_that_it_is_sent_to) {
  run_ranks(Ops{}, 3, [](Comm& comm) {
    if (comm.rank() == 0) {  // rank 1 asks first, for what comes second
      comm.send(numbered(1, 2, 2), 2);
      comm.send(numbered(1, 2, 1), 1);
    } else {
      BOOST_TEST((comm.recv<Matrix<float>>(0) == numbered(1, 2, int(comm.rank()))));
    }
    return 0;
  });
}

BOOST_AUTO_TEST_CASE(a_cycle_of_sends_is_a_deadlock) {
  const std::string message = message_of([] {
    run_ranks(Ops{}, 3, [](Comm& comm) {
      ModulePath module;
      module.push("layers", comm.rank());
      comm.locate(module);
      comm.send(numbered(2, 2, 0), (comm.rank() + 1) % 3);
      return comm.recv<Matrix<float>>((comm.rank() + 2) % 3);
    });
  });
  BOOST_TEST(has(message, "deadlock: no rank can go on"), message);
  for (int rank = 0; rank < 3; ++rank)
    BOOST_TEST(has(message, text("tp=", rank, " (rank ", rank, ") call 1: send(float32 [2, 2], to ",
                                 (rank + 1) % 3, ") in layers.", rank)),
               message);
}

BOOST_AUTO_TEST_CASE(a_receive_that_nobody_sends_is_a_deadlock) {
  const std::string message = message_of([] {
    run_ranks(Ops{}, 2, [](Comm& comm) {
      if (comm.rank() == 1) return comm.recv<Matrix<float>>(0, -1, 4);
      return numbered(1, 1, 0);
    });
  });
  BOOST_TEST(has(message, "tp=0 (rank 0) has ended after 0 calls"), message);
  BOOST_TEST(has(message, "tp=1 (rank 1) call 1: recv(float32 [any, 4], from 0)"), message);
}

BOOST_AUTO_TEST_CASE(a_send_that_nobody_receives_is_a_deadlock) {
  const std::string message = message_of([] {
    run_ranks(Ops{}, 2, [](Comm& comm) {
      if (comm.rank() == 0) comm.send(numbered(2, 1, 0), 1);
      return comm.all_reduce(numbered(1, 1, 0));
    });
  });
  BOOST_TEST(has(message, "call 1: send(float32 [2, 1], to 1)"), message);
  BOOST_TEST(has(message, "call 1: all_reduce(float32 [1, 1])"), message);
}

BOOST_AUTO_TEST_CASE(the_error_of_a_sender_ends_the_receive) {
  BOOST_CHECK_EXCEPTION(run_ranks(Ops{}, 3,
                                  [](Comm& comm) {
                                    if (comm.rank() == 2) throw ShapeError("no such shape");
                                    return comm.recv<Matrix<float>>(2);
                                  }),
                        ShapeError, [](const ShapeError& error) {
                          return std::string(error.what()) == "tp=2: no such shape";
                        });
}

// What does not fit together.

/// The message of two ranks of which `body` runs on each.
template <class Body>
std::string message_of_two(Body body) {
  return message_of([&] {
    run_ranks(Ops{}, 2, [&](Comm& comm) {
      body(comm, comm.rank() == 1);
      return 0;
    });
  });
}

BOOST_AUTO_TEST_CASE(a_different_root_is_refused) {
  const std::string message = message_of_two(
      [](Comm& comm, bool second) { comm.broadcast(numbered(2, 2, 0), second ? 1 : 0); });
  BOOST_TEST(has(message, "ranks differ in the root"), message);
  BOOST_TEST(has(message, "tp=1 (rank 1) call 1: broadcast(float32 [2, 2], root 1)"), message);
}

BOOST_DATA_TEST_CASE(a_root_outside_of_the_group_is_refused, data::make({-1, 2}), root) {
  const std::string message =
      message_of_two([&](Comm& comm, bool) { comm.broadcast(numbered(2, 2, 0), root); });
  BOOST_TEST(has(message, text("root ", root, " of 2 ranks")), message);
}

BOOST_AUTO_TEST_CASE(different_sizes_are_refused) {
  const std::string message = message_of_two([](Comm& comm, bool second) {
    using Sizes = std::vector<std::int64_t>;
    comm.reduce_scatter_v(numbered(4, 2, 0), second ? Sizes{2, 2} : Sizes{1, 3});
  });
  BOOST_TEST(has(message, "ranks differ in the sizes"), message);
  BOOST_TEST(has(message, "reduce_scatter_v(float32 [4, 2], sizes [1,3])"), message);
}

BOOST_AUTO_TEST_CASE(sizes_that_do_not_name_every_rank_are_refused) {
  const std::string message = message_of_two(
      [](Comm& comm, bool) { comm.all_gather_v(numbered(4, 2, 0), std::vector<std::int64_t>{4}); });
  BOOST_TEST(has(message, "the sizes name 1 ranks of 2"), message);
}

BOOST_AUTO_TEST_CASE(a_negative_size_is_refused) {
  const std::string message = message_of_two([](Comm& comm, bool) {
    comm.reduce_scatter_v(numbered(4, 2, 0), std::vector<std::int64_t>{5, -1});
  });
  BOOST_TEST(has(message, "a size of -1 rows"), message);
}

BOOST_AUTO_TEST_CASE(rows_that_are_not_the_size_of_their_rank_are_refused) {
  const std::string message = message_of_two([](Comm& comm, bool) {
    comm.all_gather_v(numbered(4, 2, 0), std::vector<std::int64_t>{4, 3});
  });
  BOOST_TEST(has(message, "rank 1 brought 4 rows, its size says 3"), message);
}

BOOST_AUTO_TEST_CASE(rows_sent_and_rows_expected_have_to_agree) {
  const std::string message = message_of_two([](Comm& comm, bool second) {
    using Sizes = std::vector<std::int64_t>;
    comm.all_to_all_v(numbered(3, 2, 0), Sizes{1, 2}, second ? Sizes{3, 2} : Sizes{1, 1});
  });
  BOOST_TEST(has(message, "rank 0 sends 2 rows to rank 1, which expects 3"), message);
  BOOST_TEST(has(message, "all_to_all_v(float32 [3, 2], to [1,2], from [3,2])"), message);
}

BOOST_AUTO_TEST_CASE(an_all_to_all_of_rows_that_do_not_divide_is_refused) {
  const std::string message =
      message_of_two([](Comm& comm, bool) { comm.all_to_all(numbered(3, 2, 0)); });
  BOOST_TEST(has(message, "all_to_all of 3 rows over 2 ranks: not divisible"), message);
}

BOOST_AUTO_TEST_CASE(a_received_shape_that_is_not_the_expected_one_is_refused) {
  const std::string message = message_of_two([](Comm& comm, bool second) {
    if (second)
      comm.recv<Matrix<float>>(0, 3, 2);
    else
      comm.send(numbered(2, 2, 0), 1);
  });
  BOOST_TEST(has(message, "rank 1 expects another shape than rank 0 sends"), message);
  BOOST_TEST(has(message, "tp=0 (rank 0) call 1: send(float32 [2, 2], to 1)"), message);
  BOOST_TEST(has(message, "tp=1 (rank 1) call 1: recv(float32 [3, 2], from 0)"), message);
}

BOOST_AUTO_TEST_CASE(a_received_type_that_is_not_the_sent_one_is_refused) {
  const std::string message = message_of_two([](Comm& comm, bool second) {
    if (second)
      comm.recv<Ops::Routing>(0);
    else
      comm.send(numbered(2, 2, 0), 1);
  });
  BOOST_TEST(has(message, "rank 0 sends float32 to rank 1, which expects routing"), message);
}

BOOST_AUTO_TEST_CASE(element_types_that_differ_are_refused) {
  World world(2);
  Group group(world, "tp", {0, 1});
  const ArrayOps<float> floats;
  const ArrayOps<std::int32_t> integers;
  const std::string message = message_of([&] {
    world.run([&](std::int64_t rank) {
      if (rank == 0)
        SimComm(floats, group, rank).all_reduce(Array<float>(2, 2));
      else
        SimComm(integers, group, rank).all_reduce(Array<std::int32_t>(2, 2));
    });
  });
  BOOST_TEST(has(message, "ranks differ in the element type"), message);
  BOOST_TEST(has(message, "all_reduce(int32 [2, 2])"), message);
}

BOOST_DATA_TEST_CASE(a_peer_that_is_no_other_rank_is_refused, data::make({-1, 0, 2}), peer) {
  const std::string message = message_of_two([&](Comm& comm, bool second) {
    if (second) return comm.barrier();
    comm.send(numbered(1, 1, 0), peer);
  });
  BOOST_TEST(has(message, text("send of rank 0 with rank ", peer, " of 2 ranks")), message);
  const std::string alone = message_of(
      [&] { run_ranks(Ops{}, 1, [&](Comm& comm) { return comm.recv<Matrix<float>>(peer); }); });
  BOOST_TEST(has(alone, text("recv of rank 0 with rank ", peer, " of 1 ranks")), alone);
}

BOOST_AUTO_TEST_CASE(a_group_that_has_failed_fails_every_later_call) {
  int failures = 0;
  run_ranks(Ops{}, 2, [&](Comm& comm) {
    const auto count = [&](auto call) {
      try {
        call();
      } catch (const CommError&) {
        ++failures;
      }
    };
    count([&] { comm.broadcast(numbered(2, 2, 0), comm.rank()); });
    count([&] { comm.barrier(); });
    return 0;
  });
  BOOST_TEST(failures == 4);
}

// Elements of every type.

template <class T>
T element(std::int64_t value) {
  if constexpr (std::is_same_v<T, Bfloat16>)
    return Bfloat16(float(value));
  else
    return T(value);
}

template <class T>
Array<T> counted(std::int64_t rows, std::int64_t cols, std::int64_t first) {
  Array<T> x(rows, cols);
  for (std::int64_t i = 0; i < x.size(); ++i) x.data()[i] = element<T>(first + i);
  return x;
}

using Types = std::tuple<float, double, std::int32_t, std::int64_t, Bfloat16>;

BOOST_AUTO_TEST_CASE_TEMPLATE(every_element_type_moves_and_adds, T, Types) {
  for (const int size : {1, 2, 3, 5})
    for (const ReductionOrder order :
         {ReductionOrder::rank, ReductionOrder::ring, ReductionOrder::tree})
      run_ranks(
          ArrayOps<T>{}, size,
          [&](SimComm<ArrayOps<T>>& comm) {
            const std::int64_t me = comm.rank();
            const Array<T> x = counted<T>(2 * size, size, me);
            Array<T> sum(2 * size, size);
            for (std::int64_t i = 0; i < sum.size(); ++i)
              sum.data()[i] = element<T>(size * (size - 1) / 2 + size * i);
            BOOST_TEST((comm.all_reduce(x) == sum));
            for (const Axis axis : {Axis::rows, Axis::cols})
              BOOST_TEST((comm.all_gather(comm.reduce_scatter(x, axis), axis) == sum));
            BOOST_TEST((comm.all_to_all(comm.all_to_all(x)) == x));
            BOOST_TEST((comm.broadcast(x, size - 1) == counted<T>(2 * size, size, size - 1)));
            if (size > 1 && me == 0) comm.send(x, 1);
            if (me == 1)
              BOOST_TEST((comm.template recv<Array<T>>(0) == counted<T>(2 * size, size, 0)));
            return 0;
          },
          "tp", order);
}

BOOST_AUTO_TEST_CASE(sums_of_more_than_one_block_are_exact_up_to_the_last_element) {
  // 10000 columns are several blocks of the cache and a rest.
  run_ranks(ArrayOps<std::int32_t>{}, 3, [](SimComm<ArrayOps<std::int32_t>>& comm) {
    const auto x = counted<std::int32_t>(3, 10007, 100000 * comm.rank());
    const auto sum = comm.all_reduce(x);
    for (std::int64_t i = 0; i < sum.size(); ++i)
      if (sum.data()[i] != 300000 + 3 * i) BOOST_FAIL("element " << i << ": " << sum.data()[i]);
    BOOST_TEST((comm.all_gather(comm.reduce_scatter(x, Axis::rows), Axis::rows) == sum));
    return 0;
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(results_that_go_around_the_cache_are_exact, T, Types) {
  // 3 x 2100007 elements of each rank: more than the cache is used for, and no whole line at the
  // end.
  const std::int64_t size = 3, cols = 2100007;
  const auto value = [](std::int64_t i, std::int64_t rank) { return (i % 50) + 1 + rank; };
  run_ranks(ArrayOps<T>{}, size, [&](SimComm<ArrayOps<T>>& comm) {
    Array<T> x(size, cols);
    for (std::int64_t i = 0; i < x.size(); ++i) x.data()[i] = element<T>(value(i, comm.rank()));
    const auto first_wrong = [&](const Array<T>& found) {
      for (std::int64_t i = 0; i < found.size(); ++i)
        if (found.data()[i] != element<T>(3 * value(i, 1))) return i;
      return std::int64_t{-1};
    };
    BOOST_TEST(first_wrong(comm.all_reduce(x)) == -1);
    const Array<T> part = comm.reduce_scatter(x, Axis::rows);
    BOOST_TEST(part.rows() == 1);
    BOOST_TEST(first_wrong(comm.all_gather(part, Axis::rows)) == -1);
    return 0;
  });
}

BOOST_AUTO_TEST_CASE(a_bfloat16_sum_is_rounded_after_every_addition) {
  // From 256 on, every second whole number is a bfloat16. 256 + 1 is halfway and goes to the even
  // mantissa, so ones are lost one by one; rounding once, at the end, would keep them.
  const auto sum = [](std::vector<std::int64_t> values, ReductionOrder order) {
    return float(run_ranks(
        ArrayOps<Bfloat16>{}, std::int64_t(values.size()),
        [&](SimComm<ArrayOps<Bfloat16>>& comm) {
          return comm.all_reduce(counted<Bfloat16>(1, 1, values[std::size_t(comm.rank())]));
        },
        "tp", order)[0](0, 0));
  };
  BOOST_TEST(sum({256, 1, 1, 1}, ReductionOrder::rank) == 256.0f);
  BOOST_TEST(sum({256, 1, 1, 1}, ReductionOrder::tree) == 258.0f);
  BOOST_TEST(sum({256, 3}, ReductionOrder::rank) == 260.0f);  // halfway, to even: not cut off
}

BOOST_AUTO_TEST_CASE(an_integer_sum_wraps_around) {
  const auto results =
      run_ranks(ArrayOps<std::int32_t>{}, 2, [](SimComm<ArrayOps<std::int32_t>>& comm) {
        return comm.all_reduce(
            counted<std::int32_t>(1, 1, std::numeric_limits<std::int32_t>::max()));
      });
  BOOST_TEST(results[0](0, 0) == -2);
}

// What is counted.

BOOST_AUTO_TEST_CASE(traffic_is_what_a_ring_of_ranks_sends) {
  // Four ranks, float32 [8, 6]: 48 elements.
  const auto traffic_of = [](auto body) {
    World world(4);
    Group group(world, "tp", {0, 1, 2, 3});
    const Ops ops;
    world.run([&](std::int64_t rank) {
      Comm comm(ops, group, rank);
      body(comm);
    });
    std::vector<Traffic> of_ranks;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      BOOST_TEST((world.traffic(rank) == group.traffic(rank)));
      of_ranks.push_back(group.traffic(rank));
    }
    return of_ranks;
  };
  const auto is = [](const Traffic& found, std::int64_t messages, double elements) {
    BOOST_TEST(found.calls == 1);
    BOOST_TEST(found.messages == messages);
    BOOST_TEST(found.elements == elements);
    BOOST_TEST(found.bytes == 4 * elements);
  };
  const Matrix<float> x = numbered(8, 6, 0);
  const std::vector<std::int64_t> sizes{1, 4, 0, 3};
  const auto reduced = traffic_of([&](Comm& c) { c.all_reduce(x); });
  const auto gathered = traffic_of([&](Comm& c) { c.all_gather(x, Axis::cols); });
  const auto scattered = traffic_of([&](Comm& c) { c.reduce_scatter(x, Axis::rows); });
  const auto exchanged = traffic_of([&](Comm& c) { c.all_to_all(x); });
  const auto sent_to_all = traffic_of([&](Comm& c) { c.broadcast(x, 2); });
  const auto barrier = traffic_of([&](Comm& c) { c.barrier(); });
  const auto scattered_v = traffic_of([&](Comm& c) { c.reduce_scatter_v(x, sizes); });
  const auto gathered_v = traffic_of(
      [&](Comm& c) { c.all_gather_v(numbered(sizes[std::size_t(c.rank())], 6, 0), sizes); });
  const auto passed = traffic_of([&](Comm& c) {
    if (c.rank() % 2 == 0)
      c.send(x, c.rank() + 1);
    else
      c.recv<Matrix<float>>(c.rank() - 1);
  });
  for (std::size_t i = 0; i < 4; ++i) {
    const double mine = double(sizes[i]), next = double(sizes[(i + 1) % 4]);
    is(reduced[i], 6, 2 * 36);
    is(gathered[i], 3, 3 * 48);
    is(scattered[i], 3, 36);
    is(exchanged[i], 3, 36);
    is(sent_to_all[i], i == 1 ? 0 : 1, i == 1 ? 0 : 48);  // the rank before the root is the last
    is(barrier[i], 6, 0);
    is(scattered_v[i], 3, 6 * (8 - mine));
    is(gathered_v[i], 3, 6 * (8 - next));
    is(passed[i], i % 2 == 0 ? 1 : 0, i % 2 == 0 ? 48 : 0);
  }
}

BOOST_AUTO_TEST_CASE(a_group_of_one_sends_nothing) {
  World world(1);
  Group group(world, "tp", {0});
  const Ops ops;
  world.run([&](std::int64_t rank) {
    Comm comm(ops, group, rank);
    const Matrix<float> x = numbered(2, 2, 0);
    comm.all_reduce(x);
    comm.all_gather(x, Axis::rows);
    comm.broadcast(x, 0);
    comm.all_to_all(x);
    comm.barrier();
  });
  BOOST_TEST((group.traffic(0) == Traffic{5, 0, 0, 0}));
}

BOOST_AUTO_TEST_CASE(every_rank_of_a_mesh_has_traffic_of_its_own) {
  ParallelConfig parallel;
  parallel.tp = 2;
  parallel.dp = 2;
  parallel.pp = 2;
  SimMesh mesh(parallel);
  const Ops ops;
  mesh.run([&](const RankCoordinates&) -> const Ops& { return ops; },
           [](SimComms<Ops>& comms) {
             comms.tp.all_reduce(numbered(2, 2, 0));
             if (comms.at.pp == 0)
               comms.pp.send(numbered(1, 5, int(comms.at.tp + 10 * comms.at.dp)), 1);
             else
               BOOST_TEST((comms.pp.recv<Matrix<float>>(0) ==
                           numbered(1, 5, int(comms.at.tp + 10 * comms.at.dp))));
             return 0;
           });
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    const RankCoordinates at = coordinates_of(rank, parallel);
    const Traffic sent = mesh.traffic(rank);
    BOOST_TEST(sent.calls == 2);
    BOOST_TEST(sent.elements == (at.pp == 0 ? 4 + 5 : 4));
    BOOST_TEST(mesh.pp(at).traffic(at.pp).elements == (at.pp == 0 ? 5 : 0));
  }
}

}  // namespace tokenview
