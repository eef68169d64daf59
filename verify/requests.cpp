// SPDX-License-Identifier: Apache-2.0
#include "verify/requests.hpp"

#include <charconv>
#include <string>

#include "reference/program/error.hpp"
#include "reference/program/strict_json.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t max_tokens = 1 << 24;  // of one request: 16 M rows

class RequestReader {
 public:
  explicit RequestReader(std::string_view input) : input_(input), rest_(input) {}

  std::vector<std::vector<Request>> read(char between_ranks) {
    std::vector<std::vector<Request>> ranks(1);
    ranks.back().push_back(request());
    while (!rest_.empty()) {
      if (take('+')) {
        ranks.back().push_back(request());
      } else if (take(between_ranks)) {
        ranks.emplace_back().push_back(request());
      } else {
        refuse(text("unexpected '", rest_.front(), '\''));
      }
    }
    return ranks;
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    throw UsageError(text("requests \"", shortened(std::string(input_)), "\": ", problem,
                          " at column ", input_.size() - rest_.size() + 1,
                          ", expected for example 10, 3,5 or 4+6/2+3c8v2r1"));
  }
  bool take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::int64_t number() {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0 || value > max_tokens)
      refuse(text("no number from 0 to ", max_tokens));
    rest_.remove_prefix(std::size_t(end - rest_.data()));
    return value;
  }
  Request request() {
    Request request;
    request.tokens = number();
    for (std::string given; !rest_.empty();) {
      const char letter = rest_.front();
      std::int64_t* const part = letter == 'c'   ? &request.context
                                 : letter == 'v' ? &request.verified
                                 : letter == 'r' ? &request.rejected
                                                 : nullptr;
      if (part == nullptr) break;
      if (given.find(letter) != std::string::npos) refuse(text('\'', letter, "' is given twice"));
      given += letter;
      take(letter);
      *part = number();
    }
    if (request.tokens == 0 && request.context > 0)
      refuse(text("a request with a context of ", request.context, " and no row of its own"));
    if (request.verified > 0 && request.verified >= request.tokens)
      refuse(text(request.verified, " drafts verified in ", request.tokens, " rows"));
    if (request.rejected > request.verified)
      refuse(text(request.rejected, " of ", request.verified, " drafts rejected"));
    return request;
  }

  std::string_view input_, rest_;
};

}  // namespace

std::vector<std::vector<Request>> parse_requests(std::string_view input, std::int64_t dp) {
  if (input.empty())
    throw UsageError("requests: empty, expected for example 10, 3,5 or 4+6/2+3c8v2r1");
  const bool commas = input.find(',') != std::string_view::npos;
  if (commas && input.find('/') != std::string_view::npos)
    throw UsageError(text("requests \"", shortened(std::string(input)),
                          "\": both ',' and '/' between dp ranks"));
  auto ranks = RequestReader(input).read(commas ? ',' : '/');
  if (ranks.size() == 1 && dp > 1) ranks.resize(std::size_t(dp), ranks.front());
  if (std::int64_t(ranks.size()) != dp)
    throw UsageError(text("requests \"", shortened(std::string(input)), "\": for ", ranks.size(),
                          " dp ranks, expected ", dp));
  return ranks;
}

std::string to_string(const std::vector<std::vector<Request>>& requests) {
  std::string out;
  for (const auto& of_rank : requests) {
    if (!out.empty()) out += '/';
    const char* between = "";
    for (const Request& request : of_rank) {
      out += text(between, request.tokens);
      if (request.context > 0) out += text('c', request.context);
      if (request.verified > 0) out += text('v', request.verified);
      if (request.rejected > 0) out += text('r', request.rejected);
      between = "+";
    }
  }
  return out;
}

std::vector<StepInputs> inputs_of(const std::vector<std::vector<Request>>& requests) {
  std::vector<StepInputs> inputs;
  for (const auto& of_rank : requests) {
    StepInputs& rank = inputs.emplace_back();
    const auto add_rows = [](Batch& batch, std::size_t slot, std::int64_t computed,
                             std::int64_t rows) {
      if (batch.query_start_loc.empty()) batch.query_start_loc.push_back(0);
      for (std::int64_t i = 0; i < rows; ++i) {
        batch.input_ids.push_back(std::int64_t(batch.input_ids.size()));
        batch.positions.push_back(computed + i);
      }
      batch.query_start_loc.push_back(std::int32_t(batch.input_ids.size()));
      batch.num_computed.push_back(std::int32_t(computed));
      batch.slots.push_back(std::int32_t(slot));
    };
    for (std::size_t s = 0; s < of_rank.size(); ++s) {
      add_rows(rank.context, s, 0, of_rank[s].context);
      add_rows(rank.step, s, of_rank[s].context, of_rank[s].tokens);
      rank.rejected.push_back(std::int32_t(of_rank[s].rejected));
      rank.step.keep_states = rank.step.keep_states || of_rank[s].verified > 0;
    }
  }
  return inputs;
}

void spread_ids(Batch& batch, std::int64_t dp, std::int64_t step, std::int64_t vocab_size) {
  for (std::size_t i = 0; i < batch.input_ids.size(); ++i)
    batch.input_ids[i] = (std::int64_t(i) * 37 + dp * 59 + step * 13 + 7) % vocab_size;
}

}  // namespace tokenview
