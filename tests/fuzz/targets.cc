#include <algorithm>
#include <array>
#include <utility>

#include "codecs/codec.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/real_images.h"
#include "tests/fuzz/target.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// Every fuzzer. One more: a file with its two functions, and a line here.
constexpr std::array kTargets = {
    FuzzTarget{"parts", RunParts, PartsSeeds, 800, 90, 0},
    FuzzTarget{"image", RunImage, ImageSeeds, 1000, 20, 10},
    FuzzTarget{"commands", RunCommands, CommandsSeeds, 1500, 50, 0},
    FuzzTarget{"session", RunSession, SessionSeeds, 2000, 20, 5},
    FuzzTarget{"config", RunConfig, ConfigSeeds, 10000, 1, 20},
    FuzzTarget{"scrape", RunScrape, ScrapeSeeds, 20000, 5, 5},
    FuzzTarget{"view", RunView, ViewSeeds, 30000, 5, 5},
    FuzzTarget{"records", RunRecords, RecordsSeeds, 8000, 20, 1},
    FuzzTarget{"store", RunStore, StoreSeeds, 100, 20, 0},
    FuzzTarget{"cxl", RunCxl, CxlSeeds, 200, 20, 0},
};

}  // namespace

std::span<const FuzzTarget> FuzzTargets() {
  return kTargets;
}

const FuzzTarget* FindFuzzTarget(std::string_view name) {
  if (name == kCanaryTarget.name) return &kCanaryTarget;
  const auto found = std::ranges::find(kTargets, name, &FuzzTarget::name);
  return found == kTargets.end() ? nullptr : &*found;
}

bool RunParts(std::span<const std::byte> input) {
  return DecodeArbitraryParts(input);
}

std::vector<FuzzTarget::Bytes> PartsSeeds() {
  // Each codec with a type that it takes, then bytes as good as any.
  const std::vector<FuzzTarget::Bytes> images = RealImages().value();
  std::vector<FuzzTarget::Bytes> seeds;
  for (size_t codec = 0; codec < AllCodecs().size(); ++codec) {
    const uint8_t dtype = AllCodecs()[codec]->id == CodecId::kRaw8 ? 2 : 0;
    InputWriter input;
    input.Put(static_cast<uint8_t>(codec)).Put(1).Put(3).Put(3).Put(35).Put(dtype).Put(1).Put(32);
    input.Put(1).Put(0).Put(0).PutBytes(std::span(images[codec % images.size()]).first(4096));
    seeds.push_back(input.Take());
  }
  return seeds;
}

bool RunImage(std::span<const std::byte> input) {
  return DecodeArbitraryImage(input);
}

std::vector<FuzzTarget::Bytes> ImageSeeds() {
  std::vector<FuzzTarget::Bytes> seeds = RealImages().value();
  for (size_t i = 0; i < seeds.size(); ++i) {
    seeds[i].insert(seeds[i].begin(), kImagePrologueBytes, static_cast<std::byte>(i));
  }
  return seeds;
}

}  // namespace kvtier
