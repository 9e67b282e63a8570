#pragma once

#include <string>

namespace kvtier {

/// Absolute path of tests/data.
std::string TestDataFolder();
/// Absolute path of the build's programs.
std::string ProgramFolder();

}  // namespace kvtier
