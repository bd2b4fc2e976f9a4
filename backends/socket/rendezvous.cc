// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/rendezvous.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "backends/socket/handshake_client.h"
#include "backends/socket/handshake_server.h"
#include "backends/socket/sockets.h"
#include "core/src/base/fields.h"
#include "ronde/build_info.h"
#include "ronde/cores.h"
#include "ronde/error.h"

// Note [Bootstrap of the tree]
// 1. All ranks exchange their version of Ronde, which has to be the same; their host identities;
// the
//    cores that they can use; and how much longer they will wait. The earliest deadline holds for
//    all ranks, as ranks that give up one after the other would blame each other.
// 2. Every rank that has children listens at an abstract Unix socket for the ranks of its host, and
//    at a TCP port for those of others. The ranks exchange socket names, addresses, and a random
//    name and token each. A rank that cannot listen sends the reason, which all ranks throw.
// 3. A rank connects to its parent, and both prove that they have the token and the key of the job:
//    Note [Handshake]. A connection counts only after that, as an address may lead to the wrong
//    machine (every host can have the same bridge address).
// 4. Then the rank accepts the connections of its children. In this order, a leader whose children
//    are missing can report them to its parent. If the rank cannot reach its parent, it turns its
//    children away and names the parent; they wait a step longer than it, as they would otherwise
//    name this rank.

namespace ronde::net {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestPatience = std::chrono::years(30);
/// How much longer a rank tries to connect to its parent than the parent to its own. All steps take
/// less than kStartSlack (core/src/loop/engine.cc) in a tree of up to 30,000 hosts.
constexpr milliseconds kStep{700};

std::string introduction(const TreeOptions& options) {
  const auto patience = std::chrono::floor<milliseconds>(options.deadline - Clock::now());
  const Cores cores = usable_cores();
  return pack_fields({options.version, options.host.empty() ? host_identity() : options.host,
                      std::to_string(patience.count()), cores.mask, std::to_string(cores.quota)});
}

/// The blobs of all ranks in step 1.
struct Introductions {
  std::vector<int> host_of;
  std::map<int, Cores> cores;                ///< by host
  milliseconds patience = kLongestPatience;  ///< the shortest of any rank
};

Introductions read_introductions(const std::vector<std::string>& blobs) {
  Introductions all;
  std::map<std::string, int> hosts;
  std::vector<std::string> versions;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    std::vector<std::string> fields = unpack_fields_from(static_cast<int>(rank), blobs[rank], 5);
    const auto patience = number_in<milliseconds::rep>(fields[2]);
    const auto quota = number_in<int>(fields[4]);
    if (!patience || !quota) fail_unreadable(static_cast<int>(rank));
    const int host = hosts.try_emplace(fields[1], static_cast<int>(hosts.size())).first->second;
    all.host_of.push_back(host);
    all.cores[host].add({.mask = fields[3], .quota = *quota});
    all.patience = std::clamp(milliseconds(*patience), milliseconds(0), all.patience);
    versions.push_back("the version of Ronde=" + fields[0]);
  }
  const std::string difference = config_difference(versions);
  if (!difference.empty()) throw UsageError(difference);
  return all;
}

/// The listening sockets of a rank, and the endpoint that it sends to its children.
struct ListeningEndpoint {
  Endpoint endpoint;
  std::vector<UniqueFd> listeners;
};

ListeningEndpoint listen_for(const TreeOptions& options, const Topology& topology,
                             const std::vector<int>& children) {
  ListeningEndpoint listening;
  const auto of_host = static_cast<std::size_t>(topology.local_rank == 0 ? topology.local_size : 0);
  make_room_for_files(children.size() + of_host);  // sockets and pidfds
  listening.endpoint.unix_name = "ronde-" + to_hex(random_bytes(12));
  listening.endpoint.name = to_hex(random_bytes(kTokenBytes / 2));
  listening.endpoint.token = random_bytes(kTokenBytes);
  listening.listeners.push_back(listen_unix(listening.endpoint.unix_name));
  const auto is_elsewhere = [&](int child) {
    return topology.host_of[static_cast<std::size_t>(child)] !=
           topology.host_of[static_cast<std::size_t>(topology.rank)];
  };
  if (std::ranges::any_of(children, is_elsewhere)) {
    listening.listeners.push_back(
        listen_tcp(options.ports, Reach::Everybody, listening.endpoint.port));
    listening.endpoint.addresses = interface_addresses(options.offer_loopback);
  }
  return listening;
}

/// Throws if a rank that others connect to sent the reason why it cannot listen.
void expect_no_problem(const std::vector<std::string>& endpoints) {
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    if (endpoints[i].empty()) continue;
    const int rank = static_cast<int>(i);
    const std::vector<std::string> fields = unpack_fields_from(rank, endpoints[i], 1);
    if (fields.size() > 1) continue;
    throw GroupError(rank, "rank " + std::to_string(rank) +
                               " cannot let the others connect to it: " + fields[0]);
  }
}

Credentials credentials_for(const TreeOptions& options, const Endpoint& endpoint) {
  return {endpoint.name, options.size, JobKey(options.job_key, endpoint.token)};
}

Peer connect_to_parent(const TreeOptions& options, const Topology& topology,
                       const Endpoint& endpoint, Clock::time_point deadline) {
  const int parent = topology.parent();
  const auto host = [&](int rank) { return topology.host_of[static_cast<std::size_t>(rank)]; };
  const bool same_host = host(topology.rank) == host(parent);
  std::vector<Address> addresses;
  if (same_host) {
    addresses.push_back(unix_address(endpoint.unix_name));
  } else {
    for (const std::string& text : endpoint.addresses) {
      addresses.push_back(tcp_address(text, endpoint.port));
    }
  }
  const Credentials credentials = credentials_for(options, endpoint);
  UniqueFd socket =
      HandshakeClient(topology.rank, parent, credentials, std::move(addresses)).run(deadline);
  const pid_t pid = same_host ? process_of(socket.get()) : 0;
  return {parent, std::move(socket), pid};
}

/// Connects to the parent. If it does not answer, turns the children of `server` away.
void join_parent(const TreeOptions& options, const Endpoint& endpoint, HandshakeServer* server,
                 Meeting& meeting) {
  const Topology& topology = meeting.topology;
  const auto until = meeting.deadline + (topology.depth_of(options.rank) - 1) * kStep;
  try {
    meeting.peers.push_back(connect_to_parent(options, topology, endpoint, until));
  } catch (const GroupError& error) {
    const bool is_refused = error.failed_rank() == options.rank;
    if (server != nullptr && !is_refused) server->turn_away(error.failed_rank(), until + kStep);
    throw;
  }
}

}  // namespace

std::string version_of_this_build() {
  return std::string(build_info::kVersion) + " for " + std::string(build_info::kSystem);
}

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

Meeting meet(const TreeOptions& options, const Exchange& exchange) {
  Meeting meeting = {.topology = {.local_cores = usable_cores().count()},
                     .deadline = options.deadline};
  if (options.size == 1) return meeting;
  const Introductions all = read_introductions(exchange(introduction(options)));
  meeting.deadline = std::min(options.deadline, Clock::now() + all.patience);
  meeting.topology = make_topology(options.rank, all.host_of, options.most_leaders_below);
  const auto rank = static_cast<std::size_t>(options.rank);
  meeting.topology.local_cores = all.cores.at(all.host_of.at(rank)).count();
  const std::vector<int> children = meeting.topology.children();
  std::optional<ListeningEndpoint> listening;
  std::string endpoint_or_problem;
  try {
    if (!children.empty()) listening = listen_for(options, meeting.topology, children);
    if (listening) endpoint_or_problem = pack_endpoint(listening->endpoint);
  } catch (const std::exception& error) {
    endpoint_or_problem = pack_fields({error.what()});
  }
  const std::vector<std::string> endpoints = exchange(endpoint_or_problem);
  expect_no_problem(endpoints);
  std::optional<HandshakeServer> server;
  if (listening) {
    server.emplace(options.rank, children, credentials_for(options, listening->endpoint),
                   std::move(listening->listeners), listening->endpoint.port);
  }
  if (const int parent = meeting.topology.parent(); parent >= 0) {
    const auto& bytes = endpoints.at(static_cast<std::size_t>(parent));
    join_parent(options, unpack_endpoint(bytes, parent), server ? &*server : nullptr, meeting);
  }
  if (server) server->run(std::max(meeting.deadline, Clock::now() + kStep), meeting);
  return meeting;
}

}  // namespace ronde::net
