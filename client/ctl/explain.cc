#include "client/ctl/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "client/ctl/output.h"
#include "codecs/codec.h"

namespace kvtier::ctl {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr uint32_t kMostUses = 15;  ///< that are told apart

using Block = v1::ListBlocksReply::Block;
using BlockCopy = v1::ListBlocksReply::Copy;

std::string TierName(const v1::StatsReply& stats, uint32_t tier) {
  return static_cast<int>(tier) < stats.tiers_size() ? stats.tiers(static_cast<int>(tier)).name()
                                                     : std::to_string(tier);
}

std::string PrecisionOf(const BlockCopy& copy) {
  const Codec* codec = copy.codec() <= UINT8_MAX ? FindCodec(static_cast<CodecId>(copy.codec())) : nullptr;
  return codec != nullptr ? PrecisionName(static_cast<uint32_t>(codec->precision))
                          : "codec " + std::to_string(copy.codec());
}

/// What becomes of the highest copy when its tier needs room.
std::string NextStep(const Block& block, const v1::StatsReply& stats) {
  const uint32_t tier = block.copies(0).tier();
  const std::string name = TierName(stats, tier);
  if (block.copies_size() > 1) {
    const BlockCopy& lower = block.copies(1);
    return fmt::format("when {} needs room, the copy there just goes: {} has the block as {}", name,
                       TierName(stats, lower.tier()), PrecisionOf(lower));
  }
  if (static_cast<int>(tier) + 1 >= stats.tiers_size()) {
    return fmt::format("{} is the last tier: when it needs room, the block is dropped", name);
  }
  return fmt::format("when {} needs room, it is moved on to {}, unless that does not take it", name,
                     TierName(stats, tier + 1));
}

std::vector<std::string> Reasons(const Block& block, const v1::StatsReply& stats) {
  if (block.copies_size() == 0) return {"no tier has it at the moment: it is being stored or moved"};
  std::vector<std::string> reasons;
  const BlockCopy& highest = block.copies(0);
  reasons.push_back(fmt::format("a reader gets {} from {}, the highest tier that has it",
                                PrecisionOf(highest), TierName(stats, highest.tier())));
  if (block.pins() > 0) {
    reasons.push_back(fmt::format("leases or moves hold it ({}): a copy that they hold stays until they end",
                                  block.pins()));
  }
  reasons.push_back(NextStep(block, stats));
  reasons.push_back(
      fmt::format("what was used least recently goes first: {} uses of other blocks came after its last one",
                  block.uses_since()));
  if (block.has_recent_uses()) {
    reasons.push_back(fmt::format("a tier that admits by frequency counts {}{} uses of it lately",
                                  block.recent_uses(), block.recent_uses() >= kMostUses ? " or more" : ""));
  }
  if (block.floor() != v1::PRECISION_NONE) {
    reasons.push_back(fmt::format("it is never kept below {}: its floor", PrecisionName(block.floor())));
  }
  if (block.is_tail()) reasons.emplace_back("a tail block: it goes when a longer one of its sequence comes");
  return reasons;
}

}  // namespace

Result<std::string> KeyBefore(std::string_view prefix) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (prefix.empty() || prefix.size() > 2 * kKeyBytes ||
      prefix.find_first_not_of(kDigits) != std::string_view::npos) {
    return Status(Code::kInvalidArgument,
                  "\"" + std::string(prefix) + "\" is not the beginning of a key: 1 to 64 of 0-9 and a-f");
  }
  std::string digits(prefix);
  digits.resize(2 * kKeyBytes, '0');
  // One less: the listing begins behind it.
  const size_t last = digits.find_last_not_of('0');
  if (last == std::string::npos) return std::string();
  digits[last] = kDigits[kDigits.find(digits[last]) - 1];
  std::fill(digits.begin() + static_cast<std::ptrdiff_t>(last) + 1, digits.end(), 'f');
  std::string key;
  for (size_t i = 0; i < digits.size(); i += 2) {
    key += static_cast<char>(kDigits.find(digits[i]) * 16 + kDigits.find(digits[i + 1]));
  }
  return key;
}

std::string ExplainText(const Block& block, const v1::ListModelsReply::Model& model,
                        const v1::StatsReply& stats) {
  std::string text = fmt::format("block {}\nof    {}\n", Hex(block.key()), Hex(block.parent()));
  Table facts({"model", "tenant", "id", "tokens", "continued by", "priority", "pins"});
  facts.Row({std::to_string(model.model()), model.tenant(), model.spec().model_id(),
             fmt::format("{} to {}", block.first_position(), block.first_position() + block.tokens() - 1),
             std::to_string(block.children()), std::to_string(block.priority()),
             std::to_string(block.pins())});
  Table copies({"tier", "precision", "bytes", "for", "K error", "V error"});
  for (const BlockCopy& copy : block.copies()) {
    copies.Row({TierName(stats, copy.tier()), PrecisionOf(copy), HumanBytes(copy.bytes()),
                HumanSeconds(static_cast<double>(copy.present_ms()) / 1000),
                fmt::format("{:.4f}", copy.k_error()), fmt::format("{:.4f}", copy.v_error())});
  }
  text += '\n' + facts.str() + '\n' + copies.str() + '\n';
  for (const std::string& reason : Reasons(block, stats)) text += "- " + reason + '\n';
  return text;
}

}  // namespace kvtier::ctl
