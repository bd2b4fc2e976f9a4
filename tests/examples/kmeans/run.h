// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/examples/kmeans/oracle.h"
#include "tests/support/processes/launch.h"

namespace kmeans::testing {

using ronde::test::Words;

/// What a run has left and printed.
struct Result {
  std::vector<double> centroids;  ///< one after the other
  std::vector<double> assignments;
  std::string picture;  ///< empty if there is none
  std::string files;    ///< all three as they are
  nlohmann::json report;
  std::string text;

  std::vector<std::int64_t> start_rows() const { return report["start_rows"]; }
};

/// Runs with an --output of its own below `folder` and requires success.
Result cluster(const std::filesystem::path& folder, int ranks, const Words& options);

/// Requires that one to four ranks give the same, bit for bit, but for the times in the report.
/// Returns what one gave.
Result cluster_on_one_to_four(const std::filesystem::path& folder, const Words& options);

/// Checks that the run took the same steps as the plain one.
void check_same(const Result& result, const Expected& expected);

std::string to_csv(const Rows& rows);

}  // namespace kmeans::testing
