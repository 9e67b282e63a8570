#pragma once

#include <string>
#include <vector>

namespace kvtier::bench {

struct Field {
  const char* name;
  std::string value;
};

/// Processor, cores, memory, kernel, compiler, build type and version: what a figure means nothing without.
std::vector<Field> DescribeMachine();

}  // namespace kvtier::bench
