// SPDX-License-Identifier: Apache-2.0
#include "verify/xml_element.hpp"

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <iterator>
#include <sstream>
#include <utility>

#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

using boost::property_tree::ptree;

/// Source: XML 1.0, production 2: no control characters but tab, newline and return, and neither
/// U+FFFE nor U+FFFF.
std::string legal(const std::string& raw) {
  static const std::string replacement = "\xef\xbf\xbd";
  std::string out;
  const bool is_text = is_utf8(raw);
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const auto byte = static_cast<unsigned char>(raw[i]);
    const bool is_control = byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r';
    const bool is_noncharacter =
        raw.compare(i, 3, "\xef\xbf\xbe") == 0 || raw.compare(i, 3, "\xef\xbf\xbf") == 0;
    if (is_control || byte == 0x7f || (!is_text && byte >= 0x80)) {
      out += replacement;
    } else if (is_noncharacter) {
      out += replacement;
      i += 2;
    } else {
      out += raw[i];
    }
  }
  return out;
}

/// White space of an attribute, which a reader takes for blanks unless it is a reference: stands as
/// a control character, which legal() has left none of, until the document is written.
/// Source: XML 1.0, 3.3.3, Attribute-Value Normalization.
constexpr std::pair<char, const char*> references[] = {
    {'\t', "&#9;"}, {'\n', "&#10;"}, {'\r', "&#13;"}};
constexpr char first_stand_in = '\x01';

std::string with_white_space(std::string value) {
  for (char& c : value)
    for (std::size_t i = 0; i < std::size(references); ++i)
      if (c == references[i].first) c = char(first_stand_in + char(i));
  return value;
}

std::string with_references(const std::string& document) {
  std::string out;
  for (const char c : document)
    if (c >= first_stand_in && c < first_stand_in + char(std::size(references)))
      out += references[std::size_t(c - first_stand_in)].second;
    else
      out += c;
  return out;
}

ptree tree_of(const XmlElement& element) {
  ptree tree(legal(element.text));
  ptree attributes;
  for (const auto& [name, value] : element.attributes)
    attributes.push_back({name, ptree(with_white_space(legal(value)))});
  if (!attributes.empty()) tree.push_back({"<xmlattr>", attributes});
  for (const XmlElement& child : element.children) tree.push_back({child.name, tree_of(child)});
  return tree;
}

}  // namespace

std::string xml_document(const XmlElement& root) {
  ptree document;
  document.push_back({root.name, tree_of(root)});
  std::ostringstream out;
  boost::property_tree::write_xml(
      out, document, boost::property_tree::xml_writer_make_settings<std::string>(' ', 1, "utf-8"));
  return with_references(out.str());
}

}  // namespace tokenview
