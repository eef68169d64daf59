// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tokenview {

/// What an injected fault does at its place.
enum class FaultAct {
  drop,     // the operation is left out: its operand goes on
  repeat,   // done twice, the second time on its own result
  replace,  // another operation instead: `with`
  before,   // an operation more, on the operand: `with`
  after,    // an operation more, on the result: `with`
  group,    // over another group: `with` is tp, dp, ep or pp
  axis,     // along the other axis
  order,    // parts in another order: `with` is reverse, rotate, swap (`numbers`), round_robin,
            // tp_major
  count,    // `number` rows more (less, where negative) than is due
  sizes,    // of a variable-size form: `numbers`
  stale,    // the result of the same place in the pass before
  poison,   // pad rows hold `with`: nan, large or stale, instead of zeros
  leave,    // the rank's program ends here
  rows,     // other rows: `with` is prefix, floor, round_robin, reverse, repeat_last, mix
  scale,    // times `factor`
  set,      // a gate or a count has the value `number`; a routing the experts `numbers`
  side,     // the batch as its module sees it: `with` says what of it, see Injector::batch()
  due,      // as the program has it: what stands before this in the list does not act here
};
const char* to_string(FaultAct act);

/// A change at a place of the running program: a collective, a local move of rows, a named value,
/// the stream between layers, a decision (gate), a count, or the side data of a module. The program
/// is the same; what happens at the place is not. A fault is such a change, and so is its repair:
/// changes of a list act one after the other.
struct InjectedFault {
  FaultAct act = FaultAct::drop;
  std::string at = "*";  // module path, as a glob: "model.layers.*.mlp"
  std::string op;        // the collective, local operation, named value, gate or count; "*": any
  std::string group;     // of a collective: only those over tp, dp, ep or pp; empty: any
  std::int64_t tp = -1, dp = -1, pp = -1;  // of these ranks only; -1: all
  std::int64_t occurrence = 0;             // the n-th time that the rank comes by; 0: every time
  std::int64_t nth = 0;                    // the n-th such place of its module in a pass; 0: all
  std::int64_t step = -1;                  // of this engine step only; -1: all
  std::int64_t draft = -2;                 // in this draft pass only; -1: the target; -2: all
  std::int64_t least = 0, most = -1;       // in passes of so many rows of this rank; -1: no limit

  std::string with;
  double factor = 1;
  std::int64_t number = 0;
  std::vector<std::int64_t> numbers;
};

/// What kind of place a change may act at.
enum class PlaceKind {
  collective,
  local,   // chunk, pad_rows, trim
  value,   // a tensor by name
  stream,  // hidden and residual where a layer begins or ends
  gate,
  number,
  side,
};

/// A rank comes by a place.
struct PlaceVisit {
  PlaceKind kind = PlaceKind::value;
  std::int64_t rank = 0;     // of the world
  std::string module, op;    // as InjectedFault::at and op name them
  std::string group;         // of a collective
  std::string done;          // of a collective, what is carried out there; empty: nothing
  std::int64_t nth = 1;      // such place of its module in this pass
  std::int64_t number = 0;   // a gate's or a count's
  std::int64_t columns = 0;  // of the tensor at hand
  std::int64_t step = 0;     // engine step; -1: the pass over what was computed before
  std::int64_t draft = -1;   // draft pass; -1: the target
  std::int64_t order = 0;    // operations of this rank before it, where they are counted
};

/// True when `path` fits `glob` (`*` any text, `?` one letter).
bool fits(const std::string& glob, const std::string& path);

}  // namespace tokenview
