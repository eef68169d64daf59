# SPDX-License-Identifier: Apache-2.0
# Debian packages: cmake --preset package && cmake --build --preset package && cpack --preset package
# makes `tokenview` (the program, its data, man page and completion) and `tokenview-dev` (libraries,
# headers and CMake files).
set(CPACK_PACKAGE_VENDOR "tokenview maintainers")
set(CPACK_PACKAGE_CONTACT "tokenview maintainers <maintainers@tokenview.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)  # asks dpkg-shlibdeps (dpkg-dev, file) what it links
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME tokenview)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME tokenview-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "tokenview (= ${PROJECT_VERSION}), libeigen3-dev, libboost-dev, libfmt-dev, libhdf5-dev, zlib1g-dev")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
    "The program and its golden files. It needs neither a GPU nor a checkpoint.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Libraries, headers and CMake files.")
install(FILES LICENSE RENAME copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tokenview
        COMPONENT runtime)
include(CPack)
