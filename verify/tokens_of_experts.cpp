// SPDX-License-Identifier: Apache-2.0
#include "verify/tokens_of_experts.hpp"

#include <algorithm>
#include <set>

#include "reference/program/error.hpp"
#include "verify/host_matrix.hpp"
#include "verify/token_rows.hpp"

namespace tokenview {

std::string wrong_experts_in_words(const std::string& tap, const TapTensors& tensors,
                                   const std::vector<Rows>& rows, const TrustedStep& trusted,
                                   std::int64_t ranks) {
  const std::string block =
      trusted.has(tap + ".gate.ids") ? tap : tap.substr(0, std::min(tap.rfind('.'), tap.size()));
  const std::string logits = block + ".gate.logits", choice = block + ".gate.ids";
  if (!trusted.has(choice) || !trusted.has(logits)) return {};
  const IntegerTensor of_tokens = trusted.ids(choice);
  const auto ids = as_matrix(of_tokens);
  const auto right = as_matrix(*tensors.trusted);
  const std::int64_t experts = trusted.values(logits).cols();
  if (ids.rows() != right.rows()) return {};

  std::set<std::int64_t> held, wrong;
  for_all_rows(tensors, rows,
               [&](const Eigen::RowVectorXd& found, std::int64_t token, std::size_t) {
                 if (found.size() != right.cols()) return false;
                 const Eigen::RowVectorXd due = right.row(token).cast<double>();
                 held.insert(token);
                 if (!((found - due).norm() <= close_enough * due.norm())) wrong.insert(token);
                 return true;
               });
  if (wrong.empty() || wrong.size() == held.size()) return {};
  const auto is_choice_of = [&](std::int64_t first, std::int64_t count) {
    return std::ranges::all_of(held, [&](std::int64_t token) {
      const bool is_chosen = std::ranges::any_of(
          ids.row(token), [&](std::int64_t id) { return id >= first && id < first + count; });
      return is_chosen == wrong.contains(token);
    });
  };
  std::string found;  // one answer, or none
  const auto add = [&](const std::string& words) { found = found.empty() ? words : "several"; };
  for (std::int64_t expert = 0; expert < experts; ++expert)
    if (is_choice_of(expert, 1)) add(text("other values where expert ", expert, " was chosen"));
  if (const std::int64_t share = experts / std::max<std::int64_t>(1, ranks);
      found.empty() && ranks > 1 && share > 1 && experts % ranks == 0)
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      if (is_choice_of(rank * share, share))
        add(text("other values where experts ", rank * share, '-', (rank + 1) * share - 1,
                 " were chosen, those of one rank"));
  return found == "several" ? "" : found;
}

}  // namespace tokenview
