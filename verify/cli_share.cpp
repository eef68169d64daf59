// SPDX-License-Identifier: Apache-2.0
#include "verify/cli_share.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string_view>

#include "comm_sim/transport/host_group.hpp"
#include "comm_sim/transport/process_rank.hpp"
#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "verify/executor.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t most_parts = 100'000;

/// "2/8", from 1, and nothing else.
bool parse(const std::string& words, Share& share) {
  const char* const end = words.data() + words.size();
  std::int64_t index = 0, count = 0;
  const auto [slash, bad_index] = std::from_chars(words.data(), end, index);
  if (bad_index != std::errc() || slash == end || *slash != '/') return false;
  const auto [last, bad_count] = std::from_chars(slash + 1, end, count);
  if (bad_count != std::errc() || last != end || index < 1 || index > count || count > most_parts)
    return false;
  share.index = index - 1;
  share.count = count;
  return true;
}

/// A variable of Slurm; `otherwise` where it is not set.
std::int64_t slurm_number(const char* name, std::int64_t otherwise) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return otherwise;
  const std::string_view word(value);
  std::int64_t found = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), found);
  if (error != std::errc() || end != word.data() + word.size() || found < 0)
    throw UsageError(
        text(name, ": found \"", printable(std::string(word)), "\", expected a whole number"));
  return found;
}

Share slurm_share() {
  const std::int64_t id = slurm_number("SLURM_ARRAY_TASK_ID", 0),
                     least = slurm_number("SLURM_ARRAY_TASK_MIN", 0),
                     step = std::max<std::int64_t>(slurm_number("SLURM_ARRAY_TASK_STEP", 1), 1);
  Share share;
  share.count = slurm_number("SLURM_ARRAY_TASK_COUNT", 1);
  share.index = (id - least) / step;
  if (id < least || (id - least) % step != 0 || share.index >= share.count ||
      share.count > most_parts)
    throw UsageError(text("SLURM_ARRAY_TASK_ID: found ", id, " of ", share.count, " tasks from ",
                          least, " on in steps of ", step, ": expected an array without gaps"));
  return share;
}

FileError bad_part(const Part& part, const std::string& problem) {
  return FileError(text(part.source, ": ", problem));
}

std::string string_in(const Part& part, const char* key) {
  const auto found = part.summary.find(key);
  if (found == part.summary.end() || !found->is_string())
    throw bad_part(part,
                   text("is a whole run and no part of one: its summary has no \"", key, "\""));
  return found->get<std::string>();
}

std::int64_t number_in(const Part& part, const char* key) {
  const auto found = part.summary.find(key);
  if (found == part.summary.end() || !found->is_number_integer())
    throw bad_part(part, text("its summary has no number \"", key, "\""));
  return found->get<std::int64_t>();
}

/// Takes one line into `part`.
void take_line(Part& part, const std::string& line, std::int64_t number) {
  nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
  if (!record.is_object() || record.value("schema", nlohmann::json()) != "tokenview.report")
    throw bad_part(part, text("line ", number, ": is no line of a report"));
  const std::string kind = word_in(record, "kind");
  if (kind == "start") return;  // of the part alone
  if (kind != "summary") {
    part.cases.push_back(std::move(record));
  } else if (part.summary.is_null()) {
    part.summary = std::move(record);
  } else {
    throw bad_part(part, text("line ", number, ": a second summary: expected one part a file"));
  }
}

/// In the order of the parts, each of them once.
std::vector<Part> in_order(const std::string& verb, std::vector<Part> parts) {
  std::map<std::int64_t, const Part*> places;
  std::int64_t count = 0, items = 0;
  for (const Part& part : parts) {
    if (part.summary.is_null()) throw bad_part(part, "has no summary: it did not come to its end");
    Share share;
    if (const std::string words = string_in(part, "shard"); !parse(words, share))
      throw bad_part(part, text("its summary is of part \"", printable(words), "\""));
    if (const std::string other = string_in(part, "verb"); other != verb)
      throw bad_part(part, text("is a part of ", printable(other), ", expected one of ", verb));
    if (count == 0) count = share.count;
    if (share.count != count)
      throw bad_part(
          part, text("is part ", share.str(), ", ", parts.front().source, " is one of ", count));
    if (number_in(part, "all") != number_in(parts.front(), "all"))
      throw bad_part(part,
                     text("is a part of a run of ", number_in(part, "all"), " items, ",
                          parts.front().source, " of one of ", number_in(parts.front(), "all")));
    const auto [place, is_new] = places.emplace(share.index, &part);
    if (!is_new)
      throw bad_part(part, text("is part ", share.str(), ", and so is ", place->second->source));
    items += number_in(part, "items");
  }
  std::vector<std::string> missing;
  for (std::int64_t index = 0; index < count; ++index)
    if (!places.contains(index)) missing.push_back(Share{index, count}.str());
  if (!missing.empty())
    throw FileError(text("part ", joined(missing), " is in none of the ", parts.size(), " files"));
  if (items != number_in(parts.front(), "all"))
    throw FileError(text("the parts have ", items, " items together, expected ",
                         number_in(parts.front(), "all")));
  std::vector<Part> ordered;
  for (const auto& [index, part] : places) ordered.push_back(*part);
  return ordered;
}

}  // namespace

std::string Share::str() const { return text(index + 1, '/', count); }

Share share_of(const std::optional<std::string>& option) {
  Share share;
  if (option) {
    if (!parse(*option, share))
      throw UsageError(text("--shard \"", printable(*option), "\": expected i/n with 1 <= i <= n"));
    return share;
  }
  if (const auto process = process_rank();
      process && process->launcher == ProcessRank::Launcher::mpirun)
    return {process->rank, process->size, true};
  if (std::getenv("SLURM_ARRAY_TASK_ID") != nullptr) return slurm_share();
  return share;
}

void add_share(ReportRecord& summary, const Share& share, std::int64_t items, std::int64_t all) {
  summary.more.emplace_back("shard", share.str());
  summary.more.emplace_back("items", items);
  summary.more.emplace_back("all", all);
}

std::vector<Part> read_parts(const std::string& verb, const std::vector<std::string>& files) {
  std::vector<Part> parts;
  for (const std::string& file : files) {
    Part& part = parts.emplace_back();
    part.source = printable(file);
    std::ifstream in(file, std::ios::binary);
    if (!in) throw bad_part(part, "cannot be read");
    std::int64_t number = 0;
    for (std::string line; std::getline(in, line);) take_line(part, line, ++number);
    if (in.bad()) throw bad_part(part, "cannot be read to its end");
  }
  return in_order(verb, std::move(parts));
}

std::vector<Part> gathered_parts(const std::string& verb, const Share& share,
                                 const std::function<std::vector<std::string>()>& work) {
  if (share.index != 0)  // what goes wrong, rank 0 is told
    for (std::FILE* const stream : {stdout, stderr})
      if (std::freopen("/dev/null", "w", stream) == nullptr)
        throw FileError("/dev/null: cannot be opened");
  Transport& world = process_world();
  world.set_limit(Transport::Seconds(1e6));  // until the slowest part is done
  std::vector<Part> parts;
  run_rank(world, "part " + share.str(), [&] {
    ByteWriter mine;
    for (const std::string& line : work()) mine.add(std::string_view(line));
    for (const Bytes& of_rank : world.all_gather(world.world(), mine.take())) {
      Part& part = parts.emplace_back();
      part.source = text("process ", parts.size() - 1);
      ByteReader lines(of_rank);
      for (std::int64_t number = 1; !lines.is_at_end(); ++number)
        take_line(part, lines.read_word(), number);
    }
  });
  return in_order(verb, std::move(parts));
}

std::string word_in(const nlohmann::json& record, const char* key) {
  const auto found = record.find(key);
  return found == record.end() || !found->is_string() ? "" : found->get<std::string>();
}

std::int64_t sum_of(const std::vector<Part>& parts, const char* key) {
  std::int64_t sum = 0;
  for (const Part& part : parts) sum += number_in(part, key);
  return sum;
}

double largest_of(const std::vector<Part>& parts, const char* key) {
  double largest = 0;
  for (const Part& part : parts) {
    const auto found = part.summary.find(key);
    if (found == part.summary.end() || !found->is_number())
      throw bad_part(part, text("its summary has no number \"", key, "\""));
    largest = std::max(largest, found->get<double>());
  }
  return largest;
}

}  // namespace tokenview
