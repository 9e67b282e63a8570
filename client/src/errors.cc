#include "client/src/errors.h"

#include <string>

namespace kvtier::client {
namespace {

std::string& LastErrorText() {
  thread_local std::string text;
  return text;
}

}  // namespace

kvtier_code Fail(const Status& status) {
  return Fail(status.code(), status.message());
}

kvtier_code Fail(Code code, std::string_view message) {
  std::string& text = LastErrorText();
  text = CodeName(code);
  if (!message.empty()) text.append(": ").append(message);
  return ToC(code);
}

const char* LastError() {
  return LastErrorText().c_str();
}

}  // namespace kvtier::client
