// SPDX-License-Identifier: Apache-2.0
#include "verify/dump_file.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/hdf5_schema.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t max_world = 1 << 20;

constexpr std::int64_t most_divisor = 1'000'000;  // of a value that is scaled

std::optional<std::int64_t> whole_number(std::string_view word) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || stop != word.data() + word.size() || value < 0) return std::nullopt;
  return value;
}

std::int64_t bounded_attribute(const Hdf5File& file, const std::string& inside, const char* name,
                               std::int64_t least, std::int64_t most) {
  const std::int64_t value = file.int_attribute(inside, name);
  if (value < least || value > most)
    file.fail(inside,
              text("its attribute '", name, "' is ", value, ", expected ", least, " to ", most));
  return value;
}

/// "1/4" or "0-1/4": blocks of so many equal ones.
std::optional<ColumnBlock> parse_columns(std::string_view words) {
  const std::size_t slash = words.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view held = words.substr(0, slash);
  const std::size_t dash = held.find('-');
  const auto first = whole_number(held.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : whole_number(held.substr(dash + 1));
  const auto of = whole_number(words.substr(slash + 1));
  if (!first || !last || !of || *first > *last || *last >= *of || *of > 1024) return std::nullopt;
  return ColumnBlock{std::int16_t(*first), std::int16_t(*last + 1), std::int16_t(*of)};
}

/// What follows the rows of a view: nothing, "partial", or as to_string(Completeness) has it.
std::optional<Completeness> parse_sum(const std::string& words, const DumpRank& rank) {
  if (words.empty() || words == "complete") return Completeness();
  if (words == "partial") return Completeness::summand(rank.at.tp, rank.tp_size);
  if (words.starts_with('x')) {
    const std::size_t slash = words.find('/');
    const auto times = whole_number(std::string_view(words).substr(1, slash - 1));
    const auto divisor = slash == std::string::npos
                             ? std::optional<std::int64_t>(1)
                             : whole_number(std::string_view(words).substr(slash + 1));
    if (!times || !divisor || *divisor < 1 || *times > 255 || *divisor > most_divisor)
      return std::nullopt;
    return Completeness::complete(std::int32_t(*times), std::int32_t(*divisor));
  }
  if (!words.starts_with("partial ")) return std::nullopt;
  const std::string_view held = std::string_view(words).substr(8);
  const std::size_t slash = held.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view sizes = held.substr(slash + 1);
  const std::size_t second_slash = sizes.find('/');
  const auto size = whole_number(sizes.substr(0, second_slash));
  const auto divisor = second_slash == std::string_view::npos
                           ? std::optional<std::int64_t>(1)
                           : whole_number(sizes.substr(second_slash + 1));
  if (!size || *size < 2 || *size > std::int64_t(Completeness::max_summands) || !divisor ||
      *divisor < 1 || *divisor > most_divisor)
    return std::nullopt;
  std::optional<Completeness> sum;
  for (std::string_view rest = held.substr(0, slash); !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    const std::size_t star = entry.find('*');
    const auto index = whole_number(entry.substr(0, star));
    const auto times = star == std::string_view::npos ? std::optional<std::int64_t>(1)
                                                      : whole_number(entry.substr(star + 1));
    if (!index || *index >= *size || !times || *times < 1 || *times > 255) return std::nullopt;
    for (std::int64_t i = 0; i < *times; ++i) {
      if (!sum)
        sum = Completeness::summand(*index, *size);
      else if (!sum->count_in(Completeness::summand(*index, *size)))
        return std::nullopt;
    }
  }
  if (sum) sum->multiply(1, std::int32_t(*divisor));
  return sum;
}

std::vector<std::string> lines_of(const std::string& list) {
  std::vector<std::string> lines;
  std::istringstream in(list);
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

/// The rows that a pass has before any rank takes its part: all tokens, or, in a later draft pass,
/// one of each request. -1: not said.
std::int64_t rows_of_pass(const std::string& pass, const DumpStep& step) {
  if (pass == "target" || pass == "step0") return step.num_tokens;
  const bool knows_requests = step.inputs && step.inputs->query_start_loc;
  return knows_requests ? std::int64_t(step.inputs->query_start_loc->size()) - 1 : -1;
}

std::vector<DumpCollective> read_collectives(const Hdf5File& file, const std::string& inside) {
  const Hdf5Table table = file.table(inside);
  const auto column = [&](const char* name, auto kind) -> const decltype(kind)& {
    const Hdf5Table::Column* const found = table.find(name);
    const auto* const entries = found == nullptr ? nullptr : std::get_if<decltype(kind)>(found);
    if (entries == nullptr)
      file.fail(inside, text("has no column '", name, "' of ",
                             std::is_same_v<decltype(kind), std::vector<std::int64_t>> ? "integers"
                                                                                       : "text"));
    return *entries;
  };
  using Texts = std::vector<std::string>;
  using Numbers = std::vector<std::int64_t>;
  const Texts &op = column("op", Texts()), &group = column("group", Texts()),
              &module = column("module", Texts()), &dtype = column("dtype", Texts());
  const Numbers &count = column("count", Numbers()), &seq = column("seq", Numbers());
  std::vector<DumpCollective> collectives;
  for (std::size_t i = 0; i < op.size(); ++i)
    collectives.push_back({op[i], group[i], module[i], count[i], dtype[i], seq[i]});
  return collectives;
}

}  // namespace

std::int64_t DumpTap::cols() const {
  std::int64_t cols = 1;
  for (std::size_t axis = 1; axis < shape.size(); ++axis) cols *= shape[axis];
  return cols;
}

const char* DumpInputs::difference(const GoldenInputs& golden) const {
  const auto differs = [](const auto& mine, const auto& theirs) {
    return mine && !std::ranges::equal(*mine, theirs);
  };
  if (differs(input_ids, golden.input_ids)) return "input_ids";
  if (differs(positions, golden.positions)) return "positions";
  if (differs(query_start_loc, golden.query_start_loc)) return "query_start_loc";
  if (differs(context_ids, golden.context_ids)) return "context_ids";
  if (differs(context_start_loc, golden.context_start_loc)) return "context_start_loc";
  return nullptr;
}

bool DumpFile::is_dump(const Hdf5File& file) {
  return file.has_attribute("/", "schema") &&
         file.string_attribute("/", "schema") == "tokenview.dump";
}

DumpFile DumpFile::open(const std::vector<std::string>& paths) {
  DumpFile dump;
  for (const std::string& path : paths) dump.files_.push_back(Hdf5File::open_read(path));
  for (std::size_t file = 0; file < paths.size(); ++file) dump.read_file(file);
  std::ranges::sort(dump.ranks_, {}, [](const DumpRank& rank) { return rank.at.world; });
  return dump;
}

std::string DumpFile::name() const {
  return files_.size() == 1 ? printable(files_.front().path())
                            : text(printable(files_.front().path()), " and ", files_.size() - 1,
                                   files_.size() == 2 ? " more file" : " more files");
}

ParallelConfig DumpFile::parallel() const {
  const DumpRank& rank = ranks_.front();
  return {.tp = rank.tp_size,
          .dp = rank.dp_size,
          .pp = rank.pp_size,
          .enable_expert_parallel = rank.ep_size > 1};
}

std::vector<std::int64_t> DumpFile::missing_ranks() const {
  std::vector<std::int64_t> missing;
  auto next = ranks_.begin();
  for (std::int64_t rank = 0; rank < world_size_; ++rank)
    if (next != ranks_.end() && next->at.world == rank)
      ++next;
    else
      missing.push_back(rank);
  return missing;
}

std::vector<std::int64_t> DumpFile::steps() const {
  std::set<std::int64_t> numbers;
  for (const DumpRank& rank : ranks_)
    for (const auto& [number, step] : rank.steps) numbers.insert(number);
  return {numbers.begin(), numbers.end()};
}

void DumpFile::read_file(std::size_t index) {
  const Hdf5File& file = files_[index];
  require_schema(file, "tokenview.dump", schema_version);
  if (producer_.empty() && file.has_attribute("/", "producer"))
    producer_ = file.string_attribute("/", "producer");
  if (label_.empty() && file.has_attribute("/", "label"))
    label_ = file.string_attribute("/", "label");

  if (!file.contains("/ranks")) file.fail("/ranks", "is missing, expected a group");
  const Hdf5File::Children root = file.children("/");
  require_only(file, "", root.groups, {"ranks"});
  require_only(file, "", root.datasets, {});
  const Hdf5File::Children ranks = file.children("/ranks");
  require_only(file, "/ranks", ranks.datasets, {});
  if (ranks.groups.empty()) file.fail("/ranks", "is empty, expected a group a rank");
  for (const std::string& rank : ranks.groups) read_rank(index, "/ranks/" + rank);
}

void DumpFile::read_rank(std::size_t index, const std::string& inside) {
  const Hdf5File& file = files_[index];
  const std::string group = inside.substr(inside.rfind('/') + 1);
  const std::int64_t world = bounded_attribute(file, inside, "world_size", 1, max_world);
  DumpRank rank;
  rank.file = index;
  rank.at.world = bounded_attribute(file, inside, "rank", 0, world - 1);
  if (whole_number(group) != rank.at.world)
    file.fail(inside, text("its attribute 'rank' is ", rank.at.world, ", expected '",
                           printable(group), "', the group's name"));
  const auto degree = [&](const char* size_name, const char* rank_name, std::int64_t& size,
                          std::int64_t& place) {
    size = bounded_attribute(file, inside, size_name, 1, world);
    place = bounded_attribute(file, inside, rank_name, 0, size - 1);
  };
  degree("tp_size", "tp_rank", rank.tp_size, rank.at.tp);
  degree("dp_size", "dp_rank", rank.dp_size, rank.at.dp);
  degree("pp_size", "pp_rank", rank.pp_size, rank.at.pp);
  degree("ep_size", "ep_rank", rank.ep_size, rank.at.ep);
  if (rank.tp_size * rank.dp_size * rank.pp_size != world)
    file.fail(inside, text("tp_size x dp_size x pp_size is ", rank.tp_size, " x ", rank.dp_size,
                           " x ", rank.pp_size, ", expected the world_size of ", world));

  if (ranks_.empty()) world_size_ = world;
  for (const DumpRank& other : ranks_) {
    const std::string& elsewhere = files_[other.file].path();
    if (other.at.world == rank.at.world)
      file.fail(inside, text("is in ", printable(elsewhere), " as well, expected each rank once"));
    if (other.tp_size != rank.tp_size || other.dp_size != rank.dp_size ||
        other.pp_size != rank.pp_size || other.ep_size != rank.ep_size)
      file.fail(inside, text("is of a world of tp, dp, pp, ep = ", rank.tp_size, ", ", rank.dp_size,
                             ", ", rank.pp_size, ", ", rank.ep_size, ", expected ", other.tp_size,
                             ", ", other.dp_size, ", ", other.pp_size, ", ", other.ep_size,
                             " as in ", printable(elsewhere)));
    if (other.at.tp == rank.at.tp && other.at.dp == rank.at.dp && other.at.pp == rank.at.pp)
      file.fail(inside,
                text("has the coordinates of rank ", other.at.world, " in ", printable(elsewhere),
                     ": tp=", rank.at.tp, " dp=", rank.at.dp, " pp=", rank.at.pp));
  }

  const Hdf5File::Children parts = file.children(inside);
  require_only(file, inside, parts.groups, {"steps"});
  require_only(file, inside, parts.datasets, {});
  if (parts.groups.empty()) file.fail(inside + "/steps", "is missing, expected a group");
  constexpr std::int64_t most_tokens = std::numeric_limits<std::int32_t>::max();
  std::optional<std::int64_t> num_tokens;
  if (file.has_attribute(inside, "num_tokens"))
    num_tokens = bounded_attribute(file, inside, "num_tokens", 0, most_tokens);
  const Hdf5File::Children steps = file.children(inside + "/steps");
  require_only(file, inside + "/steps", steps.datasets, {});
  std::set<std::int64_t> numbers;
  for (const std::string& name : steps.groups) {
    const std::optional<std::int64_t> number = whole_number(name);
    if (!number || name != std::to_string(*number))
      file.fail(text(inside, "/steps/", name), "is no step, expected its number as the name");
    numbers.insert(*number);
  }
  for (const std::int64_t number : numbers) {
    const std::string step = text(inside, "/steps/", number);
    if (file.has_attribute(step, "num_tokens"))
      num_tokens = bounded_attribute(file, step, "num_tokens", 0, most_tokens);
    rank.steps.emplace(number, read_step(index, step, rank, num_tokens));
    num_tokens.reset();  // the rank's own is of its first step
  }
  ranks_.push_back(std::move(rank));
}

DumpStep DumpFile::read_step(std::size_t index, const std::string& inside, const DumpRank& rank,
                             std::optional<std::int64_t> num_tokens) const {
  const Hdf5File& file = files_[index];
  DumpStep step;
  const Hdf5File::Children parts = file.children(inside);
  require_only(file, inside, parts.groups, {"inputs", "taps", "mtp"});
  require_only(file, inside, parts.datasets, {"collectives"});
  const auto has = [&](const char* group) {
    return std::ranges::find(parts.groups, group) != parts.groups.end();
  };
  step.dummy = file.has_attribute(inside, "dummy") && file.int_attribute(inside, "dummy") != 0;
  if (file.has_attribute(inside, "stopped"))
    step.stopped = file.string_attribute(inside, "stopped");
  if (has("inputs")) step.inputs = read_inputs(index, inside + "/inputs");
  if (num_tokens)
    step.num_tokens = *num_tokens;
  else if (step.inputs && step.inputs->input_ids)
    step.num_tokens = std::int64_t(step.inputs->input_ids->size());
  if (!parts.datasets.empty()) step.collectives = read_collectives(file, inside + "/collectives");
  if (has("taps")) read_taps(index, inside + "/taps", "target", rank, step);
  if (has("mtp")) {
    const Hdf5File::Children drafts = file.children(inside + "/mtp");
    require_only(file, inside + "/mtp", drafts.datasets, {"draft_ids"});
    for (const std::string& ids : drafts.datasets)
      step.taps.emplace(ids, read_tap(index, text(inside, "/mtp/", ids), true, rank));
    for (const std::string& draft : drafts.groups) {
      const auto number = draft.starts_with("step")
                              ? whole_number(std::string_view(draft).substr(4))
                              : std::nullopt;
      if (!number || draft != text("step", *number))
        file.fail(text(inside, "/mtp/", draft), "is no draft pass, expected step0, step1, ...");
      read_taps(index, text(inside, "/mtp/", draft), draft, rank, step);
    }
  }
  if (file.has_attribute(inside, "manifest")) {
    step.has_manifest = true;
    for (const std::string& name : lines_of(file.string_attribute(inside, "manifest"))) {
      bool is_there = false;
      try {
        is_there = file.contains(text(inside, '/', name));
      } catch (const FileError&) {  // nor is the group that would hold it
      }
      if (!is_there) step.lost.push_back(name);
    }
  }
  return step;
}

void DumpFile::read_taps(std::size_t index, const std::string& inside, const std::string& pass,
                         const DumpRank& rank, DumpStep& step) const {
  const Hdf5File::Children taps = files_[index].children(inside);
  require_only(files_[index], inside, taps.groups, {});
  const std::int64_t rows = rows_of_pass(pass, step);
  for (const std::string& name : taps.datasets) {
    DumpTap tap = read_tap(index, text(inside, '/', name), GoldenFile::holds_ids(name), rank);
    const bool is_list = name == "input_ids" || name == "positions";
    while (rows > 1 && tap.shape.size() > (is_list ? 1 : 2) && tap.shape.front() == 1)
      tap.shape.erase(tap.shape.begin());
    step.taps.emplace(text(pass, '/', name), std::move(tap));
  }
}

DumpTap DumpFile::read_tap(std::size_t index, const std::string& inside, bool holds_ids,
                           const DumpRank& rank) const {
  const Hdf5File& file = files_[index];
  const DatasetInfo info = file.info(inside);
  const bool is_integer = info.dtype == DType::int32 || info.dtype == DType::int64;
  const bool is_float =
      info.dtype == DType::float32 || info.dtype == DType::float16 || info.dtype == DType::bfloat16;
  if (holds_ids ? !is_integer : !is_float)
    file.fail(inside, text("is ", info.type_name, ", expected ",
                           holds_ids ? "int64 or int32" : "float32, float16 or bfloat16"));
  if (info.shape.size() < (holds_ids ? 1 : 2))
    file.fail(inside, text("shape is ", to_string(info.shape), ", expected ",
                           holds_ids ? "[rows] or [rows, k]" : "[rows, columns]"));
  DumpTap tap{index, inside, info.shape, info.type_name, {}, {}};
  if (file.has_attribute(inside, "columns")) {
    const std::string words = file.string_attribute(inside, "columns");
    tap.columns = parse_columns(words);
    if (!tap.columns)
      file.fail(inside, text("its attribute 'columns' is '", printable(words),
                             "', expected a block such as '1/4'"));
  }
  if (file.has_attribute(inside, "view")) {
    const std::string words = file.string_attribute(inside, "view");
    const std::size_t space = std::min(words.find(' '), words.size());
    const auto refuse = [&](const std::string& why) {
      file.fail(inside,
                text("its attribute 'view' is '", printable(words), "', expected rows such ",
                     "as '0-2' or '9,PAD*2', and 'partial' behind a summand", why));
    };
    TokenView view;
    try {
      view.rows = parse_rows(words.substr(0, space));
    } catch (const UsageError& error) {
      refuse(text(" (", error.what(), ')'));
    }
    const auto sum = parse_sum(space < words.size() ? words.substr(space + 1) : "", rank);
    if (!sum) refuse("");
    view.sum = *sum;
    view.columns = tap.columns.value_or(ColumnBlock());
    tap.view = std::move(view);
  }
  return tap;
}

DumpInputs DumpFile::read_inputs(std::size_t index, const std::string& inside) const {
  const Hdf5File& file = files_[index];
  const Hdf5File::Children parts = file.children(inside);
  require_only(file, inside, parts.groups, {});
  DumpInputs inputs;
  const std::pair<const char*, std::optional<std::vector<std::int64_t>>*> lists[] = {
      {"input_ids", &inputs.input_ids},
      {"positions", &inputs.positions},
      {"query_start_loc", &inputs.query_start_loc},
      {"context_ids", &inputs.context_ids},
      {"context_start_loc", &inputs.context_start_loc}};
  require_only(file, inside, parts.datasets,
               {"input_ids", "positions", "query_start_loc", "context_ids", "context_start_loc"});
  for (const auto& [name, list] : lists) {
    const std::string path = text(inside, '/', name);
    if (std::ranges::find(parts.datasets, name) == parts.datasets.end()) continue;
    const DatasetInfo info = file.info(path);
    if (info.shape.size() != 1)
      file.fail(path, text("shape is ", to_string(info.shape), ", expected one axis"));
    *list = file.integers(path).values;
  }
  return inputs;
}

HostTensor DumpFile::values(const DumpTap& tap) const {
  HostTensor tensor = files_[tap.file].tensor(tap.inside);
  tensor.shape = {tap.rows(), tap.cols()};
  return tensor;
}

IntegerTensor DumpFile::ids(const DumpTap& tap) const {
  IntegerTensor tensor = files_[tap.file].integers(tap.inside);
  tensor.shape = tap.shape;
  return tensor;
}

}  // namespace tokenview
