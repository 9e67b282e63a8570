#include "tests/support/paths.h"

namespace kvtier {

std::string TestDataFolder() {
  return KVTIER_TEST_DATA;
}

std::string ProgramFolder() {
  return KVTIER_BIN_DIR;
}

}  // namespace kvtier
