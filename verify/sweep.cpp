// SPDX-License-Identifier: Apache-2.0
#include "verify/sweep.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "verify/expected_verdict.hpp"
#include "verify/requests.hpp"

namespace tokenview {
namespace {

struct SweepModel {
  const char* name;
  ModelConfig config;
};

/// A model whose heads, experts and widths divide by 1, 2, 3, 4 and 8; layers L L L F.
ModelConfig divisible(const char* family) {
  ModelConfig config = *preset(family);
  config.vocab_size = 192;
  config.hidden_size = 96;
  config.num_attention_heads = config.num_key_value_heads = 24;
  config.linear_num_key_heads = 24;
  config.linear_num_value_heads = 48;
  config.num_experts = 24;
  config.moe_intermediate_size = config.shared_expert_intermediate_size = 48;
  config.intermediate_size = 48;
  return config;
}

const std::vector<SweepModel>& models() {
  static const std::vector<SweepModel> all = [] {
    std::vector<SweepModel> list = {{"qwen3.5-moe", divisible("qwen3.5-moe")},
                                    {"qwen3-next", divisible("qwen3-next")}};
    list.push_back({"qwen3-next, layer 0 dense", divisible("qwen3-next")});
    list.back().config.mlp_only_layers = {0};
    list.push_back({"qwen3-next, every other layer dense", divisible("qwen3-next")});
    list.back().config.decoder_sparse_step = 2;
    list.push_back({"qwen3-next, no shared expert", divisible("qwen3-next")});
    list.back().config.shared_expert_intermediate_size = 0;
    list.push_back({"qwen3-next, full attention", divisible("qwen3-next")});
    std::ranges::fill(list.back().config.layer_types, LayerType::full_attention);
    return list;
  }();
  return all;
}

constexpr std::array<std::int64_t, 6> tp_values = {1, 2, 3, 4, 5, 8};
constexpr std::array<std::int64_t, 3> dp_values = {1, 2, 4};
constexpr std::array<std::int64_t, 2> pp_values = {1, 2};

const std::vector<std::vector<std::int64_t>>& aux_sets() {
  static const std::vector<std::vector<std::int64_t>> sets = {{}, {0}, {2}, {4}, {0, 2, 4}};
  return sets;
}

/// What one data-parallel rank may be given: prefills of the lengths at which layouts change, and
/// decodes, drafts verified and rejected, several requests, a context before.
std::vector<std::string> rank_batches(std::int64_t p, std::int64_t draft_steps) {
  std::vector<std::int64_t> tokens = {0,     1,  2,           p - 1,           p, p + 1, 2 * p - 1,
                                      2 * p, 10, p * (p - 1), p * (p - 1) + 1, 64};
  std::ranges::sort(tokens);
  const auto repeated = std::ranges::unique(tokens);
  tokens.erase(repeated.begin(), repeated.end());
  std::vector<std::string> batches;
  for (const std::int64_t t : tokens) batches.push_back(std::to_string(t));
  for (const char* requests : {"1c5", "1c5+1c3+1c1", "4+6", "1+2+7", "3c8+5"})
    batches.emplace_back(requests);
  if (draft_steps > 0)
    for (const std::int64_t rejected : {std::int64_t{0}, draft_steps}) {
      const std::string verify = text(draft_steps + 1, "c6v", draft_steps, 'r', rejected);
      batches.push_back(verify);
      batches.push_back(verify + "+" + text(draft_steps + 1, "c3v", draft_steps, "r0"));
      batches.push_back(verify + "+5");
    }
  return batches;
}

/// The batches of all data-parallel ranks: each rank alone, every pair, and some of four.
std::vector<std::string> batches_of(std::int64_t p, std::int64_t dp, std::int64_t draft_steps) {
  const std::vector<std::string> of_rank = rank_batches(p, draft_steps);
  if (dp == 1) return of_rank;
  std::vector<std::string> batches;
  const std::size_t n = of_rank.size();
  for (std::size_t i = 0; i < n; ++i) {
    if (dp == 2)
      for (const std::string& other : of_rank) batches.push_back(of_rank[i] + "/" + other);
    else
      batches.push_back(of_rank[i] + "/" + of_rank[(i + 1) % n] + "/" + of_rank[(i + 4) % n] + "/" +
                        of_rank[(i * 3 + 2) % n]);
  }
  return batches;
}

/// The same lists, made once.
const std::vector<std::string>& batches(std::size_t tp, std::size_t dp, std::int64_t draft_steps) {
  static const auto all = [] {
    std::array<std::array<std::array<std::vector<std::string>, 5>, 3>, 6> lists;
    for (std::size_t i = 0; i < tp_values.size(); ++i)
      for (std::size_t j = 0; j < dp_values.size(); ++j)
        for (std::int64_t k = 0; k < 5; ++k)
          lists[i][j][std::size_t(k)] = batches_of(tp_values[i], dp_values[j], k);
    return lists;
  }();
  return all[tp][dp][std::size_t(draft_steps)];
}

/// Element types (bf16, fp16, fp32) times argmax over whole logits or over local ones: no view
/// knows of them.
constexpr std::int64_t neutral = 3 * 2;

/// All-to-all backends by the dispatch that they are to the views.
/// Source: vllm config/parallel.py, releases 0.23.0 to 0.33.0.
constexpr std::array<std::pair<Dispatch, std::int64_t>, 3> backends = {{
    {Dispatch::allgather_reducescatter, 3},  // and naive and pplx, which fall back to it
    {Dispatch::all_to_all, 8},  // deepep high throughput, low latency, v2; mori twice; nixl_ep;
                                // flashinfer_nvlink_one_sided; passthrough
    {Dispatch::naive, 1},       // to release 0.18.0
}};

ParallelConfig parallel_of(const SweepKey& key) {
  return {.tp = tp_values[key.tp],
          .dp = dp_values[key.dp],
          .pp = pp_values[key.pp],
          .enable_expert_parallel = key.expert_parallel != 0};
}

ParallelRun run_of(const SweepKey& key, const ModelConfig& config) {
  ParallelRun run{.config = config,
                  .plan = plan_for(config, parallel_of(key), ProtocolId(key.protocol))};
  run.plan.dispatch = Dispatch(key.dispatch);
  run.plan.aux_layers = aux_sets()[key.aux];
  run.draft_steps = key.draft_steps;
  run.most_findings = 1;
  run.inputs = inputs_of(
      parse_requests(batches(key.tp, key.dp, key.draft_steps)[key.batch], dp_values[key.dp]));
  run.runner.version = key.runner == 0 ? RunnerVersion::V1 : RunnerVersion::V2;
  if (key.graphs != 0) run.runner.graph_sizes = {1, 2, 4, 8, 16, 32};
  run.runner.padded_drafter = key.padded_drafter == 0;
  return run;
}

}  // namespace

SweepMatrix sweep_matrix() {
  struct Hash {
    std::size_t operator()(const SweepKey& k) const {
      std::size_t h = k.batch;
      for (const std::uint8_t part :
           {k.model, k.protocol, k.tp, k.dp, k.pp, k.expert_parallel, k.dispatch, k.draft_steps,
            k.runner, k.graphs, k.padded_drafter, k.aux})
        h = h * 31 + part;
      return h * 0x9E3779B97F4A7C15u;
    }
  };
  std::unordered_map<SweepKey, std::int64_t, Hash> count;
  count.reserve(1 << 20);
  SweepMatrix matrix;

  // One block crosses the layouts with every batch, one the runners, one the rest.
  struct Block {
    std::vector<std::uint8_t> model, protocol, tp, dp, pp, dispatch, draft_steps, runner, graphs,
        padded, aux;
    std::size_t batch_stride;
  };
  std::vector<std::uint8_t> all_protocol_ids;
  for (const ProtocolId id : all_protocols()) all_protocol_ids.push_back(std::uint8_t(id));
  const auto id = [](ProtocolId protocol) { return std::uint8_t(protocol); };
  const std::vector<Block> blocks = {
      {{0, 1, 2, 3, 4, 5},
       all_protocol_ids,
       {0, 1, 2, 3, 4, 5},
       {0, 1, 2},
       {0},
       {0},
       {0, 1, 3},
       {0},
       {0},
       {0},
       {0},
       1},
      {{0, 2},
       {id(ProtocolId::S), id(ProtocolId::A), id(ProtocolId::B), id(ProtocolId::C),
        id(ProtocolId::D), id(ProtocolId::E)},
       {1, 3},
       {0, 1},
       {0},
       {0},
       {1, 2, 3},
       {0, 1},
       {0, 1},
       {0, 1},
       {0},
       3},
      {{0, 2, 3},
       all_protocol_ids,
       {1, 3, 5},
       {0, 1},
       {0, 1},
       {0, 1, 2},
       {0, 2},
       {0},
       {0},
       {0},
       {0, 1, 2, 3, 4},
       7},
  };
  for (const Block& block : blocks)
    for (const std::uint8_t model : block.model)
      for (const std::uint8_t tp : block.tp)
        for (const std::uint8_t dp : block.dp)
          for (const std::uint8_t pp : block.pp)
            for (const std::uint8_t ep : {std::uint8_t{0}, std::uint8_t{1}}) {
              const ModelConfig& config = models()[model].config;
              const SweepKey parallel_key{.tp = tp, .dp = dp, .pp = pp, .expert_parallel = ep};
              const ParallelConfig parallel = parallel_of(parallel_key);
              bool is_legal = true;
              try {
                validate(config, parallel);
              } catch (const ConfigError&) {
                is_legal = false;
              }
              for (const std::uint8_t protocol : block.protocol) {
                const ProtocolId effective =
                    is_legal ? plan_for(config, parallel, ProtocolId(protocol)).protocol
                             : ProtocolId::S;
                for (const std::uint8_t k : block.draft_steps)
                  for (const std::uint8_t runner : block.runner)
                    for (const std::uint8_t graphs : block.graphs)
                      for (const std::uint8_t padded : block.padded)
                        for (const std::uint8_t aux : block.aux)
                          for (const std::uint8_t dispatch : block.dispatch) {
                            const std::int64_t alike = neutral * backends[dispatch].second;
                            const auto n = batches(tp, dp, k).size();
                            if (!is_legal) {
                              matrix.refused += alike * std::int64_t(n);
                              continue;
                            }
                            SweepKey key = parallel_key;
                            key.model = model;
                            key.protocol = std::uint8_t(effective);
                            key.draft_steps = k;
                            key.runner = runner;
                            key.graphs = graphs;
                            key.padded_drafter = k > 0 ? padded : 0;
                            key.aux = aux;
                            // Nothing is dispatched where a rank has all tokens and experts.
                            const bool dispatches =
                                parallel.dp > 1 || effective == ProtocolId::A ||
                                (effective != ProtocolId::S && effective != ProtocolId::deferred);
                            if (dispatches) key.dispatch = std::uint8_t(backends[dispatch].first);
                            for (std::size_t batch = 0; batch < n; batch += block.batch_stride) {
                              key.batch = std::uint16_t(batch);
                              count[key] += alike;
                            }
                          }
              }
            }
  for (const auto& [key, alike] : count) {
    matrix.distinct.push_back(key);
    matrix.covered += alike;
  }
  std::ranges::sort(matrix.distinct);
  return matrix;
}

Sweeper::Sweeper() {
  for (const SweepModel& model : models()) models_.push_back(model.config);
  for (const ModelConfig& config : models_) weights_.emplace_back(config);
}

SweepResult Sweeper::run(const SweepKey& key) {
  const ParallelRun run = run_of(key, models_[key.model]);
  SweepResult result{key, false, known_fault(run), {}};
  const ViewRunResult views = run_views(run, false, &weights_[key.model]);
  result.has_finding = !views.clean();
  if (!views.findings.empty())
    result.first = to_string(views.findings.front());
  else
    result.first = views.error;
  return result;
}

std::string in_words(const SweepKey& key) {
  const ParallelConfig parallel = parallel_of(key);
  std::string words =
      text(models()[key.model].name, ", protocol ", to_string(ProtocolId(key.protocol)),
           ", tp=", parallel.tp, " dp=", parallel.dp, " pp=", parallel.pp,
           parallel.enable_expert_parallel ? " ep" : "", ", requests ",
           batches(key.tp, key.dp, key.draft_steps)[key.batch], ", ", int(key.draft_steps),
           " draft steps");
  if (key.dispatch != 0) words += text(", ", to_string(Dispatch(key.dispatch)));
  if (key.runner != 0) words += ", runner V2";
  if (key.graphs != 0) words += ", graphs";
  if (key.padded_drafter != 0) words += ", drafter not padded";
  for (const std::int64_t layer : aux_sets()[key.aux]) words += text(", aux ", layer);
  return words;
}

}  // namespace tokenview
