// SPDX-License-Identifier: Apache-2.0
#include "verify/device_repro.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "comm_sim/transport/process_rank.hpp"
#include "device/device_info.hpp"
#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/fault_text.hpp"

namespace tokenview {
namespace {

using Json = nlohmann::ordered_json;

/// Every value of every rank, tokens and pads alike: both sides run the same program.
void compare(const NumberRunResult& found, const NumberRunResult& expected, DeviceEnd& end) {
  for (std::size_t rank = 0; rank < expected.taps.size(); ++rank)
    for (const auto& [name, trusted] : expected.taps[rank].values) {
      ++end.taps;
      end.values += trusted.size();
      if (trusted.size() == 0) continue;
      const auto at = found.taps[rank].values.find(name);
      const bool has_shape = at != found.taps[rank].values.end() &&
                             at->second.rows() == trusted.rows() &&
                             at->second.cols() == trusted.cols();
      const double scale = std::max(1.0, trusted.cwiseAbs().maxCoeff());
      double ratio = has_shape ? (at->second - trusted).cwiseAbs().maxCoeff() / scale
                               : std::numeric_limits<double>::infinity();
      if (!(has_shape && at->second.allFinite())) ratio = std::numeric_limits<double>::infinity();
      if (end.worst_tap.empty() || ratio > end.worst) {
        end.worst = ratio;
        end.worst_tap = text("rank ", rank, ' ', name);
      }
    }
}

/// "GPU 0 (NVIDIA H200)"
std::string device_of_this_process(CommKind comm) {
  std::string reason;
  const std::vector<DeviceInfo> found = devices(reason);
  if (found.empty()) throw DeviceError("no GPU: " + reason);
  const auto process = process_rank();
  const auto device = comm == CommKind::sim || !process ? 0 : std::size_t(process->local_rank);
  return text("GPU ", device, " (", found[std::min(device, found.size() - 1)].name, ')');
}

/// The last name of the rank whose coordinates are in front of the error.
std::string reached_by(const NumberRunResult& result, const ParallelConfig& parallel) {
  for (std::size_t rank = 0; rank < result.taps.size(); ++rank) {
    const RankCoordinates at = coordinates_of(std::int64_t(rank), parallel);
    if (result.error.starts_with(text("tp=", at.tp, " dp=", at.dp, " pp=", at.pp, ':')))
      return result.taps[rank].last_name;
  }
  return "";
}

std::string line_of(const DeviceEnd& end) {
  Json json = {{"unusable", end.unusable},
               {"device", end.device},
               {"rank", end.rank ? Json(*end.rank) : Json(nullptr)},
               {"error", end.error},
               {"is_gpu_error", end.is_gpu_error},
               {"cuda_error", end.cuda_error},
               {"reached", end.reached},
               {"taps", end.taps},
               {"values", end.values},
               {"worst", std::isfinite(end.worst) ? Json(end.worst) : Json(nullptr)},
               {"worst_tap", end.worst_tap},
               {"cpu_error", end.cpu_error}};
  if (end.record) {
    const AssertRecord& r = *end.record;
    json["record"] = {{"kernel", r.kernel}, {"rank", r.rank},   {"row", r.row},
                      {"index", r.index},   {"bound", r.bound}, {"block", r.block},
                      {"thread", r.thread}};
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

DeviceEnd end_of(const std::string& line) {
  const Json json = Json::parse(line);
  DeviceEnd end;
  json.at("unusable").get_to(end.unusable);
  json.at("device").get_to(end.device);
  if (!json.at("rank").is_null()) end.rank = json.at("rank").get<std::int64_t>();
  json.at("error").get_to(end.error);
  json.at("is_gpu_error").get_to(end.is_gpu_error);
  json.at("cuda_error").get_to(end.cuda_error);
  json.at("reached").get_to(end.reached);
  json.at("taps").get_to(end.taps);
  json.at("values").get_to(end.values);
  end.worst = json.at("worst").is_null() ? std::numeric_limits<double>::infinity()
                                         : json.at("worst").get<double>();
  json.at("worst_tap").get_to(end.worst_tap);
  json.at("cpu_error").get_to(end.cpu_error);
  if (!json.contains("record")) return end;
  const Json& record = json.at("record");
  AssertRecord& r = end.record.emplace();
  r.is_complete = 1;
  record.at("kernel").get_to(r.kernel);
  record.at("rank").get_to(r.rank);
  record.at("row").get_to(r.row);
  record.at("index").get_to(r.index);
  record.at("bound").get_to(r.bound);
  record.at("block").get_to(r.block);
  record.at("thread").get_to(r.thread);
  return end;
}

/// The first line that an assert of a kernel has printed, as a user of PyTorch sees it.
std::string assertion_in(const std::string& printed) {
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);)
    if (line.find("Assertion `") != std::string::npos) return line;
  return "";
}

/// How a process ended that has told nothing.
std::string in_words(const LaunchedEnd& end, const Launch& launch) {
  if (end.timed_out) return text("no end after ", launch.timeout, " s");
  if (end.ended_early) return text("no end ", launch.grace, " s after another one had failed");
  if (end.signal != 0)
    return text("ended by signal ", end.signal, " (", strsignal(end.signal), ')',
                end.signal == SIGKILL ? ": out of memory, perhaps" : "");
  std::string last;  // of its errors
  std::istringstream lines(end.err);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) last = line;
  const std::string mark = "tokenview: error: ";
  if (last.starts_with(mark)) return last.substr(mark.size());
  return text("ended with code ", end.exit_code, last.empty() ? "" : ": " + last);
}

}  // namespace

std::vector<PredictedAssert> predicted_asserts(const std::vector<Finding>& findings) {
  std::vector<PredictedAssert> predicted;
  for (const Finding& finding : findings) {
    if (finding.kind != FindingKind::bounds || finding.operation != "index_rows") continue;
    PredictedAssert& assert = predicted.emplace_back(PredictedAssert{finding.at, 0, 0});
    assert.index = finding.first_bad_row;
    const std::string& rows = finding.actual;  // "3 rows: [0,1,2]"
    std::from_chars(rows.data(), rows.data() + rows.size(), assert.bound);
  }
  return predicted;
}

bool is_predicted(const AssertRecord& record, const std::vector<PredictedAssert>& predicted) {
  return std::ranges::any_of(predicted, [&](const PredictedAssert& due) {
    return due.at.world == record.rank && due.index == record.index && due.bound == record.bound;
  });
}

bool is_device_assert(const std::string& error) {
  return error.find("cudaErrorAssert") != std::string::npos;
}

void require_faults_on_gpu(const std::string& source, const std::vector<InjectedFault>& faults) {
  for (const InjectedFault& fault : faults) {
    const bool is_of_values = fault.act == FaultAct::poison || fault.act == FaultAct::scale ||
                              (fault.act == FaultAct::set && !fault.numbers.empty()) ||
                              (fault.act == FaultAct::rows && fault.with == "mix");
    if (is_of_values)
      throw ConfigError(text(source, ": fault ", to_string(fault),
                             ": is not injected on a GPU: expected one that moves whole rows"));
  }
}

void require_on_gpu(const Scenario& s, const ScenarioVariant& variant) {
  in_scope(s.name, [&] { require_arithmetic(config_of(s)); });
  require_faults_on_gpu(s.name, variant.faults);
}

DeviceVerdict judged(const DeviceEnd& end, const std::vector<PredictedAssert>& predicted,
                     bool any_assert) {
  const auto is_due = [&](const PredictedAssert& assert) {
    return !end.rank || assert.at.world == *end.rank;
  };
  if (end.record) return {"device assert", is_predicted(*end.record, predicted)};
  if (end.error.empty())
    return {end.matches_cpu() ? "match" : "difference", end.matches_cpu() && predicted.empty()};
  if (any_assert) return {"stopped", std::ranges::none_of(predicted, is_due)};  // by another rank
  if (end.is_gpu_error) throw DeviceError(text(end.device, ": ", end.error));
  return {"stopped", !end.cpu_error.empty()};
}

void tell_device_end(const Scenario& s, const ScenarioVariant& variant, CommKind comm,
                     std::ostream& out) {
  const ModelConfig config = config_of(s);
  ParallelRun run = run_of(s, variant, config);
  run.target_runs = true;  // numbers need it
  const SeededWeights weights(config, 1);
  DeviceEnd end;
  NumberRunResult found;
  try {
    end.device = device_of_this_process(comm);
    if (comm != CommKind::sim) end.rank = process_world().rank();
    found = run_numbers_on({.device = Device::cuda, .comm = comm}, run, weights);
  } catch (const Error& error) {
    end.unusable = error.what();
    out << line_of(end) << std::endl;
    return;
  }
  end.error = found.error;
  end.is_gpu_error = !found.error.empty() && found.fault == Fault::device;
  end.cuda_error = found.cuda_error;
  end.record = found.assert_record;
  if (!end.error.empty()) end.reached = reached_by(found, s.parallel);
  if (end.cuda_error.empty()) {
    const NumberRunResult expected = run_numbers<float>(run, weights);
    end.cpu_error = expected.error;
    if (end.error.empty() && expected.error.empty()) compare(found, expected, end);
  }
  out << line_of(end) << std::endl;  // before anything of CUDA is taken down
}

std::vector<DeviceEnd> device_ends(const Launch& processes) {
  std::vector<DeviceEnd> ends;
  const std::vector<LaunchedEnd> all = launch(processes);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const LaunchedEnd& ended = all[rank];
    const std::string who = all.size() == 1 ? std::string("the process that ran on the GPU")
                                            : text("the process of rank ", rank);
    const std::size_t line_end = ended.out.find('\n');
    if (line_end == std::string::npos)
      throw DeviceError(text(who, ": ", in_words(ended, processes)));
    try {
      ends.push_back(end_of(ended.out.substr(0, line_end)));
    } catch (const Json::exception&) {
      throw DeviceError(
          text(who, " said \"", ended.out.substr(0, std::min<std::size_t>(line_end, 200)), '"'));
    }
    ends.back().printed = assertion_in(ended.err);
  }
  return ends;
}

}  // namespace tokenview
