#pragma once

#include <cstdint>
#include <span>
#include <string>
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

  /// Tokens of a prompt, with the beginning that the model wants. Special tokens in the text are theirs.
  /// Errors: kInvalidArgument for text longer than 2 GiB.
  Result<std::vector<int32_t>> Tokenize(const std::string& text) const;
  /// Bytes of one token; none for a control token. They may be part of a character.
  std::string Piece(int32_t token) const;
  bool EndsGeneration(int32_t token) const;
  bool IsToken(int32_t token) const;
  /// The prompt for the assistant's next message. Errors: kUnimplemented where the model has no template that
  /// llama.cpp knows.
  Result<std::string> ChatPrompt(std::span<const ChatMessage> messages) const;

 private:
  const llama_model* const model_;
  const llama_vocab* const vocab_;
};

}  // namespace kvtier::llamacpp
