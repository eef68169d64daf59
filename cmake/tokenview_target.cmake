# SPDX-License-Identifier: Apache-2.0

# Flags that every target of ours compiles with; never exported to users of the libraries.
# CMake 3.25 knows no C++20 for nvcc and drops CMAKE_CUDA_STANDARD 20 silently: it is passed here.
add_library(tokenview_flags INTERFACE)
target_compile_features(tokenview_flags INTERFACE cxx_std_20)
target_compile_options(tokenview_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion>
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --extended-lambda -Xcompiler=-Wall,-Wextra>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-O3 -g1>)
if(march_flag)
  target_compile_options(tokenview_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${march_flag}>)
endif()
if(NOT OpenMP_CXX_FOUND)  # the pragmas mean nothing, and what only they read is unused
  target_compile_options(tokenview_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas -Wno-unused-variable>)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")  # -Wconversion means the same as for g++
  target_compile_options(tokenview_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-sign-conversion>)
endif()
# False positives of g++ 12: operator+ of std::string at -O3 (bug 105651), and the intrinsics of
# AVX-512, which initialise a variable with itself (bug 105593); of all versions: moving a
# std::variant that holds another alternative (bug 80635).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(off -Wno-psabi)  # no vector crosses a library's border
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(PREPEND off -Wno-restrict)
    if(TOKENVIEW_ISA MATCHES "AVX-512")
      list(APPEND off -Wno-uninitialized)
    endif()
  endif()
  list(APPEND off -Wno-maybe-uninitialized)
  target_compile_options(tokenview_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${off}>")
endif()
if(TOKENVIEW_SANITIZE)
  target_compile_options(tokenview_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-O1 -fsanitize=${TOKENVIEW_SANITIZE} -fno-sanitize-recover=all
                              -fno-omit-frame-pointer>)
  target_link_options(tokenview_flags INTERFACE -fsanitize=${TOKENVIEW_SANITIZE})
endif()
if(TOKENVIEW_FUZZ)
  target_compile_options(tokenview_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

if(TOKENVIEW_CLANG_TIDY)
  find_program(TOKENVIEW_CLANG_TIDY_PROGRAM
               NAMES clang-tidy-19 clang-tidy-18 clang-tidy-17 clang-tidy-16 REQUIRED)
  set(CMAKE_CXX_CLANG_TIDY "${TOKENVIEW_CLANG_TIDY_PROGRAM}")
endif()

# tokenview_library(name [SOURCES ...] [LINK ...] [LINK_PRIVATE ...]): one folder, one library,
# alias tokenview::name. Without SOURCES it is header-only, and LINK_PRIVATE has no meaning yet.
function(tokenview_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK;LINK_PRIVATE")
  set(target tokenview_${name})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES})
    target_link_libraries(${target}
      PUBLIC ${arg_LINK} PRIVATE $<BUILD_INTERFACE:tokenview_flags> ${arg_LINK_PRIVATE})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${arg_LINK})
    set(scope INTERFACE)
  endif()
  add_library(tokenview::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name} CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tokenview>)
  set_property(GLOBAL APPEND PROPERTY TOKENVIEW_LIBRARIES ${target})
endfunction()

# tokenview_program(target SOURCES ... LINK ...): an executable in the top of the build folder.
function(tokenview_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE ${arg_LINK} tokenview_flags)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
endfunction()

# tokenview_test(name [LINK ...] [LABELS ...] [TIMEOUT seconds]): tests/test_<name>.cpp is one
# program and one ctest entry. A program that exits with 77 is reported as skipped, and a hang ends
# as a failure after TIMEOUT seconds (60). Instead of building it, SKIP "reason" makes an entry that
# ctest reports as skipped.
function(tokenview_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;SKIP" "LINK;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(arg_SKIP)
    message(STATUS "test ${name} is left out: ${arg_SKIP}")
    add_test(NAME ${name} COMMAND sh -c "echo 'skipped: ${arg_SKIP}'; exit 77")
  else()
    add_executable(test_${name} test_${name}.cpp)
    target_link_libraries(test_${name} PRIVATE ${arg_LINK} tokenview_boost_test tokenview_flags)
    target_compile_definitions(test_${name} PRIVATE TOKENVIEW_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    # Compiles in three fifths of the time of -O3; the code under test keeps its flags.
    target_compile_options(test_${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
    set_target_properties(test_${name} PROPERTIES CXX_EXTENSIONS OFF)
    add_test(NAME ${name} COMMAND test_${name} --report_level=short --color_output=no)
  endif()
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT_MODIFICATION "TOKENVIEW_DATA=unset:"  # tests name their own
    TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${arg_LABELS}")
endfunction()

# tokenview_property_test(name ...): a tokenview_test() with RapidCheck.
function(tokenview_property_test name)
  if(TARGET rapidcheck)
    tokenview_test(${name} ${ARGN})
    target_link_libraries(test_${name} PRIVATE rapidcheck)
  else()
    tokenview_test(${name} ${ARGN} SKIP "RapidCheck is not installed")
  endif()
endfunction()

# tokenview_fuzzer(name [LINK ...]): tests/fuzz_<name>.cpp with LLVMFuzzerTestOneInput, a program
# fuzz_<name> that ctest runs for a few seconds.
function(tokenview_fuzzer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK")
  add_executable(fuzz_${name} fuzz_${name}.cpp)
  target_link_libraries(fuzz_${name} PRIVATE ${arg_LINK} tokenview_flags)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  add_test(NAME fuzz_${name} COMMAND fuzz_${name} -max_total_time=10 -timeout=5 -rss_limit_mb=1024)
  set_tests_properties(fuzz_${name} PROPERTIES TIMEOUT 60 LABELS fuzz)
endfunction()
