// SPDX-License-Identifier: Apache-2.0
#include "reference/gemm.hpp"
#include "tests/support.hpp"

namespace tokenview {
namespace {

/// Around the widths of a panel (fp32 32, fp64 16) and of a tile of rows (12, or 3).
const std::vector<std::int64_t> sizes = {0, 1, 2, 3, 11, 12, 13, 15, 16, 17, 31, 32, 33, 65};

template <class S>
PackedMatrix<S> packed(const Matrix<S>& w) {
  PackedMatrix<S> to(1, w.rows(), w.cols());
  to.pack(0, w.data(), w.cols());
  return to;
}

template <class S>
Matrix<S> product(const Matrix<S>& x, const PackedMatrix<S>& w, int num_threads = 1) {
  Matrix<S> y = Matrix<S>::Constant(x.rows(), w.out(), S(99));
  gemm(x.data(), x.cols(), x.rows(), w, 0, y.data(), y.cols(), num_threads);
  return y;
}

/// Each sum is off by at most gamma_k = k u / (1 - k u) of the sum of its terms' magnitudes.
/// Source: Higham 2002, "Accuracy and Stability of Numerical Algorithms", equation 3.5.
template <class S>
Claim is_product(const Matrix<S>& y, const Matrix<S>& x, const Matrix<S>& w) {
  const double k = double(x.cols()) * unit_roundoff<S>;
  for (Eigen::Index r = 0; r < x.rows(); ++r)
    for (Eigen::Index o = 0; o < w.rows(); ++o) {
      long double sum = 0, magnitude = 0;
      for (Eigen::Index i = 0; i < x.cols(); ++i) {
        const auto term = static_cast<long double>(x(r, i)) * w(o, i);
        sum += term;
        magnitude += std::abs(term);
      }
      if (!(std::abs(y(r, o) - sum) <= k / (1 - k) * magnitude))
        return refuted(text("row ", r, ", column ", o, ": ", y(r, o), " is not ", sum));
    }
  return true;
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(a_product_is_the_naive_sum, S, FloatAndDouble) {
  std::mt19937_64 random(1);
  for (const std::int64_t rows : sizes)
    for (const std::int64_t in : sizes)
      for (const std::int64_t out : sizes) {
        const Matrix<S> x = random_matrix<S>(random, rows, in);
        const Matrix<S> w = random_matrix<S>(random, out, in);
        BOOST_TEST_INFO(text("rows ", rows, ", in ", in, ", out ", out));
        BOOST_TEST(is_product(product(x, packed(w)), x, w));
      }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_row_has_the_same_bits_alone_and_at_any_place, S, FloatAndDouble) {
  std::mt19937_64 random(2);
  const Matrix<S> x = random_matrix<S>(random, 101, 67);
  const PackedMatrix<S> w = packed(random_matrix<S>(random, 45, 67));
  const Matrix<S> y = product(x, w);
  for (Eigen::Index r = 0; r < x.rows(); ++r) {
    const Matrix<S> alone = x.row(r);
    BOOST_TEST(same_bits<S>(product(alone, w), y.row(r)));
  }
  for (const Eigen::Index rows : {2, 5, 12, 13, 25, 96, 97}) {
    const Matrix<S> last = x.bottomRows(rows);
    BOOST_TEST(same_bits<S>(product(last, w), y.bottomRows(rows)));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(two_threads_give_the_same_bits_as_one, S, FloatAndDouble) {
  std::mt19937_64 random(3);
  const Matrix<S> x = random_matrix<S>(random, 201, 129);
  const PackedMatrix<S> w = packed(random_matrix<S>(random, 95, 129));  // enough work for threads
  BOOST_TEST(same_bits(product(x, w, 2), product(x, w, 1)));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_block_of_columns_has_the_bits_of_the_whole, S, FloatAndDouble) {
  std::mt19937_64 random(4);
  const Matrix<S> x = random_matrix<S>(random, 17, 65);
  const Matrix<S> w = random_matrix<S>(random, 96, 65);
  const Matrix<S> whole = product(x, packed(w));
  for (const Eigen::Index parts : {2, 3, 4, 6, 8}) {
    const Eigen::Index width = w.rows() / parts;
    for (Eigen::Index p = 0; p < parts; ++p) {
      const Matrix<S> block = w.middleRows(p * width, width);
      BOOST_TEST(same_bits<S>(product(x, packed(block)), whole.middleCols(p * width, width)));
    }
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(strides_skip_what_does_not_belong_to_the_operands, S,
                              FloatAndDouble) {
  std::mt19937_64 random(5);
  const Matrix<S> wide = random_matrix<S>(random, 14, 40);
  const Matrix<S> x = wide.middleCols(3, 21);
  const Matrix<S> w = random_matrix<S>(random, 33, 21);
  Matrix<S> y = Matrix<S>::Constant(14, 50, S(99));
  gemm(wide.data() + 3, wide.cols(), wide.rows(), packed(w), 0, y.data() + 7, y.cols(), 1);
  BOOST_TEST(same_bits<S>(y.middleCols(7, 33), product(x, packed(w))));
  BOOST_TEST((y.leftCols(7).array() == S(99)).all());
  BOOST_TEST((y.rightCols(10).array() == S(99)).all());
}

BOOST_AUTO_TEST_CASE_TEMPLATE(packed_values_are_found_again, S, FloatAndDouble) {
  std::mt19937_64 random(6);
  const Matrix<S> a = random_matrix<S>(random, 35, 6), b = random_matrix<S>(random, 35, 6);
  const Matrix<S> transposed = b.transpose();
  PackedMatrix<S> w(2, 35, 6);
  w.pack(0, a.data(), 6);
  w.pack(1, transposed.data(), 1, 35);
  for (Eigen::Index o = 0; o < 35; ++o)
    for (Eigen::Index i = 0; i < 6; ++i) {
      BOOST_TEST(w.at(0, o, i) == a(o, i));
      BOOST_TEST(w.at(1, o, i) == b(o, i));
    }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(each_matrix_of_a_pack_is_used_by_its_index, S, FloatAndDouble) {
  std::mt19937_64 random(7);
  const Matrix<S> x = random_matrix<S>(random, 5, 19);
  PackedMatrix<S> all(3, 20, 19);
  for (std::int64_t index = 0; index < 3; ++index) {
    const Matrix<S> w = random_matrix<S>(random, 20, 19);
    all.pack(index, w.data(), 19);
    Matrix<S> y(5, 20);
    gemm(x.data(), 19, 5, all, index, y.data(), 20, 1);
    BOOST_TEST(same_bits(y, product(x, packed(w))));
  }
}

}  // namespace tokenview
