// SPDX-License-Identifier: Apache-2.0
#include "verify/dump_writer.hpp"

#include <utility>

#include "reference/program/error.hpp"
#include "verify/tap_order.hpp"

namespace tokenview {
namespace {

/// Where a tap lies in its step: "taps/model.norm", "mtp/step0/mtp.fc".
std::string path_in_step(const std::string& tap) {
  const std::string pass = pass_of(tap);
  return (pass == "target" ? "taps/" : "mtp/" + pass + "/") + name_of(tap);
}

Hdf5Table table_of(const std::vector<DumpCollective>& collectives) {
  std::vector<std::string> op, group, module, dtype;
  std::vector<std::int64_t> count, seq;
  for (const DumpCollective& call : collectives) {
    op.push_back(call.op);
    group.push_back(call.group);
    module.push_back(call.module);
    count.push_back(call.count);
    dtype.push_back(call.dtype);
    seq.push_back(call.seq);
  }
  return {{{"op", std::move(op)},
           {"group", std::move(group)},
           {"module", std::move(module)},
           {"count", std::move(count)},
           {"dtype", std::move(dtype)},
           {"seq", std::move(seq)}}};
}

}  // namespace

DumpWriter::DumpWriter(const std::string& path, const std::string& producer,
                       const std::string& label)
    : draft_(path) {
  Hdf5Writer& file = draft_.writer();
  file.attribute("/", "schema", "tokenview.dump");
  file.attribute("/", "schema_version", DumpFile::schema_version);
  file.attribute("/", "producer", producer);
  if (!label.empty()) file.attribute("/", "label", label);
}

void DumpWriter::write_rank(const RankCoordinates& at, const ParallelConfig& parallel,
                            std::int64_t num_tokens) {
  Hdf5Writer& file = draft_.writer();
  const std::string inside = text("/ranks/", at.world);
  file.group(inside + "/steps");
  const bool has_experts = parallel.enable_expert_parallel;
  const std::pair<const char*, std::int64_t> attributes[] = {
      {"rank", at.world},
      {"world_size", parallel.world_size()},
      {"tp_size", parallel.tp},
      {"tp_rank", at.tp},
      {"dp_size", parallel.dp},
      {"dp_rank", at.dp},
      {"pp_size", parallel.pp},
      {"pp_rank", at.pp},
      {"ep_size", has_experts ? parallel.tp * parallel.dp : 1},
      {"ep_rank", has_experts ? at.ep : 0},
      {"num_tokens", num_tokens}};
  for (const auto& [name, value] : attributes) file.attribute(inside, name, value);
}

void DumpWriter::write_step(const RankCoordinates& at, const DumpedStep& step) {
  Hdf5Writer& file = draft_.writer();
  const std::string inside = text("/ranks/", at.world, "/steps/", step.number);
  std::string manifest;
  const auto named = [&](const std::string& name) {
    manifest += name + '\n';
    return text(inside, '/', name);
  };
  file.table(named("collectives"), table_of(step.collectives));
  const auto list = [&](const char* name, const auto& values, DType dtype) {
    file.integers(named(text("inputs/", name)),
                  {{std::int64_t(values.size())}, {values.begin(), values.end()}}, dtype);
  };
  list("input_ids", step.inputs.input_ids, DType::int64);
  list("positions", step.inputs.positions, DType::int64);
  list("query_start_loc", step.inputs.query_start_loc, DType::int32);
  list("context_ids", step.inputs.context_ids, DType::int64);
  list("context_start_loc", step.inputs.context_start_loc, DType::int32);
  for (const auto& [tap, tensor] : step.taps) {
    const std::string path = named(path_in_step(tap));
    file.tensor(path, tensor);
    const auto view = step.views.find(tap);
    if (view == step.views.end()) continue;
    const std::string sum = view->second.sum.is_complete() ? "" : ' ' + to_string(view->second.sum);
    file.attribute(path, "view", to_string(view->second.rows, std::int32_t(step.number)) + sum);
    if (const ColumnBlock& columns = view->second.columns; !columns.all())
      file.attribute(path, "columns", to_string(columns));
  }
  for (const auto& [tap, ids] : step.ids)
    file.integers(named(path_in_step(tap)), ids, DType::int64);
  file.attribute(inside, "num_tokens", step.num_tokens);
  file.attribute(inside, "dummy", step.dummy ? 1 : 0);
  if (!step.stopped.empty()) file.attribute(inside, "stopped", step.stopped);
  file.attribute(inside, "manifest", manifest);
}

}  // namespace tokenview
