#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/paths.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

using Bytes = FuzzTarget::Bytes;
using Random = std::mt19937;

constexpr uint8_t kTelling[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0x7c, 0xfc, 0x7e, 0xf7, 0xf8};
constexpr size_t kMaxPiece = 256;

std::byte RandomByte(Random& random) {
  return static_cast<std::byte>(random() % 2 == 0 ? random() : kTelling[random() % std::size(kTelling)]);
}

/// Where headers are more often than where they are not.
size_t RandomPlace(const Bytes& input, Random& random) {
  const size_t limit = random() % 4 == 0 ? std::min<size_t>(input.size(), 350) : input.size();
  return random() % limit;
}

struct Piece {
  size_t begin, bytes;
};
Piece RandomPiece(size_t size, Random& random) {
  const size_t begin = random() % size;
  return {begin, std::min(size_t{1} + random() % kMaxPiece, size - begin)};
}

void Insert(Bytes& input, size_t at, std::span<const std::byte> bytes) {
  const Bytes copy(bytes.begin(), bytes.end());  // it may be a piece of the input
  input.insert(input.begin() + static_cast<ptrdiff_t>(at), copy.begin(), copy.end());
}

void AddToNumber(Bytes& input, Random& random) {
  const size_t bytes = std::min<size_t>(size_t{1} << random() % 4, input.size());
  const size_t at = random() % (input.size() - bytes + 1);
  uint64_t value = 0;
  std::copy_n(input.begin() + static_cast<ptrdiff_t>(at), bytes,
              std::as_writable_bytes(std::span(&value, 1)).begin());
  value += random() % 33 - 16;
  std::copy_n(std::as_bytes(std::span(&value, 1)).begin(), bytes, input.begin() + static_cast<ptrdiff_t>(at));
}

void Change(Bytes& input, std::span<const Bytes> others, Random& random) {
  if (input.empty()) input.push_back(RandomByte(random));
  const uint32_t kind = random() % 16;
  const Piece piece = RandomPiece(input.size(), random);
  const auto begin = input.begin() + static_cast<ptrdiff_t>(piece.begin);
  if (kind < 6) {
    input[RandomPlace(input, random)] = RandomByte(random);
  } else if (kind < 8) {
    input[RandomPlace(input, random)] ^= std::byte{1} << random() % 8;
  } else if (kind < 10) {
    AddToNumber(input, random);
  } else if (kind == 10) {
    std::fill_n(begin, piece.bytes, RandomByte(random));
  } else if (kind == 11) {
    input.erase(begin, begin + static_cast<ptrdiff_t>(piece.bytes));
  } else if (kind == 12) {
    Insert(input, random() % (input.size() + 1), std::span(input).subspan(piece.begin, piece.bytes));
  } else if (kind < 15) {
    const Bytes& other = others[random() % others.size()];
    if (other.empty()) return;
    const Piece taken = RandomPiece(other.size(), random);
    Insert(input, random() % (input.size() + 1), std::span(other).subspan(taken.begin, taken.bytes));
  } else {
    input.resize(random() % input.size() + 1);
  }
}

/// Files that made a defect show, and others worth keeping.
std::vector<Bytes> KeptInputs(std::string_view target) {
  std::vector<Bytes> inputs;
  const std::filesystem::path folder = TestDataFolder() + "/../fuzz/corpus/" + std::string(target);
  if (!std::filesystem::exists(folder)) return inputs;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::ranges::sort(files);
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    KVTIER_CHECK(file.good());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    inputs.emplace_back(bytes.begin(), bytes.end());
  }
  return inputs;
}

}  // namespace

void Mutate(Bytes& input, std::span<const Bytes> others, Random& random) {
  for (uint32_t changes = 1 + random() % 4; changes > 0; --changes) Change(input, others, random);
  if (input.size() > kMaxFuzzInputBytes) input.resize(kMaxFuzzInputBytes);
}

FuzzOutcome FuzzForRounds(const FuzzTarget& target, uint32_t rounds, uint32_t seed) {
  std::vector<Bytes> inputs = target.seeds();
  for (const Bytes& input : inputs) KVTIER_CHECK(target.run(input));
  for (const Bytes& input : KeptInputs(target.name)) {
    target.run(input);
    inputs.push_back(input);
  }
  std::mt19937 random(seed);
  FuzzOutcome outcome;
  for (uint32_t round = 0; round < rounds; ++round) {
    Bytes input = inputs[random() % inputs.size()];
    Mutate(input, inputs, random);
    ++(target.run(input) ? outcome.accepted : outcome.refused);
  }
  return outcome;
}

}  // namespace kvtier
