// SPDX-License-Identifier: Apache-2.0
// Dump against dump, of a model that the reference does not know: latent attention aside it has the
// names of DeepSeek-V3 in vLLM, where mlp.experts is the routed and the shared experts' sum. Values
// are random, but what is a sum or a norm of others is that.
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "tests/boost_test.hpp"
#include "tests/dumps_of_run.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/dump_writer.hpp"
#include "verify/hdf5_handle.hpp"
#include "verify/host_matrix.hpp"
#include "verify/narrow_notes.hpp"
#include "verify/trusted_dump.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t H = 32, experts = 8, chosen = 2, layers = 2;
constexpr double eps = 1e-6;
using Values = Matrix<float>;

/// The unsharded tensors of one step.
struct Model {
  std::int64_t tokens;
  std::map<std::string, Values> taps = {};  // "model.layers.0.mlp"
  std::map<std::string, Matrix<std::int64_t>> ids = {};
  std::mt19937 random = std::mt19937(7);

  explicit Model(std::int64_t tokens_of_step) : tokens(tokens_of_step) {
    const Eigen::RowVectorXf scale = Eigen::RowVectorXf::LinSpaced(H, 0.7F, 1.3F);
    const auto norm = [&](const Values& x) {
      Values y = x;
      for (std::int64_t row = 0; row < y.rows(); ++row)
        y.row(row) = (y.row(row) / std::sqrt(y.row(row).squaredNorm() / float(H) + float(eps)))
                         .cwiseProduct(scale);
      return y;
    };
    Values stream = taps["model.embed_tokens"] = drawn(H);
    for (std::int64_t l = 0; l < layers; ++l) {
      const std::string layer = text("model.layers.", l);
      taps[layer + ".input_layernorm"] = norm(stream);
      taps[layer + ".self_attn.qkv_proj"] = drawn(96);  // 64, 16 and 16
      taps[layer + ".self_attn.attn"] = drawn(64);
      const Values attention = taps[layer + ".self_attn.o_proj"] = drawn(H);
      taps[layer + ".self_attn"] = attention;
      stream += attention;
      taps[layer + ".post_attention_layernorm.residual"] = stream;
      taps[layer + ".post_attention_layernorm"] = norm(stream);
      taps[layer + ".mlp.gate.logits"] = drawn(experts);
      taps[layer + ".mlp.gate.weights"] = drawn(chosen).cwiseAbs();
      Matrix<std::int64_t>& of_tokens = ids[layer + ".mlp.gate.ids"];
      of_tokens.resize(tokens, chosen);
      for (std::int64_t t = 0; t < tokens; ++t) {
        of_tokens(t, 0) = t % experts;
        of_tokens(t, 1) = (t + 1 + t / experts) % experts;
      }
      taps[layer + ".mlp.shared_experts.gate_up_proj"] = drawn(48);  // twice 24
      const Values shared = taps[layer + ".mlp.shared_experts"] = drawn(H);
      const Values block = taps[layer + ".mlp.experts"] = shared + drawn(H);
      taps[layer + ".mlp"] = block;
      taps[layer] = stream += block;
    }
    taps["model.norm"] = norm(stream);
  }

  Values drawn(std::int64_t columns) {
    std::normal_distribution<float> normal;
    Values values(tokens, columns);
    for (std::int64_t i = 0; i < values.size(); ++i) values.data()[i] = normal(random);
    return values;
  }
};

/// How an engine holds it: experts and weights split, or rows of the sparse blocks.
enum class Engine { tensor_parallel, sequence_parallel };

/// What one rank holds, by tap.
using Held = std::map<std::string, Values>;

/// A rank's block of each segment of `whole`, segments of so many columns.
Values packed_block(const Values& whole, const std::vector<std::int64_t>& widths, std::int64_t tp,
                    std::int64_t rank) {
  Values block(whole.rows(), whole.cols() / tp);
  std::int64_t begin = 0, at = 0;
  for (const std::int64_t width : widths) {
    const std::int64_t share = width / tp;
    block.middleCols(at, share) = whole.middleCols(begin + rank * share, share);
    begin += width;
    at += share;
  }
  return block;
}

template <class T>
Matrix<T> shard_of(const Matrix<T>& whole, std::int64_t tp, std::int64_t rank, T pad) {
  const std::int64_t rows = (whole.rows() + tp - 1) / tp;
  Matrix<T> shard = Matrix<T>::Constant(rows, whole.cols(), pad);
  const std::int64_t held = std::clamp<std::int64_t>(whole.rows() - rank * rows, 0, rows);
  shard.topRows(held) = whole.middleRows(std::min(rank * rows, whole.rows()), held);
  return shard;
}

/// Writes the dump of `tp` ranks; `change` makes them wrong. Returns its files.
std::vector<std::string> write_dump(const std::string& prefix, Model model, std::int64_t tp,
                                    Engine engine,
                                    const std::function<void(std::vector<Held>&)>& change = {},
                                    const std::string& stopped = {}) {
  std::normal_distribution<float> normal;
  std::vector<Held> ranks;
  ranks.resize(std::size_t(tp));
  const bool has_shards = engine == Engine::sequence_parallel && tp > 1;
  for (const auto& [name, whole] : model.taps) {
    Values left = whole;  // of a sum
    const bool is_block = name.find("mlp") != std::string::npos ||
                          name.find("post_attention") != std::string::npos ||
                          name.ends_with("layers.1");
    const bool is_sum = tp > 1 && (has_shards ? name.find("self_attn") != std::string::npos
                                              : name.ends_with("mlp.shared_experts"));
    for (std::int64_t rank = 0; rank < tp; ++rank) {
      Values& mine = ranks[std::size_t(rank)][name];
      mine = whole;
      if (name.ends_with("qkv_proj"))
        mine = packed_block(whole, {64, 16, 16}, tp, rank);
      else if (name.ends_with("attn.attn"))
        mine = packed_block(whole, {64}, tp, rank);
      else if (name.ends_with("gate_up_proj") && !has_shards)
        mine = packed_block(whole, {24, 24}, tp, rank);
      else if (has_shards && is_block)
        mine = shard_of<float>(whole, tp, rank, name.ends_with("gate.weights") ? 0.5F : 0);
      else if (is_sum)
        left -= mine = rank + 1 < tp ? Values(model.drawn(whole.cols())) : left;
      for (std::int64_t i = 0; i < mine.size(); ++i)  // another order of sums
        mine.data()[i] *= 1 + 2e-7F * normal(model.random);
    }
  }
  if (change) change(ranks);

  std::vector<std::string> paths;
  const ParallelConfig parallel{.tp = tp, .enable_expert_parallel = tp > 1};
  for (std::int64_t rank = 0; rank < tp; ++rank) {
    DumpedStep step;
    step.num_tokens = model.tokens;
    step.stopped = stopped;
    for (std::int64_t t = 0; t < model.tokens; ++t) {
      step.inputs.input_ids.push_back(t);
      step.inputs.positions.push_back(t);
    }
    step.inputs.query_start_loc = {0, std::int32_t(model.tokens)};
    step.inputs.context_start_loc = {0, 0};
    for (const auto& [name, values] : ranks[std::size_t(rank)])
      step.taps["target/" + name] = {{values.rows(), values.cols()},
                                     {values.data(), values.data() + values.size()}};
    for (const auto& [name, whole] : model.ids) {
      const Matrix<std::int64_t> mine =
          has_shards ? shard_of<std::int64_t>(whole, tp, rank, 3) : whole;
      step.ids["target/" + name] = {{mine.rows(), mine.cols()},
                                    {mine.data(), mine.data() + mine.size()}};
    }
    const RankCoordinates at = coordinates_of(rank, parallel);
    DumpWriter writer(paths.emplace_back(text(prefix, ".rank", rank, ".h5")), "a test");
    writer.write_rank(at, parallel, model.tokens);
    writer.write_step(at, step);
    writer.commit();
  }
  return paths;
}

DumpDiffResult diff_files(const std::vector<std::string>& trusted,
                          const std::vector<std::string>& found) {
  const DumpFile first = DumpFile::open(trusted), second = DumpFile::open(found);
  DumpSide side(first);
  return diff_dump(side, second, DumpDiffOptions());
}

struct Two {
  std::int64_t tokens = 9;
  std::int64_t trusted_tp = 1, tp = 2;
  Engine trusted_engine = Engine::tensor_parallel, engine = Engine::tensor_parallel;
  std::vector<std::string> not_captured = {};

  DumpDiffResult diff(const std::function<void(std::vector<Held>&)>& change = {}) const {
    Model model(tokens);
    for (const std::string& end : not_captured)
      std::erase_if(model.taps, [&](const auto& tap) { return tap.first.ends_with(end); });
    const TemporaryFolder folder;
    return diff_files(write_dump(folder.file("a"), model, trusted_tp, trusted_engine),
                      write_dump(folder.file("b"), model, tp, engine, change));
  }
};

/// "model.layers.0.mlp: summed twice"
std::string named(const DumpDiffResult& result) {
  const TapDiff* const first = result.first_difference();
  return first == nullptr ? "no difference" : name_of(first->tap) + ": " + first->called;
}

/// The sum of what the ranks hold.
Values sum_of(const std::vector<Held>& ranks, const std::string& tap) {
  Values sum = ranks.front().at(tap);
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) sum += ranks[rank].at(tap);
  return sum;
}

BOOST_AUTO_TEST_CASE(right_runs_match_whatever_the_ranks) {
  constexpr Engine tensors = Engine::tensor_parallel, sequences = Engine::sequence_parallel;
  for (const std::int64_t tokens : {1, 2, 9})
    for (const Two& two :
         {Two{.engine = tensors}, Two{.engine = sequences}, Two{.tp = 4, .engine = tensors},
          Two{.tp = 4, .engine = sequences},
          Two{.trusted_tp = 2, .tp = 4, .trusted_engine = tensors, .engine = tensors},
          Two{.trusted_tp = 2, .tp = 4, .trusted_engine = tensors, .engine = sequences},
          Two{.trusted_tp = 2, .tp = 2, .trusted_engine = tensors, .engine = sequences},
          Two{.trusted_tp = 2, .tp = 4, .trusted_engine = sequences, .engine = tensors},
          Two{.trusted_tp = 2, .tp = 4, .trusted_engine = sequences, .engine = sequences}}) {
      Two right = two;
      right.tokens = tokens;
      const DumpDiffResult result = right.diff();
      BOOST_TEST_CONTEXT("T " << tokens << ", tp " << two.trusted_tp << " and " << two.tp << ", "
                              << int(two.trusted_engine) << " and " << int(two.engine)) {
        BOOST_TEST(in_words(result) == "no difference in 32 taps");
        BOOST_TEST(result.not_compared.empty());
        BOOST_TEST(result.not_captured.empty());
      }
    }
}

BOOST_AUTO_TEST_CASE(terms_of_any_model_are_counted) {
  const std::string block = "model.layers.0.mlp.experts",
                    shared = "model.layers.0.mlp.shared_experts";
  for (const Engine engine : {Engine::tensor_parallel, Engine::sequence_parallel}) {
    const auto fault = [&](float of_shared, float of_all) {
      return named(Two{.engine = engine}.diff([&](std::vector<Held>& ranks) {
        const bool is_sum = engine == Engine::tensor_parallel;
        const Values all = is_sum ? sum_of(ranks, shared) : Values();
        for (Held& rank : ranks)
          rank[block] = of_all * rank[block] + of_shared * (is_sum ? all : rank[shared]);
      }));
    };
    BOOST_TEST(fault(1, 1) == block + ": " + shared + " summed twice");
    BOOST_TEST(fault(-0.5F, 1) == block + ": " + shared + " 1/2 of the value");
    BOOST_TEST(fault(-1, 1) == block + ": " + shared + " left out");
    BOOST_TEST(fault(0.5F, 0.5F) == block + ": all but " + shared + " 1/2 of the value");
  }
}

BOOST_AUTO_TEST_CASE(a_sum_that_was_never_reduced_is_named_where_it_is_added) {
  const std::string norm = "model.layers.0.post_attention_layernorm";
  // Each rank goes on with its own summand of the attention, shard by shard.
  const auto fault = [&](const Two& two) {
    return named(two.diff([&](std::vector<Held>& ranks) {
      const Values all = sum_of(ranks, "model.layers.0.self_attn");
      const Values before = Model(two.tokens).taps.at(norm + ".residual") - all;
      const Values normed = Model(two.tokens).taps.at(norm);
      const Values whole = before + all;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const Values own = before + ranks[rank].at("model.layers.0.self_attn");
        Values out = own;
        for (std::int64_t t = 0; t < two.tokens; ++t) {
          const auto rms = [](const auto& row) { return std::sqrt(row.squaredNorm() / H + eps); };
          out.row(t) = own.row(t).cwiseProduct(normed.row(t)).cwiseQuotient(whole.row(t)) *
                       float(rms(whole.row(t)) / rms(own.row(t)));
        }
        if (ranks[rank].contains(norm + ".residual"))
          ranks[rank][norm + ".residual"] = shard_of<float>(own, two.tp, std::int64_t(rank), 0);
        ranks[rank][norm] = shard_of<float>(out, two.tp, std::int64_t(rank), 0);
      }
    }));
  };
  const std::string words =
      "partial sum where the complete value is required: model.layers.0.self_attn was never "
      "reduced";
  BOOST_TEST(fault({.engine = Engine::sequence_parallel}) == norm + ".residual: " + words);
  BOOST_TEST(fault({.engine = Engine::sequence_parallel, .not_captured = {".residual"}}) ==
             norm + ": " + words);
}

BOOST_AUTO_TEST_CASE(rows_that_are_due_elsewhere_are_named) {
  const auto fault = [&](const std::string& tap, const Two& two,
                         const std::function<void(Values&, std::size_t)>& change) {
    return named(two.diff([&](std::vector<Held>& ranks) {
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) change(ranks[rank][tap], rank);
    }));
  };
  const std::string attention = "model.layers.1.self_attn.o_proj", block = "model.layers.1.mlp";
  BOOST_TEST(fault(attention, {}, [](Values& rows, std::size_t) {
               rows.row(0).swap(rows.row(1));
             }) == attention + ": rows in another order");
  BOOST_TEST(fault(attention, {}, [](Values& rows, std::size_t) { rows *= 2; }) ==
             attention + ": summed twice");
  // Half of it on either rank is no sum of two summands.
  BOOST_TEST(fault(attention, {}, [](Values& rows, std::size_t) { rows *= 0.5F; }) ==
             attention + ": 1/2 of the value");
  const Values whole = Model(9).taps.at(block);
  BOOST_TEST(
      fault(block, {.engine = Engine::sequence_parallel}, [&](Values& rows, std::size_t rank) {
        rows = shard_of<float>(whole, 2, 1 - std::int64_t(rank), 0);
      }) == block + ": reversed rank order");
  // A rank that took a pad for the only token, as an engine does that tells a shard by its rows.
  const std::string columns = "model.layers.1.self_attn.attn";
  BOOST_TEST(fault(columns, {.tokens = 1}, [](Values& rows, std::size_t rank) {
               rows *= float(rank == 0);
             }) == columns + ": zeros where tokens are due");
}

BOOST_AUTO_TEST_CASE(experts_are_told_by_the_tokens_that_chose_them) {
  const std::string block = "model.layers.1.mlp.experts";
  const Matrix<std::int64_t> ids = Model(9).ids.at("model.layers.1.mlp.gate.ids");
  const auto fault = [&](std::int64_t first, std::int64_t count) {
    Two two{.tokens = 9};
    return named(two.diff([&](std::vector<Held>& ranks) {
      for (Held& rank : ranks)
        for (std::int64_t t = 0; t < ids.rows(); ++t)
          for (std::int64_t k = 0; k < chosen; ++k)
            if (ids(t, k) >= first && ids(t, k) < first + count)
              rank[block].row(t) += Eigen::RowVectorXf::LinSpaced(H, -1, float(t));
    }));
  };
  BOOST_TEST(fault(3, 1) == block + ": other values where expert 3 was chosen");
  BOOST_TEST(fault(4, 4) ==
             block + ": other values where experts 4-7 were chosen, those of one rank");
}

BOOST_AUTO_TEST_CASE(a_run_that_stops_on_a_shard_says_so) {
  const TemporaryFolder folder;
  const Model model(9);
  const DumpDiffResult result =
      diff_files(write_dump(folder.file("a"), model, 1, Engine::tensor_parallel),
                 write_dump(
                     folder.file("b"), model, 2, Engine::sequence_parallel,
                     [](std::vector<Held>& ranks) {
                       for (std::size_t rank = 0; rank < ranks.size(); ++rank)
                         ranks[rank]["model.norm"] =
                             shard_of<float>(ranks[rank]["model.norm"], 2, std::int64_t(rank), 0);
                     },
                     "index 8 is out of range"));
  BOOST_TEST(named(result) ==
             "the rest of the step: missing: the run stopped after "
             "target/model.norm");
  BOOST_TEST(result.first_difference()->detail ==
             "the run stopped: index 8 is out of range\n"
             "target/model.norm, the last one, is held as shard: [0,1,2,3,4] [5,6,7,8,PAD]");
}

/// Stores a tap as bfloat16.
void narrow(const std::string& path, std::int64_t rank, const std::string& tap) {
  const std::string inside = text("/ranks/", rank, "/steps/0/taps/", tap);
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  std::vector<std::uint16_t> bits;
  hsize_t extents[2] = {};
  {
    const Hdf5Handle set(H5Dopen2(file, inside.c_str(), H5P_DEFAULT), H5Dclose);
    const Hdf5Handle space(H5Dget_space(set), H5Sclose);
    H5Sget_simple_extent_dims(space, extents, nullptr);
    std::vector<float> values(extents[0] * extents[1]);
    BOOST_REQUIRE(H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >=
                  0);
    for (const float value : values)
      bits.push_back(std::uint16_t((std::bit_cast<std::uint32_t>(value) + 0x8000U) >> 16));
  }
  BOOST_REQUIRE(H5Ldelete(file, inside.c_str(), H5P_DEFAULT) >= 0);
  const Hdf5Handle space(H5Screate_simple(2, extents, nullptr), H5Sclose);
  const Hdf5Handle set(H5Dcreate2(file, inside.c_str(), H5T_NATIVE_UINT16, space, H5P_DEFAULT,
                                  H5P_DEFAULT, H5P_DEFAULT),
                       H5Dclose);
  BOOST_REQUIRE(H5Dwrite(set, H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, bits.data()) >= 0);
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, 8);
  const Hdf5Handle scalar(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle said(H5Acreate2(set, "dtype", type, scalar, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  BOOST_REQUIRE(H5Awrite(said, type, "bfloat16") >= 0);
}

BOOST_AUTO_TEST_CASE(a_routers_float32_weights_are_as_exact_as_the_model) {
  const std::string weights = "model.layers.1.mlp.gate.weights";
  for (const bool is_trusted : {false, true}) {
    const TemporaryFolder folder;
    const Model model(9);
    const auto a = write_dump(folder.file("a"), model, 1, Engine::tensor_parallel);
    const auto b = write_dump(folder.file("b"), model, 1, Engine::tensor_parallel,
                              [&](std::vector<Held>& ranks) { ranks[0][weights] *= 1.002F; });
    BOOST_TEST(named(diff_files(a, b)).starts_with(weights));
    narrow((is_trusted ? a : b).front(), 0, "model.embed_tokens");
    BOOST_TEST(named(diff_files(a, b)) == "no difference");
  }
}

BOOST_AUTO_TEST_CASE(a_difference_of_narrow_types_says_which_limits_to_pass) {
  const TemporaryFolder folder;
  const Model model(9);
  Model other = model;
  other.ids.at("model.layers.1.mlp.gate.ids")(4, 0) = 7;
  const auto a = write_dump(folder.file("a"), model, 1, Engine::tensor_parallel);
  const auto b = write_dump(folder.file("b"), other, 1, Engine::tensor_parallel);
  const auto notes = [&](bool has_limits) {
    const DumpFile first = DumpFile::open(a), second = DumpFile::open(b);
    DumpSide side(first);
    return notes_on_narrow_types(side, second, has_limits,
                                 diff_dump(side, second, DumpDiffOptions()));
  };
  BOOST_TEST(notes(false).empty());
  narrow(b.front(), 0, "model.embed_tokens");
  BOOST_REQUIRE(notes(false).size() == 2U);
  BOOST_TEST(notes(false)[0].find("--rule '*: of_max=0.1, l2=0.05, row_l2=0.1'") !=
             std::string::npos);
  BOOST_REQUIRE(notes(true).size() == 1U);
  BOOST_TEST(notes(true)[0].starts_with(
      "tokens choose other experts, from step 0 target/model.layers.1.mlp.gate.ids on"));
}

}  // namespace
}  // namespace tokenview
