// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "reference/program/error.hpp"
#include "verify/report_formats.hpp"
#include "verify/report_page.hpp"
#include "verify/report_time.hpp"

namespace tokenview {
namespace {

using Json = nlohmann::ordered_json;

/// Six significant digits, which is what a page shows at most and packs in half the space.
Json shortened(const std::optional<double>& number) {
  if (!number) return nullptr;
  if (std::isnan(*number)) return "nan";
  if (std::isinf(*number)) return *number > 0 ? "inf" : "-inf";
  if (*number == 0) return 0;
  const double step = std::pow(10.0, std::floor(std::log10(std::abs(*number))) - 5);
  const double rounded = std::round(*number / step) * step;
  return std::isnormal(step) && std::isfinite(rounded) ? rounded : *number;
}

/// The level of a row's error / allowed: 0 none, 1 below 1e-5, ..., 5 below 0.1, 6 below a half,
/// 7 up to 1, 8 over it.
char level_of(double ratio) {
  if (!(ratio <= 1)) return '8';
  if (ratio > 0.5) return '7';
  if (ratio > 0.1) return '6';
  if (ratio == 0) return '0';
  return char('0' + std::clamp(int(std::ceil(std::log10(ratio))) + 6, 1, 5));
}

/// The data of the page; words that come often are there once.
class Packer {
 public:
  Json packed(const Results& results, const Baseline& baseline, const std::string& version) {
    Json page = {{"version", version}, {"time", report_time()}};
    Json expired = Json::array(), unseen = Json::array();
    for (const KnownProblem& known : baseline.known) {
      if (known.is_expired) expired.push_back(known.str());
      if (known.seen == 0) unseen.push_back(known.str());
    }
    page["baseline"] = {{"expired", expired}, {"unseen", unseen}};
    page["runs"] = Json::array();
    page["cases"] = Json::array();
    std::map<std::string, std::string> rules;
    for (std::size_t i = 0; i < results.runs.size(); ++i) {
      const ResultRun& run = results.runs[i];
      page["runs"].push_back({{"source", run.source},
                              {"verb", run.verb},
                              {"verdict", run.verdict},
                              {"seconds", shortened(run.seconds)},
                              {"first", run.first_case},
                              {"end", run.end_case}});
      for (std::size_t c = run.first_case; c < run.end_case; ++c) {
        page["cases"].push_back(case_of(results.cases[c], i));
        for (const Problem& problem : results.cases[c].problems)
          rules[problem.rule] = rule_in_words(problem.rule);
      }
    }
    page["rules"] = rules;
    page["names"] = names_;
    page["views"] = views_;
    return page;
  }

 private:
  Json case_of(const ResultCase& result, std::size_t run) {
    Json problems = Json::array(), taps = Json::array(), calls = Json::array();
    for (const Problem& problem : result.problems) {
      const auto tap = result.tap_of(problem);
      problems.push_back({{"rule", problem.rule},
                          {"place", problem.place},
                          {"operation", problem.operation},
                          {"tensor", problem.tensor},
                          {"expected", problem.expected},
                          {"actual", problem.actual},
                          {"after", problem.after},
                          {"called", problem.called},
                          {"row", problem.first_bad_row},
                          {"ranks", problem.ranks},
                          {"message", problem.message},
                          {"known", problem.known},
                          {"tap", tap ? Json(*tap) : Json(-1)}});
    }
    for (const ResultTap& tap : result.taps) taps.push_back(tap_of(tap));
    for (const ResultCall& call : result.calls)
      calls.push_back({call.before, name(call.operation), name(call.group), call.ranks,
                       call.elements, name(call.module)});
    return {{"run", run},
            {"name", result.name},
            {"file", result.file},
            {"outcome", result.is_known()                   ? "known"
                        : result.outcome == Outcome::error  ? "error"
                        : result.outcome == Outcome::failed ? "failed"
                                                            : "passed"},
            {"expected", result.expected_to_fail},
            {"detail", result.detail},
            {"title", result.title},
            {"hangsOn", result.hangs_on},
            {"repairs", result.repairs},
            {"observed", shortened(result.observed)},
            {"allowed", shortened(result.allowed)},
            {"worst", result.worst_place},
            {"seconds", shortened(result.seconds)},
            {"problems", std::move(problems)},
            {"taps", std::move(taps)},
            {"calls", std::move(calls)}};
  }

  /// [step, name, stage, view, observed, allowed, metric, verdict, failed, levels, detail,
  /// [rank] required]; view and verdict are -1 where the tap has none.
  Json tap_of(const ResultTap& tap) {
    std::string levels;
    for (const double ratio : tap.row_ratios) levels += level_of(ratio);
    Json required = Json::array();
    for (const std::string& rows : tap.required) required.push_back(name(rows));
    return {name(tap.step),
            name(tap.name),
            tap.stage,
            view(tap),
            shortened(tap.observed),
            shortened(tap.allowed),
            name(tap.metric),
            tap.is_compared ? Json(name(tap.verdict)) : Json(-1),
            tap.failed,
            levels,
            tap.detail,
            std::move(required)};
  }

  std::size_t name(const std::string& word) {
    const auto [place, is_new] = place_of_name_.emplace(word, names_.size());
    if (is_new) names_.push_back(word);
    return place->second;
  }

  /// [rows, sums, columns, ranks], each [rank]; no ranks where they are 0, 1, ...
  Json view(const ResultTap& tap) {
    if (tap.rows.empty()) return -1;
    std::array<std::vector<std::size_t>, 4> view;
    for (const std::string& rows : tap.rows) view[0].push_back(name(rows));
    for (const std::string& sum : tap.sums) view[1].push_back(name(sum));
    for (const std::string& columns : tap.columns) view[2].push_back(name(columns));
    view[3].assign(tap.ranks.begin(), tap.ranks.end());
    const auto [place, is_new] = place_of_view_.emplace(view, views_.size());
    if (is_new) views_.push_back(view);
    return place->second;
  }

  std::map<std::string, std::size_t> place_of_name_;
  std::map<std::array<std::vector<std::size_t>, 4>, std::size_t> place_of_view_;
  std::vector<std::string> names_;
  Json views_ = Json::array();
};

/// In the gzip format.
std::string zipped(const std::string& bytes) {
  constexpr int gzip_window = 15 + 16, best_speed_for_size = 9, memory = 9;
  z_stream stream{};
  if (deflateInit2(&stream, best_speed_for_size, Z_DEFLATED, gzip_window, memory,
                   Z_DEFAULT_STRATEGY) != Z_OK)
    throw FileError("zlib cannot be used");
  std::string out(deflateBound(&stream, uLong(bytes.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = uInt(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = uInt(out.size());
  const int end = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (end != Z_STREAM_END) throw FileError("zlib cannot pack the page's data");
  return out;
}

/// Source: RFC 4648, section 4.
std::string base64(const std::string& bytes) {
  constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k)
      out += k <= count ? letters[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

void replace(std::string& page, const std::string& mark, std::string_view content) {
  const std::size_t at = page.find(mark);
  page.replace(at, mark.size(), content);
}

}  // namespace

std::string html_report(const Results& results, const Baseline& baseline,
                        const std::string& version) {
  const std::string data = Packer()
                               .packed(results, baseline, version)
                               .dump(-1, ' ', false, Json::error_handler_t::replace);
  if (data.size() > (std::size_t{1} << 30))
    throw FileError(text("--html: ", data.size() >> 20,
                         " MiB of data are more than a page can hold: expected fewer results"));
  std::string page(report_page_html);
  replace(page, "@page.css@", report_page_css);
  replace(page, "@page.js@", report_page_js);
  replace(page, "@data@", base64(zipped(data)));
  return page;
}

}  // namespace tokenview
