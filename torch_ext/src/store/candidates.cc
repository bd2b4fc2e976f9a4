// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/store/candidates.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace ronde::store {
namespace {

struct Seen {
  std::string manifest;
  std::string problem;
  bool committed = false;
  std::map<std::int64_t, std::map<int, std::vector<int>>> ranks;  // by part and host
};

void note(const Sighting& sighting, int rank, int host, Seen& seen) {
  seen.committed |= sighting.committed;
  if (seen.manifest.empty()) seen.manifest = sighting.manifest;
  if (seen.problem.empty()) seen.problem = sighting.problem;
  for (const std::int64_t part : sighting.parts) seen.ranks[part][host].push_back(rank);
}

Candidate make(const Name& name, const Seen& seen) {
  Candidate candidate{.name = name};
  if (seen.manifest.empty()) {
    candidate.problem = seen.problem.empty() ? "it has no manifest" : seen.problem;
    return candidate;
  }
  candidate.manifest = decode_manifest(seen.manifest);
  std::string missing;
  for (const PartSummary& summary : candidate.manifest.parts) {
    std::vector<int>& readers = candidate.readers.emplace_back();
    const auto found = seen.ranks.find(summary.part);
    if (found == seen.ranks.end()) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(summary.part);
      continue;
    }
    // The ranks of a host share the work.
    for (const auto& [host, ranks] : found->second) {
      readers.push_back(ranks[static_cast<std::size_t>(summary.part) % ranks.size()]);
    }
    const auto first = static_cast<std::size_t>(summary.part) % readers.size();
    std::rotate(readers.begin(), readers.begin() + static_cast<std::ptrdiff_t>(first),
                readers.end());
  }
  if (!missing.empty()) {
    candidate.problem = "no rank sees its part " + missing + " of " +
                        std::to_string(candidate.manifest.ranks) +
                        ": the file is missing, or on the disk of a host that is";
  }
  return candidate;
}

}  // namespace

std::vector<Candidate> find_candidates(const std::vector<std::vector<Sighting>>& all,
                                       const std::vector<int>& host_of) {
  const auto newest_first = [](const Name& a, const Name& b) {
    return std::tie(a.sequence, a.step, a.run) > std::tie(b.sequence, b.step, b.run);
  };
  std::map<Name, Seen, decltype(newest_first)> by_name(newest_first);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const Sighting& sighting : all[rank]) {
      note(sighting, static_cast<int>(rank), host_of.at(rank), by_name[sighting.name]);
    }
  }
  std::vector<Candidate> candidates;
  for (const auto& [name, seen] : by_name) {
    if (seen.committed) candidates.push_back(make(name, seen));
  }
  return candidates;
}

}  // namespace ronde::store
