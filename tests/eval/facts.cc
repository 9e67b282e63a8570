#include "tests/eval/facts.h"

#include <algorithm>
#include <cstddef>
#include <random>

#include "tiers/base/check.h"

namespace kvtier::eval {

std::vector<Fact> MakeFacts(uint32_t count, uint32_t number) {
  constexpr const char* kPlaces[] = {"gate", "tower", "cellar", "harbour", "library", "workshop"};
  constexpr const char* kSides[] = {"north", "south", "east", "west"};
  static_assert(std::size(kPlaces) * std::size(kSides) == kFactsMax);
  KVTIER_CHECK(count <= kFactsMax);
  std::mt19937 rng(number);
  std::vector<std::string> names;
  for (const char* side : kSides)
    for (const char* place : kPlaces) names.push_back(std::string(side) + " " + place);
  // Not std::shuffle, which differs between standard libraries.
  for (size_t i = names.size(); i > 1; --i) std::swap(names[i - 1], names[rng() % i]);
  std::vector<Fact> facts;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string start = "The access code of the " + names[i] + " is";
    std::string answer = " ";
    answer += std::to_string(10'000 + rng() % 90'000);
    facts.push_back(
        {.statement = "\n\n" + start + answer + ".\n\n",
         .question = "\n\nQuestion: What is the access code of the " + names[i] + "?\nAnswer: " + start,
         .answer = answer});
  }
  return facts;
}

std::vector<int32_t> HideFacts(const std::vector<int32_t>& filler,
                               const std::vector<std::vector<int32_t>>& statements, size_t tokens) {
  size_t said = 0;
  for (const std::vector<int32_t>& statement : statements) said += statement.size();
  KVTIER_CHECK(said < tokens && filler.size() >= tokens - said);
  const size_t from_filler = tokens - said, parts = statements.size() + 1;
  std::vector<int32_t> context;
  size_t used = 0;
  for (size_t part = 0; part < parts; ++part) {
    const size_t end = from_filler * (part + 1) / parts;
    context.insert(context.end(), filler.begin() + static_cast<ptrdiff_t>(used),
                   filler.begin() + static_cast<ptrdiff_t>(end));
    used = end;
    if (part < statements.size())
      context.insert(context.end(), statements[part].begin(), statements[part].end());
  }
  KVTIER_CHECK(context.size() == tokens);
  return context;
}

}  // namespace kvtier::eval
