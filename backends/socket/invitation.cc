// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/invitation.h"

#include <charconv>
#include <optional>
#include <system_error>

#include "backends/socket/host.h"
#include "ronde/error.h"

namespace ronde::net {
namespace {

std::optional<std::uint16_t> port_in(const std::string& text) {
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || stop != end) return std::nullopt;
  return port;
}

}  // namespace

std::string pack_invitation(const Invitation& invitation) {
  std::vector<std::string> fields = {invitation.unix_name, std::to_string(invitation.port),
                                     invitation.hello_token, invitation.reply_token};
  fields.insert(fields.end(), invitation.addresses.begin(), invitation.addresses.end());
  return pack(fields);
}

Invitation unpack_invitation(std::string_view bytes, int sender) {
  const std::vector<std::string> fields = unpack(bytes);
  const std::optional<std::uint16_t> port = fields.size() < 4 ? std::nullopt : port_in(fields[1]);
  if (!port || fields[2].size() != kTokenBytes || fields[3].size() != kTokenBytes) {
    throw Error("rank " + std::to_string(sender) +
                " sent a bootstrap message that cannot be read (do all ranks run the same build "
                "of Ronde?)");
  }
  Invitation invitation;
  invitation.unix_name = fields[0];
  invitation.port = *port;
  invitation.hello_token = fields[2];
  invitation.reply_token = fields[3];
  invitation.addresses.assign(fields.begin() + 4, fields.end());
  return invitation;
}

}  // namespace ronde::net
