#pragma once

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tiers/cold_store.h"

namespace kvtier {

/// A folder that goes when the test ends.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvtier-cold-XXXXXX").string();
    KVTIER_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline constexpr uint64_t kTestSegmentBytes = uint64_t{256} << 10;
inline constexpr uint64_t kTestCapacityBytes = uint64_t{16} << 20;

inline ColdStoreOptions TestColdOptions(const std::string& path) {
  return {.tier = TierId{2},
          .path = path,
          .capacity_bytes = kTestCapacityBytes,
          .segment_bytes = kTestSegmentBytes,
          .allow_direct_io = true};
}

template <typename Id>
Id DigestOf(uint64_t seed) {
  Id digest;
  std::mt19937_64 random(seed);
  for (std::byte& byte : digest.bytes) byte = static_cast<std::byte>(random());
  return digest;
}
inline Key KeyOf(uint64_t seed) {
  return DigestOf<Key>(seed * 2 + 1);
}
inline NamespaceDigest TestNamespace() {
  return DigestOf<NamespaceDigest>(7);
}

/// Hands out places as the engine's allocator does: append only, a stream of segments for each part.
class TestAllocator {
 public:
  Place Next(uint64_t image_bytes, ColdPart part = ColdPart::kBase) {
    const uint64_t bytes = ColdRecordBytes(image_bytes);
    Stream& stream = streams_[IndexOf(part)];
    if (stream.offset + bytes > kTestSegmentBytes) {
      stream = {.segment = next_segment_++, .sequence = next_sequence_++, .offset = kColdSegmentHeaderBytes};
    }
    Place place;
    place.tier = TierId{2};
    place.part = part;
    place.container = stream.segment;
    place.offset = stream.offset;
    place.bytes = bytes;
    place.epoch = stream.sequence;
    stream.offset += bytes;
    return place;
  }
  /// Goes on after what a recovery found.
  void ContinueAfter(const ColdRecovery& recovery) {
    for (Stream& stream : streams_) stream.offset = kTestSegmentBytes;
    next_sequence_ = std::max(next_sequence_, recovery.least_sequence);
    for (const RecoveredSegment& segment : recovery.segments) {
      next_segment_ = std::max(next_segment_, segment.number + 1);
      next_sequence_ = std::max(next_sequence_, segment.sequence + 1);
    }
  }
  /// The next base is in another segment.
  void SealSegment() { streams_[IndexOf(ColdPart::kBase)].offset = kTestSegmentBytes; }
  /// That bases go to.
  uint32_t segment() const { return streams_[IndexOf(ColdPart::kBase)].segment; }
  /// To recycle a segment under.
  uint64_t TakeSequence() { return next_sequence_++; }

 private:
  struct Stream {
    uint32_t segment = 0;
    uint64_t sequence = 0;
    uint64_t offset = kTestSegmentBytes;
  };
  std::array<Stream, kColdParts> streams_;
  uint32_t next_segment_ = 0;
  uint64_t next_sequence_ = 1;
};

/// The block that `seed` names: identity, meta and raw bytes follow from it.
struct TestBlock {
  BlockIdentity identity;
  RecordMeta meta;
  std::vector<std::byte> raw;
};
inline TestBlock MakeTestBlock(uint64_t seed) {
  TestBlock block;
  const uint16_t tokens = static_cast<uint16_t>(16 + seed % 3 * 16);
  block.identity = {.key = KeyOf(seed),
                    .name_space = TestNamespace(),
                    .first_position = seed * 64,
                    .shape = {.layers = 2, .kv_heads = 2, .k_dim = 32, .v_dim = 32, .tokens = tokens}};
  block.meta = {.parent = KeyOf(seed - 1), .floor = Precision::kInt2, .is_tail = seed % 5 == 0};
  block.raw.resize(RawBlockBytes(block.identity.shape));
  std::mt19937_64 random(seed);
  // Finite fp16: the exponent stays below all ones.
  for (size_t i = 0; i < block.raw.size(); ++i) {
    block.raw[i] = static_cast<std::byte>(i % 2 == 1 ? random() & 0x3F : random());
  }
  return block;
}

/// Image bytes of the block, as raw16.
inline std::vector<std::byte> ImageOf(const TestBlock& block) {
  const Codec& codec = *FindCodec(CodecId::kRaw16);
  AlignedBuffer out, tile;
  const std::span<std::byte> room = out.Reserve(block.raw.size() + 4096).value();
  const BuiltImage built = EncodeImage(codec, block.identity, block.raw, room, tile);
  KVTIER_CHECK(built.status.ok());
  return {room.begin(), room.begin() + static_cast<ptrdiff_t>(built.image_bytes)};
}

/// Writes the block at the next place; nothing is committed.
inline Result<ColdRecord> WriteBlock(ColdStore& store, BlockIo& io, TestAllocator& allocator, uint64_t seed) {
  const TestBlock block = MakeTestBlock(seed);
  const std::vector<std::byte> image = ImageOf(block);
  ColdRecord record;
  record.identity = block.identity;
  record.meta = block.meta;
  record.codec = CodecId::kRaw16;
  record.image_bytes = image.size();
  record.place = allocator.Next(image.size());
  AlignedBuffer bounce;
  KVTIER_ASSIGN(std::span<std::byte> built, store.BeginWrite(record.place, bounce));
  std::copy(image.begin(), image.end(), built.begin());
  KVTIER_TRY(store.FinishWrite(record.place, io, built, image.size(), record.meta));
  return record;
}

/// Reads the record back and compares every byte of the image.
inline Status CheckBlock(ColdStore& store, BlockIo& io, const ColdRecord& record, uint64_t seed) {
  AlignedBuffer bounce;
  KVTIER_ASSIGN(const auto bytes, store.Read(record.place, io, bounce));
  KVTIER_ASSIGN(const ImageView image, ParseImage(bytes));
  KVTIER_TRY(VerifyImage(image));
  const std::vector<std::byte> expected = ImageOf(MakeTestBlock(seed));
  if (!std::equal(expected.begin(), expected.end(), bytes.begin(), bytes.end())) {
    return Status(Code::kInternal, "WRONG BYTES for block " + std::to_string(seed));
  }
  return Status::Ok();
}

/// A store on a temporary folder, recovered, with its I/O and allocator.
class ColdStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    io_ = MakeBlockIo(BlockIoKind::kSync).value();
    recovery_ = OpenStore(folder_.path());
    // As the engine does before the first block: blocks of a model without its file are of no use.
    KVTIER_CHECK(store_->PutModel({.name_space = TestNamespace(), .fields = "fields"}).ok());
  }

  virtual Result<std::unique_ptr<ColdStore>> MakeStore(const std::string& path) {
    return ColdStore::Make(TestColdOptions(path));
  }
  ColdRecovery OpenStore(const std::string& path) {
    Result<std::unique_ptr<ColdStore>> store = MakeStore(path);
    KVTIER_CHECK(store.ok());
    store_ = std::move(store).value();
    ColdRecovery recovery = store_->Recover().value();
    allocator_.ContinueAfter(recovery);
    return recovery;
  }
  void UseBufferedIo() {
    store_.reset();
    ColdStoreOptions options = TestColdOptions(folder_.path());
    options.allow_direct_io = false;
    store_ = ColdStore::Make(options).value();
    KVTIER_CHECK(store_->Recover().ok());
  }
  /// A clean stop and start.
  void Reopen() {
    store_.reset();
    recovery_ = OpenStore(folder_.path());
  }
  /// What a SIGKILL at this moment leaves: the files as they are now, without the store's closing steps.
  void CrashAndReopen() {
    crashed_ = std::make_unique<TempFolder>();
    std::filesystem::copy(folder_.path(), crashed_->path(), std::filesystem::copy_options::recursive);
    store_.reset();
    recovery_ = OpenStore(crashed_->path());
  }
  void LoseIndex() {
    store_.reset();
    std::filesystem::remove_all(folder_.path() + "/index");
    recovery_ = OpenStore(folder_.path());
  }

  ColdRecord Write(uint64_t seed) {
    Result<ColdRecord> record = WriteBlock(*store_, *io_, allocator_, seed);
    KVTIER_CHECK(record.ok());
    return std::move(record).value();
  }
  ColdRecord Store(uint64_t seed) {
    const ColdRecord record = Write(seed);
    KVTIER_CHECK(store_->Commit({&record, 1}, *io_).ok());
    return record;
  }
  /// Blocks 1 to `count`.
  void StoreMany(uint64_t count) {
    for (uint64_t seed = 1; seed <= count; ++seed) stored_.push_back(Store(seed));
  }
  /// Those blocks were recovered, byte for byte.
  void ExpectBack(uint64_t first, uint64_t last) {
    for (uint64_t seed = first; seed <= last; ++seed) {
      const ColdRecord* found = Recovered(seed);
      ASSERT_NE(found, nullptr) << "block " << seed;
      const Status status = CheckBlock(*store_, *io_, *found, seed);
      EXPECT_TRUE(status.ok()) << "block " << seed << ": " << status.ToString();
    }
  }
  const RecoveredBlock* Recovered(uint64_t seed) const {
    for (const RecoveredBlock& block : recovery_.blocks) {
      if (block.identity.key == KeyOf(seed)) return &block;
    }
    return nullptr;
  }
  std::string SegmentPath(uint32_t number) const {
    char name[32];
    std::snprintf(name, sizeof(name), "/segments/%08u.seg", number);
    return folder_.path() + name;
  }
  /// Flips one bit of a file.
  static void FlipBit(const std::string& path, uint64_t offset, int bit = 0) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    KVTIER_CHECK(file.good());
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ (1 << bit)));
    KVTIER_CHECK(file.good());
  }

  TempFolder folder_;
  std::unique_ptr<TempFolder> crashed_;
  std::unique_ptr<BlockIo> io_;
  std::unique_ptr<ColdStore> store_;
  TestAllocator allocator_;
  ColdRecovery recovery_;
  std::vector<ColdRecord> stored_;  ///< by StoreMany
};

}  // namespace kvtier
