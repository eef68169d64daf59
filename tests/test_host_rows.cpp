// SPDX-License-Identifier: Apache-2.0
// Ids and pad masks: two sequences of three and two tokens, then two pads.
#include "reference/program/host_rows.hpp"
#include "tests/boost_test.hpp"

namespace tokenview {
namespace {

using Ids = HostRows::Ids;
using Mask = HostRows::Mask;

const HostRows rows;

Batch padded_batch() {
  Batch batch;
  batch.input_ids = {10, 11, 12, 20, 21, 0, 0};
  batch.query_start_loc = {0, 3, 5};
  return batch;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_mask_marks_the_pads_and_is_cut_like_the_rows) {
  const Mask mask = rows.pad_rows(rows.pad_mask(padded_batch()), 1);
  BOOST_TEST(mask == (Mask{0, 0, 0, 0, 0, 1, 1, 1}));
  BOOST_TEST(rows.slice(mask, Axis::rows, 0, 4) == (Mask{0, 0, 0, 0}));
  BOOST_TEST(rows.slice(mask, Axis::rows, 4, 8) == (Mask{0, 1, 1, 1}));
  BOOST_TEST(rows.slice(mask, Axis::rows, 8, 8) == Mask());
  BOOST_TEST(rows.take_rows(mask, {7, 0, 5}) == (Mask{1, 0, 1}));
  BOOST_TEST(rows.extent(mask, Axis::rows) == 8);
}

BOOST_AUTO_TEST_CASE(ids_shift_inside_their_sequence) {
  const Batch batch = padded_batch();
  const Ids shifted = rows.next_ids(rows.ids(batch), batch, {2, 4}, {13, 22});
  BOOST_TEST(shifted == (Ids{11, 12, 13, 21, 22, 0, 0}));
  BOOST_TEST(rows.select(shifted, {2, 4}) == (Ids{13, 22}));
  BOOST_TEST(rows.pad_ids({13, 22}, 2) == (Ids{13, 22, 0, 0}));
}

BOOST_AUTO_TEST_CASE(rolled_ids_shift_inside_each_shard) {
  BOOST_TEST(rows.rolled({1, 2, 3, 4, 5}, 2) == (Ids{1, 2, 1, 4, 5}));
  BOOST_TEST(rows.rolled({1, 2, 3}, 1) == (Ids{1, 2, 3}));
  BOOST_TEST(rows.rolled({}, 2) == Ids());
}

}  // namespace tokenview
