# SPDX-License-Identifier: Apache-2.0
# cmake --install: the program, the libraries with their headers, the data, and what
# find_package(tokenview) needs.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tokenview")
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)  # `runtime` is said where it is meant

get_property(libraries GLOBAL PROPERTY TOKENVIEW_LIBRARIES)
install(TARGETS ${libraries} EXPORT tokenview)

install(TARGETS tokenview_cli COMPONENT runtime)
# The man page and the completion of bash, written by the program from its own options.
add_custom_command(OUTPUT tokenview.1 tokenview.bash
  COMMAND tokenview_cli --generate man > tokenview.1
  COMMAND tokenview_cli --generate bash-completion > tokenview.bash
  DEPENDS tokenview_cli COMMENT "Writing the man page and the bash completion" VERBATIM)
add_custom_target(tokenview_pages ALL DEPENDS tokenview.1 tokenview.bash)
install(FILES "${PROJECT_BINARY_DIR}/tokenview.1" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
        COMPONENT runtime)
install(FILES "${PROJECT_BINARY_DIR}/tokenview.bash"
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME tokenview
        COMPONENT runtime)

install(EXPORT tokenview NAMESPACE tokenview:: FILE tokenviewTargets.cmake
        DESTINATION ${package_dir})
foreach(folder IN ITEMS reference comm_sim device verify)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tokenview
          FILES_MATCHING PATTERN "*.hpp")
endforeach()
install(DIRECTORY data/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tokenview COMPONENT runtime OPTIONAL)

configure_package_config_file(cmake/tokenviewConfig.cmake.in tokenviewConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(tokenviewConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tokenviewConfig.cmake"
              "${PROJECT_BINARY_DIR}/tokenviewConfigVersion.cmake"
              cmake/FindNCCL.cmake
              cmake/tokenview_boost.cmake
        DESTINATION ${package_dir})
