# SPDX-License-Identifier: Apache-2.0
# cmake -DIN=... -DOUT=... -DSOURCE_DIR=... -P write_version.cmake: fills in the commit.
set(TOKENVIEW_COMMIT unknown)
set(ENV{GIT_OPTIONAL_LOCKS} 0)  # a build changes nothing in the work tree
find_program(git git)
if(git AND EXISTS "${SOURCE_DIR}/.git")  # not the repository that a copy lies in
  execute_process(COMMAND ${git} rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE_DIR}
                  RESULT_VARIABLE status OUTPUT_VARIABLE commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(status EQUAL 0)
    set(TOKENVIEW_COMMIT "${commit}")
    execute_process(COMMAND ${git} status --porcelain --untracked-files=no
                    WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND TOKENVIEW_COMMIT "-dirty")
    endif()
  endif()
endif()
configure_file(${IN} ${OUT} @ONLY)  # writes when the content differs only
