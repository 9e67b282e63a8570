#include "client/engines/llamacpp/llama_text.h"

#include <llama.h>

#include <limits>

namespace kvtier::llamacpp {

LlamaText::LlamaText(const llama_model* model) : model_(model), vocab_(llama_model_get_vocab(model)) {}

Result<std::vector<int32_t>> LlamaText::Tokenize(const std::string& text) const {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max() / 2))
    return Status(Code::kInvalidArgument, "the prompt is too long");
  const auto length = static_cast<int32_t>(text.size());
  std::vector<int32_t> tokens(text.size() + 8);
  for (int round = 0; round < 2; ++round) {
    const int32_t count = llama_tokenize(vocab_, text.data(), length, tokens.data(),
                                         static_cast<int32_t>(tokens.size()), true, true);
    if (count >= 0) {
      tokens.resize(static_cast<size_t>(count));
      return tokens;
    }
    if (count == std::numeric_limits<int32_t>::min()) break;
    tokens.resize(static_cast<size_t>(-count));
  }
  return Status(Code::kInvalidArgument, "the prompt cannot be made into tokens");
}

std::string LlamaText::Piece(int32_t token) const {
  std::string piece(64, '\0');
  for (int round = 0; round < 2; ++round) {
    const int32_t bytes =
        llama_token_to_piece(vocab_, token, piece.data(), static_cast<int32_t>(piece.size()), 0, false);
    if (bytes >= 0) {
      piece.resize(static_cast<size_t>(bytes));
      return piece;
    }
    piece.resize(static_cast<size_t>(-bytes));
  }
  return {};
}

bool LlamaText::EndsGeneration(int32_t token) const {
  return llama_vocab_is_eog(vocab_, token);
}

bool LlamaText::IsToken(int32_t token) const {
  return token >= 0 && token < llama_vocab_n_tokens(vocab_);
}

Result<std::string> LlamaText::ChatPrompt(std::span<const ChatMessage> messages) const {
  const char* const chat_template = llama_model_chat_template(model_, nullptr);
  if (chat_template == nullptr) return Status(Code::kUnimplemented, "the model has no chat template");
  std::vector<llama_chat_message> chat;
  size_t bytes = 256;
  for (const ChatMessage& message : messages) {
    chat.push_back({.role = message.role.c_str(), .content = message.content.c_str()});
    bytes += 2 * (message.role.size() + message.content.size()) + 64;
  }
  std::string prompt(bytes, '\0');
  for (int round = 0; round < 2; ++round) {
    const int32_t length = llama_chat_apply_template(chat_template, chat.data(), chat.size(), true,
                                                     prompt.data(), static_cast<int32_t>(prompt.size()));
    if (length < 0) return Status(Code::kUnimplemented, "llama.cpp does not know the model's chat template");
    const bool fits = static_cast<size_t>(length) <= prompt.size();
    prompt.resize(static_cast<size_t>(length));
    if (fits) return prompt;
  }
  return Status(Code::kInternal, "the chat template gives another length each time");
}

}  // namespace kvtier::llamacpp
