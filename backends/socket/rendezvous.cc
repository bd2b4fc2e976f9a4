// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/rendezvous.h"

#include <algorithm>
#include <utility>

#include "backends/socket/host.h"
#include "backends/socket/invitation.h"
#include "backends/socket/reception.h"
#include "backends/socket/sockets.h"
#include "backends/socket/visit.h"

// Note [Bootstrap of the star]
// 1. All ranks exchange their host identities.
// 2. Rank 0 listens: at an abstract Unix socket for the ranks of its host, at a TCP port only if
//    there are other hosts. It exchanges names, addresses and two random tokens.
// 3. The others connect and send (magic, rank, first token); rank 0 answers with the second one.
//    An address may lead to the wrong machine (every host can have the same bridge address), so a
//    connection only counts once both tokens were right.

namespace ronde::net {
namespace {

Meeting receive_all(const StarOptions& options, const Exchange& exchange, Meeting meeting,
                    bool several_hosts, Clock::time_point deadline) {
  Invitation invitation;
  invitation.unix_name = "ronde-" + to_hex(random_bytes(12));
  invitation.hello_token = random_bytes(kTokenBytes);
  invitation.reply_token = random_bytes(kTokenBytes);
  std::vector<UniqueFd> listeners;
  listeners.push_back(listen_unix(invitation.unix_name));
  if (several_hosts) {
    listeners.push_back(listen_tcp(invitation.port));
    invitation.addresses = interface_addresses(options.offer_loopback);
  }
  exchange(pack_invitation(invitation));
  meeting.peers = Reception(options.size, invitation, std::move(listeners)).run(deadline);
  return meeting;
}

Meeting visit_root(const StarOptions& options, const Exchange& exchange, Meeting meeting,
                   Clock::time_point deadline) {
  const Invitation invitation = unpack_invitation(exchange({}).at(0));
  const bool same_host = meeting.hosts[static_cast<std::size_t>(options.rank)] == meeting.hosts[0];
  std::vector<Address> addresses;
  if (same_host) {
    addresses.push_back(unix_address(invitation.unix_name));
  } else {
    for (const std::string& text : invitation.addresses) {
      addresses.push_back(tcp_address(text, invitation.port));
    }
  }
  UniqueFd socket = Visit(options.rank, invitation, std::move(addresses)).run(deadline);
  const pid_t pid = same_host ? process_of(socket.get()) : 0;
  meeting.peers.push_back(Peer{0, std::move(socket), pid});
  return meeting;
}

}  // namespace

Meeting meet(const StarOptions& options, const Exchange& exchange) {
  Meeting meeting;
  if (options.size == 1) {
    meeting.hosts = {"this host"};
    return meeting;
  }
  const auto deadline = Clock::now() + options.timeout;
  meeting.hosts = exchange(options.host.empty() ? host_identity() : options.host);
  const bool several_hosts =
      std::any_of(meeting.hosts.begin(), meeting.hosts.end(),
                  [&](const auto& host) { return host != meeting.hosts[0]; });
  if (options.rank == 0) {
    return receive_all(options, exchange, std::move(meeting), several_hosts, deadline);
  }
  return visit_root(options, exchange, std::move(meeting), deadline);
}

}  // namespace ronde::net
