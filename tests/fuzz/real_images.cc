#include "tests/fuzz/real_images.h"

#include "tests/support/blocks.h"
#include "tests/support/fixture.h"
#include "tests/support/paths.h"

namespace kvtier {
namespace {

constexpr uint16_t kTokens = 13;
constexpr uint16_t kInfinity = 0x7c00;

}  // namespace

Result<std::vector<std::vector<std::byte>>> RealImages() {
  KVTIER_ASSIGN(const Fixture fixture, Fixture::Load(TestDataFolder() + "/smollm2-135m"));
  const BlockShape shape = fixture.Shape(kTokens, 1, 32);
  const std::vector<std::byte> finite = fixture.RawBlock(0, kTokens);
  std::vector<std::byte> with_infinity = finite;
  Store16(&with_infinity[RawLayerBytes(shape)], kInfinity);  // in layer 1
  std::vector<std::vector<std::byte>> images;
  for (const Codec* codec : AllCodecs()) {
    if (!codec->supports(StoredShape(codec->id, shape))) continue;
    for (const std::vector<std::byte>& raw : {finite, with_infinity}) {
      KVTIER_ASSIGN(const OwnedImage image, EncodeOwned(*codec, MakeIdentity(1, shape), raw));
      images.push_back(CopyOf(image.bytes));
    }
  }
  return images;
}

}  // namespace kvtier
