// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/operations.hpp"
#include "reference/program/rounding.hpp"
#include "verify/device.hpp"

namespace tokenview {

/// A word of the command line and what it stands for.
template <class T>
struct Word {
  const char* word;
  T value;
};

/// An option that takes one of a few words. Its type name lists them, "text|jsonl": --help, the man
/// page and the completion read them there.
template <class Target, class T, std::size_t n>
CLI::Option* add_choice(CLI::App& app, const std::string& names, Target& target,
                        const Word<T> (&choices)[n], const std::string& description) {
  std::vector<std::string> words;
  std::string type_name;
  for (const Word<T>& choice : choices) {
    words.push_back(choice.word);
    type_name += (type_name.empty() ? "" : "|") + words.back();
  }
  const std::vector<Word<T>> table(choices, choices + n);
  const auto assign = [&target, table, words, names](const std::string& word) {
    for (const Word<T>& choice : table)
      if (word == choice.word) {
        target = choice.value;
        return;
      }
    throw CLI::ValidationError(
        names, text("'", word, "' is none of ", joined(words), suggestion(word, words)));
  };
  return app.add_option_function<std::string>(names, assign, description)->type_name(type_name);
}

/// An option that takes a whole number from `least` to `most`.
template <class Target, class T>
CLI::Option* add_number(CLI::App& app, const std::string& names, Target& target, T least, T most,
                        const std::string& description) {
  const auto assign = [&target, least, most, names](const std::string& word) {
    T value{};
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc() || stop != end || value < least || value > most)
      throw CLI::ValidationError(
          names, text("'", word, "' is no whole number from ", least, " to ", most));
    target = value;
  };
  return app.add_option_function<std::string>(names, assign, description)->type_name("N");
}

/// An option that takes a number of at least 0: finite, since neither NaN nor infinity limits
/// anything.
inline CLI::Option* add_limit(CLI::App& app, const std::string& names,
                              std::optional<double>& target, const std::string& description) {
  const auto assign = [&target, names](const std::string& word) {
    double value = 0;
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc() || stop != end || !std::isfinite(value) || value < 0)
      throw CLI::ValidationError(names, text("'", word, "' is no number of at least 0"));
    target = value;
  };
  return app.add_option_function<std::string>(names, assign, description)->type_name("X");
}

/// An option that takes whole numbers from 0 on with commas between them.
inline CLI::Option* add_numbers(CLI::App& app, const std::string& names,
                                std::vector<std::int64_t>& target, const std::string& description) {
  const auto assign = [&target, names](const std::string& list) {
    target.clear();
    const char* at = list.data();
    const char* const end = list.data() + list.size();
    while (true) {
      std::int64_t value = 0;
      const auto [stop, error] = std::from_chars(at, end, value);
      if (error != std::errc() || value < 0 || (stop != end && *stop != ','))
        throw CLI::ValidationError(names,
                                   text("'", list, "' is no list of whole numbers such as 1,2,4"));
      target.push_back(value);
      if (stop == end) return;
      at = stop + 1;
    }
  };
  return app.add_option_function<std::string>(names, assign, description)->type_name("N,...");
}

/// A path that is given and empty, as of a variable of the shell that is not set, means nothing.
inline CLI::Validator not_empty() {
  return {[](std::string& path) { return path.empty() ? "empty, expected a path" : ""; }, ""};
}

/// `alone` contradicts every other option but --help, and `but` where one is named.
inline void exclude_others(CLI::App& app, CLI::Option* alone, const std::string& but = "") {
  for (CLI::Option* other : app.get_options())
    if (other != alone && other != app.get_help_ptr() && (but.empty() || !other->check_name(but)))
      alone->excludes(other);
}

/// The word that `choices` has for `value`.
template <class T, std::size_t n>
const char* word_of(const Word<T> (&choices)[n], T value) {
  for (const Word<T>& choice : choices)
    if (choice.value == value) return choice.word;
  return "";
}

inline constexpr Word<Rounding> roundings[] = {{"hf", Rounding::hf}, {"vllm", Rounding::vllm}};

inline constexpr Word<GdnForm> gdn_forms[] = {{"recurrent", GdnForm::recurrent},
                                              {"chunked", GdnForm::chunked}};

inline constexpr Word<Device> device_words[] = {
    {"cpu", Device::cpu}, {"cuda", Device::cuda}, {"auto", Device::automatic}};

enum class OutputFormat { text, jsonl };
inline constexpr Word<OutputFormat> output_formats[] = {{"text", OutputFormat::text},
                                                        {"jsonl", OutputFormat::jsonl}};

}  // namespace tokenview
