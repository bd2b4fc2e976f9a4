// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/rendezvous.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "backends/socket/host.h"
#include "backends/socket/invitation.h"
#include "backends/socket/reception.h"
#include "backends/socket/sockets.h"
#include "backends/socket/visit.h"
#include "ronde/cores.h"

// Note [Bootstrap of the tree]
// 1. All ranks exchange their host identities and the cores that they can use.
// 2. Every rank that has children listens: at an abstract Unix socket for the ranks of its host;
//    rank 0 at a TCP port as well if there are other hosts. They exchange names, addresses and two
//    random tokens each.
// 3. A rank connects to its parent and sends (magic, rank, first token); the parent answers with
//    the second one. An address may lead to the wrong machine (every host can have the same bridge
//    address), so a connection only counts once both tokens were right.
// 4. Then it takes the connections of its children. In this order, so that a leader whose children
//    do not come can tell rank 0 of them.

namespace ronde::net {
namespace {

/// What a rank tells first.
std::string pack_place(const std::string& host) {
  const Cores cores = usable_cores();
  return pack({host, cores.mask, std::to_string(cores.quota)});
}

Topology topology_of(int rank, const std::vector<std::string>& places) {
  std::vector<std::string> hosts;
  std::map<std::string, Cores> cores;
  std::vector<int> host_of;
  for (const std::string& place : places) {
    const std::vector<std::string> fields = unpack(place);
    const std::string& host = hosts.emplace_back(fields.at(0));
    const auto first = std::find(hosts.begin(), hosts.end(), host);
    host_of.push_back(static_cast<int>(first - hosts.begin()));
    cores[host].add({.mask = fields.at(1), .quota = std::stoi(fields.at(2))});
  }
  Topology topology = make_topology(rank, host_of);
  topology.local_cores = cores.at(hosts.at(static_cast<std::size_t>(rank))).count();
  return topology;
}

/// Where a rank's children can find it.
struct Door {
  Invitation invitation;
  std::vector<UniqueFd> listeners;
};

Door open_door(const TreeOptions& options, const Topology& topology) {
  Door door;
  door.invitation.unix_name = "ronde-" + to_hex(random_bytes(12));
  door.invitation.hello_token = random_bytes(kTokenBytes);
  door.invitation.reply_token = random_bytes(kTokenBytes);
  door.listeners.push_back(listen_unix(door.invitation.unix_name));
  if (topology.rank == 0 && topology.hosts() > 1) {
    door.listeners.push_back(listen_tcp(door.invitation.port));
    door.invitation.addresses = interface_addresses(options.offer_loopback);
  }
  return door;
}

Peer visit_parent(const Topology& topology, const Invitation& invitation,
                  Clock::time_point deadline) {
  const int parent = topology.parent();
  const auto host = [&](int rank) { return topology.host_of[static_cast<std::size_t>(rank)]; };
  const bool same_host = host(topology.rank) == host(parent);
  std::vector<Address> addresses;
  if (same_host) {
    addresses.push_back(unix_address(invitation.unix_name));
  } else {
    for (const std::string& text : invitation.addresses) {
      addresses.push_back(tcp_address(text, invitation.port));
    }
  }
  UniqueFd socket = Visit(topology.rank, parent, invitation, std::move(addresses)).run(deadline);
  const pid_t pid = same_host ? process_of(socket.get()) : 0;
  return {parent, std::move(socket), pid};
}

}  // namespace

Meeting meet(const TreeOptions& options, const Exchange& exchange) {
  if (options.size == 1) return {.topology = {.local_cores = usable_cores().count()}};
  const auto deadline = Clock::now() + options.timeout;
  Meeting meeting;
  meeting.topology = topology_of(
      options.rank, exchange(pack_place(options.host.empty() ? host_identity() : options.host)));
  const std::vector<int> children = meeting.topology.children();
  std::optional<Door> door;
  if (!children.empty()) door = open_door(options, meeting.topology);
  const std::vector<std::string> invitations =
      exchange(door ? pack_invitation(door->invitation) : std::string());
  if (const int parent = meeting.topology.parent(); parent >= 0) {
    const Invitation invitation =
        unpack_invitation(invitations.at(static_cast<std::size_t>(parent)), parent);
    meeting.peers.push_back(visit_parent(meeting.topology, invitation, deadline));
  }
  if (door) {
    Reception reception(options.rank, children, door->invitation, std::move(door->listeners));
    reception.run(deadline, meeting);
  }
  return meeting;
}

}  // namespace ronde::net
