#include "client/engines/llamacpp/seq_state.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "tiers/base/check.h"

namespace kvtier::llamacpp {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is llama.cpp's own memory");

constexpr uint64_t kHeadBytes = 16, kCellBytes = 12, kLayersHeadBytes = 8, kPlaneHeadBytes = 12;

Status Wrong(uint64_t offset, const std::string& what) {
  return Status(Code::kInvalidArgument, "sequence state, byte " + std::to_string(offset) + ": " + what);
}

/// Takes values off the front; never reads past the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  Result<T> Take(const char* what) {
    if (bytes_.size() - offset_ < sizeof(T)) return Wrong(offset_, std::string("it ends before ") + what);
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return value;
  }
  template <typename T>
  Status Expect(T expected, const char* what) {
    const uint64_t at = offset_;
    KVTIER_ASSIGN(const T value, Take<T>(what));
    if (value == expected) return Status::Ok();
    return Wrong(at,
                 std::string(what) + " is " + std::to_string(value) + ", not " + std::to_string(expected));
  }
  Status Skip(uint64_t bytes, const char* what) {
    if (bytes_.size() - offset_ < bytes) return Wrong(offset_, std::string("it ends before ") + what);
    offset_ += bytes;
    return Status::Ok();
  }
  uint64_t offset() const { return offset_; }
  bool at_end() const { return offset_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  uint64_t offset_ = 0;
};

/// Whole huge pages, where the kernel has them, for what is larger than one: a block is copied in and out
/// again at once, and half of that is looking pages up where they are small.
std::byte* Allocate(uint64_t bytes) {
  constexpr uint64_t kHugePageBytes = uint64_t{2} << 20, kLineBytes = 64;
  const uint64_t alignment = bytes > kHugePageBytes ? kHugePageBytes : kLineBytes;
  const uint64_t whole = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, whole);
  KVTIER_CHECK(memory != nullptr);
  if (alignment == kHugePageBytes) ::madvise(memory, whole, MADV_HUGEPAGE);  // advice: it may be refused
  return static_cast<std::byte*>(memory);
}

Result<std::vector<int32_t>> TakeCells(Reader& reader) {
  KVTIER_TRY(reader.Expect(kSeqStateMagic, "the magic number"));
  KVTIER_ASSIGN(const int32_t sequence, reader.Take<int32_t>("the sequence"));
  KVTIER_TRY(reader.Expect(uint32_t{1}, "the number of streams"));
  KVTIER_ASSIGN(const uint32_t cells, reader.Take<uint32_t>("the number of cells"));
  if (cells > kCellsMax) return Wrong(reader.offset(), "more cells than any cache has");
  std::vector<int32_t> positions;
  for (uint32_t cell = 0; cell < cells; ++cell) {
    const uint64_t at = reader.offset();
    KVTIER_ASSIGN(const int32_t position, reader.Take<int32_t>("a position"));
    if (position < 0) return Wrong(at, "a position is negative");
    KVTIER_TRY(reader.Expect(uint32_t{1}, "the number of sequences of a cell"));
    KVTIER_TRY(reader.Expect(sequence, "the sequence of a cell"));
    positions.push_back(position);
  }
  return positions;
}

Status CheckShape(SeqShape shape) {
  if (shape.layers == 0 || shape.layers > kLayersMax)
    return Status(Code::kInvalidArgument, "sequence state: no number of layers that a model has");
  if (shape.row_bytes == 0 || shape.row_bytes > kRowBytesMax || shape.row_bytes % 2 != 0)
    return Status(Code::kInvalidArgument, "sequence state: no size that a row of FP16 has");
  return Status::Ok();
}

/// K of all layers, then V of all layers.
Status WalkPlanes(Reader& reader, SeqShape shape, uint32_t cells) {
  for (uint32_t plane = 0; plane < 2 * shape.layers; ++plane) {
    KVTIER_TRY(reader.Expect(kFp16Type, "the type of a layer"));
    KVTIER_TRY(reader.Expect(uint64_t{shape.row_bytes}, "the row bytes of a layer"));
    KVTIER_TRY(reader.Skip(uint64_t{cells} * shape.row_bytes, "the end of a layer's rows"));
  }
  return Status::Ok();
}

template <typename T>
void Append(std::byte*& out, T value) {
  std::memcpy(out, &value, sizeof(T));
  out += sizeof(T);
}

}  // namespace

uint64_t SeqStateBytes(SeqShape shape, uint32_t cells) {
  const uint64_t plane_bytes = kPlaneHeadBytes + uint64_t{cells} * shape.row_bytes;
  return kHeadBytes + cells * kCellBytes + kLayersHeadBytes + 2 * uint64_t{shape.layers} * plane_bytes;
}

Result<SeqState> SeqState::Parse(std::span<const std::byte> bytes, SeqShape shape) {
  KVTIER_TRY(CheckShape(shape));
  Reader reader(bytes);
  SeqState state(bytes, shape);
  KVTIER_ASSIGN(state.positions_, TakeCells(reader));
  if (!state.positions_.empty()) {
    KVTIER_TRY(reader.Expect(uint32_t{0}, "whether V is transposed"));
    KVTIER_TRY(reader.Expect(shape.layers, "the number of layers"));
    state.k_offset_ = reader.offset() + kPlaneHeadBytes;
    state.plane_bytes_ = kPlaneHeadBytes + uint64_t{state.cells()} * shape.row_bytes;
    KVTIER_TRY(WalkPlanes(reader, shape, state.cells()));
  }
  if (!reader.at_end()) return Wrong(reader.offset(), "bytes after its end");
  return state;
}

Result<SeqShape> ReadSeqShape(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  KVTIER_ASSIGN(const std::vector<int32_t> positions, TakeCells(reader));
  if (positions.empty()) return Wrong(reader.offset(), "no cells, so no shape");
  KVTIER_TRY(reader.Expect(uint32_t{0}, "whether V is transposed"));
  KVTIER_ASSIGN(const uint32_t layers, reader.Take<uint32_t>("the number of layers"));
  KVTIER_TRY(reader.Expect(kFp16Type, "the type of a layer"));
  KVTIER_ASSIGN(const uint64_t row_bytes, reader.Take<uint64_t>("the row bytes of a layer"));
  if (row_bytes > kRowBytesMax) return Wrong(reader.offset(), "rows larger than any model's");
  const SeqShape shape{.layers = layers, .row_bytes = static_cast<uint32_t>(row_bytes)};
  KVTIER_ASSIGN(const SeqState whole, SeqState::Parse(bytes, shape));
  return whole.shape();
}

SeqStateBuffer::SeqStateBuffer(SeqShape shape, int32_t first, uint32_t tokens)
    : shape_(shape), tokens_max_(tokens), bytes_(Allocate(SeqStateBytes(shape, tokens))) {
  KVTIER_CHECK(CheckShape(shape).ok() && tokens > 0 && tokens <= kCellsMax);
  Become(first, tokens);
}

void SeqStateBuffer::Free::operator()(std::byte* bytes) const {
  std::free(bytes);
}

void SeqStateBuffer::Become(int32_t first, uint32_t tokens) {
  KVTIER_CHECK(tokens > 0 && tokens <= tokens_max_);
  KVTIER_CHECK(first >= 0 && first <= std::numeric_limits<int32_t>::max() - static_cast<int32_t>(tokens));
  const bool same_planes = tokens == tokens_;
  tokens_ = tokens;
  size_ = SeqStateBytes(shape_, tokens);
  k_offset_ = kHeadBytes + tokens * kCellBytes + kLayersHeadBytes + kPlaneHeadBytes;
  plane_bytes_ = kPlaneHeadBytes + uint64_t{tokens} * shape_.row_bytes;
  WriteHead(first);
  if (!same_planes) WritePlaneHeads();
}

void SeqStateBuffer::WriteHead(int32_t first) {
  std::byte* out = bytes_.get();
  Append(out, kSeqStateMagic);
  Append(out, int32_t{0});
  Append(out, uint32_t{1});
  Append(out, tokens_);
  for (uint32_t token = 0; token < tokens_; ++token) {
    Append(out, static_cast<int32_t>(first + static_cast<int32_t>(token)));
    Append(out, uint32_t{1});
    Append(out, int32_t{0});
  }
}

void SeqStateBuffer::WritePlaneHeads() {
  std::byte* out = bytes_.get() + kHeadBytes + tokens_ * kCellBytes;
  Append(out, uint32_t{0});
  Append(out, shape_.layers);
  for (uint32_t plane = 0; plane < 2 * shape_.layers; ++plane) {
    Append(out, kFp16Type);
    Append(out, uint64_t{shape_.row_bytes});
    out += uint64_t{tokens_} * shape_.row_bytes;
  }
}

}  // namespace kvtier::llamacpp
