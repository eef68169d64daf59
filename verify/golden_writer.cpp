// SPDX-License-Identifier: Apache-2.0
#include "verify/golden_writer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

GoldenWriter::GoldenWriter(const std::string& path, const GoldenHeader& header)
    : path_(path), draft_(std::make_unique<Hdf5Draft>(path)) {
  if (header.dtype != DType::float32 && header.dtype != DType::bfloat16)
    fail("/", text("dtype is ", to_string(header.dtype), ", expected float32 or bfloat16"));
  Hdf5Writer& file = draft_->writer();
  file.attribute("/", "schema", "tokenview.golden");
  file.attribute("/", "schema_version", GoldenFile::schema_version);
  file.attribute("/", "model_type", header.model_type);
  file.attribute("/", "dtype", std::string(to_string(header.dtype)));
  file.attribute("/", "producer", header.producer);
  for (const auto& [name, value] : header.provenance) file.attribute("/", name, value);
  file.string("/config", header.config_json);
  file.group("/weights");
  file.group("/cases");
}

GoldenWriter::~GoldenWriter() = default;

void GoldenWriter::fail(const std::string& inside, const std::string& problem) const {
  throw FileError(text(printable(path_), ":", printable(inside), ": ", problem));
}

void GoldenWriter::require_name(const std::string& inside, const std::string& name) const {
  if (name.empty() || name == "." || name.find('/') != std::string::npos || !is_utf8(name))
    fail(inside, text("'", printable(name), "' is no name, expected UTF-8 without '/'"));
}

GoldenWriter::Case& GoldenWriter::case_of(const std::string& case_name) {
  const auto found = cases_.find(case_name);
  if (found == cases_.end())
    fail("/cases/" + case_name, "has no inputs yet, expected them before any tap");
  return found->second;
}

void GoldenWriter::write_attribute(const std::string& name, const std::string& value) {
  draft_->writer().attribute("/", name, value);
}

void GoldenWriter::write_weight(const std::string& name, const HostTensor& tensor) {
  const std::string inside = GoldenFile::weight_path(name);
  require_name(inside, name);
  for (const float value : tensor.values)
    if (!std::isfinite(value)) fail(inside, text("holds ", value, ", expected finite weights"));
  draft_->writer().tensor(inside, tensor);
}

void GoldenWriter::write_inputs(const std::string& case_name, const GoldenInputs& inputs) {
  const std::string inside = GoldenFile::inputs_path(case_name);
  require_name(inside, case_name);
  require_valid(inputs, std::numeric_limits<std::int64_t>::max(),
                text(printable(path_), ":", printable(inside)));

  const auto write = [&](const char* name, const auto& values, DType dtype) {
    const IntegerTensor list{{std::int64_t(values.size())}, {values.begin(), values.end()}};
    draft_->writer().integers(text(inside, "/", name), list, dtype);
  };
  write("input_ids", inputs.input_ids, DType::int64);
  write("positions", inputs.positions, DType::int64);
  write("query_start_loc", inputs.query_start_loc, DType::int32);
  write("context_ids", inputs.context_ids, DType::int64);
  write("context_start_loc", inputs.context_start_loc, DType::int32);
  draft_->writer().group("/cases/" + case_name + "/taps");
  cases_[case_name] = {inputs.num_tokens(), inputs.num_sequences(), {}, {}};
}

void GoldenWriter::write_rows(const std::string& inside, const HostTensor& tensor,
                              std::int64_t rows) {
  if (tensor.shape.empty() || tensor.shape[0] != rows)
    fail(inside, text("shape is ", to_string(tensor.shape), ", expected [", rows, ", columns]"));
  if (tensor.shape.size() == 2) return draft_->writer().tensor(inside, tensor);
  HostTensor flat = tensor;
  flat.shape = {rows, tensor.cols()};
  draft_->writer().tensor(inside, flat);
}

void GoldenWriter::write_ids(const std::string& inside, const IntegerTensor& ids, std::int64_t rows,
                             std::size_t axes) {
  if (ids.shape.size() != axes || ids.shape[0] != rows)
    fail(inside,
         text("shape is ", to_string(ids.shape), ", expected [", rows, axes == 2 ? ", k]" : "]"));
  draft_->writer().integers(inside, ids, DType::int64);
}

void GoldenWriter::write_tap(const std::string& case_name, const std::string& name,
                             const HostTensor& tensor) {
  const std::string inside = GoldenFile::tap_path(case_name, name);
  require_name(inside, name);
  write_rows(inside, tensor, case_of(case_name).tokens);
}

void GoldenWriter::write_tap_ids(const std::string& case_name, const std::string& name,
                                 const IntegerTensor& ids) {
  const std::string inside = GoldenFile::tap_path(case_name, name);
  require_name(inside, name);
  write_ids(inside, ids, case_of(case_name).tokens, 2);
}

std::int64_t GoldenWriter::begin_step(const std::string& case_name, std::int64_t step) {
  Case& entry = case_of(case_name);
  if (step < 0)
    fail("/cases/" + case_name + "/mtp", text("step is ", step, ", expected 0 or more"));
  entry.steps.insert(step);
  return step == 0 ? entry.tokens : entry.sequences;
}

void GoldenWriter::write_mtp_tap(const std::string& case_name, std::int64_t step,
                                 const std::string& name, const HostTensor& tensor) {
  const std::string inside = GoldenFile::mtp_path(case_name, step, name);
  require_name(inside, name);
  write_rows(inside, tensor, begin_step(case_name, step));
}

void GoldenWriter::write_mtp_ids(const std::string& case_name, std::int64_t step,
                                 const std::string& name, const IntegerTensor& ids) {
  const std::string inside = GoldenFile::mtp_path(case_name, step, name);
  require_name(inside, name);
  write_ids(inside, ids, begin_step(case_name, step), name.ends_with(".ids") ? 2 : 1);
}

void GoldenWriter::write_draft_ids(const std::string& case_name, const IntegerTensor& ids) {
  Case& entry = case_of(case_name);
  write_ids(GoldenFile::draft_ids_path(case_name), ids, entry.sequences, 2);
  entry.draft_columns = ids.shape[1];
}

void GoldenWriter::commit() {
  if (!draft_) fail("/", "is in its place already, expected one commit");
  for (const auto& [name, entry] : cases_) {
    const std::int64_t steps = std::int64_t(entry.steps.size());
    if (steps > 0 && *entry.steps.rbegin() != steps - 1)
      fail("/cases/" + name + "/mtp", text("has ", steps, " draft steps, the last one step",
                                           *entry.steps.rbegin(), ", expected no gap"));
    if (entry.draft_columns.value_or(0) != steps)
      fail(GoldenFile::draft_ids_path(name),
           text("has ", entry.draft_columns.value_or(0), " columns, expected ", steps,
                ", one a draft step"));
  }
  draft_->move_into_place();
  draft_.reset();
}

}  // namespace tokenview
