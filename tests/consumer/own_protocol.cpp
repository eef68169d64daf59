// SPDX-License-Identifier: Apache-2.0
// Checks the two protocols of late_norm.hpp: on token views over row counts and degrees, and with
// numbers against a golden file. Ends with 0 when both behave as docs/your-own-protocol.md says.
#include <iostream>
#include <reference/program/presets.hpp>
#include <verify/matrix.hpp>
#include <verify/own_protocol.hpp>
#include <verify/requests.hpp>
#include <verify/view_run.hpp>

#include "late_norm.hpp"

using namespace tokenview;

static ViewRunResult run_on_views(const OwnProtocol& own, std::int64_t tokens, std::int64_t tp,
                                  std::int64_t dp, std::vector<std::int64_t> aux_layers = {}) {
  const ModelConfig config = *preset("qwen3.5-moe");
  ParallelRun run{
      .config = config,
      .plan = plan_for(config, {.tp = tp, .dp = dp, .enable_expert_parallel = true}, ProtocolId::D),
      .inputs = inputs_of(parse_requests(std::to_string(tokens), dp)),
      .draft_steps = 1,
      .own_protocol = &own};
  run.plan.aux_layers = std::move(aux_layers);
  return run_views(run, true);
}

static MatrixResult run_on_numbers(const OwnProtocol& own, const LoadedGolden& golden,
                                   const char* golden_case) {
  return run_entry(
      golden,
      {golden.name(), {golden_case}, {.tp = 4, .enable_expert_parallel = true}, ProtocolId::D},
      golden, &own);
}

static int failures = 0;
static void expect(bool holds, const std::string& claim) {
  if (holds) return;
  std::cout << "not so: " << claim << '\n';
  ++failures;
}

constexpr const char* first_finding =
    "tp=1 dp=0 model exit: final hidden: expected [0], actual [PAD]";

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const OwnProtocol first = own_protocol<FirstLateNorm>(), right = own_protocol<LateNorm>();

  for (const std::int64_t tokens : {0, 1, 2, 3, 5, 8, 10, 13})
    for (const std::int64_t tp : {2, 4, 8})
      for (const std::int64_t dp : {1, 2}) {
        const std::string where = text(" at T=", tokens, " tp=", tp, " dp=", dp);
        expect(run_on_views(right, tokens, tp, dp).clean(), "the right one is clean" + where);
        expect(run_on_views(first, tokens, tp, dp).clean() == (tokens != 1),
               "the first attempt is wrong at one token alone," + where);
      }
  expect(run_on_views(right, 10, 4, 1, {0, 2, 4}).clean(), "auxiliary states are full");
  expect(!run_on_views(first, 10, 4, 1, {0, 2, 4}).clean(), "the first attempt forgets them");

  const ViewRunResult one = run_on_views(first, 1, 2, 1);
  const std::string found = one.findings.empty() ? "nothing" : to_string(one.findings.front());
  std::cout << found << '\n';
  expect(found.starts_with(first_finding), text("the finding is ", first_finding));

  const LoadedGolden golden(argv[1]);
  expect(run_on_numbers(right, golden, "prefill_t1").numbers_match(), "numbers match at T = 1");
  expect(run_on_numbers(right, golden, "prefill_t10").numbers_match(), "numbers match at T = 10");
  expect(!run_on_numbers(first, golden, "prefill_t1").numbers_match(), "the first differ at T = 1");
  // Draft passes after the first have one row a request, however long the prefill was.
  const MatrixResult ten = run_on_numbers(first, golden, "prefill_t10");
  expect(!ten.numbers_match() && !ten.findings.empty() && ten.findings.front().module == "mtp",
         "and in the second draft pass at T = 10");
  return failures == 0 ? 0 : 1;
}
