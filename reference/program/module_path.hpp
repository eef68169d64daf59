// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tokenview {

/// Where in the model a rank is: `model.layers.3.self_attn`. Names are the checkpoint's. Entering a
/// module costs a push; the text is made only when somebody asks for it.
class ModulePath {
 public:
  ModulePath() { modules_.reserve(8); }  // no path of the program is deeper
  void push(const char* name, std::int64_t index = -1) { modules_.push_back({name, index}); }
  void pop() { modules_.pop_back(); }

  /// The dotted path, with `leaf` appended when it is not empty.
  std::string str(const char* leaf = "") const {
    std::string path;
    for (const Module& module : modules_) {
      if (!path.empty()) path += '.';
      path += module.name;
      if (module.index >= 0) path += '.' + std::to_string(module.index);
    }
    if (*leaf != '\0') {
      if (!path.empty()) path += '.';
      path += leaf;
    }
    return path;
  }

 private:
  struct Module {
    const char* name;  // a literal
    std::int64_t index;
  };
  std::vector<Module> modules_;
};

}  // namespace tokenview
