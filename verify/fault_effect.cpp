// SPDX-License-Identifier: Apache-2.0
#include "verify/fault_effect.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "reference/program/error.hpp"

namespace tokenview {
namespace {

/// As Injector has it, kind by kind.
bool acts_at(PlaceKind kind, FaultAct act) {
  using enum FaultAct;
  switch (kind) {
    case PlaceKind::collective:
      return act != set && act != side;
    case PlaceKind::local:
      return act != replace && act != group && act != axis && act != sizes && act != set &&
             act != side;
    case PlaceKind::value:
    case PlaceKind::stream:
      return act == leave || act == after || act == order || act == count || act == poison ||
             act == scale || act == stale || act == rows || act == due ||
             act == (kind == PlaceKind::value ? set : before);
    case PlaceKind::gate:
    case PlaceKind::number:
      return act == leave || act == set || act == count || act == due;
    case PlaceKind::side:
      return act == side || act == due;
  }
  return true;
}

bool meets(const InjectedFault& fault, const PlaceVisit& visit, const ParallelConfig& parallel) {
  const RankCoordinates at = coordinates_of(visit.rank, parallel);
  const auto is = [](std::int64_t wanted, std::int64_t found) {
    return wanted < 0 || wanted == found;
  };
  return (fault.op == "*" || fault.op == visit.op) &&
         (fault.group.empty() || fault.group == visit.group) && is(fault.tp, at.tp) &&
         is(fault.dp, at.dp) && is(fault.pp, at.pp) &&
         is(fault.step, std::max<std::int64_t>(visit.step, 0)) &&
         (fault.draft < -1 || fault.draft == visit.draft) && fits(fault.at, visit.module);
}

}  // namespace

std::string why_without_effect(const InjectedFault& fault, std::span<const PlaceVisit> visits,
                               const ParallelConfig& parallel) {
  bool is_met = false, acts = false, is_met_again = false;
  std::string place;
  std::map<std::tuple<std::int64_t, std::string, std::string, std::string, std::int64_t>,
           std::int64_t>
      times;
  for (const PlaceVisit& visit : visits) {
    if (!meets(fault, visit, parallel)) continue;
    is_met = true;
    if (place.empty()) place = text(visit.op, visit.module.empty() ? "" : "@", visit.module);
    acts |= acts_at(visit.kind, fault.act);
    is_met_again |= ++times[{visit.rank, visit.module, visit.op, visit.group, visit.nth}] > 1;
  }
  if (!is_met) return {};
  if (!acts) return text('\'', to_string(fault.act), "' does nothing to ", place);
  if (fault.act == FaultAct::stale && (!is_met_again || fault.occurrence > 0))
    return text("there is no pass before in which it meets ", place,
                ": expected two or more, and no occurrence");
  return {};
}

}  // namespace tokenview
