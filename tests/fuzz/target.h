#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvtier {

/// One way into kvtier for bytes that nobody vouches for. Which there are: targets.cc.
struct FuzzTarget {
  using Bytes = std::vector<std::byte>;

  std::string_view name;
  /// Returns on every input: whether it got past the first checks, so that a fuzzer that only ever meets
  /// those is noticed. A defect kills the process. Single-threaded, the same every time.
  bool (*run)(std::span<const std::byte> input);
  /// Inputs to begin with; real bytes where there are some. All of them get past the first checks.
  std::vector<Bytes> (*seeds)();
  /// Mutated inputs that the tests run: some seconds of them with ASan and UBSan.
  uint32_t rounds = 0;
  /// Of those, how many in a hundred must get past the first checks, and how many must not.
  uint32_t least_accepted_percent = 1;
  uint32_t least_refused_percent = 1;
};

std::span<const FuzzTarget> FuzzTargets();
/// Null: there is none of this name. Knows the canary too, which is in no other list.
const FuzzTarget* FindFuzzTarget(std::string_view name);

/// A target with a planted defect, which a fuzzer must find.
extern const FuzzTarget kCanaryTarget;

// One file each; what its bytes mean is said there.
bool RunParts(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> PartsSeeds();
bool RunImage(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> ImageSeeds();
bool RunCommands(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> CommandsSeeds();
bool RunSession(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> SessionSeeds();
bool RunConfig(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> ConfigSeeds();
bool RunRecords(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> RecordsSeeds();
bool RunStore(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> StoreSeeds();
bool RunCxl(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> CxlSeeds();
bool RunView(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> ViewSeeds();
bool RunScrape(std::span<const std::byte> input);
std::vector<FuzzTarget::Bytes> ScrapeSeeds();

}  // namespace kvtier
