# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=... -DHEADER=... -DFILES=a.html,b.css -P embed_files.cmake: a source that defines, for
# each file page.html, `const std::string_view report_page_html` in namespace tokenview.
set(content "// Made by embed_files.cmake.\n#include \"${HEADER}\"\n\nnamespace tokenview {\n")
string(REPLACE "," ";" FILES "${FILES}")
foreach(file IN LISTS FILES)
  get_filename_component(name "${file}" NAME)
  string(MAKE_C_IDENTIFIER "report_${name}" name)
  file(READ "${file}" bytes HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND content "static constexpr char ${name}_bytes[] = {${bytes}};\n"
                        "const std::string_view ${name}(${name}_bytes, sizeof ${name}_bytes);\n")
endforeach()
file(WRITE "${OUT}" "${content}}  // namespace tokenview\n")
