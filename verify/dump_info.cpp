// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <optional>
#include <ostream>

#include "reference/program/error.hpp"
#include "verify/file_info.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

void FileInfo::print_dump(const Hdf5File& file) const {
  const std::vector<std::string> ranks = file.children("/ranks").groups;
  const std::string producer =
      file.has_attribute("/", "producer") ? file.string_attribute("/", "producer") : "";
  if (!as_records_) {
    out_ << fmt::format("{}: dump of {}, {}\n", printable(file.path()),
                        plural(std::int64_t(ranks.size()), "rank"), size_text(file.file_bytes()));
    print_line("producer", producer);
    for (const auto& [name, value] : provenance(file)) print_line("", text(name, ": ", value));
  } else {
    print_record({.kind = "file",
                  .file = file.path(),
                  .more = {{"type", "dump"},
                           {"bytes", file.file_bytes()},
                           {"ranks", std::int64_t(ranks.size())},
                           {"producer", producer}}});
  }
  for (const std::string& rank : ranks) print_rank(file, rank);
}

void FileInfo::print_rank(const Hdf5File& file, const std::string& rank) const {
  const std::string inside = "/ranks/" + rank;
  const std::int64_t number = file.int_attribute(inside, "rank");
  std::string place;
  for (const char* const group : {"tp", "dp", "pp", "ep"}) {
    const std::string name = group;
    if (file.has_attribute(inside, name + "_rank") && file.has_attribute(inside, name + "_size"))
      place += fmt::format(" {}={}/{}", name, file.int_attribute(inside, name + "_rank"),
                           file.int_attribute(inside, name + "_size"));
  }
  if (!as_records_) out_ << fmt::format("  rank {}:{}\n", number, place);
  for (const std::string& step : file.children(inside + "/steps").groups)
    print_step(file, text(inside, "/steps/", step), number, step);
}

void FileInfo::print_step(const Hdf5File& file, const std::string& inside, std::int64_t rank,
                          const std::string& step) const {
  std::vector<std::pair<std::string, std::string>> groups;  // pass, path of its taps
  if (file.contains(inside + "/taps")) groups.emplace_back("target", inside + "/taps");
  if (file.contains(inside + "/mtp"))
    for (const std::string& draft : file.children(inside + "/mtp").groups)
      groups.emplace_back(draft, text(inside, "/mtp/", draft));
  std::int64_t drafts = 0, taps = 0;
  for (const auto& [pass, path] : groups) {
    drafts += pass != "target";
    taps += std::int64_t(file.children(path).datasets.size());
  }
  const bool dummy =
      file.has_attribute(inside, "dummy") && file.int_attribute(inside, "dummy") != 0;
  const std::optional<std::int64_t> tokens =
      file.has_attribute(inside, "num_tokens")
          ? std::optional(file.int_attribute(inside, "num_tokens"))
          : std::nullopt;
  if (!as_records_) {
    out_ << fmt::format("    step {}:{} {}, {}{}\n", printable(step),
                        tokens ? fmt::format(" T = {},", *tokens) : "",
                        plural(drafts, "draft step"), plural(taps, "tap"),
                        dummy ? ", a dummy pass" : "");
  } else {
    ReportRecord record{.kind = "step", .file = file.path(), .case_name = "step" + step};
    record.rank = rank;
    if (tokens) record.more.emplace_back("tokens", *tokens);
    record.more.insert(record.more.end(),
                       {{"draft_steps", drafts}, {"taps", taps}, {"dummy", dummy}});
    print_record(record);
  }
  if (verbosity_ < 1) return;
  for (const auto& [pass, path] : groups)
    for (const std::string& tap : file.children(path).datasets)
      print_tap(file,
                {.kind = "dataset",
                 .file = file.path(),
                 .case_name = "step" + step,
                 .step = pass,
                 .tap = tap,
                 .rank = rank},
                text(path, '/', tap), text(pass, '/', tap));
}

}  // namespace tokenview
