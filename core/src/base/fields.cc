// SPDX-License-Identifier: Apache-2.0
#include "core/src/base/fields.h"

#include <cstdint>
#include <cstring>

#include "ronde/error.h"

namespace ronde {

std::string pack_fields(const std::vector<std::string>& fields) {
  std::string bytes;
  for (const std::string& field : fields) {
    const std::uint64_t length = field.size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += field;
  }
  return bytes;
}

void fail_unreadable(int sender) {
  throw GroupError(sender, "rank " + std::to_string(sender) +
                               " sent a bootstrap message that cannot be read (do all ranks run "
                               "the same build of Ronde?)");
}

std::vector<std::string> unpack_fields_from(int sender, std::string_view bytes,
                                            std::size_t least_fields) {
  std::vector<std::string> fields;
  while (!bytes.empty()) {
    std::uint64_t length = 0;
    if (bytes.size() < sizeof length) fail_unreadable(sender);
    std::memcpy(&length, bytes.data(), sizeof length);
    bytes.remove_prefix(sizeof length);
    if (bytes.size() < length) fail_unreadable(sender);
    fields.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  if (fields.size() < least_fields) fail_unreadable(sender);
  return fields;
}

}  // namespace ronde
