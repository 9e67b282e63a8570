# header_check: one source for each header of the tree, which includes it and nothing else.
set(folders client codecs daemon kernels monitoring proto tests tiers)
list(TRANSFORM folders PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE patterns)
list(TRANSFORM patterns APPEND /*.h)
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${patterns})

set(sources)
foreach(header ${headers})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/header_check/${header}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
  list(APPEND sources ${source})
  # Those are for vectors: alone they are checked for the first instruction set that has enough.
  if(header MATCHES "-inl\\.h$" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -march=haswell)
  endif()
endforeach()

add_library(header_check OBJECT EXCLUDE_FROM_ALL ${sources})
target_include_directories(header_check PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/client/include
                                                ${CMAKE_SOURCE_DIR}/tests/support/fake_cuda/include)
target_compile_options(header_check PRIVATE -O0 -g0 -Wno-unused-function)
target_link_libraries(header_check PRIVATE kvtier_proto PkgConfig::uring PkgConfig::isal OpenSSL::Crypto RocksDB::rocksdb
                                           prometheus-cpp::core prometheus-cpp::pull GTest::gmock)

kvtier_lint(headers ${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR} --target header_check)
set_tests_properties(lint.headers PROPERTIES TIMEOUT 900)
