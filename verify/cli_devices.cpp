// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iostream>

#include "device/device_info.hpp"
#include "tokenview_version.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

std::string gibibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} GiB", double(bytes) / double(std::int64_t{1} << 30));
}

/// What this build says of one of its parts: "MPI".
std::string part(const char* name) {
  for (const build::Part& each : build::parts)
    if (std::strcmp(each.name, name) == 0) return each.value;
  return "no";
}

std::string or_no(const std::string& version) { return version.empty() ? "no" : version; }

/// "NVLink x18, peer access, performance rank 0, atomics"
std::string in_words(const DeviceLink& link) {
  std::string words = link.nvlinks ? "NVLink" + (*link.nvlinks > 0 ? text(" x", *link.nvlinks) : "")
                                   : std::string("no NVLink");
  words += link.peer_access ? text(", peer access, performance rank ", link.performance_rank)
                            : std::string(", no peer access");
  return words + (link.atomics ? ", atomics" : "");
}

void print_text(const std::vector<DeviceInfo>& found, const std::string& reason) {
  if (found.empty()) std::cout << "no GPU: " << reason << '\n';
  for (std::size_t i = 0; i < found.size(); ++i) {
    const DeviceInfo& gpu = found[i];
    const DeviceState state = device_state(int(i));
    std::cout << "GPU " << i << "  " << gpu.name << ", compute capability " << gpu.compute_major
              << '.' << gpu.compute_minor << ", "
              << plural(gpu.num_multiprocessors, "multiprocessor") << ", "
              << gibibytes(gpu.memory_bytes)
              << (state.problem.empty() ? text(" (", gibibytes(state.memory_free), " free)") : "")
              << ", " << gpu.pci_bus_id
              << (state.compute_mode == "default" ? "" : ", mode " + state.compute_mode) << "; "
              << (!state.problem.empty() ? state.problem
                  : state.has_code       ? "this build has code for it"
                                         : "this build has no code for it")
              << '\n';
  }
  for (const DeviceLink& link : device_links(found))
    std::cout << "link   " << link.from << " -> " << link.to << "  " << in_words(link) << '\n';
  std::cout << "CUDA   driver " << or_no(cuda_driver_version()) << ", runtime "
            << or_no(cuda_version()) << '\n'
            << "NCCL   " << or_no(nccl_version()) << '\n'
            << "MPI    " << part("MPI") << '\n';
}

void print_records(const std::vector<DeviceInfo>& found, const std::string& reason) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const DeviceInfo& gpu = found[i];
    const DeviceState state = device_state(int(i));
    ReportRecord record{.kind = "device"};
    record.verdict = !state.problem.empty() ? "not usable" : state.has_code ? "usable" : "no code";
    record.more = {{"device", std::int64_t(i)},
                   {"name", gpu.name},
                   {"compute_capability", text(gpu.compute_major, '.', gpu.compute_minor)},
                   {"multiprocessors", std::int64_t(gpu.num_multiprocessors)},
                   {"memory_bytes", gpu.memory_bytes},
                   {"memory_free_bytes", state.memory_free},
                   {"pci_bus_id", gpu.pci_bus_id},
                   {"compute_mode", state.compute_mode},
                   {"detail", state.problem}};
    std::cout << json_line(record) << '\n';
  }
  for (const DeviceLink& link : device_links(found)) {
    ReportRecord record{.kind = "link"};
    record.more = {{"from", std::int64_t(link.from)},
                   {"to", std::int64_t(link.to)},
                   {"peer_access", link.peer_access},
                   {"performance_rank", std::int64_t(link.performance_rank)},
                   {"atomics", link.atomics},
                   {"nvlinks", std::int64_t(link.nvlinks.value_or(0))}};
    std::cout << json_line(record) << '\n';
  }
  ReportRecord summary{.kind = "summary"};
  summary.more = {{"verb", "devices"},
                  {"devices", std::int64_t(found.size())},
                  {"detail", found.empty() ? "no GPU: " + reason : ""},
                  {"cuda_driver", cuda_driver_version()},
                  {"cuda_runtime", cuda_version()},
                  {"nccl", nccl_version()},
                  {"mpi", part("MPI")}};
  std::cout << json_line(summary) << '\n';
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto format = std::make_shared<OutputFormat>(OutputFormat::text);
  add_choice(app, "--format", *format, output_formats, "Lines for people (default) or JSON Lines");
  return [format] {
    std::string reason;
    const std::vector<DeviceInfo> found = devices(reason);
    (*format == OutputFormat::jsonl ? print_records : print_text)(found, reason);
    return Exit::match;
  };
}

}  // namespace

constinit const Verb devices_verb = {
    "devices", "List the GPUs of this machine, the links between them, and CUDA, NCCL and MPI",
    "tokenview devices\n"
    "    also where there is no GPU: it says why, and exits 0, for a list may be empty\n"
    "tokenview devices --format jsonl | jq 'select(.kind == \"device\")'\n"
    "    a record a GPU",
    add_options};

}  // namespace tokenview
