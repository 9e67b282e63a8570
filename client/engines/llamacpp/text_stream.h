#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvtier::llamacpp {

/// Text that is generated piece by piece, as a client may see it: whole UTF-8 characters only, and nothing of
/// a stop string or behind one. Bytes that are no UTF-8 become U+FFFD. Single-owner.
class TextStream {
 public:
  /// Empty stop strings are ignored.
  explicit TextStream(std::vector<std::string> stops);

  /// Takes the next bytes and returns the text that is certain now, often "".
  std::string Add(std::string_view piece);
  /// No more will come: returns what was held back; nothing after a stop string.
  std::string Finish();
  /// Whether a stop string was met.
  bool stopped() const { return stopped_; }

 private:
  std::string TakeCharacters(bool all);
  /// Bytes at the end of held_ that may become a stop string.
  size_t MaybeStop() const;

  std::vector<std::string> stops_;
  std::string bytes_;  ///< not yet whole characters
  std::string held_;   ///< characters that may be the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace kvtier::llamacpp
