// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/src/op/op_spec.h"
#include "core/src/op/rows.h"

namespace ronde {

/// The agreement on an operation, so that a slot number describes its next use.
struct CachedResponse {
  SpecPtr spec;   ///< with the rows of rank 0 where ranks may differ
  RankRows rows;  ///< the rows in which ranks may differ

  /// Returns the spec that `rank` submits.
  SpecPtr spec_of(int rank) const;
};

/// Agreed responses by slot. Rank 0 alone chooses slots (class Negotiator) and every rank stores
/// its responses in the order of decisions, so the contents are equal everywhere. Rank 0 has one
/// for its two sides, as it applies each decision before it makes the next one.
///
/// Thread-safety: none; owned by whoever runs the loop.
class ResponseCache {
 public:
  /// `rank`: find() looks up specs of this rank.
  explicit ResponseCache(int rank) : rank_(rank) {}

  /// Returns the slot whose response `spec` of this rank would get; for an operation without a
  /// name, that of any equal one.
  std::optional<std::uint32_t> find(const SpecPtr& spec) const;

  /// Replaces whatever the slot held.
  void put(std::uint32_t slot, CachedResponse response);

  /// Throws ronde::Error if the slot is empty, as the ranks' caches then differ.
  const CachedResponse& at(std::uint32_t slot) const;

  int rank() const noexcept { return rank_; }

 private:
  struct Slot {
    CachedResponse response;
    SpecPtr own;  ///< as this rank submits it
  };

  const int rank_;
  std::vector<std::optional<Slot>> slots_;
  std::unordered_map<SpecPtr, std::uint32_t, SpecHash, SpecEqual> slot_of_;  ///< by Slot::own
};

}  // namespace ronde
