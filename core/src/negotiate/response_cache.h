// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/src/submit/request_meta.h"
#include "core/src/submit/rows.h"

namespace ronde {

/// The agreement on an operation, so that a slot number describes its next use.
struct CachedResponse {
  std::string name;  ///< empty for operations without a name
  RequestMeta meta;  ///< where ranks may differ it is that of rank 0
  RankRows rows;     ///< in what they may differ

  /// The request of `rank`.
  RequestMeta request_of(int rank) const;
};

/// Agreed responses by slot. Rank 0 alone chooses slots (class Negotiator) and every rank stores
/// its responses in the order of decisions, so the contents are equal everywhere.
///
/// Thread-safety: none; owned by the coordinator thread.
class ResponseCache {
 public:
  /// `rank`: whose requests find() is asked about.
  explicit ResponseCache(int rank) : rank_(rank) {}

  /// The slot with the response that `meta` of this rank would get; `name` empty: any operation
  /// without a name that is alike.
  std::optional<std::uint32_t> find(const std::string& name, const RequestMeta& meta) const;

  /// Replaces whatever the slot held.
  void put(std::uint32_t slot, CachedResponse response);

  /// Throws ronde::Error if the slot is empty: the ranks' caches would differ.
  const CachedResponse& at(std::uint32_t slot) const;

  int rank() const noexcept { return rank_; }

 private:
  std::string lookup_key(const std::string& name, const RequestMeta& meta) const;

  const int rank_;
  std::vector<std::optional<CachedResponse>> slots_;
  std::unordered_map<std::string, std::uint32_t> slot_of_;
};

}  // namespace ronde
