// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/invitation.h"

#include "backends/socket/host.h"
#include "core/src/base/fields.h"

namespace ronde::net {

std::string pack_invitation(const Invitation& invitation) {
  std::vector<std::string> fields = {invitation.unix_name, std::to_string(invitation.port),
                                     invitation.hello_token, invitation.reply_token};
  fields.insert(fields.end(), invitation.addresses.begin(), invitation.addresses.end());
  return pack_fields(fields);
}

Invitation unpack_invitation(std::string_view bytes, int sender) {
  const std::vector<std::string> fields = unpack_fields_from(sender, bytes, 4);
  const auto port = number_in<std::uint16_t>(fields[1]);
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
