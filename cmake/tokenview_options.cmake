# SPDX-License-Identifier: Apache-2.0
# Every option of the build. A part that is AUTO is used where it is found; ON makes its absence an
# error that names the missing piece; OFF leaves it out.

function(tokenview_auto_option name doc)
  set(${name} AUTO CACHE STRING "${doc}: AUTO, ON or OFF")
  set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
  if(NOT "${${name}}" MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${name} is \"${${name}}\", expected AUTO, ON or OFF")
  endif()
endfunction()

tokenview_auto_option(TOKENVIEW_CUDA "Build the kernels of device/ with nvcc")
tokenview_auto_option(TOKENVIEW_NCCL "Communicate between GPUs through NCCL")
tokenview_auto_option(TOKENVIEW_MPI "Start device ranks with MPI")
tokenview_auto_option(TOKENVIEW_OPENMP "Compute on several threads with OpenMP")
tokenview_auto_option(TOKENVIEW_BOOST_CONTEXT "Switch ranks with Boost.Context instead of ucontext")
tokenview_auto_option(TOKENVIEW_RAPIDCHECK "Build the property tests")

option(TOKENVIEW_TESTS "Build tests/" ${PROJECT_IS_TOP_LEVEL})
option(TOKENVIEW_BOOST_HEADERS_ONLY "Use no compiled Boost library" OFF)
option(TOKENVIEW_CCACHE "Compile through ccache where it is installed" ${PROJECT_IS_TOP_LEVEL})
option(TOKENVIEW_FUZZ "Build the libFuzzer targets (clang)" OFF)
option(TOKENVIEW_CLANG_TIDY "Run clang-tidy on every source" OFF)
set(TOKENVIEW_SANITIZE "" CACHE STRING "Sanitizers of every target: address,undefined or thread")

if(PROJECT_IS_TOP_LEVEL)
  set(march native)
else()
  set(march "")
endif()
set(TOKENVIEW_MARCH "${march}" CACHE STRING "The -march= of our targets; empty: the compiler's own")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Debug, RelWithDebInfo or Release" FORCE)
endif()
