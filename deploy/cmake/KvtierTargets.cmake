# kvtier_folder(<folder>): a folder that may not exist on a branch yet.
function(kvtier_folder folder)
  if(EXISTS ${CMAKE_SOURCE_DIR}/${folder}/CMakeLists.txt)
    add_subdirectory(${folder})
  endif()
endfunction()

# kvtier_library(<name> SOURCES ... DEPS ...): one static library, its folder's own sources, includes from the root.
function(kvtier_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${name} ${scope} ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} ${scope} ${ARG_DEPS})
endfunction()

# kvtier_test(<name> SOURCES ... DEPS ...): one GoogleTest program; every test of it is a ctest test.
function(kvtier_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} kvtier_test_paths GTest::gmock GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  include(GoogleTest)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# Debian's, which has Debian's pytest and numpy; the one on PATH may be another build.
find_program(KVTIER_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH REQUIRED)

# kvtier_pytest(<name> <file or folder>... [TIMEOUT s] [LABELS ...]): one ctest test. Tests that skip themselves say why, and
# tests/run.sh prints it.
function(kvtier_pytest name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND ${KVTIER_PYTHON} -B -m pytest -q -rs -p no:cacheprovider ${ARG_UNPARSED_ARGUMENTS}
           WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
                                          ENVIRONMENT "KVTIER_BUILD=${CMAKE_BINARY_DIR}")
endfunction()
