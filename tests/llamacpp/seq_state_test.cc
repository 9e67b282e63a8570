// The bytes of a llama.cpp sequence state: what is read is what is there, and anything else is an error.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/llamacpp/states.h"

namespace kvtier::llamacpp {
namespace {

constexpr SeqShape kShape{.layers = 3, .row_bytes = 8};

std::vector<std::byte> Good() {
  return StateOf(kShape, {7, 5, 6, 8, 9}, 1);
}

/// Offset and size of every field of Good() that has one legal value only, or names a size.
struct Field {
  size_t offset, bytes;
};
std::vector<Field> FixedFields() {
  std::vector<Field> fields = {{0, 4}, {8, 4}, {12, 4}};
  for (size_t cell = 0; cell < 5; ++cell) {
    fields.push_back({16 + 12 * cell + 4, 4});
    fields.push_back({16 + 12 * cell + 8, 4});
  }
  size_t at = 16 + 12 * 5;
  fields.push_back({at, 4});
  fields.push_back({at + 4, 4});
  at += 8;
  for (uint32_t plane = 0; plane < 2 * kShape.layers; ++plane, at += 12 + 5 * 8) {
    fields.push_back({at, 4});
    fields.push_back({at + 4, 8});
  }
  EXPECT_EQ(at, Good().size());
  return fields;
}

TEST(SeqState, ReadsPositionsAndRowsOfEveryLayer) {
  const std::vector<std::byte> bytes = Good();
  const Result<SeqState> state = SeqState::Parse(bytes, kShape);
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  EXPECT_EQ(state->positions(), (std::vector<int32_t>{7, 5, 6, 8, 9}));
  const size_t first = 16 + 5 * 12 + 8 + 12, plane = 12 + 5 * 8;
  for (uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(state->K(layer), bytes.data() + first + layer * plane);
    EXPECT_EQ(state->V(layer), bytes.data() + first + (3 + layer) * plane);
  }
  EXPECT_EQ(SeqStateBytes(kShape, 5), bytes.size());
}

TEST(SeqState, FindsTheShapeOfAModelByItself) {
  const Result<SeqShape> shape = ReadSeqShape(Good());
  ASSERT_TRUE(shape.ok()) << shape.status().ToString();
  EXPECT_EQ(*shape, kShape);
  EXPECT_FALSE(ReadSeqShape(StateOf(kShape, {}, 1)).ok()) << "a state without cells has no shape";
}

TEST(SeqState, HasNoCellsWhereTheSequenceIsEmpty) {
  const std::vector<std::byte> bytes = StateOf(kShape, {}, 1);
  const Result<SeqState> state = SeqState::Parse(bytes, kShape);
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  EXPECT_EQ(state->cells(), 0u);
}

TEST(SeqState, RefusesEveryTruncation) {
  const std::vector<std::byte> bytes = Good();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // An exact allocation: a read past the end is found by a sanitizer.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_EQ(SeqState::Parse(cut, kShape).status().code(), Code::kInvalidArgument) << size;
    EXPECT_EQ(ReadSeqShape(cut).status().code(), Code::kInvalidArgument) << size;
  }
}

TEST(SeqState, RefusesBytesBehindItsEnd) {
  for (const size_t extra : {1, 4, 12, 4096}) {
    std::vector<std::byte> bytes = Good();
    bytes.resize(bytes.size() + extra);
    EXPECT_FALSE(SeqState::Parse(bytes, kShape).ok()) << extra;
    EXPECT_FALSE(ReadSeqShape(bytes).ok()) << extra;
  }
  std::vector<std::byte> empty = StateOf(kShape, {}, 1);
  empty.push_back({});
  EXPECT_FALSE(SeqState::Parse(empty, kShape).ok());
}

TEST(SeqState, RefusesEveryChangedBitOfEveryFixedField) {
  for (const Field& field : FixedFields()) {
    for (size_t bit = 0; bit < 8 * field.bytes; ++bit) {
      std::vector<std::byte> bytes = Good();
      bytes[field.offset + bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      EXPECT_FALSE(SeqState::Parse(bytes, kShape).ok()) << "byte " << field.offset << ", bit " << bit;
      EXPECT_FALSE(ReadSeqShape(bytes).ok()) << "byte " << field.offset << ", bit " << bit;
    }
  }
}

TEST(SeqState, RefusesAnotherModelsShape) {
  for (const SeqShape other : {SeqShape{2, 8}, SeqShape{4, 8}, SeqShape{3, 4}, SeqShape{3, 16},
                               SeqShape{0, 8}, SeqShape{3, 0}, SeqShape{3, 7}, SeqShape{kLayersMax + 1, 8}}) {
    EXPECT_FALSE(SeqState::Parse(Good(), other).ok()) << other.layers << " x " << other.row_bytes;
  }
}

TEST(SeqState, RefusesANegativePosition) {
  EXPECT_FALSE(SeqState::Parse(StateOf(kShape, {0, -1}, 1), kShape).ok());
}

TEST(SeqState, AnyBytesAreReadWithinTheirBounds) {
  std::mt19937 random(20261130);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = Good();
    const auto changes = 1 + random() % 4;
    for (unsigned change = 0; change < changes; ++change) {
      const size_t at = random() % 2 == 0 ? random() % 100 : random() % bytes.size();
      bytes[at] = static_cast<std::byte>(random() % 4 == 0 ? 0xff : random() % 256);
    }
    if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    bytes.shrink_to_fit();
    const Result<SeqState> state = SeqState::Parse(bytes, kShape);
    if (!state.ok() || state->cells() == 0) continue;
    ASSERT_EQ(SeqStateBytes(kShape, state->cells()), bytes.size());
    ASSERT_EQ(state->V(2) + state->cells() * kShape.row_bytes, bytes.data() + bytes.size());
  }
}

TEST(SeqStateBuffer, IsAStateOfConsecutiveTokens) {
  SeqStateBuffer buffer(kShape, 640, 64);
  std::byte* const end_of_v = buffer.V(2) + 64 * kShape.row_bytes;
  EXPECT_EQ(end_of_v, buffer.bytes().data() + buffer.bytes().size());
  buffer.K(1)[5] = std::byte{42};
  buffer.V(0)[6] = std::byte{43};
  const Result<SeqState> state = SeqState::Parse(buffer.bytes(), kShape);
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  std::vector<int32_t> positions(64);
  std::iota(positions.begin(), positions.end(), 640);
  EXPECT_EQ(state->positions(), positions);
  EXPECT_EQ(state->K(1)[5], std::byte{42});
  EXPECT_EQ(state->V(0)[6], std::byte{43});
}

TEST(SeqStateBuffer, MovedIsTheStateOfOtherPositionsWithTheSameRows) {
  SeqStateBuffer buffer(kShape, 640, 2);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    std::memset(buffer.K(layer), 1 + static_cast<int>(layer), 2 * kShape.row_bytes);
    std::memset(buffer.V(layer), 8 + static_cast<int>(layer), 2 * kShape.row_bytes);
  }
  buffer.Become(7, 2);
  SeqStateBuffer expected(kShape, 7, 2);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    std::memset(expected.K(layer), 1 + static_cast<int>(layer), 2 * kShape.row_bytes);
    std::memset(expected.V(layer), 8 + static_cast<int>(layer), 2 * kShape.row_bytes);
  }
  EXPECT_TRUE(std::ranges::equal(buffer.bytes(), expected.bytes()));
}

/// Fills `buffer` with the rows of `bytes`; then it should be the same.
void CopyRows(std::span<const std::byte> bytes, SeqStateBuffer& buffer) {
  const Result<SeqState> state = SeqState::Parse(bytes, kShape);
  ASSERT_TRUE(state.ok());
  for (uint32_t layer = 0; layer < 3; ++layer) {
    std::memcpy(buffer.K(layer), state->K(layer), state->cells() * kShape.row_bytes);
    std::memcpy(buffer.V(layer), state->V(layer), state->cells() * kShape.row_bytes);
  }
}

TEST(SeqStateBuffer, IsByteForByteWhatTheFormatSays) {
  const std::vector<std::byte> expected = StateOf(kShape, {4, 5}, 9, 0);
  SeqStateBuffer buffer(kShape, 4, 2);
  CopyRows(expected, buffer);
  EXPECT_TRUE(std::ranges::equal(expected, buffer.bytes()));
}

TEST(SeqStateBuffer, HoldsStatesOfFewerTokensInTheSameMemory) {
  SeqStateBuffer buffer(kShape, 0, 5);
  const std::byte* const memory = buffer.bytes().data();
  for (const std::vector<int32_t>& positions :
       {std::vector{3, 4}, std::vector{5, 6, 7, 8, 9}, std::vector{1}, std::vector{6, 7, 8, 9, 10}}) {
    const std::vector<std::byte> expected = StateOf(kShape, positions, 9, 0);
    buffer.Become(positions[0], static_cast<uint32_t>(positions.size()));
    CopyRows(expected, buffer);
    EXPECT_TRUE(std::ranges::equal(expected, buffer.bytes())) << positions[0];
  }
  EXPECT_EQ(buffer.bytes().data(), memory);
}

}  // namespace
}  // namespace kvtier::llamacpp
