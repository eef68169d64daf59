// SPDX-License-Identifier: Apache-2.0
#include <device/device_info.hpp>
#include <iostream>
#include <reference/program/config.hpp>
#include <reference/program/error.hpp>

int main() {
  std::string reason;
  std::cout << tokenview::devices(reason).size() << " GPUs " << reason << "\n";
  tokenview::ModelConfig config;
  config.vocab_size = -1;
  try {
    tokenview::validate(config);
  } catch (const tokenview::ConfigError& error) {
    std::cout << "refused: " << error.what() << "\n";
    return 0;
  }
  return 1;
}
