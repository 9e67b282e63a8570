#include "client/ctl/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace kvtier::ctl {
namespace {

bool LooksNumeric(const std::string& cell) {
  return !cell.empty() && std::isdigit(static_cast<unsigned char>(cell[0])) != 0;
}

/// Bytes of the character at the front of `text` in UTF-8; 0 where there is none. Clients choose some of what
/// is shown, and may choose any bytes.
size_t Utf8Length(std::string_view text) {
  const auto byte_at = [text](size_t i) {
    return static_cast<unsigned>(static_cast<unsigned char>(text[i]));
  };
  const unsigned lead = byte_at(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte_at(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than it needs to be, a surrogate, beyond the last character.
  const unsigned next = byte_at(1);
  const bool wrong = (lead == 0xe0 && next < 0xa0) || (lead == 0xed && next >= 0xa0) ||
                     (lead == 0xf0 && next < 0x90) || (lead == 0xf4 && next >= 0x90);
  return wrong ? 0 : length;
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_c1 = length == 2 && byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (length == 0 || byte < 0x20 || byte == 0x7f || is_c1) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i + (is_c1 ? 1 : 0)]));
    } else {
      shown += text.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return shown;
}

void JsonWriter::Separate(std::string_view name) {
  if (!first_) out_ += ',';
  first_ = false;
  if (name.empty()) return;
  Quote(name);
  out_ += ':';
}

void JsonWriter::Quote(std::string_view text) {
  out_ += '"';
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t length = Utf8Length(text.substr(i));
    if (length == 0) {
      out_ += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out_ += text.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  out_ += '"';
}

JsonWriter& JsonWriter::BeginObject(std::string_view name) {
  Separate(name);
  out_ += '{';
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::EndObject() {
  out_ += '}';
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::BeginArray(std::string_view name) {
  Separate(name);
  out_ += '[';
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::EndArray() {
  out_ += ']';
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::Text(std::string_view name, std::string_view value) {
  Separate(name);
  Quote(value);
  return *this;
}

JsonWriter& JsonWriter::Number(std::string_view name, uint64_t value) {
  Separate(name);
  out_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::Real(std::string_view name, double value) {
  Separate(name);
  // JSON has no other numbers.
  out_ += std::isfinite(value) ? fmt::format("{:.6g}", value) : "null";
  return *this;
}

JsonWriter& JsonWriter::Bool(std::string_view name, bool value) {
  Separate(name);
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::Element(uint64_t value) {
  Separate({});
  out_ += std::to_string(value);
  return *this;
}

void Table::Row(const std::vector<std::string>& cells) {
  std::vector<std::string>& row = rows_.emplace_back();
  for (const std::string& cell : cells) row.push_back(Printable(cell));
}

std::string Table::str() const {
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += LooksNumeric(row[i]) ? fmt::format("{:>{}}", row[i], widths[i])
                                   : fmt::format("{:<{}}", row[i], widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return out;
}

std::string HumanBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string HumanSeconds(double seconds) {
  if (seconds > 0 && seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.1f} min", seconds / 60);
  return seconds < 172'800 ? fmt::format("{:.1f} h", seconds / 3600)
                           : fmt::format("{:.1f} d", seconds / 86'400);
}

std::string PrecisionName(uint32_t precision) {
  return precision < kPrecisionNames.size() ? kPrecisionNames[precision] : std::to_string(precision);
}

std::string Hex(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes)
    hex += fmt::format("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  return hex;
}

}  // namespace kvtier::ctl
