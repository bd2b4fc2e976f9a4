// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/endpoint.h"

#include "backends/socket/host.h"
#include "core/src/base/fields.h"

namespace ronde::net {

std::string pack_endpoint(const Endpoint& endpoint) {
  std::vector<std::string> fields = {endpoint.unix_name, std::to_string(endpoint.port),
                                     endpoint.name, endpoint.token};
  fields.insert(fields.end(), endpoint.addresses.begin(), endpoint.addresses.end());
  return pack_fields(fields);
}

Endpoint unpack_endpoint(std::string_view bytes, int sender) {
  const std::vector<std::string> fields = unpack_fields_from(sender, bytes, 4);
  const auto port = number_in<std::uint16_t>(fields[1]);
  if (!port || fields[2].size() != kTokenBytes || fields[3].size() != kTokenBytes) {
    fail_unreadable(sender);
  }
  Endpoint endpoint;
  endpoint.unix_name = fields[0];
  endpoint.port = *port;
  endpoint.name = fields[2];
  endpoint.token = fields[3];
  endpoint.addresses.assign(fields.begin() + 4, fields.end());
  return endpoint;
}

}  // namespace ronde::net
