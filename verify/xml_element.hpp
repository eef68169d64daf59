// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace tokenview {

/// An element of XML: attributes in order, then text, then children.
struct XmlElement {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes = {};
  std::string text = {};
  std::vector<XmlElement> children = {};
};

/// The document in UTF-8. Names are of the program and legal; characters that XML 1.0 does not have
/// become U+FFFD.
std::string xml_document(const XmlElement& root);

}  // namespace tokenview
