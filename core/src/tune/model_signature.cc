// SPDX-License-Identifier: Apache-2.0
#include "core/src/tune/model_signature.h"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <string_view>

namespace ronde {
namespace {

/// FNV-1a, as std::hash may differ from one library to the next.
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    }
  }
  void add(std::uint64_t number) {
    add(std::string_view(reinterpret_cast<const char*>(&number), sizeof number));
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace

void ModelSignature::add(const OpSpec& spec) {
  Hash hash;
  hash.add(spec.name);
  hash.add(static_cast<std::uint64_t>(spec.kind));
  hash.add(static_cast<std::uint64_t>(spec.dtype));
  for (const std::int64_t dimension : spec.shape) hash.add(static_cast<std::uint64_t>(dimension));
  operations_.insert(hash.value());
}

std::string ModelSignature::text() const {
  if (operations_.empty()) return {};
  Hash hash;
  for (const std::uint64_t operation : operations_) hash.add(operation);
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, hash.value());
  return text.data();
}

}  // namespace ronde
