// SPDX-License-Identifier: Apache-2.0
// What holds of the collectives for all tensors, sizes and groups; a counterexample is shrunk.
#include <rapidcheck.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "comm_sim/array_ops.hpp"
#include "comm_sim/run_ranks.hpp"
#include "tests/boost_test.hpp"

namespace tokenview {
namespace {

using Ints = Array<std::int32_t>;
using IntComm = SimComm<ArrayOps<std::int32_t>>;

constexpr ReductionOrder orders[] = {ReductionOrder::rank, ReductionOrder::ring,
                                     ReductionOrder::tree};

/// One shape and the elements of each rank.
template <class T>
struct Tensors {
  std::int64_t rows, cols;
  std::vector<Array<T>> of_rank;

  std::int64_t size() const { return std::int64_t(of_rank.size()); }
};

/// The size of a group.
std::int64_t any_group() { return *rc::gen::inRange<std::int64_t>(1, 10).as("ranks"); }

template <class T>
Array<T> any_array(std::int64_t rows, std::int64_t cols, const rc::Gen<T>& elements) {
  const auto values =
      *rc::gen::container<std::vector<T>>(std::size_t(rows * cols), elements).as("elements");
  Array<T> x(rows, cols);
  std::ranges::copy(values, x.data());
  return x;
}

/// A tensor for each of `size` ranks; extents are multiples of `multiple`, and may be zero rows.
template <class T>
Tensors<T> any_tensors(std::int64_t size, std::int64_t multiple, const rc::Gen<T>& elements) {
  Tensors<T> x;
  x.rows = multiple * *rc::gen::inRange<std::int64_t>(0, 5).as("rows over the multiple");
  x.cols = multiple * *rc::gen::inRange<std::int64_t>(1, 4).as("columns over the multiple");
  for (std::int64_t rank = 0; rank < size; ++rank)
    x.of_rank.push_back(any_array(x.rows, x.cols, elements));
  return x;
}

/// The results of `body(comm, x of the rank)`, in rank order.
template <class T, class Body>
auto on_ranks(const std::vector<Array<T>>& of_rank, Body body,
              ReductionOrder order = ReductionOrder::rank) {
  using Comm = SimComm<ArrayOps<T>>;
  return run_ranks(
      ArrayOps<T>{}, std::int64_t(of_rank.size()),
      [&](Comm& comm) { return body(comm, of_rank[std::size_t(comm.rank())]); }, "tp", order);
}

template <class T>
auto all_reduced(const std::vector<Array<T>>& of_rank, ReductionOrder order) {
  return on_ranks(
      of_rank, [](auto& comm, const Array<T>& x) { return comm.all_reduce(x); }, order);
}

ReductionOrder any_order() {
  return *rc::gen::elementOf(std::vector<ReductionOrder>(std::begin(orders), std::end(orders)));
}

Axis any_axis() { return *rc::gen::element(Axis::rows, Axis::cols); }

/// Runs a property; RapidCheck prints the shrunk counterexample.
template <class Property>
void for_all(Property property) {
  BOOST_TEST(rc::check(property));
}

/// Finite floats of very different sizes.
rc::Gen<float> any_float() {
  return rc::gen::map(
      rc::gen::pair(rc::gen::inRange(-(1 << 24), 1 << 24), rc::gen::inRange(-20, 21)),
      [](const std::pair<int, int>& parts) {
        return std::ldexp(float(parts.first), parts.second);
      });
}

}  // namespace

BOOST_AUTO_TEST_CASE(gathering_a_reduce_scatter_is_an_all_reduce_to_the_bit) {
  // Where the parts are chunks of the ring: rows. Along columns its chunks lie otherwise.
  for_all([] {
    const ReductionOrder order = any_order();
    const Axis axis = order == ReductionOrder::ring ? Axis::rows : any_axis();
    const std::int64_t size = any_group();
    const auto x = any_tensors(size, size, any_float());
    const auto sums = all_reduced(x.of_rank, order);
    const auto gathered = on_ranks(
        x.of_rank,
        [axis](auto& comm, const Array<float>& mine) {
          return comm.all_gather(comm.reduce_scatter(mine, axis), axis);
        },
        order);
    RC_ASSERT(gathered == sums);
  });
}

BOOST_AUTO_TEST_CASE(gathering_a_ragged_reduce_scatter_is_an_all_reduce_to_the_bit) {
  for_all([] {
    const ReductionOrder order = *rc::gen::element(ReductionOrder::rank, ReductionOrder::tree);
    const auto sizes = *rc::gen::nonEmpty(rc::gen::resize(
        8, rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 5))));
    const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    std::vector<Array<float>> of_rank;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank)
      of_rank.push_back(any_array(rows, 3, any_float()));
    const auto gathered = on_ranks(
        of_rank,
        [&](auto& comm, const Array<float>& mine) {
          return comm.all_gather_v(comm.reduce_scatter_v(mine, sizes), sizes);
        },
        order);
    RC_ASSERT(gathered == all_reduced(of_rank, order));
  });
}

BOOST_AUTO_TEST_CASE(scattering_and_gathering_a_tensor_is_the_identity) {
  for_all([] {
    const Axis axis = any_axis();
    const std::int64_t size = any_group();
    const Ints x = any_tensors(size, size, rc::gen::arbitrary<std::int32_t>()).of_rank[0];
    const ArrayOps<std::int32_t> ops;
    const std::int64_t part = ops.extent(x, axis) / size;
    const auto gathered =
        on_ranks(std::vector<Ints>(std::size_t(size), x), [&](IntComm& comm, const Ints& whole) {
          const std::int64_t begin = comm.rank() * part;
          return comm.all_gather(ops.slice(whole, axis, begin, begin + part), axis);
        });
    for (const Ints& result : gathered) RC_ASSERT(result == x);
  });
}

BOOST_AUTO_TEST_CASE(permuting_the_ranks_permutes_what_they_bring_and_get) {
  for_all([] {
    const Axis axis = any_axis();
    const std::int64_t size = any_group();
    const auto x = any_tensors(size, size, rc::gen::arbitrary<std::int32_t>());
    std::vector<std::size_t> from(x.of_rank.size());  // place i has what rank from[i] had
    std::iota(from.begin(), from.end(), 0);
    const auto keys =
        *rc::gen::container<std::vector<int>>(from.size(), rc::gen::arbitrary<int>()).as("order");
    std::ranges::stable_sort(from, {}, [&](std::size_t i) { return keys[i]; });
    std::vector<Ints> permuted;
    for (const std::size_t rank : from) permuted.push_back(x.of_rank[rank]);

    const auto sum = [](IntComm& comm, const Ints& mine) { return comm.all_reduce(mine); };
    RC_ASSERT(on_ranks(permuted, sum) == on_ranks(x.of_rank, sum));

    // Of a gather, part i is what rank from[i] had.
    const auto gather = [axis](IntComm& comm, const Ints& mine) {
      return comm.all_gather(mine, axis);
    };
    const ArrayOps<std::int32_t> ops;
    const Ints before = on_ranks(x.of_rank, gather)[0], after = on_ranks(permuted, gather)[0];
    const std::int64_t width = ops.extent(x.of_rank[0], axis);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto place = std::int64_t(i), rank = std::int64_t(from[i]);
      RC_ASSERT(ops.slice(after, axis, place * width, (place + 1) * width) ==
                ops.slice(before, axis, rank * width, (rank + 1) * width));
    }

    // Of an all-to-all, where the parts for the ranks have changed places as well.
    const std::int64_t part_rows = x.rows / size;
    const auto part = [&](const Ints& whole, std::size_t at) {
      return ops.slice(whole, Axis::rows, std::int64_t(at) * part_rows,
                       std::int64_t(at + 1) * part_rows);
    };
    const auto rearranged = [&](const Ints& whole) {
      std::vector<Ints> parts;
      std::vector<const Ints*> in_order;
      for (const std::size_t rank : from) parts.push_back(part(whole, rank));
      for (const Ints& each : parts) in_order.push_back(&each);
      return ops.concat(in_order, Axis::rows);
    };
    std::vector<Ints> rearranged_of_rank, expected;
    const auto exchange = [](IntComm& comm, const Ints& mine) { return comm.all_to_all(mine); };
    const std::vector<Ints> exchanged = on_ranks(x.of_rank, exchange);
    for (const std::size_t rank : from) {
      rearranged_of_rank.push_back(rearranged(x.of_rank[rank]));
      expected.push_back(rearranged(exchanged[rank]));
    }
    RC_ASSERT(on_ranks(rearranged_of_rank, exchange) == expected);
  });
}

BOOST_AUTO_TEST_CASE(integers_have_one_sum_in_every_order) {
  for_all([] {
    const auto x = any_tensors(any_group(), 1, rc::gen::arbitrary<std::int32_t>());
    const auto in_rank_order = all_reduced(x.of_rank, ReductionOrder::rank);
    RC_ASSERT(all_reduced(x.of_rank, ReductionOrder::ring) == in_rank_order);
    RC_ASSERT(all_reduced(x.of_rank, ReductionOrder::tree) == in_rank_order);
  });
}

BOOST_AUTO_TEST_CASE(floats_differ_between_orders_by_rounding_only) {
  // Each of p - 1 additions rounds by at most u = 2^-24 of a partial sum, which the sum of absolute
  // values bounds. So every order is within (p - 1) u / (1 - (p - 1) u) * sum |x_i| of the true sum
  // (Higham, Accuracy and Stability of Numerical Algorithms, 4.2), and two within twice that.
  for_all([] {
    const auto x = any_tensors(any_group(), 1, any_float());
    const double errors = double(x.size() - 1) * std::ldexp(1.0, -24);
    for (const ReductionOrder order : orders) {
      const auto sums = all_reduced(x.of_rank, order);
      for (std::int64_t i = 0; i < x.rows * x.cols; ++i) {
        double sum = 0, magnitude = 0;  // in double: 2^-53 * p beside 2^-24
        for (const auto& mine : x.of_rank) {
          sum += double(mine.data()[i]);
          magnitude += std::abs(double(mine.data()[i]));
        }
        const double bound = errors / (1 - errors) * magnitude;
        for (const auto& result : sums)
          RC_ASSERT(std::abs(double(result.data()[i]) - sum) <= bound * (1 + 1e-6));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(every_rank_gets_the_same_sum_to_the_bit) {
  for_all([] {
    const auto x = any_tensors(any_group(), 1, any_float());
    const auto sums = all_reduced(x.of_rank, any_order());
    for (const auto& sum : sums) RC_ASSERT(sum == sums[0]);
  });
}

BOOST_AUTO_TEST_CASE(an_exchange_and_its_transpose_are_the_identity) {
  for_all([] {
    const auto size = std::size_t(any_group());
    std::vector<std::vector<std::int64_t>> to, from(size);  // rows from rank i to rank j
    std::vector<Ints> of_rank;
    for (std::size_t i = 0; i < size; ++i) {
      to.push_back(
          *rc::gen::container<std::vector<std::int64_t>>(size, rc::gen::inRange<std::int64_t>(0, 4))
               .as("rows to each rank"));
      for (std::size_t j = 0; j < size; ++j) from[j].push_back(to[i][j]);
      of_rank.push_back(any_array(std::accumulate(to[i].begin(), to[i].end(), std::int64_t{0}), 2,
                                  rc::gen::arbitrary<std::int32_t>()));
    }
    const auto back = on_ranks(of_rank, [&](IntComm& comm, const Ints& mine) {
      const auto& sent = to[std::size_t(comm.rank())];
      const auto& received = from[std::size_t(comm.rank())];
      return comm.all_to_all_v(comm.all_to_all_v(mine, sent, received), received, sent);
    });
    RC_ASSERT(back == of_rank);
  });
}

BOOST_AUTO_TEST_CASE(what_all_ranks_send_is_what_a_ring_of_them_sends) {
  // Of the whole group: an all-gather p - 1 times every part, a reduce-scatter p - 1 times the
  // tensor, an all-reduce both.
  for_all([] {
    const std::int64_t size = any_group();
    const auto x = any_tensors(size, size, rc::gen::arbitrary<std::int32_t>());
    const auto elements_of = [&](auto call) {
      World world(size);
      std::vector<std::int64_t> members(x.of_rank.size());
      std::iota(members.begin(), members.end(), 0);
      Group group(world, "tp", members);
      const ArrayOps<std::int32_t> ops;
      world.run([&](std::int64_t rank) {
        IntComm comm(ops, group, rank);
        call(comm, x.of_rank[std::size_t(rank)]);
      });
      double elements = 0;
      for (std::int64_t rank = 0; rank < size; ++rank) elements += group.traffic(rank).elements;
      return elements;
    };
    const double whole = double(x.rows * x.cols), others = double(size - 1);
    const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-9 * (1 + b); };
    RC_ASSERT(near(elements_of([](IntComm& c, const Ints& m) { c.all_gather(m, Axis::rows); }),
                   others * double(size) * whole));
    RC_ASSERT(near(elements_of([](IntComm& c, const Ints& m) { c.reduce_scatter(m, Axis::cols); }),
                   others * whole));
    RC_ASSERT(
        near(elements_of([](IntComm& c, const Ints& m) { c.all_reduce(m); }), 2 * others * whole));
  });
}

}  // namespace tokenview
