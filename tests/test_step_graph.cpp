// SPDX-License-Identifier: Apache-2.0
// A step as a CUDA graph: replays with new batches against the same steps run eagerly, to the bit.
#include <boost/mpl/list.hpp>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <functional>

#include "device/check.hpp"
#include "device/device_info.hpp"
#include "device/step_graph.hpp"
#include "reference/program/protocols.hpp"
#include "tests/boost_test.hpp"
#include "tests/few.hpp"
#include "tests/skip.hpp"
#include "tests/support.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Types = boost::mpl::list<float, __nv_bfloat16>;
const std::vector<const char*> families = {"qwen3-next", "qwen3.5-moe"};

/// The whole program needs a GPU.
struct RequireGpu {
  RequireGpu() {
    std::string reason;
    if (devices(reason).empty()) skip_program(reason);
  }
};

/// One for all cases: starting cuBLAS takes a while.
template <class T>
const CudaOps<T>& gpu() {
  static const CudaOps<T> ops;
  return ops;
}

/// What a step shows and gives, on the host.
struct Shown {
  std::vector<std::string> names;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<std::int64_t>> ids;
};

template <class T>
struct TapsToHost final : TapSink<CudaOps<T>> {
  Shown shown;
  void tensor(const ModulePath& module, const char* leaf,
              typename CudaOps<T>::Tensor& value) override {
    shown.names.push_back(module.str(leaf));
    shown.values.push_back(gpu<T>().download(value));
    shown.ids.emplace_back();
  }
  void routing(const ModulePath& module, typename CudaOps<T>::Routing& value) override {
    shown.names.push_back(module.str());
    shown.values.push_back(gpu<T>().download(value.weights));
    shown.ids.push_back(gpu<T>().download(value.ids));
  }
};

template <class T>
Shown on_host(const std::vector<StepTap<T>>& taps) {
  Shown shown;
  for (const StepTap<T>& tap : taps) {
    shown.names.push_back(tap.name);
    shown.values.push_back(tap.routing ? gpu<T>().download(tap.routing->weights)
                                       : gpu<T>().download(tap.tensor));
    shown.ids.push_back(tap.routing ? gpu<T>().download(tap.routing->ids)
                                    : std::vector<std::int64_t>());
  }
  return shown;
}

bool same(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() &&
         (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
}

Claim same(const Shown& found, const Shown& expected) {
  if (found.names != expected.names) return refuted("other names");
  for (std::size_t i = 0; i < found.names.size(); ++i)
    if (!same(found.values[i], expected.values[i]) || found.ids[i] != expected.ids[i])
      return refuted(found.names[i] + " differs");
  return true;
}

/// The serial program of one family with its weights, and two states: of eager steps and of graphs.
template <class T>
struct Model {
  using Ops = CudaOps<T>;
  using Tensor = typename Ops::Tensor;
  using R = Rank<Ops, SoloComm>;

  explicit Model(const std::string& family)
      : config(config_of(family)),
        shapes(rank_shapes(config, 0, 1)),
        weights(WeightLoader<Ops>(ops, EditableWeights(config), config, {}).model()),
        protocol(plan_for(config, {}, ProtocolId::S)),
        eager(empty_state(ops, config, shapes)),
        captured(empty_state(ops, config, shapes)) {}

  static ModelConfig config_of(const std::string& family) {
    ModelConfig config = *preset(family);
    if (family == families[0]) config.mlp_only_layers = {1};  // a dense layer among sparse ones
    return config;
  }

  /// Logits of all rows.
  Tensor step(ModelState<Ops>& state, const Batch& batch, TapSink<Ops>& taps) const {
    SoloComm solo;
    R rank(ops, solo);
    rank.taps = &taps;
    return compute_logits(rank, weights, config,
                          forward(rank, protocol, weights, config, shapes, state, batch));
  }
  typename StepGraph<T>::Program program() {
    return [this](const Batch& batch, TapSink<Ops>& taps) { return step(captured, batch, taps); };
  }

  /// Room in the state of graphs, as an engine makes it at its start.
  void reserve(std::int64_t blocks, std::int64_t slots) {
    for (auto& layer : captured.layers) {
      if (layer.kv) ops.reserve(*layer.kv, blocks);
      if (layer.gdn) ops.reserve(*layer.gdn, slots);
    }
  }

  /// The same prompts into both states: of `lengths` rows, in slots 0, 1, ...
  void prefill(const std::vector<std::int64_t>& lengths) {
    std::vector<Sequence> sequences;
    for (std::size_t s = 0; s < lengths.size(); ++s)
      sequences.push_back({random_ids(random, lengths[s], config.vocab_size), 0, std::int32_t(s)});
    TapsToHost<T> taps;
    step(eager, batch_of(sequences), taps);
    step(captured, batch_of(sequences), taps);
    computed.assign(lengths.begin(), lengths.end());
  }

  /// The next `rows` rows of the first `count` sequences, padded to `tokens` rows.
  Batch next(std::size_t count, std::int64_t tokens, std::int64_t rows = 1) {
    std::vector<Sequence> sequences;
    for (std::size_t s = 0; s < count; ++s) {
      sequences.push_back({random_ids(random, rows, config.vocab_size), std::int32_t(computed[s]),
                           std::int32_t(s)});
      computed[s] += rows;
    }
    Batch batch = batch_of(sequences);
    append_runner_pads(batch, tokens);
    return batch;
  }

  /// A replay of the batch shows and gives what an eager step does. `before` is what it showed.
  Claim agrees(StepGraph<T>& graph, const Batch& batch, Shown& before) {
    TapsToHost<T> expected;
    const std::vector<float> logits = ops.download(step(eager, batch, expected));
    const Tensor& found = graph.replay(batch);
    const Shown shown = on_host(graph.taps());
    if (Claim claim = same(shown, expected.shown); !claim) return claim;
    if (!same(ops.download(found), logits)) return refuted("the result differs");
    if (same(shown, before)) return refuted("the taps are those of the step before");
    before = shown;
    return true;
  }

  const Ops& ops = gpu<T>();
  std::mt19937_64 random{3};
  ModelConfig config;
  RankShapes shapes;
  ModelWeights<typename Ops::Weight> weights;
  Protocol<R> protocol;
  ModelState<Ops> eager, captured;
  std::vector<std::int64_t> computed;  // rows of each sequence
};

/// What the host knows of the caches.
template <class T>
std::vector<std::int64_t> notes(const ModelState<CudaOps<T>>& state) {
  std::vector<std::int64_t> all;
  for (const auto& layer : state.layers) {
    if (layer.kv) {
      all.push_back(layer.kv->used_blocks);
      for (const auto& slot : layer.kv->slots) {
        all.push_back(slot.length);
        all.insert(all.end(), slot.blocks.begin(), slot.blocks.end());
      }
    }
    if (layer.gdn)
      for (const auto& slot : layer.gdn->slots)
        all.insert(all.end(), {slot.has_conv, slot.has_recurrent, slot.conv_after_row.rows(),
                               slot.recurrent_after_row.rows()});
  }
  return all;
}

bool names(const Error& error, const std::string& words) {
  BOOST_TEST_INFO(error.what());
  const bool found = std::string(error.what()).find(words) != std::string::npos;
  BOOST_TEST(found);
  return found;
}

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireGpu);

BOOST_AUTO_TEST_CASE_TEMPLATE(replayed_decode_steps_are_eager_ones_with_all_taps, T, Types) {
  for (const char* family : first_if_few(1, families)) {
    Model<T> model(family);
    model.reserve(16, 4);
    model.prefill({14, 3, 31});  // two of them enter a block of the cache during the steps
    const Batch first = model.next(3, 3);
    StepGraph<T> graph(model.ops, first, model.program());
    BOOST_TEST(graph.taps().size() > 50);
    Shown before;
    for (const int step : first_if_few(2, std::vector{0, 1, 2, 3, 4}))
      BOOST_TEST_CONTEXT(family << ", step " << step)
    BOOST_TEST(model.agrees(graph, step == 0 ? first : model.next(3, 3), before));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_graph_of_eight_rows_takes_fewer_and_pads, T, Types) {
  for (const char* family : first_if_few(1, families)) {
    Model<T> model(family);
    model.reserve(32, 8);
    model.prefill({5, 6, 7, 8, 9, 10, 11, 12});
    const Batch full = model.next(8, 8);
    StepGraph<T> graph(model.ops, full, model.program());
    Shown before;
    BOOST_TEST(model.agrees(graph, full, before));
    for (const std::size_t sequences : first_if_few(1, std::vector<std::size_t>{5, 7, 1, 8}))
      BOOST_TEST_CONTEXT(family << ", " << sequences << " sequences")
    BOOST_TEST(model.agrees(graph, model.next(sequences, 8), before));
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_verification_is_replayed_and_its_states_are_committed, T, Types) {
  Model<T> model(families[0]);
  model.reserve(16, 2);
  model.prefill({5, 9});
  Batch batch = model.next(2, 6, 3);
  batch.keep_states = true;
  StepGraph<T> graph(model.ops, batch, model.program());
  Shown before;
  for (int step = 0; step < 3; ++step) {
    BOOST_TEST_CONTEXT("step " << step) BOOST_TEST(model.agrees(graph, batch, before));
    for (const std::int32_t slot : {0, 1}) {  // one row of slot 0 is accepted, two of slot 1
      for (auto* state : {&model.eager, &model.captured})
        for (auto& layer : state->layers)
          if (layer.gdn) model.ops.commit_accepted(*layer.gdn, slot, slot + 1);
      model.computed[std::size_t(slot)] -= 2 - slot;
    }
    batch = model.next(2, 6, 3);
    batch.keep_states = true;
  }
}

namespace {

/// Keeps where a tap was, not what it held, and shows it to another sink.
template <class T>
struct StaleTaps final : TapSink<CudaOps<T>> {
  explicit StaleTaps(TapSink<CudaOps<T>>& sink) : to(sink) {}
  void tensor(const ModulePath& module, const char* leaf,
              typename CudaOps<T>::Tensor& value) override {
    const std::shared_ptr<T> not_owned(std::shared_ptr<void>(), value.data());
    pointers.push_back({module.str(leaf), {not_owned, value.rows(), value.cols()}, std::nullopt});
    to.tensor(module, leaf, value);
  }
  void routing(const ModulePath& module, typename CudaOps<T>::Routing& value) override {
    to.routing(module, value);
  }
  TapSink<CudaOps<T>>& to;
  std::vector<StepTap<T>> pointers;
};

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(a_tap_that_is_a_pointer_shows_what_came_later, T, Types) {
  Model<T> model(families[0]);
  model.reserve(16, 4);
  model.prefill({4, 6});
  const Batch batch = model.next(2, 2);
  std::vector<StepTap<T>> pointers;
  StepGraph<T> graph(model.ops, batch, [&](const Batch& step, TapSink<CudaOps<T>>& taps) {
    StaleTaps<T> stale(taps);
    const auto result = model.step(model.captured, step, stale);
    pointers = stale.pointers;
    return result;
  });
  Shown before;
  BOOST_REQUIRE(model.agrees(graph, batch, before));  // the copies are right
  const Shown stale = on_host(pointers);
  std::size_t wrong = 0, tensors = 0;
  for (std::size_t i = 0; i < graph.taps().size(); ++i) {
    if (graph.taps()[i].routing) continue;
    wrong += !same(stale.values[tensors], before.values[i]);
    ++tensors;
  }
  BOOST_TEST(tensors == stale.values.size());
  BOOST_TEST(wrong > tensors / 2);
}

BOOST_AUTO_TEST_CASE(what_no_replay_could_repeat_is_refused_and_the_next_step_runs) {
  using Tensor = CudaOps<float>::Tensor;
  Model<float> model(families[0]);
  model.prefill({4, 6});
  const Batch batch = model.next(2, 2);
  const auto refuses = [&](const char* words, std::function<Tensor(const Tensor&)> body) {
    BOOST_CHECK_EXCEPTION(StepGraph<float>(model.ops, batch,
                                           [&](const Batch& step, TapSink<CudaOps<float>>& taps) {
                                             return body(model.step(model.captured, step, taps));
                                           }),
                          DeviceError, [&](const Error& error) { return names(error, words); });
  };
  refuses("results on the host", [&](const Tensor& logits) {
    model.ops.argmax(logits);
    return logits;
  });
  refuses("no function of the batch", [&](const Tensor& logits) {
    return model.ops.index_rows(logits, {1, 0});
  });
  refuses("embed: the ids are not those of the batch", [&](const Tensor&) {
    return model.ops.embed({1, 2}, model.weights.embed_tokens, unmasked_vocabulary);
  });
  refuses("out of memory", [&](const Tensor&) { return model.ops.blank(1 << 20, 1 << 20); });
  refuses("how many rows were accepted", [&](const Tensor& logits) {
    model.ops.commit_accepted(*model.captured.layers[0].gdn, 0, 1);
    return logits;
  });
  BOOST_CHECK_EXCEPTION(
      StepGraph<float>(model.ops, batch,
                       [&](Batch step, TapSink<CudaOps<float>>& taps) {
                         std::swap(step.slots[0], step.slots[1]);
                         return model.step(model.captured, step, taps);
                       }),
      DeviceError, [](const Error& error) { return names(error, "a pass over another batch"); });
  StepGraph<float> graph(model.ops, batch, model.program());
  Shown before;
  BOOST_TEST(model.agrees(graph, batch, before));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(a_capture_writes_no_cache_and_says_so, T, Types) {
  Model<T> model(families[0]);
  model.reserve(16, 4);
  model.prefill({4, 6});
  const auto before = notes<T>(model.captured);
  const Batch batch = batch_of({{{1}, 4, 0}, {{2}, 6, 1}, {{3}, 0, 2}});
  StepGraph<T> graph(model.ops, batch, model.program());
  BOOST_TEST(notes<T>(model.captured) == before, boost::test_tools::per_element());
  BOOST_CHECK_THROW(StepGraph<T>(model.ops, batch,
                                 [&](const Batch& step, TapSink<CudaOps<T>>& taps) {
                                   const auto logits = model.step(model.captured, step, taps);
                                   model.ops.argmax(logits);
                                   return logits;
                                 }),
                    DeviceError);
  BOOST_TEST(notes<T>(model.captured) == before, boost::test_tools::per_element());
  TapsToHost<T> taps;  // what was captured of the third sequence is not there to be continued
  BOOST_CHECK_THROW(model.step(model.captured, batch_of({{{1}, 1, 2}}), taps), ShapeError);
  graph.replay(batch);
  BOOST_TEST((notes<T>(model.captured) != before));
}

BOOST_AUTO_TEST_CASE(a_replay_that_fails_leaves_the_caches_as_they_were) {
  Model<float> model(families[0]);
  model.reserve(16, 2);
  model.prefill({5, 9});
  Batch batch = model.next(2, 6, 3);
  batch.keep_states = true;
  StepGraph<float> graph(model.ops, batch, model.program());
  Shown shown;
  BOOST_TEST(model.agrees(graph, batch, shown));
  const auto before = notes<float>(model.captured);
  // The recurrent layers come first, and take it; the cache of the attention lacks two rows.
  Batch ahead = batch_of({{{1, 2, 3}, 8, 0}, {{4}, 14, 1}});
  append_runner_pads(ahead, 6);
  ahead.keep_states = true;
  BOOST_CHECK_EXCEPTION(graph.replay(ahead), ShapeError,
                        [](const Error& error) { return names(error, "its cache holds 12"); });
  BOOST_TEST(notes<float>(model.captured) == before, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE_TEMPLATE(what_a_step_reads_lies_apart_from_what_it_works_in, T, Types) {
  Model<T> model(families[0]);
  model.reserve(16, 4);
  model.prefill({4, 6});
  const Batch batch = model.next(2, 2);
  StepGraph<T> graph(model.ops, batch, [&](const Batch& step, TapSink<CudaOps<T>>& taps) {
    for (const std::int64_t bytes : {1 << 14, 1 << 16, 1 << 18})  // written, and free again
      model.ops.blank(1, bytes / std::int64_t(sizeof(T)));
    return model.step(model.captured, step, taps);
  });
  Shown before;
  BOOST_TEST(model.agrees(graph, batch, before));
}

BOOST_AUTO_TEST_CASE(an_error_of_cuda_is_reported_once) {
  BOOST_CHECK_THROW(check(cudaSetDevice(1 << 20), "cudaSetDevice"), DeviceError);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(a_pool_does_not_grow_under_a_graph) {
  Model<float> model(families[0]);
  model.prefill({15, 31});  // into pools of three blocks
  BOOST_CHECK_EXCEPTION(
      StepGraph<float>(model.ops, batch_of({{{1}, 0, 0}, {{1}, 0, 2}}), model.program()),
      DeviceError, [](const Error& error) { return names(error, "cannot grow"); });
  const Batch batch = model.next(2, 2);
  StepGraph<float> graph(model.ops, batch, model.program());
  Shown before;
  BOOST_TEST(model.agrees(graph, batch, before));
  BOOST_CHECK_EXCEPTION(graph.replay(model.next(2, 2)), DeviceError, [](const Error& error) {
    return names(error, "cannot grow in a captured step");
  });
  model.reserve(100, 4);
  BOOST_CHECK_EXCEPTION(graph.replay(batch), DeviceError, [](const Error& error) {
    return names(error, "has grown since the step was captured");
  });
}

BOOST_AUTO_TEST_CASE(a_batch_of_another_shape_is_refused) {
  Model<float> model(families[0]);
  model.reserve(16, 4);
  model.prefill({4, 6, 5});
  StepGraph<float> graph(model.ops, model.next(3, 4), model.program());
  const auto refuses = [&](const Batch& batch, const char* words) {
    BOOST_CHECK_EXCEPTION(graph.replay(batch), DeviceError,
                          [&](const Error& error) { return names(error, words); });
  };
  refuses(model.next(3, 5), "5 rows, but the step was captured with 4");
  refuses(model.next(2, 4, 2), "2 rows of a sequence, but the step was captured with at most 1");
  Batch kept = model.next(3, 4);
  kept.keep_states = true;
  refuses(kept, "states are kept");
  refuses(batch_of({{{1}, 4, 0}, {{1}, 4, 1}, {{1}, 4, 2}, {{1}, 0, 3}}), "4 sequences");
  Batch unwritten = batch_of({{{1}, 9, 0}, {{1}, 9, 1}, {{1}, 9, 3}});
  append_runner_pads(unwritten, 4);
  BOOST_CHECK_THROW(graph.replay(unwritten), ShapeError);
}

}  // namespace tokenview
