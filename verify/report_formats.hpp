// SPDX-License-Identifier: Apache-2.0
// What `report` writes, each the content of a file. One source file a format.
#pragma once
#include <string>

#include "verify/baseline.hpp"
#include "verify/result_case.hpp"

namespace tokenview {

/// JUnit XML: a suite for each run and file, a test for each configuration, of `check` for each
/// tap. What is known is a skipped test. Valid by junit-10.xsd of the xUnit plugin of Jenkins,
/// which is what Surefire, pytest (xunit2) and GitLab agree on.
std::string junit_report(const Results& results);

/// SARIF 2.1.0: a result for each problem, at its line of the report file, with module and tap as
/// logical location. What is known is suppressed. `version` is the program's.
/// Source: OASIS, Static Analysis Results Interchange Format 2.1.0 plus errata 01.
std::string sarif_report(const Results& results, const std::string& version);

/// Commands for a log of GitHub Actions: no more than 10, since a step shows no more of a kind.
/// Problems of one rule at one place are one annotation.
/// Source: GitHub, Workflow commands for GitHub Actions, "Setting an error message".
std::string github_annotations(const Results& results, const Baseline& baseline);

/// Markdown for $GITHUB_STEP_SUMMARY, below its limit of 1 MiB.
std::string step_summary(const Results& results, const Baseline& baseline);

/// One self-contained page, which loads nothing: the configurations, and of each its problems, the
/// rows of every rank at every tensor, and its numbers. Its data are packed with gzip.
std::string html_report(const Results& results, const Baseline& baseline,
                        const std::string& version);

/// A trace in the JSON format of Chrome's trace events, for Perfetto: a process a rank, a slice for
/// each named tensor and each collective, and flows between the ranks of a collective. Time is
/// program order, 10 microseconds a step. Needs views.
/// Source: "Trace Event Format", Google, 2016;
/// https://perfetto.dev/docs/getting-started/other-formats
std::string perfetto_trace(const ResultCase& result);

/// The tensors of the module `module` ("model.layers.0") of the first pass that has it, with what
/// every rank held, and the collectives between them, in program order, as a graph for Graphviz and
/// as a picture. Throws UsageError where no tensor is of the module.
std::string layer_dot(const ResultCase& result, const std::string& module);
std::string layer_svg(const ResultCase& result, const std::string& module);

/// The module to draw where none is asked for: the layer of the first problem; else the first
/// layer.
std::string layer_of_first_problem(const ResultCase& result);

/// Lines for people, a screen of them at most.
std::string text_report(const Results& results, const Baseline& baseline, bool colour);

}  // namespace tokenview
