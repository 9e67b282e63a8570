#include "client/engines/llamacpp/text_stream.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace kvtier::llamacpp {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// The character at the front of some bytes, by the table of well-formed UTF-8 in the Unicode Standard (3.9).
struct Character {
  size_t bytes = 1;  ///< that it takes, or that are wrong
  bool valid = false;
  bool unfinished = false;  ///< more bytes could make it valid
};

Character FirstCharacter(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {.bytes = 1, .valid = true};
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;  // of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {};
  }
  for (size_t i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    if (i == text.size()) return {.bytes = i, .valid = false, .unfinished = true};
    if (at(i) < low || at(i) > high) return {.bytes = i};
  }
  return {.bytes = length, .valid = true};
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string TextStream::TakeCharacters(bool all) {
  std::string taken;
  std::string_view left = bytes_;
  while (!left.empty()) {
    const Character character = FirstCharacter(left);
    if (character.unfinished && !all) break;
    taken += character.valid ? left.substr(0, character.bytes) : kReplacement;
    left.remove_prefix(character.bytes);
  }
  bytes_.erase(0, bytes_.size() - left.size());
  return taken;
}

size_t TextStream::MaybeStop() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > longest; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) {
        longest = length;
        break;
      }
    }
  }
  return longest;
}

std::string TextStream::Add(std::string_view piece) {
  if (stopped_) return {};
  bytes_ += piece;
  held_ += TakeCharacters(false);
  // The stop string that is whole first, so that it does not matter in which pieces the text comes.
  size_t begin = 0, end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t found = held_.find(stop);
    if (found == std::string::npos || found + stop.size() > end) continue;
    begin = found + stop.size() < end ? found : std::min(begin, found);
    end = found + stop.size();
  }
  stopped_ = end != std::string::npos;
  std::string certain = held_.substr(0, stopped_ ? begin : held_.size() - MaybeStop());
  held_.erase(0, stopped_ ? std::string::npos : certain.size());
  return certain;
}

std::string TextStream::Finish() {
  if (stopped_) return {};
  return std::exchange(held_, {}) + TakeCharacters(true);
}

}  // namespace kvtier::llamacpp
