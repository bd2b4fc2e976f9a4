// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/invitation.h"

#include <optional>

#include "backends/socket/host.h"
#include "ronde/error.h"

namespace ronde::net {
std::string pack_invitation(const Invitation& invitation) {
  std::vector<std::string> fields = {invitation.unix_name, std::to_string(invitation.port),
                                     invitation.hello_token, invitation.reply_token};
  fields.insert(fields.end(), invitation.addresses.begin(), invitation.addresses.end());
  return pack(fields);
}

void fail_unreadable(int sender) {
  throw Error("rank " + std::to_string(sender) +
              " sent a bootstrap message that cannot be read (do all ranks run the same build of "
              "Ronde?)");
}

Invitation unpack_invitation(std::string_view bytes, int sender) {
  const std::vector<std::string> fields = unpack(bytes);
  const std::optional<std::uint16_t> port =
      fields.size() < 4 ? std::nullopt : number_in<std::uint16_t>(fields[1]);
  if (!port || fields[2].size() != kTokenBytes || fields[3].size() != kTokenBytes) {
    fail_unreadable(sender);
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
