// SPDX-License-Identifier: Apache-2.0
#include "verify/repair_words.hpp"

#include <algorithm>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// The first visit that an edit acts on; null: none.
const PlaceVisit* first_place(const InjectedFault& edit, std::span<const PlaceVisit> visits) {
  for (const PlaceVisit& visit : visits)
    if (visit.op == edit.op && fits(edit.at, visit.module) &&
        (edit.group.empty() || visit.group == edit.group) &&
        (edit.nth == 0 || visit.nth == edit.nth))
      return &visit;
  return nullptr;
}

bool is_inside(const std::string& module, const std::string& of) {
  return of.empty() || module == of || module.starts_with(of + '.');
}

/// The module that the rank comes to next and that `place` is not in.
std::string next_module(const PlaceVisit& place, std::span<const PlaceVisit> visits) {
  for (const PlaceVisit* visit = &place + 1; visit < visits.data() + visits.size(); ++visit)
    if (visit->rank == place.rank && !is_inside(visit->module, place.module) &&
        !is_inside(place.module, visit->module))
      return visit->module;
  return "";
}

/// "in model.layers.1", "in model.layers.*"
std::string where(const InjectedFault& edit) {
  return edit.at == "*" ? "everywhere" : text("in ", edit.at.empty() ? "the runner" : edit.at);
}

std::string what(const InjectedFault& edit) {
  static constexpr const char* counts[] = {"", "the first ", "the second ", "the third "};
  return text(edit.nth < 4 ? counts[edit.nth] : text("number ", edit.nth, " of "), edit.op,
              edit.group.empty() ? "" : " over " + edit.group);
}

/// An operation that is put in: what it does to `operand`.
std::string inserted(const std::string& move, const std::string& operand,
                     const std::string& width) {
  if (move == "gather") return text("gather ", operand, width, " and trim to T");
  if (move == "scatter") return text("pad and reduce-scatter ", operand, " over tp");
  if (move == "chunk") return text("cut ", operand, " to the rank's shard");
  if (move == "trim") return text("trim ", operand, " to T");
  if (move == "all_reduce") return text("all-reduce ", operand, " over tp");
  if (move == "all_gather") return text("all-gather ", operand, " over tp");
  return text("reduce-scatter ", operand, " over tp");
}

std::string in_words(const InjectedFault& edit, std::span<const PlaceVisit> visits) {
  const PlaceVisit* place = first_place(edit, visits);
  const PlaceKind kind = place == nullptr ? PlaceKind::value : place->kind;
  switch (edit.act) {
    case FaultAct::drop:
      return text("leave out ", what(edit), ' ', where(edit));
    case FaultAct::replace:
      if (place != nullptr && place->done.empty())
        return text("put in ",
                    edit.with == edit.op ? what(edit) : edit.with + " over " + edit.group, ' ',
                    where(edit));
      return text("do ", edit.with == edit.op ? what(edit) : edit.with,
                  place == nullptr || place->done == edit.with ? "" : " instead of " + place->done,
                  ' ', where(edit));
    case FaultAct::group:
      return text("do ", edit.op, ' ', where(edit), " over ", edit.with);
    case FaultAct::axis:
      return text("do ", what(edit), ' ', where(edit), " along the other axis");
    case FaultAct::set:
      return text("decide ", edit.op, " = ", edit.number, ' ', where(edit));
    case FaultAct::due:
      switch (kind) {
        case PlaceKind::collective:
          if (place->done.empty()) return text("put in ", what(edit), ' ', where(edit));
          if (place->done != place->op)
            return text("do ", what(edit), " instead of ", place->done, ' ', where(edit));
          [[fallthrough]];
        case PlaceKind::local:
          return text("do ", what(edit), ' ', where(edit),
                      " as the protocol has it: on its operand, with its arguments, once");
        case PlaceKind::side:
          return text("give ", edit.at == "*" ? "every module" : edit.at,
                      " the positions, boundaries, slots and row counts of the step");
        case PlaceKind::gate:
        case PlaceKind::number:
          return text("take ", edit.op, ' ', where(edit), " from the step");
        default:
          return text("hand on ", edit.op, ' ', where(edit), " as it was made");
      }
    case FaultAct::before:
    case FaultAct::after: {
      if (kind == PlaceKind::collective && place->done.empty())
        return text(inserted(edit.with, "what is there", ""), ' ', where(edit), ", where ",
                    what(edit), " is left out");
      if (kind == PlaceKind::collective || kind == PlaceKind::local)
        return text(
            inserted(edit.with, edit.act == FaultAct::before ? "the operand" : "the result", ""),
            edit.act == FaultAct::before ? " of " : ", after ", what(edit), ' ', where(edit));
      const bool is_stream = kind == PlaceKind::stream;
      const std::string operand = is_stream             ? "hidden and residual"
                                  : edit.op == "output" ? "the output"
                                                        : edit.op;
      const std::string width = text(" (one all-gather of width ",
                                     is_stream          ? "2H"
                                     : place == nullptr ? "W"
                                                        : std::to_string(place->columns),
                                     ')');
      std::string words = inserted(edit.with, operand, width);
      const std::string next = place == nullptr ? "" : next_module(*place, visits);
      if (edit.op == "layer_input") return text(words, " where ", edit.at, " begins");
      if (!next.empty() && edit.at.find('*') == std::string::npos)
        return text(words, " between ", edit.at, " and ", next);
      return text(words, " after ", edit.at);
    }
    default:
      return to_string(RepairEdit(edit));
  }
}

}  // namespace

std::string in_words(const std::vector<RepairEdit>& edits, std::span<const PlaceVisit> visits) {
  std::string words;
  for (const RepairEdit& edit : edits) {
    if (!words.empty()) words += "; and ";
    if (const auto* weights = std::get_if<PlacedWeights>(&edit))
      words += text(
          weights->whole ? "hold whole, on every rank, the weights " : "split over tp the weights ",
          weights->at);
    else if (const auto* flag = std::get_if<PlanFlag>(&edit))
      words += text("plan ", flag->name, " = ", flag->value ? "true" : "false");
    else
      words += in_words(std::get<InjectedFault>(edit), visits);
  }
  return words;
}

}  // namespace tokenview
