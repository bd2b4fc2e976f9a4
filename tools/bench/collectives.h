// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "ronde/collective.h"
#include "tools/bench/session.h"

namespace ronde::tool {

/// How much of the data a rank's buffer holds.
enum class Extent { Nothing, Share, Whole };

/// Where an element of a result stands.
struct Place {
  int rank = 0;
  int ranks = 1;
  std::size_t share = 0;  ///< elements in one rank's part of the whole
};

/// A benchmark of one collective over a range of sizes.
struct CollectiveBenchmark {
  std::string_view name;
  std::string_view help;
  Collective kind = Collective::Allreduce;
  Extent input = Extent::Whole;
  Extent output = Extent::Whole;
  bool in_place = false;
  /// Bus bandwidth over algorithm bandwidth: what each rank has to send or receive at least, as a
  /// part of `bytes`.
  double (*bus_factor)(int ranks) = nullptr;
  /// The closed form of element `index` of the output, where the inputs are as pattern() says.
  int (*expected)(const Place& place, std::size_t index) = nullptr;
  std::string_view default_max = "64MiB";
};

std::span<const CollectiveBenchmark> collective_benchmarks();

/// Runs it, prints and writes its rows. Collective.
void run_collective(const CollectiveBenchmark& benchmark, Session& session);

}  // namespace ronde::tool
