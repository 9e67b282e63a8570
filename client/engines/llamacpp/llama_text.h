#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/engines/llamacpp/llama_handles.h"
#include "tiers/base/status.h"

namespace kvtier::llamacpp {

struct ChatMessage {
  std::string role;
  std::string content;
};

/// Text to tokens and back, with the model's vocabulary and chat template. Borrows the model. Threads: any.
class LlamaText {
 public:
  explicit LlamaText(const llama_model* model);

  /// Tokens of a prompt, with the beginning that the model wants. Names of special tokens in it are text like
  /// any other. Errors: kInvalidArgument for text longer than 1 GiB.
  Result<std::vector<int32_t>> Tokenize(const std::string& text) const;
  /// Bytes of one token; none for a control token. They may be part of a character.
  std::string Piece(int32_t token) const;
  bool EndsGeneration(int32_t token) const;
  bool IsToken(int32_t token) const;
  /// The prompt for the assistant's next message. The template's special tokens are special, what a message
  /// says is text: it cannot end itself and begin another. Errors: kUnimplemented where the model has no
  /// template that llama.cpp knows; as Tokenize.
  Result<std::vector<int32_t>> ChatTokens(std::span<const ChatMessage> messages) const;

 private:
  enum class Specials : uint8_t { kText, kTokens };
  enum class Place : uint8_t { kBeginning, kInside };
  Result<std::vector<int32_t>> Tokenize(std::string_view text, Specials specials, Place place) const;
  /// Whether a special token could be read in the text, or in it and what a template puts beside it.
  bool MayNameSpecial(std::string_view text) const;
  Result<std::string> ApplyTemplate(std::span<const ChatMessage> messages) const;

  const llama_model* const model_;
  const llama_vocab* const vocab_;
  std::vector<std::string> specials_;  ///< names of the tokens that only a template may use
};

}  // namespace kvtier::llamacpp
