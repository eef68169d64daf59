# SPDX-License-Identifier: Apache-2.0
# Boost, compiled or as headers only. Also installed, for users of the package.

# Makes Boost::headers; Boost::context and Boost::unit_test_framework where their libraries are
# there and TOKENVIEW_BOOST_HEADERS_ONLY is not set. Sets TOKENVIEW_BOOST_VERSION.
macro(tokenview_find_boost)
  if(TOKENVIEW_BOOST_HEADERS_ONLY)
    find_package(Boost 1.74 CONFIG QUIET)
  else()
    find_package(Boost 1.74 CONFIG QUIET OPTIONAL_COMPONENTS context unit_test_framework)
  endif()
  if(TARGET Boost::headers)
    set(TOKENVIEW_BOOST_VERSION "${Boost_VERSION}")
  else()  # headers without Boost's CMake files
    find_path(TOKENVIEW_BOOST_INCLUDE_DIR boost/version.hpp)
    mark_as_advanced(TOKENVIEW_BOOST_INCLUDE_DIR)
    if(NOT TOKENVIEW_BOOST_INCLUDE_DIR)
      message(FATAL_ERROR "Boost is missing: install libboost-dev, libboost-test-dev and "
                          "libboost-context-dev")
    endif()
    file(STRINGS "${TOKENVIEW_BOOST_INCLUDE_DIR}/boost/version.hpp" TOKENVIEW_BOOST_VERSION
         REGEX "define BOOST_LIB_VERSION")
    string(REGEX REPLACE ".*\"([0-9_]+)\".*" "\\1" TOKENVIEW_BOOST_VERSION
           "${TOKENVIEW_BOOST_VERSION}")
    string(REPLACE "_" "." TOKENVIEW_BOOST_VERSION "${TOKENVIEW_BOOST_VERSION}")
    add_library(Boost::headers INTERFACE IMPORTED)
    set_target_properties(Boost::headers PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${TOKENVIEW_BOOST_INCLUDE_DIR}")
  endif()
endmacro()
