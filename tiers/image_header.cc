#include "tiers/image_header.h"

namespace kvtier {

ImageHeader HeaderOf(const BlockIdentity& identity, const BlockShape& stored, CodecId codec) {
  ImageHeader header{};
  header.magic = kImageMagic;
  header.version = kImageVersion;
  header.codec = static_cast<uint8_t>(codec);
  header.dtype = static_cast<uint8_t>(stored.dtype);
  header.flags = IsPlaneFamily(codec) ? kImageFlagRotatedV : 0;
  header.tokens = stored.tokens;
  header.layers = stored.layers;
  header.kv_heads = stored.kv_heads;
  header.k_dim = stored.k_dim;
  header.v_dim = stored.v_dim;
  header.nraw = stored.nraw;
  header.nb = stored.nb;
  header.first_position = identity.first_position;
  header.key = identity.key.bytes;
  header.name_space = identity.name_space.bytes;
  return header;
}

BlockIdentity IdentityOf(const ImageHeader& header) {
  BlockIdentity identity;
  identity.key.bytes = header.key;
  identity.name_space.bytes = header.name_space;
  identity.first_position = header.first_position;
  identity.shape = {.layers = header.layers,
                    .kv_heads = header.kv_heads,
                    .k_dim = header.k_dim,
                    .v_dim = header.v_dim,
                    .tokens = header.tokens,
                    .dtype = static_cast<DType>(header.dtype),
                    .nraw = header.nraw,
                    .nb = header.nb};
  return identity;
}

}  // namespace kvtier
