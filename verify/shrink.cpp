// SPDX-License-Identifier: Apache-2.0
#include "verify/shrink.hpp"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>

#include "reference/program/error.hpp"
#include "verify/model_argument.hpp"
#include "verify/repair.hpp"
#include "verify/report.hpp"
#include "verify/requests.hpp"
#include "verify/scenario_text.hpp"

namespace tokenview {
namespace {

using Steps = std::vector<std::vector<std::vector<Request>>>;  // [step][dp][request]

Steps steps_of(const Scenario& s) {
  Steps steps;
  for (const std::string& requests : s.requests)
    steps.push_back(parse_requests(requests, s.parallel.dp));
  return steps;
}

std::vector<std::string> requests_of(const Steps& steps) {
  std::vector<std::string> requests;
  for (const auto& step : steps) requests.push_back(to_string(step));
  return requests;
}

/// Layer numbers, rows and ranks aside.
std::string without_numbers(const std::string& words) {
  static const std::regex number("[0-9]+(,[0-9]+)*");
  return std::regex_replace(words, number, "#");
}

/// What stopped a run, in the words that a scenario expects.
ExpectedFinding stop_of(const ViewRunResult& views) {
  ExpectedFinding expect;
  expect.check = views.collective_mismatch ? "collective" : "shape";
  static const std::regex place("^(tp=[0-9]+ dp=[0-9]+ pp=[0-9]+: )+");
  std::string first = std::regex_replace(views.error.substr(0, views.error.find('\n')), place, "");
  if (!views.collective_mismatch) {
    expect.operation = first.substr(0, first.find(':'));
    return expect;
  }
  static const std::regex call("call [0-9]+: ([a-z_]+)\\(.*\\) in ([^\\n]*)");
  if (std::smatch found; std::regex_search(views.error, found, call)) {
    expect.operation = found[1];
    expect.module = found[2];
  }
  const std::size_t colon = first.rfind(": ");
  expect.actual = first.starts_with("deadlock") ? "deadlock"
                  : colon == std::string::npos  ? first
                                                : first.substr(colon + 2);
  return expect;
}

/// The keys of a model's config.json that a layer stack and its experts have, with changes applied.
class ModelKeys {
 public:
  explicit ModelKeys(const Scenario& s)
      : changes_(s.model_changes.empty() ? nlohmann::json::object()
                                         : nlohmann::json::parse(s.model_changes)),
        config_(nlohmann::json::parse(model_argument(s.model).config_json)) {
    config_.merge_patch(changes_);
    inner_ = config_.contains("text_config") ? "text_config" : "";
  }

  bool has(const char* key) const { return now().contains(key); }
  const nlohmann::json& at(const char* key) const { return now().at(key); }
  void set(const char* key, nlohmann::json value) {
    (inner_.empty() ? changes_ : changes_[inner_])[key] = std::move(value);
  }
  std::string changes() const { return changes_.dump(); }

 private:
  const nlohmann::json& now() const { return inner_.empty() ? config_ : config_.at(inner_); }

  nlohmann::json changes_, config_;
  std::string inner_;
};

/// Layer numbers of a fault's place, `by` less.
std::string moved_down(const std::string& at, std::int64_t by) {
  static const std::regex layer("^model\\.layers\\.([0-9]+)");
  std::smatch found;
  if (!std::regex_search(at, found, layer)) return at;
  return text("model.layers.", std::stoll(found[1]) - by, found.suffix().str());
}

/// `s` with `count` of its layers, from `first` on. Throws for a fault in a layer before it.
Scenario with_layers(const Scenario& s, std::int64_t first, std::int64_t count) {
  Scenario smaller = s;
  ModelKeys keys(s);
  const auto part = [&](const nlohmann::json& list) {
    return nlohmann::json(
        std::vector<nlohmann::json>(list.begin() + first, list.begin() + first + count));
  };
  keys.set("num_hidden_layers", count);
  for (const char* list : {"layer_types", "mlp_layer_types"})
    if (keys.has(list) && std::int64_t(keys.at(list).size()) >= first + count)
      keys.set(list, part(keys.at(list)));
  if (keys.has("mlp_only_layers")) {
    nlohmann::json kept = nlohmann::json::array();
    for (const nlohmann::json& layer : keys.at("mlp_only_layers"))
      if (const auto at = layer.get<std::int64_t>() - first; at >= 0 && at < count)
        kept.push_back(at);
    keys.set("mlp_only_layers", kept);
  }
  if (keys.has("first_k_dense_replace"))
    keys.set(
        "first_k_dense_replace",
        std::max<std::int64_t>(keys.at("first_k_dense_replace").get<std::int64_t>() - first, 0));
  smaller.model_changes = keys.changes();
  for (ScenarioVariant* variant : {&smaller.broken, &smaller.repaired})
    for (InjectedFault& fault : variant->faults) fault.at = moved_down(fault.at, first);
  for (std::int64_t& layer : smaller.aux_layers) layer = std::max<std::int64_t>(layer - first, 0);
  return smaller;
}

Scenario with_experts(const Scenario& s, std::int64_t experts, std::int64_t chosen) {
  Scenario smaller = s;
  ModelKeys keys(s);
  for (const char* key : {"num_experts", "n_routed_experts"})
    if (keys.has(key)) keys.set(key, experts);
  keys.set("num_experts_per_tok", chosen);
  for (const char* key : {"n_group", "topk_group"})
    if (keys.has(key)) keys.set(key, 1);
  smaller.model_changes = keys.changes();
  return smaller;
}

/// Without data-parallel rank `dp`; faults of later ranks move down.
Scenario without_dp_rank(const Scenario& s, std::int64_t dp) {
  Scenario smaller = s;
  Steps steps = steps_of(s);
  for (auto& step : steps) step.erase(step.begin() + dp);
  --smaller.parallel.dp;
  smaller.requests = requests_of(steps);
  for (ScenarioVariant* variant : {&smaller.broken, &smaller.repaired})
    for (InjectedFault& fault : variant->faults)
      if (fault.dp > dp) --fault.dp;
  return smaller;
}

/// The request with so many rows and so much context. What a first step computes is what later ones
/// have as their context.
Scenario with_request(const Scenario& s, std::size_t step, std::size_t dp, std::size_t index,
                      Request request) {
  Scenario smaller = s;
  Steps steps = steps_of(s);
  Request& now = steps[step][dp][index];
  request.verified = std::min(request.verified, std::max<std::int64_t>(request.tokens - 1, 0));
  request.rejected = std::min(request.rejected, request.verified);
  const auto kept = [](const Request& r) { return r.context + r.tokens - r.rejected; };
  const std::int64_t less = kept(now) - kept(request);
  now = request;
  for (std::size_t later = step + 1; later < steps.size(); ++later)
    if (index < steps[later][dp].size())
      if (std::int64_t& context = steps[later][dp][index].context; context > 0)
        context = std::max<std::int64_t>(context - less, 0);
  smaller.requests = requests_of(steps);
  return smaller;
}

/// Smaller numbers than `now`, from `least` on: each of a few, then by halves.
std::vector<std::int64_t> smaller_than(std::int64_t now, std::int64_t least) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t n = least; n < std::min(now, least + 16); ++n) numbers.push_back(n);
  for (const std::int64_t n : {now / 4, now / 2, now - 1})
    if (!numbers.empty() && n > numbers.back()) numbers.push_back(n);
  return numbers;
}

/// Whether the model and its inputs, at least a token, are right where nothing is done to them:
/// without sequence parallelism and without faults.
bool is_sound(const Scenario& s) {
  const ModelConfig config = config_of(s);
  const ScenarioVariant plain;
  const ParallelRun run = run_of(s, plain, config);
  return std::ranges::any_of(
             run.inputs, [](const StepInputs& inputs) { return inputs.step.num_tokens() > 0; }) &&
         run_views(run, false).clean();
}

bool is_clean(const Scenario& s, const ScenarioVariant& variant) {
  try {
    return run_scenario(s, variant).clean();
  } catch (const Error&) {
    return false;
  }
}

class Shrinker {
 public:
  explicit Shrinker(const Scenario& s) : now_(s) {
    const std::optional<FailureMark> mark = failure_of(s);
    ++tried_;
    if (is_sound(s))
      guard_ = is_sound;
    else if (is_clean(s, s.repaired))
      guard_ = [](const Scenario& smaller) { return is_clean(smaller, smaller.repaired); };
    if (!mark) throw UsageError(text("shrink: ", s.name, " is clean: nothing to shrink"));
    mark_ = *mark;
  }

  Shrunk run() {
    while (pass()) {
    }
    Shrunk result{now_, steps_, tried_};
    return result;
  }

 private:
  /// One round of all reductions; true if any was taken.
  bool pass() {
    const std::size_t before = steps_.size();
    engine_steps();
    ranks();
    drafts();
    requests();
    layers_and_experts();
    runner();
    lists();
    return steps_.size() > before;
  }

  /// Goes on with `smaller` where it fails alike.
  bool take(const Scenario& smaller, const std::string& step) {
    ++tried_;
    try {
      const std::optional<FailureMark> mark = failure_of(smaller);
      if (!mark || !(*mark == mark_) || !guard_(smaller)) return false;
    } catch (const Error&) {  // no configuration, or a fault that is not met any more
      return false;
    }
    now_ = smaller;
    steps_.push_back(step);
    return true;
  }
  /// The same for a change of a copy.
  bool take(const std::string& step, const std::function<void(Scenario&)>& change) {
    Scenario smaller = now_;
    change(smaller);
    return take(smaller, step);
  }

  void engine_steps() {
    for (std::size_t i = now_.requests.size(); now_.requests.size() > 1 && i-- > 0;)
      take(text("without engine step ", i),
           [&](Scenario& s) { s.requests.erase(s.requests.begin() + std::ptrdiff_t(i)); });
  }

  void ranks() {
    for (std::int64_t dp = now_.parallel.dp; now_.parallel.dp > 1 && dp-- > 0;) {
      if (dp >= now_.parallel.dp) continue;
      take(without_dp_rank(now_, dp), text("without dp rank ", dp));
    }
    for (std::int64_t ParallelConfig::*degree : {&ParallelConfig::pp, &ParallelConfig::tp})
      for (std::int64_t n = 1; n < now_.parallel.*degree; ++n)
        if (take(text(degree == &ParallelConfig::pp ? "pp=" : "tp=", n),
                 [&](Scenario& s) { lower(s, degree, n); }))
          break;
  }

  /// What happens to the last of the ranks still does.
  static void lower(Scenario& s, std::int64_t ParallelConfig::*degree, std::int64_t n) {
    const bool is_tp = degree == &ParallelConfig::tp;
    for (ScenarioVariant* variant : {&s.broken, &s.repaired})
      for (InjectedFault& fault : variant->faults) {
        std::int64_t& rank = is_tp ? fault.tp : fault.pp;
        if (rank == s.parallel.*degree - 1) rank = n - 1;
      }
    s.parallel.*degree = n;
  }

  void drafts() {
    for (std::int64_t n = 0; n < now_.draft_steps; ++n)
      if (take(plural(n, "draft step"), [&](Scenario& s) {
            s.draft_steps = n;
            if (n == 0) s.target_runs = true;
          }))
        break;
    if (now_.draft_steps > 0 && now_.target_runs)
      take("a correct target", [](Scenario& s) { s.target_runs = false; });
    for (std::size_t i = now_.aux_layers.size(); i-- > 0;)
      take(text("without auxiliary state ", now_.aux_layers[i]),
           [&](Scenario& s) { s.aux_layers.erase(s.aux_layers.begin() + std::ptrdiff_t(i)); });
  }

  void requests() {
    const Steps begin = steps_of(now_);
    for (std::size_t dp = 0; dp < begin.front().size(); ++dp)
      for (std::size_t i = begin.front()[dp].size(); i-- > 0;) {
        Steps steps = steps_of(now_);
        if (steps.front()[dp].size() < 2) break;
        for (auto& step : steps)
          if (i < step[dp].size() && step[dp].size() > 1)
            step[dp].erase(step[dp].begin() + std::ptrdiff_t(i));
        take(text("without request ", i, " of dp rank ", dp),
             [&](Scenario& s) { s.requests = requests_of(steps); });
      }
    for (std::size_t step = 0; step < now_.requests.size(); ++step)
      for (std::size_t dp = 0; dp < std::size_t(now_.parallel.dp); ++dp) {
        const std::size_t count = steps_of(now_)[step][dp].size();
        for (std::size_t i = 0; i < count; ++i) shrink_request(step, dp, i);
      }
  }

  void shrink_request(std::size_t step, std::size_t dp, std::size_t i) {
    const auto request = [&] { return steps_of(now_)[step][dp][i]; };
    const auto with = [&](const Request& smaller, const std::string& words) {
      return take(with_request(now_, step, dp, i, smaller), words);
    };
    const std::string whose = text(" of request ", i, ", dp rank ", dp, ", step ", step);
    if (step == 0)  // a later step's context is what came before it
      for (const std::int64_t context : smaller_than(request().context, 0)) {
        Request smaller = request();
        smaller.context = context;
        if (with(smaller, text("context ", context, whose))) break;
      }
    for (const std::int64_t tokens : smaller_than(request().tokens, 0)) {
      Request smaller = request();
      smaller.tokens = tokens;
      if (tokens == 0) smaller.context = 0;
      if (with(smaller, plural(tokens, "token") + whose)) break;
    }
    for (std::int64_t Request::*drafts : {&Request::rejected, &Request::verified})
      for (const std::int64_t n : smaller_than(request().*drafts, 0)) {
        Request smaller = request();
        smaller.*drafts = n;
        if (with(smaller, text(n, drafts == &Request::rejected ? " rejected" : " verified", whose)))
          break;
      }
  }

  void layers_and_experts() {
    const ModelConfig config = config_of(now_);
    const std::int64_t layers = config.num_hidden_layers;
    bool done = false;
    for (std::int64_t n = 1; n < layers && !done; ++n)
      for (std::int64_t first = 0; first + n <= layers && !done; ++first)
        done = take_made([&] { return with_layers(now_, first, n); },
                         text(plural(n, "layer"), " from ", first));
    for (std::int64_t n = 1; n < config.num_experts; n *= 2)
      if (take_made([&] { return with_experts(now_, n, std::min<std::int64_t>(n, 1)); },
                    plural(n, "expert")))
        break;
  }
  bool take_made(const std::function<Scenario()>& make, const std::string& step) {
    return take(make(), step);
  }

  void runner() {
    const RunnerOptions plain;
    if (now_.runner.version != plain.version)
      take("runner V1", [&](Scenario& s) { s.runner.version = plain.version; });
    if (!now_.runner.graph_sizes.empty())
      take("eager", [](Scenario& s) { s.runner.graph_sizes.clear(); });
    for (std::size_t i = now_.runner.graph_sizes.size();
         now_.runner.graph_sizes.size() > 1 && i-- > 0;)
      take(text("without graphs of ", now_.runner.graph_sizes[i]), [&](Scenario& s) {
        s.runner.graph_sizes.erase(s.runner.graph_sizes.begin() + std::ptrdiff_t(i));
      });
    if (!now_.runner.padded_drafter)
      take("padded drafter", [](Scenario& s) { s.runner.padded_drafter = true; });
    if (now_.runner.loop_of_most)
      take("draft loops of each rank's requests",
           [](Scenario& s) { s.runner.loop_of_most = false; });
    if (now_.dispatch != Dispatch::allgather_reducescatter)
      take("all-gather dispatch",
           [](Scenario& s) { s.dispatch = Dispatch::allgather_reducescatter; });
  }

  void lists() {
    for (std::size_t i = now_.broken.faults.size(); i-- > 0;)
      take("without a fault", [&](Scenario& s) {
        s.broken.faults.erase(s.broken.faults.begin() + std::ptrdiff_t(i));
      });
    for (std::size_t i = now_.broken.weights.size(); i-- > 0;)
      take("without placed weights", [&](Scenario& s) {
        s.broken.weights.erase(s.broken.weights.begin() + std::ptrdiff_t(i));
      });
    std::vector<std::string> flags;
    for (const auto& [flag, value] : now_.broken.plan) flags.push_back(flag);
    for (const std::string& flag : flags)
      take("without the plan's " + flag, [&](Scenario& s) { s.broken.plan.erase(flag); });
  }

  Scenario now_;
  FailureMark mark_;
  // What shows that the inputs still make sense without the fault; as they came, they may not.
  std::function<bool(const Scenario&)> guard_ = [](const Scenario&) { return true; };
  std::vector<std::string> steps_;
  std::int64_t tried_ = 0;
};

/// A variant that is clean in the smaller configuration: the scenario's own, the one suggested, or
/// without sequence parallelism.
void give_repair(Scenario& s) {
  if (is_clean(s, s.repaired)) return;
  const ModelConfig config = config_of(s);
  const RepairSearch found = find_repairs(run_of(s, s.broken, config));
  if (!found.repairs.empty()) {
    s.repaired = s.broken;
    for (const RepairEdit& edit : found.repairs.front().edits) {
      if (const auto* fault = std::get_if<InjectedFault>(&edit))
        s.repaired.faults.push_back(*fault);
      if (const auto* weights = std::get_if<PlacedWeights>(&edit))
        s.repaired.weights.push_back(*weights);
      if (const auto* flag = std::get_if<PlanFlag>(&edit))
        s.repaired.plan[flag->name] = flag->value;
    }
    s.repair_note = found.repairs.front().words;
    if (is_clean(s, s.repaired)) return;
  }
  s.repaired = {};  // protocol S
  s.repair_note = "without sequence parallelism";
}

}  // namespace

ConfigurationSize size_of(const Scenario& s) {
  const ModelConfig config = config_of(s);
  ConfigurationSize size;
  size.ranks = s.parallel.world_size();
  std::vector<std::int64_t> tokens(std::size_t(s.parallel.dp)), context(tokens);
  const Steps steps = steps_of(s);
  for (const auto& step : steps)
    for (std::size_t dp = 0; dp < step.size(); ++dp)
      for (const Request& request : step[dp]) {
        tokens[dp] += request.tokens;
        if (&step == &steps.front()) context[dp] += request.context;
      }
  size.tokens = *std::ranges::max_element(tokens);
  size.context = *std::ranges::max_element(context);
  size.layers = config.num_hidden_layers;
  size.experts = config.num_experts;
  size.draft_steps = s.draft_steps;
  return size;
}

std::string to_string(const ConfigurationSize& size) {
  return text(plural(size.ranks, "rank"), ", ", plural(size.tokens, "token"),
              size.context > 0 ? text(" after ", size.context) : "", ", ",
              plural(size.layers, "layer"), ", ", plural(size.experts, "expert"), ", ",
              plural(size.draft_steps, "draft step"));
}

std::optional<FailureMark> failure_of(const Scenario& s) {
  const ScenarioResult result = run_scenario(s, s.broken);
  if (result.clean()) return std::nullopt;
  const ViewRunResult& views = result.views;
  const bool is_numeric = s.expect.check == "numeric" && !result.numeric.empty();
  FailureMark mark;
  mark.loud = !views.error.empty() || std::ranges::any_of(views.findings, [](const Finding& f) {
    return f.kind == FindingKind::bounds;
  });
  if (!is_numeric && views.findings.empty()) {
    mark.expect = stop_of(views);
  } else {
    const Finding& first = is_numeric ? result.numeric.front() : views.findings.front();
    mark.expect = {to_string(first.kind), first.operation, first.module,
                   first.tensor,          first.expected,  first.actual};
    if (is_numeric) mark.expect.expected = mark.expect.actual = "";  // numbers
  }
  const ExpectedFinding& e = mark.expect;
  mark.what = without_numbers(text(e.check, ' ', e.operation, " in ", e.module, ' ', e.tensor,
                                   views.findings.empty() ? e.actual : ""));
  return mark;
}

Shrunk shrink(const Scenario& s) {
  Shrunk result = Shrinker(s).run();
  Scenario& small = result.scenario;
  small.expect = failure_of(small)->expect;
  small.name += "-shrunk";
  small.aliases.clear();
  small.blind.clear();
  give_repair(small);
  return result;
}

std::string boost_test_of(const Scenario& s) {
  std::string name;
  for (const char c : s.name) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return text(
      "// ", s.name, ": ", s.title, "\n// ", s.source,
      "\n//\n// Written by `tokenview shrink`. The case fails as long as the configuration does.\n"
      "// Link with tokenview::verify.\n"
      "#define BOOST_TEST_MODULE ",
      name,
      "\n#include <boost/test/included/unit_test.hpp>\n#include <verify/scenario.hpp>\n\n"
      "BOOST_AUTO_TEST_CASE(is_clean) {\n"
      "  const tokenview::Scenario scenario = tokenview::parse_scenario(R\"json(",
      scenario_json(s), ")json\", \"", s.name,
      "\");\n"
      "  const tokenview::ScenarioResult result =\n"
      "      tokenview::run_scenario(scenario, scenario.broken);\n"
      "  for (const auto* findings : {&result.views.findings, &result.numeric})\n"
      "    for (const tokenview::Finding& finding : *findings)\n"
      "      BOOST_ERROR(to_string(finding));\n"
      "  BOOST_TEST(result.views.error == \"\");\n"
      "}\n");
}

}  // namespace tokenview
