#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvtier::eval {

/// Something that a context says once and a question asks for.
struct Fact {
  std::string statement;
  std::string question;  ///< as text that the answer continues
  std::string answer;
};

inline constexpr uint32_t kFactsMax = 24;
/// `count` facts that differ in little but their answers, others for every `number`; count <= kFactsMax.
std::vector<Fact> MakeFacts(uint32_t count, uint32_t number);

/// `filler` with the facts spread evenly through it, exactly `tokens` long. Both in tokens; filler is long
/// enough.
std::vector<int32_t> HideFacts(const std::vector<int32_t>& filler,
                               const std::vector<std::vector<int32_t>>& statements, size_t tokens);

}  // namespace kvtier::eval
