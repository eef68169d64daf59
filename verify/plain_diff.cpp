// SPDX-License-Identifier: Apache-2.0
#include "verify/plain_diff.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t usual_block_bytes = 512 << 10;  // both sides: a level-2 cache
constexpr std::int64_t block_memory = 64 << 20;        // of all threads, one side
constexpr std::int64_t natural_blocks = 8;  // of which one, at a block's end, is expanded twice

/// Elements that a thread reads at once from both files: whole rows of chunks of the file that has
/// the larger ones, as long as the memory allows it.
std::int64_t block_elements(const TensorFile& golden_file, const TensorInfo& golden,
                            const TensorFile& value_file, const TensorInfo& values, int threads) {
  constexpr std::int64_t part = MetricsAccumulator::part_elements;
  const std::int64_t bytes = std::max(element_bytes(*golden.type), element_bytes(*values.type));
  const std::int64_t natural =
      std::max(golden_file.natural_block(golden), value_file.natural_block(values));
  const std::int64_t wanted = natural == 1          ? usual_block_bytes / bytes
                              : natural % part == 0 ? natural
                                                    : natural_blocks * natural;
  const std::int64_t allowed = block_memory / threads / bytes;
  return std::max(part, std::min(wanted, allowed) / part * part);
}

/// "[3, 7]": where element `index` lies.
std::string position(std::int64_t index, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> result(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    result[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return to_string(result);
}

class PlainDiff {
 public:
  PlainDiff(const std::string& first, const std::string& second, const PlainDiffOptions& options,
            PlainDiffListener& listener)
      : first_(TensorFile::open(first)),
        second_(TensorFile::open(second)),
        options_(options),
        listener_(listener) {}

  PlainDiffTotals run() {
    std::map<std::string, const TensorInfo*> renamed = second_by_first_name();
    std::vector<std::string> names;
    for (const TensorInfo& golden : first_.tensors()) {
      names.push_back(golden.name);
      const auto found = renamed.find(golden.name);
      const TensorInfo* const values = found == renamed.end() ? nullptr : found->second;
      if (values != nullptr) renamed.erase(found);
      if (!is_wanted(golden.name))
        ++totals_.left_out;
      else if (values == nullptr)
        totals_.only_first.push_back(golden.name);
      else
        report(result_of(golden, *values));
    }
    for (const auto& [name, values] : renamed) {
      if (is_wanted(name))
        totals_.only_second.push_back(values->name);
      else
        ++totals_.left_out;
    }
    for (std::string& text : options_.rules.without_match(names))
      totals_.unused.push_back(std::move(text));
    return std::move(totals_);
  }

 private:
  bool is_wanted(const std::string& name) const {
    return !options_.wanted || options_.wanted(name);
  }

  std::map<std::string, const TensorInfo*> second_by_first_name() {
    std::map<std::string, const TensorInfo*> result;
    std::vector<bool> is_used(options_.maps.size(), false);
    for (const TensorInfo& tensor : second_.tensors()) {
      std::string name = tensor.name;
      for (std::size_t i = 0; i < options_.maps.size(); ++i)
        if (std::optional<std::string> renamed = options_.maps[i].renamed(tensor.name)) {
          name = std::move(*renamed);
          is_used[i] = true;
          break;
        }
      const auto [entry, is_new] = result.emplace(name, &tensor);
      if (!is_new)
        throw UsageError(text(printable(second_.path()), ": '", printable(entry->second->name),
                              "' and '", printable(tensor.name), "' are both mapped to '",
                              printable(name), "', expected one name for each"));
    }
    for (std::size_t i = 0; i < is_used.size(); ++i)
      if (!is_used[i]) totals_.unused.push_back(options_.maps[i].text());
    return result;
  }

  PlainDiffResult result_of(const TensorInfo& golden, const TensorInfo& values) const {
    PlainDiffResult result;
    result.name = golden.name;
    result.second_name = values.name;
    result.shape = golden.shape;
    result.second_shape = values.shape;
    result.type = golden.type_name;
    result.second_type = values.type_name;
    for (const TensorInfo* const side : {&golden, &values})
      if (!side->type) {
        result.bound = {1, 0, "unreadable"};
        result.detail = "cannot be read: " + side->refusal;
        return result;
      }
    if (golden.shape != values.shape) {
      result.bound = {1, 0, "shape"};
      result.detail =
          text("shape is ", to_string(values.shape), ", expected ", to_string(golden.shape));
      return result;
    }
    const ToleranceRule rule = options_.rules.rule_for(golden.name, *values.type, *golden.type);
    CompareOptions compare = compare_options(rule, *values.type, *golden.type,
                                             golden.elements() == 0 ? 0 : golden.columns());
    compare.threads = options_.threads;
    result.comparison = compare_tensors(first_, golden, second_, values, compare);
    Judgement judgement = judge(result.comparison, rule);
    if (golden.elements() == 0 && options_.may_be_empty && options_.may_be_empty(golden.name))
      judgement = {true, {}};
    result.matches = judgement.holds;
    result.bound = judgement.bound;
    if (result.matches) return result;
    if (result.comparison.over == 0 && rule.of_max) {
      // Which elements a limit of the whole tensor condemns is known only now.
      compare.absolute = *rule.of_max * result.comparison.max_golden;
      result.comparison = compare_tensors(first_, golden, second_, values, compare);
    }
    result.detail = detail(result.comparison, golden.shape);
    return result;
  }

  static std::string detail(const Comparison& c, const std::vector<std::int64_t>& shape) {
    if (c.count == 0) return text("is empty: ", to_string(shape));
    std::string result;
    const auto add = [&](std::int64_t count, const char* what) {
      if (count > 0) result += text(result.empty() ? "" : ", ", count, ' ', what);
    };
    add(c.nan_value, "NaN");
    add(c.nan_golden + c.nan_both, "NaN in the trusted file");
    add(c.infinity_value, "infinite");
    add(c.infinity_golden, "not infinite as trusted");
    add(c.infinity_signs, "infinities of the other sign");
    add(c.different_bits, "with other bits");
    add(c.over, text("of ", c.count, " over the limit").c_str());
    add(c.rows_over, "rows over their limit");
    const auto first = c.first_over >= 0             ? c.first_over
                       : c.first_different_bits >= 0 ? c.first_different_bits
                                                     : c.first_differing;
    if (first >= 0) result += text(result.empty() ? "" : ", ", "first at ", position(first, shape));
    if (c.worst_index >= 0) result += text(", worst at ", position(c.worst_index, shape));
    return result;
  }

  void report(const PlainDiffResult& result) {
    ++totals_.compared;
    totals_.values += result.comparison.count;
    totals_.differing += !result.matches;
    listener_.tensor(result);
  }

  const TensorFile first_, second_;
  const PlainDiffOptions& options_;
  PlainDiffListener& listener_;
  PlainDiffTotals totals_;
};

}  // namespace

Comparison compare_tensors(const TensorFile& golden_file, const TensorInfo& golden,
                           const TensorFile& value_file, const TensorInfo& values,
                           CompareOptions options) {
  options.golden_type = *golden.type;
  options.value_type = *values.type;
  return compare_blocks(
      golden.elements(), block_elements(golden_file, golden, value_file, values, options.threads),
      options,
      [&](std::int64_t begin, std::span<std::byte> value_block, std::span<std::byte> golden_block) {
        golden_file.read(golden, begin, golden_block);
        value_file.read(values, begin, value_block);
      });
}

PlainDiffTotals diff_files(const std::string& first, const std::string& second,
                           const PlainDiffOptions& options, PlainDiffListener& listener) {
  return PlainDiff(first, second, options, listener).run();
}

}  // namespace tokenview
