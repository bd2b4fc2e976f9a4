// SPDX-License-Identifier: Apache-2.0
// Where a rank can be reached, as it says itself.
#include "backends/socket/rendezvous.h"

#include "backends/socket/sockets.h"
#include "core/src/base/fields.h"
#include "ronde/error.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

namespace ronde::fuzz {
namespace {

net::Endpoint endpoint() {
  return {"ronde-0123456789abcdef01234567",
          40000,
          {"192.168.178.21", "fd00::1:2"},
          std::string(net::kTokenBytes, 'h'),
          std::string(net::kTokenBytes, 'r')};
}

}  // namespace

std::vector<std::string> valid_inputs() {
  net::Endpoint on_host = endpoint();
  on_host.port = 0;
  on_host.addresses = {};
  return {net::pack_endpoint(endpoint()), net::pack_endpoint(on_host)};
}

bool take(std::string_view bytes) {
  try {
    require(pack_fields(unpack_fields_from(3, bytes, 0)) == bytes,
            "fields are packed as they were");
    const net::Endpoint got = net::unpack_endpoint(bytes, 3);
    const std::string packed = net::pack_endpoint(got);
    require(net::pack_endpoint(net::unpack_endpoint(packed, 3)) == packed,
            "an endpoint packs to something that is unpacked equal");
    net::unix_address(got.unix_name);
    for (const std::string& address : got.addresses) net::tcp_address(address, got.port);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace ronde::fuzz
