// SPDX-License-Identifier: Apache-2.0
#include "reference/program/injected_fault.hpp"

#include <fnmatch.h>

namespace tokenview {

const char* to_string(FaultAct act) {
  switch (act) {
    case FaultAct::drop:
      return "drop";
    case FaultAct::repeat:
      return "repeat";
    case FaultAct::replace:
      return "replace";
    case FaultAct::before:
      return "before";
    case FaultAct::after:
      return "after";
    case FaultAct::group:
      return "group";
    case FaultAct::axis:
      return "axis";
    case FaultAct::order:
      return "order";
    case FaultAct::count:
      return "count";
    case FaultAct::sizes:
      return "sizes";
    case FaultAct::stale:
      return "stale";
    case FaultAct::poison:
      return "poison";
    case FaultAct::leave:
      return "leave";
    case FaultAct::rows:
      return "rows";
    case FaultAct::scale:
      return "scale";
    case FaultAct::set:
      return "set";
    case FaultAct::side:
      return "side";
    case FaultAct::due:
      return "due";
  }
  return "";
}

bool fits(const std::string& glob, const std::string& path) {
  return glob == "*" || fnmatch(glob.c_str(), path.c_str(), 0) == 0;
}

}  // namespace tokenview
