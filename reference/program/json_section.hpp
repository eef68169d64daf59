// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tokenview {

/// One object of a JSON document that came from elsewhere, read key by key. Remembers which keys
/// were read. Every refusal is a ConfigError "source: path.key: is value, expected ...". Refers to
/// the document and to the source's name: both must outlive it.
class JsonSection {
 public:
  /// `path` is "" for the outermost object, else "outer.inner.".
  JsonSection(const nlohmann::json& object, std::string path, const std::string& source);

  [[noreturn]] void refuse(const std::string& key, const std::string& found,
                           const std::string& expected) const;

  /// Whether `key` is there and not null. Does not count as reading it.
  bool has(const std::string& key) const;

  /// The value of `key`, or nullptr when it is absent.
  const nlohmann::json* find(const std::string& key);

  /// The value of `key`, or nullptr when it is absent or null.
  const nlohmann::json* find_set(const std::string& key);

  /// The value of `key`, which has no default.
  const nlohmann::json& required(const std::string& key);

  std::int64_t integer(const std::string& key);
  std::int64_t integer(const std::string& key, std::int64_t otherwise);
  double number(const std::string& key, double otherwise);
  bool boolean(const std::string& key, bool otherwise);

  /// A list of integers; empty when the key is absent or null.
  std::vector<std::int64_t> integers(const std::string& key);

  /// The object under `key`; nothing when it is absent or null.
  std::optional<JsonSection> section(const std::string& key);

  /// A value that must have this type; `key` names it in the error.
  std::int64_t to_integer(const std::string& key, const nlohmann::json& value) const;
  const std::string& to_string(const std::string& key, const nlohmann::json& value) const;
  const nlohmann::json& to_array(const std::string& key, const nlohmann::json& value) const;

  /// Refuses a switch in the position that the program has no arithmetic for. Absent means `only`.
  void require_switch(const std::string& key, bool only);

  /// Refuses a name that the program has no arithmetic for. Absent and null are fine.
  void require_name(const std::string& key, const std::vector<std::string>& known);

  /// Counts keys, separated by spaces, as read.
  void know(std::string_view keys);

  /// Adds the path of `key` to `ignored`.
  void ignore(const std::string& key, std::vector<std::string>& ignored) const;

  /// Adds the paths of all keys that were never read to `ignored`.
  void ignore_unread(std::vector<std::string>& ignored) const;

  const nlohmann::json& object() const { return *object_; }
  const std::string& source() const { return *source_; }

 private:
  const nlohmann::json* object_;
  std::string path_;
  const std::string* source_;
  std::set<std::string> read_;
};

}  // namespace tokenview
