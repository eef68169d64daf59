// SPDX-License-Identifier: Apache-2.0
#include "verify/golden_file.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/hdf5_schema.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

/// A list of int32 or int64, exactly `dtype`: any other type is a producer's mistake.
std::vector<std::int64_t> read_list(const Hdf5File& file, const std::string& inside, DType dtype) {
  const DatasetInfo info = file.info(inside);
  if (info.dtype != dtype)
    file.fail(inside, text("is ", info.type_name, ", expected ", to_string(dtype)));
  if (info.shape.size() != 1)
    file.fail(inside, text("shape is ", to_string(info.shape), ", expected one axis"));
  return file.integers(inside).values;
}

std::vector<std::int32_t> read_start_list(const Hdf5File& file, const std::string& inside) {
  const std::vector<std::int64_t> wide = read_list(file, inside, DType::int32);
  std::vector<std::int32_t> result;
  result.reserve(wide.size());
  for (const std::int64_t value : wide) result.push_back(std::int32_t(value));
  return result;
}

/// A recorded tensor: float32 or bfloat16, [rows, columns].
HostTensor read_tap(const Hdf5File& file, const std::string& inside, std::int64_t rows) {
  const DatasetInfo info = file.info(inside);
  if (info.dtype != DType::float32 && info.dtype != DType::bfloat16)
    file.fail(inside, text("is ", info.type_name, ", expected float32 or bfloat16"));
  if (info.shape.size() != 2 || info.shape[0] != rows)
    file.fail(inside, text("shape is ", to_string(info.shape), ", expected [", rows, ", columns]"));
  return file.tensor(inside);
}

/// Recorded ids: int64, [rows], or [rows, k] where `has_columns`.
IntegerTensor read_ids(const Hdf5File& file, const std::string& inside, std::int64_t rows,
                       bool has_columns) {
  const DatasetInfo info = file.info(inside);
  if (info.dtype != DType::int64)
    file.fail(inside, text("is ", info.type_name, ", expected int64"));
  if (info.shape.size() != (has_columns ? 2 : 1) || info.shape[0] != rows)
    file.fail(inside, text("shape is ", to_string(info.shape), ", expected [", rows,
                           has_columns ? ", k]" : "]"));
  return file.integers(inside);
}

/// `starts` cuts `count` rows into sequences.
void require_starts(const std::vector<std::int32_t>& starts, std::int64_t count,
                    const std::string& where, const char* what) {
  if (starts.empty()) throw FileError(where + ": is empty, expected to begin with 0");
  if (starts.front() != 0)
    throw FileError(text(where, ": begins with ", starts.front(), ", expected 0"));
  for (std::size_t i = 1; i < starts.size(); ++i)
    if (starts[i] < starts[i - 1])
      throw FileError(text(where, ": falls from ", starts[i - 1], " to ", starts[i], " at entry ",
                           i, ", expected never to fall"));
  if (starts.back() != count)
    throw FileError(
        text(where, ": ends with ", starts.back(), ", expected the ", count, " ", what));
}

void require_ids(const std::vector<std::int64_t>& ids, std::int64_t vocab_size,
                 const std::string& where) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size)
      throw FileError(text(where, ": entry ", i, " is ", ids[i], ", expected 0 to ", vocab_size - 1,
                           " (vocabulary of ", vocab_size, ")"));
}

}  // namespace

void require_valid(const GoldenInputs& inputs, std::int64_t vocab_size, const std::string& where) {
  const std::string positions = where + "/positions";
  if (inputs.positions.size() != inputs.input_ids.size())
    throw FileError(text(positions, ": has ", inputs.positions.size(), " entries, expected ",
                         inputs.input_ids.size(), ", as input_ids"));
  require_starts(inputs.query_start_loc, inputs.num_tokens(), where + "/query_start_loc",
                 "entries of input_ids");
  require_starts(inputs.context_start_loc, std::int64_t(inputs.context_ids.size()),
                 where + "/context_start_loc", "entries of context_ids");
  if (inputs.context_start_loc.size() != inputs.query_start_loc.size())
    throw FileError(text(where, "/context_start_loc: has ", inputs.context_start_loc.size(),
                         " entries, expected ", inputs.query_start_loc.size(),
                         ", as query_start_loc"));
  require_ids(inputs.input_ids, vocab_size, where + "/input_ids");
  require_ids(inputs.context_ids, vocab_size, where + "/context_ids");

  for (std::size_t s = 0; s + 1 < inputs.query_start_loc.size(); ++s) {
    const std::int64_t begin = inputs.query_start_loc[s];
    const std::int64_t context = inputs.context_start_loc[s + 1] - inputs.context_start_loc[s];
    for (std::int64_t row = begin; row < inputs.query_start_loc[s + 1]; ++row) {
      const std::int64_t expected = context + row - begin;
      const std::int64_t found = inputs.positions[std::size_t(row)];
      if (found != expected)
        throw FileError(text(positions, ": row ", row, " is ", found, ", expected ", expected,
                             ": token ", row - begin, " of sequence ", s, " after a context of ",
                             context));
    }
  }
}

GoldenFile GoldenFile::open(const std::string& path) {
  GoldenFile golden(Hdf5File::open_read(path));
  golden.read_schema();
  golden.read_weight_names();
  golden.read_case_names();
  return golden;
}

void GoldenFile::read_schema() {
  require_schema(file_, "tokenview.golden", schema_version);

  model_type_ = file_.string_attribute("/", "model_type");
  producer_ = file_.string_attribute("/", "producer");
  const std::string dtype = file_.string_attribute("/", "dtype");
  if (dtype != "float32" && dtype != "bfloat16")
    file_.fail("/", text("dtype is '", printable(dtype), "', expected float32 or bfloat16"));
  dtype_ = dtype == "float32" ? DType::float32 : DType::bfloat16;

  if (!file_.contains("/config")) file_.fail("/config", "is missing, expected a scalar string");
  for (const char* const group : {"/weights", "/cases"})
    if (!file_.contains(group)) file_.fail(group, "is missing, expected a group");
  const Hdf5File::Children root = file_.children("/");
  require_only(file_, "", root.groups, {"weights", "cases"});
  require_only(file_, "", root.datasets, {"config"});
}

void GoldenFile::read_weight_names() {
  const Hdf5File::Children children = file_.children("/weights");
  if (!children.groups.empty())
    file_.fail(weight_path(children.groups.front()), "is a group, expected a data set");
  for (const std::string& name : children.datasets) {
    const DatasetInfo info = file_.info(weight_path(name));
    if (info.dtype != DType::float32 && info.dtype != DType::bfloat16)
      file_.fail(weight_path(name), text("is ", info.type_name, ", expected float32 or bfloat16"));
    weight_shapes_.emplace(name, info.shape);
  }
}

void GoldenFile::read_case_names() {
  const Hdf5File::Children children = file_.children("/cases");
  if (!children.datasets.empty())
    file_.fail("/cases/" + children.datasets.front(), "is a data set, expected a group");
  for (const std::string& name : children.groups) {
    const std::string inside = "/cases/" + name;
    const Hdf5File::Children parts = file_.children(inside);
    require_only(file_, inside, parts.groups, {"inputs", "taps", "mtp"});
    require_only(file_, inside, parts.datasets, {});
    const Hdf5File::Children inputs = file_.children(inputs_path(name));
    require_only(file_, inputs_path(name), inputs.groups, {});
    require_only(file_, inputs_path(name), inputs.datasets,
                 {"input_ids", "positions", "query_start_loc", "context_ids", "context_start_loc"});

    const auto length = [&](const char* list) {
      const std::string list_path = inputs_path(name) + "/" + list;
      const std::vector<std::int64_t> shape = file_.info(list_path).shape;
      if (shape.size() != 1)
        file_.fail(list_path, text("shape is ", to_string(shape), ", expected one axis"));
      return shape[0];
    };
    cases_.emplace(name, CaseSize{length("input_ids"), length("query_start_loc") - 1});
  }
}

std::string GoldenFile::config_json() const { return file_.string("/config"); }

bool GoldenFile::contains(const std::string& name) const { return weight_shapes_.contains(name); }

HostTensor GoldenFile::weight(const std::string& name,
                              const std::vector<std::int64_t>& shape) const {
  const auto found = weight_shapes_.find(name);
  if (found == weight_shapes_.end())
    file_.fail(weight_path(name), text("is missing, expected ", to_string(shape)));
  if (found->second != shape)
    file_.fail(weight_path(name),
               text("shape is ", to_string(found->second), ", expected ", to_string(shape)));
  HostTensor tensor = file_.tensor(weight_path(name));
  const auto bad = std::find_if(tensor.values.begin(), tensor.values.end(),
                                [](float value) { return !std::isfinite(value); });
  if (bad != tensor.values.end())
    file_.fail(weight_path(name),
               text("element ", bad - tensor.values.begin(), " of ", to_string(shape), " is ", *bad,
                    ", expected finite weights"));
  return tensor;
}

std::vector<std::string> GoldenFile::case_names() const {
  std::vector<std::string> names;
  for (const auto& [name, size] : cases_) names.push_back(name);
  return names;
}

const GoldenFile::CaseSize& GoldenFile::size_of(const std::string& case_name) const {
  const auto found = cases_.find(case_name);
  if (found == cases_.end()) file_.fail("/cases/" + case_name, "is missing, expected a case");
  return found->second;
}

std::int64_t GoldenFile::num_tokens(const std::string& case_name) const {
  return size_of(case_name).tokens;
}

std::int64_t GoldenFile::num_sequences(const std::string& case_name) const {
  return size_of(case_name).sequences;
}

GoldenInputs GoldenFile::inputs(const std::string& case_name, std::int64_t vocab_size) const {
  size_of(case_name);
  const std::string inside = inputs_path(case_name);
  const GoldenInputs result{read_list(file_, inside + "/input_ids", DType::int64),
                            read_list(file_, inside + "/positions", DType::int64),
                            read_start_list(file_, inside + "/query_start_loc"),
                            read_list(file_, inside + "/context_ids", DType::int64),
                            read_start_list(file_, inside + "/context_start_loc")};
  require_valid(result, vocab_size, text(printable(path()), ":", printable(inside)));
  return result;
}

bool GoldenFile::holds_ids(const std::string& tap_name) {
  return tap_name.ends_with(".ids") || tap_name == "input_ids" || tap_name == "positions";
}

std::vector<std::string> GoldenFile::tap_names(const std::string& case_name) const {
  size_of(case_name);
  Hdf5File::Children children = file_.children("/cases/" + case_name + "/taps");
  if (!children.groups.empty())
    file_.fail(tap_path(case_name, children.groups.front()), "is a group, expected a data set");
  return std::move(children.datasets);
}

HostTensor GoldenFile::tap(const std::string& case_name, const std::string& name) const {
  return read_tap(file_, tap_path(case_name, name), size_of(case_name).tokens);
}

IntegerTensor GoldenFile::tap_ids(const std::string& case_name, const std::string& name) const {
  return read_ids(file_, tap_path(case_name, name), size_of(case_name).tokens, true);
}

std::int64_t GoldenFile::mtp_step_count(const std::string& case_name) const {
  size_of(case_name);
  const std::string inside = "/cases/" + case_name + "/mtp";
  if (!file_.contains(inside)) return 0;
  const Hdf5File::Children children = file_.children(inside);
  require_only(file_, inside, children.datasets, {"draft_ids"});
  const std::vector<std::string>& groups = children.groups;
  std::vector<std::string> expected;
  for (std::size_t step = 0; step < groups.size(); ++step) {
    expected.push_back(text("step", step));
    if (std::find(groups.begin(), groups.end(), expected.back()) == groups.end())
      file_.fail(inside + "/" + expected.back(),
                 text("is missing among ", groups.size(), " draft steps, expected step0 to step",
                      groups.size() - 1));
  }
  return std::int64_t(groups.size());
}

std::int64_t GoldenFile::mtp_rows(const std::string& case_name, std::int64_t step) const {
  const CaseSize& size = size_of(case_name);
  return step == 0 ? size.tokens : size.sequences;
}

std::vector<std::string> GoldenFile::mtp_tap_names(const std::string& case_name,
                                                   std::int64_t step) const {
  size_of(case_name);
  const std::string inside = text("/cases/", case_name, "/mtp/step", step);
  Hdf5File::Children children = file_.children(inside);
  if (!children.groups.empty())
    file_.fail(inside + "/" + children.groups.front(), "is a group, expected a data set");
  return std::move(children.datasets);
}

HostTensor GoldenFile::mtp_tap(const std::string& case_name, std::int64_t step,
                               const std::string& name) const {
  return read_tap(file_, mtp_path(case_name, step, name), mtp_rows(case_name, step));
}

IntegerTensor GoldenFile::mtp_ids(const std::string& case_name, std::int64_t step,
                                  const std::string& name) const {
  return read_ids(file_, mtp_path(case_name, step, name), mtp_rows(case_name, step),
                  name.ends_with(".ids"));
}

IntegerTensor GoldenFile::draft_ids(const std::string& case_name) const {
  const std::int64_t steps = mtp_step_count(case_name);
  IntegerTensor ids =
      read_ids(file_, draft_ids_path(case_name), size_of(case_name).sequences, true);
  if (ids.shape[1] != steps)
    file_.fail(draft_ids_path(case_name),
               text("shape is ", to_string(ids.shape), ", expected [", size_of(case_name).sequences,
                    ", ", steps, "]: one column a draft step"));
  return ids;
}

std::string GoldenFile::weight_path(const std::string& name) { return "/weights/" + name; }

std::string GoldenFile::inputs_path(const std::string& case_name) {
  return "/cases/" + case_name + "/inputs";
}

std::string GoldenFile::tap_path(const std::string& case_name, const std::string& name) {
  return "/cases/" + case_name + "/taps/" + name;
}

std::string GoldenFile::mtp_path(const std::string& case_name, std::int64_t step,
                                 const std::string& name) {
  return text("/cases/", case_name, "/mtp/step", step, "/", name);
}

std::string GoldenFile::draft_ids_path(const std::string& case_name) {
  return "/cases/" + case_name + "/mtp/draft_ids";
}

}  // namespace tokenview
