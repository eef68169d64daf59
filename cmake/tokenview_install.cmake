# SPDX-License-Identifier: Apache-2.0
# cmake --install: the program, the libraries with their headers, the data, and what
# find_package(tokenview) needs.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tokenview")

get_property(libraries GLOBAL PROPERTY TOKENVIEW_LIBRARIES)
install(TARGETS ${libraries} EXPORT tokenview)
if(TARGET tokenview_cli)
  install(TARGETS tokenview_cli)
endif()
install(EXPORT tokenview NAMESPACE tokenview:: FILE tokenviewTargets.cmake
        DESTINATION ${package_dir})
foreach(folder IN ITEMS reference comm_sim device verify)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tokenview
          FILES_MATCHING PATTERN "*.hpp")
endforeach()
install(DIRECTORY data/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tokenview OPTIONAL)

configure_package_config_file(cmake/tokenviewConfig.cmake.in tokenviewConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(tokenviewConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tokenviewConfig.cmake"
              "${PROJECT_BINARY_DIR}/tokenviewConfigVersion.cmake"
              cmake/FindNCCL.cmake
              cmake/tokenview_boost.cmake
        DESTINATION ${package_dir})
