// SPDX-License-Identifier: Apache-2.0
// Pages of docs/ that the program writes, and code that they quote, are what the program and the
// code are.
#include <nlohmann/json.hpp>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/coverage.hpp"
#include "verify/protocol_page.hpp"
#include "verify/scenario.hpp"
#include "verify/scenario_schema.hpp"

namespace tokenview {
namespace {

const std::string root = TOKENVIEW_SOURCE_DIR "/";

/// The blocks of a Markdown page between ```language and ```.
std::vector<std::string> code_blocks(const std::string& page, const std::string& language) {
  std::vector<std::string> blocks;
  const std::string open = "\n```" + language + "\n";
  for (std::size_t at = page.find(open); at != std::string::npos; at = page.find(open, at)) {
    at += open.size();
    blocks.push_back(page.substr(at, page.find("\n```", at) + 1 - at));
  }
  return blocks;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_page_of_protocols_is_the_one_that_the_program_writes) {
  BOOST_TEST((read_bytes(root + "docs/protocols.md") == protocol_page()),
             "docs/protocols.md is stale: tokenview --generate protocols > docs/protocols.md");
}

BOOST_AUTO_TEST_CASE(the_coverage_of_the_catalogue_is_the_one_that_the_program_writes) {
  const Coverage coverage =
      coverage_of(read_scenarios(root + "data/scenarios"), root + "data/coverage.json");
  BOOST_TEST((read_bytes(root + "docs/coverage.md") == coverage.page),
             "docs/coverage.md is stale: tokenview repro --coverage > docs/coverage.md");
  BOOST_TEST(coverage.in_scope == 77);
  BOOST_TEST(coverage.told >= 66);
  BOOST_TEST(coverage.places >= 35);
}

BOOST_AUTO_TEST_CASE(an_entry_is_either_told_or_explained) {
  const TemporaryFolder folder;
  const auto scenarios = read_scenarios(root + "data/scenarios");
  nlohmann::json catalogue = nlohmann::json::parse(read_bytes(root + "data/coverage.json"));
  const auto refusal = [&](const nlohmann::json& changed) -> std::string {
    write_bytes(folder.file("c.json"), changed.dump());
    try {
      coverage_of(scenarios, folder.file("c.json"));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  BOOST_TEST(refusal(catalogue) == "");
  nlohmann::json unexplained = catalogue;
  unexplained["missing"].erase("B042");
  BOOST_TEST(refusal(unexplained).find("B042") != std::string::npos);
  nlohmann::json both = catalogue;
  both["missing"]["B006"] = "nothing";
  BOOST_TEST(refusal(both).find("vllm-48429 tells it") != std::string::npos);
  nlohmann::json unknown = catalogue;
  unknown["entries"].erase("B006");
  BOOST_TEST(refusal(unknown).find("no B006") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_schema_of_scenarios_is_the_one_that_the_program_writes) {
  BOOST_TEST((read_bytes(root + "docs/scenario-schema.json") == scenario_schema()),
             "docs/scenario-schema.json is stale: tokenview --generate scenario-schema");
}

/// A value of no type that a scenario takes is refused as one, not as an unknown key.
BOOST_AUTO_TEST_CASE(every_key_of_the_schema_is_read) {
  const nlohmann::json schema = nlohmann::json::parse(scenario_schema());
  const TemporaryFolder folder;
  const auto refusal = [&](const nlohmann::json& scenario) -> std::string {
    write_bytes(folder.file("s.json"), scenario.dump());
    try {
      read_scenario(folder.file("s.json"));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const nlohmann::json good =
      nlohmann::json::parse(read_bytes(root + "data/scenarios/vllm-48429.json"));
  BOOST_TEST(refusal(good) == "");
  std::size_t keys = 0;
  const auto each_key = [&](const nlohmann::json& object, const auto& wrong_at) {
    for (const auto& [key, unused] : object.at("properties").items()) {
      const std::string problem = refusal(wrong_at(key));
      BOOST_TEST(problem.find("no such key") == std::string::npos, problem);
      BOOST_TEST(problem.find(key) != std::string::npos, key + ": " + problem);
      ++keys;
    }
  };
  const nlohmann::json wrong = nlohmann::json::parse("[{}]");
  const auto with = [&](const std::string& path) {
    return [&good, &wrong, path](const std::string& key) {
      nlohmann::json scenario = good;
      scenario[nlohmann::json::json_pointer(path + "/" + key)] = wrong;
      return scenario;
    };
  };
  each_key(schema, with(""));
  const nlohmann::json& properties = schema.at("properties");
  for (const char* section : {"expect", "repair", "runner"})
    each_key(properties.at(section), with(std::string("/") + section));
  each_key(schema.at("$defs").at("parallel"), with("/parallel"));
  each_key(schema.at("$defs").at("plan"), with("/plan"));
  const auto in_list = [&](const char* list, const nlohmann::json& valid) {
    return [&good, &wrong, list, valid](const std::string& key) {
      nlohmann::json scenario = good;
      scenario[list] = nlohmann::json::array({valid});
      scenario[list][0][key] = wrong;
      return scenario;
    };
  };
  each_key(schema.at("$defs").at("fault"),
           in_list("faults", {{"act", "drop"}, {"op", "all_gather"}}));
  each_key(properties.at("blind").at("items"),
           in_list("blind", {{"checks", nlohmann::json::array({"any"})}}));
  each_key(properties.at("weights").at("items"), in_list("weights", {{"at", "*"}}));
  BOOST_TEST(keys > 60u);
  const std::string unknown = refusal(with("")("unheard"));
  BOOST_TEST(unknown.find("no such key") != std::string::npos, unknown);
}

BOOST_AUTO_TEST_CASE(the_example_of_an_own_protocol_is_quoted_from_its_files) {
  std::string sources;
  for (const char* file : {"late_norm.hpp", "own_protocol.cpp", "CMakeLists.txt"})
    sources += read_bytes(root + "tests/consumer/" + file);
  const std::string page = read_bytes(root + "docs/your-own-protocol.md");
  std::size_t blocks = 0;
  for (const char* language : {"cpp", "cmake", "text"})
    for (std::string block : code_blocks(page, language)) {
      if (std::string(language) == "text") block = '"' + block.substr(0, block.size() - 1) + '"';
      BOOST_TEST((sources.find(block) != std::string::npos), "not in tests/consumer: " + block);
      ++blocks;
    }
  BOOST_TEST(blocks >= 8u);
}

}  // namespace tokenview
