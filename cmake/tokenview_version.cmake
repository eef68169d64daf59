# SPDX-License-Identifier: Apache-2.0
# Makes tokenview_version.hpp: a source includes it as "tokenview_version.hpp", and its target calls
# tokenview_use_version(). Everything but the commit is known when the build is configured; the
# commit is looked up by every build, and the header is touched when it has changed only.
set(TOKENVIEW_COMMIT "@TOKENVIEW_COMMIT@")
set(TOKENVIEW_PARTS "")
foreach(row IN LISTS TOKENVIEW_TABLE)
  string(REGEX MATCH "^([^=]*)=(.*)$" row "${row}")
  string(APPEND TOKENVIEW_PARTS "    {\"${CMAKE_MATCH_1}\", \"${CMAKE_MATCH_2}\"},\n")
endforeach()
configure_file(cmake/version.hpp.in generated/version.hpp.in @ONLY)

set(arguments -DIN=${PROJECT_BINARY_DIR}/generated/version.hpp.in
              -DOUT=${PROJECT_BINARY_DIR}/generated/include/tokenview_version.hpp
              -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
              -P ${PROJECT_SOURCE_DIR}/cmake/write_version.cmake)
add_custom_target(tokenview_version
  COMMAND ${CMAKE_COMMAND} ${arguments}
  BYPRODUCTS ${PROJECT_BINARY_DIR}/generated/include/tokenview_version.hpp
  COMMENT "Looking up the commit" VERBATIM)

function(tokenview_use_version target)
  add_dependencies(${target} tokenview_version)
  target_include_directories(${target} PRIVATE "${PROJECT_BINARY_DIR}/generated/include")
endfunction()
