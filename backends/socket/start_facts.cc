// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/start_facts.h"

#include <algorithm>
#include <exception>

#include "backends/socket/host.h"
#include "core/src/base/fields.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde::net {
namespace {

std::string pack_facts(const StartFacts& facts) {
  return pack_fields({std::to_string(facts.size), std::to_string(facts.local_rank), facts.host});
}

StartFacts unpack_facts(const std::string& bytes, int rank) {
  try {
    const std::vector<std::string> fields = unpack_fields_from(rank, bytes, 3);
    return {number_in<int>(fields[0]).value(), number_in<int>(fields[1]).value(), fields[2]};
  } catch (const std::exception&) {
    throw UsageError("what " + rank_name(rank) +
                     " has put into the key-value store, or sent, is of another version of Ronde");
  }
}

/// Fails or succeeds alike on every rank, unless the ranks disagree on the size.
void check_facts(const std::vector<StartFacts>& facts, bool one_host) {
  const StartFacts& first = facts.front();
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const std::string rank = rank_name(static_cast<int>(i));
    if (facts[i].size != first.size) {
      throw UsageError("rank 0 was started as one of " + std::to_string(first.size) + " ranks, " +
                       rank + " as one of " + std::to_string(facts[i].size));
    }
    if (one_host && facts[i].host != first.host) {
      throw UsageError(
          "rank 0 and " + rank + " are on different hosts (" + first.host + " and " +
          facts[i].host +
          "): without MPI or UCX, tensors travel through the memory of one host alone. "
          "Keep all ranks on one host and in one network namespace, start them by "
          "mpiexec (with MPI_THREAD_MULTIPLE in a program that initialises MPI), or build Ronde "
          "where UCX is installed");
    }
    const auto before = std::count_if(facts.begin(), facts.begin() + static_cast<std::ptrdiff_t>(i),
                                      [&](const auto& one) { return one.host == facts[i].host; });
    if (facts[i].local_rank != -1 && facts[i].local_rank != before) {
      throw UsageError(rank + " was started with local rank " +
                       std::to_string(facts[i].local_rank) + ", but " + std::to_string(before) +
                       " ranks of its host come before it: that is its local rank (-1: not "
                       "known). If two agents run on this machine, let each set a RONDE_HOST_ID of "
                       "its own");
    }
  }
}

}  // namespace

void check_numbers(int rank, int size) {
  if (size >= 1 && rank >= 0 && rank < size) return;
  throw UsageError(rank_name(rank) + " of " + std::to_string(size) +
                   ": ranks count from 0 to the size - 1");
}

void compare_facts(const StartFacts& own, bool one_host, const Exchange& exchange) {
  if (own.size == 1) {
    check_facts({own}, one_host);
    return;
  }
  const std::vector<std::string> blobs = exchange(pack_facts(own));
  std::vector<StartFacts> facts;
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    facts.push_back(unpack_facts(blobs[i], static_cast<int>(i)));
  }
  check_facts(facts, one_host);
}

}  // namespace ronde::net
