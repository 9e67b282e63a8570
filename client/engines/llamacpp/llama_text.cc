#include "client/engines/llamacpp/llama_text.h"

#include <llama.h>

#include <charconv>
#include <limits>
#include <random>

#include "tiers/base/check.h"

namespace kvtier::llamacpp {

namespace {

/// Stands for a message's content while a template is applied: 128 random bits, since nobody may write one.
std::string RandomMark() {
  std::random_device random;
  std::string mark = "kvtier-";
  for (int i = 0; i < 4; ++i) mark += std::to_string(random()) + "-";
  return mark;
}

/// A stretch of a prompt.
struct Stretch {
  std::string_view text;
  bool from_template;
};

/// Takes `prompt` apart at the marks, each `mark`, the number of a message, ';'.
std::vector<Stretch> Split(std::string_view prompt, std::string_view mark,
                           std::span<const ChatMessage> messages) {
  std::vector<Stretch> stretches;
  for (;;) {
    const size_t at = prompt.find(mark);
    stretches.push_back({prompt.substr(0, at), true});
    if (at == std::string_view::npos) return stretches;
    prompt.remove_prefix(at + mark.size());
    size_t number = 0;
    const auto [end, error] = std::from_chars(prompt.data(), prompt.data() + prompt.size(), number);
    KVTIER_CHECK(error == std::errc() && number < messages.size());
    stretches.push_back({messages[number].content, false});
    prompt.remove_prefix(static_cast<size_t>(end - prompt.data()) + 1);
  }
}

}  // namespace

LlamaText::LlamaText(const llama_model* model) : model_(model), vocab_(llama_model_get_vocab(model)) {
  for (int32_t token = 0; token < llama_vocab_n_tokens(vocab_); ++token) {
    // What llama_tokenize reads only when it is told to.
    if ((llama_vocab_get_attr(vocab_, token) & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) == 0)
      continue;
    const std::string name = llama_vocab_get_text(vocab_, token);
    if (!name.empty()) specials_.push_back(name);
  }
}

Result<std::vector<int32_t>> LlamaText::Tokenize(const std::string& text) const {
  return Tokenize(text, Specials::kText, Place::kBeginning);
}

Result<std::vector<int32_t>> LlamaText::Tokenize(std::string_view text, Specials specials,
                                                 Place place) const {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max() / 2))
    return Status(Code::kInvalidArgument, "the prompt is too long");
  const auto length = static_cast<int32_t>(text.size());
  std::vector<int32_t> tokens(text.size() + 8);
  for (int round = 0; round < 2; ++round) {
    const int32_t count =
        llama_tokenize(vocab_, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()),
                       place == Place::kBeginning, specials == Specials::kTokens);
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

bool LlamaText::MayNameSpecial(std::string_view text) const {
  for (const std::string_view name : specials_) {
    if (text.find(name) != std::string_view::npos) return true;
    for (size_t part = 1; part < name.size(); ++part)
      if (text.ends_with(name.substr(0, part)) || text.starts_with(name.substr(part))) return true;
  }
  return false;
}

Result<std::vector<int32_t>> LlamaText::ChatTokens(std::span<const ChatMessage> messages) const {
  // Only a message that may name a special token is made into tokens by itself: tokens of the others may
  // reach over the template's text, as the model has seen them.
  const std::string mark = RandomMark();
  std::vector<ChatMessage> marked(messages.begin(), messages.end());
  for (size_t i = 0; i < marked.size(); ++i) {
    std::string& content = marked[i].content;
    if (MayNameSpecial(content)) content = mark + std::to_string(i) + ";";
  }
  KVTIER_ASSIGN(const std::string prompt, ApplyTemplate(marked));
  std::vector<int32_t> tokens;
  Place place = Place::kBeginning;
  for (const Stretch& stretch : Split(prompt, mark, messages)) {
    KVTIER_ASSIGN(const std::vector<int32_t> more,
                  Tokenize(stretch.text, stretch.from_template ? Specials::kTokens : Specials::kText, place));
    tokens.insert(tokens.end(), more.begin(), more.end());
    place = Place::kInside;
  }
  return tokens;
}

Result<std::string> LlamaText::ApplyTemplate(std::span<const ChatMessage> messages) const {
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
