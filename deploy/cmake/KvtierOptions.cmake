option(KVTIER_TESTS "Build the tests and benchmarks" ON)
option(KVTIER_GRPC "Build what needs gRPC: daemon, client, tools (off for TSan, which gRPC's Debian build does not suit)" ON)
set(KVTIER_SANITIZE "" CACHE STRING "Sanitizers: empty, 'address,undefined' or 'thread'")
set(KVTIER_CUDA "AUTO" CACHE STRING "Compile the CUDA kernels: AUTO (when nvcc is found), ON or OFF")

set(KVTIER_LLAMACPP "" CACHE PATH "Folder of llama.cpp's include and lib (deploy/fetch-llamacpp.sh): builds the engine on it")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(KVTIER_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")  # twice as fast to compile; line numbers are all a report needs
else()
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
endif()

find_program(KVTIER_CCACHE ccache)
if(KVTIER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths relative to the clone, so that another clone of the same sources hits.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
                                  ${KVTIER_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# Bytes must match between machines: no contraction of a*b+c, no fast-math anywhere.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra> $<$<COMPILE_LANGUAGE:CXX>:-Werror>
                    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(KVTIER_SANITIZE)
  add_compile_options(-fsanitize=${KVTIER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KVTIER_SANITIZE})
endif()
