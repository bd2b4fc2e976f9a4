// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/start.h"

#include <exception>

#include "backends/socket/socket_tree.h"
#include "backends/socket/sockets.h"
#include "core/src/base/fields.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde::net {
namespace {

/// The settings that a rank sends to the others before they connect.
struct Claim {
  int size = 0;
  int local_rank = -1;
  std::string host;
};

std::string pack_claim(const Claim& claim) {
  return pack_fields({std::to_string(claim.size), std::to_string(claim.local_rank), claim.host});
}

Claim unpack_claim(const std::string& bytes, int rank) {
  try {
    const std::vector<std::string> fields = unpack_fields_from(rank, bytes, 3);
    return {number_in<int>(fields[0]).value(), number_in<int>(fields[1]).value(), fields[2]};
  } catch (const std::exception&) {
    throw UsageError("what " + rank_name(rank) +
                     " has put into the key-value store, or sent, is of another version of Ronde");
  }
}

/// Throws the same UsageError on every rank, unless the ranks disagree on the size.
void check_claims(const std::vector<Claim>& claims, bool one_host) {
  const Claim& first = claims.front();
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const std::string rank = rank_name(static_cast<int>(i));
    if (claims[i].size != first.size) {
      throw UsageError("rank 0 was started as one of " + std::to_string(first.size) + " ranks, " +
                       rank + " as one of " + std::to_string(claims[i].size));
    }
    if (one_host && claims[i].host != first.host) {
      throw UsageError(
          "rank 0 and " + rank + " are on different hosts (" + first.host + " and " +
          claims[i].host +
          "): without MPI or UCX, tensors travel through the memory of one host alone. "
          "Keep all ranks on one host and in one network namespace, start them by "
          "mpiexec (with MPI_THREAD_MULTIPLE in a program that initialises MPI), or build Ronde "
          "where UCX is installed");
    }
    const auto before =
        std::count_if(claims.begin(), claims.begin() + static_cast<std::ptrdiff_t>(i),
                      [&](const auto& one) { return one.host == claims[i].host; });
    if (claims[i].local_rank != -1 && claims[i].local_rank != before) {
      throw UsageError(rank + " was started with local rank " +
                       std::to_string(claims[i].local_rank) + ", but " + std::to_string(before) +
                       " ranks of its host come before it: that is its local rank (-1: not "
                       "known). If two agents run on this machine, let each set a RONDE_HOST_ID of "
                       "its own");
    }
  }
}

}  // namespace

TreeOptions tree_options(const std::string& transport, int rank, int size,
                         const NetworkOptions& options, Clock::time_point deadline) {
  return {.transport = transport,
          .rank = rank,
          .size = size,
          .deadline = deadline,
          .host = options.host,
          .offer_loopback = options.offer_loopback,
          .job_key = options.job_key,
          .ports = options.ports};
}

void check_numbers(int rank, int size) {
  if (size >= 1 && rank >= 0 && rank < size) return;
  throw UsageError(rank_name(rank) + " of " + std::to_string(size) +
                   ": ranks count from 0 to the size - 1");
}

std::unique_ptr<Transport> connect_ranks(const std::string& transport, const StartFacts& own,
                                         const NetworkOptions& options, Clock::time_point deadline,
                                         const Exchange& exchange) {
  const std::string host = options.host.empty() ? host_identity() : options.host;
  std::vector<Claim> claims = {{own.size, own.local_rank, host}};
  if (own.size > 1) {
    const std::vector<std::string> blobs = exchange(pack_claim(claims[0]));
    claims.clear();
    for (const std::string& blob : blobs) {
      claims.push_back(unpack_claim(blob, static_cast<int>(claims.size())));
    }
  }
  check_claims(claims, options.one_host);
  TreeOptions tree = tree_options(transport, own.rank, own.size, options, deadline);
  tree.host = host;
  return std::make_unique<SocketTree>(tree, exchange);
}

}  // namespace ronde::net
