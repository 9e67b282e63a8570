#pragma once

#include <string>
#include <vector>

#include "tests/gpu/batch_machine.h"

namespace kvtier {

/// What was checked and what did not hold.
struct Conformance {
  int checks = 0;
  std::vector<std::string> failures;

  void Check(bool holds, const std::string& what) {
    ++checks;
    if (!holds) failures.push_back(what);
  }
};

/// Golden blocks of tests/data through every batch, byte for byte: encode from pages, requantize, cut,
/// decode.
void CheckGolden(BatchMachine& machine, const std::string& data_folder, Conformance& out);
/// Shapes, types and layouts of every temper in one batch, against the bodies that are the specification.
void CheckShapes(BatchMachine& machine, Conformance& out);
/// Attention over blocks of several precisions, against fp64 on what they decode to.
void CheckAttention(BatchMachine& machine, Conformance& out);
/// One small block of each kind, encoded, decoded and attended to: what slow lanes can afford.
void CheckShortSequence(BatchMachine& machine, Conformance& out);

}  // namespace kvtier
