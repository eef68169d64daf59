// SPDX-License-Identifier: Apache-2.0
#include "verify/repair_report.hpp"

#include <ostream>
#include <set>

namespace tokenview {

void print_repairs(std::ostream& out, const Blame& blame, const RepairSearch& search) {
  out << "blame   " << blame.hangs_on << '\n';
  if (search.repairs.empty())
    out << "suggest nothing: of " << plural(search.tried, "change") << " tried none makes it clean"
        << (search.complete ? "\n" : "; the search was cut short\n");
  const char* label = "suggest ";
  std::set<std::string> said;  // one that two kinds of edits make is one to a person
  for (const Repair& repair : search.repairs) {
    if (!said.insert(repair.words).second) continue;
    out << label << repair.words << (repair.holds ? "\n" : "; not at every row count\n");
    label = "or      ";
  }
}

std::vector<ReportRecord> repair_records(const Blame& blame, const RepairSearch& search) {
  std::vector<ReportRecord> records;
  ReportRecord& hangs = records.emplace_back(ReportRecord{.kind = "blame"});
  hangs.verdict = "finding";
  if (blame.first) {
    hangs.tap = blame.first->module;
    hangs.rank = blame.first->at.world;
  }
  hangs.more = {{"hangs_on", blame.hangs_on},
                {"stopped", blame.stopped},
                {"tried", search.tried},
                {"complete", search.complete}};
  for (const Repair& repair : search.repairs) {
    ReportRecord& record = records.emplace_back(ReportRecord{.kind = "repair"});
    record.verdict = "repair";
    std::vector<std::string> edits;
    for (const RepairEdit& edit : repair.edits) edits.push_back(to_string(edit));
    record.more = {{"place", std::int64_t(records.size()) - 1},
                   {"how", std::string(to_string(repair.kind))},
                   {"words", repair.words},
                   {"edits", edits},
                   {"elements", repair.elements},
                   {"holds", repair.holds}};
  }
  return records;
}

}  // namespace tokenview
