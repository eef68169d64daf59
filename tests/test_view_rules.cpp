// SPDX-License-Identifier: Apache-2.0
// Rules and numbers cannot drift. One table drives both: each operation and each collective runs on
// random numbers and on views side by side, and what the result's view says is confirmed on the
// numbers against the unsharded value of each token. Damaged numbers, and damaged views, are seen
// by that same confirmation; operands that a rule refuses give the finding that the table names.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <functional>
#include <optional>
#include <set>

#include "comm_sim/run_ranks.hpp"
#include "reference/program/drafter.hpp"
#include "tests/held_view.hpp"
#include "tests/support.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Numbers = EigenOps<double>;
using Values = Matrix<double>;
using View = ViewOps::Tensor;

/// A weight, or the part of it that a rank has.
struct Weight {
  Numbers::Weight number;
  ViewOps::Weight view;
};
const Numbers::Weight& of(const Numbers&, const Weight& w) { return w.number; }
const ViewOps::Weight& of(const ViewOps&, const Weight& w) { return w.view; }

/// How an operand is made unlike what an operation requires.
enum class Spoil {
  rows,     // two rows change places on the last rank
  twice,    // the value twice
  summand,  // one summand of several where the value is complete
  columns,  // the column block of another rank
  garbage,  // pads hold anything
  special,  // as the rule itself does it
};

struct Refusal {
  const char* operand;
  Spoil spoil;
  FindingKind kind;
};

enum class Sum { complete, summands };

/// How an operand lies on the ranks.
struct Layout {
  std::vector<Rows> rows;  // of each rank
  Sum sum = Sum::complete;
  bool in_blocks = false;  // column block r of p on rank r
};

/// Random operands of `p` ranks, laid out as their views say, and the arithmetic of both kinds.
class Scene {
 public:
  Scene(std::uint64_t seed, std::optional<Refusal> refused)
      : random(seed), refusal(refused), p(2 + std::int64_t(seed % 3)), tokens(3 + below(4)) {}

  std::int64_t below(std::int64_t n) { return std::int64_t(random() % std::uint64_t(n)); }
  std::size_t ranks() const { return std::size_t(p); }
  bool spoils(const char* operand) const {
    return refusal && refusal->operand == std::string_view(operand);
  }

  /// Values of the tokens of two dp ranks, or of one.
  Truth truth(std::int64_t width, std::int64_t dps = 2) {
    return {random_matrix<double>(random, dps * tokens, width), tokens};
  }

  /// At least two tokens, of either dp rank, and pads among them; the same rows on every rank.
  std::vector<Rows> any_rows(std::int64_t dps = 2) {
    std::vector<std::int64_t> order(std::size_t(dps * tokens));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    order.resize(std::size_t(2 + below(dps * tokens - 1)));
    Rows rows;
    for (const std::int64_t t : order) {
      rows.append({std::int32_t(t % tokens), 1, std::int16_t(t / tokens)});
      if (below(3) == 0)
        rows.append_pads(
            1, std::array{PadContent::zero, PadContent::stale,
                          PadContent::other}[std::size_t(below(pads_may_be_garbage ? 3 : 2))]);
    }
    return std::vector<Rows>(ranks(), rows);
  }
  /// The rows of a step: its tokens, then the runner's pads.
  std::vector<Rows> full_rows(std::int64_t pads) const {
    Rows rows = Rows::tokens(tokens);
    rows.append_pads(pads, PadContent::stale);
    return std::vector<Rows>(ranks(), rows);
  }
  std::vector<Rows> shards(std::int64_t of_tokens) const {
    const std::int64_t shard = (of_tokens + p - 1) / p;
    Rows rows = Rows::tokens(of_tokens);
    rows.append_pads(shard * p - of_tokens);
    std::vector<Rows> of_rank;
    for (std::int64_t r = 0; r < p; ++r) of_rank.push_back(rows.slice(r * shard, (r + 1) * shard));
    return of_rank;
  }
  /// Other rows on every rank, how many being up to it.
  std::vector<Rows> ragged() {
    std::vector<Rows> of_rank;
    std::int64_t next = 0;
    for (std::int64_t r = 0; r < p; ++r) {
      Rows rows;
      for (std::int64_t n = below(4); n > 0 && next < 2 * tokens; --n, ++next)
        rows.append({std::int32_t(next % tokens), 1, std::int16_t(next / tokens)});
      if (below(2) == 0) rows.append_pads(1);
      of_rank.push_back(rows);
    }
    return of_rank;
  }

  /// Numbers and views of `truth` on every rank, spoilt where this operand is to be refused.
  std::vector<Held> operand(const char* name, const Truth& truth, Layout layout) {
    const bool spoilt = spoils(name);
    const Spoil spoil = spoilt ? refusal->spoil : Spoil::special;
    if (spoilt && spoil == Spoil::rows) {
      Rows& rows = layout.rows.back();
      std::vector<RowRun> all;
      for (std::int64_t i = 0; i < rows.size(); ++i) all.push_back(rows.at(i));
      std::swap(all.at(0), all.at(1));
      rows = {};
      for (const RowRun& row : all) rows.append(row);
    }
    if (spoilt && spoil == Spoil::garbage)
      for (Rows& rows : layout.rows) rows.append_pads(1, PadContent::other);
    // Summands that add up, random but for the last.
    std::vector<Values> parts;
    Values rest = truth.rows;
    for (std::int64_t s = 0; s + 1 < p; ++s) {
      parts.push_back(random_matrix<double>(random, rest.rows(), rest.cols()));
      rest -= parts.back();
    }
    parts.push_back(rest);

    std::vector<Held> held;
    for (std::int64_t r = 0; r < p; ++r) {
      Held x;
      x.view.rows = layout.rows[std::size_t(r)];
      if (layout.in_blocks)
        x.view.columns = {std::int16_t(r), std::int16_t(r + 1), std::int16_t(p)};
      if (spoilt && spoil == Spoil::columns)
        x.view.columns = {std::int16_t((r + 1) % p), std::int16_t((r + 1) % p + 1),
                          std::int16_t(p)};
      const bool is_partial = layout.sum == Sum::summands || (spoilt && spoil == Spoil::summand);
      const bool is_twice = spoilt && spoil == Spoil::twice;
      if (is_partial) x.view.sum = Completeness::summand(r, p);
      if (is_twice) x.view.sum = Completeness::complete(2);
      const Truth source{
          is_partial ? parts[std::size_t(r)] : Values((is_twice ? 2.0 : 1.0) * truth.rows), tokens,
          truth.segments};
      x.view.width = std::int64_t(truth.columns(x.view.columns).size());
      x.values = Values::Zero(x.view.rows.size(), x.view.width);
      for (std::int64_t i = 0; i < x.values.rows(); ++i) {
        const RowRun row = x.view.rows.at(i);
        if (row.kind == RowKind::token)
          x.values.row(i) = source.row(row, x.view.columns);
        else if (row.content == PadContent::stale)
          x.values.row(i) = random_matrix<double>(random, 1, x.view.width);
        else if (row.content == PadContent::other)
          x.values.row(i).setConstant(std::numeric_limits<double>::quiet_NaN());
      }
      held.push_back(std::move(x));
    }
    return held;
  }

  /// op(arithmetic, rank) on every rank, of both kinds.
  template <class Op>
  std::vector<Held> run(Op op) {
    std::vector<Held> results;
    for (std::size_t r = 0; r < ranks(); ++r) results.push_back({op(numbers, r), op(views, r)});
    return results;
  }
  /// op(communicator, arithmetic, rank) on simulated ranks.
  template <class Op>
  std::vector<Held> meet(Op op) {
    std::vector<Held> results(ranks());
    const auto on = [&](const auto& ops, auto member) {
      auto made =
          run_ranks(ops, p, [&](auto& comm) { return op(comm, ops, std::size_t(comm.rank())); });
      for (std::size_t r = 0; r < ranks(); ++r) results[r].*member = std::move(made[r]);
    };
    on(numbers, &Held::values);
    on(views, &Held::view);
    return results;
  }

  ColumnBlock block(std::size_t r) const {
    return {std::int16_t(r), std::int16_t(r + 1), std::int16_t(p)};
  }

  std::mt19937_64 random;
  std::optional<Refusal> refusal;
  std::int64_t p, tokens;
  bool pads_may_be_garbage = true;
  Numbers numbers;
  std::vector<Finding> findings;
  std::vector<std::string> origins;
  ViewOps views{{}, findings, &origins};
};

/// A result on every rank, and what it is to be.
struct Trial {
  std::vector<Held> result;
  Truth truth;
};

struct Rule {
  std::string name;
  std::function<std::vector<Trial>(Scene&)> run;
  std::vector<Refusal> refusals = {};
  bool is_of_sequences = false;  // a row's result depends on its place among others
};
std::ostream& operator<<(std::ostream& out, const Rule& rule) { return out << rule.name; }

/// Part `r` of p of a linear weight [out, in], by its outputs or its inputs; all of it.
Weight by_out(const Values& w, const Scene& s, std::size_t r) {
  const Eigen::Index n = w.rows() / s.p;
  return {linear_weight<double>(w.middleRows(Eigen::Index(r) * n, n)),
          {n, w.cols(), s.block(r), {}}};
}
Weight by_in(const Values& w, const Scene& s, std::size_t r) {
  const Eigen::Index n = w.cols() / s.p;
  return {linear_weight<double>(w.middleCols(Eigen::Index(r) * n, n)),
          {w.rows(), n, {}, s.block(r)}};
}
Weight whole(const Values& w) { return {linear_weight<double>(w), {w.rows(), w.cols(), {}, {}}}; }
Weight vector_of(const Values& w) { return {plain_weight<double>(w), {w.rows(), 1, {}, {}}}; }
/// The elements of a vector [n, 1] that belong to a column block.
Weight vector_of(const Values& w, const ColumnBlock& block) {
  const Eigen::Index n = w.rows();
  return vector_of(
      Values(w.middleRows(n * block.begin / block.of, n * (block.end - block.begin) / block.of)));
}

template <class Op>
std::vector<Weight> on_each(const Scene& s, Op op) {
  std::vector<Weight> weights;
  for (std::size_t r = 0; r < s.ranks(); ++r) weights.push_back(op(r));
  return weights;
}

/// Routing weights by expert: [rows, experts], zero where a row does not go.
Values dense(const Numbers::Routing& routing, std::int64_t experts) {
  Values out = Values::Zero(routing.ids.rows(), experts);
  for (Eigen::Index t = 0; t < routing.ids.rows(); ++t)
    for (Eigen::Index j = 0; j < routing.ids.cols(); ++j)
      if (routing.ids(t, j) >= 0) out(t, routing.ids(t, j)) = routing.weights(t, j);
  return out;
}
View dense(const ViewOps::Routing& routing, std::int64_t experts) {
  View out;
  out.rows = routing.rows;
  out.width = experts;
  return out;
}

/// A step of two sequences, the first of which goes on, and the pass before it.
struct Passes {
  Batch before, step, unpadded;
  std::int64_t pads;
};
Passes passes(Scene& s) {
  const std::int64_t first = 1 + s.below(s.tokens - 1), computed = s.tokens;
  const auto rows = [](std::int64_t n) { return std::vector<std::int64_t>(std::size_t(n)); };
  Passes out;
  out.before = batch_of({{rows(computed), 0, 0}});
  out.unpadded =
      batch_of({{rows(first), std::int32_t(computed), 0}, {rows(s.tokens - first), 0, 1}});
  out.step = out.unpadded;
  out.pads = s.below(3);
  append_runner_pads(out.step, s.tokens + out.pads);
  return out;
}

constexpr double eps = 1e-6;
constexpr Refusal incomplete(const char* operand) {
  return {operand, Spoil::twice, FindingKind::completeness};
}
constexpr Refusal summand(const char* operand) {
  return {operand, Spoil::summand, FindingKind::completeness};
}
constexpr Refusal other_rows(const char* operand) {
  return {operand, Spoil::rows, FindingKind::rows};
}
constexpr Refusal other_columns(const char* operand) {
  return {operand, Spoil::columns, FindingKind::columns};
}

Sum any_sum(Scene& s) { return s.below(2) == 0 ? Sum::complete : Sum::summands; }

using Trials = std::vector<Trial>;

GdnShape gdn_shape(std::int64_t parts) { return {parts, 2 * parts, 3, 2}; }

/// Rows whose pads hold nothing that may not enter a sum.
std::vector<Rows> clean_rows(Scene& s) {
  s.pads_may_be_garbage = false;
  return s.any_rows();
}
/// Such rows, as many as the ranks divide; garbage is one row more of its own.
std::vector<Rows> divisible_rows(Scene& s) {
  auto rows = clean_rows(s);
  const bool more = s.refusal && s.refusal->spoil == Spoil::garbage;
  for (Rows& of_rank : rows)
    of_rank.append_pads((s.p - (of_rank.size() + (more ? 1 : 0)) % s.p) % s.p);
  return rows;
}

/// An operation on rows, whatever their values.
template <class Op>
Trials on_rows(Scene& s, Op op) {
  const Truth in = s.truth(6);
  const auto x = s.operand("x", in, {s.any_rows(), any_sum(s)});
  return {{s.run([&](const auto& ops, std::size_t r) { return op(ops, of(ops, x[r])); }), in}};
}

/// Values of one row each, all different.
Truth distinct_ids(const Values& one_hot, std::int64_t tokens) {
  Truth truth{Values(one_hot.rows(), 1), tokens};
  for (Eigen::Index t = 0; t < one_hot.rows(); ++t) {
    Eigen::Index id = 0;
    one_hot.row(t).maxCoeff(&id);
    truth.rows(t, 0) = double(id + 1);
  }
  return truth;
}

Trials embed_trials(Scene& s) {
  const std::int64_t vocabulary = 16 * s.p, width = 5;
  const Values table = random_matrix<double>(s.random, vocabulary, width);
  const auto rows = s.any_rows();
  std::vector<std::int64_t> ids(static_cast<std::size_t>(vocabulary));
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::shuffle(ids, s.random);
  Truth truth{Values(2 * s.tokens, width), s.tokens};
  for (std::int64_t t = 0; t < 2 * s.tokens; ++t)
    truth.rows.row(t) = table.row(ids[std::size_t(t)]);
  const auto w = on_each(s, [&](std::size_t r) { return by_out(table, s, r); });
  std::vector<std::int64_t> of_rows;
  for (std::int64_t i = 0; i < rows[0].size(); ++i) {
    const RowRun row = rows[0].at(i);
    of_rows.push_back(row.kind == RowKind::token ? ids[std::size_t(row.dp * s.tokens + row.first)]
                                                 : s.below(vocabulary));
  }
  // What a pad's id is, nobody knows: no zeros.
  Rows known;
  for (RowRun run : rows[0].runs()) {
    if (run.kind == RowKind::pad) run.content = PadContent::stale;
    known.append(run);
  }
  std::vector<Held> result;
  for (std::size_t r = 0; r < s.ranks(); ++r) {
    const auto first = s.spoils("table") ? unmasked_vocabulary : std::int64_t(r) * vocabulary / s.p;
    Held x;
    x.view = s.views.embed({known}, w[r].view, first);
    if (first != unmasked_vocabulary) x.values = s.numbers.embed(of_rows, w[r].number, first);
    result.push_back(x);
  }
  return {{result, truth}};
}

Trials linear_column_parallel_trials(Scene& s) {
  const Truth in = s.truth(6);
  const Values w = random_matrix<double>(s.random, 4 * s.p, 6);
  const auto x = s.operand("x", in, {s.any_rows(), Sum::complete});
  const auto weights = on_each(s, [&](std::size_t r) { return by_out(w, s, r); });
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.linear(of(ops, x[r]), of(ops, weights[r]));
           }),
           {in.rows * w.transpose(), s.tokens}}};
}

Trials linear_row_parallel_trials(Scene& s) {
  const Truth in = s.truth(3 * s.p);
  const Values w = random_matrix<double>(s.random, 4, 3 * s.p);
  const auto x = s.operand("x", in, {s.any_rows(), Sum::complete, true});
  const auto weights = on_each(s, [&](std::size_t r) { return by_in(w, s, r); });
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.linear(of(ops, x[r]), of(ops, weights[r]));
           }),
           {in.rows * w.transpose(), s.tokens}}};
}

Trials linear_whole_trials(Scene& s) {
  const Truth in = s.truth(6 * s.p);
  const Values w = random_matrix<double>(s.random, 5, s.spoils("x") ? 6 : 6 * s.p);
  const auto x = s.operand("x", in, {s.any_rows(), any_sum(s)});
  const Weight weight = whole(w);
  const Values product = s.spoils("x") ? Values() : Values(in.rows * w.transpose());
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.linear(of(ops, x[r]), of(ops, weight));
           }),
           {product, s.tokens}}};
}

Trials add_trials(Scene& s) {
  const Truth a = s.truth(3 * s.p), b = s.truth(3 * s.p);
  const auto rows = s.any_rows();
  const Sum sum = s.refusal ? Sum::complete : any_sum(s);
  const bool blocks = sum == Sum::complete && s.below(2) == 0;
  const auto x = s.operand("x", a, {rows, sum, blocks || s.refusal});
  const auto y = s.operand("y", b, {rows, sum, blocks || s.refusal});
  return {
      {s.run([&](const auto& ops, std::size_t r) { return ops.add(of(ops, x[r]), of(ops, y[r])); }),
       {a.rows + b.rows, s.tokens}}};
}

Trials rms_norm_trials(Scene& s) {
  const Truth in = s.truth(4 * s.p);
  const Values w = random_matrix<double>(s.random, 4 * s.p, 1);
  const auto x = s.operand("x", in, {s.any_rows()});
  const auto weights = on_each(s, [&](std::size_t r) { return vector_of(w, x[r].view.columns); });
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.rms_norm(of(ops, x[r]), of(ops, weights[r]), eps);
           }),
           {s.numbers.rms_norm(in.rows, vector_of(w).number, eps), s.tokens}}};
}

Trials head_rms_norm_trials(Scene& s) {
  const Truth in = s.truth(8 * s.p);
  const Weight w = vector_of(random_matrix<double>(s.random, 4, 1));
  const auto x = s.operand("x", in, {s.any_rows(), Sum::complete, true});
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.head_rms_norm(of(ops, x[r]), of(ops, w), eps);
           }),
           {s.numbers.head_rms_norm(in.rows, w.number, eps), s.tokens}}};
}

Trials gated_rms_norm_trials(Scene& s) {
  const Truth in = s.truth(8 * s.p), z = s.truth(8 * s.p);
  const Weight w = vector_of(random_matrix<double>(s.random, 4, 1));
  const auto rows = s.any_rows();
  const auto a = s.operand("x", in, {rows, Sum::complete, true});
  const auto b = s.operand("z", z, {rows, Sum::complete, true});
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.gated_rms_norm(of(ops, a[r]), of(ops, b[r]), of(ops, w), eps);
           }),
           {s.numbers.gated_rms_norm(in.rows, z.rows, w.number, eps), s.tokens}}};
}

Trials silu_mul_trials(Scene& s) {
  const Truth gate = s.truth(3 * s.p), up = s.truth(3 * s.p);
  const auto rows = s.any_rows();
  const auto a = s.operand("gate", gate, {rows, Sum::complete, true});
  const auto b = s.operand("up", up, {rows, Sum::complete, true});
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.silu_mul(of(ops, a[r]), of(ops, b[r]));
           }),
           {s.numbers.silu_mul(gate.rows, up.rows), s.tokens}}};
}

Trials sigmoid_mul_trials(Scene& s) {
  const Truth in = s.truth(3 * s.p), gate = s.truth(3 * s.p);
  const auto rows = s.any_rows();
  const auto a = s.operand("x", in, {rows, Sum::complete, true});
  const auto b = s.operand("gate", gate, {rows, Sum::complete, true});
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.sigmoid_mul(of(ops, a[r]), of(ops, b[r]));
           }),
           {s.numbers.sigmoid_mul(in.rows, gate.rows), s.tokens}}};
}

Trials sigmoid_scale_trials(Scene& s) {
  const Truth in = s.truth(3 * s.p), gate = s.truth(1);
  const auto rows = s.any_rows();
  const auto a = s.operand("x", in, {rows, any_sum(s)});
  const auto b = s.operand("gate", gate, {rows});
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.sigmoid_scale(of(ops, a[r]), of(ops, b[r]));
           }),
           {s.numbers.sigmoid_scale(in.rows, gate.rows), s.tokens}}};
}

Trials concat_features_trials(Scene& s) {
  const Truth a = s.truth(3), b = s.truth(4);
  const auto rows = s.any_rows();
  const Sum sum = s.refusal ? Sum::complete : any_sum(s);
  const auto x = s.operand("x", a, {rows, sum});
  const auto y = s.operand("y", b, {rows, sum});
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.concat_features(of(ops, x[r]), of(ops, y[r]));
           }),
           {s.numbers.concat_features(a.rows, b.rows), s.tokens}}};
}

Trials split_query_gate_trials(Scene& s) {
  const Truth in = s.truth(2 * 4 * s.p);
  const auto x = s.operand("x", in, {s.any_rows(), Sum::complete, true});
  const auto whole_split = s.numbers.split_query_gate(in.rows, 4);
  const auto part = [&](auto member) {
    return s.run([&](const auto& ops, std::size_t r) {
      auto both = ops.split_query_gate(of(ops, x[r]), 4);
      return member ? both.first : both.second;
    });
  };
  return {{part(true), {whole_split.first, s.tokens}},
          {part(false), {whole_split.second, s.tokens}}};
}

Trials split_qkvz_trials(Scene& s) {
  const GdnShape all = gdn_shape(s.p), mine = gdn_shape(1);
  const Truth in = s.truth(s.p * (2 * 3 + 2 * 2 * 2));
  const auto x = s.operand("x", in, {s.any_rows(), Sum::complete, true});
  const auto whole_split = s.numbers.split_qkvz(in.rows, all);
  const auto part = [&](bool first) {
    return s.run([&](const auto& ops, std::size_t r) {
      auto both = ops.split_qkvz(of(ops, x[r]), mine);
      return first ? both.first : both.second;
    });
  };
  return {
      {part(true), {whole_split.first, s.tokens, {all.key_dim(), all.key_dim(), all.value_dim()}}},
      {part(false), {whole_split.second, s.tokens}}};
}

Trials split_ba_trials(Scene& s) {
  const Truth in = s.truth(s.p * 4);
  const auto x = s.operand("x", in, {s.any_rows(), Sum::complete, true});
  const auto whole_split = s.numbers.split_ba(in.rows, gdn_shape(s.p));
  const auto part = [&](bool first) {
    return s.run([&](const auto& ops, std::size_t r) {
      auto both = ops.split_ba(of(ops, x[r]), gdn_shape(1));
      return first ? both.first : both.second;
    });
  };
  return {{part(true), {whole_split.first, s.tokens}},
          {part(false), {whole_split.second, s.tokens}}};
}

Trials rope_trials(Scene& s) {
  const Passes batch = passes(s);
  const RopeShape shape{4, 2, 1e4, {0}};
  const Truth in = s.truth(8 * s.p, 1);
  const auto x = s.operand("x", in, {s.full_rows(batch.pads), Sum::complete, true});
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.rope(of(ops, x[r]), batch.step, shape);
           }),
           {s.numbers.rope(in.rows, batch.unpadded, shape), s.tokens}}};
}

Trials attention_trials(Scene& s) {
  const Passes batch = passes(s);
  const AttentionShape all{2 * s.p, s.p, 4}, mine{2, 1, 4};
  const std::int64_t wide = all.num_heads * 4, narrow = all.num_kv_heads * 4;
  const Layout full{s.full_rows(batch.pads), Sum::complete, true};
  const Layout earlier{s.full_rows(0), Sum::complete, true};
  const Truth q0 = s.truth(wide, 1), k0 = s.truth(narrow, 1), v0 = s.truth(narrow, 1);
  const Truth q = s.truth(wide, 1), k = s.truth(narrow, 1), v = s.truth(narrow, 1);
  auto cache = s.numbers.kv_cache(all);
  s.numbers.attention(q0.rows, k0.rows, v0.rows, all, cache, batch.before);
  const Values trusted = s.numbers.attention(q.rows, k.rows, v.rows, all, cache, batch.unpadded);
  const auto a0 = s.operand("q0", q0, earlier), b0 = s.operand("k0", k0, earlier),
             c0 = s.operand("v0", v0, earlier);
  const auto a = s.operand("q", q, full), b = s.operand("k", k, full), c = s.operand("v", v, full);
  if (s.spoils("cache")) {  // nothing was computed before
    for (std::size_t r = 0; r < s.ranks(); ++r) {
      auto empty = s.views.kv_cache(mine);
      s.views.attention(a[r].view, b[r].view, c[r].view, mine, empty, batch.step);
    }
    return {};
  }
  Batch seen = batch.step;
  if (s.refusal && s.refusal->spoil == Spoil::garbage)
    append_runner_pads(seen, seen.num_tokens() + 1);
  return {{s.run([&](const auto& ops, std::size_t r) {
             auto own = ops.kv_cache(mine);
             ops.attention(of(ops, a0[r]), of(ops, b0[r]), of(ops, c0[r]), mine, own, batch.before);
             const auto padded = [&](const Held& x) {
               const auto& rows = of(ops, x);
               return ops.pad_rows(rows, seen.num_tokens() - ops.extent(rows, Axis::rows));
             };
             return ops.attention(padded(a[r]), padded(b[r]), padded(c[r]), mine, own, seen);
           }),
           {trusted, s.tokens}}};
}

Trials causal_conv_trials(Scene& s) {
  const Passes batch = passes(s);
  const GdnShape all = gdn_shape(s.p), mine = gdn_shape(1);
  const std::vector<std::int64_t> segments{all.key_dim(), all.key_dim(), all.value_dim()};
  Truth before = s.truth(all.conv_dim(), 1), in = s.truth(all.conv_dim(), 1);
  before.segments = in.segments = segments;
  const Values kernel = random_matrix<double>(s.random, all.conv_dim(), 3);
  auto state = s.numbers.gdn_state(all, 3);
  const Weight w = vector_of(kernel);
  s.numbers.causal_conv(before.rows, w.number, state, batch.before);
  const Values trusted = s.numbers.causal_conv(in.rows, w.number, state, batch.unpadded);
  const auto x0 = s.operand("x0", before, {s.full_rows(0), Sum::complete, true});
  const auto x = s.operand("x", in, {s.full_rows(batch.pads), Sum::complete, true});
  const auto weights = on_each(s, [&](std::size_t r) {
    const auto columns = in.columns(s.block(r));
    Values part(Eigen::Index(columns.size()), 3);
    for (std::size_t c = 0; c < columns.size(); ++c)
      part.row(Eigen::Index(c)) = kernel.row(columns[c]);
    return vector_of(part);
  });
  return {{s.run([&](const auto& ops, std::size_t r) {
             auto own = ops.gdn_state(mine, 3);
             ops.causal_conv(of(ops, x0[r]), of(ops, weights[r]), own, batch.before);
             return ops.causal_conv(of(ops, x[r]), of(ops, weights[r]), own, batch.step);
           }),
           {trusted, s.tokens, segments}}};
}

Trials delta_gates_trials(Scene& s) {
  const Truth b = s.truth(2 * s.p), a = s.truth(2 * s.p);
  const Values decay = random_matrix<double>(s.random, 2 * s.p, 1),
               bias = random_matrix<double>(s.random, 2 * s.p, 1);
  const auto rows = s.any_rows();
  const auto x = s.operand("b", b, {rows, Sum::complete, true});
  const auto y = s.operand("a", a, {rows, Sum::complete, true});
  const auto trusted =
      s.numbers.delta_gates(b.rows, a.rows, vector_of(decay).number, vector_of(bias).number);
  const auto part = [&](bool first) {
    return s.run([&](const auto& ops, std::size_t r) {
      const Weight d = vector_of(decay, s.block(r)), t = vector_of(bias, s.block(r));
      auto both = ops.delta_gates(of(ops, x[r]), of(ops, y[r]), of(ops, d), of(ops, t));
      return first ? both.first : both.second;
    });
  };
  return {{part(true), {trusted.first, s.tokens}}, {part(false), {trusted.second, s.tokens}}};
}

Trials gated_delta_rule_trials(Scene& s) {
  const Passes batch = passes(s);
  const GdnShape all = gdn_shape(s.p), mine = gdn_shape(1);
  const std::int64_t heads = all.num_value_heads;
  const std::vector<std::int64_t> segments{all.key_dim(), all.key_dim(), all.value_dim()};
  Truth in0 = s.truth(all.conv_dim(), 1), in = s.truth(all.conv_dim(), 1);
  in0.segments = in.segments = segments;
  const Truth b0 = s.truth(heads, 1), b = s.truth(heads, 1), g0 = s.truth(heads, 1),
              g = s.truth(heads, 1);
  auto state = s.numbers.gdn_state(all, 3);
  s.numbers.gated_delta_rule(in0.rows, b0.rows, g0.rows, all, state, batch.before);
  const Values trusted =
      s.numbers.gated_delta_rule(in.rows, b.rows, g.rows, all, state, batch.unpadded);
  const Layout earlier{s.full_rows(0), Sum::complete, true};
  const Layout full{s.full_rows(batch.pads), Sum::complete, true};
  const auto x0 = s.operand("x0", in0, earlier), y0 = s.operand("b0", b0, earlier),
             z0 = s.operand("g0", g0, earlier);
  const auto x = s.operand("qkv", in, full), y = s.operand("beta", b, full),
             z = s.operand("g", g, full);
  if (s.spoils("state")) {
    auto empty = s.views.gdn_state(mine, 3);
    s.views.gated_delta_rule(x[0].view, y[0].view, z[0].view, mine, empty, batch.step);
    return {};
  }
  return {{s.run([&](const auto& ops, std::size_t r) {
             auto own = ops.gdn_state(mine, 3);
             ops.gated_delta_rule(of(ops, x0[r]), of(ops, y0[r]), of(ops, z0[r]), mine, own,
                                  batch.before);
             return ops.gated_delta_rule(of(ops, x[r]), of(ops, y[r]), of(ops, z[r]), mine, own,
                                         batch.step);
           }),
           {trusted, s.tokens}}};
}

Trials route_trials(Scene& s) {
  constexpr std::int64_t k = 2;
  const std::int64_t experts = 3 * s.p;
  const Truth in = s.truth(experts);
  s.pads_may_be_garbage = false;
  const auto x = s.operand("logits", in, {s.any_rows()});
  const auto routed = [&](const auto& ops, std::size_t r) {
    return dense(ops.route(of(ops, x[r]), k, true), x[r].view.width);
  };
  // Rows of a pad are routed as well: equal logits, so the first experts.
  auto result = s.run(routed);
  for (Held& held : result) {
    Rows known;
    for (RowRun run : held.view.rows.runs()) {
      if (run.kind == RowKind::pad) run.content = PadContent::stale;
      known.append(run);
    }
    held.view.rows = known;
  }
  return {{result, {dense(s.numbers.route(in.rows, k, true), experts), s.tokens}}};
}

Trials skip_pads_trials(Scene& s) {
  constexpr std::int64_t k = 2;
  const std::int64_t experts = 3 * s.p;
  const std::int64_t pads = 1 + s.below(3);
  Batch batch = rows_of_one(s.tokens);
  append_runner_pads(batch, s.tokens + pads);
  const Truth in = s.truth(experts, 1);
  const auto x = s.operand("logits", in, {s.full_rows(pads)});
  if (s.spoils("mask, a token")) {
    batch.query_start_loc.back() -= 1;
  } else if (s.spoils("mask, a pad")) {
    batch.query_start_loc.back() += 1;
    for (std::int64_t i = 0; i < batch.query_start_loc.back(); ++i) batch.row_tokens.push_back(i);
  }
  auto result = s.run([&](const auto& ops, std::size_t r) {
    return dense(ops.skip_pads(ops.route(of(ops, x[r]), k, false), ops.pad_mask(batch), true),
                 experts);
  });
  for (Held& held : result) {  // a pad has no experts left
    held.view.rows = Rows::tokens(s.tokens);
    held.view.rows.append_pads(pads);
  }
  return {{result, {dense(s.numbers.route(in.rows, k, false), experts), s.tokens}}};
}

template <bool is_whole>
Trials experts_trials(Scene& s) {
  constexpr std::int64_t width = 5, inner = 4, k = 2;
  const std::int64_t experts = 2 * s.p, half = s.p * inner;
  const Truth in = s.truth(width), logits = s.truth(experts);
  std::vector<Values> gate_up, down;
  for (std::int64_t e = 0; e < experts; ++e) {
    gate_up.push_back(random_matrix<double>(s.random, 2 * half, width));
    down.push_back(random_matrix<double>(s.random, width, half));
  }
  const auto packed = [](const std::vector<Values>& of_experts) {
    PackedMatrix<double> all(std::int64_t(of_experts.size()), of_experts[0].rows(),
                             of_experts[0].cols());
    for (std::size_t e = 0; e < of_experts.size(); ++e)
      all.pack(std::int64_t(e), of_experts[e].data(), of_experts[e].cols());
    return all;
  };
  const auto part = [&](std::size_t r, bool is_down) {
    std::vector<Values> mine;
    const auto at = Eigen::Index(r);
    for (std::int64_t e = 0; e < experts; ++e) {
      const Values &g = gate_up[std::size_t(e)], &d = down[std::size_t(e)];
      if (is_whole && e / 2 != std::int64_t(r)) continue;
      if (is_whole) {
        mine.push_back(is_down ? d : g);
      } else if (is_down) {
        mine.push_back(d.middleCols(at * inner, inner));
      } else {
        Values both(2 * inner, width);
        both << g.middleRows(at * inner, inner), g.middleRows(half + at * inner, inner);
        mine.push_back(both);
      }
    }
    Weight w{{packed(mine), {}}, {mine[0].rows(), mine[0].cols(), {}, {}}};
    w.view.expert_part = std::int64_t(r);
    w.view.expert_parts = s.p;
    return w;
  };
  const Numbers::Weight all_gate_up{packed(gate_up), {}}, all_down{packed(down), {}};
  const Values trusted =
      s.numbers.experts(in.rows, s.numbers.route(logits.rows, k, true), all_gate_up, all_down, 0);
  auto rows = s.any_rows();
  if (s.spoils("rows, one twice"))
    for (Rows& of_rank : rows) of_rank.append(of_rank.at(0));
  const auto x = s.operand("x", in, {rows});
  s.pads_may_be_garbage = false;
  // A pad's routing is that of some row.
  std::vector<Held> y = s.operand("routing", logits, {rows});
  for (Held& held : y) {
    Rows known;
    for (RowRun run : held.view.rows.runs()) {
      if (run.kind == RowKind::pad) run.content = PadContent::zero;
      known.append(run);
    }
    held.view.rows = known;
    for (Eigen::Index t = 0; t < held.values.rows(); ++t)
      if (!(held.values.row(t).array() == held.values.row(t).array()).all())
        held.values.row(t).setZero();
  }
  return {{s.run([&](const auto& ops, std::size_t r) {
             const Weight up = part(r, false), out = part(r, true);
             return ops.experts(of(ops, x[r]), ops.route(of(ops, y[r]), k, true), of(ops, up),
                                of(ops, out), is_whole ? 2 * std::int64_t(r) : 0);
           }),
           {trusted, s.tokens}}};
}

Trials pad_and_cut_trials(Scene& s) {
  const Truth in = s.truth(6);
  const auto x = s.operand("x", in, {s.any_rows()});
  return {{s.run([&](const auto& ops, std::size_t r) {
             const auto& full = of(ops, x[r]);
             const std::int64_t rows = ops.extent(full, Axis::rows);
             const std::int64_t shard = (rows + s.p - 1) / s.p;
             return ops.slice(ops.pad_rows(full, shard * s.p - rows), Axis::rows,
                              std::int64_t(r) * shard, std::int64_t(r + 1) * shard);
           }),
           in}};
}

Trials slice_of_columns_trials(Scene& s) {
  const Truth in = s.truth(6);
  const auto x = s.operand("x", in, {s.any_rows(), any_sum(s)});
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.slice(of(ops, x[r]), Axis::cols, 2, 5);
           }),
           {in.rows.middleCols(2, 3), s.tokens}}};
}

Trials trim_trials(Scene& s) {
  const Truth in = s.truth(6, 1);
  const auto x = s.operand("x", in, {s.full_rows(2)});
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.trim(of(ops, x[r]), s.tokens - (s.spoils("rows") ? 1 : 0));
           }),
           in}};
}

Trials index_rows_trials(Scene& s) {
  const Truth in = s.truth(6, 1);
  const auto x = s.operand("x", in, {s.full_rows(2)});
  std::vector<std::int64_t> index{s.tokens - 1, 0};
  if (s.spoils("index")) index = {s.tokens + 2};
  const auto indexed = [&](const auto& ops, std::size_t r) {
    return ops.index_rows(of(ops, x[r]), index);
  };
  if (s.spoils("index")) {
    indexed(s.views, 0);
    return {};
  }
  return {{s.run(indexed), in}};
}

Trials first_rows_trials(Scene& s) {
  const Truth in = s.truth(6, 1);
  const auto x = s.operand("x", in, {s.full_rows(2)});
  if (s.spoils("rows")) {
    s.views.first_rows(x[0].view, s.tokens + 3, true);
    return {};
  }
  return {{s.run([&](const auto& ops, std::size_t r) {
             return ops.first_rows(of(ops, x[r]), s.tokens - 1, s.p == 2);
           }),
           in}};
}

Trials argmax_trials(Scene& s) {
  Truth in = s.truth(2 * s.tokens + 3);
  std::vector<std::int64_t> winner(std::size_t(in.rows.cols()));
  std::iota(winner.begin(), winner.end(), 0);
  std::ranges::shuffle(winner, s.random);
  for (Eigen::Index t = 0; t < in.rows.rows(); ++t) in.rows(t, winner[std::size_t(t)]) = 7;
  std::vector<Rows> rows = s.any_rows();
  for (Rows& of_rank : rows) {
    Rows only_tokens;
    for (const RowRun& run : of_rank.runs())
      if (run.kind == RowKind::token) only_tokens.append(run);
    if (s.spoils("rows")) only_tokens.append_pads(1);
    of_rank = only_tokens;
  }
  const auto x = s.operand("logits", in, {rows});
  std::vector<Held> result;
  for (std::size_t r = 0; r < s.ranks(); ++r) {
    Held held;
    held.view.rows = s.views.argmax(x[r].view).rows;
    held.view.width = 1;
    const auto ids = s.numbers.argmax(x[r].values);
    held.values.resize(Eigen::Index(ids.size()), 1);
    for (std::size_t i = 0; i < ids.size(); ++i)
      held.values(Eigen::Index(i), 0) = double(ids[i] + 1);
    result.push_back(held);
  }
  return {{result, distinct_ids(in.rows, s.tokens)}};
}

Trials all_reduce_trials(Scene& s) {
  const Truth in = s.truth(5);
  const auto x = s.operand("x", in, {clean_rows(s), Sum::summands});
  return {{s.meet([&](auto& comm, const auto& ops, std::size_t r) {
             return comm.all_reduce(of(ops, x[r]));
           }),
           in}};
}

Trials reduce_scatter_trials(Scene& s) {
  const Truth in = s.truth(5);
  const auto x = s.operand("x", in, {divisible_rows(s), Sum::summands});
  return {{s.meet([&](auto& comm, const auto& ops, std::size_t r) {
             return comm.reduce_scatter(of(ops, x[r]), Axis::rows);
           }),
           in}};
}

Trials reduce_scatter_v_trials(Scene& s) {
  const Truth in = s.truth(5);
  const auto x = s.operand("x", in, {clean_rows(s), Sum::summands});
  std::vector<std::int64_t> sizes;
  std::int64_t left = x[0].view.rows.size();
  for (std::int64_t r = 0; r + 1 < s.p; ++r) {
    sizes.push_back(s.below(left + 1));
    left -= sizes.back();
  }
  sizes.push_back(left);
  return {{s.meet([&](auto& comm, const auto& ops, std::size_t r) {
             return comm.reduce_scatter_v(of(ops, x[r]), sizes);
           }),
           in}};
}

Trials all_gather_of_rows_trials(Scene& s) {
  const Truth in = s.truth(5, 1);
  const auto x = s.operand("x", in, {s.shards(s.tokens)});
  return {{s.meet([&](auto& comm, const auto& ops, std::size_t r) {
             return comm.all_gather(of(ops, x[r]), Axis::rows);
           }),
           in}};
}

Trials all_gather_of_columns_trials(Scene& s) {
  const Truth in = s.truth(4 * s.p);
  const auto x = s.operand("x", in, {s.any_rows(), Sum::complete, true});
  return {{s.meet([&](auto& comm, const auto& ops, std::size_t r) {
             return comm.all_gather(of(ops, x[r]), Axis::cols);
           }),
           in}};
}

Trials all_gather_of_wrong_columns_trials(Scene& s) {
  const Truth in = s.truth(4 * s.p);
  const auto x = s.operand("x", in, {s.any_rows(), Sum::complete, true});
  if (s.refusal) {
    s.meet([&](auto& comm, const auto& ops, std::size_t r) {
      return comm.all_gather(of(ops, x[r]), Axis::cols);
    });
    return {};
  }
  return {{x, in}};
}

Trials all_gather_v_trials(Scene& s) {
  const Truth in = s.truth(5);
  const auto rows = s.ragged();
  std::vector<std::int64_t> sizes;
  for (const Rows& of_rank : rows) sizes.push_back(of_rank.size());
  const auto x = s.operand("x", in, {rows});
  return {{s.meet([&](auto& comm, const auto& ops, std::size_t r) {
             return comm.all_gather_v(of(ops, x[r]), sizes);
           }),
           in}};
}

Trials broadcast_trials(Scene& s) {
  const Truth in = s.truth(5, 1);
  const auto x = s.operand("x", in, {s.shards(s.tokens)});
  return {{s.meet([&](auto& comm, const auto& ops, std::size_t r) {
             return comm.broadcast(of(ops, x[r]), s.p - 1);
           }),
           in}};
}

Trials flat_slices_over_ranks_trials(Scene& s) {
  const Truth in = s.truth(4 * s.p);
  const auto x = s.operand("x", in, {s.any_rows(), Sum::complete});
  const std::int64_t width = in.rows.cols();
  return {{s.meet([&](auto& comm, const auto& ops, std::size_t r) {
             const auto flat = ops.flat_slice(of(ops, x[r]), std::int64_t(r), s.p);
             return ops.unflatten(comm.all_gather(flat, Axis::rows), width);
           }),
           in}};
}

template <bool returns>
Trials all_to_all_v_trials(Scene& s) {
  const Truth in = s.truth(5);
  const auto rows = s.ragged();
  std::vector<std::vector<std::int64_t>> to, from(s.ranks());
  for (std::size_t r = 0; r < s.ranks(); ++r) {
    std::int64_t left = rows[r].size();
    to.emplace_back();
    for (std::int64_t i = 0; i + 1 < s.p; ++i) {
      to[r].push_back(s.below(left + 1));
      left -= to[r].back();
    }
    to[r].push_back(left);
    for (std::size_t i = 0; i < s.ranks(); ++i) from[i].push_back(to[r][i]);
  }
  const auto x = s.operand("x", in, {rows});
  return {{s.meet([&](auto& comm, const auto& ops, std::size_t r) {
             const auto there = comm.all_to_all_v(of(ops, x[r]), to[r], from[r]);
             return returns ? comm.all_to_all_v(there, from[r], to[r]) : there;
           }),
           in}};
}

const std::vector<Rule>& all_rules() {
  const Refusal garbage{"x", Spoil::garbage, FindingKind::pads};
  static const std::vector<Rule> all = {
      {"embed", embed_trials, {{"table", Spoil::special, FindingKind::bounds}}},
      {"linear, column parallel", linear_column_parallel_trials},
      {"linear, row parallel", linear_row_parallel_trials, {incomplete("x"), other_columns("x")}},
      {"linear, whole", linear_whole_trials, {other_columns("x")}},
      {"add", add_trials, {other_rows("y"), incomplete("y"), summand("x"), other_columns("y")}},
      {"rms_norm", rms_norm_trials, {incomplete("x"), summand("x"), other_columns("x")}},
      {"head_rms_norm", head_rms_norm_trials, {incomplete("x"), summand("x")}},
      {"gated_rms_norm",
       gated_rms_norm_trials,
       {incomplete("x"), incomplete("z"), other_rows("z")}},
      {"silu_mul", silu_mul_trials, {incomplete("gate"), summand("up"), other_rows("up")}},
      {"sigmoid_mul", sigmoid_mul_trials, {incomplete("gate"), other_rows("gate")}},
      {"sigmoid_scale", sigmoid_scale_trials, {incomplete("gate"), other_rows("gate")}},
      {"concat_features", concat_features_trials, {other_rows("y"), incomplete("y"), summand("x")}},
      {"split_query_gate", split_query_gate_trials},
      {"split_qkvz", split_qkvz_trials},
      {"split_ba", split_ba_trials},
      {"rope", rope_trials, {other_rows("x")}, true},
      {"attention",
       attention_trials,
       {other_rows("q"),
        other_rows("k"),
        other_rows("v"),
        incomplete("q"),
        incomplete("k"),
        incomplete("v"),
        {"q", Spoil::garbage, FindingKind::pads},
        {"cache", Spoil::special, FindingKind::state}},
       true},
      {"causal_conv", causal_conv_trials, {other_rows("x"), incomplete("x")}, true},
      {"delta_gates", delta_gates_trials, {incomplete("b"), incomplete("a")}, true},
      {"gated_delta_rule",
       gated_delta_rule_trials,
       {other_rows("qkv"),
        other_rows("beta"),
        other_rows("g"),
        incomplete("qkv"),
        incomplete("beta"),
        incomplete("g"),
        {"state", Spoil::special, FindingKind::state}},
       true},
      {"route",
       route_trials,
       {incomplete("logits"),
        summand("logits"),
        other_columns("logits"),
        {"logits", Spoil::garbage, FindingKind::pads}}},
      {"skip_pads",
       skip_pads_trials,
       {{"mask, a token", Spoil::special, FindingKind::routing},
        {"mask, a pad", Spoil::special, FindingKind::routing}}},
      {"experts, whole",
       experts_trials<true>,
       {incomplete("x"),
        other_rows("routing"),
        {"rows, one twice", Spoil::special, FindingKind::routing}}},
      {"experts, split",
       experts_trials<false>,
       {incomplete("x"),
        other_rows("routing"),
        {"rows, one twice", Spoil::special, FindingKind::routing}}},
      {"pad and cut", pad_and_cut_trials},
      {"slice of columns", slice_of_columns_trials},
      {"trim", trim_trials, {{"rows", Spoil::special, FindingKind::rows}}},
      {"index_rows",
       index_rows_trials,
       {other_rows("x"), {"index", Spoil::special, FindingKind::bounds}}},
      {"first_rows", first_rows_trials, {{"rows", Spoil::special, FindingKind::bounds}}},
      {"argmax",
       argmax_trials,
       {incomplete("logits"), summand("logits"), {"rows", Spoil::special, FindingKind::rows}}},
      {"pad_rows",
       [](Scene& s) {
         return on_rows(s, [](const auto& ops, const auto& x) { return ops.pad_rows(x, 3); });
       }},
      {"trim of pads",
       [](Scene& s) {
         return on_rows(s, [](const auto& ops, const auto& x) {
           return ops.trim(ops.pad_rows(x, 2), ops.extent(x, Axis::rows));
         });
       }},
      {"into_buffer",
       [](Scene& s) {
         return on_rows(s, [](const auto& ops, const auto& x) {
           return ops.into_buffer(x, ops.extent(x, Axis::rows) + 2);
         });
       }},
      {"take_rows",
       [](Scene& s) {
         return on_rows(s, [](const auto& ops, const auto& x) {
           std::vector<std::int64_t> backwards;
           for (std::int64_t i = ops.extent(x, Axis::rows) - 1; i >= 0; i -= 2)
             backwards.push_back(i);
           return ops.take_rows(x, backwards);
         });
       }},
      {"take_rows and add_rows",
       [](Scene& s) {
         return on_rows(s, [](const auto& ops, const auto& x) {
           std::vector<std::int64_t> some;
           for (std::int64_t i = 0; i < ops.extent(x, Axis::rows); i += 2) some.push_back(i);
           return ops.add_rows(ops.take_rows(x, some), some, ops.extent(x, Axis::rows));
         });
       }},
      {"concat of rows",
       [](Scene& s) {
         return on_rows(s, [](const auto& ops, const auto& x) {
           const auto a = ops.slice(x, Axis::rows, 1, ops.extent(x, Axis::rows)),
                      b = ops.slice(x, Axis::rows, 0, 1);
           const std::decay_t<decltype(x)>* const parts[] = {&a, &b};
           return ops.concat(parts, Axis::rows);
         });
       }},
      {"blank",
       [](Scene& s) {
         return on_rows(s, [](const auto& ops, const auto& x) {
           return ops.blank(ops.extent(x, Axis::rows), ops.extent(x, Axis::cols));
         });
       }},
      {"flat slices",
       [](Scene& s) {
         return on_rows(s, [](const auto& ops, const auto& x) {
           const std::int64_t cols = ops.extent(x, Axis::cols);
           return ops.unflatten(ops.flat_slice(x, 0, 1), cols);
         });
       }},
      {"all_reduce", all_reduce_trials, {incomplete("x"), other_rows("x"), garbage}},
      {"reduce_scatter", reduce_scatter_trials, {incomplete("x"), other_rows("x"), garbage}},
      {"reduce_scatter_v", reduce_scatter_v_trials, {incomplete("x"), other_rows("x"), garbage}},
      {"all_gather of rows", all_gather_of_rows_trials},
      {"all_gather of columns", all_gather_of_columns_trials, {other_rows("x")}},
      {"all_gather of wrong columns", all_gather_of_wrong_columns_trials, {other_columns("x")}},
      {"all_gather_v", all_gather_v_trials},
      {"broadcast", broadcast_trials},
      {"flat slices over ranks", flat_slices_over_ranks_trials},
      {"all_to_all_v and back", all_to_all_v_trials<true>},
      {"all_to_all_v", all_to_all_v_trials<false>}};
  return all;
}

constexpr std::uint64_t seeds = 24;

std::vector<Trial> trials_of(const Rule& rule, std::uint64_t seed) {
  Scene scene(seed, {});
  auto trials = rule.run(scene);
  for (const Finding& finding : scene.findings)
    BOOST_ERROR(text("seed ", seed, ": ", to_string(finding)));
  return trials;
}

/// Damage of one rank's numbers, or of all, that its view does not allow; false where there is none
/// of that kind.
using Damage = std::function<bool(std::mt19937_64&, std::vector<Held>&, std::size_t)>;

std::vector<std::int64_t> rows_of(const Held& x, RowKind kind) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < x.view.rows.size(); ++i) {
    const RowRun row = x.view.rows.at(i);
    if (row.kind == kind && (kind != RowKind::pad || row.content == PadContent::zero))
      rows.push_back(i);
  }
  return rows;
}
std::int64_t one_of(std::mt19937_64& random, const std::vector<std::int64_t>& values) {
  return values[std::size_t(random() % values.size())];
}
Rows with_row(const Rows& rows, std::int64_t at, const RowRun& row) {
  Rows changed = rows.slice(0, at);
  if (at == 0) changed = {};
  changed.append(row);
  for (std::int64_t i = at + 1; i < rows.size(); ++i) changed.append(rows.at(i));
  return changed;
}

const std::vector<std::pair<std::string, Damage>>& damages_of_numbers() {
  using Ranks = std::vector<Held>;
  static const std::vector<std::pair<std::string, Damage>> all = {
      {"two rows change places",
       [](std::mt19937_64& random, Ranks& x, std::size_t r) {
         const auto tokens = rows_of(x[r], RowKind::token);
         if (tokens.size() < 2) return false;
         const std::int64_t a = one_of(random, tokens), b = one_of(random, tokens);
         if (near(x[r].values.row(a), x[r].values.row(b))) return false;
         const Values kept = x[r].values.row(a);
         x[r].values.row(a) = x[r].values.row(b).eval();
         x[r].values.row(b) = kept;
         return true;
       }},
      {"a row is zero",
       [](std::mt19937_64& random, Ranks& x, std::size_t r) {
         const auto tokens = rows_of(x[r], RowKind::token);
         if (tokens.empty()) return false;
         const std::int64_t row = one_of(random, tokens);
         if (x[r].values.row(row).isZero(0)) return false;
         x[r].values.row(row).setZero();
         return true;
       }},
      {"a row, or its summand, is there twice",
       [](std::mt19937_64& random, Ranks& x, std::size_t r) {
         const auto tokens = rows_of(x[r], RowKind::token);
         if (tokens.empty()) return false;
         const std::int64_t row = one_of(random, tokens);
         if (x[r].values.row(row).isZero(0)) return false;
         x[r].values.row(row) *= 2;
         return true;
       }},
      {"a NaN reaches a token",
       [](std::mt19937_64& random, Ranks& x, std::size_t r) {
         const auto tokens = rows_of(x[r], RowKind::token);
         if (tokens.empty() || x[r].values.cols() == 0) return false;
         x[r].values(one_of(random, tokens),
                     Eigen::Index(random() % std::uint64_t(x[r].values.cols()))) =
             std::numeric_limits<double>::quiet_NaN();
         return true;
       }},
      {"a pad is no zero",
       [](std::mt19937_64& random, Ranks& x, std::size_t r) {
         const auto pads = rows_of(x[r], RowKind::pad);
         if (pads.empty()) return false;
         x[r].values(one_of(random, pads), 0) =
             random() % 2 == 0 ? 1e-3 : std::numeric_limits<double>::quiet_NaN();
         return true;
       }},
      {"the rows of another rank",
       [](std::mt19937_64&, Ranks& x, std::size_t r) {
         const Held& other = x[(r + 1) % x.size()];
         if (other.values.rows() != x[r].values.rows() ||
             other.values.cols() != x[r].values.cols() || x[r].values == other.values ||
             rows_of(x[r], RowKind::token).empty())
           return false;
         for (const std::int64_t row : rows_of(x[r], RowKind::token))
           if (!near(x[r].values.row(row), other.values.row(row))) {
             x[r].values = other.values;
             return true;
           }
         return false;
       }},
      {"column blocks change places",
       [](std::mt19937_64&, Ranks& x, std::size_t r) {
         Held& other = x[(r + 1) % x.size()];
         if (x[r].view.columns == other.view.columns || rows_of(x[r], RowKind::token).empty())
           return false;
         std::swap(x[r].values, other.values);
         return true;
       }},
  };
  return all;
}

const std::vector<std::pair<std::string, Damage>>& damages_of_views() {
  using Ranks = std::vector<Held>;
  const auto change_row = [](std::mt19937_64& random, Ranks& x, std::size_t r, RowKind kind,
                             auto change) {
    const auto rows = rows_of(x[r], kind);
    if (rows.empty()) return false;
    const std::int64_t at = one_of(random, rows);
    RowRun row = x[r].view.rows.at(at);
    change(row);
    x[r].view.rows = with_row(x[r].view.rows, at, row);
    return true;
  };
  static const std::vector<std::pair<std::string, Damage>> all = {
      {"another token",
       [=](std::mt19937_64& random, Ranks& x, std::size_t r) {
         return change_row(random, x, r, RowKind::token,
                           [](RowRun& row) { row.first = row.first == 0 ? 1 : row.first - 1; });
       }},
      {"a pad where a token is",
       [=](std::mt19937_64& random, Ranks& x, std::size_t r) {
         if (x[r].view.sum.is_partial()) return false;  // a summand may be zero
         return change_row(random, x, r, RowKind::token,
                           [](RowRun& row) { row = {0, 1, 0, RowKind::pad, PadContent::zero, 0}; });
       }},
      {"a mixture where a token is",
       [=](std::mt19937_64& random, Ranks& x, std::size_t r) {
         if (!x[r].view.sum.is_complete()) return false;
         return change_row(random, x, r, RowKind::token,
                           [](RowRun& row) { row = {0, 1, 0, RowKind::mix, PadContent::zero, 0}; });
       }},
      {"a token where a pad is",
       [=](std::mt19937_64& random, Ranks& x, std::size_t r) {
         if (x[r].view.sum.is_partial()) return false;
         return change_row(random, x, r, RowKind::pad, [](RowRun& row) { row = {0, 1}; });
       }},
      {"complete where a summand is",
       [](std::mt19937_64&, Ranks& x, std::size_t r) {
         if (!x[r].view.sum.is_partial() || rows_of(x[r], RowKind::token).empty()) return false;
         x[r].view.sum = {};
         return true;
       }},
      {"a summand where all is",
       [](std::mt19937_64&, Ranks& x, std::size_t r) {
         if (x[r].view.sum.is_partial() || rows_of(x[r], RowKind::token).empty()) return false;
         x[r].view.sum = Completeness::summand(0, 2);
         return true;
       }},
      {"another summand",
       [](std::mt19937_64&, Ranks& x, std::size_t r) {
         if (!x[r].view.sum.is_partial() || rows_of(x[r], RowKind::token).empty()) return false;
         x[r].view.sum = x[(r + 1) % x.size()].view.sum;
         return true;
       }},
      {"the value twice",
       [](std::mt19937_64&, Ranks& x, std::size_t r) {
         if (!x[r].view.sum.is_complete() || rows_of(x[r], RowKind::token).empty()) return false;
         x[r].view.sum = Completeness::complete(2);
         return true;
       }},
      {"another column block",
       [](std::mt19937_64&, Ranks& x, std::size_t r) {
         if (x[r].view.columns.all() || rows_of(x[r], RowKind::token).empty()) return false;
         x[r].view.columns = x[(r + 1) % x.size()].view.columns;
         return true;
       }},
      {"a row more",
       [](std::mt19937_64&, Ranks& x, std::size_t r) {
         x[r].view.rows.append_pads(1);
         return true;
       }},
  };
  return all;
}

void see(const Rule& rule, const std::vector<std::pair<std::string, Damage>>& damages) {
  std::int64_t seen = 0;
  for (const auto& [name, damage] : damages)
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      std::mt19937_64 random(seed);
      for (const Trial& trial : trials_of(rule, seed)) {
        std::vector<Held> damaged = trial.result;
        if (!damage(random, damaged, std::size_t(random() % damaged.size()))) continue;
        ++seen;
        BOOST_TEST(!confirm(damaged, trial.truth).empty(), "seed " << seed << ": " << name);
      }
    }
  BOOST_TEST(seen > 0);
}

}  // namespace

BOOST_DATA_TEST_CASE(what_a_rule_says_of_its_result_is_true_of_the_numbers, data::make(all_rules()),
                     rule) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed)
    for (const Trial& trial : trials_of(rule, seed)) {
      const std::string problem = confirm(trial.result, trial.truth);
      BOOST_TEST(problem.empty(), "seed " << seed << ": " << problem);
    }
}

BOOST_DATA_TEST_CASE(damaged_numbers_are_seen, data::make(all_rules()), rule) {
  see(rule, damages_of_numbers());
}

BOOST_DATA_TEST_CASE(damaged_views_are_seen, data::make(all_rules()), rule) {
  see(rule, damages_of_views());
}

BOOST_DATA_TEST_CASE(operands_that_a_rule_refuses_are_findings, data::make(all_rules()), rule) {
  for (const Refusal& refusal : rule.refusals)
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      Scene scene(seed, refusal);
      const auto trials = rule.run(scene);
      const auto is_due = [&](const Finding& finding) { return finding.kind == refusal.kind; };
      BOOST_TEST(std::ranges::any_of(scene.findings, is_due),
                 "seed " << seed << ": " << refusal.operand << ": no finding of "
                         << to_string(refusal.kind));
      // The view goes on as the hardware would: rows that did not fit are mixtures, not tokens.
      // Where rows stand in a sequence, views do not follow: such a row keeps its token's name.
      if (refusal.spoil != Spoil::rows || rule.is_of_sequences) continue;
      for (const Trial& trial : trials) {
        const std::string problem = confirm(trial.result, trial.truth, false);
        BOOST_TEST(problem.empty(), "seed " << seed << ": " << refusal.operand << ": " << problem);
      }
    }
}

BOOST_AUTO_TEST_CASE(every_kind_of_damage_applies_to_some_rule) {
  std::set<std::string> applied;
  for (const Rule& rule : all_rules())
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      Scene scene(seed, {});
      for (const Trial& trial : rule.run(scene))
        for (const auto* damages : {&damages_of_numbers(), &damages_of_views()})
          for (const auto& [name, damage] : *damages) {
            std::mt19937_64 random(seed);
            std::vector<Held> copy = trial.result;
            if (damage(random, copy, 0)) applied.insert(name);
          }
    }
  BOOST_TEST(applied.size() == damages_of_numbers().size() + damages_of_views().size());
}

}  // namespace tokenview
